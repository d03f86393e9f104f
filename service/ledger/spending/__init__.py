"""Spending: what accounts have lost so far, as sums of rows, by windows of periods, and over time."""
