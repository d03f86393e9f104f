"""Budgets, charges and beliefs in words, with the figures of ``service.rounding``."""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from markupsafe import Markup

from service.api.schemas.exact_numbers import number_down, stated
from service.rounding import exact, percent, percent_left, rest, up

GLOSSARY = "/guide/glossary"
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
    """The used part of a budget: spent, held or allotted.

    Attributes:
        symbol: the symbol of the loss that the budget caps.
        cap: the cap as it was stated.
        used: the used loss, rounded up.
        left: the remaining loss, rounded down.
        percent: the used part by the account's gauge, rounded up; at most 100.
        percent_left: the rest of it, rounded down.
        by_delta: the declared deltas use a larger part of their own cap than the loss does of its cap.
        spent, held: the losses of both, rounded up; None: nothing is held, or the answer does not tell it.
        spent_percent, held_percent: their parts, rounded up; None likewise.
        apart: the answer tells what is held; ``spent`` and ``held`` are None then where that is nothing.
        more: the number of further releases like the mean one that fit, in words; None if there are no releases yet.
    """

    symbol: str
    cap: str
    used: str
    left: str
    percent: str
    percent_left: str
    by_delta: bool
    more: str | None
    spent: str | None = None
    held: str | None = None
    spent_percent: str | None = None
    held_percent: str | None = None
    apart: bool = True


def usage(account: dict[str, Any]) -> Usage:
    """Return the used part of an account's budget: exact if the answer of ``/v1`` is, else rounded up."""
    gauge = account["gauge"]
    found = _usage(account, part_of(gauge["used"], gauge["used_exact"]))
    by_delta = gauge["cap"] != _figure(account["budget"])
    like = "the first one" if gauge["releases"] == 1 else "the mean one"
    more = None if gauge["equal_more"] is None else more_releases(gauge["equal_more"], like)
    return found._replace(by_delta=by_delta, more=more, **_parts(gauge))


