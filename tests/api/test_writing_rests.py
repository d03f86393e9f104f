"""A principal whose changes take long to write waits while others are to write."""

import itertools

import pytest
from fastapi import FastAPI

from service.ledger.storage.writing_pace import WritingPace
from tests.api.calls import Client, json_of, make_key, open_account, problem_of, pure

_PATH = "/v1/accounts/people/releases"
_RELEASE = {"name": "counts", "plan": pure("1/1000")}


@pytest.fixture
def pipeline(app: FastAPI, client: Client) -> dict[str, str]:
    """Return the headers of a pipeline each of whose changes seems to take half a second of the processor."""
    open_account(client)
    headers = make_key(client, "pipeline")
    app.state.database.pace = _pace(0.5)
    return headers


def test_a_principal_rests_after_a_long_write_while_another_one_sends_requests(
    client: Client, pipeline: dict[str, str]
) -> None:
    assert client.post(_PATH, json=_RELEASE, headers=pipeline).status_code == 201
    refused = client.post(_PATH, json=_RELEASE, headers=pipeline)
    problem = problem_of(refused, "too_many_requests")
    assert "others write first" in problem["detail"]
    assert 36 <= int(refused.headers["Retry-After"]) <= 46
    assert json_of(client.get(_PATH))["items"][1:] == []  # nothing was registered
    assert client.post(_PATH, json=_RELEASE).status_code == 201  # another's


def test_a_principal_that_is_alone_does_not_rest(
    app: FastAPI, client: Client, pipeline: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.state.turns, "is_alone", lambda principal: principal == "somebody")
    statuses = [client.post(_PATH, json=_RELEASE, headers=pipeline).status_code for _ in range(2)]
    assert statuses == [201, 201]


def test_a_short_rest_is_waited_for(app: FastAPI, client: Client, pipeline: dict[str, str]) -> None:
    app.state.database.pace = _pace(0.06)  # a rest of 3 s, of which 2 need not be taken at once
    statuses = [client.post(_PATH, json=_RELEASE, headers=pipeline).status_code for _ in range(2)]
    assert statuses == [201, 201]


def _release(client: Client, account: str, headers: dict[str, str]) -> int:
    return client.post(f"/v1/accounts/{account}/releases", json=_RELEASE, headers=headers).status_code


def _pace(seconds: float) -> WritingPace:
    used = itertools.count(0, seconds)
    return WritingPace(used=lambda: next(used))


def test_two_children_of_one_account_rest_as_one_account_does(
    app: FastAPI, client: Client, pipeline: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, parent in (("one", "people"), ("two", "people"), ("other", None)):
        open_account(client, name, **({} if parent is None else {"parent": parent}))
    app.state.database.pace = _pace(0.5)
    with monkeypatch.context() as alone:
        alone.setattr(app.state.turns, "is_alone", lambda principal: True)
        assert [_release(client, name, pipeline) for name in ("one", "two")] == [201, 201]
    monkeypatch.setattr("service.api.http.dependencies._LONGEST_REST", 0.01)
    assert [_release(client, name, pipeline) for name in ("people", "one", "two", "other")] == [429, 429, 429, 201]
    assert _release(client, "missing", pipeline) == 429  # two roots rest now


def test_a_principal_that_changes_many_accounts_in_turn_rests(
    app: FastAPI, client: Client, pipeline: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        open_account(client, f"account-{number}")
    app.state.database.pace = _pace(0.03)  # rests of 0.75 s
    monkeypatch.setattr("service.api.http.dependencies._LONGEST_REST", 0.01)
    statuses = [_release(client, f"account-{number}", pipeline) for number in range(20)]
    assert statuses[:4] == [201, 201, 201, 429]
    assert statuses.count(429) > 10
