"""Canonical JSON, the hash chain, and the triggers that keep entries as they are."""

import hashlib
import json

import pytest
from hypothesis import given, settings, strategies as st
from sqlalchemy import Connection, text

from service.errors import Altered
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.chains import BadEntry, BrokenChain, read_entry
from service.ledger.journal.journal import BEFORE_FIRST, AccountHead, Actor, Head, Kind, append, entries
from service.ledger.storage.database import Database
from tests.ledger.marks import never, write

AT = "2026-01-02T03:04:05.678901Z"


def _account_with_entries(database: Database, count: int, account_id: int = 1, name: str = "a") -> AccountHead:
    def work(connection: Connection) -> Head:
        connection.execute(
            text(
                "INSERT INTO accounts VALUES (:id, :name, 'person', 'add_remove', '', '{}', '{}', '{}', 'open', :at,"
                " 0, :hash, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
            ),
            {"id": account_id, "name": name, "at": AT, "hash": BEFORE_FIRST.hash},
        )
        head = BEFORE_FIRST
        for number in range(count):
            account = AccountHead(account_id, name, head)
            kind: Kind = "committed" if number else "account_opened"
            head = append(connection, account, kind, {"number": str(number)}, actor=Actor("ann"), at=AT)
        return head

    return AccountHead(account_id, name, database.write(work, is_committed=never))


# RFC 8785


def test_names_are_ordered_as_in_the_rfc() -> None:
    """RFC 8785 section 3.2.3: by UTF-16 code units, so that the emoji precedes the Hebrew letter."""
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert canonical(value) == (
        '{"\\r":"Carriage Return","1":"One","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis",'
        '"\u20ac":"Euro Sign","\U0001f600":"Emoji: Grinning Face","\ufb33":"Hebrew Letter Dalet With Dagesh"}'
    )


def test_text_and_literals_are_written_as_in_the_rfc() -> None:
    """RFC 8785 sections 3.2.2 and 3.2.4: its example without the numbers, which are no integers."""
    value = {"string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/", "literals": [None, True, False]}
    expected = (
        "7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72 75 65 2c 66 61 6c 73 65 5d 2c"
        " 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30 30 66 5c 6e 41 27 42 5c 22 5c 5c 5c 5c 5c 22 2f 22 7d"
    )
    assert canonical(value).encode() == bytes.fromhex(expected)


def test_control_characters_have_the_short_or_the_lower_case_escape() -> None:
    """RFC 8785 section 3.2.2.2."""
    assert canonical("\b\t\n\f\r\x00\x1f\x7f\u2028") == '"\\b\\t\\n\\f\\r\\u0000\\u001f\x7f\u2028"'


@pytest.mark.parametrize(
    ("value", "written"),
    # RFC 8785 appendix B has the largest.
    [(0, "0"), (-1, "-1"), (9007199254740992, "9007199254740992"), (-9007199254740992, "-9007199254740992")],
)
def test_integers_are_written_up_to_what_a_double_tells_apart(value: int, written: str) -> None:
    assert canonical(value) == written


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, "\ud800", {"\udfff": 1}])
def test_what_the_rfc_cannot_write_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"2\^53|surrogates"):
        canonical(value)


