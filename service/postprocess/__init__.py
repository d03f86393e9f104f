"""Adjustment of noisy counts to published totals, without negative counts. As post-processing it costs no privacy."""
