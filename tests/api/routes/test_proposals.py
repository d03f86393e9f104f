"""Proposals: what waits for a second steward, in all accounts that a key reaches."""

from datetime import timedelta
from itertools import chain
from typing import Any

import pytest

from service.ledger.storage import clock
from tests.api.calls import (
    Client,
    json_of,
    make_key,
    open_account,
    operators_key,
    pages_of,
    pointers_of,
    pure,
    release,
)


def _waiting(client: Client, **headers: str) -> list[tuple[str, str, str]]:
    items = json_of(client.get("/v1/proposals", headers=headers))["items"]
    return [(item["account"], item["name"], item["proposed_by"]) for item in items]


def test_proposals_of_all_accounts_are_listed_until_they_are_decided(client: Client) -> None:
    for account in ("zebras", "ants"):
        open_account(client, account, approval_above="0.001")
    open_account(client)
    proposed = {name: release(client, pure("0.2"), account, name=name)["id"] for name, account in (
        ("first", "ants"), ("second", "zebras"), ("third", "ants"), ("fourth", "zebras")
    )}  # fmt: skip
    release(client, pure("0.2"), name="needs nobody")
    release(client, pure("0.01"), "ants", name="small")
    assert _waiting(client) == [
        ("zebras", "second", "first-steward"),
        ("zebras", "fourth", "first-steward"),
        ("ants", "first", "first-steward"),
        ("ants", "third", "first-steward"),
    ]
    second = operators_key(client, "steward", "second")
    json_of(client.post(f"/v1/accounts/zebras/releases/{proposed['second']}/approve", headers=second))
    body = {"reason": "a mistake"}
    json_of(client.post(f"/v1/accounts/ants/releases/{proposed['third']}/void", json=body))
    assert [name for _, name, _ in _waiting(client)] == ["fourth", "first"]


def test_pages_of_proposals_have_no_gaps(embedded: Client) -> None:
    for account in ("a", "b", "c"):
        open_account(embedded, account, approval_above="0.001")
    for number in range(7):
        release(embedded, pure("0.2"), "cab"[number % 3], name=f"r{number}")
    whole = json_of(embedded.get("/v1/proposals"))["items"]
    assert len(whole) == 7
    for limit in (1, 2, 3, 7):
        assert list(chain.from_iterable(pages_of(embedded, "/v1/proposals", limit=limit))) == whole


def test_a_limited_key_sees_the_proposals_of_its_accounts(embedded: Client) -> None:
    for account in ("ours", "theirs"):
        open_account(embedded, account, approval_above="0.001")
        release(embedded, pure("0.2"), account, name=f"of {account}")
    ours = make_key(embedded, "auditor", "ours", accounts=["ours"])
    assert _waiting(embedded, **ours) == [("ours", "of ours", "first-steward")]


