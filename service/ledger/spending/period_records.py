"""The parts of a report of an account and a period, as ``period_report`` collects them from the journal."""

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from service.ledger.journal.account_state import ProposedChange
from service.ledger.journal.entries import ParsedEntry
from service.ledger.journal.entry_texts import PriceKey
from service.ledger.journal.journal import Head
from service.ledger.releases.reservation_rows import State
from service.ledger.spending.spending_history import SpendingPoint
from service.privacy.accounting.privacy_filter import Budget


@dataclass(frozen=True, slots=True)
class Step:
    """An entry about a release: its number, moment, actor and reason; no actor: the reservation expired."""

    seq: int
    at: str
    by: str | None
    reason: str | None = None

    @classmethod
    def of(cls, entry: ParsedEntry) -> "Step":
        """Return an entry as a step."""
        return cls(entry.seq, entry.time, entry.actor, entry.content.view().reason)


@dataclass(slots=True)
class Draws:
    """The draws of one release in a period.

    Attributes:
        number: of all draws.
        first, last: the moments of the first and the last one.
        by: the principals that drew, at most ``MOST_NAMES`` of them, in the order of their first draws.
    """

    number: int
    first: str
    last: str
    by: list[str]


@dataclass(slots=True)
class ReleaseActivity:
    """The entries of a period about one release of the account itself.

    Attributes:
        release: its id.
        first: the number of the first entry of the period about it.
        before: its state at the beginning; None: it was registered in the period.
        state: its state at the end.
        registered, approved, ended: the entries in which it was; None: not in the period. Where several persons must
            approve it, it is approved by the last one.
        approvals: those of the period, in their order, the last one of several persons among them.
        draws: None: it was not drawn in the period.
        amount: the price that the account is charged; None: no entry of the period states it.
    """

    release: str
    first: int
    before: State | None
    state: State
    registered: Step | None = None
    approved: Step | None = None
    ended: Step | None = None
    approvals: list[Step] = field(default_factory=list)
    draws: Draws | None = None
    amount: PriceKey | None = None


@dataclass(frozen=True, slots=True)
class AccountChange:
    """A change of the account, or a proposal or a rejection of one.

    Attributes:
        entry: the journal entry.
        former: the budget until then, of a change or a proposal of the budget.
        proposal: what was proposed, of a change that others made or rejected.
    """

    entry: ParsedEntry
    former: Budget | None
    proposal: ProposedChange | None


@dataclass(frozen=True, slots=True)
class Standing:
    """An account at one of its journal's entries.

    Attributes:
        head: the entry.
        budget: the budget of that time.
        spending: what it had spent and held, in nats of the budget's definition.
        used: the used part of the budget on the scale of the gauge; None: infinite.
        allotted: what it had allotted to accounts under it, counted alone; None: infinite.
    """

    head: Head
    budget: Budget
    spending: SpendingPoint
    used: Fraction | None
    allotted: Fraction | None


@dataclass(slots=True)
class ChildShare:
    """The part of the budget that an account below has used.

    Attributes:
        allotted: whether its budget was allotted, which is counted with its whole amount.
        before: the loss at the beginning of the period, of committed releases or of the allotment; None: infinite.
        spent: likewise at the end.
        counted: with what is held at the end; None: infinite.
        used: ``counted`` as a part of the budget on the scale of the gauge; None: infinite.
        releases: its releases that are committed or held at the end.
    """

    allotted: bool = False
    before: Fraction | None = Fraction(0)
    spent: Fraction | None = Fraction(0)
    counted: Fraction | None = Fraction(0)
    used: Fraction | None = Fraction(0)
    releases: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A proposed release that waits at the end of the period."""

    release: str
    name: str
    by: str
    at: str
    expires_at: str | None


@dataclass(slots=True)
class PeriodReport:
    """A period of an account, by its journal.

    Attributes:
        beginning: the account before the period; None: it was opened in the period.
        end: the account after it.
        numbers: the entries of the period by kind, for releases of the account itself, and ``drawn``.
        releases: a page of the releases with an entry in the period.
        more: whether others follow.
        changes: the last ``MOST_CHANGES`` changes; ``numbers["changes"]`` counts all.
        children: the accounts below that have charged the account, by name.
        waiting: the oldest ``MOST_WAITING`` releases that wait for approval at the end.
        number_waiting: of all of these.
        proposed: the change that waits at the end.
    """

    beginning: Standing | None
    end: Standing
    numbers: Counter[str]
    releases: list[ReleaseActivity]
    more: bool
    changes: list[AccountChange]
    children: dict[str, ChildShare]
    waiting: list[Waiting]
    number_waiting: int
    proposed: ProposedChange | None
