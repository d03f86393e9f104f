"""Lists: a page is bounded however large its items are, and so is the cache of their figures."""

from datetime import date, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from service.ledger.journal import journal
from service.ledger.storage import paging
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from tests.api.calls import (
    Client,
    application,
    client_of,
    json_of,
    make_key,
    open_account,
    pages_of,
    pointers_of,
    problem_of,
    pure,
    release,
)
from tests.ledger.charging import account_of

_TAGS, _NODES = 64, 90


@pytest.fixture
def helper_processes() -> int:
    return 2


def _large(of: int) -> dict[str, Any]:
    """Return a plan of somewhat more than half of the characters of a page."""
    parts = [
        {
            "type": "declared",
            "epsilon": "0",
            "reference": "r",
            "tags": [f"{of}-{k}-{j}-".ljust(200, "x") for j in range(_TAGS)],
        }
        for k in range(_NODES)
    ]
    return {"type": "sequence", "parts": parts}


def _unlike(parts: int) -> dict[str, Any]:
    """Return a plan of many subplans whose guarantee has few figures."""
    references = (f"{k}-".ljust(200, "x") for k in range(parts))
    return {"type": "sequence", "parts": [{"type": "declared", "epsilon": "0", "reference": one} for one in references]}


def _pages(client: TestClient, path: str) -> list[list[Any]]:
    return list(pages_of(client, f"/v1/accounts/people/{path}", limit=100))


def test_a_page_of_large_items_ends_early_and_the_list_is_whole(client: TestClient) -> None:
    open_account(client)
    made = [release(client, _large(k))["id"] for k in range(3)]
    made.append(release(client, pure("0.1"))["id"])
    pages = _pages(client, "releases")
    assert [[one["id"] for one in page] for page in pages] == [made[:2], made[2:]]
    pages = _pages(client, "journal")
    assert [[one["entry"]["release"] for one in page] for page in pages] == [[None, *made[:2]], made[2:]]
    hashes = [one["hash"] for page in pages for one in page]
    assert [one["previous"] for page in pages for one in page][1:] == hashes[:-1]


def test_sizes_are_known_before_anything_is_read(database: Database, alone: TestClient) -> None:
    class Enough(Exception):
        pass

    def refuse(size: int) -> None:
        assert size >= paging.CHARACTERS
        raise Enough

    open_account(alone)
    for k in range(2):
        release(alone, _large(k))
    account = account_of(database)
    with database.read() as connection:
        read: list[int] = []
        assert len(journal.entries(connection, account.id, 0, 1, read.append, until=3)) == 1
        assert read[0] < 10_000
        with pytest.raises(Enough):
            journal.entries(connection, account.id, 1, 100, refuse, until=3)
        assert journal.entries(connection, account.id, 3, 100, until=3) == []


@pytest.mark.parametrize("helpers", [0, 1])
def test_a_large_answer_takes_room_and_is_refused_where_there_is_none(
    database: Database, secret: Secret, helpers: int
) -> None:
    room = {"max_arrow_bytes": 2**20, "max_arrow_bytes_at_once": 2**21}
    with client_of(application(database, secret, helper_processes=helpers, **room)) as client:
        open_account(client)
        release(client, pure("0.1"))
        assert len(_pages(client, "releases")) == 1
        release(client, _large(0))
        for path in ("releases", "journal"):
            problem_of(client.get(f"/v1/accounts/people/{path}"), "too_large")
        assert len(json_of(client.get("/v1/accounts/people/releases?limit=1"))["items"]) == 1


def test_keys_with_many_accounts_are_listed_a_few_at_a_time(alone: TestClient) -> None:
    many = [f"{k:0>60}" for k in range(1000)]
    for k in range(40):
        make_key(alone, "auditor", f"somebody-{k}", accounts=many)
    first = json_of(alone.get("/v1/keys?limit=1000"))
    second = json_of(alone.get(f"/v1/keys?limit=1000&cursor={first['next_cursor']}"))
    assert (len(first["items"]) + len(second["items"]), second["next_cursor"]) == (41, None)


