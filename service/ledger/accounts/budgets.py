"""Budgets, totals and prices as JSON, in the rows of accounts and the entries of the journal.

The rationals of prices and totals are unbounded, so they are plain ``p/q``; a budget's are as the client stated them.
"""

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from service.errors import InvalidInput
from service.privacy.accounting.guarantee import USUAL_DELTA
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights
from service.privacy.accounting.totals import LossSum, Totals
from service.privacy.numerics.numbers import exact_text, parse_exact


def read_budget(document: dict[str, Any], pointer: str = "") -> Budget:
    """Return the budget that a document (exact numbers as strings) states.

    Args:
        pointer: the place of the document in the request, for faults.

    Raises:
        InvalidInput: a cap that is not above 0, an order not above 1, or deltas out of their range.
    """
    definition = Definition(document["definition"])
    given = {k: parse_exact(v) for k, v in document.items() if k != "definition" and v is not None}
    cap_on = "rho" if definition is Definition.ZCDP else "epsilon"
    if given[cap_on] <= 0:
        raise InvalidInput.at(f"{pointer}/{cap_on}", "expected a number above 0")
    delta = given.get("delta", Fraction(0))
    if definition is Definition.APPROXIMATE:
        if not 0 < delta < 1:
            raise InvalidInput.at(f"{pointer}/delta", "expected a number above 0 and below 1")
        declared = given.get("declared_delta", Fraction(0))
        if not 0 <= declared < delta:
            raise InvalidInput.at(f"{pointer}/declared_delta", "expected a number of at least 0 and below delta")
        return Budget(definition=definition, cap=given[cap_on], delta=delta, declared_delta=declared)
    if not 0 <= delta < 1:
        raise InvalidInput.at(f"{pointer}/delta", "expected a number of at least 0 and below 1")
    if definition is Definition.RDP and given["alpha"] <= 1:
        raise InvalidInput.at(f"{pointer}/alpha", "expected an order above 1")
    return Budget(definition=definition, cap=given[cap_on], declared_delta=delta, alpha=given.get("alpha"))


@lru_cache(maxsize=4096)
def stored_budget(text: str) -> Budget:
    """Return the budget in an account's row; cached, because every charge reads it."""
    return read_budget(json.loads(text))


def usual_delta(budget: Budget | None) -> Fraction:
    """Return the default delta for showing losses as (epsilon, delta): the budget's own, if it has one.

    In definitions other than (epsilon, delta), a budget's delta is the one that mechanisms may declare, and cannot
    serve for conversion.

    Args:
        budget: None stands for any that is not of (epsilon, delta).
    """
    if budget is None or budget.definition is not Definition.APPROXIMATE:
        return USUAL_DELTA
    return budget.delta


def delta_of_whole(budget: Budget, delta: Fraction) -> Fraction:
    """Return a delta at which a whole budget implies an epsilon; except for pure DP, more than mechanisms may declare.

    Args:
        budget: the budget.
        delta: the delta to return if the budget leaves room for it.
    """
    declared = budget.declared_delta
    if budget.definition is Definition.PURE:
        return max(delta, declared)
    return delta if delta > declared else declared + delta


def write_budget(budget: Budget) -> dict[str, str]:
    """Return the document of a budget; deltas that are 0 by default are left out."""
    document = {"definition": budget.definition.value}
    if budget.alpha is not None:
        document["alpha"] = exact_text(budget.alpha)
    document[budget.cap_on] = exact_text(budget.cap)
    if budget.definition is Definition.APPROXIMATE:
        document["delta"] = exact_text(budget.delta)
        if budget.declared_delta:
            document["declared_delta"] = exact_text(budget.declared_delta)
    elif budget.declared_delta:
        document["delta"] = exact_text(budget.declared_delta)
    return document


def write_weights(weights: Weights) -> str:
    """Return the text of an admission rule's orders and weights, which are fixed at opening."""
    return json.dumps({"orders": [str(o) for o in weights.orders], "weights": [str(s) for s in weights.shares]})


