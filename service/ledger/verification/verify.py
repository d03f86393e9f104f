"""Verification of the ledger against its journal, and of the journal against itself.

Every row that an entry wrote is read beside the entry. Tables are streamed in the order of the journal, so memory grows
only with what later entries are compared with, such as 24 to 48 bytes for each draw. All reads see one moment of the
database, so charges continue meanwhile.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, select

from service.errors import NotFound
from service.ledger.access.key_lives import KeyLives, lives_of
from service.ledger.accounts import account_periods, account_rows, budgets
from service.ledger.accounts.approvers import write_approvers
from service.ledger.accounts.caps import write_cap_totals, write_caps, write_prices
from service.ledger.journal.account_state import AccountState, ends_by_itself
from service.ledger.journal.chains import MISSING, UNREADABLE, BadEntry, BrokenChain
from service.ledger.journal.entry_texts import price_key_in
from service.ledger.journal.journal import Head, JournalEntry
from service.ledger.journal.linked_heads import require_linked
from service.ledger.journal.ordered_rows import BadRow, stream
from service.ledger.journal.replay import caps_of
from service.ledger.releases import reservation_rows
from service.ledger.spending.spending_rows import is_sum
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.tables import Account, Entry, Hold, Spending
from service.ledger.storage.transaction import newest_known, secret_of
from service.ledger.verification.approval_check import check_approvals
from service.ledger.verification.chain_check import Audit
from service.ledger.verification.funding_check import check_funding, written_sum
from service.ledger.verification.line_check import check_below, check_line
from service.ledger.verification.row_check import RowVerifier
from service.ledger.verification.window_check import check_windows


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of verification: the number of good entries, and the first bad one."""

    entries: int
    first_bad: BadEntry | None = None

    @property
    def valid(self) -> bool:
        """Return whether everything agrees with the journal."""
        return self.first_bad is None


def verify(
    connection: Connection,
    name: str | bytes,
    kept: Collection[Head] = (),
    lives: KeyLives | None = None,
    *,
    one_of_all: bool = False,
) -> Verdict:
    """Verify an account against its journal, and the journal against heads that were kept elsewhere.

    Args:
        kept: the heads that were kept elsewhere.
        lives: of keys, from the installation's journal; read from it where this is None.
        one_of_all: every account of the ledger is verified: each is compared with those under it, and not also with the
            one above.

    Returns:
        The first fault only; entries before it are good.

    Raises:
        NotFound: there is no such account.
        Unavailable: the journal was altered while it was read, and is not the one that this process knows.
    """
    if not isinstance(name, str):  # SQLite takes any type, and any bytes as a text, in any column
        return Verdict(0, BadEntry(1, "the account's name is no text"))
    account = account_rows.read_row(connection, name)
    if account is None:
        raise NotFound("account", name)
    known = newest_known(connection, account.name)
    if known is not None:
        kept = [*kept, Head(known.seq, known.hash)]
    repriced = select(Entry.release_id).where(Entry.account_id == account.id, Entry.kind == "repriced")
    found = frozenset(connection.execute(repriced).scalars())
    audit = Audit(name, lives_of(connection) if lives is None else lives, found)
    try:
        with ExitStack() as cursors:
            _hold_against(connection, account, audit, kept, cursors, one_of_all=one_of_all)
            (check_below if one_of_all else check_line)(connection, audit.chain, account)
    except BadRow as bad:
        return Verdict(bad.seq - 1, BadEntry(bad.seq, str(bad)))
    except (
        UNREADABLE
    ):  # SQLite takes any type, and any bytes as a text, in any column, and a rebuilt chain may state anything
        good = audit.chain.head.seq
        return Verdict(good, BadEntry(good + 1, "the entry or one of its rows has invalid content"))
    head = audit.chain.head
    require_linked(connection, account.id, KnownHead(name, head.seq, head.hash))  # so that it is marked
    return Verdict(head.seq)


def _hold_against(
    connection: Connection,
    account: Row[Any],
    audit: Audit,
    kept: Collection[Head],
    cursors: ExitStack,
    *,
    one_of_all: bool,
) -> None:
    chain, rows = audit.chain, RowVerifier(connection, account.id, audit, cursors)
    query = select(Entry.seq, Entry.kind, Entry.release_id, Entry.body, Entry.hash)
    query = query.where(Entry.account_id == account.id).order_by(Entry.seq)
    for entry in map(JournalEntry._make, stream(connection, query, cursors)):
        _take(rows, chain, entry, kept)
    _check_head(chain, Head(account.head_seq, account.head_hash), kept)
    try:
        audit.check_end()
    except BrokenChain as broken:
        raise BadRow(chain.head.seq, str(broken)) from None
    rows.check_end()
    _check_account(connection, chain, account)
    check_approvals(connection, chain.parent, audit.approvals, one_of_all=one_of_all)
    check_windows(connection, chain, account, cursors)
    check_funding(connection, chain, account, cursors)
    _check_holds(connection, chain, account, cursors)
    _check_spending(connection, chain, account, cursors)


