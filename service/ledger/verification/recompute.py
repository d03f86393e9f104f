"""Repricing of a ledger: if a theorem proves wrong, an agency learns in minutes which accounts are over budget.

Every release that counts is priced from its plan by the present accountant, under each account that it is charged to.
Differences are reported; when applied, each becomes an entry in the account's chain and changes its totals.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, select, update

from service.errors import Conflict
from service.ledger.accounts import account_periods, accounts, budgets, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.caps import read_prices, write_prices
from service.ledger.accounts.lines import Line
from service.ledger.journal import chains, entry_texts, journal
from service.ledger.journal.account_state import Charge
from service.ledger.journal.chains import BrokenChain, altered
from service.ledger.journal.entries import (
    CapsChanged,
    ChangedCap,
    Expired,
    Filing,
    PriceChanged,
    Registration,
    Voided,
    read_text,
)
from service.ledger.journal.entry_texts import PriceKey, price_of_key
from service.ledger.journal.journal import Actor, Head, has_entry
from service.ledger.journal.replay import replayed_entries
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.releases.allotment_charges import RepricedAllotment, reprice
from service.ledger.spending import window_state
from service.ledger.spending.window_state import WindowState
from service.ledger.spending.worst_windows import as_worst_window
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Hold, Release
from service.ledger.storage.transaction import secret_of
from service.ledger.verification.chain_check import Audit
from service.privacy.accounting.pricing import ACCOUNTANT, Price
from service.privacy.accounting.privacy_filter import Shortfall, shortfalls
from service.privacy.accounting.totals import Totals, add_price, add_prices, price_as_charged
from service.privacy.accounting.windows import price_as_charged_to_windows
from service.privacy.periods import Periods, PeriodSet, set_of

ACTOR = Actor("recompute")
_AT_ONCE = 500  # releases that are priced again in one transaction


@dataclass(frozen=True, slots=True)
class Difference:
    """A release whose price in an account, or under a cap on a tag, differs from the present accountant's.

    Attributes:
        periods: those that the account is charged for, as canonical JSON; None: it has none.
        caps: by the tags of caps under which it differs, the old price and the present accountant's.
        held: whether it is held, when the differences were found.
    """

    release: str
    old: PriceKey
    present: Price
    periods: str | None = None
    caps: Mapping[str, tuple[PriceKey, Price]] = field(default_factory=dict)
    held: bool = False


@dataclass(frozen=True, slots=True)
class Differences:
    """All that the present accountant prices otherwise in an account.

    Attributes:
        releases: at most one for each release.
        counted: by the tags of caps, the old price of what a cap counts of earlier releases, and the present one.
    """

    releases: list[Difference]
    counted: Mapping[str, tuple[PriceKey, Price]]


class CapDifference(NamedTuple):
    """Another price under a cap: of a release, or (None) of those that had committed before the cap was set."""

    release: str | None
    tag: str
    old: PriceKey
    new: PriceKey


@dataclass(frozen=True, slots=True)
class RepricedRelease:
    """The result of pricing an account again.

    Attributes:
        account: with the new prices, applied or not.
        prices: of each release that differs, the old price and the new one.
        over: the caps that the account then exceeds.
        under_caps: the prices that differ under caps on tags.
        over_caps: the caps on tags that the account then exceeds, by tag.
        allotments: those that the account is then charged otherwise for.
    """

    account: AccountRecord
    prices: list[tuple[str, PriceKey, PriceKey]]
    over: list[Shortfall]
    under_caps: list[CapDifference] = field(default_factory=list)
    over_caps: list[tuple[str, Shortfall]] = field(default_factory=list)
    allotments: list[RepricedAllotment] = field(default_factory=list)


def recompute(database: Database, name: str, *, apply: bool) -> RepricedRelease:
    """Price an account's releases again; with ``apply``, write the differences into its journal and its totals.

    Then its allotments are charged again, each as the present state of the allotted account asks.

    Args:
        apply: write the differences; False: only report them.

    Raises:
        NotFound: there is no such account.
        Conflict: another request prices the account again at the same time.
        Altered: the journal, or a row of the account, is not as the service wrote it.
    """
    with database.read() as connection:
        account = accounts.read_account(connection, name)
        found = differences(connection, account)
        priced = _with_prices(connection, account, found)
        after, allotted = reprice(connection, priced.account, ACTOR, clock.now(), apply=False)
        if not apply or not (found.releases or found.counted or allotted):
            stored = after if priced.prices or priced.under_caps else as_worst_window(connection, after)
            return _result(after, stored, priced.prices, priced.under_caps, allotted)
    done = _apply(database, account, found)
    if not allotted:
        return done
    line = lines.line_of(database, name)

    def work(connection: Connection) -> tuple[AccountRecord, list[RepricedAllotment]]:
        return reprice(connection, lines.lock_account(connection, line), ACTOR, clock.now(), apply=True)

    after, allotted = database.write(
        work, is_committed=lambda connection, written: has_entry(connection, written[0].id, written[0].head)
    )
    with database.read() as connection:
        worst = as_worst_window(connection, after)
    return _result(after, worst, done.prices, done.under_caps, allotted)


def differences(connection: Connection, account: AccountRecord) -> Differences:
    """Return what the present accountant prices otherwise of the releases charged to an account.

    The journal gives the charges and their settlements; releases whose price is right are not kept. The connection must
    be in a read transaction, as for every use of ``replayed_entries``.

    Raises:
        Altered: the journal, or the row of a release that was priced again, is not as the service wrote it.
    """
    audit = Audit(account.name)
    found = _Found(audit)
    for entry in replayed_entries(connection, account, audit.chain, account.head.seq):
        stated = read_text(entry.body)
        match stated.content:
            case Registration(charge=charge):
                found.note(stated.release_id, charge)
            case Voided() | Expired():
                found.forget(stated.release_id)
            case PriceChanged(price=amount, caps=caps, periods=periods):
                plan, tags = release_rows.sealed_plan_and_tags(connection, stated.release_id)
                subject = entry_texts.write(json.loads(plan)), tuple(json.loads(tags))
                under = tuple((tag, new) for tag, (_, new) in (caps or {}).items())
                found.note(stated.release_id, Charge(amount, subject, True, under, periods))
            case CapsChanged() as changed:
                try:
                    found.take_caps(changed)
                except BrokenChain as broken:
                    raise altered(account.id, entry.seq, broken) from None
    held = audit.chain.held
    return Differences([replace(one, held=one.release in held) for one in found.wrong.values()], found.counted)


class _Found:
    """The differences that an account's entries show so far."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self.wrong: dict[str, Difference] = {}
        self.counted: dict[str, tuple[PriceKey, Price]] = {}

    def note(self, release: str, charge: Charge) -> None:
        """Compare the prices that an entry states of a release; other prices of it stay as they were."""
        before = self.wrong.pop(release, None)
        caps = {} if before is None else {tag: one for tag, one in before.caps.items() if tag not in dict(charge.caps)}
        caps |= self._audit.caps.wrong_prices(release, charge.subject, charge.caps)
        plan = charge.subject[0]
        if caps or not self._audit.is_right(ACCOUNTANT, plan, charge.amount):
            present = self._audit.present_price(plan)
            self.wrong[release] = Difference(release, charge.amount, present, charge.periods, caps)

    def forget(self, release: str) -> None:
        """Leave out a release that counts no more."""
        self.wrong.pop(release, None)

    def take_caps(self, changed: CapsChanged) -> None:
        """Compare the prices of what new caps count."""
        check, chain = self._audit.caps, self._audit.chain
        check.take(changed)
        for cap in changed.caps:
            if cap.counted is not None:
                self.counted.pop(cap.tag, None)
            for release, amount in cap.held:
                held = chain.require_held(release).charge
                self.note(release, held._replace(caps=((cap.tag, amount),)))
        self.counted |= check.wrong_prices_before(changed)


