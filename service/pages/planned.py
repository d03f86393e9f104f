"""What the planner shows: proposals beside each other, as texts for a template. Pure."""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from service.pages.figures import down, epsilon_of, rho_of, up
from service.pages.planning import MECHANISMS, Form, Proposal, digest_of


def _cap_of(budget: Mapping[str, Any]) -> Fraction:
    return Fraction(repr(budget["rho" if budget["definition"] == "zcdp" else "epsilon"]))


def charge_in(budget: Mapping[str, Any], cost: Mapping[str, Any]) -> Fraction | float | None:
    """A cost in a budget's definition, by itself; None is infinite. Its own order and delta are the last asked for."""
    match budget["definition"]:
        case "pure":
            return epsilon_of(dict(cost))
        case "zcdp":
            return rho_of(dict(cost))
        case "rdp":
            return _float(cost["rdp"][-1]["epsilon"])
        case _:
            return _epsilon(cost["best"][-1]["adaptive"])


def _epsilon(statement: Mapping[str, Any] | None) -> float | None:
    return None if statement is None else _float(statement["epsilon"])


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def sides_of(proposals: Sequence[Proposal], account: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The proposals beside each other, the cheapest marked where there is one."""
    shown = [_side(proposal, account) for proposal in proposals]
    finite = [side["cost"] for side in shown if side["cost"] is not None]
    cheapest = min(finite, default=None)
    alone = len(shown) > 1 and finite.count(cheapest) == 1
    return [side | {"cheaper": alone and side["cost"] == cheapest} for side in shown]


def _side(proposal: Proposal, account: Mapping[str, Any]) -> dict[str, Any]:
    best = proposal.cost["best"][0]
    return {
        "mechanism": proposal.mechanism,
        "title": MECHANISMS[proposal.mechanism],
        "cost": charge_in(account["budget"], proposal.cost),
        "adaptive": _epsilon(best["adaptive"]),
        "fixed": _epsilon(best["fixed"]),
        "text": json.dumps(proposal.plan, indent=2, ensure_ascii=False),
        "digest": digest_of(account["name"], proposal.plan),
    } | _fit(proposal.rehearsal, account["name"], _cap_of(account["remaining"]))


def _fit(rehearsal: Mapping[str, Any] | None, account: str, before: Fraction) -> dict[str, Any]:
    """Whether it fits, what it takes of what is left, and what would make it fit."""
    unknown: dict[str, Any] = {
        "fits": None,
        "taken": None,
        "left": None,
        "failures": [],
        "multiplier": None,
        "refusal": None,
    }
    if rehearsal is None:
        return unknown
    if "type" not in rehearsal:
        after = _cap_of(rehearsal["remaining"])
        taken = _percent(before - after, before)
        return unknown | {"fits": True, "left": after, "taken": taken, "state": rehearsal["state"]}
    if rehearsal["type"] != "/problems/budget_exceeded":
        return unknown | {"fits": False, "refusal": rehearsal}
    own = [one for one in rehearsal["failures"] if one["account"] == account and one["cap"] != "delta"]
    taken = None
    if own and own[0]["requested"] is not None:
        taken = _percent(Fraction(repr(own[0]["requested"])), Fraction(repr(own[0]["remaining"])))
    return unknown | {
        "fits": False,
        "failures": rehearsal["failures"],
        "taken": taken,
        "multiplier": rehearsal["noise_multiplier_that_fits"],
    }


def _percent(part: Fraction, whole: Fraction) -> str | None:
    return None if whole <= 0 else f"{up(100 * part / whole, 3)} %"


def noise_rows(form: Form, proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """The tables, each with the noise that either mechanism gives it.

    Shares are of the tables of one request, so they are shown where one asked for all.
    """
    found = [_by_row(proposal) for proposal in proposals]
    whole = all(len(proposal.asked) == 1 for proposal in proposals)
    rows = []
    for row in sorted(found[0]):
        queries = [one[row] for one in found]
        rows.append(
            {
                "name": queries[0]["name"],
                "moe": form.rows[row]["moe"],
                "confidence": form.rows[row]["confidence"],
                "cells": queries[0]["mechanism"]["cells"],
                "noise": [_noise(query, whole) for query in queries],
            }
        )
    return rows


def _noise(query: Mapping[str, Any], whole: bool) -> dict[str, str | None]:
    """The parameter as it is registered, and the part of the cost that it takes."""
    mechanism = query["mechanism"]
    name, symbol = ("scale", "b") if mechanism["type"] == "geometric" else ("sigma_squared", "σ²")
    share = f"{down(100 * query['share'], 3)} %" if whole else None
    return {"symbol": symbol, "value": mechanism[name], "share": share}


def level_rows(proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """SafeTab's levels, each with what it costs by either mechanism."""
    answers = [proposal.answers[0]["levels"] for proposal in proposals]
    return [{"name": level[0]["name"], "moe": level[0]["moe"], "sides": level} for level in zip(*answers, strict=True)]


def _by_row(proposal: Proposal) -> dict[int, Any]:
    return {
        row: query
        for question, answer in zip(proposal.asked, proposal.answers, strict=True)
        for row, query in zip(question.rows, answer["queries"], strict=True)
    }
