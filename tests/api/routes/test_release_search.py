"""The search of releases over all accounts that a key reaches."""

import csv
import io
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest

from service.ledger.releases import release_search
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

_ALL = "/v1/releases"


def _found(client: Client, headers: dict[str, str] | None = None, **query: Any) -> list[tuple[str, str]]:
    items = json_of(client.get(_ALL, params=query, headers=headers or {}))["items"]
    return [(item["account"], item["name"]) for item in items]


@pytest.fixture
def filled(client: Client) -> Client:
    """Three accounts, each with releases of two principals, some with a tag, one reserved."""
    for account in ("zebras", "ants", "bees"):
        open_account(client, account)
    weekly = make_key(client, "pipeline", "weekly")
    for number in range(6):
        body: dict[str, Any] = {"name": f"Table {number}", "plan": pure("0.01")}
        body |= {"tags": ["few"]} if number in (1, 4) else {}
        body |= {"reserve_for": "PT1H"} if number == 3 else {}
        account = ("zebras", "ants", "bees")[number % 3]
        json_of(client.post(f"/v1/accounts/{account}/releases", json=body, headers=weekly if number == 5 else {}), 201)
    return client


def test_a_search_has_the_releases_of_all_accounts_as_their_own_lists_have_them(filled: Client) -> None:
    query = {"with_charge": "true"}
    own = [
        json_of(filled.get(f"/v1/accounts/{account}/releases", params=query))["items"]
        for account in ("zebras", "ants", "bees")
    ]
    whole = json_of(filled.get(_ALL, params=query))
    assert whole == {"items": list(chain.from_iterable(own)), "next_cursor": None}
    assert len(whole["items"]) == 6
    for limit in (1, 2, 4, 6):
        assert list(chain.from_iterable(pages_of(filled, _ALL, limit=limit, **query))) == whole["items"]
        newest = chain.from_iterable(pages_of(filled, _ALL, limit=limit, order="desc", **query))
        assert list(newest) == whole["items"][::-1]
    assert "plan" not in json_of(filled.get(_ALL, params={"with_plan": "false"}))["items"][0]
    (first, *_) = csv.DictReader(io.StringIO(filled.get(_ALL, headers={"Accept": "text/csv"}).text))
    assert (first["account"], first["name"]) == ("zebras", "Table 0")


def test_a_search_combines_all_that_is_asked_for(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _found(filled, name="TABLE 4") == [("ants", "Table 4")]
    assert _found(filled, registered_by="weekly") == [("bees", "Table 5")]
    assert _found(filled, tag="few") == [("ants", "Table 1"), ("ants", "Table 4")]
    assert _found(filled, tag="few", order="desc") == [("ants", "Table 4"), ("ants", "Table 1")]
    assert _found(filled, tag="few", name="1") == [("ants", "Table 1")]
    assert _found(filled, tag="few", state="reserved") == []
    assert _found(filled, state="reserved") == [("zebras", "Table 3")]
    assert len(_found(filled, state="committed")) == 5
    moments = {one["name"]: one["created_at"] for one in json_of(filled.get(_ALL))["items"]}
    assert _found(filled, since=moments["Table 2"], before=moments["Table 4"]) == [
        ("zebras", "Table 3"),
        ("bees", "Table 2"),
    ]
    over = clock.later(clock.now(), timedelta(hours=2))
    monkeypatch.setattr(clock, "now", lambda: over)
    assert _found(filled, state="expired") == [("zebras", "Table 3")]
    assert _found(filled, state="reserved") == []
    wrong = {"since": "yesterday", "state": "lost", "approved_by": "", "cursor": "MQ", "page": "2", "order": "up"}
    for name, text in wrong.items():
        assert pointers_of(filled.get(_ALL, params={name: text})) == [f"/query/{name}"]


def test_a_limited_key_finds_those_of_its_accounts(filled: Client) -> None:
    ours = make_key(filled, "auditor", "ours", accounts=["bees", "zebras"])
    assert [account for account, _ in _found(filled, ours)] == ["zebras", "zebras", "bees", "bees"]
    assert _found(filled, ours, tag="few") == []
    assert _found(filled, ours, registered_by="weekly") == [("bees", "Table 5")]
    none = make_key(filled, "auditor", "none", accounts=["none"])
    assert _found(filled, none) == []


def test_releases_are_found_by_their_approver(client: Client) -> None:
    open_account(client, approval_above="0.001", approvers={"at_least": 2})
    open_account(client, "other", approval_above="0.001")
    people = [release(client, pure("0.2"), name=name)["id"] for name in ("first", "second")]
    other = release(client, pure("0.2"), "other", name="third")["id"]
    release(client, pure("0.2"), "other", name="fourth")
    second, third = (operators_key(client, "approver", name) for name in ("second", 'th"ird'))
    for at, key in (
        (f"people/releases/{people[0]}", second),
        (f"people/releases/{people[0]}", third),
        (f"people/releases/{people[1]}", third),
        (f"other/releases/{other}", second),
    ):
        json_of(client.post(f"/v1/accounts/{at}/approve", headers=key))
    assert _found(client, approved_by="second") == [("people", "first"), ("other", "third")]
    assert _found(client, approved_by='th"ird') == [("people", "first"), ("people", "second")]
    assert _found(client, approved_by='th"ird', state="proposed") == [("people", "second")]
    assert _found(client, approved_by="first-steward") == []
    listed = client.get("/v1/accounts/people/releases", params={"approved_by": "second"})
    assert [one["name"] for one in json_of(listed)["items"]] == ["first"]
    persons = [(one["registered_by"], one["approved_by"]) for one in json_of(client.get(_ALL))["items"]]
    assert persons == [("first-steward", by) for by in (["second", 'th"ird'], ['th"ird'], ["second"], [])]
    (row, *_) = csv.DictReader(io.StringIO(client.get(_ALL, headers={"Accept": "text/csv"}).text))
    assert (row["registered_by"], row["approved_by"], row["plan_tags"]) == ("first-steward", 'second; th"ird', "")
    family = client.get("/v1/accounts/other/accuracy", params={"approved_by": "second"})
    assert [one["name"] for one in json_of(family)["releases"]] == ["third"]


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_a_page_ends_after_so_many_releases_and_the_list_goes_on(
    filled: Client, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    queries: list[dict[str, str]] = [{}, {"name": "5"}, {"tag": "few"}, {"state": "reserved"}]
    whole = [json_of(filled.get(_ALL, params=query))["items"] for query in queries]
    monkeypatch.setattr(release_search, "MOST_SEARCHED", most)
    for query, expected in zip(queries, whole, strict=True):
        pages = list(pages_of(filled, _ALL, **query))
        assert list(chain.from_iterable(pages)) == expected
        newest = pages_of(filled, _ALL, order="desc", **query)
        assert list(chain.from_iterable(newest)) == expected[::-1]
        assert all(len(page) <= most for page in pages)
    filled.headers.update(make_key(filled, "auditor", "ours", accounts=["ants", "bees"]))
    limited = pages_of(filled, _ALL, name="table")
    assert list(chain.from_iterable(limited)) == [one for one in whole[0] if one["account"] != "zebras"]
