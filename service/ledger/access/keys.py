"""API keys: creation, rotation and revocation, which the installation's journal records, and lists of keys."""

import json
import unicodedata
import uuid
from dataclasses import replace
from datetime import timedelta

import structlog
from sqlalchemy import Connection, case, func, insert, select

from service.errors import Conflict, Forbidden, InvalidInput, StartupRefused
from service.ledger.access.key_events import Known, SeenKeys, keys_of, keys_with_lists, require_valid, sound_keys
from service.ledger.access.key_records import FIRST_PRINCIPAL, KeyRecord, Role
from service.ledger.access.key_rows import (
    SEALED,
    any_key,
    change_row,
    is_sealed,
    journalled_values,
    lock_row,
    read_key,
    read_reach,
    seal_of,
    token_code,
    token_of,
)
from service.ledger.installation import installation_journal
from service.ledger.installation.binding import check_secret, require_own_secret
from service.ledger.installation.installation_journal import lock_installation
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import Actor
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.paging import BeforeReading, Page, rows_of
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import ApiKey

SHORTEST_BOOTSTRAP_KEY = 32  # characters
ISSUED = "oidc:"  # the prefix of principals that an identity provider authenticates; no key has such a name
_SHOWN = 20  # keys that a log line names
_log = structlog.get_logger("service.keys")


def is_distinct_name(name: str) -> bool:
    """Return whether readers can tell a principal's name from others; approvals depend on distinct names.

    The name has no invisible characters, and its characters and spaces are written in one way.
    """
    return name.isprintable() and name == " ".join(name.split()) and unicodedata.is_normalized("NFKC", name)


def create_key(
    connection: Connection,
    secret: Secret,
    *,
    name: str,
    role: Role,
    accounts: list[str] | None,
    expires_at: str | None,
    at: str,
    by: Actor | None = None,
    rotated_from: str | None = None,
    seen: SeenKeys | None = None,
) -> tuple[KeyRecord, str]:
    """Add a key for a principal and return it with its token, which is not stored.

    Args:
        by: the steward that adds it; None: the operator.
        seen: the keys that were read before the lock; None: all are read.

    Raises:
        InvalidInput: the name is one of those that an identity provider gives, or could be confused with another, or
            the key would end before it begins.
        Unauthenticated: the installation's journal does not know the key of ``by`` as a valid one.
        Forbidden: the name is that of the first principal, and the steward has another.
        ValueError: ``expires_at`` is not as the clock writes moments, so it would not compare with them.
    """
    if expires_at is not None and not clock.is_stamp(expires_at):
        raise ValueError("expected a moment in UTC with six decimals and a Z")
    if expires_at is not None and expires_at <= at:
        raise InvalidInput.at("/expires_at", "expected a moment in the future")
    if name.startswith(ISSUED):
        raise InvalidInput.at("/name", f"expected a name that does not begin with {ISSUED}: an issuer gives those")
    if rotated_from is None and not is_distinct_name(name):  # a key that is older than this rule can still be rotated
        raise InvalidInput.at("/name", "expected printable text (NFKC) without leading, trailing or double spaces")
    _require_steward(connection, secret, by, at, seen)
    if name == FIRST_PRINCIPAL and by is not None and by.name != name:  # whoever has its key makes keys as the operator
        raise Forbidden(f"only the operator and {name} itself make and rotate keys of {name}: python -m service keys")
    key_id = str(uuid.uuid4())
    token = token_of(secret, key_id)
    reach = None if accounts is None else tuple(accounts)
    maker = None if by is None else by.name
    record = KeyRecord(key_id, name, role, reach, at, expires_at, created_by=maker, rotated_from=rotated_from)
    _insert(connection, secret, record, token, by)
    return record, token


