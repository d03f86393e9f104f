"""The privacy mathematics: what a mechanism costs, how costs compose, what they convert to.

Pure functions over frozen values; losses are in nats and every guarantee is an upper bound.
"""
