"""Accounts: their budgets and spending, and their opening, changes and descriptions."""
