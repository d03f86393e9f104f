"""The pages' routes, in the order in which they are tried."""

from service.pages import open as without_key, start

ROUTERS = (
    start.router,
    without_key.router,
)
static = without_key.static