@lru_cache(maxsize=1024)
def read_weights(text: str) -> Weights:
    """Return the weights in a text; cached, because every charge reads an (epsilon, delta) account's 250 orders."""
    document = json.loads(text)
    return Weights(tuple(map(Fraction, document["orders"])), tuple(map(Fraction, document["weights"])))


def write_price(price: Price) -> dict[str, Any]:
    """Return a price for the journal: rationals and quanta as strings, infinity as null."""
    return {
        "epsilon": None if price.epsilon is None else str(price.epsilon),
        "rho": None if price.rho is None else str(price.rho),
        "delta": str(price.delta),
        "linear": str(price.linear),
        "quanta": [None if quanta is None else str(quanta) for quanta in price.quanta],
    }


def read_price(document: Mapping[str, Any]) -> Price:
    """Return the price in a journal entry.

    Raises:
        KeyError, TypeError, ValueError: ``write_price`` cannot have written it.
    """
    return Price(
        epsilon=None if document["epsilon"] is None else _read_rational(document["epsilon"]),
        rho=None if document["rho"] is None else _read_rational(document["rho"]),
        delta=_read_rational(document["delta"]),
        linear=_read_rational(document["linear"]),
        quanta=tuple(None if quanta is None else _read_whole(quanta) for quanta in document["quanta"]),
    )


_RATIONAL = re.compile(r"(0|[1-9][0-9]*)(?:/([1-9][0-9]*))?")


def _read_rational(text: str) -> Fraction:
    """Return a rational of at least 0, in lowest terms; Python would also read exponents, however large."""
    found = _RATIONAL.fullmatch(text)
    if found is None:
        raise ValueError("expected a fraction of at least 0")
    value = Fraction(int(found[1]), int(found[2] or 1))
    if str(value) != text:
        raise ValueError("expected a fraction in lowest terms")
    return value


def _read_whole(text: str) -> int:
    value = _read_rational(text)
    if value.denominator != 1:
        raise ValueError("expected whole quanta")
    return value.numerator


@lru_cache(maxsize=4096)
def _known(text: str) -> list[Totals]:  # noqa: ARG001 - the key of the cache
    """Return the list that holds the totals in a text, once they were read from it or written into it."""
    return []


def stored_totals(text: str) -> Totals:
    """Return the totals in the text of a window's row; cached, because neighbouring windows often have equal ones."""
    known = _known(text)
    if not known:
        known.append(read_totals(text))
    return known[0]


def store_totals(totals: Totals) -> str:
    """Return totals as text for the row of a window; cached, because a charge often reads what the last one wrote."""
    text = write_totals(totals)
    _known(text)[:] = [totals]
    return text


def write_totals(totals: Totals) -> str:
    """Return totals as text for the row of an account or a window; equal totals have equal texts."""
    return _encode(
        {
            "epsilon": [str(totals.epsilon.finite), totals.epsilon.infinite],
            "rho": [str(totals.rho.finite), totals.rho.infinite],
            "delta": str(totals.delta),
            "linear": str(totals.linear),
            "quanta": totals.quanta,
            "infinite": totals.infinite,
        }
    )


_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once: to make it takes as long as to use it


def read_totals(text: str) -> Totals:
    """Return the totals in the text of an account's row."""
    document = json.loads(text)
    (epsilon, epsilons), (rho, rhos) = document["epsilon"], document["rho"]
    return Totals(
        epsilon=LossSum(_stored_rational(epsilon), epsilons),
        rho=LossSum(_stored_rational(rho), rhos),
        delta=_stored_rational(document["delta"]),
        linear=_stored_rational(document["linear"]),
        quanta=tuple(document["quanta"]),
        infinite=tuple(document["infinite"]),
    )


def _stored_rational(text: str) -> Fraction:
    """Return a rational that ``str`` wrote, in a third of the time of ``Fraction``, which reads other notations too."""
    top, _, bottom = text.partition("/")
    return Fraction(int(top), int(bottom)) if bottom else Fraction(int(top))
