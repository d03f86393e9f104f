"""Formatting of figures: upper bounds are rounded up, lower bounds are rounded down."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

_NAMES = {
    "pure": "pure differential privacy",
    "zcdp": "zero-concentrated",
    "rdp": "Rényi",
    "approximate": "approximate",
}
_RELATIONS = {"add_remove": "adding or removing one record", "replace_one": "replacing one record"}
_SYMBOLS = {"pure": "ε", "zcdp": "ρ", "rdp": "ε", "approximate": "ε"}


_MOST_FITTING = 10**6  # the largest number up to which ``/v1`` counts


class Usage(NamedTuple):
    """The used part of a budget: spent or held.

    Attributes:
        symbol: the symbol of the loss that the budget caps.
        cap: the cap as it was stated.
        used: the used loss, rounded up.
        left: the remaining loss, rounded down.
        percent: the used part by the account's gauge, rounded up to a tenth; at most 100.
        by_delta: the declared deltas use a larger part of their own cap than the loss does of its cap.
        more: the number of further releases like the mean one that fit, in words; None if there are no releases yet.
    """

    symbol: str
    cap: str
    used: Fraction
    left: Fraction
    percent: str
    by_delta: bool
    more: str | None


def usage(account: dict[str, Any]) -> Usage:
    """Return the used part of an account's budget: exact if the answer of ``/v1`` is, else rounded up."""
    gauge = account["gauge"]
    found = _usage(account, part_of(gauge["used"], gauge["used_exact"]))
    by_delta = gauge["cap"] != _figure(account["budget"])
    like = "the one so far" if gauge["releases"] == 1 else "the mean one"
    more = None if gauge["equal_more"] is None else more_releases(gauge["equal_more"], like)
    return found._replace(by_delta=by_delta, more=more)


def cap_usage(cap: dict[str, Any]) -> Usage:
    """Return the used part of a cap on a tag: exact if the answer of ``/v1`` is, else rounded up."""
    return _usage(cap, part_of(cap["used"]))


def _usage(body: dict[str, Any], share: Fraction | None) -> Usage:
    """Return the used part of the budget of an account or of a cap; ``share`` is the gauge's, None if infinite."""
    budget, name = body["budget"], _figure(body["budget"])
    cap, remaining = Fraction(budget[name]), Fraction(repr(body["remaining"][name]))
    used = cap - remaining
    if body["counted_exact"] is not None:
        used = Fraction(body["counted_exact"])
        remaining = max(cap - used, Fraction(0))
    tenths = 1000 if share is None else min(1000, math.ceil(1000 * share))
    return Usage(_SYMBOLS[budget["definition"]], budget[name], used, remaining, f"{tenths / 10:g}", False, None)


def _figure(budget: dict[str, Any]) -> str:
    return "rho" if budget["definition"] == "zcdp" else "epsilon"


def part_of(figure: float | None, exact: str | None = None) -> Fraction | None:
    """Return a part of a budget, exact if ``exact`` states it; None if it is infinite."""
    return None if figure is None else Fraction(exact or repr(figure))


def more_releases(number: int, like: str) -> str:
    """Return in words how many more releases like a given one fit; at most a million are counted."""
    if number < 2:
        return f"{number or 'no'} more release like {like} fits"
    return f"{'at least ' if number >= _MOST_FITTING else ''}{number:,} more releases like {like} fit"


def budget_text(budget: dict[str, Any]) -> str:
    """Return a budget in words."""
    match budget:
        case {"definition": "zcdp", "rho": rho}:
            text = f"ρ = {rho}"
        case {"definition": "rdp", "alpha": alpha, "epsilon": epsilon}:
            text = f"ε = {epsilon} at order α = {alpha}"
        case {"definition": "approximate", "epsilon": epsilon, "delta": delta}:
            text = f"ε = {epsilon} at δ = {delta}"
        case _:
            text = f"ε = {budget['epsilon']}"
    declared = budget.get("declared_delta" if budget["definition"] == "approximate" else "delta")
    beside = f", declared δ up to {declared}" if declared not in (None, "0") else ""
    return f"{text} ({_NAMES[budget['definition']]}{beside})"


def share_of(budget: dict[str, Any], cost: dict[str, Any]) -> str | None:
    """Return the percentage of a budget's cap that a guarantee takes, as its gauge counts, rounded up, at most 100.

    None for an (epsilon, delta) budget, of which no guarantee tells its part; for an RDP budget at an order that the
    guarantee does not state; for an infinite loss; and for a cap of 0.
    """
    match budget["definition"]:
        case "zcdp":
            figure, cap = rho_of(cost), Fraction(budget["rho"])
        case "pure":
            figure, cap = epsilon_of(cost), Fraction(budget["epsilon"])
        case "rdp":
            figure, cap = _rdp_of(cost, Fraction(budget["alpha"])), Fraction(budget["epsilon"])
        case _:
            return None
    return None if figure is None or not cap else up(min(Fraction(100), 100 * figure / cap), 3)


def epsilon_of(cost: dict[str, Any]) -> Fraction | None:
    """Return the pure epsilon of a guarantee, exact if the guarantee states it so; None if it is infinite."""
    return _exactly(cost["pure"], "epsilon")


def rho_of(cost: dict[str, Any]) -> Fraction | None:
    """Return the rho of a guarantee, exact if the guarantee states it so; None if it is infinite."""
    return _exactly(cost["zcdp"], "rho")


def _rdp_of(cost: dict[str, Any], alpha: Fraction) -> Fraction | None:
    """Return the loss of a guarantee at an order; None if it is infinite or not stated."""
    stated = [one["epsilon"] for one in cost["rdp"] if Fraction(repr(one["alpha"])) == alpha]
    return Fraction(repr(stated[0])) if stated and stated[0] is not None else None


def _exactly(figure: dict[str, Any] | None, name: str) -> Fraction | None:
    if figure is None:
        return None
    return Fraction(figure.get(f"{name}_exact") or repr(figure[name]))


def relation_text(neighbouring: str) -> str:
    """Return in words how neighbouring tables differ."""
    return _RELATIONS[neighbouring]


def best_epsilon(cost: dict[str, Any]) -> dict[str, Any] | None:
    """Return the statement with the least epsilon at the first delta of a guarantee; None if there is none."""
    for best in cost["best"]:
        statement: dict[str, Any] | None = best["fixed"] or best["adaptive"]
        return statement
    return None


def up(value: float | Fraction | None, digits: int = 4) -> str:
    """Return the text of an upper bound, rounded up; None is infinite."""
    return "infinite" if value is None else _rounded(value, digits, ROUND_CEILING)


def down(value: float | Fraction | None, digits: int = 4) -> str:
    """Return the text of a lower bound, rounded down; None is infinite."""
    return "infinite" if value is None else _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float | Fraction, digits: int, rounding: str) -> str:
    exact = value if isinstance(value, Fraction) else Fraction(repr(value))
    rounded = Context(prec=digits, rounding=rounding).divide(Decimal(exact.numerator), Decimal(exact.denominator))
    rounded = rounded.normalize()
    plain = rounded == 0 or -5 < rounded.adjusted() < 7
    return f"{rounded:f}" if plain else f"{rounded:e}".replace("e+", "e")


def moment(text: str) -> str:
    """Return the text of a time of the ledger, in UTC, cut to the second."""
    return text[:19].replace("T", " ") + " UTC"


def in_words(name: str) -> str:
    """Return the label of a field of the HTTP API."""
    return "URL slug" if name == "url_slug" else name.replace("_", " ").capitalize()
