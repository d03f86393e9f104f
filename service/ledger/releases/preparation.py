"""Preparation of releases: all facts that a charge needs and that are found before any account is locked."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from typing import Any, NamedTuple

from service.errors import Fault, InvalidInput
from service.ledger.accounts import account_periods, budgets, lines
from service.ledger.accounts.account_periods import ChargedPeriods
from service.ledger.accounts.caps import Cap, identity_of
from service.ledger.accounts.lines import AccountCaps, Line
from service.ledger.journal import canonical_json
from service.ledger.releases import reservation_rows
from service.ledger.releases.request_bounds import RequestBounds
from service.ledger.spending.spending_rows import ManySubplans, Subplans
from service.ledger.spending.subplans import charged_to, repeated_sizes, subplans_of
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.storage.transaction import bound_secret
from service.ledger.storage.writing_time import require_brief
from service.privacy.accounting.pricing import Price, price
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights, order_rule
from service.privacy.periods import pairs_of, read_periods
from service.privacy.plans import Plan
from service.privacy.plans.notation import check_relation, read_plan, walk
from service.privacy.plans.tagged import as_replacement, statement_faults, tagged_part
from service.privacy.plans.walking import Neighbouring, Priced


class CapsPrepared(NamedTuple):
    """The caps of an account as a release was prepared for them.

    Attributes:
        known: the identity of each cap.
        prices: the release's price under each cap whose tag it carries, by tag.
        rules: the budgets of these caps, with their weights, whose admission needs ``order_rule``.
    """

    known: tuple[tuple[str, int, str], ...]
    prices: dict[str, Price]
    rules: tuple[tuple[Budget, Weights], ...]

    def compute_rules(self) -> None:
        """Compute what admission needs, before any account is locked, since many of these take long."""
        for budget, weights in self.rules:
            order_rule(budget, weights)

    def are_of(self, caps: Sequence[Cap]) -> bool:
        """Return whether these are an account's caps."""
        return self.known == tuple(map(identity_of, caps))


class Prices(NamedTuple):
    """The prices of a release, one for each account of a line, and under the caps of each."""

    accounts: tuple[Price, ...]
    caps: tuple[CapsPrepared, ...]


@dataclass(frozen=True, slots=True)
class NewRelease:
    """A release as a pipeline registers it.

    Attributes:
        plan: the plan that is priced.
        document: the plan in the client's words, exact numbers as strings, for storage and display.
        delta: the delta for showing its cost as (epsilon, delta); None: the account's.
        pointer: the place of the plan in the request, for faults.
        reserve_for: the duration of its reservation; None: it commits at once.
        periods: those that it reads, as the request states them; None: it states none.
        periods_at: their place in the request, for faults.
    """

    name: str
    plan: Plan
    document: dict[str, Any]
    tags: tuple[str, ...]
    delta: Fraction | None
    pointer: str
    reserve_for: timedelta | None = None
    periods: object = None
    periods_at: str = "/periods"


