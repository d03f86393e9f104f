"""The planner's view: proposals side by side, as texts for a template. The module has no side effects."""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from service.pages.planner.form import MECHANISMS, Form, Proposal, digest_of, is_supposed
from service.pages.shell.figures import loss_in, loss_text, part_of
from service.rounding import exact, near, percent, rest


def _cap_of(budget: Mapping[str, Any]) -> Fraction:
    return exact(budget["rho" if budget["definition"] == "zcdp" else "epsilon"])


class Taken(NamedTuple):
    """The part of an account's budget that a plan takes; ``part`` is None where it is infinite."""

    part: Fraction | None


def taken_by(proposal: Proposal, account: Mapping[str, Any]) -> Taken | None:
    """Return the part of the account's budget that a plan takes; None if the key may not ask.

    Of a supposed account it is the plan's own loss beside the budget.

    An (epsilon, delta) account counts different releases together, so a plan can take more than it would alone.
    """
    capacity = proposal.capacity
    if is_supposed(account):
        charge, budget = loss_in(account["budget"], proposal.cost), account["budget"]
        figure = "rho" if budget["definition"] == "zcdp" else "epsilon"
        loss = None if charge is None else part_of(charge[figure], charge.get(f"{figure}_exact"))
        return Taken(None if loss is None else loss / Fraction(budget[figure]))
    if capacity is None:
        return None
    if account["budget"]["definition"] != "approximate":
        return Taken(part_of(capacity["share"]))
    used, after = part_of(capacity["used"]), part_of(capacity["used_after_one"])
    return Taken(None if used is None or after is None else after - used)


def _epsilon(statement: Mapping[str, Any] | None) -> float | None:
    return None if statement is None else float(statement["epsilon"])


