"""Pages about releases whose answers of ``/v1`` are longer than a page may read."""

import csv
import io
import re
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest
from anyio import run
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from service.api.http.fair_places import FairPlaces
from service.pages.shell import api_client
from service.pages.shell.api_client import TooLong, Visit
from service.pages.shell.session import new_session
from tests.api.calls import Client, client_of, json_of, open_account, pure, release
from tests.pages.visits import submit

_BOUND = 20_000
_PLAN = {"type": "sequence", "parts": [pure("1e-9", name=f"{number:03}" + "y" * 97) for number in range(300)]}


@pytest.fixture
def long(api: Client, steward: Client, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A reservation of a plan that is too long for pages, in an account of its own."""
    open_account(api, "long")
    found = release(api, _PLAN, "long", reserve_for="PT1H")
    release(api, pure("1e-9"), "long", name="after it")
    monkeypatch.setattr(api_client, "LONGEST_ANSWER", _BOUND)
    assert len(api.get(f"/v1/accounts/long/releases/{found['id']}").content) > _BOUND
    return found | {"at": f"/accounts/long/releases/{found['id']}"}


def test_a_release_is_shown_without_its_plan(steward: Client, long: Any) -> None:
    shown = steward.get(long["at"])
    assert shown.status_code == 200
    assert "The plan is too long for a page." in shown.text
    assert f'href="{long["at"]}/receipt"' in shown.text
    assert f"<code>/v1{long['at']}</code>" in shown.text
    assert "All analyses" in shown.text
    assert "Beside each part" not in shown.text


@pytest.mark.parametrize("action", ["commit", "void"])
def test_a_long_release_is_settled(api: Client, steward: Client, long: Any, action: str) -> None:
    fields = {"reason": "cancelled", "attestation": "none"} if action == "void" else {}
    answer = submit(steward, long["at"], f"{long['at']}/{action}", **fields)
    done = {"commit": "committed", "void": "voided"}[action]
    assert (answer.status_code, answer.headers["Location"]) == (303, f"{long['at']}?done={done}")
    assert json_of(api.get(f"/v1{long['at']}"))["state"] == done


def test_a_long_release_is_described(api: Client, steward: Client, long: Any) -> None:
    shown = steward.get(f"{long['at']}/description")
    assert shown.status_code == 200
    before = dict.fromkeys(re.findall(r'name="(before-[^"]+)"', shown.text), "")
    answer = submit(steward, f"{long['at']}/description", f"{long['at']}/description", **before, intended_use="a use")
    assert answer.status_code == 303
    assert json_of(api.get(f"/v1{long['at']}"))["metadata"]["intended_use"] == "a use"


@pytest.mark.parametrize("path", ["", "/releases", "/tags", "/report"])
def test_pages_of_the_account_do_not_ask_for_plans(steward: Client, long: Any, path: str) -> None:
    assert steward.get(f"/accounts/{long['account']}{path}").status_code == 200


def test_the_first_mechanisms_of_a_long_statement_are_shown(
    api: Client, steward: Client, long: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(api.get(f"/v1{long['at']}/accuracy").content) > _BOUND
    monkeypatch.setattr("service.pages.accuracy._MECHANISMS", 3)
    shown = steward.get(f"{long['at']}/accuracy")
    assert shown.status_code == 200
    assert "There are more than these 3 mechanisms; the file has them all." in shown.text
    assert [f"{number:03}y" in shown.text for number in range(5)] == [True, True, True, False, False]
    rows = list(csv.DictReader(io.StringIO(steward.get(f"{long['at']}/accuracy.csv").text, newline="")))
    assert len(rows) == 300


def test_a_statement_that_is_too_long_all_the_same_is_a_problem(steward: Client, long: Any) -> None:
    shown = steward.get(f"{long['at']}/accuracy")
    assert shown.status_code == 413
    assert "This page would be too long. Read it over the HTTP interface at" in shown.text
    assert f"/v1{long['at']}/accuracy" in shown.text


def test_a_long_entry_of_the_journal_has_a_row_without_figures(steward: Client, long: Any) -> None:
    shown = steward.get("/accounts/long/journal").text
    assert [int(part.partition("</th>")[0]) for part in shown.split('scope="row">')[1:]] == [3, 2, 1]
    assert shown.count("This entry is too long for a page; the file has it.") == 1
    assert "after it" in shown
    assert long["id"] not in shown
    rows = list(csv.DictReader(io.StringIO(steward.get("/accounts/long/journal.csv").text, newline="")))
    assert [row["entry.seq"] for row in rows] == ["1", "2", "3"]
    assert rows[1]["entry.release"] == long["id"]


def test_an_answer_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client, "LONGEST_ANSWER", _BOUND)
    ends: list[bool] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        for number in range(1000):
            await send({"type": "http.response.body", "body": bytes([number % 256]) * 1000, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        ends.append(True)

    scope = {"type": "http", "scheme": "http", "state": {"request_id": "r"}, "headers": []}
    request = cast("Request", SimpleNamespace(app=app, scope=scope, receive=None))
    visit = Visit(request, new_session("key", "name", "auditor", 1))
    tracemalloc.start()
    with pytest.raises(TooLong) as refused:
        run(api_client.ask, visit, "POST", "/v1/accounts")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (refused.value.status, refused.value.done, ends) == (413, True, [True])
    assert peak < 500_000


def test_a_page_is_made_in_a_turn_of_who_is_signed_in(app: FastAPI, steward: TestClient) -> None:
    turns = app.state.page_turns = FairPlaces(2, 1, 1, 0)
    name = json_of(client_of(app).get("/v1/principal"))["name"]
    assert steward.portal is not None
    steward.portal.call(turns.enter, name)
    for path in ("/", "/plan", "/accounts/persons"):
        answer = steward.get(path)
        assert (answer.status_code, "too many requests of one principal" in answer.text) == (429, True)
    turns.leave(name)
    for path in ("/", "/plan", "/accounts/persons"):
        assert steward.get(path).status_code == 200
    assert turns.busy == 0
