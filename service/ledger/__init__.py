"""The durable ledger: plain SQLAlchemy, one function for each transaction."""