class _Priced(NamedTuple):
    """An account with new prices in its totals, and the prices as they are added.

    Attributes:
        gone: the releases that were voided or expired since the differences were found.
    """

    account: AccountRecord
    prices: list[tuple[str, PriceKey, PriceKey]]
    under_caps: list[CapDifference]
    gone: frozenset[str] = frozenset()


def _with_prices(connection: Connection, account: AccountRecord, found: Differences) -> _Priced:
    """Return the account with the new prices.

    Raises:
        Altered: more is taken away than was charged.
    """
    prices, under_caps = list[tuple[str, PriceKey, PriceKey]](), list[CapDifference]()
    if account.periods is not None and account.windows is not None:
        account, prices = _with_prices_in_windows(connection, account, account.periods, account.windows, found.releases)
    else:
        for difference in found.releases:
            totals, amount = _repriced_totals(difference.release, account.totals, difference.old, difference.present)
            account = replace(account, totals=totals)
            prices.append((difference.release, difference.old, amount))
    for difference in found.releases:
        for tag, (old, present) in difference.caps.items():
            account, amount = _repriced_under(difference.release, account, tag, old, present)
            under_caps.append(CapDifference(difference.release, tag, old, amount))
    for tag, (old, present) in found.counted.items():
        account, amount = _repriced_under("", account, tag, old, present)
        under_caps.append(CapDifference(None, tag, old, amount))
    return _Priced(account, prices, under_caps)


