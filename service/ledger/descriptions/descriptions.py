"""Descriptions of accounts and releases: edits of their metadata, each a journal entry of the account.

An entry holds the complete metadata after the edit, so the last one alone is valid, and a row of ``descriptions``
repeats it for look-ups. Rows are only added, like entries.
"""

from dataclasses import replace

from sqlalchemy import Connection, insert

from service.errors import InvalidInput
from service.ledger.accounts import accounts, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.descriptions.description_rows import before_description, metadata_since
from service.ledger.descriptions.metadata import LARGEST, Metadata, merged, write_metadata
from service.ledger.idempotent_write import Operation
from service.ledger.journal.entries import Described, Filing
from service.ledger.journal.journal import BEFORE_FIRST, Actor, Head
from service.ledger.releases.releases import read_release, state_at
from service.ledger.releases.reservations import SettledRelease
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.storage.tables import Description

Patch = dict[str, str | list[str] | None]


def describe_account(database: Database, request: Request, name: str, patch: Patch) -> Operation[AccountRecord]:
    """Return the operation that merges a patch into an account's metadata; it writes nothing if nothing changes.

    Args:
        patch: values by name; None removes one (RFC 7396).

    Raises:
        NotFound: there is no such account.
        InvalidInput: the merged metadata would be too long.
    """
    line = lines.line_of(database, name)
    seen, vouched = _vouched(database, name, None, BEFORE_FIRST)

    def work(connection: Connection, at: str) -> AccountRecord:
        locked = lines.lock_account(connection, line)
        old = metadata_since(connection, locked.chain, None, seen, vouched)
        new = _write(connection, locked, None, old, patch, request.actor, at)
        return replace(accounts.read_account(connection, name), metadata=new)

    return Operation(work, accounts.is_committed)


def describe_release(
    database: Database, request: Request, name: str, release_id: str, patch: Patch
) -> Operation[SettledRelease]:
    """Return the operation that merges a patch into a release's metadata, whatever its state.

    An account that is closed or has spent its budget can still describe its publications.

    Args:
        patch: values by name; None removes one (RFC 7396).

    Raises:
        NotFound: there is no such account, or it has no such release.
        InvalidInput: the merged metadata would be too long.
    """
    line = lines.line_of(database, name)
    with database.read() as connection:  # its plan may be long, so it is not read under the lock
        found = read_release(connection, line.account_id, release_id)
    seen, vouched = _vouched(database, name, release_id, found.head)

    def work(connection: Connection, at: str) -> SettledRelease:
        locked = lines.lock_account(connection, line)
        lines.refuse_few_due(connection, [locked], at)  # more count as held in the answer, as they do for a charge
        old = metadata_since(connection, locked.chain, release_id, seen, vouched)
        new = _write(connection, locked, release_id, old, patch, request.actor, at)
        account = accounts.read_account(connection, name)
        state = state_at(connection, locked.id, found, at)
        return SettledRelease(replace(found, state=state, metadata=new), account)

    return Operation(work, lambda connection, settled: accounts.is_committed(connection, settled.account))


def _vouched(database: Database, name: str, release_id: str | None, first: Head) -> tuple[Head, Metadata]:
    """Return an account's head and the metadata up to it; following a journal under a lock could take long.

    Where no row finds a description, the journal is followed from ``first`` on, before which there can be none.
    """
    with database.read() as connection:
        account = accounts.read_account(connection, name)
        since = before_description(connection, account.chain, release_id) or first
        return account.head, metadata_since(connection, account.chain, release_id, since, {})


def _write(
    connection: Connection,
    account: AccountRecord,
    release_id: str | None,
    old: Metadata,
    patch: Patch,
    actor: Actor,
    at: str,
) -> Metadata:
    new = merged(old, patch)
    if new == old:
        return new  # a repeated request, such as a retry
    if len(write_metadata(new)) > LARGEST:
        raise InvalidInput.at("/metadata", f"expected at most {LARGEST} characters in all, as JSON")
    described = Described(new)
    head = described.append(connection, account.chain, actor=actor, release_id=release_id, at=at)
    rows = described.rows(Filing(account.id, head.seq, release_id, at)).added[Description]
    connection.execute(insert(Description), rows)
    accounts.save(connection, [replace(account, head=head)])
    return new
