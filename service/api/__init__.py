"""The HTTP contract: one file of routes and models for each resource."""
