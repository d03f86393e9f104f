"""The journal of an account: its chain, its entries, and its replay."""
