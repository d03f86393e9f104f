"""Adoption of an older version's rows: they are sealed once, at the first start of this version.

Only keys whose tokens the service derived itself, and the operator's key, are adopted; a key that an attacker put into
the database is neither. The rights of a key cannot be checked after the fact, so each adopted key is reported for
review. Afterwards rows without a seal are refused. The adoption is an entry of the installation's journal, which only
the holder of the secret can write.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog
from sqlalchemy import Connection

from service.ledger import jobs
from service.ledger.access.key_events import Known, keys_in
from service.ledger.access.key_records import FIRST_PRINCIPAL, KeyRecord
from service.ledger.access.key_rows import journalled_values, seal_key, token_of, unsealed_keys
from service.ledger.access.keys import unsound
from service.ledger.accounts import account_rows
from service.ledger.draws import draw_rows, partitions
from service.ledger.installation import installation_journal
from service.ledger.installation.binding import older_tables, sealed_rows
from service.ledger.installation.installation_journal import lock_installation
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.storage import clock, idempotency
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret

_log = structlog.get_logger("service.adoption")
_AT_ONCE, _MANY = 50, 500  # rows of a transaction; answers may have megabytes

P = TypeVar("P")


def adopt(database: Database, secret: Secret, bootstrap: str | None, *, marked: Head = BEFORE_FIRST) -> None:
    """Seal the rows that are older than seals, if this was not done before.

    Args:
        bootstrap: the operator's token; None where the server was started without one.
        marked: an entry that the installation's journal is known to have. If there is one, and the journal does not say
            that a server sealed rows, then no rows of an older version are left to be sealed, whatever the database
            says. An operator may state otherwise when acknowledging a restored copy.

    Raises:
        StartupRefused: the installation's journal is not sound, so that earlier adoptions are unknown.
        Unavailable: the database does not answer.
    """
    with database.read() as connection:
        known, sealed, reopened = _told_by_journal(connection, secret, marked)
        waiting, older = unsealed_keys(connection), older_tables(connection)
    begun = marked != BEFORE_FIRST and "answers" not in sealed and not reopened
    adopted: list[KeyRecord] = []
    noted = (_token_noted(secret, known, key, bootstrap) for key in waiting)
    if waiting and ("answers" not in sealed or any(token is not None for token in noted)):
        adopted = database.write(
            lambda connection: _adopt_keys(connection, secret, bootstrap, begun=begun), is_committed=lambda *_: False
        )
    for record, _ in waiting:
        _tell(record, adopted=any(record.id == other.id for other in adopted))
    _seal_rows(database, secret, sealed, frozenset() if begun else older)


def _told_by_journal(
    connection: Connection, secret: Secret, marked: Head = BEFORE_FIRST
) -> tuple[Known, set[str], bool]:
    """Read the installation's journal; each entry is checked.

    Returns:
        The keys in it, the kinds of rows that were sealed, and whether an operator stated that rows of a restored copy
            are to be sealed.

    Raises:
        StartupRefused: it is not sound, or ends before the entry that is marked.
    """
    try:
        entries = list(installation_journal.read(connection, secret))
        _require_reached(entries, marked)
        reopened = any(said["kind"] == "mark_acknowledged" and said["content"].get("adopt") is True for said in entries)
        return keys_in(entries), sealed_rows(entries), reopened
    except BrokenChain as broken:
        raise unsound(broken) from None


def _require_reached(entries: Sequence[object], marked: Head) -> None:
    """Require that all entries up to a marked one were read.

    Raises:
        BrokenChain: some were not, for example where a policy of the database hides them.
    """
    if len(entries) < marked.seq:
        raise BrokenChain(f"entry {len(entries) + 1}: the entry is missing")


def _adopt_keys(connection: Connection, secret: Secret, bootstrap: str | None, *, begun: bool) -> list[KeyRecord]:
    """Adopt keys without a seal, and return them.

    Until rows were sealed, these are all keys that an older version left, or that are recorded as left. Afterwards it
    is the operator's key alone, if it is as recorded: other keys without a seal may come from an attacker.
    """
    lock_installation(connection)
    (known, sealed, _), at = _told_by_journal(connection, secret), clock.now()
    open_to_adoption = "answers" not in sealed and "api_keys" in older_tables(connection)
    adopted: list[KeyRecord] = []
    for key in unsealed_keys(connection):
        record, stored = key
        first = open_to_adoption and record.id not in known
        token = _token(secret, record, stored, bootstrap) if first and not begun else None
        token = token or _token_noted(secret, known, key, bootstrap)
        if token is not None:
            seal_key(connection, secret, record.id, token)
            installation_journal.append(connection, secret, "key_adopted", journalled_values(record), actor=None, at=at)
            adopted.append(record)
        elif first:
            installation_journal.append(connection, secret, "key_left", journalled_values(record), actor=None, at=at)
    return adopted


def _token_noted(secret: Secret, known: Known, key: tuple[KeyRecord, str], bootstrap: str | None) -> str | None:
    """Return the operator's token for the operator's key as the journal has it; None for any other key."""
    record, stored = key
    noted = (
        bootstrap is not None
        and record.id in known
        and journalled_values(known[record.id]) == journalled_values(record)
    )
    return bootstrap if noted and _token(secret, record, stored, bootstrap) == bootstrap else None


def _token(secret: Secret, record: KeyRecord, stored: object, bootstrap: str | None) -> str | None:
    """Return the token of a key that the service derived, or that is the operator's; None for any other key."""
    key_id: object = record.id
    if not (isinstance(key_id, str) and isinstance(stored, str)):  # SQLite takes any type in any column
        return None
    derived = token_of(secret, record.id)
    if _is_hash(stored, derived):
        return derived
    first = KeyRecord(record.id, FIRST_PRINCIPAL, "steward", None, record.created_at, None)
    if bootstrap is not None and _is_hash(stored, bootstrap) and journalled_values(record) == journalled_values(first):
        return bootstrap
    return None


