"""Verification: a sound ledger is valid, and whatever is changed in it is found, in every column of every table."""

import pytest
from sqlalchemy import text

from service.ledger import journal
from service.ledger.database import Database
from service.ledger.journal import BadEntry
from service.ledger.tables import Base
from service.ledger.verify import Verdict, verify
from tests.ledger.charging import entries_of
from tests.ledger.ledgers import NAMES, Clock, everything

_NOT_OF_AN_ACCOUNT = {"installation", "api_keys", "stored_answers"}  # nothing that a journal says
_TABLES = [table for table in Base.metadata.sorted_tables if table.name not in _NOT_OF_AN_ACCOUNT]
_COLUMNS = [(table.name, column.name) for table in _TABLES for column in table.columns]


def _verdicts(database: Database) -> dict[str, Verdict]:
    with database.read() as connection:
        names = connection.execute(text("SELECT name FROM accounts")).scalars().all()
        return {name: verify(connection, name) for name in names}


def _first_bad(database: Database) -> dict[str, BadEntry]:
    return {name: verdict.first_bad for name, verdict in _verdicts(database).items() if verdict.first_bad}


def test_a_ledger_with_everything_in_it_is_valid(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(database, Clock(monkeypatch))
    with database.read() as connection:
        for table in _TABLES:
            assert connection.execute(text(f"SELECT count(*) FROM {table.name}")).scalar_one() > 0, table.name
        kinds = set(connection.execute(text("SELECT kind FROM journal")).scalars())
    assert kinds == set(journal.Kind.__args__) - {"repriced"}  # type: ignore[attr-defined]
    assert _verdicts(database) == {name: Verdict(len(entries_of(database, name))) for name in NAMES}
