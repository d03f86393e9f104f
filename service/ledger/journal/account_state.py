"""The state of an account as its journal has it so far, which entries change when they are replayed.

The state keeps what is held and what is distinct, never a committed release. A chain of a million entries of a thousand
distinct plans is a thousand counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.ledger.accounts.account_periods import EVERY_PERIOD
from service.ledger.accounts.allotments import AllottedSum, Funding
from service.ledger.accounts.approvers import Approvers
from service.ledger.descriptions.metadata import Metadata
from service.ledger.journal import chains
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.charge_sums import CapPrices, CapStates, ChargeSum
from service.ledger.journal.entry_texts import PriceKey, SpendingKey, price_of_key, read_text, subplans_of
from service.ledger.journal.journal import BEFORE_FIRST, Actor
from service.ledger.journal.window_sums import WindowSums
from service.ledger.releases.reservation_rows import expires
from service.ledger.spending.spending_rows import Subplans
from service.ledger.spending.subplans import allotted_to, charged_to
from service.ledger.spending.window_rows import Window
from service.ledger.spending.window_state import WindowState
from service.privacy.accounting.privacy_filter import Budget, Weights
from service.privacy.accounting.totals import Totals, add_prices, add_totals
from service.privacy.periods import Periods
from service.privacy.plans.walking import Neighbouring

_DISTINCT = 4096  # amounts and plans that are counted before they are added up
_VOLUME = 1 << 26  # characters of those plans


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change of an account that waits for the approval of other persons.

    Attributes:
        seq: the number of its entry.
        change: the budget or the state that the account is to have, as the entry says it.
        by: the proposing steward.
        reason: the steward's own words; None: none were given.
        approved: those that approved it so far.
    """

    seq: int
    change: dict[str, Any]
    by: Actor
    at: str
    reason: str | None = None
    approved: tuple[Actor, ...] = ()


class Charge(NamedTuple):
    """A release as an account counts it.

    Attributes:
        amount: the price that the account is charged.
        subject: the plan and tags that the release spends on.
        own: whether it was registered in this account, and not in one under it.
        caps: its prices under the account's caps on tags.
        periods: those that the account is charged for, as canonical JSON; None: it has none.
    """

    amount: PriceKey
    subject: SpendingKey
    own: bool
    caps: CapPrices = ()
    periods: str | None = None


class Allotment(NamedTuple):
    """The charge of an allotted account to one above it.

    Attributes:
        plan: the mechanism that it counts, as canonical JSON.
        amount: the price of it.
        caps: its price under each of the account's caps on tags.
        seq: the number of the last entry about it.
    """

    plan: str
    amount: PriceKey
    caps: CapPrices
    seq: int


@dataclass(slots=True)
class HeldRelease:
    """A release that is proposed or reserved.

    Attributes:
        by: the actor that registered it.
        asking: the accounts of its line that ask for its approval; None: an older version did not state them.
        approved: those that approved it so far.
    """

    state: str
    charge: Charge
    expires_at: str | None
    by: Actor
    asking: tuple[str, ...] | None = None
    approved: tuple[Actor, ...] = ()


