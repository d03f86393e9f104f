"""The routers of all pages, in the order in which their routes are matched."""

from service.pages import (
    account,
    account_opening,
    accuracy,
    approvers,
    caps,
    descriptions,
    drawing,
    empirical,
    guide,
    interactive_interface,
    issuer_sign_in,
    journal,
    keys,
    release_drawing,
    release_search,
    releases,
    reports,
    scenarios,
    shares,
    start,
    tables,
    webhooks,
)
from service.pages.planner import routes as planner
from service.pages.shell import static_pages

ROUTERS = (
    start.router,
    issuer_sign_in.router,
    account_opening.router,
    account.router,
    caps.router,
    approvers.router,
    journal.router,
    reports.router,
    shares.router,
    drawing.router,
    releases.router,
    release_drawing.router,
    release_search.router,
    accuracy.router,
    descriptions.router,
    planner.router,
    scenarios.router,
    empirical.router,
    keys.router,
    webhooks.router,
    tables.router,  # after the pages whose own files have other names
    guide.router,
    interactive_interface.router,
    static_pages.router,
)
static = static_pages.static
