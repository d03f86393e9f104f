"""Routes that draw noisy counts, or read them back: JSON, Arrow streams, histograms and tabulations."""
