"""The pages' routes, in the order in which they are tried."""

from service.pages import account, journal, keys, open as without_key, releases, start

ROUTERS = (
    start.router,
    account.router,
    journal.router,
    releases.router,
    keys.router,
    without_key.router,
)
static = without_key.static
