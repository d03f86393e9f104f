"""The privacy mathematics: the losses of mechanisms, their composition, and conversions between notions.

Functions are pure, and values are frozen. Losses are in nats, and every guarantee is an upper bound.
"""
