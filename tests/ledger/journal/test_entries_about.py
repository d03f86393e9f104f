"""The entries about a release are those whose texts name it, however much of the journal was walked before."""

import random
from typing import Any, cast

import pytest
from sqlalchemy import text

from service.errors import Altered
from service.ledger.accounts.accounts import read_account
from service.ledger.journal.entries_about import entries_about
from service.ledger.journal.journal import Kind
from service.ledger.storage import walked_journals
from service.ledger.storage.database import Database
from service.ledger.storage.walked_journals import WalkedJournals
from tests.ledger.charging import charge, commit, draw, entries_of, open_account, release_of, reserve, void
from tests.ledger.writing import unprotected

_A: dict[str, Any] = {"type": "gaussian", "name": "a", "rho": "1/1000000"}
_KINDS = cast("tuple[Kind, ...]", ("committed", "voided", "drawn", "repriced"))


def _found(database: Database, release: str) -> dict[Kind, list[int]]:
    with database.read() as connection:
        account = read_account(connection, "people").chain
        return entries_about(connection, account, release, release_of(database, release).head, _KINDS)


def _stored(database: Database, release: str) -> dict[Kind, list[int]]:
    first = release_of(database, release).head.seq
    about = [entry for entry in entries_of(database) if entry.release_id == release and entry.seq > first]
    return {kind: [entry.seq for entry in about if entry.kind == kind] for kind in _KINDS}


def _write_some(database: Database, chosen: random.Random, releases: list[str]) -> None:
    held = reserve(database, _A, _A)
    releases += [*held, charge(database, _A)[0].id]
    commit(database, held[0])
    if chosen.random() < 0.5:
        void(database, held[1], attestation="nothing was published")
    else:
        commit(database, held[1])
    draw(database, held[0], _A)


@pytest.mark.parametrize("most", [10**6, 30, 0])
def test_the_entries_found_are_those_that_are_stored(
    database: Database, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(walked_journals, "_MOST", most)
    chosen, releases = random.Random(20261126), list[str]()
    open_account(database)
    for _ in range(6):
        _write_some(database, chosen, releases)
        for release in chosen.sample(releases, 2):
            assert _found(database, release) == _stored(database, release)
    for release in releases:
        assert _found(database, release) == _stored(database, release)
    kept = database.walked.get("people")
    assert (0 if kept is None else len(kept.digests)) <= most
    assert kept is not None or most < 50


def test_a_transaction_of_an_earlier_moment_finds_what_it_sees(database: Database) -> None:
    open_account(database)
    (release,) = reserve(database, _A)
    head = release_of(database, release).head
    with database.read() as connection:
        before = read_account(connection, "people").chain
        commit(database, release)
        assert _found(database, release)["committed"] == [3]
        assert entries_about(connection, before, release, head, _KINDS)["committed"] == []
    kept = database.walked.get("people")
    assert kept is not None
    assert kept.last.seq == 3
    assert _found(database, release)["committed"] == [3]


def test_texts_that_do_not_lead_to_the_head_are_refused(database: Database) -> None:
    open_account(database)
    releases = [charge(database, _A)[0].id for _ in range(5)]
    for changed, read in ((4, releases[0]), (4, releases[1]), (3, releases[0])):
        database.walked = WalkedJournals()
        _found(database, releases[3])  # the part after the changed text is known
        with database.read() as connection:
            query = text("SELECT body FROM journal WHERE seq = :seq")
            body = connection.execute(query, {"seq": changed}).scalar_one()
        statement = "UPDATE journal SET body = :body WHERE seq = :seq"
        unprotected(database, "journal", statement, body=body.replace("committed", "proposed"), seq=changed)
        with pytest.raises(Altered, match="not as the service wrote it"):
            _found(database, read)
        unprotected(database, "journal", statement, body=body, seq=changed)
        assert _found(database, read) == {kind: [] for kind in _KINDS}
