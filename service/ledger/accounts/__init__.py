"""Accounts: their budgets, caps and allotments, and their opening and changes."""
