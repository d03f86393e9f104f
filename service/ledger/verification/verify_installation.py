"""Verification of data outside accounts: the installation's journal, and the rows sealed with its secret.

Keys are checked against the journal in both directions, because an old row that was put back has its valid seal and
differs from the journal.
"""

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, select

from service.ledger import jobs
from service.ledger.access.key_events import Known, keys_and_misuses
from service.ledger.access.key_rows import journalled_values, stored_keys
from service.ledger.installation import installation_journal
from service.ledger.installation.binding import ONLY_ROW
from service.ledger.journal.chains import UNREADABLE, BrokenChain
from service.ledger.journal.journal import BEFORE_FIRST
from service.ledger.notifications import deliveries, webhooks
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, ApiKey, Installation
from service.ledger.verification.answer_check import stored_answer_faults


def verify_installation(connection: Connection, secret: Secret) -> Iterator[str]:
    """Yield the faults of the installation's data, in words.

    Yields:
        One line of text for each fault; nothing where there is none.
    """
    bound = connection.execute(select(Installation.id, Installation.secret_fingerprint)).all()
    if bound != [(ONLY_ROW, secret.fingerprint())] and (bound or not _is_new(connection)):
        yield f"installation: expected one row, of id {ONLY_ROW}, with the fingerprint of the secret"
    try:
        known, misuses = keys_and_misuses(connection, secret)
    except BrokenChain as broken:
        yield f"installation_journal: {broken}"
    else:
        yield from (f"installation_journal: {misuse}" for misuse in misuses)
        if installation_journal.ledger_version(connection, secret) != secret.version:
            yield "installation_journal: it names another version of the ledger than at the beginning of this check"
        yield from _sealed_again(connection, secret)
        yield from _readable("api_keys", (fault for _, fault in key_faults(connection, secret, known)))
        yield from _readable("webhooks", webhooks.faults(connection, secret))
    yield from _readable("stored_answers", stored_answer_faults(connection, secret))
    altered = (f"jobs: job {job} is not as the service wrote it" for job in jobs.altered(connection, secret))
    yield from _readable("jobs", altered)
    yield from _readable("deliveries", deliveries.faults(connection, secret))


def _readable(table: str, faults: Iterable[str]) -> Iterator[str]:
    """Yield the faults of a table's rows, the last of which is a row that cannot be read."""
    try:
        yield from faults
    except UNREADABLE:  # SQLite takes any type in any column
        yield f"{table}: a row has invalid content"


def _is_new(connection: Connection) -> bool:
    """Return whether no server has begun a ledger here: a server binds the database to its secret first."""
    used = connection.execute(select(Account.id).limit(1)).first() or connection.execute(select(ApiKey.id)).first()
    return used is None and installation_journal.head(connection) == BEFORE_FIRST


def _sealed_again(connection: Connection, secret: Secret) -> Iterator[str]:
    """Yield the entries that sealed a kind of rows again: only the first time can they be an older version's."""
    before: set[str] = set()
    for members in installation_journal.read(connection, secret):
        if members["kind"] == "rows_sealed":
            if not before.isdisjoint(members["content"]):
                yield f"installation_journal: entry {members['seq']} sealed rows that had been sealed before"
            before |= members["content"].keys()


def key_faults(connection: Connection, secret: Secret, known: Known) -> Iterator[tuple[str, str]]:
    """Yield the keys whose rows do not follow from the installation's journal, each with its fault in words.

    Args:
        known: the keys in the journal.
    """
    missing = dict(known)
    for key_id, name, record, sealed in stored_keys(connection, secret):
        entered = missing.pop(key_id, None)
        if entered is None:
            yield key_id, f"api_keys: no entry made the key {key_id} of {name!r}"
        elif record is None or sealed != entered.sealed:
            yield key_id, f"api_keys: the row of {key_id} of {name!r} is not as the service wrote it"
        elif journalled_values(record) != journalled_values(entered):
            stored, journalled = journalled_values(record), journalled_values(entered)
            columns = ", ".join(one for one in stored if stored[one] != journalled[one])
            yield key_id, f"api_keys: {columns} of {key_id} of {name!r} does not follow from the journal"
    for key_id, entered in missing.items():
        yield key_id, f"api_keys: the key {key_id} of {entered.name!r} is missing"
