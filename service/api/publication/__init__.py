"""Publication packages: a release's noisy counts and what vouches for them, as one signed archive."""
