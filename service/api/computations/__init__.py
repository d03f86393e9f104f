"""Routes that compute and store nothing, one file a resource."""
