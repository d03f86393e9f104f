"""Cursors of lists of releases over all accounts: the account by its name, and the number of the release's entry.

The account's number in the database would tell a key that is limited to few accounts how many there are.
"""

from sqlalchemy import Connection, select

from service.api.http.paging import not_a_cursor, read_cursor, read_number
from service.ledger.storage.tables import Account

_SEPARATOR = "/"  # no account's name has it


def write_place(connection: Connection, place: tuple[int, int]) -> str:
    """Return the text of a place, for ``write_cursor``.

    Args:
        place: the number of an account, and that of an entry of it.
    """
    account, seq = place
    name = connection.execute(select(Account.name).where(Account.id == account)).scalar_one()
    return f"{name}{_SEPARATOR}{seq}"


def read_place(connection: Connection, cursor: str | None, only: frozenset[str] | None) -> tuple[int, int]:
    """Return the place that the previous page ended with; zeros at the start.

    Args:
        only: the names of the accounts that the key reaches; None: all. It learns nothing of others.

    Raises:
        InvalidInput: it is not such a cursor.
    """
    if cursor is None:
        return 0, 0
    name, _, text = read_cursor(cursor).partition(_SEPARATOR)
    seq = read_number(text)
    if only is not None and name not in only:
        raise not_a_cursor()
    account = connection.execute(select(Account.id).where(Account.name == name)).scalar()
    if account is None:
        raise not_a_cursor()
    return account, seq
