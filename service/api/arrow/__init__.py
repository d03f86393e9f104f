"""Counts as Arrow IPC streams."""
