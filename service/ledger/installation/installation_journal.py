"""The installation's journal: events that belong to no account, such as keys made and revoked.

Its entries are chained like those of accounts. Each is also sealed with the installation's secret, so an attacker who
can write the database can neither add an entry nor change one. Such an attacker can only remove the last entries, or
restore an older state of everything. Only a party that kept a head can detect that.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, insert, select

from service.errors import Conflict, Unavailable
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.chains import MISFILED, BrokenChain, check_link, read_body
from service.ledger.journal.journal import BEFORE_FIRST, Actor, Head, JournalEntry, actor_members, entry_hash
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import INSTALLATION, NO_ACCOUNT, NewEntry
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Installation, InstallationEntry
from service.ledger.storage.transaction import note_ends, note_entries, require_present, require_written

Kind = Literal[
    "key_adopted",
    "key_left",
    "key_made",
    "key_rotated",
    "key_revoked",
    "mark_acknowledged",
    "rows_sealed",
    "webhook_made",
    "webhook_changed",
    "webhook_deleted",
]

_ENTRY = select(
    InstallationEntry.seq,
    InstallationEntry.kind,
    InstallationEntry.body,
    InstallationEntry.hash,
    InstallationEntry.seal,
).order_by(InstallationEntry.seq)
_AT = _ENTRY.order_by(None).where(InstallationEntry.seq == bindparam("seq"))
_INSERT = insert(InstallationEntry).execution_options(preserve_rowcount=True)
_PURPOSE = "installation-journal"
_OF_KEYS = ("key_adopted", "key_left", "key_made", "key_rotated", "key_revoked")
_MAKING = ("key_adopted", "key_made")
_AT_ONCE = 100  # entries that a reader holds at a time; one may have 100,000 bytes


def lock_installation(connection: Connection) -> None:
    """Hold a lock, until the transaction ends, that the start-up steps of all replicas share."""
    connection.execute(select(Installation.id).with_for_update())


def append(
    connection: Connection, secret: Secret, kind: Kind, content: dict[str, object], *, actor: Actor | None, at: str
) -> Head:
    """Write the next entry in the caller's transaction and return the new head.

    Any replica that appends at the same moment waits until this transaction ends. So call this after everything that
    may wait for another lock.

    Args:
        actor: None for the operator.

    Raises:
        Unavailable: the last entry was not written with the secret. An entry after it would never be read.
    """
    lock_installation(connection)  # if the installation is not bound yet, the number's primary key admits only one
    last = sealed_head(connection, secret)
    if last is None:
        raise unsound_for_now("its last entry was not written with the installation's secret")
    body = canonical({"seq": last.seq + 1, "kind": kind, "content": content, "time": at} | actor_members(actor))
    new = Head(last.seq + 1, entry_hash(last.hash, body))
    row = {"seq": new.seq, "kind": kind, "body": body, "hash": new.hash}
    row["seal"] = secret.seal(_PURPOSE, new.seq, new.hash)  # the hash stands for the entry and for all before it
    require_written(connection.execute(_INSERT, row), 1)
    note_entries(connection, [NewEntry(NO_ACCOUNT, new.seq, new.hash, previous=last.hash)])
    note_ends(connection, _ends(kind, content))
    return new


def unsound_for_now(reason: str) -> Unavailable:
    """Return the refusal of requests that depend on the journal while it is not sound."""
    return Unavailable(
        "no key can be checked until an operator has looked at the installation's journal",
        retry_after=60,
        for_operator=f"the installation's journal is not sound: {reason}",
    )


def _ends(kind: str, content: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that an entry ends, each with its moment; a revocation holds whatever clocks say."""
    if kind not in _OF_KEYS:
        return {}
    end = content.get("expires_at") if content.get("revoked_at") is None else ""
    return {} if end is None else {content["id"]: end}


def head(connection: Connection) -> Head:
    """Return the last entry; before the first one, the head of an empty chain."""
    last = select(InstallationEntry.seq, InstallationEntry.hash).where(InstallationEntry.seq > BEFORE_FIRST.seq)
    row = connection.execute(last.order_by(InstallationEntry.seq.desc()).limit(1)).one_or_none()
    return BEFORE_FIRST if row is None else Head(*row)


def sealed_head(connection: Connection, secret: Secret) -> Head | None:
    """Return the last entry; None where it was not written with the installation's secret."""
    numbered = _ENTRY.where(InstallationEntry.seq > BEFORE_FIRST.seq)
    row = connection.execute(numbered.order_by(None).order_by(InstallationEntry.seq.desc()).limit(1)).one_or_none()
    if row is None:
        return BEFORE_FIRST
    return Head(row.seq, row.hash) if secret.is_seal(row.seal, _PURPOSE, row.seq, row.hash) else None


