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
    used = itertools.count(0, 0.5)
    app.state.database.pace = WritingPace(used=lambda: next(used))
    return headers


def test_a_principal_rests_after_a_long_write_while_another_one_sends_requests(
    client: Client, pipeline: dict[str, str]
) -> None:
    assert client.post(_PATH, json=_RELEASE, headers=pipeline).status_code == 201
    refused = client.post(_PATH, json=_RELEASE, headers=pipeline)
    problem = problem_of(refused, "too_many_requests")
    assert "others write first" in problem["detail"]
    assert 8 <= int(refused.headers["Retry-After"]) <= 13
    assert json_of(client.get(_PATH))["items"][1:] == []  # nothing was registered
    assert client.post(_PATH, json=_RELEASE).status_code == 201  # another's


def test_a_principal_that_is_alone_does_not_rest(
    app: FastAPI, client: Client, pipeline: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.state.turns, "is_alone", lambda principal: principal == "somebody")
    statuses = [client.post(_PATH, json=_RELEASE, headers=pipeline).status_code for _ in range(2)]
    assert statuses == [201, 201]


def test_a_short_rest_is_waited_for(app: FastAPI, client: Client, pipeline: dict[str, str]) -> None:
    used = itertools.count(0, 0.06)  # a rest of 1.8 s
    app.state.database.pace = WritingPace(used=lambda: next(used))
    statuses = [client.post(_PATH, json=_RELEASE, headers=pipeline).status_code for _ in range(2)]
    assert statuses == [201, 201]
