"""Replay of the journal: the account at any of its entries, from no other source."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from sqlalchemy import Connection

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.caps import Cap
from service.ledger.journal import chains, entries, journal
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.chains import UNREADABLE
from service.ledger.journal.entries.committed_texts import registered
from service.ledger.journal.journal import Head, JournalEntry
from service.ledger.spending.spending_rows import Subplans
from service.privacy.accounting.totals import Totals


@dataclass(frozen=True, slots=True)
class AccountReplay:
    """An account as its journal had it: the record, and the subplans that it had committed and held.

    Attributes:
        held: the sum of what it held; with periods, of what it held for all of them.
    """

    account: AccountRecord
    committed: Subplans
    reserved: Subplans
    held: Totals


def replayed_entries(
    connection: Connection,
    account: AccountRecord,
    chain: AccountState,
    until: int,
    kinds: Collection[str] | None = None,
) -> Iterator[JournalEntry]:
    """Yield each entry of an account's journal up to ``until``, after ``chain`` has replayed it.

    Nothing that depends on the entries may be used before the last one was taken: only the sealed hash of the
    account's head, which the whole journal up to it gives, authenticates them.

    Args:
        chain: of an account whose journal was not read yet.
        until: the number of the last entry to replay.
        kinds: the kinds of entries to replay and yield; None: all.

    Raises:
        Altered: the journal, up to its head, is not as the service wrote it.
    """
    for entry in chains.chained(connection, account.id, journal.BEFORE_FIRST, account.head):
        if entry.seq > until or (kinds is not None and entry.kind not in kinds):
            continue
        follow(chain, account.id, entry)
        yield entry


def follow(chain: AccountState, account_id: int, entry: JournalEntry) -> None:
    """Apply an entry of an account's journal to its state.

    Raises:
        Altered: the entry cannot stand there.
    """
    try:
        _follow(chain, entry)
    except UNREADABLE as broken:  # the chain is not the sealed one, as its end would show
        raise chains.altered(account_id, entry.seq, broken) from None


def _follow(chain: AccountState, entry: JournalEntry) -> None:
    head = Head(entry.seq, entry.hash)
    charge = registered(entry.body) if entry.kind == "committed" else None
    if charge is None:
        entries.read_text(entry.body).follow(chain, head)
    else:
        chain.commit(charge)
        chain.head = head


def replay(connection: Connection, account: AccountRecord, until: int) -> AccountReplay:
    """Return the account right after entry ``until``, from its journal alone.

    At the head this gives the stored totals bit for bit: they are sums of the journalled prices.

    Args:
        until: the number of the entry.

    Raises:
        Altered: the journal is not as the service wrote it.
    """
    chain = AccountState(account.name)
    for _ in replayed_entries(connection, account, chain, until):
        pass
    moment = replace(as_row(account, chain), metadata=chain.metadata, proposed=chain.proposed)
    return AccountReplay(moment, chain.spent, chain.reserved, chain.held_totals)


def caps_of(chain: AccountState) -> tuple[Cap, ...]:
    """Return the caps on tags of an account as the entries of its journal leave them."""
    return tuple(Cap(tag, cap.budget, cap.weights, cap.since, cap.totals) for tag, cap in sorted(chain.caps.items()))


def as_row(account: AccountRecord, chain: AccountState) -> AccountRecord:
    """Return an account as the entries of its journal leave its row, but for sums of its other rows."""
    windows = chain.windows
    return replace(
        account,
        budget=chain.current_budget,
        totals=chain.totals,
        caps=caps_of(chain),
        windows=windows if windows is None or account.windows is None else replace(windows, sum=account.windows.sum),
        state=chain.state,
        head=chain.head,
        approval_above=None if chain.approval_above is None else Fraction(chain.approval_above),
        approvers=chain.approvers,
        next_expiry=chain.next_expiry,
        releases=chain.releases,
        allotted=chain.allotted,
    )
