"""Nobody is shown a button or a link that would be refused: the pages of each role are visited, and nothing is sent."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urldefrag, urljoin

import pytest
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient

from service.api.openapi import examples
from service.ledger.access.key_records import ROLES, Role
from tests.api.calls import Client, concentrated, json_of, open_account, operators_key, pure, release
from tests.api.identity.test_auth import ALLOWED
from tests.pages.forms import signed_in

_OF_ACCOUNT = "/v1/accounts/{account}"
_OF_RELEASE = f"{_OF_ACCOUNT}/releases/{{release}}"
_OF_WEBHOOK = "/v1/webhooks/{webhook}"
_CHANGES = ("state", "budget", "approval", "caps", "approvers", "approve", "description")
_BEHIND: dict[str, tuple[str, str] | None] = {
    "/sign-in": None,
    "/sign-out": None,
    "/new-account": ("POST", "/v1/accounts"),
    **{f"/accounts/{{account}}/{what}": ("PATCH", _OF_ACCOUNT) for what in _CHANGES},
    "/accounts/{account}/reject": ("POST", f"{_OF_ACCOUNT}/reject"),
    "/accounts/{account}/draw": ("POST", f"{_OF_ACCOUNT}/draws"),
    "/accounts/{account}/draw/counts": ("POST", f"{_OF_ACCOUNT}/draws"),
    "/accounts/{account}/draw/propose": ("POST", f"{_OF_ACCOUNT}/releases"),
    "/accounts/{account}/releases/{release}/draw": ("POST", f"{_OF_RELEASE}/draws"),
    "/accounts/{account}/releases/{release}/description": ("PATCH", _OF_RELEASE),
    "/accounts/{account}/releases/{release}/commit": ("POST", f"{_OF_RELEASE}/commit"),
    "/accounts/{account}/releases/{release}/approve": ("POST", f"{_OF_RELEASE}/approve"),
    "/accounts/{account}/releases/{release}/void": ("POST", f"{_OF_RELEASE}/void"),
    "/plan": None,  # its buttons that register a release are looked at where the planner is tested
    "/scenarios/{scenario}/delete": ("DELETE", "/v1/scenarios/{scenario}"),
    "/scenarios/{scenario}/register": ("POST", f"{_OF_ACCOUNT}/releases"),
    "/empirical/noise": ("POST", "/v1/empirical/loss"),
    "/empirical/runs": ("POST", "/v1/empirical/experiments"),
    "/keys": ("POST", "/v1/keys"),
    "/keys/{key}/rotate": ("POST", "/v1/keys/{key}/rotate"),
    "/keys/{key}/revoke": ("DELETE", "/v1/keys/{key}"),
    "/webhooks": ("POST", "/v1/webhooks"),
    "/webhooks/{webhook}/test": ("POST", f"{_OF_WEBHOOK}/test"),
    "/webhooks/{webhook}/active": ("PATCH", _OF_WEBHOOK),
    "/webhooks/{webhook}/change": ("PATCH", _OF_WEBHOOK),
    "/webhooks/{webhook}/rotate": ("POST", f"{_OF_WEBHOOK}/rotate"),
    "/webhooks/{webhook}/delete": ("DELETE", _OF_WEBHOOK),
    "/webhooks/{webhook}/deliveries/{delivery}/retry": ("POST", f"{_OF_WEBHOOK}/deliveries/{{delivery}}/retry"),
}
"""For each form the operation behind it; None: everybody may send it."""
_PATTERNS = {path: re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)) for path in _BEHIND}
_NOT_VISITED = ("/guide", "/docs", "/problems", "/static", "/openapi.json")  # the same for everybody
_NOT_LINKED = {
    "/accounts/{account}/registry-entry": "/accounts/persons/registry-entry",
    "/accounts/{account}/releases/{release}/registry-entry": "/accounts/persons/releases/unknown/registry-entry",
    "/docs": "/docs",
    "/docs/v1/{rest:path}": "/docs/v1/accounts",
    "/favicon.ico": "/favicon.ico",
    "/guide": "/guide",
    "/guide/{name}": "/guide/concepts",
    "/healthz": "/healthz",
    "/metrics": "/metrics",
    "/openapi.json": "/openapi.json",
    "/plan/account": "/plan/account?account=persons",
    "/problems": "/problems",
    "/problems/{code}": "/problems/validation",
    "/readyz": "/readyz",
    "/scenarios/compare": "/scenarios/compare",
    "/sign-in/oidc": "/sign-in/oidc",
    "/sign-in/oidc/callback": "/sign-in/oidc/callback",
}
"""Pages to which no link of a page leads that is visited here, each with an address."""
_APPROVAL = "reject-reason"  # the field of the form by which approvers decide on a change of an account
_WHO = [*((role, None) for role in ROLES), *((role, ["persons", "closed"]) for role in ROLES)]


class _Shown(HTMLParser):
    """The addresses and the forms of a page.

    Attributes:
        links: local addresses that a visitor may open.
        forms: the actions of the forms that are sent with POST, with the ids of their fields.
    """

    def __init__(self, page: str, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.forms: list[tuple[str, set[str]]] = []
        self._page, self._ids = page, set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what can be opened or sent."""
        given = {name: value or "" for name, value in attrs}
        if tag in ("a", "img"):
            address = urldefrag(urljoin(self._page, given.get("href", given.get("src", "")))).url
            if address.startswith("/") and not address.startswith(_NOT_VISITED):
                self.links.add(address)
        elif tag == "form" and given.get("method") == "post":
            self._ids = set()
            self.forms.append((urldefrag(given["action"]).url, self._ids))
        elif "formaction" in given:
            self.forms.append((urldefrag(given["formaction"]).url, self._ids))
        elif "id" in given:
            self._ids.add(given["id"])


