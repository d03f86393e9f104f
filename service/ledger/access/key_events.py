"""The keys of the installation's journal: their events, and the principals that have had their tokens."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import structlog
from sqlalchemy import Connection

from service.errors import Forbidden, Unauthenticated
from service.ledger.access.key_records import FIRST_PRINCIPAL, KeyRecord, Role, includes
from service.ledger.installation import installation_journal
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import BEFORE_FIRST, Actor, Head
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import INSTALLATION
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.secret import Secret
from service.ledger.storage.transaction import DATABASE, require_present

_log = structlog.get_logger("service.keys")

Known = Mapping[str, KeyRecord]
"""Keys by their ids, as the entries made them: without their last use and their successor."""


class SeenKeys(NamedTuple):
    """The keys that the installation's journal had up to an entry.

    Their lists of accounts are left out, as nobody is judged by them here and each may take 100,000 bytes: such a key
    has an empty one, with which it reaches no account.
    """

    head: Head
    known: dict[str, KeyRecord]


_NONE = SeenKeys(BEFORE_FIRST, {})


def keys_of(connection: Connection, secret: Secret, seen: SeenKeys | None = None) -> Known:
    """Return all keys in the journal, without their lists of accounts.

    Args:
        seen: the keys that were read before the lock, so that only later entries are read; None: all are.

    Raises:
        BrokenChain: the journal is not sound.
        Unavailable: its last entries, which this process has seen, are missing.
    """
    return _seen_since(connection, secret, seen or _NONE).known


def keys_in(entries: Iterable[dict[str, Any]]) -> Known:
    """Return the keys in the contents of checked entries.

    Raises:
        BrokenChain: the content of one does not fit its kind.
    """
    return _follow_events(entries)[0]


def keys_and_misuses(connection: Connection, secret: Secret) -> tuple[Known, list[str]]:
    """Return all keys in the journal, and descriptions of actions with keys that were revoked or expired by then.

    Raises:
        BrokenChain: the journal is not sound.
    """
    return _follow_events(installation_journal.read(connection, secret))


def see_keys(database: Database, secret: Secret) -> SeenKeys | None:
    """Read all keys in the journal before a lock, under which only later entries are read; None if it is not sound.

    The process keeps them, so only the entries after those that it has read are read here too. A read transaction sees
    only what is committed, and each entry is linked with the last one that was read.

    Raises:
        Unavailable: the last entry that was read is missing, or the database does not answer.
    """
    kept = database.seen_keys or _NONE  # before the transaction begins, which therefore must find the last entry
    try:
        with database.read() as connection:
            seen = _seen_since(connection, secret, kept)
    except BrokenChain:
        return None
    if seen.head.seq > (database.seen_keys or _NONE).head.seq:  # of two threads either may be last: both are right
        database.seen_keys = seen
    return seen


def _seen_since(connection: Connection, secret: Secret, seen: SeenKeys) -> SeenKeys:
    """Return the keys after the entries that follow those that were seen before this transaction began.

    Raises:
        BrokenChain: the journal is not sound.
        Unavailable: its last entries, which this process has seen, are missing. All further writes are refused.
    """
    head, known = seen
    if not installation_journal.has_entry(connection, head):
        database: Database = connection.info[DATABASE]
        raise database.went_back(INSTALLATION, installation_journal.head(connection).seq)
    for reached, members in installation_journal.read_after(connection, secret, seen.head):
        if known is seen.known:
            known = known.copy()  # other threads read the earlier keys
        _enter(known, members, listed=False)
        head = reached
    require_present(connection, KnownHead(INSTALLATION, head.seq, head.hash))
    return SeenKeys(head, known)


def _follow_events(entries: Iterable[dict[str, Any]]) -> tuple[Known, list[str]]:
    known: dict[str, KeyRecord] = {}
    return known, [misuse for members in entries if (misuse := _enter(known, members)) is not None]


def _enter(known: dict[str, KeyRecord], members: dict[str, Any], *, listed: bool = True) -> str | None:
    """Add an entry to the keys; return its description if the key that it names had ended, or None.

    Args:
        listed: whether a key has its list of accounts.

    Raises:
        BrokenChain: the content of the entry does not fit its kind.
    """
    misuse = None
    try:
        acting = known.get(members.get("key", ""))  # unknown: of another installation, or older than the journal
        if acting is not None and (ended := _ended(acting, members["time"])) is not None:
            misuse = (
                f"entry {members['seq']}: {members['kind']} by the key {acting.id} of {acting.name!r}, which {ended} by"
                " then"
            )
        _take(known, members["kind"], members["content"], listed=listed)
    except (KeyError, TypeError):
        raise BrokenChain(f"entry {members['seq']}: its content is not valid for its kind") from None
    return misuse


def _ended(record: KeyRecord, at: str) -> str | None:
    """Return the words for the end of a key before a moment; None if it is valid. A revocation ignores clocks."""
    if record.revoked_at is not None:
        return "was revoked"
    return "had expired" if record.expires_at is not None and record.expires_at <= at else None


def require_valid(
    connection: Connection,
    secret: Secret,
    actor: Actor | None,
    at: str,
    seen: SeenKeys | None = None,
    role: Role = "steward",
) -> None:
    """Refuse an actor whose key the journal does not have as a valid one of a role, whatever the key's row says.

    An attacker who can write the database can put a key's row back as it was before a revocation, with its seal. Call
    this in the transaction of the actor's change. The operator and the persons of an identity provider are not
    checked.

    Args:
        seen: the keys that were read before the lock; None: all are read.

    Raises:
        Unauthenticated: the key is unknown, expired or revoked.
        Forbidden: it has not the role.
        Unavailable: the journal is not sound.
    """
    if actor is not None and actor.key is not None:
        require_known(sound_keys(connection, secret, seen), actor, at, role)


def require_known(known: Known, actor: Actor, at: str, role: Role) -> None:
    """Refuse an actor as ``require_valid`` does, by keys that have been read.

    Raises:
        Unauthenticated, Forbidden: as ``require_valid``.
    """
    if actor.key is None:
        return
    record = known.get(actor.key)
    if record is None or not record.sealed or record.name != actor.name or _ended(record, at) is not None:
        _log.warning("the installation's journal has no such valid key", key=actor.key, principal=actor.name)
        raise Unauthenticated("the key is unknown, expired or revoked")
    if not includes(record.role, role):
        raise Forbidden(f"expected a key with the role {role}, got {record.role}")


def sound_keys(connection: Connection, secret: Secret, seen: SeenKeys | None = None) -> Known:
    """Return all keys in the journal, for requests that need them to be certain.

    Args:
        seen: the keys that were read before the lock, if they were; then only later entries are read.

    Raises:
        Unavailable: the journal is not sound.
    """
    try:
        return keys_of(connection, secret, seen)
    except BrokenChain as broken:
        raise installation_journal.unsound_for_now(str(broken)) from None


def _take(known: dict[str, KeyRecord], kind: str, content: dict[str, Any], *, listed: bool) -> None:
    match kind:
        case "key_made" | "key_adopted" | "key_left":
            reach = None if content["accounts"] is None else tuple(content["accounts"])
            record = KeyRecord(**{**content, "accounts": reach if listed else ()}, sealed=kind != "key_left")
            known[record.id] = record
        case "key_rotated" | "key_revoked":
            column = "expires_at" if kind == "key_rotated" else "revoked_at"
            value = content[column]
            old = known.get(content["id"])  # unknown if an operator revokes a row that the service did not write
            if old is not None and (kind == "key_rotated" or old.revoked_at is None):
                known[old.id] = replace(old, **{column: value})


def keys_with_lists(connection: Connection, secret: Secret, ids: Collection[str]) -> Known:
    """Return some keys of the journal with their lists of accounts, by reading all of it.

    Raises:
        Unavailable: the journal is not sound.
    """
    try:
        return keys_in(
            said for said in installation_journal.read(connection, secret) if said["content"].get("id") in ids
        )
    except BrokenChain as broken:
        raise installation_journal.unsound_for_now(str(broken)) from None


def people_behind(known: Known, actor: Actor) -> frozenset[str]:
    """Return all principals that could act as this actor.

    These are the principals that had the key's token, and those that could act as one of them. A principal that makes
    or rotates a key receives its token, and so does one that repeats the request as the same principal. Tokens of keys
    that the operator makes, by a command or with the first key, are shown to no other principal. Where an entry names
    no key, or one of another installation, all keys of its principal count.
    """
    names = defaultdict[str, list[str]](list)  # keys by principal
    for key_id, record in known.items():
        names[record.name].append(key_id)
    people, seen, operator = {actor.name}, set[str](), _operator(known)
    waiting = [actor.key] if actor.key is not None and actor.key in known else names.pop(actor.name, [])
    while waiting:
        record = known[waiting.pop()]
        if record.id in seen or record.created_by is None or record.created_by == operator:
            continue
        seen.add(record.id)
        people.add(record.created_by)
        waiting += names.pop(record.created_by, [])  # once, however many keys a principal made
        if record.rotated_from is not None and record.rotated_from in known:
            waiting.append(record.rotated_from)
    return frozenset(people)


def _operator(known: Known) -> str | None:
    """Return the principal as which the operator makes keys over HTTP, with the first key.

    It is None if another principal had one of its tokens: one that made or rotated a key of that principal could act as
    it.
    """
    made_by = {record.created_by for record in known.values() if record.name == FIRST_PRINCIPAL}
    return FIRST_PRINCIPAL if made_by <= {None, FIRST_PRINCIPAL} else None