def test_a_proposal_whose_time_is_over_is_not_listed(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(embedded, approval_above="0.001")
    release(embedded, pure("0.2"), reserve_for="PT1H")
    assert len(_waiting(embedded)) == 1
    over = clock.later(clock.now(), timedelta(hours=2))
    monkeypatch.setattr(clock, "now", lambda: over)
    assert _waiting(embedded) == []


def test_accounts_with_a_waiting_change_are_found(client: Client) -> None:
    for account in ("one", "two", "three"):
        open_account(client, account, approval_above="0.001")
    change = {"budget": {"definition": "zcdp", "rho": "200"}}
    for account in ("one", "three"):
        json_of(client.patch(f"/v1/accounts/{account}", json=change), 202)

    def names() -> list[str]:
        return [item["name"] for item in json_of(client.get("/v1/accounts", params={"waiting": "true"}))["items"]]

    assert names() == ["one", "three"]
    json_of(client.patch("/v1/accounts/one", json=change, headers=operators_key(client, "steward", "second")))
    assert names() == ["three"]


@pytest.mark.parametrize(
    "cursor", ["MQ", "MSAt", "MSAy", "MS8y", "cGVvcGxlL3g", "cGVvcGxlLzEvMg", "///"]
)  # 1, 1 -, 1 2, 1/2, …
def test_a_cursor_that_was_never_given_is_refused(shared_client: Client, cursor: str) -> None:
    answer = shared_client.get("/v1/proposals", params={"cursor": cursor})
    assert pointers_of(answer) == ["/query/cursor"]


def test_a_proposer_finds_own_proposals_with_their_charges_and_the_rejected_ones(client: Client) -> None:
    open_account(client, approval_above="0.001")
    mia = operators_key(client, "pipeline", "mia")

    def propose(name: str, headers: dict[str, str] | None = None, **fields: Any) -> str:
        body = {"name": name, "plan": pure("0.2")} | fields
        id_: str = json_of(client.post("/v1/accounts/people/releases", json=body, headers=headers), 201)["id"]
        return id_

    def found(**query: str) -> list[Any]:
        items: list[Any] = json_of(client.get("/v1/proposals", params=query))["items"]
        return items

    ids = {name: propose(name, mia, reserve_for="P1D") for name in ("waits", "rejected", "voided later")}
    propose("another's")
    post, second = "/v1/accounts/people/releases", operators_key(client, "steward", "second")
    json_of(client.post(f"{post}/{ids['voided later']}/approve", headers=second))
    for name in ("rejected", "voided later"):
        json_of(client.post(f"{post}/{ids[name]}/void", json={"reason": f"{name} it is"}, headers=second))
    assert [one["name"] for one in found(proposed_by="mia")] == ["waits"]
    assert [one["name"] for one in found(proposed_by="mi")] == []
    (charged, _) = found(with_charge="true")
    shown = json_of(client.get(f"{post}/{ids['waits']}", params={"with_charge": "true"}))
    assert charged["charge"] == shown["charge"]
    assert "charge" not in found()[0]
    (rejected,) = found(state="rejected", proposed_by="mia")
    assert (rejected["name"], rejected["rejected"]["by"]) == ("rejected", "second")
    assert rejected["rejected"]["reason"] == "rejected it is"
    assert found(state="rejected", proposed_by="first-steward") == []
    assert found(state="rejected", since="2100-01-01T00:00:00Z") == []
    assert pointers_of(client.get("/v1/proposals", params={"state": "gone"})) == ["/query/state"]


def test_a_proposer_finds_own_approved_proposals_and_whether_they_are_drawn(client: Client) -> None:
    open_account(client, approval_above="0.001")
    mia, second = operators_key(client, "pipeline", "mia"), operators_key(client, "steward", "second")
    path = "/v1/accounts/people/releases"

    def propose(name: str, **fields: Any) -> str:
        body = {"name": name, "plan": pure("0.2", name="part")} | fields
        id_: str = json_of(client.post(path, json=body, headers=mia), 201)["id"]
        return id_

    ids = {name: propose(name) for name in ("waits", "committed", "drawn", "gone")} | {
        name: propose(name, reserve_for="P1D") for name in ("held", "voided")
    }
    for name in ("committed", "drawn", "held", "voided"):
        json_of(client.post(f"{path}/{ids[name]}/approve", json={"reason": f"{name} it is"}, headers=second))
    for name in ("gone", "voided"):
        json_of(client.post(f"{path}/{ids[name]}/void", json={"reason": "no"}, headers=second))
    draw = {"mechanism": "part", "counts": [1, 2]}
    json_of(client.post(f"{path}/{ids['drawn']}/draws", json=draw, headers=mia), 201)
    asked = {"state": "approved", "proposed_by": "mia"}
    found = json_of(client.get("/v1/proposals", params=asked))["items"]
    assert {one["name"]: one["approved"]["drawn"] for one in found} == {
        "committed": False, "drawn": True, "held": False,
    }  # fmt: skip
    assert {(one["approved"]["by"], one["approved"]["reason"]) for one in found} == {
        ("second", f"{name} it is") for name in ("committed", "drawn", "held")
    }
    for fewer in ({"proposed_by": "second"}, {"since": "2100-01-01T00:00:00Z"}):
        assert json_of(client.get("/v1/proposals", params=asked | fewer))["items"] == []
