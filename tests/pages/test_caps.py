"""The form of caps on an account's page: each button is a call of the contract, and a fault is shown at its field."""

from typing import Any

from tests.api.calls import Answer, Client, json_of, open_account, operators_key, release
from tests.pages.visits import hidden, sign_in, submit

_PAGE = "/accounts/capped"
_CAP = {"tag": "hispanic", "budget": {"definition": "zcdp", "rho": "1"}}


_EMPTY = {"tagged_definition": "zcdp", "tagged_alpha": "", "tagged_delta": "", "tagged_declared": ""}


def _set(steward: Client, **typed: str) -> Answer:
    return submit(steward, _PAGE, f"{_PAGE}/caps", **(_EMPTY | typed))


def _open(api: Client, **fields: Any) -> None:
    open_account(api, "capped", **fields)


def test_a_cap_is_set_and_shown_with_its_bar(api: Client, steward: Client) -> None:
    _open(api)
    done = _set(steward, tag="hispanic", tagged_cap="1")
    assert done.headers["Location"] == f"{_PAGE}?done=changed"
    noise = {"type": "discrete_gaussian", "rho": "0.1", "tags": ["hispanic"]}
    release(api, noise, "capped")
    shown = steward.get(_PAGE).text
    assert "Caps on tags" in shown
    assert "40 % of the cap is used: ρ = 0.4 of 1; 0.6 left" in shown
    assert "as its <a" in steward.get(f"{_PAGE}/tags").text


def test_a_refused_cap_is_shown_at_its_field(api: Client, steward: Client) -> None:
    _open(api, caps=[_CAP])
    for typed, field in (
        ({"tag": "race", "tagged_cap": "none"}, "tagged_cap"),
        ({"tag": "race", "tagged_cap": "1", "tagged_alpha": "2"}, "tagged_alpha"),
        ({"tag": "hispanic", "tagged_cap": "1", "tagged_definition": "pure"}, "tagged_definition"),
        ({"tag": "", "tagged_cap": "1"}, "tag"),
    ):
        refused = _set(steward, **typed)
        assert refused.status_code == 422, typed
        assert f'id="{field}-fault"' in refused.text, typed
    release(api, {"type": "discrete_gaussian", "rho": "0.1", "tags": ["hispanic"]}, "capped")
    low = _set(steward, tag="hispanic", tagged_cap="0.3")
    assert low.status_code == 409
    assert "hispanic" in low.text
    assert len(json_of(api.get("/v1/accounts/capped/journal"))["items"]) == 2


def test_another_steward_approves_a_greater_cap(api: Client, steward: Client) -> None:
    _open(api, approval_above="0.5", caps=[_CAP])
    done = _set(steward, tag="hispanic", tagged_cap="2")
    assert done.headers["Location"] == f"{_PAGE}?done=proposed"
    assert "caps on tags: hispanic, ρ = 2" in steward.get(_PAGE).text
    sign_in(steward, operators_key(api, "steward", "second")["Authorization"].removeprefix("Bearer "))
    other = submit(steward, _PAGE, f"{_PAGE}/approve", proposal="1")
    assert other.headers["Location"] == f"{_PAGE}?done=late"
    done = submit(steward, _PAGE, f"{_PAGE}/approve", proposal=hidden(steward.get(_PAGE).text, "proposal"))
    assert done.headers["Location"] == f"{_PAGE}?done=changed"
    assert json_of(api.get("/v1/accounts/capped"))["caps"][0]["budget"]["rho"] == "2"


def test_the_planner_asks_what_the_plan_reads(api: Client, steward: Client) -> None:
    _open(api, caps=[_CAP])
    open_account(api, "below", parent="capped")
    row = {"kind": "margins", "table": "t", "geography": "state", "moe": "10"}
    row |= {"confidence": "0.95", "cells": "1", "sensitivity": "1"}
    page = steward.get("/plan?account=below").text
    sent = row | {name: hidden(page, name) for name in ("csrf", "once")} | {"do": "plan", "account": "below"}
    unstated = steward.post("/plan", data=sent)
    assert unstated.status_code == 422
    assert 'id="reads-fault"' in unstated.text
    for reads in ("hispanic", "nothing capped"):
        planned = steward.post("/plan", data=sent | {"reads": reads})
        assert planned.status_code == 200
        assert "Register the" in planned.text
