"""Routes of the ledger's resources, one file for each resource."""
