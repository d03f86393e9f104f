"""Routes that compute and store nothing, one file for each resource."""
