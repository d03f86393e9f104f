"""How fast the service is, beside peers that are measured in the same run."""
