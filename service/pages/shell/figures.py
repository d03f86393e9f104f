"""Formatting of figures: upper bounds are rounded up, lower bounds are rounded down."""

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


_MOST_FITTING = 10**6  # the largest number that is shown


class Usage(NamedTuple):
    """The used part of a budget: spent or held.

    Attributes:
        symbol: of the loss that the budget caps.
        cap: as it was stated.
        used: the used loss, rounded up.
        left: the remaining loss, rounded down.
        percent: the used share of the cap, rounded up to a tenth; at most 100.
    """

    symbol: str
    cap: str
    used: Fraction
    left: Fraction
    percent: str


def usage(account: dict[str, Any]) -> Usage:
    """Return the used part of an account's budget: exact where the answer is, else rounded up."""
    budget, name = account["budget"], "rho" if account["budget"]["definition"] == "zcdp" else "epsilon"
    cap, remaining = Fraction(budget[name]), Fraction(repr(account["remaining"][name]))
    used = cap - remaining
    if account["counted_exact"] is not None:
        used = Fraction(account["counted_exact"])
        remaining = max(cap - used, Fraction(0))
    share = 100 * used / cap if cap else Fraction(0)
    tenths = min(1000, -(-share.numerator * 10 // share.denominator))
    return Usage(_SYMBOLS[budget["definition"]], budget[name], used, remaining, f"{tenths / 10:g}")


class Growth(NamedTuple):
    """Growth of the figure of an (epsilon, delta) budget, in further releases that fit.

    Attributes:
        fitting: the number of further releases with the mean loss of the counted ones that fit, in words.
        one: their number is singular.
        slower: more of them fit than if each raised the figure as much as the earlier ones did.
    """

    fitting: str
    one: bool
    slower: bool


def growth(account: dict[str, Any], balance: dict[str, Any]) -> Growth | None:
    """Return the growth of an account's figure; None where it is linear, or the two answers are of different states."""
    more, releases = balance["equal_more"], balance["releases"]
    if more is None or account["head"] != balance["head"]:
        return None
    words = {0: "not one more", 1: "one more", _MOST_FITTING: "at least a million more"}
    used = usage(account)
    evenly = releases * (Fraction(used.cap) / used.used - 1) if used.used else None
    return Growth(words.get(more, f"{more} more"), more < 2, evenly is not None and more > evenly)


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
    """Return the percentage of a budget's cap that a guarantee takes, where losses of the budget's notion add up."""
    match budget["definition"]:
        case "zcdp":
            figure, cap = rho_of(cost), Fraction(budget["rho"])
        case "pure":
            figure, cap = epsilon_of(cost), Fraction(budget["epsilon"])
        case _:
            return None
    return None if figure is None or not cap else up(min(Fraction(100), 100 * figure / cap), 3)


def epsilon_of(cost: dict[str, Any]) -> Fraction | None:
    """Return the pure epsilon of a guarantee, exact where it is given so; None: infinite."""
    return _exactly(cost["pure"], "epsilon")


def rho_of(cost: dict[str, Any]) -> Fraction | None:
    """Return the rho of a guarantee, exact where it is given so; None: infinite."""
    return _exactly(cost["zcdp"], "rho")


def _exactly(figure: dict[str, Any] | None, name: str) -> Fraction | None:
    if figure is None:
        return None
    return Fraction(figure.get(f"{name}_exact") or repr(figure[name]))


def relation_text(neighbouring: str) -> str:
    """Return the difference of neighbouring tables in words."""
    return _RELATIONS[neighbouring]


def best_epsilon(cost: dict[str, Any]) -> dict[str, Any] | None:
    """Return the least epsilon at the first delta of a guarantee, among all analyses."""
    for best in cost["best"]:
        statement: dict[str, Any] | None = best["fixed"] or best["adaptive"]
        return statement
    return None


def up(value: float | Fraction | None, digits: int = 4) -> str:
    """Return the text of an upper bound, rounded up; None means infinite."""
    return "infinite" if value is None else _rounded(value, digits, ROUND_CEILING)


def down(value: float | Fraction | None, digits: int = 4) -> str:
    """Return the text of a lower bound, rounded down."""
    return "infinite" if value is None else _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float | Fraction, digits: int, rounding: str) -> str:
    exact = value if isinstance(value, Fraction) else Fraction(repr(value))
    rounded = Context(prec=digits, rounding=rounding).divide(Decimal(exact.numerator), Decimal(exact.denominator))
    rounded = rounded.normalize()
    plain = rounded == 0 or -5 < rounded.adjusted() < 7
    return f"{rounded:f}" if plain else f"{rounded:e}".replace("e+", "e")


def moment(text: str) -> str:
    """Return a time of the ledger to the second, in UTC."""
    return text[:19].replace("T", " ") + " UTC"


def in_words(name: str) -> str:
    """Return the label of a contract field."""
    return "URL slug" if name == "url_slug" else name.replace("_", " ").capitalize()
