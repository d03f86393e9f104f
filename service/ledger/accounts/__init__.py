"""Accounts: their budgets, what they have spent, and how they are opened, changed and described."""
