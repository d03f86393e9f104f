"""The pages' routes, in the order in which they are tried."""

from service.pages import empirical, open as without_key, planner, start

ROUTERS = (
    start.router,
    planner.router,
    empirical.router,
    without_key.router,
)
static = without_key.static
