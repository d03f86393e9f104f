"""API keys: the authenticated principals, their roles, and the accounts that they reach.

A token is derived from the installation's secret and the key's id, so the answer to a repeated request can show it
again. The database holds a code of it that only the secret's holder can compute, and each row is sealed with the
secret. So an attacker who can write the database can neither add a key nor change the rights of one. The installation's
journal records the events of keys.
"""

import base64
import json
import unicodedata
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import structlog
from sqlalchemy import Connection, Row, bindparam, func, insert, or_, select, tuple_, update
from sqlalchemy.orm import aliased

from service.errors import Conflict, InvalidInput, NotFound, StartupRefused, Unavailable
from service.ledger.access.key_events import Known, SeenKeys, keys_of, require_valid, sound_keys
from service.ledger.access.key_records import FIRST_PRINCIPAL, KeyRecord, Role, includes
from service.ledger.installation import installation_journal
from service.ledger.installation.binding import check_secret
from service.ledger.installation.installation_journal import lock_installation
from service.ledger.journal.journal import Actor, BrokenChain
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.paging import BeforeReading, Page, page_of, rows_of
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import ApiKey, InstallationEntry

SHORTEST_BOOTSTRAP_KEY = 32  # characters
ISSUED = "oidc:"  # the prefix of principals that an identity provider authenticates; no key has such a name
_PURPOSE = "api-key-row"
_PREFIX = "pbl_"  # lets secret scanners recognise a leaked token
_log = structlog.get_logger("service.keys")
_Successor = aliased(ApiKey)
_ORDER = (ApiKey.created_at, ApiKey.id)
_SEALED = (
    ApiKey.id, ApiKey.name, ApiKey.role, ApiKey.accounts, ApiKey.created_at, ApiKey.expires_at, ApiKey.revoked_at,
    ApiKey.created_by, ApiKey.rotated_from, ApiKey.token_hash,
)  # fmt: skip
_COLUMNS = (
    ApiKey.id, ApiKey.name, ApiKey.role, ApiKey.accounts, ApiKey.created_at, ApiKey.expires_at, ApiKey.revoked_at,
    ApiKey.created_by, ApiKey.rotated_from, ApiKey.last_used_at,
    select(_Successor.id).where(_Successor.rotated_from == ApiKey.id).scalar_subquery(), ApiKey.seal.is_not(None),
)  # fmt: skip


@dataclass(frozen=True)
class Principal:
    """The authenticated caller and its rights."""

    key_id: str | None  # None: an identity provider authenticated the caller
    name: str
    role: Role
    accounts: frozenset[str] | None  # None: all

    def may_act_as(self, role: Role) -> bool:
        """Return whether this principal's role includes another."""
        return includes(self.role, role)

    def may_use(self, account: str) -> bool:
        """Return whether this principal's key reaches an account."""
        return self.accounts is None or account in self.accounts


def is_distinct_name(name: str) -> bool:
    """Return whether readers can tell a principal's name from others; approvals depend on distinct names.

    The name has no invisible characters, and its characters and spaces are written in one way.
    """
    return name.isprintable() and name == " ".join(name.split()) and unicodedata.is_normalized("NFKC", name)


def token_of(secret: Secret, key_id: str) -> str:
    """Return the bearer token of a key that ``create_key`` made."""
    code = secret.hmac("api-key", key_id.encode())
    return _PREFIX + base64.urlsafe_b64encode(code).rstrip(b"=").decode()


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
    stored = _locked(connection, key_id)
    _require_steward(connection, secret, by, at, seen)
    known = sound_keys(connection, secret, seen)
    if key_id not in known or not _is_sealed(secret, stored):
        raise Conflict("the key's row is not as this service wrote it: make a new key")
    old = _as_known(read_key(connection, key_id), known)
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
    _change(connection, secret, stored, expires_at=end)
    said: dict[str, object] = {"id": key_id, "to": new[0].id, "expires_at": end}
    installation_journal.append(connection, secret, "key_rotated", said, actor=by, at=at)
    return new


def add_bootstrap_key(connection: Connection, secret: Secret, token: str, at: str) -> KeyRecord | None:
    """Store the operator's own token as the first steward key; return None, with no effect, if there is a key."""
    if _any_key(connection):
        return None
    record = KeyRecord(str(uuid.uuid4()), FIRST_PRINCIPAL, "steward", None, created_at=at, expires_at=None)
    _insert(connection, secret, record, token, None)
    return record


# Built once: every request runs it, and building it would cost more than running it.
_LAST_ENTRY = select(func.max(InstallationEntry.seq)).scalar_subquery()
_VALID = select(*_SEALED, ApiKey.seal, _LAST_ENTRY.label("last_entry")).where(
    ApiKey.token_hash == bindparam("token_hash"),
    ApiKey.revoked_at.is_(None),
    or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > bindparam("at")),
)


