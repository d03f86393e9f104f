"""The binding of a database to its secret, and the statement that no older version's rows are left.

Tokens, request digests and seals depend on the secret. A database with a second secret would hold tokens that cannot be
derived again, and would take replays for new requests. So a second secret is refused.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, func, insert, select

from service.errors import StartupRefused
from service.ledger.installation import installation_journal
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Installation, OlderRows

SEALED_ROWS = ("answers", "jobs", "accounts", "releases", "holds", "spending", "draws", "partitions")
"""Rows that an older version wrote without seals."""
ONLY_ROW = 1
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def check_secret(database: Database, secret: Secret, *, bind_new: bool = True) -> Secret:
    """Bind this open database to the secret with the ledger's present version.

    Args:
        bind_new: False leaves a new database unchanged.

    Returns:
        The secret with that version.

    Raises:
        StartupRefused, Unavailable: as ``require_own_secret``.
    """
    require_own_secret(database, secret, bind_new=bind_new)
    with database.read() as connection:
        database.secret = replace(secret, version=installation_journal.ledger_version(connection, secret))
    return database.secret


def require_own_secret(database: Database, secret: Secret, *, bind_new: bool = True) -> None:
    """Refuse a database that was set up with another secret; a new one is set up with this secret.

    Args:
        bind_new: False leaves a new database unchanged.

    Raises:
        StartupRefused: the database belongs to another secret.
        Unavailable: the database does not answer.
    """
    mine = secret.fingerprint()

    def bind(connection: Connection) -> str:
        known = _known_fingerprint(connection)
        if known is None:
            at = clock.now()
            row = {"id": ONLY_ROW, "secret_fingerprint": mine, "created_at": at}
            connection.execute(insert(Installation).values(row))
            note_nothing_to_adopt(connection, secret, at)
        return mine if known is None else known

    if bind_new:
        bound = database.write(bind, is_committed=lambda connection, _: _known_fingerprint(connection) == mine)
    else:
        with database.read() as connection:
            known = _known_fingerprint(connection)
            bound = mine if known is None else known
    if bound != mine:  # need not take constant time: the fingerprint is no secret
        expected = bound[:8] if _FINGERPRINT.fullmatch(str(bound)) else "what is no fingerprint"
        with database.read() as connection:
            rows = connection.execute(select(func.count()).select_from(Installation)).scalar_one()
        fault = "the secret file is not the one that this database was set up with"
        if rows > 1:
            fault = (
                f"the table installation has {rows} rows, and the service writes one: find out who added rows, and"
                " delete those that have another fingerprint than the installation's secret file"
            )
        raise StartupRefused(f"{fault} (its fingerprint begins {mine[:8]}, the database expects {expected})")


def note_nothing_to_adopt(connection: Connection, secret: Secret, at: str) -> None:
    """Record, once, that no older version left rows here: from now on rows without a seal are refused.

    Raises:
        BrokenChain: the installation's journal is not sound.
    """
    sealed = sealed_rows(installation_journal.read(connection, secret))
    rest: dict[str, object] = {of: 0 for of in SEALED_ROWS if of not in sealed}
    if rest:
        installation_journal.append(connection, secret, "rows_sealed", rest, actor=None, at=at)


def waits_for_adoption(connection: Connection, secret: Secret) -> bool:
    """Return whether an older version left rows without seals which no server has sealed yet.

    Raises:
        BrokenChain: the installation's journal is not sound.
    """
    sealed = sealed_rows(installation_journal.read(connection, secret))
    return bool(older_tables(connection)) and not sealed.issuperset(SEALED_ROWS)


def sealed_rows(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the kinds of rows that were sealed, or found to have no older rows, as entries of the journal say."""
    return {of for entry in entries if entry["kind"] == "rows_sealed" for of in entry["content"]}


def older_tables(connection: Connection) -> frozenset[str]:
    """Return the tables that had rows without seals, of an older version, when a migration looked for them."""
    return frozenset(connection.execute(select(OlderRows.table_name)).scalars())


def is_bound(database: Database) -> bool:
    """Return whether the database was set up with a secret.

    Raises:
        Unavailable: the database does not answer.
    """
    with database.read() as connection:
        return _known_fingerprint(connection) is not None


def _known_fingerprint(connection: Connection) -> str | None:
    """Return the fingerprint in the table's first row, whatever its id, or None: a database with a row is not new."""
    return connection.execute(select(Installation.secret_fingerprint).order_by(Installation.id).limit(1)).scalar()
