"""A privacy-budget ledger for statistical agencies."""

import os

__version__ = "0.12.0"

# Requests run in parallel here. Matrix products that start threads of their own beside them would wait for one
# another, a hundred times as long as they compute. numpy reads the variable when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
