"""The durable ledger: plain SQLAlchemy, one function a transaction."""
