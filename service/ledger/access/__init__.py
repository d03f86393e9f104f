"""API keys: their rows, their use, and their life in the installation's journal."""
