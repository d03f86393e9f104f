"""Exact numbers, directed rounding and certified arithmetic."""