class AccountState:
    """An account as its journal has it so far; entries change it in their order.

    Without ``subplans`` it counts the prices and not the subplans, which are most of the work for unlike plans.
    """

    def __init__(self, name: str, *, subplans: bool = True) -> None:
        self.name = name
        self._counts_subplans = subplans
        self.head = BEFORE_FIRST
        self.created_at = ""
        self.unit = ""
        self.description = ""
        self.parent: str | None = None
        self.funding: Funding | None = None
        self.allotments: dict[str, Allotment] = {}  # by the names of the allotted accounts
        self.neighbouring = Neighbouring.ADD_REMOVE
        self.weights = Weights()
        self.budget: Budget | None = None
        self.periods: Periods | None = None
        self.state = "open"
        self.approval_above: str | None = None
        self.approvers: Approvers | None = None
        self.metadata: Metadata = {}  # the account's own
        self.proposed: ProposedChange | None = None
        self.committed = 0  # committed releases, with those of the accounts under it
        self.own_committed = 0  # committed releases of its own
        self.held: dict[str, HeldRelease] = {}
        # The prices of committed and of held releases; with periods, of those to all periods.
        self._committed, self._holds = ChargeSum(), ChargeSum()
        self._common = 0  # committed and held releases to all periods
        self._windows: WindowSums | None = None  # of the other releases of an account with periods
        self._spent: Subplans = Counter()  # subplans, except those of the plans counted in _subjects
        self._subjects: Counter[tuple[SpendingKey, str | None]] = Counter()
        self._volume = 0  # characters of the counted plans
        self.caps = CapStates()

    def commit(self, charge: Charge) -> None:
        """Count a release that is committed, here or in an account below."""
        self.committed += 1
        self.own_committed += charge.own
        self._add(charge, held=False)
        self.caps.commit(charge.caps)
        if self._counts_subplans:
            subject = charge.subject, charge.periods
            self._subjects[subject] += 1
            if self._subjects[subject] == 1:
                self._volume += len(charge.subject[0])
            if len(self._subjects) > _DISTINCT or self._volume > _VOLUME:
                self._add_up_subjects()

    def count_by(self, periods: Periods) -> None:
        """Count by periods, from the first entry on."""
        self.periods, self._windows = periods, WindowSums(periods)

    def _add(self, charge: Charge, count: int = 1, *, held: bool) -> None:
        """Add a charge ``count`` times; a negative count takes it away.

        Raises:
            BrokenChain: it states periods and the account has none, or the other way round.
            InvalidInput, ValueError: the service writes no such periods.
        """
        if (charge.periods is None) != (self._windows is None):
            raise BrokenChain("expected periods of a release in an account with periods, and in no other")
        if self._windows is not None and charge.periods is not None and charge.periods != EVERY_PERIOD:
            self._windows.add(charge.periods, charge.amount, self.head.seq + 1, count, held=held)
            return
        self._common += count
        (self._holds if held else self._committed).add(charge.amount, count)

    def allot(self, account: str, allotment: Allotment) -> None:
        """Count an allotment, in place of the present one to the same account.

        Raises:
            BrokenChain: it has a price under a cap that the account does not have.
            TypeError, ValueError: one of its prices is invalid.
        """
        price_of_key(allotment.amount)
        former = self.allotments.get(account)
        if former is not None:
            self._count_allotment(account, former, -1)
        self._count_allotment(account, allotment, 1)
        self.allotments[account] = allotment

    def _count_allotment(self, account: str, allotment: Allotment, count: int) -> None:
        self._committed.add(allotment.amount, count)  # of all periods, where the account has some
        for tag, amount in allotment.caps:
            self.caps.find(tag).committed.add(amount, count)
        if self._counts_subplans:
            subplan = allotted_to(account, allotment.plan)
            (counted,) = charged_to(Counter([subplan]), None if self.periods is None else EVERY_PERIOD)
            self._spent[counted] += count
            if not self._spent[counted]:
                del self._spent[counted]

    @property
    def allotted(self) -> AllottedSum | None:
        """Return what the account has allotted; None: nothing ever."""
        if not self.allotments:
            return None
        amounts = [(price_of_key(one.amount), 1) for one in self.allotments.values()]
        return AllottedSum(len(amounts), add_prices(Totals(), amounts))

    def hold(self, release: str, held: HeldRelease) -> None:
        """Hold a release.

        Raises:
            BrokenChain: it is held already.
            TypeError, ValueError: it has no valid price.
        """
        if release in self.held:
            raise BrokenChain("the release is held already")
        price_of_key(held.charge.amount)
        self._add(held.charge, held=True)
        self.caps.hold(held.charge.caps)
        self.held[release] = held

    def hold_under_cap(self, tag: str, prices: Iterable[tuple[str, PriceKey]]) -> None:
        """Count held releases under a new cap.

        Args:
            prices: by the releases' ids.

        Raises:
            BrokenChain: one of them is not held.
        """
        for release, amount in prices:
            held = self.require_held(release)
            held.charge = held.charge._replace(caps=tuple(sorted((*held.charge.caps, (tag, amount)))))
            self.caps.hold([(tag, amount)])

    def require_held(self, release: str) -> HeldRelease:
        """Return the hold of a release.

        Raises:
            BrokenChain: it is not held.
        """
        held = self.held.get(release)
        if held is None:
            raise BrokenChain("the release is not held")
        return held

    def settle(self, release: str, state: str) -> None:
        """End the hold of a release that is committed, voided or expired.

        Raises:
            BrokenChain: it is not held.
        """
        held = self.require_held(release)
        del self.held[release]
        self._add(held.charge, -1, held=True)
        self.caps.hold(held.charge.caps, -1)
        if state == "committed":
            self.commit(held.charge)

    def approve(self, release: str, state: str, by: Actor) -> None:
        """Take the approval of a proposed release, and bring it to another state if it is the last one.

        Args:
            state: that it comes to; ``proposed`` while others must approve it too.

        Raises:
            BrokenChain: it was not proposed, or comes to a state that no approval leads to.
        """
        held = self.require_held(release)
        if held.state != "proposed" or state not in ("proposed", "reserved", "committed"):
            raise BrokenChain(
                "the approved release was not proposed, or its new state is not one that an approval leads to"
            )
        held.approved = (*held.approved, by)
        if state == "committed":
            self.settle(release, state)
        else:
            held.state = state

    def reprice(
        self,
        release: str,
        was: PriceKey,
        amount: PriceKey,
        caps: Mapping[str, tuple[PriceKey, PriceKey]],
        periods: str | None,
    ) -> None:
        """Count a release at another price.

        Args:
            was: the price until now.
            caps: for each cap whose price changes too, the price until now and the new one.
            periods: those that the account is charged for; None: it has none.

        Raises:
            BrokenChain: it is held at another price than ``was``.
            TypeError, ValueError: one of the prices is invalid.
        """
        price_of_key(was), price_of_key(amount)
        held = self.held.get(release)
        if held is not None:
            before = dict(held.charge.caps)
            same = (held.charge.amount, held.charge.periods) == (was, periods)
            if not same or any(before.get(tag) != old for tag, (old, _) in caps.items()):
                raise BrokenChain("the release had another price, or other periods")
            after = before | {tag: new for tag, (_, new) in caps.items()}
            held.charge = held.charge._replace(amount=amount, caps=tuple(after.items()))
        charge = Charge(was, ("", ()), own=False, periods=periods)
        self._add(charge, -1, held=held is not None)
        self._add(charge._replace(amount=amount), held=held is not None)
        for tag, (old, new) in caps.items():
            cap = self.caps.find(tag)
            costs = cap.committed if held is None else cap.holds
            costs.add(old, -1)
            costs.add(new)

    def _add_up_subjects(self) -> None:
        for (subject, periods), count in self._subjects.items():
            for subplan, times in charged_to(subplans_of(subject), periods).items():
                self._spent[subplan] += times * count
        self._subjects.clear()
        self._volume = 0

    @property
    def current_budget(self) -> Budget:
        """Return the budget.

        Raises:
            BrokenChain: no entry has opened the account.
        """
        if self.budget is None:
            raise BrokenChain(chains.MISSING)
        return self.budget

    @property
    def committed_totals(self) -> Totals:
        """Return the sum of the committed prices; with periods, totals nowhere below those of any window."""
        committed = self._committed.totals
        if self._windows is None:
            return committed
        windows = {place: Window(one.committed) for place, one in self._windows.windows.items()}
        return add_totals(committed, WindowState.of(self.weights, self._windows.periods, windows=windows).most)

    @property
    def held_totals(self) -> Totals:
        """Return the sum of the held prices; with periods, of those to all periods."""
        return self._holds.totals

    @property
    def totals(self) -> Totals:
        """Return the sum of the committed and held prices; with periods, totals nowhere below those of any window."""
        windows = self.windows
        return add_totals(self._committed.totals, self._holds.totals) if windows is None else windows.bound

    @property
    def windows(self) -> WindowState | None:
        """Return the windows, all of them present, and none of them stored; None without periods."""
        if self._windows is None:
            return None
        common = Window(self._committed.totals, self._holds.totals, self._common)
        return WindowState.of(self.weights, self._windows.periods, common, self._windows.windows)

    @property
    def is_below_zero(self) -> bool:
        """True where more was taken away than was charged, in any window."""
        windows = self.windows
        return self.totals.is_below_zero if windows is None else windows.is_below_zero

    @property
    def releases(self) -> int:
        """Return the number of releases that are committed or held, with those of the accounts under it."""
        return self.committed + len(self.held)

    @property
    def own_releases(self) -> int:
        """Return the number of those releases that were registered in this account."""
        return self.own_committed + sum(held.charge.own for held in self.held.values())

    @property
    def next_expiry(self) -> str | None:
        """Return the moment of the first expiry among the holds; None if none expires by itself."""
        return min((ends for held in self.held.values() if (ends := ends_by_itself(held)) is not None), default=None)

    @property
    def spent(self) -> Subplans:
        """Return the subplans of committed releases."""
        self._add_up_subjects()
        return self._spent

    @property
    def reserved(self) -> Subplans:
        """Return the subplans of held releases."""
        subplans: Subplans = Counter()
        for held in self.held.values():
            subplans.update(charged_to(subplans_of(held.charge.subject), held.charge.periods))
        return subplans


def ends_by_itself(held: HeldRelease) -> str | None:
    """Return the moment at which a hold expires; None if its release may have been published unseen."""
    if held.expires_at is None or not expires(read_text(held.charge.subject[0])):
        return None
    return held.expires_at
