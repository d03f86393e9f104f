"""The delta at which losses are shown: the account's, unless a request or a stored release has another."""

from typing import Any

import pytest

from tests.api.calls import Client, charge, concentrated, json_of, open_account, pointers_of, pure, release
from tests.api.streams import counts, register

_OWN = {"definition": "approximate", "epsilon": "4", "delta": "1e-6", "declared_delta": "1e-9"}
_OTHERS: dict[str, Any] = {
    "pure": {"definition": "pure", "epsilon": "4", "delta": "1e-6"},
    "zcdp": {"definition": "zcdp", "rho": "2", "delta": "1e-6"},
    "rdp": {"definition": "rdp", "alpha": "8", "epsilon": "4", "delta": "1e-6"},
}
_BODY = {"name": "x", "mechanism": pure("0.1", name="m"), "counts": [1, 2]}
_TABLE = _BODY | {"dimensions": [{"name": "d", "values": ["a", "b"]}]}


def _shown_at(answer: Any, part: str = "cost") -> set[float]:
    """Return the deltas of every statement of a guarantee."""
    return {one["delta"] for kind in ("approximate", "best") for one in answer[part][kind]}


def _only(client: Client, account: str = "people") -> Any:
    (found,) = json_of(client.get(f"/v1/accounts/{account}/releases"))["items"]
    return found


def test_a_release_is_shown_at_the_delta_of_its_accounts_budget(client: Client) -> None:
    open_account(client, budget=_OWN)
    body = {"name": "a release", "plan": pure("0.1")}
    rehearsed = json_of(client.post("/v1/accounts/people/releases?dry_run=true", json=body))
    done = release(client, pure("0.1"), delta=None)
    read = json_of(client.get(f"/v1/accounts/people/releases/{done['id']}"))
    described = client.patch(f"/v1/accounts/people/releases/{done['id']}", json={"metadata": {"description": "d"}})
    receipt = json_of(client.get(f"/v1/accounts/people/releases/{done['id']}/receipt"))
    for answer in (rehearsed, done, read, json_of(described), _only(client), receipt["release"] | receipt):
        assert answer["delta"] == "0.000001"
        assert _shown_at(answer) == {1e-6}
    assert receipt["entry"]["content"]["delta"] == "0.000001"


@pytest.mark.parametrize("definition", _OTHERS)
def test_a_cap_on_declared_deltas_is_no_delta_to_convert_at(embedded: Client, definition: str) -> None:
    open_account(embedded, budget=_OTHERS[definition])
    done = release(embedded, pure("0.1"))
    assert (done["delta"], _shown_at(done)) == ("1e-10", {1e-10})
    balance = json_of(embedded.get("/v1/accounts/people/balance"))
    assert _shown_at(balance, "spent") | _shown_at(balance, "reserved") == {1e-10}


def test_a_batch_says_what_its_requests_say_alone(embedded: Client) -> None:
    asked: list[Any] = [{}, {"delta": None}, {"delta": "1e-8"}, {"delta": 1e-8}]
    for name in ("alone", "together"):
        open_account(embedded, name, budget=_OWN)
    alone = [release(embedded, pure("0.1"), "alone", **one) for one in asked]
    releases = [{"name": "a release", "plan": pure("0.1")} | one for one in asked]
    batch = json_of(embedded.post("/v1/accounts/together/releases/batch", json={"releases": releases}), 201)
    for one, other in zip(alone, batch["releases"], strict=True):
        assert (one["delta"], one["cost"]) == (other["delta"], other["cost"])
    assert [one["delta"] for one in alone] == ["0.000001", "0.000001", "1e-8", "1e-8"]


@pytest.mark.parametrize(("path", "body"), [("draws", _BODY), ("histograms", _TABLE)])
def test_a_draw_is_of_a_release_at_the_accounts_delta(embedded: Client, path: str, body: Any) -> None:
    open_account(embedded, budget=_OWN)
    json_of(embedded.post(f"/v1/accounts/people/{path}", json=body), 201)
    assert _only(embedded)["delta"] == "0.000001"