def _is_hash(stored: str, token: str) -> bool:
    """Return whether ``stored`` is an older version's hash of the token."""
    return hmac.compare_digest(stored.encode(), hashlib.sha256(token.encode()).hexdigest().encode())


def _tell(record: KeyRecord, *, adopted: bool) -> None:
    accounts = None if record.accounts is None else list(record.accounts)
    said = {"key": record.id, "principal": record.name, "role": record.role, "accounts": accounts}
    if adopted:
        _log.warning("key adopted; check that it should have these rights", **said)
    elif record.revoked_at is None:
        advice = "make another (keys create), or start once with its token in SERVICE_BOOTSTRAP_KEY; or revoke it"
        _log.warning("key without a seal; the service refuses it", **said, advice=advice)


def _seal_rows(database: Database, secret: Secret, sealed: set[str], older: frozenset[str]) -> None:
    """Seal the rows of tables that were not sealed before, some in each transaction, and record that at the end.

    Only tables that had such rows when they were migrated are sealed: in others an attacker added the rows since.
    Accounts, releases and holds got seals later than the others; draws, counts of partitions and the sum of spending
    later still. Draws are sealed if their entries agree. The contents of other rows are not checked here but by
    ``verify``; a row that was wrong before it was sealed is wrong afterwards.
    """
    numbers: dict[str, object] = {}

    def seal(of: str, table: str, some: Callable[[Connection, Secret, P, int], list[P]], first: P, limit: int) -> None:
        if of not in sealed:
            numbers[of] = _in_batches(database, secret, some, first, limit) if table in older else 0

    sum_up = partial(account_rows.seal_old, without_seal="accounts" not in sealed)
    seal("answers", "stored_answers", idempotency.seal_old, ("", ""), _AT_ONCE)
    seal("jobs", "jobs", jobs.seal_old, "", _AT_ONCE)
    seal("spending", "accounts", sum_up, 0, _AT_ONCE)
    if "accounts" not in sealed:
        numbers["accounts"] = numbers.get("spending", 0)
    seal("releases", "releases", release_rows.seal_old, "", _MANY)
    seal("holds", "holds", reservation_rows.seal_old, ("", 0), _MANY)
    seal("draws", "draws", draw_rows.seal_old, "", _MANY)
    seal("partitions", "partitions_drawn", partitions.seal_old, ("", "", -1), _MANY)
    if not numbers:
        return

    def note(connection: Connection) -> None:
        lock_installation(connection)
        if not numbers.keys() <= _told_by_journal(connection, secret)[1]:
            installation_journal.append(connection, secret, "rows_sealed", numbers, actor=None, at=clock.now())

    database.write(note, is_committed=lambda *_: False)
    if any(numbers.values()):
        _log.warning("rows of an older version sealed as they were found; check them with verify", **numbers)


def _in_batches(
    database: Database,
    secret: Secret,
    seal: Callable[[Connection, Secret, P, int], list[P]],
    first: P,
    limit: int,
) -> int:
    """Seal all rows of a table, by a function that seals some after a place; return their number."""
    last, number = first, 0

    def work(connection: Connection) -> list[P]:
        return seal(connection, secret, last, limit)

    while done := database.write(work, is_committed=lambda *_: False):
        last, number = done[-1], number + len(done)
    return number
