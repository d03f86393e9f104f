"""Routes of the ledger's resources, one file a resource."""