def authenticate(database: Database, secret: Secret, token: str, at: str) -> Principal | None:
    """Return the token's principal; None if the token is unknown, expired or revoked, or its row was altered.

    The token is looked up by its code, so the time taken reveals nothing about other tokens. The database is queried
    every time, so a revocation holds at once, whichever server made it. Putting an old row back does not revive a key
    that the installation's journal ended: the statement that reads the row also tells whether the journal continued
    since this process read it. While the entries that follow there are not sound, no key is valid, because they may
    hide a revocation.

    Raises:
        Unavailable: the database does not answer, or the mark's keeper gets no answers, or the installation's journal
            was rolled back, or is not sound.
    """
    if (reason := database.unwatched()) is not None:
        raise Unavailable(reason)
    followed, known = database.followed, database.newest.number(installation_journal.NO_ACCOUNT)  # read before the row
    row = database.ask(_VALID, {"token_hash": token_code(secret, token), "at": at})
    if row is None:
        return None
    if not _is_sealed(secret, row[:-1]):
        _log.warning("the row of a key is not as this service wrote it", key=str(row.id))
        return None
    if followed is not None:
        _follow(database, secret, followed.seq, known, row.last_entry or 0)
    if database.has_ended(row.id, at):
        _log.warning(
            "the row of a key says that the key is valid; by the installation's journal it has ended", key=row.id
        )
        return None
    accounts = _accounts(row.accounts)
    return Principal(row.id, row.name, _role(row.role), None if accounts is None else frozenset(accounts))


def _follow(database: Database, secret: Secret, followed: int, known: int, last: int) -> None:
    """Read which keys other processes ended; while the journal is not sound, only the mark's keeper tries again.

    Args:
        followed: the number of the last entry whose ends of keys were known before the look-up.
        known: the number of the last entry that was known to be committed then.
        last: the number of its present last entry.

    Raises:
        Unavailable: the journal was rolled back, or is not sound, or the database does not answer.
    """
    if last < known:
        raise database.went_back(installation_journal.NO_ACCOUNT, last)
    if last == followed:
        return
    if last <= database.followed_to:
        raise installation_journal.unsound_for_now("an earlier line of the log names its first bad entry")
    reached, fault = followed, f"entry {followed + 1}: an entry is missing"
    try:
        reached = installation_journal.follow(database, secret)
    except BrokenChain as broken:
        fault = str(broken)
    if reached < last:
        database.followed_to = last
        _log.error("the installation's journal is not as the service wrote it", broken=fault)
        raise installation_journal.unsound_for_now(fault)


def read_key(connection: Connection, key_id: str) -> KeyRecord:
    """Return one key.

    Raises:
        NotFound: there is no such key.
    """
    row = connection.execute(select(*_COLUMNS).where(ApiKey.id == key_id)).one_or_none()
    if row is None:
        raise NotFound("key", key_id)
    return _record(row)


def has_key(connection: Connection, key_id: str) -> bool:
    """Return whether there is a key with this id."""
    return connection.execute(select(ApiKey.id).where(ApiKey.id == key_id)).first() is not None


def is_made_by(connection: Connection, secret: Secret, key_id: str, principal: str) -> bool:
    """Return whether a principal made this key, by its row, which must be as the service wrote it."""
    row = connection.execute(select(*_SEALED, ApiKey.seal).where(ApiKey.id == key_id)).one_or_none()
    return row is not None and _is_sealed(secret, row) and row.created_by == principal


def list_keys(
    connection: Connection,
    after: str | None,
    limit: int,
    before_reading: BeforeReading | None = None,
    *,
    known: Known | None = None,
) -> Page[KeyRecord]:
    """Return a page of keys, oldest first, with revoked ones; ``after`` is the id of the last key before the page.

    Args:
        known: the keys of the installation's journal, which gives their ends; without it the rows do.

    Raises:
        InvalidInput: no key has the id ``after``.
    """
    query = select(*_COLUMNS).order_by(*_ORDER)
    if after is not None:
        last = connection.execute(select(ApiKey.created_at).where(ApiKey.id == after)).scalar_one_or_none()
        if last is None:
            raise InvalidInput.at("/query/cursor", "expected a cursor that an earlier page gave")
        query = query.where(tuple_(*_ORDER) > tuple_(last, after))
    size = func.coalesce(func.length(ApiKey.accounts), 0)
    rows = rows_of(connection, query, size, limit, before_reading=before_reading)
    return page_of(rows, lambda row: _as_known(_record(row), known or {}))


def _as_known(record: KeyRecord, known: Known) -> KeyRecord:
    """Return a key with the end that the installation's journal gives, whatever its row says."""
    entered = known.get(record.id, record)
    return replace(record, expires_at=entered.expires_at, revoked_at=entered.revoked_at)


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
    stored = _locked(connection, key_id)
    _require_steward(connection, secret, by, at, seen)
    sealed = _is_sealed(secret, stored)
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
        _change(connection, secret, stored, revoked_at=revoked_at)
    return replace(read_key(connection, key_id), sealed=sealed)


def _require_steward(connection: Connection, secret: Secret, by: Actor | None, at: str, seen: SeenKeys | None) -> None:
    """Refuse to make or end a key with a key that the journal does not have as a valid steward's.

    The lock prevents a revocation from committing between this check and the entry that follows. Key rows are locked
    before it.
    """
    lock_installation(connection)
    require_valid(connection, secret, by, at, seen)