class SpendingOf(NamedTuple):
    """The parts of a release that the spending of some accounts of its line counts.

    Attributes:
        accounts: their numbers in the line.
        subplans: the parts, if they are few.
        many: the same parts, if they are many.
    """

    accounts: tuple[int, ...]
    subplans: Subplans
    many: ManySubplans | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A release with all facts about it that can be found before any account is locked.

    Large parts are text: a helper process prepares them, and another process reads text in no time.

    Attributes:
        document: the plan in the client's words, as the ledger stores it.
        written: the plan as journal entries have it.
        tags: its own.
        delta: the stored delta, for showing its cost.
        line: the account that it was prepared for, with the accounts above it.
        prices: one for each account of the line.
        caps: the caps of each account of the line, with the prices under them.
        all_tags: those of the release and of every node of its plan.
        periods: those that each account of the line is charged for; None: it has none.
        spending: the parts that the accounts' spending counts; accounts with other periods count other parts.
        unlike: the number of distinct parts.
        repeated: the bytes of tags and periods in their texts, in all accounts of the line.
        expires: whether a reservation of it expires by itself.
    """

    name: str
    document: str
    written: str
    tags: tuple[str, ...]
    delta: Fraction
    line: Line
    prices: tuple[Price, ...]
    caps: tuple["CapsPrepared", ...]
    all_tags: tuple[str, ...]
    periods: tuple[ChargedPeriods | None, ...]
    spending: tuple[SpendingOf, ...]
    unlike: int
    repeated: int
    reserve_for: timedelta | None
    expires: bool

    def plan(self) -> Plan:
        """Return the parsed plan."""
        return read_plan(json.loads(self.document))


def prepare(
    database: Database,
    name: str,
    releases: Sequence[NewRelease],
    prices: Mapping[int, Prices] | None = None,
    deltas: Sequence[Fraction] | None = None,
) -> list[Prepared]:
    """Find all facts that need no lock, above all the prices, so that a slow plan delays no other charges.

    Args:
        prices: by the ``id`` of the release, if they are known already, with the caps that they were found under.
        deltas: of the releases, as returned by ``deltas_of``, if they are known already.

    Returns:
        One for each release, in their order.

    Raises:
        NotFound: there is no such account.
        InvalidInput: a plan has no meaning under the account's relation, or they are too large or take too long to
            write.
    """
    line = lines.line_of(database, name)
    if deltas is None:
        deltas = deltas_of(database, line, releases)
    secret, found = bound_secret(database), _prices_now(database, line) if prices is None else _known_prices(prices)
    # By plan: equal plans in a batch are one object.
    known: dict[tuple[int, tuple[str, ...], bool, tuple[str | None, ...]], Prepared] = {}
    stated: dict[str, tuple[ChargedPeriods | None, ...]] = {}
    prepared: list[Prepared] = []
    pointer = releases[0].pointer if len(releases) == 1 else "/releases"
    bounds = RequestBounds(pointer)
    for release, delta in zip(releases, deltas, strict=True):
        said = repr(release.periods)
        if said not in stated:
            stated[said] = charged_periods(line, release, bounds)
        periods = stated[said]
        texts = tuple(None if one is None else one.text for one in periods)
        key = id(release.plan), release.tags, release.reserve_for is None, texts
        if key not in known:
            known[key] = _prepared(secret, line, release, periods, delta, found, bounds)
        elif known[key].spending[0].many is not None:  # written for each release
            bounds.repeat([known[key].repeated])
        prepared.append(replace(known[key], name=release.name, delta=delta, reserve_for=release.reserve_for))
    _require_few(line, prepared, pointer, bounds.repeated)
    return prepared


def _require_few(line: Line, releases: Sequence[Prepared], pointer: str, repeated: int) -> None:
    """Refuse releases whose rows take long to write, single releases and batches alike.

    Other requests wait meanwhile: on SQLite all that write, and on PostgreSQL those that charge an account of the line.

    Args:
        repeated: the bytes of tags and periods in their subplans, in all accounts of the line.

    Raises:
        InvalidInput: the rows take too long; the message gives their number of each kind.
    """
    depth, number = len(line.ids), len(releases)
    orders = sum(map(len, line.orders))
    held = sum(release.reserve_for is not None for release in releases)
    few = [release for release in releases if release.spending[0].many is None]
    equal = {id(release.spending): release for release in few}.values()  # counted together
    unlike = sum(release.unlike for release in equal)
    unlike += sum(release.unlike for release in releases if release.spending[0].many is not None)
    windows = sum(one.places.number for release in releases for one in release.periods if one is not None)
    compared = sum(
        account.several + one.places.number
        for release in releases
        for account, one in zip(line.periods, release.periods, strict=True)
        if account is not None and account.several is not None and one is not None and one.places.ranges
    )
    tags = sum(len(release.all_tags) for release in releases)
    size = sum(len(release.written) for release in releases)
    under_caps = [price for release in releases for caps in release.caps for price in caps.prices.values()]
    microseconds = (
        number * (_RELEASE + depth * _ENTRY + orders * _ORDER)
        + sum(_CAP + len(price.quanta) * _ORDER for price in under_caps)
        + held * depth * _HOLD
        + unlike * depth * _SUBPLAN
        + tags * _TAG
        + windows * (_WINDOW + max(map(len, line.orders)) * _WINDOW_ORDER)
        + compared * (_COMPARED + max(map(len, line.orders)) * _COMPARED_ORDER)
        + size * (depth + 2) * _CHARACTER  # the release's row and the answer contain the plan too
        + repeated * _REPEATED
    )
    require_brief(
        microseconds,
        pointer,
        f"number of releases {number} (reserved {held}), tags {tags}, distinct subplans"
        f" {unlike}, characters of plans {size}; accounts in the line {depth}, their orders {orders}"
        + (f", windows of their periods {windows}" if windows else "")
        + (f", compared {compared}" if compared else "")
        + (f", bytes of tags and periods in the subplans {repeated}" if repeated else ""),
    )


# Times in a write transaction on SQLite, as measured: of rows, of an order's part of an entry, of a price under a cap,
# of a character of a plan, of a byte of tags or periods in subplans, of a window and an order's part of it, and of one
# that is only read and compared. That of a window is for windows of unlike totals, each of which is compared.
_RELEASE, _ENTRY, _ORDER, _CAP, _HOLD, _SUBPLAN, _TAG, _CHARACTER = 100, 45, 0.6, 15, 35, 10, 10, 0.01
_REPEATED = 0.05
_WINDOW, _WINDOW_ORDER = 170, 1.4
_COMPARED, _COMPARED_ORDER = 60, 1.1


Pricing = Callable[[Priced, Neighbouring, tuple[Fraction, ...]], Price]
"""A function that prices a plan under a relation at the orders of a budget, as ``price`` does."""


def prices_of(
    line: Line, caps: Sequence[AccountCaps], release: NewRelease, plan: Priced, pricing: Pricing | None = None
) -> Prices:
    """Return the prices of a release in a line of accounts with these caps.

    Args:
        plan: the release's, or the same condensed.
        pricing: None: ``price``.
    """
    pricing = pricing or price
    known = {orders: pricing(plan, line.neighbouring, orders) for orders in dict.fromkeys(line.orders)}
    return Prices(
        tuple(known[orders] for orders in line.orders),
        tuple(_under_caps(release, one.caps, line.neighbouring, pricing) for one in caps),
    )


def require_statements(caps: Sequence[AccountCaps], release: NewRelease) -> None:
    """Require that each mechanism says what it reads, if an account of the line has caps.

    Raises:
        InvalidInput: a mechanism does not say it, or its tags contradict its promise.
    """
    faults: dict[str, Fault] = {}  # by pointer: of the release's own account first
    for above, (account, own) in enumerate(reversed(caps)):
        tags, name = [cap.tag for cap in own], None if above else account
        for fault in statement_faults(release.plan, tags, name, release.pointer, release.tags) if tags else ():
            faults.setdefault(fault.pointer, fault)
    if faults:
        raise InvalidInput(list(faults.values()))


def _under_caps(release: NewRelease, caps: Sequence[Cap], neighbouring: Neighbouring, pricing: Pricing) -> CapsPrepared:
    prices, rules = {}, []
    for cap in caps:
        part = tagged_part(release.plan, release.tags, cap.tag)
        if part is not None:
            prices[cap.tag] = pricing(as_replacement(part, neighbouring), neighbouring, cap.weights.orders)
            if cap.weights.shares:
                rules.append((cap.budget, cap.weights))
    return CapsPrepared(tuple(map(identity_of, caps)), prices, tuple(rules))


def charged_periods(line: Line, release: NewRelease, bounds: RequestBounds) -> tuple[ChargedPeriods | None, ...]:
    """Return the periods that each account of the line is charged for.

    Raises:
        InvalidInput: the release states none where the account has periods, or the other way round, or other than it
            may, or they are too scattered.
    """
    own, at = line.periods[-1], release.periods_at
    if own is None and release.periods is not None:
        raise InvalidInput.at(at, f"expected none, as the account {line.name!r} has no periods")
    if own is not None and release.periods is None:
        raise InvalidInput.at(at, f"expected the periods that the release reads, as {line.name!r} counts by periods")
    stated = None if own is None else read_periods(own.calendar, release.periods, at)
    along = account_periods.in_line(line.periods, stated)
    for account, periods in zip(line.periods, along, strict=True):
        if account is not None and periods is not None:
            bounds.pair(pairs_of(account.participation, periods))
    return tuple(
        None if account is None or periods is None else account_periods.charged(account, periods, at)
        for account, periods in zip(line.periods, along, strict=True)
    )


def deltas_of(database: Database, line: Line, releases: Sequence[NewRelease]) -> list[Fraction]:
    """Return the delta for showing each release's cost: the account's, unless the release states another.

    Returns:
        One for each release, in their order.

    Raises:
        NotFound: the database was replaced by one without the account.
    """
    asks = line.definition is Definition.APPROXIMATE and any(release.delta is None for release in releases)
    usual = budgets.usual_delta(lines.budget_of(database, line) if asks else None)  # which may change
    return [usual if release.delta is None else release.delta for release in releases]


def _known_prices(prices: Mapping[int, Prices]) -> Callable[[NewRelease], Prices]:
    return lambda release: prices[id(release)]


def _prices_now(database: Database, line: Line) -> Callable[[NewRelease], Prices]:
    """Return the function that prices a release under the present caps; it raises as ``require_statements``."""
    caps = lines.caps_of(database, line)

    def price_now(release: NewRelease) -> Prices:
        require_statements(caps, release)
        return prices_of(line, caps, release, release.plan)

    return price_now


def _prepared(
    secret: Secret,
    line: Line,
    release: NewRelease,
    periods: tuple[ChargedPeriods | None, ...],
    delta: Fraction,
    prices_for: Callable[[NewRelease], Prices],
    bounds: RequestBounds,
) -> Prepared:
    check_relation(release.plan, line.neighbouring, release.pointer)
    tags = {tag for _, node in walk(release.plan) for tag in node.tags}.union(release.tags)
    before, depth = bounds.repeated, len(line.ids)
    bounds.repeat(depth * size for size in repeated_sizes(release.plan, release.tags))
    counted = subplans_of(release.plan, release.tags)
    bounds.repeat(len(counted) * len(one.text) for one in periods if one is not None)
    found = prices_for(release)
    return Prepared(
        name=release.name,
        document=json.dumps(release.document, ensure_ascii=False),
        written=canonical_json.canonical(release.document),
        tags=release.tags,
        delta=delta,
        line=line,
        prices=found.accounts,
        caps=found.caps,
        all_tags=tuple(sorted(tags)),
        periods=periods,
        spending=tuple(_spending(secret, counted, periods)),
        unlike=len(counted),
        repeated=bounds.repeated - before,
        reserve_for=release.reserve_for,
        expires=release.reserve_for is not None and reservation_rows.expires(release.plan),
    )


def _spending(secret: Secret, subplans: Subplans, periods: Sequence[ChargedPeriods | None]) -> Iterator[SpendingOf]:
    texts = [None if one is None else one.text for one in periods]
    for text in dict.fromkeys(texts):
        charged = charged_to(subplans, text)
        many = ManySubplans.of(secret, charged)
        numbers = tuple(number for number, other in enumerate(texts) if other == text)
        yield SpendingOf(numbers, charged if many is None else Counter(), many)
