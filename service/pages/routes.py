"""The pages' routes, in the order in which they are tried."""

from service.pages import guide, open as without_key, start

ROUTERS = (
    start.router,
    guide.router,
    without_key.router,
)
static = without_key.static
