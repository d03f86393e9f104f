"""Describing accounts and releases: edits of their metadata, each a journal entry of the account.

An entry holds the metadata as they are after it, so that the last one alone says what holds, and a row of
``descriptions`` repeats it to be found. Rows are only added, like entries.
"""

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import Connection, insert

from service.errors import InvalidInput
from service.ledger import accounts
from service.ledger.accounts import AccountRecord
from service.ledger.database import Database
from service.ledger.description_rows import require_vouched
from service.ledger.entries import Described, Filing
from service.ledger.holds import Settled
from service.ledger.idempotency import Request
from service.ledger.journal import Actor, has_entry
from service.ledger.metadata import LARGEST, Metadata, merged, write_metadata
from service.ledger.once import Answer, once
from service.ledger.releases import metadata_of, read_release, state_at
from service.ledger.settling import without_due
from service.ledger.tables import Description

Patch = dict[str, str | list[str] | None]


def describe_account(
    database: Database, request: Request, name: str, patch: Patch, render: Callable[[AccountRecord], str]
) -> Answer:
    """Merge a patch into an account's metadata; where it changes nothing, nothing is written.

    Raises:
        NotFound: there is no such account.
        InvalidInput: all of it would be too long.
    """
    line = accounts.line_of(database, name)
    vouched = _vouched(database, name, None)

    def work(connection: Connection, at: str) -> AccountRecord:
        locked = accounts.lock_account(connection, line)
        old = accounts.read_account(connection, name).metadata
        if old != vouched:
            require_vouched(connection, locked.chain, None)
        _write(connection, locked, None, old, patch, request.actor, at)
        return accounts.read_account(connection, name)

    def landed(connection: Connection, account: AccountRecord) -> bool:
        return has_entry(connection, account.id, account.head)

    return once(database, request, work, status=200, render=render, landed=landed)


def describe_release(
    database: Database, request: Request, name: str, release_id: str, patch: Patch, render: Callable[[Settled], str]
) -> Answer:
    """The same of a release, whatever its state: an account that is closed or spent can still say what it published.

    Raises:
        NotFound: there is no such account, or it has no such release.
        InvalidInput: all of it would be too long.
    """
    line = accounts.line_of(database, name)
    with database.read() as connection:  # its plan may be long, and is not read under the lock
        found = read_release(connection, line.account_id, release_id)
    vouched = _vouched(database, name, release_id)

    def work(connection: Connection, at: str) -> Settled:
        locked = accounts.lock_account(connection, line)
        old = metadata_of(connection, locked.id, release_id)
        if old != vouched:
            require_vouched(connection, locked.chain, release_id)
        _write(connection, locked, release_id, old, patch, request.actor, at)
        account = without_due(connection, accounts.read_account(connection, name), at)
        state, said = state_at(connection, locked.id, found, at), metadata_of(connection, locked.id, release_id)
        return Settled(replace(found, state=state, metadata=said), account)

    def landed(connection: Connection, settled: Settled) -> bool:
        return has_entry(connection, settled.account.id, settled.account.head)

    return once(database, request, work, status=200, render=render, landed=landed)


def _vouched(database: Database, name: str, release_id: str | None) -> Metadata:
    """What is said of an account, or of a release of it, as its journal vouches for; not followed under a lock."""
    with database.read() as connection:
        account = accounts.read_account(connection, name)
        return require_vouched(connection, account.chain, release_id)


def _write(
    connection: Connection,
    account: AccountRecord,
    release_id: str | None,
    old: Metadata,
    patch: Patch,
    actor: Actor,
    at: str,
) -> None:
    new = merged(old, patch)
    if new == old:
        return  # said twice, as a retry does
    if len(write_metadata(new)) > LARGEST:
        raise InvalidInput.at("/metadata", f"expected at most {LARGEST} characters in all, as JSON")
    described = Described(new)
    head = described.append(connection, account.chain, actor=actor, release_id=release_id, at=at)
    rows = described.rows(Filing(account.id, head.seq, release_id, at)).added[Description]
    connection.execute(insert(Description), rows)
    accounts.save(connection, [replace(account, head=head)])
