"""The list of a release's events, where the database was changed."""

import pytest

from service.errors import Altered
from service.ledger.accounts.accounts import read_account
from service.ledger.releases.release_events import list_events
from service.ledger.storage.database import Database
from tests.ledger.charging import charge, draw, open_account
from tests.ledger.writing import unprotected

_MECHANISM = {"type": "geometric", "name": "a", "epsilon": "0.01", "partitions": 3}


def _events(database: Database, release: str, after: int, limit: int) -> list[int]:
    with database.read() as connection:
        account = read_account(connection, "people")
        found = list_events(connection, account, release, after, limit, lambda _: None)
    return [event.entry.seq for event in found]


@pytest.mark.parametrize(("after", "limit"), [(0, 9), (4, 9), (4, 1), (0, 4)])
def test_an_event_whose_entry_is_gone_is_missed(database: Database, after: int, limit: int) -> None:
    open_account(database)
    release = charge(database, _MECHANISM)[0].id
    for partition in "123":
        draw(database, release, _MECHANISM, partition=partition)
    assert _events(database, release, 0, 9) == [2, 3, 4, 5]
    unprotected(database, "journal", "DELETE FROM journal WHERE seq = 5")
    with pytest.raises(Altered):
        _events(database, release, after, limit)
