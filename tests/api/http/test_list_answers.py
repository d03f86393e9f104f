"""Lists as tables: every list of the contract has the lines of its items, on all pages, and runs no formula."""

import csv
import io
from typing import Any

import pytest

from service.api.http.list_answers import NEXT_CURSOR
from service.api.openapi import examples
from tests.api.calls import (
    Answer,
    Client,
    concentrated,
    contract,
    json_of,
    make_key,
    open_account,
    pages_of,
    problem_of,
    pure,
    release,
)

_PATHS = contract()["paths"]
_LISTS = {
    "/v1/releases": "id",
    "/v1/accounts": "name",
    "/v1/accounts/{account}/releases": "id",
    "/v1/accounts/{account}/journal": "hash",
    "/v1/accounts/{account}/periods": "period",
    "/v1/accounts/{account}/releases/{release}/draws": "draw",
    "/v1/accounts/{account}/releases/{release}/events": "seq",
    "/v1/proposals": "id",
    "/v1/keys": "id",
    "/v1/jobs": "id",
    "/v1/scenarios": "id",
    "/v1/webhooks": "id",
    "/v1/webhooks/{webhook}/deliveries": "id",
}
"""Each list, with a member by which its items are told apart."""


def _rows(answer: Answer) -> list[dict[str, str]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


@pytest.fixture
def names(client: Client) -> dict[str, str]:
    """A ledger with some items in each list, and the names that addresses need."""
    open_account(client, "a", approval_above="0.1", approvers={"at_least": 2, "of": ["@ann", "bob", "cy"]})
    open_account(client, "months", periods={"calendar": "month", "participation": {"offsets": [0]}})
    for month in ("2026-01", "2026-02", "2026-03"):
        release(client, concentrated("0.01"), "months", name="=1+1", periods={"list": [month]})
    for name in ("first", "second", "third"):
        release(client, concentrated("0.2"), "a", name=f"@{name}")
    open_account(client, "drawn")
    made = release(client, pure("0.1", name="m"), "drawn", tags=["-x", "y"])
    for partition in ("1", "2", "3"):
        body = {"mechanism": "m", "partition": partition, "counts": [1, 2]}
        json_of(client.post(f"/v1/accounts/drawn/releases/{made['id']}/draws", json=body), 201)
    make_key(client, "auditor", "=somebody", accounts=["a"])
    make_key(client, "auditor", "somebody else")
    for name in ("one", "two", "three"):
        json_of(client.post("/v1/scenarios", json=examples.SCENARIO | {"name": name, "account": "a"}), 201)
        webhook = json_of(client.post("/v1/webhooks", json=examples.WEBHOOK | {"name": name}), 201)["id"]
        json_of(client.post(f"/v1/webhooks/{webhook}/test"), 202)
    json_of(client.post(f"/v1/webhooks/{webhook}/test"), 202)
    return {"release": made["id"], "webhook": webhook}


def test_every_list_of_the_contract_is_a_table_too() -> None:
    found = {
        path
        for path, methods in _PATHS.items()
        if "get" in methods and "cursor" in {one["name"] for one in methods["get"].get("parameters", [])}
    }
    assert found == {*_LISTS, "/v1/accounts/{account}/report"}
    for path in found:
        assert "text/csv" in _PATHS[path]["get"]["responses"]["200"]["content"]


@pytest.mark.parametrize("path", _LISTS)
def test_a_table_has_the_items_of_all_pages(client: Client, names: dict[str, str], path: str) -> None:
    account = "months" if path.endswith("periods") else "drawn"
    address, key = path.format(account=account, **names), _LISTS[path]
    items = [item for page in pages_of(client, address) for item in page]
    rows, cursor, pages = list[dict[str, str]](), "", 0
    while pages == 0 or cursor:
        query: dict[str, Any] = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        answer = client.get(address, params=query, headers={"Accept": "text/csv"})
        rows += _rows(answer)
        cursor, pages = answer.headers.get(NEXT_CURSOR, ""), pages + 1
    assert [row[key] for row in rows] == [str(item[key]) for item in items]
    assert 2 * pages >= len(items)


def test_values_within_values(client: Client, names: dict[str, str]) -> None:
    account = _rows(client.get("/v1/accounts?with_gauge=true", headers={"Accept": "text/csv"}))[0]
    body = json_of(client.get("/v1/accounts?with_gauge=true"))["items"][0]
    assert (account["budget.rho"], account["budget.epsilon"]) == (body["budget"]["rho"], "")
    assert account["gauge.used"] == str(body["gauge"]["used"])
    assert account["head.hash"] == body["head"]["hash"]
    assert (account["approvers.at_least"], account["approvers.of"]) == ("2", "'@ann; bob; cy")
    found = _rows(client.get("/v1/accounts/drawn/releases?with_charge=true", headers={"Accept": "text/csv"}))[0]
    assert (found["tags"], found["cost.pure.epsilon"]) == ("'-x; y", "0.1")
    entries = _rows(client.get("/v1/accounts/a/journal", headers={"Accept": "text/csv"}))
    assert '"rho": "1"' in entries[0]["entry.content"]


def test_formulas_are_texts(client: Client, names: dict[str, str]) -> None:
    released = _rows(client.get("/v1/accounts/months/releases", headers={"Accept": "text/csv"}))
    assert {row["name"] for row in released} == {"'=1+1"}
    waiting = _rows(client.get("/v1/proposals", headers={"Accept": "text/csv"}))
    assert [row["name"] for row in waiting] == ["'@first", "'@second", "'@third"]
    keys = _rows(client.get("/v1/keys", headers={"Accept": "text/csv"}))
    assert [row["name"] for row in keys if row["role"] == "auditor"] == ["'=somebody", "somebody else"]


def test_the_history_is_a_table(client: Client, names: dict[str, str]) -> None:
    rows = _rows(client.get("/v1/accounts/months/history", headers={"Accept": "text/csv"}))
    points = json_of(client.get("/v1/accounts/months/history"))["points"]
    assert [row["seq"] for row in rows] == [str(point["seq"]) for point in points]


def test_refusals_are_problems(client: Client) -> None:
    for path, code in (("/v1/accounts/nobody/releases", "not_found"), ("/v1/accounts?limit=0", "validation")):
        problem_of(client.get(path, headers={"Accept": "text/csv"}), code)
    problem_of(client.get("/v1/accounts", headers={"Accept": "text/html"}), "not_acceptable")