def rotate_key(
    connection: Connection,
    secret: Secret,
    key_id: str,
    *,
    overlap: timedelta,
    at: str,
    by: Actor | None,
    seen: SeenKeys | None = None,
) -> tuple[KeyRecord, str]:
    """Create a key with the same principal, role, reach and lifetime; the old key ends after the overlap.

    Args:
        seen: as for ``create_key``.

    Raises:
        NotFound: there is no such key.
        Conflict: it is revoked, expired, or rotated already by the installation's journal, or its row is not as the
            service wrote it.
        Unauthenticated: the installation's journal does not know the key of ``by`` as a valid one.
    """
    # Locked, so that a key that is revoked at this moment has no successor afterwards.
    stored = lock_row(connection, key_id)
    _require_steward(connection, secret, by, at, seen)
    known = sound_keys(connection, secret, seen)
    if key_id not in known or not is_sealed(secret, stored):
        raise Conflict("the key's row is not as this service wrote it: make a new key")
    ends = known[key_id].expires_at, known[key_id].revoked_at  # an attacker can put an old row back
    old = replace(read_key(connection, key_id), expires_at=ends[0], revoked_at=ends[1])
    if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= at):
        raise Conflict("expected a valid key; it is revoked or expired")
    if any(record.rotated_from == key_id for record in known.values()):
        raise Conflict("the key was rotated before; rotate the one that took its place")
    lifetime = None if old.expires_at is None else clock.between(old.created_at, old.expires_at)
    new = create_key(
        connection,
        secret,
        name=old.name,
        role=old.role,
        accounts=None if old.accounts is None else list(old.accounts),
        expires_at=None if lifetime is None else clock.later(at, lifetime),
        at=at,
        by=by,
        rotated_from=key_id,
        seen=seen,
    )
    end = clock.later(at, overlap)
    end = end if old.expires_at is None else min(end, old.expires_at)
    change_row(connection, secret, stored, expires_at=end)
    said: dict[str, object] = {"id": key_id, "to": new[0].id, "expires_at": end}
    installation_journal.append(connection, secret, "key_rotated", said, actor=by, at=at)
    return new


def add_bootstrap_key(connection: Connection, secret: Secret, token: str, at: str) -> KeyRecord | None:
    """Store the operator's own token as the first steward key; return None, with no effect, if there is a key."""
    if any_key(connection):
        return None
    record = KeyRecord(str(uuid.uuid4()), FIRST_PRINCIPAL, "steward", None, created_at=at, expires_at=None)
    _insert(connection, secret, record, token, None)
    return record


def list_keys(
    connection: Connection,
    secret: Secret,
    after: str | None,
    limit: int,
    before_reading: BeforeReading | None = None,
    *,
    known: Known,
) -> Page[KeyRecord]:
    """Return a page of keys, oldest first, with revoked ones; ``after`` is the id of the last key before the page.

    The installation's journal says which keys there are. Rows that it does not have are left out and logged. A key
    whose row is not as the service wrote it is shown as it was made, and is not ``sealed``.

    Args:
        known: the keys of the journal, without their lists of accounts, which their rows have.

    Raises:
        InvalidInput: no key has the id ``after``.
        Unavailable: the journal is not sound.
    """
    if after is not None and after not in known:
        raise InvalidInput.at("/query/cursor", "expected a cursor that an earlier page gave")
    if after is None and (unknown := _number_of_rows(connection) - len(known)) > 0:
        _log.error("rows of keys that this service did not write are left out; run verify", number=unknown)
    last = None if after is None else _place(known[after])
    page = Page(sorted((one for one in known.values() if last is None or _place(one) > last), key=_place)[:limit])
    if not page:
        return page
    ids = [record.id for record in page]
    query = select(*SEALED, ApiKey.seal, ApiKey.last_used_at).where(ApiKey.id.in_(ids))
    order = case({key_id: number for number, key_id in enumerate(ids)}, value=ApiKey.id)
    size = func.coalesce(func.length(ApiKey.accounts), 0)
    rows = rows_of(connection, query.order_by(order), size, limit, before_reading=before_reading)
    page = Page(page[: ids.index(rows[-1].id) + 1] if rows.more else page)
    page.more = rows.more or len(page) == limit
    sound = {row.id: row for row in rows if is_sealed(secret, row[:-1]) and isinstance(row.last_used_at, str | None)}
    others = {record.id for record in page} - sound.keys()
    if altered := sorted(key_id for key_id in others if known[key_id].sealed):
        _log.error("rows of keys are not as this service wrote them", keys=altered[:_SHOWN], number=len(altered))
    as_made = keys_with_lists(connection, secret, others) if others else {}
    successors = {record.rotated_from: record.id for record in known.values()}
    for number, record in enumerate(page):
        if (row := sound.get(record.id)) is None:
            shown = replace(as_made[record.id], sealed=False)
        else:
            shown = replace(record, accounts=read_reach(row.accounts), last_used_at=row.last_used_at)
        page[number] = replace(shown, rotated_to=successors.get(record.id))
    return page


def _place(record: KeyRecord) -> tuple[str, str]:
    return record.created_at, record.id


def _number_of_rows(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(ApiKey)).scalar_one()


