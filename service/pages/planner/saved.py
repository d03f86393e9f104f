"""Conversion between the planner's form and a scenario of ``/v1``. The module has no side effects."""

from collections.abc import Mapping
from typing import Any

from service.pages import budget_form
from service.pages.planner.form import COLUMNS, SINGLE, SUPPOSED, Form, Mechanism, empty_form, empty_row, filled, whole

_OPTIONAL = ("delta", "periods", "reads")
_INTEGERS = ("cells", "stability")


def scenario_of(form: Form, mechanism: Mechanism, account: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scenario that a form states with a mechanism; blank fields are left out."""
    body: dict[str, Any] = {"name": form["scenario_name"], "kind": form.kind, "mechanism": mechanism}
    if form["account"]:
        body["account"] = form["account"]
    else:
        body |= {name: account[name] for name in ("unit", "neighbouring", "budget")}
    body |= _stated({name: form[name] for name in (*_OPTIONAL, *SINGLE[form.kind])})
    if not form["account"]:
        body.pop("divided", None)
    return body | {"targets": [_stated(form.rows[number]) for number in filled(form)]}


def _stated(texts: Mapping[str, str]) -> dict[str, Any]:
    return {name: whole(text) if name in _INTEGERS else text for name, text in texts.items() if text}


def form_of_scenario(scenario: Mapping[str, Any]) -> Form:
    """Return the form that states a scenario."""
    kind = scenario["kind"]
    empty = empty_form(kind, scenario["account"] or "")
    fields = {
        name: str(scenario[name]) for name in (*_OPTIONAL, *SINGLE[kind], "unit", "neighbouring") if name in scenario
    }
    if "budget" in scenario:
        typed = budget_form.fields_of(scenario["budget"])
        fields |= {name: typed[name] for name in SUPPOSED if name in typed}
        fields["delta"] = typed["delta"] or fields.get("delta", "")
    named = {"scenario": scenario["id"], "scenario_name": scenario["name"]}
    rows = tuple(
        empty_row(kind) | {name: str(figure) for name, figure in target.items()} for target in scenario["targets"]
    )
    return Form(kind, rows, dict(empty.fields) | fields | named)


def field_of_scenario(form: Form, pointer: str) -> str:
    """Return the form field of a JSON pointer into a scenario; empty if the pointer is that of the whole."""
    first, *rest = pointer.split("/")[1:] or [""]
    if first == "name":
        return "scenario_name"
    if first == "targets":
        rows = filled(form)
        names = {column.name for column in COLUMNS[form.kind]}
        if len(rest) == 2 and rest[0].isdigit() and rest[1] in names and int(rest[0]) < len(rows):
            return f"{rest[1]}-{rows[int(rest[0])]}"
        return f"{COLUMNS[form.kind][0].name}-0"
    if first == "budget":
        field = budget_form.field_of(form["definition"], pointer)
        return field if field in form.fields else "cap"
    return first if first in form.fields else ""
