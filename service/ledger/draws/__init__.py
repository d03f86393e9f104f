"""Draws and tabulations: noisy counts as they are drawn, stored and read again."""
