"""Benchmarks of the service beside peers that are measured in the same run."""
