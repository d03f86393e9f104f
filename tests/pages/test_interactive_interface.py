"""The interactive documentation: it needs no other host, and sends the requests of a signed-in user for nobody else."""

import re

import pytest

from tests.api.calls import STEWARD, Client, json_of, make_key, problem_of, pure
from tests.pages.visits import sign_in

_ACCOUNTS = "/docs/v1/accounts"


def _token(client: Client) -> dict[str, str]:
    """The headers with the token of the page, as its script sends them."""
    found = re.search(r'data-csrf="([^"]+)"', client.get("/docs").text)
    assert found is not None
    return {"X-CSRF-Token": found[1], "Accept": "application/json", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def token(steward: Client) -> dict[str, str]:
    return _token(steward)


def test_the_documentation_names_no_other_host(shared_client: Client) -> None:
    page = shared_client.get("/docs")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert "/static/swagger-ui/swagger-ui-bundle.js" in named
    for address in named:
        assert address.startswith(("/", "#"))
        assert not address.startswith("//")
        assert shared_client.get(address).status_code == 200
    assert "://" not in page.text
    assert 'data-csrf=""' in page.text  # nobody is signed in
    assert "://" not in shared_client.get("/static/docs.js").text


def test_requests_are_those_of_the_user(steward: Client, token: dict[str, str]) -> None:
    listed = steward.get(f"{_ACCOUNTS}?limit=1&with_gauge=true", headers=token)
    assert len(json_of(listed)["items"]) == 1
    assert "gauge" in json_of(listed)["items"][0]
    assert steward.get(_ACCOUNTS, headers=token | {"Accept": "text/csv"}).text.startswith("name,state,")
    plan = {"name": "tried", "plan": pure("1/1000")}
    address, once = f"{_ACCOUNTS}/persons/releases", token | {"Idempotency-Key": "once"}
    made = json_of(steward.post(address, json=plan, headers=once), 201)
    (entry,) = json_of(steward.get(f"{_ACCOUNTS}/persons/journal?after={made['head']['seq'] - 1}", headers=token))[
        "items"
    ]
    assert (entry["entry"]["actor"], entry["entry"]["release"]) == ("first-steward", made["id"])
    again = steward.post(address, json=plan, headers=once)
    assert (json_of(again, 201)["id"], again.headers["Idempotent-Replay"]) == (made["id"], "true")
    assert again.headers.get_list("X-Content-Type-Options") == ["nosniff"]
    assert len(again.headers.get_list("X-Request-Id")) == 1
    assert again.headers["Cache-Control"] == "no-store"


def test_a_refusal_is_the_interface_s_own(steward: Client, token: dict[str, str]) -> None:
    problem = problem_of(steward.post(_ACCOUNTS, json={}, headers=token), "validation")
    assert "/name" in {fault["pointer"] for fault in problem["errors"]}
    problem_of(steward.get(f"{_ACCOUNTS}/nobody%2F..%2Fkeys", headers=token), "not_found")
    problem_of(steward.put(f"{_ACCOUNTS}", json={}, headers=token), "method_not_allowed")


def test_a_role_is_not_exceeded(visitor: Client, api: Client) -> None:
    key = make_key(api, "auditor", "ann")["Authorization"].removeprefix("Bearer ")
    sign_in(visitor, key)
    headers = _token(visitor) | {"Authorization": f"Bearer {STEWARD}"}  # the session decides
    problem_of(visitor.get("/docs/v1/keys", headers=headers), "forbidden")


def test_nobody_else_sends_them(steward: Client, token: dict[str, str]) -> None:
    named = {name: value for name, value in token.items() if name != "X-CSRF-Token"}
    for headers in (named, named | {"X-CSRF-Token": ""}, named | {"X-CSRF-Token": "0" * 43}):
        problem_of(steward.get(_ACCOUNTS, headers=headers), "forbidden")
    problem_of(steward.get(_ACCOUNTS, headers=token | {"Sec-Fetch-Site": "cross-site"}), "forbidden")
    problem_of(steward.get(_ACCOUNTS, headers=token | {"Origin": "https://elsewhere.example"}), "forbidden")
    steward.cookies.clear()
    problem_of(steward.get(_ACCOUNTS, headers=token), "unauthenticated")