def test_a_stream_is_of_a_release_at_the_accounts_delta_too(embedded: Client) -> None:
    open_account(embedded, budget=_OWN)
    for query, delta in (({}, "0.000001"), ({"delta": "1e-8"}, "1e-8")):
        answer = register(embedded, counts([1, 2]), mechanism=pure("0.1"), **query)
        assert answer.status_code == 201
        found = json_of(embedded.get(f"/v1/accounts/people/releases/{answer.headers['X-Release']}"))
        assert found["delta"] == delta


def test_what_is_stored_keeps_its_delta_when_the_budget_changes(client: Client) -> None:
    open_account(client, budget=_OWN)
    key, body = {"Idempotency-Key": "k"}, {"name": "a release", "plan": concentrated("0.001")}
    first = json_of(client.post("/v1/accounts/people/releases", json=body, headers=key), 201)
    before = json_of(client.get("/v1/accounts/people/head"))["seq"]
    json_of(client.patch("/v1/accounts/people", json={"budget": _OWN | {"delta": "1e-5"}}))
    again = client.post("/v1/accounts/people/releases", json=body, headers=key)
    assert (json_of(again, 201), again.headers["Idempotent-Replay"]) == (first, "true")
    assert _only(client)["delta"] == "0.000001"
    assert release(client, concentrated("0.001"))["delta"] == "0.00001"
    now, then = (json_of(client.get(f"/v1/accounts/people/balance{of}")) for of in ("", f"?as_of={before}"))
    assert (_shown_at(now, "spent"), _shown_at(then, "spent")) == ({1e-5}, {1e-6})
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"]


def test_a_balance_is_shown_at_the_accounts_delta_unless_others_are_asked_for(embedded: Client) -> None:
    open_account(embedded, budget=_OWN | {"delta": "2e-13", "declared_delta": "0"})
    release(embedded, pure("0.1", tags=["t"]))
    for query, deltas in (("", {2e-13}), ("?tag=t", {2e-13}), ("?delta=1e-9&delta=1e-3", {1e-9, 1e-3})):
        balance = json_of(embedded.get(f"/v1/accounts/people/balance{query}"))
        assert _shown_at(balance, "spent") == deltas
    picture = embedded.get("/v1/accounts/people/balance?picture=profile", headers={"Accept": "image/svg+xml"})
    assert "at delta 2e-13" in picture.text


def test_an_allocation_is_shown_at_its_budgets_delta(shared_client: Client) -> None:
    asked = {"mechanism": "geometric", "queries": [{"name": "q", "weight": 1}]}
    for budget, delta in ((_OWN, 1e-6), *((other, 1e-10) for other in _OTHERS.values())):
        answer = json_of(shared_client.post("/v1/calibrations/allocation", json=asked | {"budget": budget}))
        assert _shown_at(answer) == {delta}


@pytest.mark.parametrize("delta", [0, 1, "2", True, "", "x", [1]])
def test_a_delta_without_meaning_is_refused_as_before(shared_client: Client, delta: Any) -> None:
    assert pointers_of(charge(shared_client, pure("0.1"), "nobody", delta=delta)) == ["/delta"]


def test_as_a_number_or_a_text_a_delta_is_what_it_was_to_clients(shared_client: Client) -> None:
    document = json_of(shared_client.get("/openapi.json"))["components"]["schemas"]
    for model in ("RegisterRelease", "RegisterAndDraw", "Histogram"):
        delta = document[model]["properties"]["delta"]
        kinds = [kind for one in delta["anyOf"] for kind in one.get("anyOf", [one])]
        assert [kind["type"] for kind in kinds] == ["number", "string", "null"]
        assert "The default is the account's" in delta["description"]
        assert "delta" not in document[model]["required"]
