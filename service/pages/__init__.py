"""The web pages: a client of the HTTP contract that runs in the same process.

A page shows what ``/v1`` answers to the key of whoever is signed in, so no rule is written twice.
"""
