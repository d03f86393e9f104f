"""Routes of the pages, in the order in which they are matched."""

from service.pages import (
    account,
    descriptions,
    empirical,
    guide,
    journal,
    keys,
    open as without_key,
    opening,
    planner,
    releases,
    start,
)

ROUTERS = (
    start.router,
    opening.router,
    account.router,
    journal.router,
    releases.router,
    descriptions.router,
    planner.router,
    empirical.router,
    keys.router,
    guide.router,
    without_key.router,
)
static = without_key.static
