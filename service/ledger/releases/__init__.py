"""Releases: charging, reserving, settling and reading them."""
