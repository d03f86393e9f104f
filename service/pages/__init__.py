"""Web pages: a client of the HTTP contract that runs in the same process.

A page shows the answers of ``/v1`` to the key of the signed-in user, so no rule is written twice.
"""
