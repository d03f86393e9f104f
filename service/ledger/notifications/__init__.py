"""Webhooks and their deliveries in the database."""
