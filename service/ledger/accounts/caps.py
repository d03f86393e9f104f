"""Caps on tags, in the rows of accounts: a budget for what releases tell about one attribute.

``docs/mathematics/caps.md`` says what a cap guarantees, and proves it. In an account with periods, a cap holds for all
releases together, whatever periods they read (T-5 there).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from service.ledger.accounts import budgets
from service.ledger.journal.charge_sums import CapPrices
from service.ledger.journal.entry_texts import price_key_of, price_of, price_of_key
from service.ledger.spending.spending_rows import Subplans
from service.ledger.spending.subplans import plan_in
from service.privacy.accounting.pricing import Price, price
from service.privacy.accounting.privacy_filter import Budget, Weights
from service.privacy.accounting.totals import Totals, add_prices, mean_price, price_as_charged
from service.privacy.plans import Plan
from service.privacy.plans.tagged import as_replacement, possibly_tagged_part
from service.privacy.plans.walking import Neighbouring

_NONE = Totals()
MOST_CAPS = 20
"""The largest number of caps of an account."""
OPENING = 1
"""The number of the entry that opens an account."""


class StatedCap(NamedTuple):
    """A cap as a steward states it."""

    tag: str
    budget: Budget


@dataclass(frozen=True, slots=True)
class Cap:
    """A cap on a tag.

    Attributes:
        weights: orders and weights, fixed when it was set.
        since: the number of the entry that set it.
        totals: of the tagged parts of committed and held releases, in the account and in those under it.
    """

    tag: str
    budget: Budget
    weights: Weights
    since: int
    totals: Totals = _NONE


def identity_of(cap: Cap) -> tuple[str, int, str]:
    """Return all of a cap that prices under it depend on: its tag, the entry that set it, a digest of its weights."""
    return cap.tag, cap.since, _digest(cap.weights)


@lru_cache(maxsize=1024)
def _digest(weights: Weights) -> str:
    return hashlib.sha256(budgets.write_weights(weights).encode()).hexdigest()


def promised_since_opening(caps: Iterable[Cap]) -> bool:
    """Return whether each mechanism of each release had to have a statement: the account was opened with a cap."""
    return any(cap.since == OPENING for cap in caps)


def read_caps(stored: str | None, totals: str | None = None) -> tuple[Cap, ...]:
    """Return the caps in the columns of an account's row, in the order of their tags.

    Args:
        totals: the column of their totals; None where these are not needed.
    """
    if stored is None:
        return ()
    caps = (_kept if len(stored) <= _SHORT else _kept_long)(stored)
    if totals is None:
        return caps
    sums = json.loads(totals)
    return tuple(replace(cap, totals=budgets.read_totals(sums[cap.tag])) for cap in caps)


def _read(stored: str) -> tuple[Cap, ...]:
    """Read all of the caps but their totals."""
    found = []
    for cap in json.loads(stored):
        weights = budgets.read_weights(json.dumps(cap["admission"]))
        found.append(Cap(cap["tag"], budgets.read_budget(cap["budget"]), weights, cap["since"]))
    return tuple(found)


# Every charge reads them. As objects, short texts take some hundred kilobytes, and longer ones up to 2 MB.
_SHORT = 1 << 15  # characters
_kept, _kept_long = lru_cache(maxsize=1024)(_read), lru_cache(maxsize=32)(_read)


def write_caps(caps: Sequence[Cap]) -> str | None:
    """Return the column of the caps; equal caps have equal texts."""
    if not caps:
        return None
    return json.dumps([_document(cap) for cap in caps], ensure_ascii=False)


def _document(cap: Cap) -> dict[str, Any]:
    admission = json.loads(budgets.write_weights(cap.weights))
    return {"tag": cap.tag, "budget": budgets.write_budget(cap.budget), "admission": admission, "since": cap.since}


def write_cap_totals(caps: Sequence[Cap]) -> str | None:
    """Return the column of the caps' totals."""
    if not caps:
        return None
    return json.dumps({cap.tag: budgets.write_totals(cap.totals) for cap in caps}, ensure_ascii=False)


def write_prices(prices: CapPrices) -> str | None:
    """Return the column of what a hold adds to the totals of the caps; None for nothing."""
    if not prices:
        return None
    return json.dumps({tag: price_of(amount) for tag, amount in prices}, ensure_ascii=False)


@lru_cache(maxsize=256)
def read_prices(stored: str | None) -> CapPrices:
    """Return what a hold adds to the totals of the caps.

    Raises:
        KeyError, TypeError, ValueError: the service wrote no such column.
    """
    return tuple((tag, price_key_of(price)) for tag, price in json.loads(stored or "{}").items())


def without(caps: Sequence[Cap], gone: Iterable[tuple[CapPrices, int]]) -> tuple[Cap, ...]:
    """Return caps whose totals no longer count some holds.

    Args:
        gone: what each hold added, and how many holds did.
    """
    counted = list(gone)
    return tuple(
        replace(cap, totals=add_prices(cap.totals, [(amount, -count) for amount, count in _under(cap.tag, counted)]))
        for cap in caps
    )


def _under(tag: str, counted: Iterable[tuple[CapPrices, int]]) -> Iterator[tuple[Price, int]]:
    for prices, count in counted:
        yield from ((price_of_key(amount), count) for of, amount in prices if of == tag)


def price_under(part: Plan, weights: Weights, neighbouring: Neighbouring) -> Price:
    """Return the price of a release's tagged part under a cap with these weights."""
    return price(as_replacement(part, neighbouring), neighbouring, weights.orders)


def price_of_earlier(
    subplans: Subplans, cap: Cap, neighbouring: Neighbouring, *, stated: bool, known: "KnownPrices | None"
) -> Price:
    """Return the price under a new cap of releases that were charged before it was set.

    Args:
        subplans: of the releases, with the tags that hold for each, and whatever periods they are charged to.
        stated: as in ``possibly_tagged_part``.
        known: prices that are known already, to which others are added.

    Returns:
        A price that can be taken away again.
    """
    amounts = []
    for subplan, occurrences in subplans.items():
        key = _key(subplan, cap, stated)
        amount = None if known is None else known.get(key)
        if amount is None:
            part = earlier_part(subplan, cap, stated=stated)
            asked = _FREE if part is None else price_under(part, cap.weights, neighbouring)
            amount = price_as_charged(_NONE, asked, held=True)
            if known is not None:
                known[key] = amount
        amounts.append((amount, occurrences))
    return price_as_charged(_NONE, mean_price(add_prices(_NONE, amounts), 1), held=True)


def earlier_part(subplan: str, cap: Cap, *, stated: bool) -> Plan | None:
    """Return the part of a subplan that a new cap counts; None: it counts nothing of it.

    Args:
        stated: as in ``possibly_tagged_part``.
    """
    return possibly_tagged_part(plan_in(subplan), cap.tag, stated=stated)


def is_known(known: "KnownPrices", subplan: str, cap: Cap, *, stated: bool) -> bool:
    """Return whether the price of a subplan under a new cap is known, as ``price_of_earlier`` asks for it."""
    return _key(subplan, cap, stated) in known


def _key(subplan: str, cap: Cap, stated: bool) -> tuple[str, str, bool]:
    return subplan, cap.tag, stated


_FREE = Price(Fraction(0), Fraction(0), Fraction(0), Fraction(0), ())
KnownPrices = dict[tuple[str, str, bool], Price]
"""Prices of subplans under caps, by subplan and tag: the orders of a tag's cap never change."""
