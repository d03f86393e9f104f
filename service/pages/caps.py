"""The caps of an account as fields of a form. Pure: what a figure means is for ``/v1`` to say."""

from collections.abc import Mapping
from typing import Any

_ELSEWHERE = "expected nothing: a budget of this definition has no such figure"
_SPARE = {"pure": ("alpha", "delta"), "zcdp": ("alpha", "delta"), "rdp": ("delta",), "approximate": ("alpha",)}


def budget_of(typed: Mapping[str, str]) -> dict[str, str]:
    """The budget of the fields definition, cap, alpha, delta and declared; an unknown definition goes on as it is."""
    definition = typed["definition"]
    body = {"definition": definition, _cap(definition): typed["cap"]}
    if definition == "rdp":
        body["alpha"] = typed["alpha"]
    if definition == "approximate":
        body["delta"] = typed["delta"]
    if typed["declared"]:
        body[_declared(definition)] = typed["declared"]
    return body


def spare(typed: Mapping[str, str]) -> dict[str, str]:
    """What was typed where the definition has no such figure: it must not be lost without a word."""
    return {name: _ELSEWHERE for name in _SPARE.get(typed["definition"], ()) if typed[name]}


def fields_of(budget: Mapping[str, str]) -> dict[str, str]:
    """An account's budget as it stands in the fields."""
    definition = budget["definition"]
    declared = budget.get(_declared(definition), "0")
    return {
        "definition": definition,
        "cap": budget[_cap(definition)],
        "alpha": budget.get("alpha", ""),
        "delta": budget["delta"] if definition == "approximate" else "",
        "declared": "" if declared == "0" else declared,
    }


def field_of(definition: str, pointer: str) -> str:
    """The field that a place in the request comes from; empty where it is of the whole."""
    first, _, name = pointer.removeprefix("/").partition("/")
    if first != "budget":
        return first
    if name == _cap(definition):
        return "cap"
    return "declared" if name == _declared(definition) else name


def refused_at(definition: str, typed: Mapping[str, str], faults: Mapping[str, str]) -> dict[str, Any]:
    """What a page shows of faults by pointers: each at the field that was typed, and which pointers have one."""
    fields = {pointer: field_of(definition, pointer) for pointer in faults}
    placed = {pointer: name for pointer, name in fields.items() if name in typed}
    return {"faults": {name: faults[pointer] for pointer, name in placed.items()}, "shown_at": list(placed)}


def _cap(definition: str) -> str:
    return "rho" if definition == "zcdp" else "epsilon"


def _declared(definition: str) -> str:
    return "declared_delta" if definition == "approximate" else "delta"
