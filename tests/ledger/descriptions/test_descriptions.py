"""Descriptions in the ledger: entries that cannot be, races, and what a lost confirmation leaves."""

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from service.errors import InvalidInput, NotFound
from service.ledger.accounts.accounts import read_account
from service.ledger.descriptions import descriptions
from service.ledger.descriptions.metadata import LARGEST, check_metadata, merged
from service.ledger.installation.signing import Signer
from service.ledger.journal import journal
from service.ledger.journal.chains import BadEntry
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.journal.replay import replay
from service.ledger.releases.releases import read_release
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification.export_reader import BadExport, Reader
from service.ledger.verification.imports import rebuild
from service.ledger.verification.verify import verify
from tests.ledger.charging import ANN, account_of, carry_out, charge, entries_of, open_account
from tests.ledger.ledgers import A, describe, exported


def test_a_patch_is_merged_as_rfc_7396_says() -> None:
    """The examples of its appendix that stay within text and lists of text."""
    examples: list[tuple[Any, Any, Any]] = [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"e": "x"}, {"a": "1", "b": None}, {"e": "x", "a": "1"}),
    ]
    for old, patch, after in examples:
        assert merged(old, patch) == after


@pytest.mark.parametrize("value", [None, [], "x", {"a": 1}, {"a": None}, {"a": ["x", 1]}, {"a": {"b": "c"}}])
def test_what_is_no_metadata_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        check_metadata(value)


def test_an_account_is_at_each_entry_what_was_said_of_it_then(database: Database) -> None:
    open_account(database)
    describe(database, "people", name="first")
    release = charge(database, A)[0].id
    describe(database, "people", release, name="of the release")
    describe(database, "people", name=None, notes="second")
    with database.read() as connection:
        account = read_account(connection, "people")
        found = [replay(connection, account, seq).account.metadata for seq in range(1, 6)]
        assert found == [{}, {"name": "first"}, {"name": "first"}, {"name": "first"}, {"notes": "second"}]
        assert read_release(connection, account.id, release).metadata == {"name": "of the release"}
    entries_of(database)


def test_edits_at_the_same_time_all_count(database: Database) -> None:
    open_account(database)
    fields = [f"field {number}" for number in range(12)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda field: describe(database, "people", **{field: "said"}), fields))
    assert account_of(database).metadata == dict.fromkeys(fields, "said")
    assert len(entries_of(database)) == 13


def test_what_is_refused_leaves_nothing(database: Database) -> None:
    open_account(database)
    with pytest.raises(InvalidInput, match="/metadata"):
        describe(database, "people", name="x" * LARGEST)
    with pytest.raises(NotFound):
        describe(database, "people", "nothing", name="x")
    assert len(entries_of(database)) == 1
    describe(database, "people", name="x" * (LARGEST - len('{"name":""}')))


def test_a_description_of_another_accounts_release_is_found_and_not_imported(
    new_database: Callable[[], Database], signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The description is one that only a faulty server would write."""
    database = new_database()
    open_account(database)
    open_account(database, "others")
    release = charge(database, A, name="others")[0].id
    with database.read() as connection:
        theirs = replace(read_release(connection, account_of(database, "others").id, release), head=BEFORE_FIRST)
    monkeypatch.setattr(descriptions, "read_release", lambda *_: theirs)
    monkeypatch.setattr(descriptions, "state_at", lambda *_: theirs.state)
    carry_out(database, descriptions.describe_release(database, ANN, "people", release, {"name": "n"}))
    with database.read() as connection:
        found = verify(connection, "people").first_bad
        assert found == BadEntry(2, "the description belongs to no release of the account")
        assert verify(connection, "others").valid
    file = exported(database, signer)
    with pytest.raises(BadExport, match="no release of its account"):
        rebuild(new_database(), lambda: io.BytesIO(file), signer.public_key)


@pytest.mark.parametrize(
    "content", [{}, {"metadata": None}, {"metadata": {"name": 1}}, {"metadata": {"name": "x" * LARGEST}}]
)
def test_an_entry_that_says_no_metadata_is_refused_although_it_is_signed(
    database: Database, signer: Signer, content: dict[str, Any]
) -> None:
    open_account(database)
    opened = account_of(database)
    row, head = journal.following(opened.chain, "described", content, actor=journal.Actor("ann"), at=clock.now())
    first = signer.sign("export", {"version": 1, "accounts": [{"account": "people", "seq": 2, "hash": head.hash}]})
    entries = [(entries_of(database)[0].body, opened.head), (str(row["body"]), Head(2, head.hash))]
    lines = [first, *({"entry": body, "hash": head.hash} for body, head in entries)]
    file = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with pytest.raises(BadExport, match="line 3"):
        list(Reader(io.BytesIO(file), signer.public_key).entries())
