"""Descriptions of accounts and releases: their metadata, and the facts of registry entries."""
