"""Common parts of all pages: the template environment, the header and the navigation."""

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from anyio import to_thread
from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.types import Receive, Scope, Send

from service import __version__, rounding
from service.ledger.access.key_records import Role, includes
from service.pages.shell import approval_texts, fault_texts, figures, overrun_texts, period_texts
from service.pages.shell.session import Session, csrf_token, session_of
from service.privacy.mechanisms import mechanism_label

WEB = Path(__file__).parents[2] / "web"

# Scripts, styles and pictures only from this service, nothing inline; forms only to this service; no frames.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action"
    " 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# For pages with embedded pictures: these must not be stored, or would take long to make a second time.
PICTURES_WITHIN = POLICY.replace("img-src 'self'", "img-src 'self' data:")


class Entry(NamedTuple):
    """A link of the navigation.

    Attributes:
        role: the lowest role that sees it; None: every visitor, signed in or not.
        limited: those see it too whose key is limited to some accounts.
        below: the beginnings of the other paths of its pages.
    """

    path: str
    label: str
    role: Role | None = None
    limited: bool = True
    below: tuple[str, ...] = ()

    def is_of(self, path: str) -> bool:
        """Return whether a page is one of this link's."""
        return any(path == one or (one != "/" and path.startswith(f"{one}/")) for one in (self.path, *self.below))


NAVIGATION = (
    Entry("/", "Accounts", "auditor", below=("/accounts", "/new-account", "/releases")),
    Entry("/plan", "Planner", "auditor", below=("/scenarios",)),
    Entry("/empirical", "Empirical loss", "steward"),
    Entry("/keys", "Keys", "steward", limited=False),
    Entry("/webhooks", "Notifications", "steward"),
    Entry("/guide", "Guide"),
    Entry("/docs", "HTTP interface"),
)


def page(
    request: Request,
    template: str,
    context: dict[str, Any] | None = None,
    *,
    status: int = 200,
    policy: str = POLICY,
    back: bool = False,
) -> Response:
    """Return a template as a page. It is never stored, since the next visitor may be another user.

    The answer to a form is the exception where ``back`` says so, and where the form is refused: it has no address to
    read it again from, so the browser may keep it for its way back. Signing out deletes what it keeps.

    Args:
        request: the request.
        template: the name of the template.
        context: its variables.
        status: the HTTP status.
        policy: the Content-Security-Policy.
        back: the browser may show it again on the way back; so it has no key, and no figure that is not protected.
    """
    session, sent = session_of(request), request.method == "POST"
    surroundings = {
        "session": session,
        "csrf": "" if session is None else csrf_token(request.app.state.secret, session),
        "once": f"page-{uuid.uuid4()}",
        "navigation": [entry for entry in NAVIGATION if entry.role is None or _leads(session, entry, entry.role)],
        "here": request.url.path,
        "version": __version__,
        "banner": request.app.state.settings.notice,
        "sent": sent,
        "problem": None,
        "shown_at": (),
        "wrong_fields": [],  # those that the macros of the page's fields find
    }
    render = partial(_ENVIRONMENT.get_template(template).render, surroundings | (context or {}))
    # With no-referrer, browsers would not state the site from which a form comes.
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "same-origin"}
    headers["Cache-Control"] = "private, no-cache" if sent and (back or (session and status >= 400)) else "no-store"
    return _Page(render, status, headers)


class _Page(Response):
    """A page that is rendered in a thread when it is sent: a long one would keep the event loop from all others."""

    media_type = "text/html"

    def __init__(self, render: Callable[[], str], status: int, headers: Mapping[str, str]) -> None:
        super().__init__(None, status, headers)
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Render and send the page."""
        self.body = (await to_thread.run_sync(self._render)).encode()
        self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def _leads(session: Session | None, entry: Entry, least: Role) -> bool:
    return session is not None and may(session.role, least) and (entry.limited or session.accounts is None)


def may(role: Role | None, least: Role) -> bool:
    """Return whether a role includes another. This decides what is shown; ``/v1`` decides what is allowed."""
    return role is not None and includes(role, least)


def breakable(name: str) -> Markup:
    """Return the name of a table at a geography with places at which a line may break, so that it breaks no word."""
    return escape(name).replace("/", Markup("/<wbr>"))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(WEB / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {
        "plain": fault_texts.plain,
        "breakable": breakable,
        "up": rounding.up,
        "down": rounding.down,
        "near": rounding.near,
        "rest": rounding.rest,
        "noise": mechanism_label,
        "symbol": figures.symbol_of,
        "delta": figures.delta_text,
        "one_in": figures.one_in,
        "moment": figures.moment,
        "budget": figures.budget_text,
        "relation": figures.relation_text,
        "epsilon": figures.epsilon_of,
        "certain_epsilon": figures.certain_epsilon_of,
        "rho": figures.rho_of,
        "in_words": figures.in_words,
        "calendar": period_texts.calendar_text,
        "periods": period_texts.periods_text,
        "stored_periods": period_texts.stored_periods_text,
        "window": period_texts.window_text,
        "approvers": approval_texts.rule_text,
        "approval": approval_texts.standing_text,
    }
    environment.globals |= {
        "may": may,
        "obstacle_text": approval_texts.obstacle_text,
        "overrun_text": overrun_texts.overrun_text,
        "problem_texts": overrun_texts.problem_texts,
        "pairs": partial(zip, strict=True),
        "usage": figures.usage,
        "cap_usage": figures.cap_usage,
        "fitting": figures.fitting,
        "loss_in": figures.loss_in,
        "charge_text": figures.charge_text,
        "charged_percent": figures.charged_percent,
        "percent_text": rounding.percent,
        "plainest": figures.plainest,
        "best_epsilon": figures.best_epsilon,
        "belief_after": figures.belief_after,
        "term": figures.term,
    }
    return environment


_ENVIRONMENT = _environment()
