"""Reservations, approval and parent accounts over HTTP: bodies, statuses, and the places of refusals."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.ledger.storage import clock
from tests.api.calls import (
    STEWARD,
    Answer,
    Client,
    bearer,
    charge,
    concentrated,
    json_of,
    make_key,
    open_account,
    operators_key,
    pointers_of,
    problem_of,
    pure,
    release,
)

_PURE = {"definition": "pure", "epsilon": 1}


def _settle(client: Client, of: dict[str, Any], act: str, body: Any = None, **headers: str) -> Answer:
    return client.post(f"/v1/accounts/{of['account']}/releases/{of['id']}/{act}", json=body, headers=headers)


def _read(client: Client, of: dict[str, Any]) -> Any:
    return json_of(client.get(f"/v1/accounts/{of['account']}/releases/{of['id']}"))


def _balance(client: Client, account: str = "people", query: str = "") -> Any:
    return json_of(client.get(f"/v1/accounts/{account}/balance?{query}"))


def _figures(balance: Any) -> tuple[Any, ...]:
    spent, reserved = (balance[part]["pure"]["epsilon"] for part in ("spent", "reserved"))
    return spent, reserved, balance["remaining"]["epsilon"], balance["releases"]


def test_a_reservation_from_its_making_to_its_end(client: Client) -> None:
    open_account(client, budget=_PURE)
    held = release(client, pure("0.25"), reserve_for="PT90M")
    made, ends = (datetime.fromisoformat(held[field]) for field in ("created_at", "expires_at"))
    assert ends - made == timedelta(minutes=90)
    assert (held["state"], held["overdue"], held["remaining"]["epsilon"]) == ("reserved", False, 0.75)
    persons = {"registered_by": "first-steward", "approved_by": [], "plan_tags": []}
    assert _read(client, held) == held | persons
    assert _figures(_balance(client)) == (0, 0.25, 0.75, 1)

    committed = json_of(_settle(client, held, "commit"))
    assert (committed["state"], committed["expires_at"], committed["head"]["seq"]) == ("committed", None, 3)
    assert committed == json_of(_settle(client, held, "commit"))
    assert _figures(_balance(client)) == (0.25, 0, 0.75, 1)
    assert _figures(_balance(client, query="as_of=2")) == (0, 0.25, 0.75, 1)
    refused = problem_of(_settle(client, held, "void", {"reason": "r"}), "conflict")
    assert "committed" in refused["detail"]

    other = release(client, pure("0.5"), reserve_for="P1D")
    voided = json_of(_settle(client, other, "void", {"reason": "withdrawn"}))
    assert (voided["state"], voided["remaining"]["epsilon"]) == ("voided", 0.75)
    assert voided == json_of(_settle(client, other, "void", {"reason": "said again"}))
    journal = json_of(client.get("/v1/accounts/people/journal"))["items"]
    assert [item["entry"]["kind"] for item in journal][2:] == ["committed", "reserved", "voided"]
    assert journal[-1]["entry"]["content"] == {"reason": "withdrawn", "attestation": None}
    assert _figures(_balance(client)) == (0.25, 0, 0.75, 1)
    assert _figures(_balance(client, query="as_of=4")) == (0.25, 0.5, 0.25, 2)
    for act in ("commit", "approve"):
        problem_of(_settle(client, other, act), "conflict")


def test_a_reservation_that_ran_out(alone: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(alone, budget=_PURE)
    held = release(alone, pure("0.75"), reserve_for="PT1S", tags=["t"])
    declared = release(alone, {"type": "declared", "epsilon": "0.125", "reference": "r"}, reserve_for="PT1S")
    later = datetime.now(UTC) + timedelta(minutes=1)
    monkeypatch.setattr(clock, "now", lambda: clock.stamp(later))
    assert (_read(alone, held)["state"], _read(alone, held)["expires_at"]) == ("expired", held["expires_at"])
    assert (_read(alone, declared)["state"], _read(alone, declared)["overdue"]) == ("reserved", True)
    assert _figures(_balance(alone)) == (0, 0.125, 0.875, 1)
    assert _figures(_balance(alone, query="tag=t")) == (0, 0, 0.875, 1)
    listed = json_of(alone.get("/v1/accounts/people/releases?state=expired"))["items"]
    assert [one["id"] for one in listed] == [held["id"]]
    problem_of(_settle(alone, held, "commit"), "conflict")
    assert json_of(_settle(alone, declared, "commit"))["state"] == "committed"
    release(alone, pure("0.875"))


def test_a_void_says_why_and_attests_what_nobody_can_see(client: Client) -> None:
    open_account(client)
    held = release(client, {"type": "sequence", "parts": [pure("0.1"), concentrated("0.1")]}, reserve_for="P1D")
    for body, pointer in (
        ({}, "/reason"),
        ({"reason": ""}, "/reason"),
        ({"reason": 1}, "/reason"),
        ({"reason": "x" * 4001}, "/reason"),
        ({"reason": "r", "why": "r"}, "/why"),
        ({"reason": "r", "attestation": ""}, "/attestation"),
        ({"reason": "r"}, "/attestation"),
    ):
        assert pointers_of(_settle(client, held, "void", body)) == [pointer]
    assert _read(client, held)["state"] == "reserved"
    body = {"reason": "r", "attestation": "nothing was published"}
    assert json_of(_settle(client, held, "void", body))["state"] == "voided"


@pytest.mark.parametrize(
    "duration",
    ["", "P", "PT", "P1DT", "P0D", "PT0S", "P367D", "PT8785H", "P1M", "P1Y", "P1W", "PT1.5H", "-P1D", "P-1D", " P1D",
     "P1D\n", "p1d", "P" + "9" * 38 + "D", "P" + "9" * 99 + "D", "PT1S1M", "P\u0661D", 1, 1.5, True, [], {}],
)  # fmt: skip
def test_durations_without_a_meaning(shared_client: Client, duration: Any) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    answer = charge(shared_client, pure("0.0001"), reserve_for=duration)
    assert pointers_of(answer) == ["/reserve_for"]
    assert len(str(duration)) < 3 or str(duration) not in answer.text
    batch = {"releases": [{"name": "r", "plan": pure("0.0001"), "reserve_for": duration}]}
    assert pointers_of(shared_client.post("/v1/accounts/people/releases/batch", json=batch)) == [
        "/releases/0/reserve_for"
    ]
    assert json_of(shared_client.get("/v1/accounts/people/releases"))["items"] == []


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("P366D", 366 * 86400), ("PT1S", 1), ("P1DT2H3M4S", 93784), ("PT8784H", 366 * 86400), ("PT0090M", 5400)],
)
def test_durations(embedded: Client, duration: str, seconds: int) -> None:
    open_account(embedded)
    held = release(embedded, pure("0.0001"), reserve_for=duration)
    made, ends = (datetime.fromisoformat(held[field]) for field in ("created_at", "expires_at"))
    assert (ends - made).total_seconds() == seconds


def test_a_rehearsed_reservation_is_not_one(client: Client) -> None:
    open_account(client, budget=_PURE)
    body = {"name": "r", "plan": pure("0.5"), "reserve_for": "P1D"}
    rehearsed = json_of(client.post("/v1/accounts/people/releases?dry_run=true", json=body))
    assert (rehearsed["state"], rehearsed["expires_at"], rehearsed["id"]) == ("reserved", None, None)
    assert rehearsed["remaining"]["epsilon"] == 0.5
    assert _figures(_balance(client)) == (0, 0, 1, 0)


def test_a_batch_of_several_kinds(client: Client) -> None:
    open_account(client, budget=_PURE, approval_above="0.2")
    batch = [
        {"name": "small", "plan": pure("0.1")},
        {"name": "held", "plan": pure("0.1"), "reserve_for": "P1D"},
        {"name": "large", "plan": pure("0.3")},
    ]
    done = json_of(client.post("/v1/accounts/people/releases/batch", json={"releases": batch}), 201)["releases"]
    assert [one["state"] for one in done] == ["committed", "reserved", "proposed"]
    assert [one["head"]["seq"] for one in done] == [2, 3, 4]
    for state, names in (("committed", ["small"]), ("reserved", ["held"]), ("proposed", ["large"]), ("expired", [])):
        listed = json_of(client.get(f"/v1/accounts/people/releases?state={state}"))["items"]
        assert [one["name"] for one in listed] == names
    assert _figures(_balance(client)) == (0.1, 0.4, 0.5, 3)


def test_the_second_steward_is_another_principal_not_another_key(client: Client) -> None:
    open_account(client, budget=_PURE, approval_above=0)
    first, again, second = (operators_key(client, "steward", name) for name in ("ann", "ann", "bob"))
    body = {"name": "r", "plan": pure("0.5")}
    proposed = json_of(client.post("/v1/accounts/people/releases", json=body, headers=first), 201)
    assert (proposed["state"], proposed["expires_at"]) == ("proposed", None)
    for key in (first, again):
        problem_of(_settle(client, proposed, "approve", **key), "forbidden")
    problem_of(_settle(client, proposed, "commit"), "conflict")
    problem_of(
        client.post(f"/v1/accounts/people/releases/{proposed['id']}/draws", json={"mechanism": "/", "counts": [1]}),
        "conflict",
    )
    direct = {"name": "r", "mechanism": pure("0.1"), "counts": [1]}
    assert "by others" in problem_of(client.post("/v1/accounts/people/draws", json=direct), "conflict")["detail"]
    approved = json_of(_settle(client, proposed, "approve", **second))
    assert (approved["state"], approved["head"]["seq"]) == ("committed", 3)
    assert approved == json_of(_settle(client, proposed, "approve", **second))
    assert _figures(_balance(client)) == (0.5, 0, 0.5, 1)


@pytest.mark.parametrize("above", [-1, "-1e-9", "NaN", "1/0", True, [], "1e401"])
def test_thresholds_without_a_meaning(shared_client: Client, above: Any) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    body = {"name": "new", "unit": "person", "neighbouring": "add_remove", "budget": _PURE, "approval_above": above}
    assert pointers_of(shared_client.post("/v1/accounts", json=body)) == ["/approval_above"]
    assert pointers_of(shared_client.patch("/v1/accounts/people", json={"approval_above": above})) == [
        "/approval_above"
    ]
    assert json_of(shared_client.get("/v1/accounts/people"))["approval_above"] is None


def test_a_threshold_is_only_lowered(client: Client) -> None:
    assert open_account(client, approval_above="0.50")["approval_above"] == "0.5"
    assert json_of(client.patch("/v1/accounts/people", json={"approval_above": "1/3"}))["approval_above"] == "1/3"
    problem_of(client.patch("/v1/accounts/people", json={"approval_above": "0.5"}), "conflict")
    both = {"approval_above": "0.1", "state": "closed"}
    assert pointers_of(client.patch("/v1/accounts/people", json=both)) == [""]
    assert json_of(client.get("/v1/accounts/people"))["head"]["seq"] == 2


def test_the_answer_to_a_key_is_that_of_the_first_time(client: Client) -> None:
    open_account(client)
    second = operators_key(client, "steward", "bob")
    for act, body, headers in (
        ("commit", None, bearer(STEWARD)),
        ("void", {"reason": "r"}, bearer(STEWARD)),
        ("approve", None, second),
    ):
        if act == "approve":
            json_of(client.patch("/v1/accounts/people", json={"approval_above": 0}))
        held = release(client, pure("0.01"), reserve_for="P1D")
        first = _settle(client, held, act, body, **headers, **{"Idempotency-Key": act})
        release(client, pure("0.01"))
        again = _settle(client, held, act, body, **headers, **{"Idempotency-Key": act})
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["Idempotent-Replay"] == "true"
        other = release(client, pure("0.01"), reserve_for="P1D")
        conflict = _settle(client, other, act, body, **headers, **{"Idempotency-Key": act})
        problem_of(conflict, "idempotency_conflict")


def test_accounts_under_others(client: Client) -> None:
    open_account(client, "agency", _PURE)
    opened = open_account(client, "census", {"definition": "zcdp", "rho": 9}, parent="agency")
    assert opened["parent"] == "agency"
    assert json_of(client.get("/v1/accounts/agency"))["parent"] is None
    done = release(client, pure("0.25"), "census")
    assert _figures(_balance(client, "agency")) == (0.25, 0, 0.75, 1)
    problem_of(client.get(f"/v1/accounts/agency/releases/{done['id']}"), "not_found")
    assert json_of(client.get("/v1/accounts/agency/releases"))["items"] == []
    for act, body in (("commit", None), ("void", {"reason": "r"}), ("approve", None)):
        problem_of(_settle(client, done | {"account": "agency"}, act, body), "not_found")
    opening = json_of(client.get("/v1/accounts/census/journal"))["items"][0]["entry"]
    assert (opening["content"]["parent"], opening["content"]["approval_above"]) == ("agency", None)


def test_a_refusal_lists_every_cap_of_the_line(client: Client) -> None:
    open_account(client, "agency", _PURE)
    open_account(client, "census", {"definition": "zcdp", "rho": "0.125"}, parent="agency")
    refused = problem_of(charge(client, pure("2"), "census"), "budget_exceeded")
    agency = {"account": "agency", "definition": "pure", "cap": "epsilon", "requested": 2, "remaining": 1}
    census = {"account": "census", "definition": "zcdp", "cap": "rho", "remaining": 0.125}
    assert refused["failures"][1:] == [agency]
    assert refused["failures"][0].items() >= census.items()
    assert refused.items() >= refused["failures"][0].items()
    assert 2 < refused["noise_multiplier_that_fits"] < 4  # rho of epsilon 0.5 is a little less than 0.125
    release(client, pure(2 / refused["noise_multiplier_that_fits"]), "census")


def test_a_closed_account_is_named(client: Client) -> None:
    open_account(client, "agency", _PURE)
    open_account(client, "census", _PURE, parent="agency")
    held = release(client, pure("0.1"), "census", reserve_for="P1D")
    json_of(client.patch("/v1/accounts/agency", json={"state": "closed"}))
    assert problem_of(charge(client, pure("0.1"), "census"), "account_closed")["account"] == "agency"
    assert json_of(client.get("/v1/accounts/census"))["state"] == "open"
    drawn = client.post(f"/v1/accounts/census/releases/{held['id']}/draws", json={"mechanism": "/", "counts": [1]})
    json_of(drawn, 201)
    assert _read(client, held)["state"] == "committed"
    body = {"name": "new", "unit": "person", "neighbouring": "add_remove", "budget": _PURE, "parent": "census"}
    assert problem_of(client.post("/v1/accounts", json=body), "account_closed")["account"] == "agency"


@pytest.mark.parametrize("parent", ["nobody", "child", "UPPER", "", 7, ["agency"]])
def test_parents_that_cannot_be(shared_client: Client, parent: Any) -> None:
    if shared_client.get("/v1/accounts/agency").status_code == 404:
        open_account(shared_client, "agency", unit="household")
    body = {"name": "child", "unit": "person", "neighbouring": "add_remove", "budget": _PURE}
    assert pointers_of(shared_client.post("/v1/accounts", json=body | {"parent": parent})) == ["/parent"]
    assert pointers_of(shared_client.post("/v1/accounts", json=body | {"parent": "agency"})) == ["/parent"]
    other = body | {"parent": "agency", "unit": "household", "neighbouring": "replace_one"}
    assert pointers_of(shared_client.post("/v1/accounts", json=other)) == ["/parent"]


def test_a_key_limited_to_a_child_charges_through_its_parents(client: Client) -> None:
    open_account(client, "agency", _PURE)
    open_account(client, "census", _PURE, parent="agency")
    limited = make_key(client, "pipeline", accounts=["census"])
    body = {"name": "r", "plan": pure("0.5")}
    json_of(client.post("/v1/accounts/census/releases", json=body, headers=limited), 201)
    problem_of(client.post("/v1/accounts/agency/releases", json=body, headers=limited), "forbidden")
    problem_of(client.get("/v1/accounts/agency/balance", headers=limited), "forbidden")
    assert _figures(_balance(client, "agency"))[2] == 0.5


def test_what_an_account_above_asks_to_be_approved_is_not_for_a_key_that_does_not_reach_it(client: Client) -> None:
    open_account(client, "agency", budget=_PURE, approval_above="0.2")
    open_account(client, "product", budget=_PURE, parent="agency")
    proposed = release(client, pure("0.3"), "product")
    assert proposed["state"] == "proposed"
    approve = f"/v1/accounts/product/releases/{proposed['id']}/approve"
    below = operators_key(client, "steward", "second", accounts=["product"])
    problem_of(client.post(approve, headers=below), "forbidden")
    both = operators_key(client, "steward", "second", accounts=["product", "agency"])
    assert json_of(client.post(approve, headers=both))["state"] == "committed"