def _repriced_totals(release: str, totals: Totals, old: PriceKey, present: Price) -> tuple[Totals, PriceKey]:
    """Return totals with another price of a release, and the price as it is added."""
    totals = add_prices(totals, [(price_of_key(old), -1)])
    if totals.is_below_zero:
        raise release_rows.altered(release)
    amount = price_as_charged(totals, present, held=True)  # as a hold's: a later repricing takes it away
    return add_price(totals, amount), entry_texts.price_key_of(budgets.write_price(amount))


def _repriced_under(
    release: str, account: AccountRecord, tag: str, old: PriceKey, present: Price
) -> tuple[AccountRecord, PriceKey]:
    """Return an account with another price under a cap, and the price as it is added."""
    (cap,) = (cap for cap in account.caps if cap.tag == tag)
    totals, amount = _repriced_totals(release, cap.totals, old, present)
    caps = tuple(replace(cap, totals=totals) if cap.tag == tag else cap for cap in account.caps)
    return replace(account, caps=caps), amount


def _with_prices_in_windows(
    connection: Connection, account: AccountRecord, periods: Periods, windows: WindowState, found: list[Difference]
) -> tuple[AccountRecord, list[tuple[str, PriceKey, PriceKey]]]:
    """Return the account with the new prices in the windows that the releases touch, and the prices; caps stay.

    Raises:
        Altered: more is taken away than was charged.
    """
    touched = [account_periods.stated(periods, one.periods or "").places for one in found]
    everywhere = set_of(place for places in touched for place in places.ranges)
    state = before = window_state.read_at(connection, account.id, windows, everywhere)
    prices: list[tuple[str, PriceKey, PriceKey]] = []
    for number, (difference, places) in enumerate(zip(found, touched, strict=True)):

        def charged(
            state: WindowState,
            amount: Price,
            count: int,
            seq: int = account.head.seq + 1 + number,
            places: PeriodSet = places,
            held: bool = difference.held,
        ) -> WindowState:
            some = [(amount, count)]
            return state.charged(
                account.weights, places, seq, committed=[] if held else some, held=some if held else []
            )

        state = charged(state, price_of_key(difference.old), -1)
        if state.is_below_zero:
            raise release_rows.altered(difference.release)
        totals = [state.common.totals] if places.everything else list(state.totals_at(places).values())
        amount = price_as_charged_to_windows(totals, difference.present, held=True)
        state = charged(state, amount, 1)
        prices.append((difference.release, difference.old, entry_texts.price_key_of(budgets.write_price(amount))))
    state = window_state.lowered(connection, account.id, account.weights, state, before.present)
    return replace(account, windows=state, totals=state.bound), prices


def _result(
    account: AccountRecord,
    worst: AccountRecord,
    prices: list[tuple[str, PriceKey, PriceKey]],
    under_caps: list[CapDifference],
    allotted: Sequence[RepricedAllotment] = (),
) -> RepricedRelease:
    """Return the result for an account.

    Args:
        worst: the account with the totals that its budget must be above.
    """
    over_caps = [
        (cap.tag, gap) for cap in account.caps for gap in shortfalls(cap.budget, cap.weights, Totals(), cap.totals)
    ]
    over = shortfalls(account.budget, account.weights, Totals(), worst.totals)
    return RepricedRelease(account, prices, over, under_caps, over_caps, list(allotted))