def test_lists_of_many_unlike_budgets_are_answered_by_a_helper(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule by which an (epsilon, delta) budget converts takes milliseconds of the processor for each delta."""
    caps = [
        {"tag": f"t{number}", "budget": {"definition": "approximate", "epsilon": "1", "delta": f"{number}e-9"}}
        for number in range(1, 18)
    ]
    whole = {"definition": "approximate", "epsilon": "1", "delta": "1e-6"}
    for name in ("first", "other"):
        open_account(client, name, whole, caps=caps)
    listed = json_of(client.get("/v1/accounts"))["items"]

    def not_here(*_: object) -> None:
        raise AssertionError("the serving process computes figures of a long list")

    monkeypatch.setattr("service.api.routes.accounts.in_list", not_here)
    assert json_of(client.get("/v1/accounts"))["items"] == listed
    assert [len(one["caps"]) for one in listed] == [17, 17]


def test_lists_of_many_waiting_changes_are_answered_by_a_helper(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shows whose approval it still waits for, by the rules of the accounts above it."""
    for name in ("first", "other"):
        open_account(client, name, approval_above="0.1")
        json_of(client.patch(f"/v1/accounts/{name}", json={"budget": {"definition": "zcdp", "rho": "9"}}), 202)
    listed = json_of(client.get("/v1/accounts"))["items"]
    asked: list[object] = []
    monkeypatch.setattr("service.api.routes.accounts.approval_of_change", lambda *_: asked.append(_))
    client.get("/v1/accounts")
    assert len(asked) == 2
    monkeypatch.setattr("service.api.routes.accounts._MOST_WAITING", 1)
    assert json_of(client.get("/v1/accounts"))["items"] == listed
    assert len(asked) == 2


def test_questions_about_a_balance_keep_a_bounded_number_of_rows(client: TestClient, database: Database) -> None:
    open_account(client)
    for round_ in range(2):
        release(client, _unlike(300 + round_))
        answers = [json_of(client.get(f"/v1/accounts/people/balance?delta=1e-{k}")) for k in range(4, 24)]
        assert len({str(answer["spent"]) for answer in answers}) == 20
        assert 1 <= len(_kept(database)) <= 16
    asked = json_of(client.get("/v1/accounts/people/balance?delta=1e-23"))
    assert asked == answers[-1]


def test_large_figures_are_not_kept(client: TestClient, database: Database) -> None:
    open_account(client)
    release(client, _large(0))
    whole = json_of(client.get("/v1/accounts/people/balance"))
    assert len(whole["tags"]) == _TAGS * _NODES
    assert json_of(client.get("/v1/accounts/people/balance")) == whole
    assert _kept(database) == []


def test_a_balance_shows_as_many_tags_as_a_page_holds(alone: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(alone)
    tags = [f"{k}".ljust(200, "x") for k in range(5)]
    release(alone, pure("0.1", tags=tags))
    assert json_of(alone.get("/v1/accounts/people/balance"))["tags"] == tags
    monkeypatch.setattr(paging, "CHARACTERS", 500)
    whole = json_of(alone.get("/v1/accounts/people/balance"))
    assert whole["tags"] == tags[:3]
    assert json_of(alone.get("/v1/accounts/people/balance", params={"tag": tags[4]}))["spent"] == whole["spent"]


def _kept(database: Database) -> list[str]:
    with database.read() as connection:
        rows = connection.exec_driver_sql("SELECT subject FROM known_costs WHERE subject LIKE 'balance %%'")
        return list(rows.scalars())


def test_a_journal_ends_with_its_accounts_head(database: Database, alone: TestClient) -> None:
    open_account(alone)
    row = "SELECT account_id, 9, kind, release_id, body, hash FROM journal"
    forged = text(f"INSERT INTO journal (account_id, seq, kind, release_id, body, hash) {row}")
    database.write(lambda connection: connection.execute(forged), is_committed=lambda *_: False)
    page = json_of(alone.get("/v1/accounts/people/journal"))
    assert [item["entry"]["seq"] for item in page["items"]] == [1]
    assert page["next_cursor"] is None


def _names(client: Client, **query: str) -> list[str]:
    return [item["name"] for item in json_of(client.get("/v1/accounts/people/releases", params=query))["items"]]


def test_releases_are_found_by_name_principal_and_moment(client: Client) -> None:
    open_account(client)
    weekly = make_key(client, "pipeline", "weekly")
    for name, headers in (("Births 2026", weekly), ("Deaths_2026", {}), ("births 100 %", {}), ("Ärzte", weekly)):
        body = {"name": name, "plan": pure("0.01")}
        json_of(client.post("/v1/accounts/people/releases", json=body, headers=headers), 201)
    moments = [item["created_at"] for item in json_of(client.get("/v1/accounts/people/releases"))["items"]]
    assert _names(client, name="BIRTHS") == ["Births 2026", "births 100 %"]
    assert _names(client, name="s_2") == ["Deaths_2026"]
    assert _names(client, name="0 %") == ["births 100 %"]
    assert (_names(client, name="Ä"), _names(client, name="ä")) == (["Ärzte"], [])  # ASCII alone folds
    assert _names(client, registered_by="weekly") == ["Births 2026", "Ärzte"]
    assert _names(client, registered_by="week") == []
    assert _names(client, since=moments[1], before=moments[3]) == ["Deaths_2026", "births 100 %"]
    assert _names(client, registered_by="weekly", name="r", since=moments[1]) == ["Ärzte"]
    assert _names(client, name="births", state="committed") == ["Births 2026", "births 100 %"]
    pages = pages_of(client, "/v1/accounts/people/releases", name="births", limit=1)
    assert [[item["name"] for item in page] for page in pages if page] == [["Births 2026"], ["births 100 %"]]


@pytest.mark.parametrize("state", [None, "committed", "reserved"])
@pytest.mark.parametrize("tag", [None, "t"])
def test_releases_are_listed_from_the_newest(client: Client, state: str | None, tag: str | None) -> None:
    open_account(client)
    held = {} if state != "reserved" else {"reserve_for": "P1D"}
    for name in ("a", "b", "c", "d", "e"):
        release(client, pure("0.01"), name=name, tags=["t"], **held)
    query = {name: value for name, value in (("state", state), ("tag", tag)) if value}
    for order, names in (("asc", "abcde"), ("desc", "edcba")):
        pages = pages_of(client, "/v1/accounts/people/releases", limit=2, order=order, **query)
        assert [item["name"] for page in pages for item in page] == list(names)
    assert pointers_of(client.get("/v1/accounts/people/releases?order=down")) == ["/query/order"]


def test_a_day_is_the_moment_at_which_it_begins(client: Client) -> None:
    open_account(client)
    release(client, pure("0.01"), name="r")
    today = date.fromisoformat(json_of(client.get("/v1/accounts/people/releases"))["items"][0]["created_at"][:10])
    tomorrow = today + timedelta(days=1)
    assert _names(client, since=str(today), before=str(tomorrow)) == ["r"]
    assert _names(client, since=str(tomorrow)) == _names(client, before=str(today)) == []


def test_a_sign_that_became_a_blank_is_explained(shared_client: Client) -> None:
    answer = shared_client.get("/v1/accounts/people/releases?since=2026-11-28T02:00:00+01:00")
    (fault,) = problem_of(answer, "validation")["errors"]
    assert fault["detail"] == "expected a time with its offset: in an address, write %2B for the sign +, or use Z"
    problem_of(shared_client.get("/v1/accounts/nobody/releases?since=2026-11-28T02:00:00%2B01:00"), "not_found")


def test_a_principal_is_found_whatever_its_name_has(client: Client) -> None:
    open_account(client)
    for name in ('a"b', "a\\b", "a%", "é,/", "a"):
        body = {"name": f"by {name}", "plan": pure("0.01")}
        json_of(client.post("/v1/accounts/people/releases", json=body, headers=make_key(client, "pipeline", name)), 201)
    for name in ('a"b', "a\\b", "a%", "é,/", "a"):
        assert _names(client, registered_by=name) == [f"by {name}"]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("name", ""),
        ("name", "x" * 201),
        ("name", "a\0"),
        ("registered_by", ""),
        ("since", "yesterday"),
        ("since", "2026-02-30"),
        ("since", "2026-1-1"),
        ("since", "2026-01-01T00:00:00"),
        ("before", "1767225600"),
        ("before", "0001-01-01T00:00:00+14:00"),
        ("before", "NaN"),
    ],
)
def test_a_search_that_cannot_be_is_refused(shared_client: Client, parameter: str, value: str) -> None:
    answer = shared_client.get("/v1/accounts/people/releases", params={parameter: value})
    assert pointers_of(answer) == [f"/query/{parameter}"]
