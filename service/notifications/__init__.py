"""Notifications: messages made of journal entries, and their delivery to webhooks and by mail."""
