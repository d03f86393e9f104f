"""The report of an account and a period by its journal: standing before and after, releases, changes and shares.

The journal is the only source of all figures. It is read once, from its first entry to the head: only the sealed hash
of the head authenticates the entries. A period begins with the first entry that is not earlier than its beginning, and
ends before the first entry that is not earlier than its end.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice

from sqlalchemy import Connection

from service.errors import InvalidInput
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.journal import chains
from service.ledger.journal.account_state import AccountState, Allotment
from service.ledger.journal.charge_sums import ChargeSum
from service.ledger.journal.entries import (
    AccountOpened,
    ChangeOfAccount,
    Drawn,
    ParsedEntry,
    PriceChanged,
    Proposed,
    Registration,
    read_text,
)
from service.ledger.journal.entries.committed_texts import registered
from service.ledger.journal.entry_texts import PriceKey, price_of_key
from service.ledger.journal.journal import BEFORE_FIRST, Head, JournalEntry
from service.ledger.journal.replay import follow
from service.ledger.releases.releases import HELD, owners_of
from service.ledger.releases.reservation_rows import State
from service.ledger.spending.period_records import (
    AccountChange,
    ChildShare,
    Draws,
    PeriodReport,
    ReleaseActivity,
    Standing,
    Step,
    Waiting,
)
from service.ledger.spending.spending_history import point_of
from service.privacy.accounting.capacity import gauge
from service.privacy.accounting.privacy_filter import Budget, spent_of_cap
from service.privacy.accounting.totals import Totals, add_prices, add_totals

MOST_CHANGES = 200
"""The changes of the account that a report lists: the last ones of the period."""
MOST_WAITING = 200
"""The proposed releases that a report lists: the oldest ones."""
MOST_NAMES = 20
"""The principals that a report names as those who drew one release."""

_ORIGIN = re.compile(r',"origin":\{"account":"([^"\\]*)","seq":[0-9]+\}')
_IGNORED = frozenset(("described", "refused", "drawn"))  # they change nothing that is reported of an account
_ENDS: Mapping[str, State] = {"committed": "committed", "voided": "voided", "expired": "expired"}


def report_period(
    connection: Connection, account: AccountRecord, since: str, until: str, *, after: int, limit: int
) -> PeriodReport:
    """Return the report of a period.

    All figures are of the whole period, whatever the page. The releases are in the order of their first entries in the
    period.

    Args:
        since: the beginning of the period, as the ledger writes moments.
        until: its end, which is not part of it.
        after: the number of the entry that the page of releases follows; 0 for the first page.
        limit: the largest number of releases of the page.

    Raises:
        InvalidInput: the account was opened after the period.
        Altered: the journal is not as the service wrote it.
    """
    walk = _Walk(account, since, until, after, limit)
    for entry in chains.chained(connection, account.id, BEFORE_FIRST, account.head):
        walk.take(entry)
    return walk.report(connection)


@dataclass(slots=True)
class _Child:
    """The charges of an account below: its committed and held releases."""

    committed: ChargeSum = field(default_factory=ChargeSum)
    held: ChargeSum = field(default_factory=ChargeSum)
    releases: int = 0


@dataclass(frozen=True, slots=True)
class _Past:
    """The committed losses of the accounts below at one moment, and the allotments."""

    committed: Mapping[str, Totals]
    allotments: Mapping[str, Allotment]


class _Walk:
    """The way along a journal: it follows each entry up to the end of the period, and collects those of the period."""

    def __init__(self, account: AccountRecord, since: str, until: str, after: int, limit: int) -> None:
        self._account, self._since, self._until, self._after, self._limit = account, since, until, after, limit
        self._chain = AccountState(account.name, subplans=False)
        self._last: tuple[str, str] | None = None  # the kind and the moment of the last entry that was followed
        self._begun, self._over = False, False
        self._beginning: Standing | None = None
        self._past = _Past({}, {})
        self._numbers: Counter[str] = Counter()
        self._seen: set[str] = set()  # the releases with an entry in the period
        self._page: dict[str, ReleaseActivity] = {}
        self._more = False
        self._changes: list[AccountChange] = []
        self._children: dict[str, _Child] = {}
        self._origins: dict[str, str] = {}  # of held releases of accounts below
        self._proposals: dict[str, Waiting] = {}  # of the account's own releases
        self._repriced: list[tuple[str, PriceKey, PriceKey, bool]] = []  # of committed releases; the last: before

    def take(self, entry: JournalEntry) -> None:
        """Take the next entry."""
        end = chains.read_end(entry.body)
        at = "" if end is None else end.time  # an altered text, whose chain breaks later
        if not self._begun and at >= self._since:
            self._begin()
        if self._begun and at >= self._until:
            self._over = True
        if self._over:
            return
        parsed = self._note(entry, at) if self._begun else None
        self._note_proposal(entry, at)
        self._attribute(entry, parsed)
        if entry.kind not in _IGNORED:
            follow(self._chain, self._account.id, entry)
        self._chain.head = Head(entry.seq, entry.hash)
        self._last = entry.kind, at

    def _begin(self) -> None:
        self._begun = True
        if self._last is not None:
            self._beginning = self._standing()
            committed = {name: child.committed.totals for name, child in self._children.items()}
            self._past = _Past(committed, dict(self._chain.allotments))

    def _standing(self) -> Standing:
        if self._last is None:
            raise InvalidInput.at("/query/until", "expected a moment after the account was opened")
        chain = self._chain
        budget, weights = chain.current_budget, chain.weights
        amounts = [(price_of_key(one.amount), 1) for one in chain.allotments.values()]
        return Standing(
            chain.head,
            budget,
            point_of(chain, *self._last),
            gauge(budget, weights, chain.totals).used,
            spent_of_cap(budget, weights, add_prices(Totals(), amounts)),
        )

    def _note(self, entry: JournalEntry, at: str) -> ParsedEntry | None:
        """Count an entry of the period, and collect what the report lists; return it if it had to be parsed."""
        if entry.release_id is None:
            return self._note_change(entry)
        if entry.kind in ("described", "refused"):
            return None
        if entry.kind == "repriced":
            return self._note_price(entry)
        held = self._chain.held.get(entry.release_id)
        fast = registered(entry.body) if entry.kind == "committed" and held is None else None
        parsed = None
        if fast is not None:
            own = fast.own
        elif held is not None:
            own = held.charge.own
        else:
            parsed = read_text(entry.body)
            own = not isinstance(parsed.content, Registration) or parsed.content.own
        if not own:
            return parsed
        after = _state_after(entry) if entry.kind == "approved" else None
        self._numbers[entry.kind] += after != "proposed"  # the last approval, where several persons must approve
        self._numbers["committed"] += after == "committed"
        begins = fast is not None or (parsed is not None and isinstance(parsed.content, Registration))
        self._numbers["registered"] += begins
        before: State | None = None if begins else "committed" if held is None else _state(held.state)
        activity = self._activity(entry, before)
        if activity is None:
            return parsed
        parsed = parsed or read_text(entry.body)
        _describe(activity, parsed, at)
        if held is not None and activity.amount is None:
            activity.amount = held.charge.amount
        return parsed

    def _note_proposal(self, entry: JournalEntry, at: str) -> None:
        """Keep the names of proposed releases until they are settled."""
        if entry.kind == "proposed":
            parsed = read_text(entry.body)
            content = parsed.content
            if isinstance(content, Proposed) and content.own:
                waiting = Waiting(parsed.release_id, content.name, parsed.by.name, at, content.expires_at)
                self._proposals[waiting.release] = waiting
        elif entry.release_id in self._proposals and _state_after(entry) not in (None, "proposed"):
            del self._proposals[entry.release_id]

    def _note_price(self, entry: JournalEntry) -> ParsedEntry:
        parsed = read_text(entry.body)
        activity = self._page.get(parsed.release_id)
        self._numbers["repriced"] += 1
        if activity is not None and isinstance(parsed.content, PriceChanged):
            activity.amount = parsed.content.price
        return parsed

    def _activity(self, entry: JournalEntry, before: State | None) -> ReleaseActivity | None:
        """Return what is collected about the release of an entry; None: it is on another page."""
        release = entry.release_id or ""
        if release not in self._seen:
            self._seen.add(release)
            if entry.seq > self._after and len(self._page) < self._limit:
                self._page[release] = ReleaseActivity(release, entry.seq, before, before or "committed")
            elif entry.seq > self._after:
                self._more = True
        return self._page.get(release)

    def _note_change(self, entry: JournalEntry) -> ParsedEntry | None:
        if entry.kind in ("described", "refused"):
            return None
        parsed = read_text(entry.body)
        if not isinstance(parsed.content, ChangeOfAccount | AccountOpened):
            return parsed
        proposed, number = self._chain.proposed, getattr(parsed.content, "proposal", None)
        decided = proposed if proposed is not None and proposed.seq == number else None
        self._numbers["changes"] += 1
        self._changes.append(AccountChange(parsed, self._chain.budget, decided))
        del self._changes[:-MOST_CHANGES]
        return parsed

    def _attribute(self, entry: JournalEntry, parsed: ParsedEntry | None) -> None:
        """Count a charge of an account below under its name."""
        release, kind = entry.release_id, entry.kind
        if release is None or kind in _IGNORED:
            return
        held = self._chain.held.get(release)
        if held is not None:
            self._attribute_held(release, entry, parsed)
            return
        if kind == "repriced":
            content = (parsed or read_text(entry.body)).content
            if isinstance(content, PriceChanged):
                self._repriced.append((release, content.was, content.price, not self._begun))
            return
        origin = _ORIGIN.search(entry.body)
        if origin is None:
            return
        child = self._children.setdefault(origin[1], _Child())
        child.releases += 1
        charge = registered(entry.body) if kind == "committed" else None
        if charge is not None:
            child.committed.add(charge.amount)
            return
        content = (parsed or read_text(entry.body)).content
        if isinstance(content, Registration):
            self._origins[release] = origin[1]
            (child.committed if kind == "committed" else child.held).add(content.price)

    def _attribute_held(self, release: str, entry: JournalEntry, parsed: ParsedEntry | None) -> None:
        """Count the next step of a held release of an account below."""
        name = self._origins.get(release)
        if name is None:
            return
        child, amount = self._children[name], self._chain.held[release].charge.amount
        content = (parsed or read_text(entry.body)).content
        if isinstance(content, PriceChanged):
            child.held.add(content.was, -1)
            child.held.add(content.price)
            return
        state = content.next_state()
        if state in HELD:
            return
        child.held.add(amount, -1)
        del self._origins[release]
        if state == "committed":
            child.committed.add(amount)
        else:
            child.releases -= 1

    def report(self, connection: Connection) -> PeriodReport:
        """Return the report, once all entries were taken."""
        if not self._begun:
            self._begin()
        end = self._standing()
        return PeriodReport(
            beginning=self._beginning,
            end=end,
            numbers=self._numbers + Counter({"releases": len(self._seen)}),
            releases=list(self._page.values()),
            more=self._more,
            changes=self._changes,
            children=self._shares(connection, end.budget),
            waiting=list(islice(self._proposals.values(), MOST_WAITING)),
            number_waiting=len(self._proposals),
            proposed=self._chain.proposed,
        )

    def _shares(self, connection: Connection, budget: Budget) -> dict[str, ChildShare]:
        weights, past = self._chain.weights, dict(self._past.committed)
        owners = owners_of(connection, sorted({release for release, *_ in self._repriced}))
        for release, was, now, earlier in self._repriced:
            if owners[release] in self._children:
                changed = ChargeSum()
                changed.add(was, -1)
                changed.add(now)
                self._children[owners[release]].committed.add(was, -1)
                self._children[owners[release]].committed.add(now)
                if earlier:
                    past[owners[release]] = add_totals(past[owners[release]], changed.totals)
        shares: dict[str, ChildShare] = {}
        for name, child in self._children.items():
            committed, counted = child.committed.totals, add_totals(child.committed.totals, child.held.totals)
            shares[name] = ChildShare(
                before=spent_of_cap(budget, weights, past.get(name, Totals())),
                spent=spent_of_cap(budget, weights, committed),
                counted=spent_of_cap(budget, weights, counted),
                used=gauge(budget, weights, counted).used,
                releases=child.releases,
            )
        for name, allotment in self._chain.allotments.items():
            amount, former = _totals_of(allotment), self._past.allotments.get(name)
            loss = spent_of_cap(budget, weights, amount)
            before = Fraction(0) if former is None else spent_of_cap(budget, weights, _totals_of(former))
            used = gauge(budget, weights, amount).used
            shares[name] = ChildShare(True, before, loss, loss, used)
        return dict(sorted(shares.items()))


def _totals_of(allotment: Allotment) -> Totals:
    return add_prices(Totals(), [(price_of_key(allotment.amount), 1)])


def _state_after(entry: JournalEntry) -> State | None:
    return read_text(entry.body).content.next_state()


def _state(state: str) -> State:
    return "proposed" if state == "proposed" else "reserved"


def _describe(activity: ReleaseActivity, entry: ParsedEntry, at: str) -> None:
    """Add an entry to what is collected about its release."""
    content, step = entry.content, Step.of(entry)
    state = content.next_state()
    if isinstance(content, Registration):
        activity.registered, activity.amount = step, content.price
    elif entry.kind == "approved":
        activity.approvals.append(step)
        if state != "proposed":  # the last one, where several persons must approve
            activity.approved = step
    elif isinstance(content, Drawn):
        draws = activity.draws = activity.draws or Draws(0, at, at, [])
        draws.number, draws.last = draws.number + 1, at
        if entry.actor is not None and entry.actor not in draws.by and len(draws.by) < MOST_NAMES:
            draws.by.append(entry.actor)
    if state is not None:
        activity.state = state
    if state in _ENDS and not (isinstance(content, Registration)):
        activity.ended = step
