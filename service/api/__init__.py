"""The HTTP contract: routes with their models, one file a resource."""
