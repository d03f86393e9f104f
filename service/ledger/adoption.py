"""What an older version wrote without seals: sealed once, at the first start of this one.

Keys are adopted whose tokens the service derived itself, and the one that the operator supplies; a key that somebody
put into the database is neither. What a key may do cannot be checked after the fact, so that each is told of, to be
looked at. Afterwards what has no seal is refused.
"""

import hashlib
import hmac
from collections.abc import Callable
from typing import TypeVar

import structlog
from sqlalchemy import Connection

from service.ledger import clock, idempotency, installation_journal, jobs
from service.ledger.database import Database
from service.ledger.installation import Secret, lock_installation
from service.ledger.key_events import keys_of
from service.ledger.keys import FIRST_PRINCIPAL, KeyRecord, fixed, seal_key, token_of, unsealed_keys

_log = structlog.get_logger("service.adoption")
_AT_ONCE = 50  # rows of a transaction; an answer may have megabytes

P = TypeVar("P")


def adopt(database: Database, secret: Secret, bootstrap: str | None) -> None:
    """Seal what is older than seals, where this was not done before.

    Raises:
        Unavailable: the database does not answer.
    """
    with database.read() as connection:
        waiting = bool(unsealed_keys(connection))
        sealed = installation_journal.has_kind(connection, "rows_sealed")
    if waiting:
        for record, adopted in database.write(
            lambda connection: _adopt_keys(connection, secret, bootstrap), landed=lambda *_: False
        ):
            _tell(record, adopted=adopted)
    if not sealed:
        _seal_rows(database, secret)


def _adopt_keys(connection: Connection, secret: Secret, bootstrap: str | None) -> list[tuple[KeyRecord, bool]]:
    """The keys without a seal, each with whether it was adopted.

    The first time all are, or are noted as left; afterwards the operator's own alone, if it is as it was noted: what
    has no seal by then may be anybody's.
    """
    lock_installation(connection)
    known, at = keys_of(connection, secret), clock.now()
    found: list[tuple[KeyRecord, bool]] = []
    for record, stored in unsealed_keys(connection):
        token = _token(secret, record, stored, bootstrap)
        noted = record.id in known and fixed(known[record.id]) == fixed(record)
        if token is not None and (not known or (token == bootstrap and noted)):
            seal_key(connection, secret, record.id, token)
            installation_journal.append(connection, secret, "key_adopted", fixed(record), actor=None, at=at)
            found.append((record, True))
        else:
            if not known:
                installation_journal.append(connection, secret, "key_left", fixed(record), actor=None, at=at)
            found.append((record, False))
    return found


def _token(secret: Secret, record: KeyRecord, stored: str, bootstrap: str | None) -> str | None:
    """The token of a key that the service derived, or that is the operator's; None of any other."""
    derived = token_of(secret, record.id)
    if _is_hash(stored, derived):
        return derived
    first = KeyRecord(record.id, FIRST_PRINCIPAL, "steward", None, record.created_at, None)
    if bootstrap is not None and _is_hash(stored, bootstrap) and fixed(record) == fixed(first):
        return bootstrap
    return None


def _is_hash(stored: str, token: str) -> bool:
    """Whether an older version stored this of the token."""
    return hmac.compare_digest(stored.encode(), hashlib.sha256(token.encode()).hexdigest().encode())


def _tell(record: KeyRecord, *, adopted: bool) -> None:
    accounts = None if record.accounts is None else list(record.accounts)
    said = {"key": record.id, "principal": record.name, "role": record.role, "accounts": accounts}
    if adopted:
        _log.warning("key adopted; make sure that it may do this", **said)
    elif record.revoked_at is None:
        advice = "make another (keys create), or start once with its token in SERVICE_BOOTSTRAP_KEY; or revoke it"
        _log.warning("key without a seal; it serves nobody", **said, advice=advice)


def _seal_rows(database: Database, secret: Secret) -> None:
    """Stored answers and jobs' results, some in each transaction; that it was done is noted at the end."""
    numbers: dict[str, object] = {
        "answers": _in_batches(database, secret, idempotency.seal_old, ("", "")),
        "jobs": _in_batches(database, secret, jobs.seal_old, ""),
    }

    def note(connection: Connection) -> None:
        lock_installation(connection)
        if not installation_journal.has_kind(connection, "rows_sealed"):
            installation_journal.append(connection, secret, "rows_sealed", numbers, actor=None, at=clock.now())

    database.write(note, landed=lambda *_: False)


def _in_batches(
    database: Database, secret: Secret, seal: Callable[[Connection, Secret, P, int], list[P]], first: P
) -> int:
    """Seal all rows of a table, by a function that seals some after a place; how many they were."""
    last, number = first, 0

    def work(connection: Connection) -> list[P]:
        return seal(connection, secret, last, _AT_ONCE)

    while done := database.write(work, landed=lambda *_: False):
        last, number = done[-1], number + len(done)
    return number