def _take(rows: RowVerifier, chain: AccountState, entry: JournalEntry, kept: Collection[Head]) -> None:
    expected = chain.head.seq + 1
    try:
        rows.take(entry)
    except BrokenChain as broken:
        raise BadRow(expected, str(broken)) from None
    if any(entry.seq == head.seq and entry.hash != head.hash for head in kept):
        raise BadRow(entry.seq, "the entry is not the one that was kept")


def _check_head(chain: AccountState, stored: Head, kept: Collection[Head]) -> None:
    last = chain.head.seq
    if last < max(stored.seq, 1, *(head.seq for head in kept)):
        raise BadRow(last + 1, MISSING)
    if stored != chain.head:
        raise BadRow(last, "the account's head is not the last entry")


def _check_account(connection: Connection, chain: AccountState, account: Row[Any]) -> None:
    """Check the account's row: the values that its first entry fixed, and the results of all entries."""
    fixed = {
        "unit": (account.unit, chain.unit),
        "neighbouring": (account.neighbouring, chain.neighbouring.value),
        "description": (account.description, chain.description),
        "admission": (account.admission, budgets.write_weights(chain.weights)),
        "created_at": (account.created_at, chain.created_at),
        "parent": (account.parent, chain.parent),
        "periods": (account.periods, None if chain.periods is None else account_periods.write(chain.periods)),
        "funding": (account.funding, chain.funding),
    }
    caps = caps_of(chain)
    budget = None if chain.budget is None else json.dumps(budgets.write_budget(chain.budget))
    present = {
        "budget": (account.budget, budget),
        "state": (account.state, chain.state),
        "approval_above": (account.approval_above, chain.approval_above),
        "approvers": (account.approvers, None if chain.approvers is None else write_approvers(chain.approvers)),
        "next_expiry": (account.next_expiry, chain.next_expiry),
        "releases": (account.releases, chain.releases),
        "caps": (account.caps, write_caps(caps)),
        "cap_totals": (account.cap_totals, write_cap_totals(caps)),
        "allotted": (account.allotted, written_sum(chain.allotted)),
    }
    if chain.periods is None:  # or else they are those of its windows
        present["totals"] = (account.totals, budgets.write_totals(chain.totals))
    below = select(func.sum(Account.releases)).where(Account.parent_id == account.id, Account.funding.is_(None))
    if chain.releases != chain.own_releases + int(connection.execute(below).scalar_one() or 0):
        raise BadRow(chain.head.seq, "the releases are not those of the account and of the accounts under it")
    for seq, columns in ((1, fixed), (chain.head.seq, present)):
        for column, (stored, journalled) in columns.items():
            if stored != journalled:
                raise BadRow(seq, f"the account's {column} does not follow from the journal")
    if not account_rows.is_sealed(secret_of(connection), account._mapping):
        raise BadRow(chain.head.seq, account_rows.unsealed(account))


def _check_holds(connection: Connection, chain: AccountState, account: Row[Any], cursors: ExitStack) -> None:
    """Check the account's holds: exactly those of its entries, at their price."""
    query, secret = select(*reservation_rows.COLUMNS).where(Hold.account_id == account.id), secret_of(connection)
    missing = set(chain.held)
    for row in stream(connection, query, cursors):
        held = chain.held.get(row.release_id)
        stored = price_key_in(row.price), row.periods, row.expires_at
        if held is None or stored != (held.charge.amount, held.charge.periods, ends_by_itself(held)):
            raise BadRow(chain.head.seq, "a row of holds does not follow from the journal")
        if row.caps != write_prices(held.charge.caps):
            raise BadRow(chain.head.seq, "a row of holds does not follow from the journal")
        if not reservation_rows.is_sealed(secret, row):
            raise BadRow(chain.head.seq, "a row of holds was not written by the service")
        missing.discard(row.release_id)
    if missing:
        raise BadRow(chain.head.seq, "a release that is held has no row in holds")


def _check_spending(connection: Connection, chain: AccountState, account: Row[Any], cursors: ExitStack) -> None:
    """Check the occurrences of each distinct subplan: exactly those of the entries, under the subplan's digest."""
    query = select(Spending.digest, Spending.subplan, Spending.occurrences, Spending.reserved)
    spent, reserved = Counter(chain.spent), chain.reserved
    for row in stream(connection, query.where(Spending.account_id == account.id), cursors):
        counted = (
            hashlib.sha256(row.subplan.encode()).hexdigest(),
            spent.pop(row.subplan, 0),
            reserved.pop(row.subplan, 0),
        )
        if counted != (row.digest, row.occurrences, row.reserved):
            raise BadRow(chain.head.seq, "a row of spending does not follow from the journal")
    if +spent or +reserved:
        raise BadRow(chain.head.seq, "a spent plan has no row in spending")
    if not is_sum(secret_of(connection), account.id, account.spending_sum, chain.spent, chain.reserved):
        raise BadRow(chain.head.seq, "the account's sum of its spending does not follow from the journal")
