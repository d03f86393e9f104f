"""Web pages: a client of the HTTP API that runs in the service's own process.

A page shows the answers that ``/v1`` gives to the signed-in user's key, so no rule is implemented twice.
"""