def _visited(client: TestClient) -> Iterator[tuple[str, int, _Shown]]:
    """Yield every page that links lead to, with its status and what it shows."""
    seen, waiting = {"/"}, ["/"]
    while waiting:
        address = waiting.pop()
        answer = client.get(address)
        is_page = answer.headers.get("content-type", "").startswith("text/html")
        shown = _Shown(address, answer.text if is_page else "")
        yield address, answer.status_code, shown
        waiting += sorted(shown.links - seen)
        seen |= shown.links


def _refused(role: str, reach: list[str] | None, action: str, ids: set[str]) -> bool:
    """Return whether the operation behind a form refuses the role, or a key with this reach."""
    path, names = next((path, found) for path, one in _PATTERNS.items() if (found := one.fullmatch(action)))
    operation = _BEHIND[path]
    if operation is None:
        return False
    if reach is not None and (path.startswith("/keys") or names.groupdict().get("account", reach[0]) not in reach):
        return True
    if operation == ("PATCH", _OF_ACCOUNT) and _APPROVAL not in ids:
        return role != "steward"  # an approver requests no change but the one that waits
    return role not in ALLOWED[operation][0].split()


@pytest.fixture
def eventful(api: Client) -> Client:
    """Return the accounts and releases of all pages with what waits, what is closed, and what else has buttons."""
    open_account(api, "closed", {"definition": "zcdp", "rho": "0.5"}, parent="nation", approval_above="0.1")
    release(api, concentrated("0.3"), "persons", name="proposed")
    release(api, pure("0.001"), "closed", name="held", reserve_for="P1D")
    json_of(api.patch("/v1/accounts/persons", json={"budget": {"definition": "zcdp", "rho": "0.7"}}), 202)
    json_of(api.patch("/v1/accounts/closed", json={"state": "closed"}))
    json_of(api.patch("/v1/accounts/closed", json={"state": "open"}), 202)
    for account in ("nation", "persons"):
        json_of(api.post("/v1/scenarios", json=examples.SCENARIO | {"name": account, "account": account}), 201)
    json_of(api.post("/v1/webhooks", json=examples.WEBHOOK), 201)
    limited = {**examples.WEBHOOK, "accounts": ["persons"], "events": ["release.proposed"], "below": None}
    json_of(api.post("/v1/webhooks", json=limited), 201)
    return api