def has_entry(connection: Connection, entry: Head) -> bool:
    """Return whether this very entry is in the journal; the head of an empty chain is in every journal."""
    same = (InstallationEntry.seq == entry.seq, InstallationEntry.hash == entry.hash)
    return entry == BEFORE_FIRST or connection.execute(select(InstallationEntry.seq).where(*same)).first() is not None


def read(connection: Connection, secret: Secret) -> Iterator[dict[str, Any]]:
    """Yield the contents of the entries in order, each after it was checked.

    Raises:
        BrokenChain: an entry is missing, was changed, or was written without the secret; the text names the entry and
            the fault.
        Unavailable: its last entries, which this process has seen, are missing.
    """
    last = BEFORE_FIRST
    for head, members in read_after(connection, secret, BEFORE_FIRST):
        last = head
        yield members
    require_present(connection, KnownHead(INSTALLATION, last.seq, last.hash))


def read_after(connection: Connection, secret: Secret, last: Head) -> Iterator[tuple[Head, dict[str, Any]]]:
    """Yield the entries after ``last``: the head that each makes and its content, after it was checked.

    Raises:
        BrokenChain: as ``read``.
    """
    while rows := connection.execute(_ENTRY.where(InstallationEntry.seq > last.seq).limit(_AT_ONCE)).all():
        for row in rows:
            members = _checked_members(secret, last, row)
            last = Head(row.seq, row.hash)
            yield last, members


def ledger_version(connection: Connection, secret: Secret) -> str:
    """Return the name of the ledger's present version, as the last sound acknowledgement gave it; empty before any.

    A fault of the journal is for its other readers to tell.
    """
    version = ""
    with suppress(BrokenChain):
        for _, members in read_after(connection, secret, BEFORE_FIRST):
            version = begun_version(members) or version
    return version


def require_version(connection: Connection, secret: Secret) -> None:
    """Refuse to go on if this transaction sees another version of the ledger than the one that the secret has.

    The secret's version was read in another transaction, which somebody may have shown an earlier journal.

    Raises:
        Conflict: the versions differ.
    """
    if ledger_version(connection, secret) != secret.version:
        raise Conflict("the installation's journal changed at the same moment: run the command again")


def begun_version(members: Mapping[str, Any]) -> str | None:
    """Return the name of the version of the ledger that an entry began; None if it began none."""
    began: str | None = members["content"].get("version") if members["kind"] == "mark_acknowledged" else None
    return began


def _checked_members(secret: Secret, last: Head, row: Row[int, str, str, str, str]) -> dict[str, Any]:
    try:
        return _checked(secret, last, JournalEntry(row.seq, row.kind, None, row.body, row.hash), row.seal)
    except BrokenChain as broken:
        raise BrokenChain(f"entry {last.seq + 1}: {broken}") from None
    except (AttributeError, TypeError, ValueError):  # SQLite takes any type in any column
        raise BrokenChain(f"entry {last.seq + 1}: the row has invalid content") from None


def follow(database: Database, secret: Secret) -> int:
    """Read which keys were made or ended by entries that this process has not read; return the last entry's number.

    Raises:
        BrokenChain: as ``read``; the ends before that entry are known then.
        Unavailable: the last known entries are missing, or the database does not answer.
    """
    with database.newest.transaction() as moment:  # all known now was committed before what follows
        followed = database.followed
        last = BEFORE_FIRST if followed is None else Head(followed.seq, followed.hash)
        row = database.ask(_AT, {"seq": last.seq})
        if last != BEFORE_FIRST and (row is None or row.hash != last.hash):
            raise database.went_back(INSTALLATION, 0)
        version = secret.version
        while (row := database.ask(_AT, {"seq": last.seq + 1})) is not None:
            members = _checked_members(secret, last, row)
            version = begun_version(members) or version
            database.remember_ends(_ends(members["kind"], members["content"]))
            if members["kind"] in _MAKING:
                database.remember_made(members["content"]["id"])
            last = Head(row.seq, row.hash)
            if last.seq == database.newest.number(INSTALLATION):  # at a start, the marked entry
                database.require_present(KnownHead(INSTALLATION, last.seq, last.hash), moment)
        found = KnownHead(INSTALLATION, last.seq, last.hash)
        database.require_present(found, moment)
    if version != secret.version:
        database.stop("an operator acknowledged another version of the ledger: start this server again")
    if followed is not None and found != followed:
        database.note_read([NewEntry(NO_ACCOUNT, found.seq, found.hash)])
    database.followed = found
    database.newest.add([found])
    return last.seq


def _checked(secret: Secret, previous: Head, entry: JournalEntry, seal: str) -> dict[str, Any]:
    check_link(previous, entry)
    if not secret.is_seal(seal, _PURPOSE, entry.seq, entry.hash):
        raise BrokenChain("the entry was not written with the installation's secret")
    members = read_body(entry.body)
    if (members.get("seq"), members.get("kind")) != (entry.seq, entry.kind):
        raise BrokenChain(MISFILED)
    return members
