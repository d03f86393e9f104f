"""The tables of pages as files: each page leads to them, and they have what ``/v1`` lists."""

import csv
import html
import io
import re
from typing import cast

import pytest
from fastapi.testclient import TestClient

from tests.api.calls import Client, bearer, json_of

_PAGES = ("/", "/accounts/nation", "/accounts/persons", "/accounts/persons/releases", "/accounts/persons/tags",
          "/accounts/persons/journal", "/keys", "/accounts/persons/report")  # fmt: skip


def _linked(text: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(r'<p class="csv unprinted"><a href="([^"]+)" download>', text)]


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("page", _PAGES)
def test_each_page_leads_to_its_tables(steward: Client, page: str) -> None:
    links = _linked(steward.get(page).text)
    assert links
    for link in links:
        answer = steward.get(link)
        assert answer.status_code == 200, answer.text
        assert "attachment" in answer.headers["Content-Disposition"]
        assert answer.headers["Cache-Control"] == "no-store"
        assert _rows(answer.text)


def test_a_release_leads_to_its_events_and_draws(api: Client, steward: Client) -> None:
    for one in json_of(api.get("/v1/accounts/persons/releases"))["items"]:
        path = f"/accounts/persons/releases/{one['id']}"
        for link in _linked(steward.get(path).text):
            assert steward.get(link).status_code == 200
        events = _rows(steward.get(f"{path}/events.csv").text)
        listed = json_of(api.get(f"/v1{path}/events"))["items"]
        assert [row["seq"] for row in events] == [str(event["seq"]) for event in listed]


def test_a_search_is_that_of_the_file(steward: Client) -> None:
    found = steward.get("/accounts/persons/releases", params={"state": "reserved", "since": "2020-01-01"})
    (link,) = _linked(found.text)
    assert [row["name"] for row in _rows(steward.get(link).text)] == ["held"]
    assert _rows(steward.get(link).text)[0]["charge.rho_exact"] == "0.01"


def test_a_file_has_all_pages(api: Client, steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.pages.tables._OF_ACCOUNT", {"journal": 2})
    rows = _rows(steward.get("/accounts/persons/journal.csv").text)
    entries = json_of(api.get("/v1/accounts/persons/journal"))["items"]
    assert [row["hash"] for row in rows] == [entry["hash"] for entry in entries]


def test_spending_by_tag(api: Client, steward: Client) -> None:
    rows = _rows(steward.get("/accounts/persons/tags.csv").text)
    assert [row["tag"] for row in rows] == ["age", "pl94", "total", ""]
    balance = json_of(api.get("/v1/accounts/persons/balance?tag=age"))
    assert rows[0]["spent.zcdp.rho"] == str(balance["spent"]["zcdp"]["rho"])


def test_a_later_page_that_is_refused_ends_the_connection(steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.pages.tables._OF_ACCOUNT", {"journal": 2})
    monkeypatch.setattr("service.pages.shell.whole_tables._cursor", lambda _: "no cursor")
    application = cast("TestClient", steward).app
    with pytest.raises(ConnectionError):
        TestClient(application, cookies=steward.cookies).get("/accounts/persons/journal.csv")


def test_a_file_needs_a_session_and_the_role(api: Client, visitor: Client) -> None:
    assert visitor.get("/keys.csv").status_code in (303, 401)
    made = json_of(api.post("/v1/keys", json={"name": "reader", "role": "auditor"}), 201)["key"]
    assert api.get("/v1/keys", headers=bearer(made) | {"Accept": "text/csv"}).status_code == 403