@pytest.mark.parametrize(("role", "reach"), _WHO, ids=lambda one: one if isinstance(one, str) else str(one or "all"))
def test_no_page_shows_what_is_refused(eventful: Client, role: Role, reach: list[str] | None) -> None:
    key = operators_key(eventful, role, "somebody", reach)["Authorization"].removeprefix("Bearer ")
    pages, forms, wrong = 0, set[str](), list[str]()
    for address, status, shown in _visited(signed_in(eventful, key)):  # type: ignore[arg-type]
        pages += 1
        if status in (401, 403, 404, 405) or status >= 500:
            wrong.append(f"{address} is answered with {status}")
        for action, ids in shown.forms:
            forms.add(action)
            if _refused(role, reach, action, ids):
                wrong.append(f"{address} has the form {action}")
    assert wrong == []
    assert pages > 30
    assert any(action.endswith("/approve") for action in forms) == (role in ("approver", "steward"))
    assert any(action.endswith("/commit") for action in forms) == (role in ("pipeline", "steward"))
    assert any(action.endswith("/new-account") for action in forms) == (role == "steward")


def test_no_page_fails_for_any_role(eventful: Client) -> None:
    """Every page is got as every role, also where no link would lead it there."""
    application: Any = eventful.app  # type: ignore[attr-defined]

    def client_of(role: Role, reach: list[str] | None) -> Any:
        key = operators_key(eventful, role, f"{role} of {reach}", reach)["Authorization"].removeprefix("Bearer ")
        return signed_in(eventful, key)  # type: ignore[arg-type]

    visited = [address for address, _, _ in _visited(client_of("steward", None))]
    found = [one for one in iter_route_contexts(application.routes) if not str(one.path).startswith("/v1")]
    paths = {str(one.path) for one in found if "GET" in (one.methods or ())}
    addresses = dict(_NOT_LINKED)
    for path in paths - set(_NOT_LINKED):
        pattern = re.compile(re.sub(r"{\w+}", "[^/?]+", path) + r"(\?.*)?")
        addresses[path] = next(filter(pattern.fullmatch, visited), "no page links to it")
    assert set(addresses) == paths
    assert "no page links to it" not in addresses.values()
    failing = [
        (role, reach, address, answer.status_code)
        for role, reach in _WHO
        for client in [client_of(role, reach)]
        for address in sorted(addresses.values())
        if (answer := client.get(address)).status_code >= 500
    ]
    assert failing == []


def test_every_form_has_an_operation_behind_it(eventful: Client) -> None:
    application: Any = eventful.app  # type: ignore[attr-defined]
    found = [one for one in iter_route_contexts(application.routes) if not str(one.path).startswith(("/v1", "/docs"))]
    assert {str(one.path) for one in found if "POST" in (one.methods or ())} == set(_BEHIND)
    assert {operation for operation in _BEHIND.values() if operation} <= set(ALLOWED)


def test_nothing_is_offered_that_the_state_of_an_account_forbids(steward: Client, api: Client) -> None:
    budget = {"definition": "approximate", "epsilon": "1", "delta": "1e-7"}
    open_account(api, "above", budget | {"declared_delta": "1e-7", "delta": "1e-6"})
    open_account(api, "fixed", budget, parent="above", funding="allotted")
    shown = steward.get("/accounts/fixed").text
    assert "was allotted by above, and is fixed" in shown
    assert 'action="/accounts/fixed/budget"' not in shown
    assert 'action="/accounts/fixed/state"' in shown
    assert 'href="/new-account?parent=fixed"' in shown
    json_of(api.patch("/v1/accounts/fixed", json={"state": "closed"}))
    assert 'href="/new-account?parent=fixed"' not in steward.get("/accounts/fixed").text
