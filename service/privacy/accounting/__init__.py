"""Losses of plans: prices, curves, conversions and the filter."""
