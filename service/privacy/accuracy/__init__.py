"""Margins of error of noise, of single cells and of sums."""
