"""Models that several requests and answers share."""