def _apply(database: Database, account: AccountRecord, found: Differences) -> RepricedRelease:
    """Apply differences, some releases in each transaction; after a failure, the next run finds the rest."""
    line, seen, gone = lines.line_of(database, account.name), account.head, frozenset[str]()
    prices, under_caps = list[tuple[str, PriceKey, PriceKey]](), list[CapDifference]()
    for first in range(0, max(len(found.releases), 1), _AT_ONCE):
        some = Differences(found.releases[first : first + _AT_ONCE], {} if first else found.counted)
        done = database.write(
            partial(_write, line=line, seen=seen, gone=gone, found=some),
            is_committed=lambda connection, written: has_entry(connection, written[0].id, written[0].head),
        )
        account, seen, gone = done.account, done.account.head, done.gone
        prices += done.prices
        under_caps += done.under_caps
    with database.read() as connection:
        worst = as_worst_window(connection, account)
    return _result(account, worst, prices, under_caps)


def _write(connection: Connection, line: Line, seen: Head, gone: frozenset[str], found: Differences) -> _Priced:
    """Write entries, totals and rows for releases that still count, on the locked account.

    Changes since ``found`` was computed are read only in the texts that the chain meets.

    Args:
        seen: the account's head at which the differences were found, or after the last such transaction.
        gone: the releases that were voided or expired up to there, since the differences were found.
    """
    account, at = lines.lock_account(connection, line), clock.now()
    since = [(entry.kind, entry.release_id) for entry in chains.chained(connection, account.id, seen, account.head)]
    if any(kind in (PriceChanged.KIND, CapsChanged.KIND) for kind, _ in since):
        raise Conflict(
            f"account {account.name!r} is being priced again by another process, or its caps changed: run the command"
            " again, which finds the releases that are left"
        )
    gone |= {release for kind, release in since if release is not None and kind in (Voided.KIND, Expired.KIND)}
    holds = {
        one.release: connection.execute(_HOLD, {"release": one.release, "account": account.id}).all()
        for one in found.releases
    }
    present = [replace(one, held=bool(holds[one.release])) for one in found.releases if one.release not in gone]
    priced = _with_prices(connection, account, replace(found, releases=present))
    account = priced.account
    rows: list[journal.Row] = []
    for one, (release, old, new) in zip(present, priced.prices, strict=True):
        caps = {under.tag: (under.old, under.new) for under in priced.under_caps if under.release == release}
        entry = PriceChanged(was=old, price=new, accountant=ACCOUNTANT, caps=caps or None, periods=one.periods)
        row, head = entry.following(account.chain, actor=ACTOR, release_id=release, at=at)
        rows.append(row)
        account = replace(account, head=head)
        changed = entry.rows(Filing(account.id, head.seq, release, at)).changed
        own = (Release.id == release, Release.account_id == account.id)
        connection.execute(update(Release).where(*own).values(changed))
        for hold in holds[release]:
            _write_hold(connection, hold, changed["price"], {tag: new for tag, (_, new) in caps.items()})
    counted = tuple(
        ChangedCap(cap.tag, cap.budget, counted=one.new)
        for cap in account.caps
        for one in priced.under_caps
        if one.release is None and one.tag == cap.tag
    )
    if counted:
        row, head = CapsChanged(accountant=ACCOUNTANT, caps=counted).following(account.chain, actor=ACTOR, at=at)
        rows.append(row)
        account = replace(account, head=head)
    if rows:
        journal.write(connection, rows)
        (account,) = accounts.save(connection, [account])
    return priced._replace(account=account, gone=gone)


def _write_hold(connection: Connection, hold: Row[*tuple[Any, ...]], price: str, caps: dict[str, PriceKey]) -> None:
    reservation_rows.require_seal(connection, hold)
    under = tuple((dict(read_prices(hold.caps)) | caps).items())
    new = {**hold._mapping, "price": price, "caps": write_prices(under)}
    reservation_rows.save(connection, secret_of(connection), new)


_HOLD = select(*reservation_rows.COLUMNS).where(
    Hold.release_id == bindparam("release"), Hold.account_id == bindparam("account")
)
