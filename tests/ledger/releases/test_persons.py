"""The persons of listed releases, where the database was changed."""

import pytest

from service.errors import Altered
from service.ledger.accounts.accounts import read_account
from service.ledger.releases.persons import Persons, persons_of
from service.ledger.releases.releases import read_some
from service.ledger.storage.database import Database
from tests.ledger.charging import approve, charge, open_account
from tests.ledger.writing import unprotected

_MECHANISM = {"type": "geometric", "name": "a", "epsilon": "0.01"}


def _persons(database: Database, *releases: str) -> dict[str, Persons]:
    with database.read() as connection:
        account = read_account(connection, "people")
        return persons_of(connection, account, read_some(connection, account.id, releases))


def test_persons_are_those_of_the_journal(database: Database) -> None:
    open_account(database, approval_above="0")
    first, second = (charge(database, _MECHANISM)[0].id for _ in range(2))
    approve(database, first)
    assert _persons(database, first, second) == {first: Persons("ann", ("bob",)), second: Persons("ann", ())}
    assert _persons(database) == {}


@pytest.mark.parametrize(("seq", "name"), [(2, "ann"), (3, "bob")])
def test_a_changed_entry_is_refused(database: Database, seq: int, name: str) -> None:
    open_account(database, approval_above="0")
    release = charge(database, _MECHANISM)[0].id
    approve(database, release)
    change = f"UPDATE journal SET body = replace(body, '\"{name}\"', '\"eve\"') WHERE seq = {seq}"
    unprotected(database, "journal", change)
    with pytest.raises(Altered):
        _persons(database, release)


def test_an_approval_that_is_no_part_of_the_chain_is_refused(database: Database) -> None:
    open_account(database, approval_above="0")
    release, other = (charge(database, _MECHANISM)[0].id for _ in range(2))
    approve(database, release)
    unprotected(database, "journal", f"UPDATE journal SET release_id = '{other}' WHERE seq = 4")
    with pytest.raises(Altered):
        _persons(database, release, other)
