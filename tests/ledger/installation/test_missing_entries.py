"""Entries of the high-water mark that a ledger lacks."""

from typing import Any

from service.ledger.installation.high_water import second_version
from service.ledger.installation.missing_entries import last_entries, lost_entries, missing_entries, present_heads
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import NewEntry
from tests.ledger.charging import SECRET, account_of, charge, open_account


def test_entries_that_a_ledger_lacks_are_found(database: Database) -> None:
    open_account(database)
    open_account(database, "places")
    charge(database, {"type": "gaussian", "rho": "1/8"})
    first = account_of(database).head
    charge(database, {"type": "gaussian", "rho": "1/8"})
    with database.read() as connection:
        heads, altered = present_heads(connection, SECRET, last_entries(connection), {})
        assert altered == []
        assert heads == {
            "": BEFORE_FIRST,
            "people": account_of(database).head,
            "places": account_of(database, "places").head,
        }
        assert present_heads(connection, SECRET, last_entries(connection, ["people"]), {}).sound.keys() == {
            "",
            "people",
        }
        assert missing_entries(connection, heads, last_entries(connection)) == []
        assert missing_entries(connection, heads | {"people": first}, last_entries(connection)) == [], (
            "a ledger that went on is none"
        )
        cases = {
            "people": (Head(4, "a" * 64), "the journal of 'people' ends with entry 3 and had 4"),
            "places": (Head(1, "a" * 64), "the journal of 'places' does not continue from entry 1 that it had"),
            "nobody": (Head(1, "a" * 64), "the journal of 'nobody' ends with entry 0 and had 1"),
            "": (Head(1, "a" * 64), "the installation's journal ends with entry 0 and had 1"),
        }
        for name, (head, said) in cases.items():
            (missing,) = missing_entries(connection, heads | {name: head}, last_entries(connection))
            assert str(missing) == said


def test_a_second_version_is_missing_whatever_an_account_is_called(database: Database) -> None:
    """The attack: on SQLite a row has the name under which the mark holds another version of a journal."""
    open_account(database)
    head, name = account_of(database).head, second_version("people")
    with database.read() as connection:
        (own,) = last_entries(connection, ["people"])
        other: Any = (own[0], name, head.seq, head.hash, head.hash)
        (missing,) = missing_entries(connection, {"people": head, name: head}, [own, other])
    assert missing.journal == name


def test_more_journals_than_one_statement_takes(database: Database) -> None:
    heads = {f"account {number}": Head(1, "a" * 64) for number in range(1100)}
    open_account(database)
    with database.read() as connection:
        own = present_heads(connection, SECRET, last_entries(connection), {}).sound
        assert len(missing_entries(connection, heads | own, last_entries(connection))) == 1100
        account = account_of(database)
        made = [NewEntry(account.id, seq, account.head.hash) for seq in range(1, 1100)]
        assert [one.marked.seq for one in lost_entries(connection, made)] == list(range(2, 1100))
