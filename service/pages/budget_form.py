"""Conversion between an account's budget and form fields; ``/v1`` interprets the figures."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from service.privacy.numerics.numbers import parse_exact
from service.rounding import up

FIGURES = ("definition", "cap", "alpha", "delta", "declared")
"""The fields of a budget."""
_UNUSED = "expected nothing: a budget of this definition has no such figure"
_UNUSED_FIGURES = {
    "pure": ("alpha", "delta"),
    "zcdp": ("alpha", "delta"),
    "rdp": ("delta",),
    "approximate": ("alpha",),
}


def budget_of(typed: Mapping[str, str]) -> dict[str, str]:
    """Return the budget that the form states; an unknown definition is passed on for ``/v1`` to refuse.

    Args:
        typed: the fields definition, cap, alpha, delta and declared.
    """
    definition = typed["definition"]
    body = {"definition": definition, _cap(definition): typed["cap"]}
    if definition == "rdp":
        body["alpha"] = typed["alpha"]
    if definition == "approximate":
        body["delta"] = typed["delta"]
    if typed["declared"]:
        body[_declared(definition)] = typed["declared"]
    return body


def unused_figures(typed: Mapping[str, str]) -> dict[str, str]:
    """Return a fault for each filled field that the definition does not use: its text must not be dropped silently."""
    return {name: _UNUSED for name in _UNUSED_FIGURES.get(typed["definition"], ()) if typed[name]}


def fields_of(budget: Mapping[str, str]) -> dict[str, str]:
    """Return the form fields of an account's budget."""
    definition = budget["definition"]
    declared = budget.get(_declared(definition), "0")
    return {
        "definition": definition,
        "cap": budget[_cap(definition)],
        "alpha": budget.get("alpha", ""),
        "delta": budget["delta"] if definition == "approximate" else "",
        "declared": "" if declared == "0" else declared,
    }


def growth_text(present: Mapping[str, str], typed: Mapping[str, str]) -> str:
    """Return in words which figures of a budget would grow, from what to what; empty if none does.

    A text that is no number grows nothing: ``/v1`` refuses it.
    """
    names = {"cap": "ρ" if present["definition"] == "zcdp" else "ε", "delta": "δ", "declared": "the declared δ"}
    return "; ".join(
        f"{label} from {present[name] or '0'} to {typed[name]}{_factor(present[name], typed[name])}"
        for name, label in names.items()
        if _number(typed[name]) > _number(present[name])
    )


def _number(text: str) -> Fraction:
    try:
        return parse_exact(text)
    except ValueError:
        return Fraction(0)


def _factor(before: str, after: str) -> str:
    """Return how many times as large a figure becomes, rounded up."""
    if not _number(before):
        return ""
    factor = up(_number(after) / _number(before))
    return f", {int(factor):,} times as large" if factor.isdigit() else f", {factor} times as large"


def field_of(definition: str, pointer: str) -> str:
    """Return the form field of a JSON pointer into the request; empty if the pointer is that of the whole request."""
    first, _, name = pointer.removeprefix("/").partition("/")
    if first != "budget":
        return first
    if name == _cap(definition):
        return "cap"
    return "declared" if name == _declared(definition) else name


def refused_at(definition: str, typed: Mapping[str, str], faults: Mapping[str, str]) -> dict[str, Any]:
    """Return the context of a refused form.

    Args:
        definition: the definition of the budget.
        typed: the form's texts.
        faults: the reasons by JSON pointer.

    Returns:
        The reason of each form field, and the pointers that have a field.
    """
    fields = {pointer: field_of(definition, pointer) for pointer in faults}
    placed = {pointer: name for pointer, name in fields.items() if name in typed}
    return {"faults": {name: faults[pointer] for pointer, name in placed.items()}, "shown_at": list(placed)}


def _cap(definition: str) -> str:
    return "rho" if definition == "zcdp" else "epsilon"


def _declared(definition: str) -> str:
    return "declared_delta" if definition == "approximate" else "delta"
