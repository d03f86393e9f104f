"""Routes of the pages, in the order in which they are matched."""

from service.pages import account, account_opening, caps, descriptions, empirical, guide, journal, keys, releases, start
from service.pages.planner import routes
from service.pages.shell import static_pages as without_key

ROUTERS = (
    start.router,
    account_opening.router,
    account.router,
    caps.router,
    journal.router,
    releases.router,
    descriptions.router,
    routes.router,
    empirical.router,
    keys.router,
    guide.router,
    without_key.router,
)
static = without_key.static
