"""Noisy counts made to meet published totals, whole and not negative: it costs no privacy."""