def _parts(gauge: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a gauge tells of its spent and its held part."""
    if "held" not in gauge:
        return {}
    if gauge["held"] is None:
        return {"apart": False}
    found = {}
    for name in ("spent", "held"):
        part = part_of(gauge[name]["used"])
        found[name] = up(part_of(gauge[name]["counted"], gauge[name]["counted_exact"]))
        found[f"{name}_percent"] = percent(Fraction(1) if part is None else min(Fraction(1), part))
    return found


def cap_usage(cap: dict[str, Any]) -> Usage:
    """Return the used part of a cap on a tag: exact if the answer of ``/v1`` is, else rounded up."""
    return _usage(cap, part_of(cap["used"]))


def _usage(body: dict[str, Any], share: Fraction | None) -> Usage:
    """Return the used part of the budget of an account or of a cap; ``share`` is the gauge's, None if infinite."""
    budget, name = body["budget"], _figure(body["budget"])
    cap, remaining = Fraction(budget[name]), exact(body["remaining"][name])
    used = cap - remaining
    if body["counted_exact"] is not None:
        used = Fraction(body["counted_exact"])
        remaining = max(cap - used, Fraction(0))
    part = Fraction(1) if share is None else min(Fraction(1), share)
    return Usage(
        symbol=_SYMBOLS[budget["definition"]],
        cap=budget[name],
        used=up(used),
        left=rest(remaining, cap),
        percent=percent(part),
        percent_left=percent_left(1 - part),
        by_delta=False,
        more=None,
    )


def _figure(budget: Mapping[str, Any]) -> str:
    return "rho" if budget["definition"] == "zcdp" else "epsilon"


def part_of(figure: float | None, text: str | None = None) -> Fraction | None:
    """Return a part of a budget, the exact one if ``text`` states it; None if it is infinite."""
    return None if figure is None else exact(text or figure)


def more_releases(number: int, like: str) -> str:
    """Return in words how many more releases like earlier ones fit; at most a million are counted."""
    if number < 2:
        return f"{number or 'no'} more release like {like} fits"
    return f"{_counted(number)} more releases like {like} fit"


def fitting(number: int) -> str:
    """Return in words how often a planned release fits, which is not charged yet; at most a million are counted."""
    if number < 2:
        return "once" if number else "not once"
    return f"{_counted(number)} times in all"


def _counted(number: int) -> str:
    return f"{'at least ' if number >= _MOST_FITTING else ''}{number:,}"


def symbol_of(name: str) -> str:
    """Return the symbol of the figure that a cap limits."""
    return {"rho": "ρ", "epsilon": "ε", "delta": "δ", "declared_delta": "declared δ"}[name]


def budget_text(budget: Mapping[str, Any]) -> Markup:
    """Return a budget in words; its definition is a link to the glossary."""
    match budget:
        case {"definition": "zcdp", "rho": rho}:
            text = f"ρ = {rho}"
        case {"definition": "rdp", "alpha": alpha, "epsilon": epsilon}:
            text = f"ε = {epsilon} at order α = {alpha}"
        case {"definition": "approximate", "epsilon": epsilon, "delta": delta}:
            text = f"ε = {epsilon} at δ = {delta_text(delta)}"
        case _:
            text = f"ε = {budget['epsilon']}"
    definition: str = budget["definition"]
    declared = budget.get("declared_delta" if definition == "approximate" else "delta")
    beside = f", declared δ up to {delta_text(declared)}" if declared not in (None, "0") else ""
    return Markup("{} ({}{})").format(text, term(_NAMES[definition], definition), beside)


def term(words: str, anchor: str) -> Markup:
    """Return words that lead to the glossary's entry for them."""
    return Markup('<a class="term" href="{}#{}">{}</a>').format(GLOSSARY, anchor, words)


def loss_text(charge: Mapping[str, Any]) -> str:
    """Return the loss of a charge, rounded up."""
    name = _figure(charge)
    return up(part_of(charge[name], charge.get(f"{name}_exact")))


def loss_in_full(charge: Mapping[str, Any]) -> str:
    """Return the loss of a charge with all its digits, for a file."""
    loss = charge[_figure(charge)]
    return "infinite" if loss is None else str(loss)


def charge_text(charge: Mapping[str, Any]) -> Markup:
    """Return the charge of a release in the definition of its account's budget, rounded up."""
    definition, loss = charge["definition"], loss_text(charge)
    text = f"{_SYMBOLS[definition]} {'is' if loss == 'infinite' else '='} {loss}"
    if definition == "rdp":
        return Markup('{} <span class="whole">at α = {}</span>').format(_unbroken(text), f"{charge['alpha']:g}")
    if definition == "approximate":
        return Markup('{} <span class="whole">at δ = {}</span>').format(_unbroken(text), delta_text(charge["delta"]))
    return _unbroken(text)


def _unbroken(text: str) -> Markup:
    """Return a text that stays on one line."""
    return Markup('<span class="whole">{}</span>').format(text)


def charged_percent(charge: Mapping[str, Any]) -> str | None:
    """Return the percentage of the budget that a charge takes, rounded up, at most 100; None if it is unknown."""
    share = charge.get("share")
    if share is None:
        return None
    return percent(min(Fraction(1), exact(share)))


def delta_text(delta: float | str) -> str:
    """Return the text of a delta, the same one whether an answer states it as a number or as an exact text."""
    return up(exact(delta), 12)


def one_in(delta: float | str) -> str:
    """Return the largest round number so that a chance of 1 in it is at least delta."""
    number = math.floor(1 / exact(delta))
    unit = 10 ** max(0, len(str(number)) - 3)
    return f"{number // unit * unit:,}"


class Belief(NamedTuple):
    """The percentages between which a loss lets a belief move: the least, rounded down, and the most, rounded up."""

    least: str
    most: str


_EXPONENTIAL = Context(prec=40, Emax=10**6)
_LEAST_SHOWN, _NEAR_ONE = Fraction(1, 10**6), Fraction(99, 100)
_LARGEST_EPSILON = 10**5  # above it, the bounds are 0 % and 100 % in as many digits as are ever shown


def belief_after(epsilon: float | str, prior: str) -> Belief:
    """Return how far a loss of at most epsilon can move a belief, by Bayes' rule.

    The loss multiplies the odds of any statement about one unit by a factor between exp(-epsilon) and exp(epsilon).
    Both bounds are monotone in the factor, for which an upper bound is taken, so both are rounded outward. Near 100 %
    what is missing from it is rounded, to one digit, since the digits of the bound itself would all be 9.

    Args:
        epsilon: an upper bound on the loss.
        prior: the belief before, in percent.
    """
    loss, before = exact(epsilon), Fraction(prior) / 100
    if loss > _LARGEST_EPSILON:
        return Belief("0", "100")
    quotient = Context(prec=40, rounding=ROUND_CEILING).divide(Decimal(loss.numerator), Decimal(loss.denominator))
    # The exponential is rounded to nearest, and exact for 0 alone.
    factor = Fraction(quotient.exp(_EXPONENTIAL).next_plus(_EXPONENTIAL)) if loss else Fraction(1)
    least, most = before / (before + (1 - before) * factor), before * factor / (1 - before + before * factor)
    return Belief(
        percent_left(least) if least > _LEAST_SHOWN else "0", percent(most) if most < _NEAR_ONE else _near_one(most)
    )


def _near_one(part: Fraction) -> str:
    missing = 100 * (1 - part)
    if missing < 100 * _LEAST_SHOWN:
        return "100"
    one_digit = Context(prec=1, rounding=ROUND_FLOOR).divide(Decimal(missing.numerator), Decimal(missing.denominator))
    return f"{100 - one_digit:f}"


def loss_in(budget: Mapping[str, Any], cost: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a guarantee's loss in the definition of a budget, as the answers of ``/v1`` state a charge.

    None for an RDP budget at an order that the guarantee does not state. ``share`` is the part of the cap; it is left
    out for an (epsilon, delta) budget, of which no guarantee tells its part.
    """
    definition = budget["definition"]
    if definition == "approximate":
        best = best_epsilon(cost)
        return {"definition": definition, "epsilon": None, "delta": budget["delta"]} | (best or {})
    name = _figure(budget)
    figure = cost["zcdp" if definition == "zcdp" else "pure"] or {name: None}
    if definition == "rdp":
        alpha = stated(Fraction(budget["alpha"]), number_down)  # as guarantees state their orders
        at_order = [one for one in cost["rdp"] if one["alpha"] == alpha]
        if not at_order:
            return None
        figure = at_order[0]
    loss, cap = part_of(figure[name], figure.get(f"{name}_exact")), Fraction(budget[name])
    return {"definition": definition, "share": loss / cap if loss is not None and cap else None} | figure


def epsilon_of(cost: dict[str, Any]) -> Fraction | None:
    """Return the pure epsilon of a guarantee, exact if the guarantee states it so; None if it is infinite."""
    return _exactly(cost["pure"], "epsilon")


def rho_of(cost: dict[str, Any]) -> Fraction | None:
    """Return the rho of a guarantee, exact if the guarantee states it so; None if it is infinite."""
    return _exactly(cost["zcdp"], "rho")


def _exactly(figure: dict[str, Any] | None, name: str) -> Fraction | None:
    if figure is None:
        return None
    return Fraction(figure.get(f"{name}_exact") or repr(figure[name]))


def relation_text(neighbouring: str) -> str:
    """Return in words how neighbouring tables differ."""
    return _RELATIONS[neighbouring]


def best_epsilon(cost: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the statement at the first delta of a guarantee that pages and registry entries show; None: no epsilon.

    It is the least epsilon that holds under adaptive choice, or where there is none the least of all.
    """
    for best in cost["best"]:
        statement: dict[str, Any] | None = best["adaptive"] or best["fixed"]
        return statement
    return None


_NEARLY = Fraction(101, 100)


def plainest(statement: Mapping[str, Any] | None, pure: float | Fraction | None) -> Mapping[str, Any] | None:
    """Return a statement of epsilon and delta, or one without a delta if that is at most a hundredth larger.

    A delta is a chance that a reader has to weigh, and none is there where the pure loss bounds nearly as much.

    Args:
        statement: what holds at a delta; None: no epsilon does.
        pure: the pure epsilon of the same releases; None: it is infinite.
    """
    if pure is None:
        return statement
    if statement is None or statement["epsilon"] is None or exact(pure) <= _NEARLY * exact(statement["epsilon"]):
        return {"epsilon": pure, "delta": 0}
    return statement


def moment(text: str) -> str:
    """Return the text of a time of the ledger, in UTC, cut to the second; the zone stays on the line of the time."""
    return text[:19].replace("T", " ") + "\N{NO-BREAK SPACE}UTC"


def in_words(name: str) -> str:
    """Return the label of a field of the HTTP API."""
    return "URL slug" if name == "url_slug" else name.replace("_", " ").capitalize()