def revoke_key(
    connection: Connection,
    secret: Secret,
    key_id: str,
    *,
    at: str,
    by: Actor | None,
    seen: SeenKeys | None = None,
) -> KeyRecord:
    """Revoke a key from now on. A key that is revoked already keeps its first moment.

    The installation's journal says whether it is revoked, because an attacker can keep an old row in place. The
    operator can revoke a key even while the journal is not sound: then only in its row if the last entry is not the
    service's.

    Args:
        seen: as for ``create_key``.

    Returns:
        The key; not ``sealed`` if its row was not as the service wrote it.

    Raises:
        NotFound: there is no such key.
        Unauthenticated: the installation's journal does not know the key of ``by`` as a valid one.
        Unavailable: the journal is not sound, and the caller is not the operator.
    """
    stored = lock_row(connection, key_id)
    _require_steward(connection, secret, by, at, seen)
    sealed = is_sealed(secret, stored)
    if not sealed:
        _log.error("the row of a revoked key is not as this service wrote it", key=key_id)
    try:
        entered = keys_of(connection, secret, seen).get(key_id)
        told = stored if entered is None and not sealed else entered
        revoked_at: str | None = None if told is None else told.revoked_at
    except BrokenChain as broken:
        _log.error("a key is revoked while the installation's journal is not sound", key=key_id, broken=str(broken))
        revoked_at = None
    if revoked_at is None:
        revoked_at = at
        said: dict[str, object] = {"id": key_id, "revoked_at": at}
        if by is not None or installation_journal.sealed_head(connection, secret) is not None:
            installation_journal.append(connection, secret, "key_revoked", said, actor=by, at=at)
    if stored.revoked_at != revoked_at:
        change_row(connection, secret, stored, revoked_at=revoked_at)
    return replace(read_key(connection, key_id), sealed=sealed)


def _require_steward(connection: Connection, secret: Secret, by: Actor | None, at: str, seen: SeenKeys | None) -> None:
    """Refuse to make or end a key with a key that the journal does not have as a valid steward's.

    The lock prevents a revocation from committing between this check and the entry that follows. Key rows are locked
    before it.
    """
    lock_installation(connection)
    require_valid(connection, secret, by, at, seen)


def ensure_first_key(
    database: Database, secret: Secret, bootstrap: str | None, lifetime: timedelta | None
) -> str | None:
    """Add the operator's key at start, or make one that ends after ``lifetime``, if there is no key at all.

    Returns:
        The token that was made, to be shown once; None if there is none to show.

    Raises:
        StartupRefused: the bootstrap key is too short, the secret is not this database's, or the installation's journal
            is not sound.
        Unavailable: the database does not answer.
    """
    if bootstrap is not None and len(bootstrap) < SHORTEST_BOOTSTRAP_KEY:
        raise StartupRefused(f"the bootstrap key must have at least {SHORTEST_BOOTSTRAP_KEY} characters")
    if database.secret is None:
        check_secret(database, secret)
    else:  # the version is read once: whoever writes the database could show another reading an earlier one
        require_own_secret(database, secret)

    def add_first(connection: Connection) -> str | None:
        lock_installation(connection)  # replicas that start together add only one key
        # An attacker who deletes the rows must not bring the operator's token back to life.
        if any_key(connection) or _had_key(connection, secret):
            return None
        at = clock.now()
        if bootstrap is not None:
            add_bootstrap_key(connection, secret, bootstrap, at)
            return None
        end = None if lifetime is None else clock.later(at, lifetime)
        _, token = create_key(
            connection, secret, name=FIRST_PRINCIPAL, role="steward", accounts=None, expires_at=end, at=at
        )
        return token

    def is_committed(connection: Connection, token: str | None) -> bool:
        if token is None:
            return any_key(connection)
        made = select(ApiKey.id).where(ApiKey.token_hash == token_code(secret, token))
        return connection.execute(made).first() is not None

    return database.write(add_first, is_committed=is_committed)


def _insert(connection: Connection, secret: Secret, record: KeyRecord, token: str, by: Actor | None) -> None:
    values = journalled_values(record)
    reach = None if record.accounts is None else json.dumps(record.accounts)
    row = values | {"accounts": reach, "token_hash": token_code(secret, token)}
    connection.execute(insert(ApiKey).values(row | {"seal": seal_of(secret, row)}))
    installation_journal.append(connection, secret, "key_made", values, actor=by, at=record.created_at)


def unsound(broken: BrokenChain) -> StartupRefused:
    """Return the refusal to start after the installation's journal was altered."""
    return StartupRefused(
        f"the installation's journal is not as this service wrote it: {broken}. It was changed outside the service, or"
        " it is damaged: find out what happened (python -m service verify says more), and restore the newest sound"
        " copy"
    )


def _had_key(connection: Connection, secret: Secret) -> bool:
    """Return whether the installation's journal has any key; each entry is checked.

    Raises:
        StartupRefused: it is not sound.
    """
    try:
        kinds = {said["kind"] for said in installation_journal.read(connection, secret)}
    except BrokenChain as broken:
        raise unsound(broken) from None
    return not kinds.isdisjoint(("key_made", "key_adopted", "key_left"))