def sides_of(form: Form, proposals: Sequence[Proposal], account: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the proposals side by side; if one alone is the cheapest and all costs are known, it is marked.

    None is where weights divide a budget, since all take the same.
    """
    shown = [side_of(proposal, account) for proposal in proposals]
    parts = [side["taken"] for side in shown]
    finite = [taken.part for taken in parts if taken is not None and taken.part is not None]
    has_cheapest = (
        form.kind != "weights"
        and None not in parts
        and len(parts) > 1
        and finite.count(min(finite, default=Fraction(0))) == 1
    )
    return [side | {"cheaper": has_cheapest and side["taken"].part == min(finite)} for side in shown]


def side_of(proposal: Proposal, account: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page shows about one proposal."""
    best, taken, budget = proposal.cost["best"][0], taken_by(proposal, account), account["budget"]
    charge = loss_in(budget, proposal.cost)
    fit = _fit_of_supposed(charge, account) if is_supposed(account) else _fit(proposal.rehearsal)
    left = None if fit["left"] is None else rest(fit["left"], _cap_of(budget))
    return {
        "mechanism": proposal.mechanism,
        "title": MECHANISMS[proposal.mechanism],
        "loss": None if charge is None else loss_text(charge),
        "cost": proposal.cost,
        "taken": taken,
        "percent": None if taken is None else _percent(taken.part),
        "of_left": _of_left(proposal, taken),
        "capacity": proposal.capacity,
        "statement": best["adaptive"] or best["fixed"],
        "adaptive": _epsilon(best["adaptive"]),
        "fixed": _epsilon(best["fixed"]),
        "text": json.dumps(proposal.plan, indent=2, ensure_ascii=False),
        "digest": digest_of(account["name"], proposal.plan, proposal.periods),
        **fit,
        "left": left,
    }


def _of_left(proposal: Proposal, taken: Taken | None) -> str | None:
    """Return the percentage of what is left of the budget that a plan takes; None if it is unknown."""
    if taken is None or proposal.capacity is None:
        return None
    used = part_of(proposal.capacity["used"])
    if taken.part is None or used is None or used >= 1:
        return _percent(None)
    part = taken.part / (1 - used)
    return _percent(Fraction(1) if 1 < part < 1 + _ROUNDING else part)


def _fit_of_supposed(charge: Mapping[str, Any] | None, account: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a plan fits a supposed budget, of which nothing is spent."""
    budget = account["budget"]
    figure = "rho" if budget["definition"] == "zcdp" else "epsilon"
    loss = None if charge is None else part_of(charge[figure], charge.get(f"{figure}_exact"))
    cap = Fraction(budget[figure])
    fits = loss is not None and loss <= cap
    return _fit(None) | {"fits": fits, "left": cap - loss if fits and loss is not None else None, "state": "supposed"}


def _percent(part: Fraction | None) -> str:
    return "infinite" if part is None else f"{percent(part)} %"


def _fit(rehearsal: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return whether a plan fits, the remaining budget, and the change that would make the plan fit."""
    unknown: dict[str, Any] = {"fits": None, "left": None, "failures": [], "multiplier": None, "refusal": None}
    if rehearsal is None:
        return unknown
    if "type" not in rehearsal:
        return unknown | {"fits": True, "left": _cap_of(rehearsal["remaining"]), "state": rehearsal["state"]}
    if rehearsal["type"] != "/problems/budget_exceeded":
        return unknown | {"fits": False, "refusal": rehearsal}
    return unknown | {
        "fits": False,
        "failures": rehearsal["failures"],
        "multiplier": rehearsal["noise_multiplier_that_fits"],
    }


def noise_rows(form: Form, proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """Return the tables, each with its noise under each mechanism.

    Shares are relative to the tables of one request, so they are shown only if one request has all tables.
    """
    by_row = [queries_by_row(proposal) for proposal in proposals]
    whole = all(len(proposal.asked) == 1 for proposal in proposals)
    rows = []
    for row in sorted(by_row[0]):
        queries = [one[row] for one in by_row]
        rows.append(
            {
                "name": queries[0]["name"],
                "moe": form.rows[row].get("moe"),
                "confidence": form.rows[row].get("confidence") or form["confidence"],
                "cells": form.rows[row]["cells"],
                "noise": [noise_of(query, whole) for query in queries],
            }
        )
    return rows


_ROUNDING = Fraction(1, 10**9)  # what is left is rounded down: a plan that takes all of it does not take more
_LONGEST = 8  # characters of a fraction that is shown exactly
_DIGITS = 4  # of every parameter, so that those of a column compare
_SYMBOLS = {"scale": "b", "sigma_squared": "σ²", "m": "m"}


def noise_of(query: Mapping[str, Any], whole: bool) -> dict[str, Any]:
    """Return the noise parameters, the margin of error, and the table's share of the cost."""
    mechanism = query["mechanism"]
    parameters = [_parameter(symbol, mechanism[name]) for name, symbol in _SYMBOLS.items() if name in mechanism]
    share = f"{percent(query['share_exact'] or query['share'])} %" if whole else None
    in_full = ", ".join(f"{symbol} = {mechanism[name]}" for name, symbol in _SYMBOLS.items() if name in mechanism)
    return {"text": ", ".join(parameters), "exact": in_full, "moe": query["moe"], "share": share}


def _parameter(symbol: str, value: str) -> str:
    """Return a parameter rounded to four digits, of the twelve that most have; a short fraction stays."""
    shown = value if "/" in value and len(value) <= _LONGEST else near(value, _DIGITS)
    return f"{symbol} {'=' if Fraction(shown) == Fraction(value) else '≈'} {shown}"


def level_rows(proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """Return SafeTab's levels, each with its cost under each mechanism."""
    answers = [proposal.answers[0]["levels"] for proposal in proposals]
    return [{"name": level[0]["name"], "moe": level[0]["moe"], "sides": level} for level in zip(*answers, strict=True)]


def queries_by_row(proposal: Proposal) -> dict[int, Any]:
    """Return the answer about each row of the form."""
    return {
        row: query
        for question, answer in zip(proposal.asked, proposal.answers, strict=True)
        for row, query in zip(question.rows, answer["queries"], strict=True)
    }
