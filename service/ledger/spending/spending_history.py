"""The spending history of an account: its spending after each of its journal's entries.

The journal is the only source. Its entries carry the prices and budgets of their time, so the history cannot differ
from the admission decisions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from sqlalchemy import Connection, func, select

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.caps import OPENING, Cap
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.entries import KINDS, Registration, read_text
from service.ledger.journal.journal import up_to
from service.ledger.journal.replay import replayed_entries
from service.ledger.storage.tables import Entry
from service.privacy.accounting.privacy_filter import remaining_after, spent_of_cap

_CHANGING = tuple(kind for kind, options in KINDS.items() if any(option.CHANGES_BALANCE for option in options))
"""The kinds of entries that can change committed or held spending, or the budget; an approval may commit at once."""


@dataclass(frozen=True, slots=True)
class SpendingPoint:
    """The state of an account right after one entry, in nats of its budget's definition.

    Attributes:
        seq: the number of the entry.
        kind: of the entry.
        at: the moment of the entry.
        cap: of the budget at that entry.
        committed: the loss that admission counts for committed releases; None is infinite.
        counted: with held releases; this is compared with the cap.
        remaining: of the cap.
        delta: the declared deltas of the counted releases.
        releases: the number of counted releases, with those of the accounts under it.
        name: of the release that the entry registers; None: it registers none.
    """

    seq: int
    kind: str
    at: str
    cap: Fraction
    committed: Fraction | None
    counted: Fraction | None
    remaining: Fraction
    delta: Fraction
    releases: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class SpendingHistory:
    """Steps in order: after the first and last entry, and every ``every``-th that can change the counted spending."""

    every: int
    steps: tuple[SpendingPoint, ...]


def spending_history(
    connection: Connection, account: AccountRecord, points: int, cap: Cap | None = None
) -> SpendingHistory:
    """Return an account's spending history up to its head, by at most ``points`` steps; ``points`` is at least 2.

    The whole journal is read once.

    Args:
        cap: one of the account's caps on tags, for what that counts, from the entry on that set it; None: the budget.

    Raises:
        Altered: the journal is not as the service wrote it.
    """
    first = OPENING if cap is None else cap.since
    counting = select(func.count()).where(
        Entry.account_id == account.id,
        Entry.seq >= first,
        up_to(Entry.seq, account.head.seq),
        Entry.kind.in_(_CHANGING),
    )
    number = connection.execute(counting).scalar_one()
    every = max(1, -(-(number - 1) // (points - 1)))
    return SpendingHistory(every, tuple(_steps(connection, account, number, every, cap)))


def _steps(
    connection: Connection, account: AccountRecord, number: int, every: int, cap: Cap | None
) -> Iterator[SpendingPoint]:
    chain, place = AccountState(account.name, subplans=False), 0
    for entry in replayed_entries(connection, account, chain, account.head.seq, _CHANGING):
        if cap is not None and entry.seq < cap.since:
            continue
        if place % every == 0 or place == number - 1:
            parsed = read_text(entry.body)
            name = parsed.content.name if isinstance(parsed.content, Registration) else None
            point = point_of(chain, parsed.kind, parsed.time, None if cap is None else cap.tag)
            yield replace(point, name=name)
        place += 1


def point_of(chain: AccountState, kind: str, at: str, tag: str | None = None) -> SpendingPoint:
    """Return the spending of an account right after the last entry that its state has followed, without a name.

    Args:
        chain: the state.
        kind: of that entry.
        at: the moment of that entry.
        tag: of the cap whose count it is; None: the budget's.
    """
    budget, weights, totals, committed = chain.current_budget, chain.weights, chain.totals, chain.committed_totals
    if tag is not None:
        cap = chain.caps.find(tag)
        budget, weights, totals, committed = cap.budget, cap.weights, cap.totals, cap.committed.totals
    counted = spent_of_cap(budget, weights, totals)
    return SpendingPoint(
        seq=chain.head.seq,
        kind=kind,
        at=at,
        cap=budget.cap,
        committed=spent_of_cap(budget, weights, committed) if chain.held else counted,
        counted=counted,
        remaining=remaining_after(budget, counted),
        delta=totals.delta,
        releases=chain.releases,
    )
