"""Exact noise on counts: integer samplers, pure but for the entropy that they are handed."""
