"""Refusals take turns of their principal, so that floods of them delay no other."""

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI

from service.api.http import problems
from service.api.http.fair_places import FairPlaces
from tests.api.calls import client_of, make_key, open_account, problem_of


class _Noted(FairPlaces):
    """Places that note who took one."""

    def __init__(self) -> None:
        super().__init__(8, 1, 8, 100)
        self.entered: list[str] = []

    async def enter(self, principal: str, *, begun: bool = False) -> bool:
        """Note the principal, and take a place."""
        self.entered.append(principal)
        return await super().enter(principal, begun=begun)


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        ("/v1/accounts/people/balance?zz=1", {}, "validation"),
        ("/v1/accounts/people/balance", {"Accept": "a/b"}, "not_acceptable"),
        ("/v1/zz", {}, "not_found"),
    ],
)
def test_a_refusal_takes_a_turn(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str], code: str
) -> None:
    client = client_of(app)
    open_account(client)
    other = make_key(client, "auditor", "another")
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float, *_: Any) -> None:
        if seconds == problems._PAUSE:
            pauses.append(turns.busy)
        await sleep(0)

    monkeypatch.setattr("service.api.http.problems.asyncio.sleep", pause)
    turns = app.state.turns = _Noted()
    problem_of(client.get(path, headers=headers), code)
    assert turns.entered == ["first-steward"]
    assert pauses == []  # nobody else sends requests
    client.get("/v1/accounts", headers=other)
    turns.entered.clear()
    problem_of(client.get(path, headers=headers), code)
    assert turns.entered == ["first-steward"]
    assert pauses == [1]  # while it holds the turn
    assert turns.busy == 0


def test_who_sends_too_many_requests_is_refused_at_once(app: FastAPI) -> None:
    name = "first-steward"
    with client_of(app) as steward:
        turns = app.state.turns = FairPlaces(1, 1, 1, 0)
        assert steward.portal is not None
        steward.portal.call(turns.enter, name)
        problem_of(steward.get("/v1/accounts"), "too_many_requests")
        turns.leave(name)