def ensure_first_key(
    database: Database, secret: Secret, bootstrap: str | None, lifetime: timedelta | None = None
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
    check_secret(database, secret)

    def add_first(connection: Connection) -> str | None:
        lock_installation(connection)  # replicas that start together add only one key
        # An attacker who deletes the rows must not bring the operator's token back to life.
        if _any_key(connection) or _had_key(connection, secret):
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
            return _any_key(connection)
        made = select(ApiKey.id).where(ApiKey.token_hash == token_code(secret, token))
        return connection.execute(made).first() is not None

    return database.write(add_first, is_committed=is_committed)


def _insert(connection: Connection, secret: Secret, record: KeyRecord, token: str, by: Actor | None) -> None:
    row = {
        "id": record.id,
        "name": record.name,
        "role": record.role,
        "accounts": None if record.accounts is None else json.dumps(record.accounts),
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
        "created_by": record.created_by,
        "rotated_from": record.rotated_from,
        "token_hash": token_code(secret, token),
    }
    connection.execute(insert(ApiKey).values(row | {"seal": _seal(secret, row)}))
    installation_journal.append(
        connection, secret, "key_made", journalled_values(record), actor=by, at=record.created_at
    )


def journalled_values(record: KeyRecord) -> dict[str, object]:
    """Return the values of a key that the installation's journal records when it is made, or found at an upgrade."""
    accounts = None if record.accounts is None else list(record.accounts)
    return {
        "id": record.id,
        "name": record.name,
        "role": record.role,
        "accounts": accounts,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
        "created_by": record.created_by,
        "rotated_from": record.rotated_from,
    }


def stored_keys(connection: Connection, secret: Secret) -> Iterator[tuple[KeyRecord, bool]]:
    """Yield all keys, oldest first, each with whether its row is as the service wrote it; without a seal it is not."""
    for row in connection.execute(select(*_COLUMNS, ApiKey.token_hash, ApiKey.seal.label("given")).order_by(*_ORDER)):
        yield _record(row[:-2]), secret.is_seal(row.given, _PURPOSE, *(row._mapping[column.key] for column in _SEALED))


def unsealed_keys(connection: Connection) -> list[tuple[KeyRecord, str]]:
    """Return the keys without a seal, oldest first, each with the stored code or hash of its token."""
    query = select(*_COLUMNS, ApiKey.token_hash).where(ApiKey.seal.is_(None)).order_by(*_ORDER)
    return [(_record(row[:-1]), row.token_hash) for row in connection.execute(query)]


def seal_key(connection: Connection, secret: Secret, key_id: str, token: str) -> None:
    """Seal a key's row as it is, as one that the service wrote."""
    row = _locked(connection, key_id)._asdict() | {"token_hash": token_code(secret, token)}
    values = {"token_hash": row["token_hash"], "seal": _seal(secret, row)}
    connection.execute(update(ApiKey).where(ApiKey.id == key_id).values(values))


def _locked(connection: Connection, key_id: str) -> Row[*tuple[Any, ...]]:
    """Lock a key until the transaction ends, and return its row with its seal.

    Raises:
        NotFound: there is no such key.
    """
    row = connection.execute(select(*_SEALED, ApiKey.seal).where(ApiKey.id == key_id).with_for_update()).one_or_none()
    if row is None:
        raise NotFound("key", key_id)
    return row


def _change(connection: Connection, secret: Secret, row: Row[*tuple[Any, ...]], **values: str) -> None:
    """Change a key's row. A row that the service did not write gets no seal by that."""
    changed: dict[str, Any] = row._asdict() | values
    if _is_sealed(secret, row):
        values["seal"] = _seal(secret, changed)
    connection.execute(update(ApiKey).where(ApiKey.id == row.id).values(values))


def _seal(secret: Secret, row: Mapping[str, Any]) -> str:
    return secret.seal(_PURPOSE, *(row[column.key] for column in _SEALED))


def _is_sealed(secret: Secret, row: Sequence[Any]) -> bool:
    """Return whether a row, whose last column is its seal, is as the service wrote it."""
    *values, seal = row
    return secret.is_seal(seal, _PURPOSE, *values)


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


def _any_key(connection: Connection) -> bool:
    return connection.execute(select(ApiKey.id).limit(1)).first() is not None


def token_code(secret: Secret, token: str) -> str:
    """Return the code of a token that the database stores."""
    return secret.hmac("api-key-token", token.encode()).hex()


def _accounts(stored: str | None) -> tuple[str, ...] | None:
    if stored is None:
        return None
    try:
        names = tuple(json.loads(stored))
        "".join(names).encode()
    except (RecursionError, TypeError, ValueError):  # not written by the service: the key reaches no account
        return ()
    return names


def _role(stored: str) -> Role:
    return cast("Role", stored)  # the table's check admits no other


def _record(row: Sequence[Any]) -> KeyRecord:
    key_id, name, role, accounts, created_at, *rest = row
    return KeyRecord(key_id, name, _role(role), _accounts(accounts), created_at, *rest)
