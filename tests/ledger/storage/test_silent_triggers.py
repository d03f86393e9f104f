"""A trigger that drops what is written without an error: nothing is answered that the journal does not hold."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection

from service.errors import Altered
from service.ledger.installation import installation_journal
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from tests.ledger.charging import account_of, charge, entries_of, open_account
from tests.ledger.writing import run

_PLAN = {"type": "gaussian", "rho": "1/8"}
_FUNCTION = "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"


def _silence(database: Database, event: str, table: str) -> Callable[[], None]:
    """Add a trigger; the way to take it away again."""
    on = ""
    if database.kind == "sqlite":
        run(database, f"CREATE TRIGGER aaa BEFORE {event} ON {table} BEGIN SELECT RAISE(IGNORE); END")
    else:
        run(database, _FUNCTION)
        run(database, f"CREATE TRIGGER aaa BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION nothing()")
        on = f" ON {table}"
    return lambda: run(database, f"DROP TRIGGER aaa{on}")


@pytest.mark.parametrize(("event", "table"), [("INSERT", "journal"), ("UPDATE", "accounts")])
@pytest.mark.parametrize("plans", [1, 2])
def test_a_charge_that_the_database_drops_is_not_answered(
    database: Database, event: str, table: str, plans: int
) -> None:
    open_account(database, "agency")
    open_account(database, parent="agency")
    before = account_of(database)
    speak = _silence(database, event, table)
    for _ in range(2):
        with pytest.raises(Altered) as refused:
            charge(database, *[_PLAN] * plans)
        assert "nothing was committed" in str(refused.value.for_operator)
    speak()
    assert account_of(database) == before
    charge(database, *[_PLAN] * plans)
    assert len(entries_of(database)) == 1 + plans


def test_an_entry_of_the_installation_that_the_database_drops_is_an_error(database: Database, secret: Secret) -> None:
    def append(connection: Connection) -> None:
        installation_journal.append(connection, secret, "key_made", {}, actor=None, at=clock.now())

    speak = _silence(database, "INSERT", "installation_journal")
    with pytest.raises(Altered):
        database.write(append, is_committed=lambda *_: False)
    speak()
    database.write(append, is_committed=lambda *_: False)
    with database.read() as connection:
        assert installation_journal.head(connection).seq == 1
