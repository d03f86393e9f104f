"""Searched and sorted lists of accounts, with the accounts above them."""

from typing import Any

import pytest

from tests.api.calls import Client, concentrated, json_of, make_key, open_account, pages_of, pointers_of, pure, release


def _names(client: Client, **query: Any) -> list[str]:
    return [one["name"] for page in pages_of(client, "/v1/accounts", **query) for one in page]


def _zcdp(rho: str) -> dict[str, str]:
    return {"definition": "zcdp", "rho": rho}


@pytest.fixture
def ledger(client: Client) -> Client:
    """Return a client of a ledger with accounts of known shares: c 0.9, a 0.5, e 0.25, b 0.2, the others nothing."""
    open_account(client, "nation", _zcdp("10"))
    for name, rho in (("a", "1"), ("b", "4"), ("c", "0.1")):
        open_account(client, name, _zcdp(rho), parent="nation")
    open_account(client, "d", {"definition": "approximate", "epsilon": "1", "delta": "1e-6"})
    open_account(client, "e", {"definition": "pure", "epsilon": "2"})
    release(client, concentrated("0.5"), "a")
    release(client, concentrated("0.8"), "b")
    release(client, concentrated("0.09"), "c")
    release(client, pure("0.5"), "e")
    return client


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_lists_are_sorted_over_all_their_pages(ledger: Client, limit: int) -> None:
    assert _names(ledger, limit=limit) == ["a", "b", "c", "d", "e", "nation"]
    assert _names(ledger, sort="used", limit=limit) == ["c", "a", "e", "b", "nation", "d"]  # 1.39 of 10 in all
    assert _names(ledger, sort="left", limit=limit) == ["d", "e", "c", "a", "b", "nation"]
    assert _names(ledger, sort="changed", limit=limit) == ["e", "c", "nation", "b", "a", "d"]


def test_the_last_change_is_the_moment_of_the_last_entry(ledger: Client) -> None:
    for account in json_of(ledger.get("/v1/accounts"))["items"]:
        entries = json_of(ledger.get(f"/v1/accounts/{account['name']}/journal"))["items"]
        assert account["changed_at"] == entries[-1]["entry"]["time"]


def test_texts_that_look_like_a_moment_are_none(client: Client) -> None:
    open_account(client, unit='"time":"2001-01-01T00:00:00.000000Z"}', description="\U0001f3d8 \xe9")
    (account,) = json_of(client.get("/v1/accounts"))["items"]
    assert account["changed_at"] == account["created_at"]


@pytest.mark.parametrize("sort", ["name", "used"])
def test_lists_are_searched(ledger: Client, sort: str) -> None:
    assert _names(ledger, sort=sort, name="ATI") == ["nation"]
    assert _names(ledger, sort=sort, name="%") == []
    assert _names(ledger, sort=sort, name="_") == []
    json_of(ledger.patch("/v1/accounts/b", json={"state": "closed"}))
    assert _names(ledger, sort=sort, state="closed") == ["b"]
    assert sorted(_names(ledger, sort=sort, state="open", parent="nation")) == ["a", "c"]


def test_the_accounts_above_those_of_a_page_are_beside_them(ledger: Client) -> None:
    open_account(ledger, "a.child", _zcdp("0.1"), parent="a")
    query = {"name": "child", "with_above": "true", "with_gauge": "true"}
    page = json_of(ledger.get("/v1/accounts", params=query))
    assert [one["name"] for one in page["items"]] == ["a.child"]
    assert [one["name"] for one in page["above"]] == ["a", "nation"]
    assert page["above"][1]["gauge"]["used"] == pytest.approx(0.139)
    assert json_of(ledger.get("/v1/accounts", params=query | {"name": "nation"}))["above"] == []
    assert "above" not in json_of(ledger.get("/v1/accounts"))


def test_limited_keys_see_neither_the_names_nor_the_accounts_above(ledger: Client) -> None:
    headers = make_key(ledger, "auditor", accounts=["a", "e"])
    page = json_of(ledger.get("/v1/accounts?sort=used&with_above=true", headers=headers))
    assert [one["name"] for one in page["items"]] == ["a", "e"]
    assert page["above"] == []
    for sort in ("name", "left", "changed"):
        listed = json_of(ledger.get(f"/v1/accounts?name=nation&sort={sort}", headers=headers))
        assert listed == {"items": [], "next_cursor": None}


@pytest.mark.parametrize(
    "query", ["sort=rho", "sort=-used", "sort=", "sort=used&sort=left", "state=voided", "name=", "with_above=perhaps"]
)
def test_unknown_values_are_refused(shared_client: Client, query: str) -> None:
    assert pointers_of(shared_client.get(f"/v1/accounts?{query}")) == [f"/query/{query.partition('=')[0]}"]


@pytest.mark.parametrize(
    "cursor",
    ["bmFu", "IG5hbiBh", "IDEgYSBi", "IHggYQ", "IC0tMSBh"],  # "nan", " nan a", " 1 a b", " x a", " --1 a"
)
def test_cursors_of_no_sorted_list_are_refused(shared_client: Client, cursor: str) -> None:
    assert pointers_of(shared_client.get(f"/v1/accounts?sort=used&cursor={cursor}")) == ["/query/cursor"]


def test_a_cursor_of_another_order_is_refused(ledger: Client) -> None:
    by_name = json_of(ledger.get("/v1/accounts?limit=1"))["next_cursor"]
    by_share = json_of(ledger.get("/v1/accounts?limit=1&sort=used"))["next_cursor"]
    assert pointers_of(ledger.get(f"/v1/accounts?sort=used&cursor={by_name}")) == ["/query/cursor"]
    assert pointers_of(ledger.get(f"/v1/accounts?cursor={by_share}")) == ["/query/cursor"]


def test_a_sorted_table_is_one(ledger: Client) -> None:
    query = {"sort": "used", "with_above": "true", "limit": "2"}
    answer = ledger.get("/v1/accounts", params=query, headers={"Accept": "text/csv"})
    assert [line.split(",")[0] for line in answer.text.splitlines()] == ["name", "c", "a"]
    assert answer.headers["X-Next-Cursor"]


def test_more_accounts_than_one_list_sorts_are_refused(ledger: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ledger.accounts.account_order.MOST", 3)
    assert pointers_of(ledger.get("/v1/accounts?sort=used")) == ["/query/sort"]
    assert _names(ledger, sort="used", parent="nation") == ["c", "a", "b"]
    assert len(_names(ledger)) == 6
