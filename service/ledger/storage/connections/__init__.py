"""Connections to the database: their set-up, pools, transactions' boundaries and failures."""