@pytest.mark.parametrize("value", [0.5, 1.0, float("nan"), {1: "a"}, (1,), b"a", [[{"a": 0.1}]]])
def test_what_is_not_exact_or_not_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="expected"):
        canonical(value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@settings(max_examples=40)
@given(_JSON)
def test_canonical_json_means_the_same_and_is_its_own_canonical_form(value: object) -> None:
    written = canonical(value)
    assert json.loads(written) == value
    assert canonical(json.loads(written)) == written


# The chain


def test_the_hash_is_that_of_the_previous_hash_and_the_entry(database: Database) -> None:
    account = _account_with_entries(database, 2)
    first = (
        '{"account":"a","actor":"ann","content":{"number":"0"},"kind":"account_opened","release":null,"seq":1,'
        f'"time":"{AT}"}}'
    )
    second = first.replace('"0"', '"1"').replace("account_opened", "committed").replace('"seq":1', '"seq":2')
    first_hash = hashlib.sha256(bytes(32) + first.encode()).digest()
    second_hash = hashlib.sha256(first_hash + second.encode()).hexdigest()
    with database.read() as connection:
        found = entries(connection, account.id, 0, 10, until=9)
    assert [(entry.body, entry.hash) for entry in found] == [(first, first_hash.hex()), (second, second_hash)]
    assert account.head == Head(2, second_hash)


def test_entries_are_paged_in_order(database: Database) -> None:
    account = _account_with_entries(database, 7)
    _account_with_entries(database, 3, account_id=2, name="b")
    with database.read() as connection:
        pages = [[entry.seq for entry in entries(connection, account.id, after, 3, until=9)] for after in (0, 3, 6, 7)]
    assert pages == [[1, 2, 3], [4, 5, 6], [7], []]


def _first_bad(database: Database, account: AccountHead) -> BadEntry | None:
    """The first entry that does not follow the one before it."""
    with database.read() as connection:
        found = entries(connection, account.id, 0, account.head.seq, until=9)
    head = BEFORE_FIRST
    for entry in found:
        try:
            read_entry(account.name, head, entry)
        except BrokenChain as broken:
            return BadEntry(head.seq + 1, str(broken))
        head = Head(entry.seq, entry.hash)
    return None


@pytest.mark.parametrize("count", [0, 1, 9])
def test_an_untouched_chain_is_good(database: Database, count: int) -> None:
    assert _first_bad(database, _account_with_entries(database, count)) is None


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ("UPDATE journal SET body = replace(body, '\"4\"', '\"5\"') WHERE seq = 5", BadEntry(5, "the hash")),
        ("UPDATE journal SET hash = upper(hash) WHERE seq = 3", BadEntry(3, "the hash")),
        ("UPDATE journal SET kind = 'drawn' WHERE seq = 6", BadEntry(6, "the entry is filed under")),
        ("DELETE FROM journal WHERE seq = 1", BadEntry(1, "the entry is missing")),
        ("DELETE FROM journal WHERE seq = 4", BadEntry(4, "the entry is missing")),
        ("UPDATE journal SET account_id = 2 WHERE seq = 7", BadEntry(7, "the entry is missing")),
    ],
)
def test_the_first_entry_that_was_tampered_with_is_found(database: Database, change: str, bad: BadEntry) -> None:
    account = _account_with_entries(database, 9)
    _account_with_entries(database, 0, account_id=2, name="b")
    _without_triggers(database)
    write(database, change)
    found = _first_bad(database, account)
    assert found is not None
    assert found.seq == bad.seq
    assert found.reason.startswith(bad.reason)


def test_a_chain_rebuilt_under_another_account_is_found(database: Database) -> None:
    account = _account_with_entries(database, 2)
    assert _first_bad(database, AccountHead(account.id, "b", account.head)) == BadEntry(
        1, "the entry is filed under another account, number, kind or release than it states"
    )


@pytest.mark.parametrize("body", ["", "{", "[]", "1.5", '{"seq": 1}'])
def test_an_entry_that_is_not_canonical_json_is_found(database: Database, body: str) -> None:
    """Even where its hash is right."""
    account = _account_with_entries(database, 1)
    _without_triggers(database)
    right = hashlib.sha256(bytes(32) + body.encode()).hexdigest()
    write(database, f"UPDATE journal SET hash = '{right}', body = '{body}'".replace(":", r"\:"))
    assert _first_bad(database, account) == BadEntry(1, "the entry is not canonical JSON")


def _without_triggers(database: Database) -> None:
    """Run statements without the triggers, as the database's owner can."""
    if database.kind == "postgresql":
        write(database, "ALTER TABLE journal DISABLE TRIGGER ALL")
    else:
        write(database, "DROP TRIGGER journal_no_update")
        write(database, "DROP TRIGGER journal_no_delete")


# Append-only


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE journal SET body = '{}'",
        "UPDATE journal SET body = body WHERE seq = 2",
        "DELETE FROM journal",
        "DELETE FROM journal WHERE seq = 3",
        "TRUNCATE journal CASCADE",  # PostgreSQL's; SQLite has not got it
        "INSERT OR REPLACE INTO journal VALUES (1, 2, 'committed', NULL, '{}', '')",  # SQLite's
        "INSERT INTO journal VALUES (1, 2, 'committed', NULL, '{}', '') ON CONFLICT (account_id, seq)"
        " DO UPDATE SET body = '{}'",
    ],
)
def test_the_database_refuses_to_change_entries(database: Database, change: str) -> None:
    account = _account_with_entries(database, 3)
    with database.read() as connection:
        before = entries(connection, account.id, 0, 10, until=9)
    with pytest.raises((Altered, RuntimeError)):
        write(database, change)
    with database.read() as connection:
        assert entries(connection, account.id, 0, 10, until=9) == before
