"""A privacy-budget ledger for statistical agencies."""

__version__ = "0.1.0"
