"""The planner's form, and the requests to ``/v1`` that it states. The module has no side effects.

A form has rows of targets and single fields, all as typed text. ``/v1`` refuses invalid text, and this module finds the
field of each fault from its pointer.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args

from service.pages import budget_form
from service.pages.shell.period_texts import stated_periods
from service.pages.shell.typed_lists import names_of
from service.pages.shell.typed_numbers import duration_text, number_text, whole_text, with_point
from service.privacy.mechanisms import mechanism_label
from service.privacy.numerics.numbers import exact_text, parse_exact

Kind = Literal["margins", "variances", "relative_errors", "weights", "safetab"]
Mechanism = Literal["geometric", "discrete_gaussian", "discrete_osgt"]

KINDS: dict[Kind, str] = {
    "margins": "Margins of error",
    "variances": "Variances",
    "relative_errors": "Relative errors",
    "weights": "A budget to divide",
    "safetab": "SafeTab",
}
MECHANISMS: dict[Mechanism, str] = {name: mechanism_label(name) for name in get_args(Mechanism)}
_OF_SAFETAB: tuple[Mechanism, ...] = ("geometric", "discrete_gaussian")
MOST_ROWS = 100
UNREAD = "nothing capped"
"""The text that a user types, and that the plan states, if the plan reads nothing that is capped."""
_SHARES = ("confidence", "relative_error", "weight")  # columns that take a percent sign
NO_SHARE = "expected a number of units, such as 10; for a share of a count, use Relative errors of the planner"
_WHOLE = re.compile(r"[0-9]{1,16}")


class FormFaults(Exception):
    """The faults of a form by field; those of the whole form have an empty name."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__(", ".join(faults))
        self.faults = dict(faults)


class Column(NamedTuple):
    """A field of every row: its name, label and initial text; ``numeric`` if its text is a number.

    A number of units has no percent sign, which would make 0.1 units of a margin of 10 %. One that is ``whole`` has no
    point before three digits either: 1.500 would be one unit for some people, and 1500 for others.
    """

    name: str
    label: str
    initial: str = ""
    numeric: bool = False
    whole: bool = False

    def text(self, typed: str) -> str:
        """Return the text of a field or of a cell."""
        if not self.numeric:
            return typed.strip()
        if self.whole:
            return whole_text(typed)
        return number_text(typed) if self.name in _SHARES else with_point(typed)


_NAMES = (Column("table", "Table"), Column("geography", "Geography"))
_MOE = Column("moe", "Margin of error", numeric=True, whole=True)
_CONFIDENCE = Column("confidence", "Confidence", "0.95", numeric=True)
_SIZES = (
    Column("cells", "Cells per record", "1", numeric=True),
    Column("sensitivity", "Sensitivity", "1", numeric=True),
)
COLUMNS: dict[Kind, tuple[Column, ...]] = {
    "margins": (*_NAMES, _MOE, _CONFIDENCE, *_SIZES),
    "variances": (*_NAMES, Column("variance", "Variance", numeric=True), _CONFIDENCE, *_SIZES),
    "relative_errors": (
        *_NAMES,
        Column("relative_error", "Relative error", numeric=True),
        Column("typical_count", "Typical count", numeric=True, whole=True),
        _CONFIDENCE,
        *_SIZES,
    ),
    "weights": (*_NAMES, Column("weight", "Weight", numeric=True), *_SIZES),
    "safetab": (Column("level", "Level of population groups"), _MOE),
}
# A row with none of these counts as empty.
_IDENTIFYING = ("table", "geography", "level", "moe", "variance", "relative_error", "typical_count", "weight")
SINGLE: dict[Kind, dict[str, str]] = {
    "margins": {},
    "variances": {},
    "relative_errors": {},
    "weights": {"divided": "", "confidence": "0.95"},
    "safetab": {"stability": "9", "stage_1_fraction": "0.1", "confidence": "0.95", "method": "exact"},
}
SUPPOSED = {"unit": "person", "neighbouring": "add_remove", "definition": "zcdp", "cap": "", "alpha": ""}
"""The fields of an account that is supposed, with their initial texts."""
_OF_ALL = (
    "account",
    "periods",
    "delta",
    "release",
    "purpose",
    "tags",
    "reads",
    "reserve_for",
    "scenario",
    "scenario_name",
)
_NUMBERS = ("cap", "alpha", "delta", "divided", "confidence", "stability", "stage_1_fraction")
_ROWS_AT_FIRST = 3


@dataclass(frozen=True)
class Form:
    """The texts of a planner form.

    Attributes:
        rows: the targets, each a text for every column.
        fields: the single fields: of every kind, of a supposed account, and of the form's own kind.
    """

    kind: Kind
    rows: tuple[Mapping[str, str], ...]
    fields: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.fields[name]


def mechanisms_of(kind: Kind) -> tuple[Mechanism, ...]:
    """Return the mechanisms that a kind of plan may have."""
    return _OF_SAFETAB if kind == "safetab" else tuple(MECHANISMS)


def empty_form(kind: Kind, account: str = "") -> Form:
    """Return an empty form."""
    fields = dict.fromkeys(_OF_ALL, "") | {"account": account} | SUPPOSED | SINGLE[kind]
    return Form(kind, (empty_row(kind),) * _ROWS_AT_FIRST, fields)


def form_of(kind: Kind, texts: Callable[[str], Sequence[str]]) -> Form:
    """Return the submitted form; ``texts`` returns all texts of a field, those of a column in the order of the rows."""
    columns = {column.name: texts(column.name)[:MOST_ROWS] for column in COLUMNS[kind]}
    height = max(map(len, columns.values()))
    rows = tuple(
        {
            column.name: column.text(columns[column.name][number]) if number < len(columns[column.name]) else ""
            for column in COLUMNS[kind]
        }
        for number in range(height)
    )
    single = empty_form(kind).fields
    fields = {name: texts(name)[0].strip() if texts(name) else "" for name in single}
    return Form(kind, rows, fields | {name: number_text(fields[name]) for name in _NUMBERS if name in fields})


def empty_row(kind: Kind) -> dict[str, str]:
    """Return a new row."""
    return {column.name: column.initial for column in COLUMNS[kind]}


def with_kind(form: Form, kind: Kind) -> Form:
    """Return the form as one of another kind, which keeps what both ask for."""
    rows = tuple({column.name: row.get(column.name, column.initial) for column in COLUMNS[kind]} for row in form.rows)
    fields = empty_form(kind).fields
    return Form(kind, rows, {name: form.fields.get(name, initial) for name, initial in fields.items()})


def with_row(form: Form) -> Form:
    """Return the form with one more row."""
    if len(form.rows) >= MOST_ROWS:
        return form
    return replace(form, rows=(*form.rows, empty_row(form.kind)))


def without_row(form: Form, number: int) -> Form:
    """Return the form without a row."""
    return replace(form, rows=form.rows[:number] + form.rows[number + 1 :])


def is_supposed(account: Mapping[str, Any]) -> bool:
    """Return whether an account is not in the ledger, but described by the form."""
    return not account["name"]


def may_widen(kind: Kind) -> bool:
    """Return whether wider targets of a kind are known to make a plan fit; the others may fall a little short."""
    return kind in ("margins", "safetab")


def widened(form: Form, factor: float) -> Form:
    """Return the form with wider margins of error, so that every noise scale is at least ``factor`` times as large.

    For both mechanisms, the scale that meets a margin grows faster than the margin plus one. The form has been planned
    before, so every margin is a number.
    """
    exact = Fraction(factor)
    rows = [
        row | {"moe": str(math.ceil(exact * (int(Fraction(row["moe"])) + 1)) - 1)} if _is_filled(row) else row
        for row in map(dict, form.rows)
    ]
    return replace(form, rows=tuple(rows))


def most_widened(before: Form, after: Form) -> list[int]:
    """Return the rows whose margins were widened, those first whose margin grew by the greatest factor."""
    grown = {
        number: Fraction(after.rows[number]["moe"]) / max(1, int(Fraction(before.rows[number]["moe"])))
        for number in filled(before)
    }
    return sorted((number for number, factor in grown.items() if factor > 1), key=lambda number: -grown[number])


def with_margin(form: Form, number: int, margin: int) -> Form:
    """Return the form with another margin of error in a row."""
    rows = [row | {"moe": str(margin)} if place == number else row for place, row in enumerate(map(dict, form.rows))]
    return replace(form, rows=tuple(rows))


def margin_notes(form: Form) -> dict[int, str]:
    """Return a note for each row whose margin of error is no whole number, as the noise of the planner is."""
    notes = {}
    for number in filled(form):
        try:
            margin = parse_exact(_target(form.kind, form.rows[number]).get("moe", "0"))
        except ValueError:  # it has a fault instead
            continue
        if 0 < margin < 1:
            notes[number] = "A margin below 1 acts as 0: at this confidence the noise changes no count."
        elif margin != int(margin):
            notes[number] = f"Noise is a whole number, so that this margin acts as {int(margin):,}."
    return notes


def _is_filled(row: Mapping[str, str]) -> bool:
    return any(row.get(name) for name in _IDENTIFYING)


def filled(form: Form) -> list[int]:
    """Return the numbers of the rows that are not empty."""
    return [number for number, row in enumerate(form.rows) if _is_filled(row)]


def without_refused(form: Form, faults: Mapping[str, str]) -> Form | None:
    """Return the form whose rows with faults are empty; None if no row is left, or a fault is of no row."""
    rows = [name.rpartition("-")[2] for name in faults]
    if not all(row.isdigit() for row in rows):
        return None
    wrong = set(map(int, rows))
    empty = empty_row(form.kind)
    others = replace(form, rows=tuple(empty if n in wrong else row for n, row in enumerate(form.rows)))
    return others if filled(others) and wrong <= set(filled(form)) else None


class Question(NamedTuple):
    """A request to ``/v1``: its path, its body, and the numbers of the form's rows that it is about."""

    path: str
    body: dict[str, Any]
    rows: tuple[int, ...]


def questions(form: Form, mechanism: Mechanism, account: Mapping[str, Any], delta: str) -> list[Question]:
    """Return the requests for noise: one for each confidence level, since a request for tables states only one.

    A plan of SafeTab is one request, with its cost at ``delta``. So is a budget that is divided.

    Raises:
        FormFaults: a margin is a percentage, or a relative error or a typical count is no such number.
    """
    if faults := _percent_faults(form) | (_relative_faults(form) if form.kind == "relative_errors" else {}):
        raise FormFaults(faults)
    neighbouring = account["neighbouring"]
    if form.kind == "safetab":
        return [_safetab(form, mechanism, delta)]
    if form.kind == "weights":
        question = _allocation(form, mechanism, neighbouring, form["confidence"], filled(form))
        return [question._replace(body=question.body | {"budget": divided_budget(form, account)})]
    by_confidence: dict[str, list[int]] = {}
    for number in filled(form):
        by_confidence.setdefault(form.rows[number]["confidence"], []).append(number)
    return [
        _allocation(form, mechanism, neighbouring, confidence, rows)
        for confidence, rows in (by_confidence or {"0.95": []}).items()
    ]


def _allocation(form: Form, mechanism: Mechanism, neighbouring: str, confidence: str, rows: list[int]) -> Question:
    queries = [_query(form.kind, form.rows[number], neighbouring) for number in rows]
    body = {"mechanism": mechanism, "confidence": confidence, "queries": queries}
    return Question("/v1/calibrations/allocation", body, tuple(rows))


def _query(kind: Kind, row: Mapping[str, str], neighbouring: str) -> dict[str, Any]:
    """Return a table's query. Replacing a record changes twice as many cells as the record is counted in."""
    cells = whole(row["cells"])
    if isinstance(cells, int) and neighbouring == "replace_one":
        cells *= 2
    name = "/".join(filter(None, (row["geography"], row["table"])))
    return {"name": name, **_target(kind, row), "cells": cells, "sensitivity": row["sensitivity"]}


def _target(kind: Kind, row: Mapping[str, str]) -> dict[str, str]:
    """Return what a query is to meet; a relative error of a typical count is a margin of error."""
    if kind == "relative_errors":
        return {"moe": exact_text(parse_exact(row["relative_error"]) * parse_exact(row["typical_count"]))}
    (name,) = {"moe", "variance", "weight"} & row.keys()
    return {name: row[name]}


def _percent_faults(form: Form) -> dict[str, str]:
    """Return the faults of margins that are typed as percentages."""
    return {f"moe-{number}": NO_SHARE for number in filled(form) if form.rows[number].get("moe", "").endswith("%")}


def _relative_faults(form: Form) -> dict[str, str]:
    """Return the faults of the figures that are multiplied before ``/v1`` sees them."""
    faults = {}
    for number in filled(form):
        for name in ("relative_error", "typical_count"):
            text = form.rows[number][name]
            try:
                sound = parse_exact(text) > 0
            except ValueError:
                sound = False
            if not sound:
                faults[f"{name}-{number}"] = "expected a number above 0, such as 0.05 or 1200"
            elif name == "relative_error" and parse_exact(text) >= 1:
                faults[f"{name}-{number}"] = f"expected less than 100 %: write {text} % or {_hundredth(text)}"
    return faults


def _hundredth(text: str) -> str:
    return exact_text(parse_exact(text) / 100)


def divided_budget(form: Form, account: Mapping[str, Any]) -> dict[str, str]:
    """Return the budget that weights divide: the typed part of the account's, or all that is left of it.

    Of a supposed account it is the whole budget.
    """
    budget = {name: text for name, text in account["budget"].items() if name in ("definition", "alpha")}
    if account["budget"]["definition"] == "approximate":
        budget["delta"] = account["budget"]["delta"]
    figure = "rho" if budget["definition"] == "zcdp" else "epsilon"
    left = account["remaining"][figure] if "remaining" in account else account["budget"][figure]
    return budget | {figure: form["divided"] or str(left)}


def _safetab(form: Form, mechanism: Mechanism, delta: str) -> Question:
    rows = filled(form)
    levels = [{"name": form.rows[number]["level"], "moe": form.rows[number]["moe"]} for number in rows]
    body = {
        "mechanism": mechanism,
        "levels": levels,
        "stability": whole(form["stability"]),
        "stage_1_fraction": form["stage_1_fraction"],
        "confidence": form["confidence"],
        "delta": delta,
        "method": form["method"],
    }
    return Question("/v1/plans/safetab", body, tuple(rows))


def whole(text: str) -> int | str:
    """Return the integer that a text states; any other text is passed on for ``/v1`` to refuse."""
    return int(text) if _WHOLE.fullmatch(text) else text


def plan_of(
    form: Form, requests: Sequence[Question], answers: Sequence[Mapping[str, Any]], *, labelled: bool = True
) -> dict[str, Any]:
    """Return the plan to register: SafeTab's, or the tables in the order of the form, each tagged with its geography.

    The root states what the whole plan reads.

    Args:
        form: the planner's form.
        requests: the requests for noise.
        answers: the answer to each request.
        labelled: tags are mere labels, since no account of the line has caps. Otherwise a geography as the only tag
            would promise that the table reads nothing else that is capped. It is then left out unless the root states
            what the plan reads.
    """
    if form.kind == "safetab":
        plan: dict[str, Any] = answers[0]["plan"]
        return plan | statement_of(form["reads"])
    parts = {
        row: query["mechanism"] | _tags(form.rows[row]["geography"] if labelled or form["reads"] else "")
        for question, answer in zip(requests, answers, strict=True)
        for row, query in zip(question.rows, answer["queries"], strict=True)
    }
    return {"type": "sequence", "parts": [parts[row] for row in sorted(parts)]} | statement_of(form["reads"])


def statement_of(reads: str) -> dict[str, Any]:
    """Return the members of a plan that state what it reads, from the typed text."""
    if not reads:
        return {}
    return {"reads": UNREAD} if reads == UNREAD else {"tags": names_of(reads)}


def _tags(geography: str) -> dict[str, Any]:
    return {"tags": [geography]} if geography else {}


def composition_of(plan: Mapping[str, Any], account: Mapping[str, Any], delta: str) -> dict[str, Any]:
    """Return the request for a plan's cost under the account's relation, at the order of an RDP budget."""
    body = {"plan": plan, "neighbouring": account["neighbouring"], "deltas": [delta]}
    budget = account["budget"]
    return body | ({"orders": [budget["alpha"]]} if budget["definition"] == "rdp" else {})


def periods_member(form: Form, account: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's member ``periods``; empty if none were typed."""
    calendar = account["periods"]["calendar"] if "periods" in account else None
    periods = stated_periods(form["periods"], calendar)
    return {} if periods is None else {"periods": periods}


def release_of(form: Form, account: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that registers the plan; without a typed delta, ``/v1`` uses the account's."""
    body = {"name": form["release"], "plan": plan, "tags": names_of(form["tags"])} | periods_member(form, account)
    body |= {"delta": form["delta"]} if form["delta"] else {}
    return body | ({"reserve_for": duration_text(form["reserve_for"])} if form["reserve_for"] else {})


def digest_of(account: str, plan: Mapping[str, Any], periods: Mapping[str, Any]) -> str:
    """Return a digest of a plan with its periods, which shows at registration that it is the displayed one."""
    return hashlib.sha256(json.dumps([account, plan, periods], sort_keys=True).encode()).hexdigest()


_LABELS = {
    "account": "Account",
    "unit": "Unit",
    "neighbouring": "Neighbouring tables differ by",
    "definition": "Definition",
    "cap": "Budget",
    "alpha": "Order α",
    "divided": "Budget to divide",
    "targets": "Pasted rows",
    "file": "CSV file",
    "scenario_name": "Name of the scenario",
    "periods": "Periods",
    "delta": "δ",
    "release": "Name of the release",
    "purpose": "Purpose",
    "tags": "Tags",
    "reads": "What it reads",
    "reserve_for": "Only hold it for",
    "stability": "Stability",
    "stage_1_fraction": "Fraction for step 1",
    "confidence": "Confidence",
    "method": "Method",
}


def label_of(form: Form, name: str) -> str:
    """Return the label of a field, with its row if it has one."""
    column, _, row = name.rpartition("-")
    labels = {column.name: column.label for column in COLUMNS[form.kind]}
    return f"{labels[column]} of row {int(row) + 1}" if column in labels else _LABELS.get(name, "")


def field_of_budget(form: Form, pointer: str) -> str:
    """Return the form field of a JSON pointer to a budget: that to divide, or one of the supposed account's."""
    if form["account"]:
        return "divided"
    field = budget_form.field_of(form["definition"], pointer)
    return field if field in form.fields else "cap"


_FIELDS = {
    "name": "release",
    "tags": "tags",
    "reserve_for": "reserve_for",
    "periods": "periods",
    "delta": "delta",
    "deltas": "delta",
}


def field_of_question(form: Form, question: Question, pointer: str) -> str:
    """Return the form field of a JSON pointer into a request; empty if the pointer is that of the whole request."""
    first, *rest = [*pointer.split("/")[1:], ""][:4]
    if first in ("queries", "levels"):
        if not rest or not rest[0].isdigit():
            return f"{COLUMNS[form.kind][0].name}-0"  # there is no row at all
        others = {"name": COLUMNS[form.kind][0].name} | (
            {"moe": "relative_error"} if form.kind == "relative_errors" else {}
        )
        column = others.get(rest[1], rest[1])
        return f"{column}-{question.rows[int(rest[0])]}"
    if first == "budget":
        return field_of_budget(form, pointer)
    if first == "confidence" and "confidence" not in form.fields:
        return f"confidence-{question.rows[0]}" if question.rows else ""
    return first if first in form.fields else ""


def field_of_release(form: Form, pointer: str) -> str:
    """Return the form field of a JSON pointer into a request that prices or registers the plan."""
    first, *rest = pointer.split("/")[1:] or [""]
    if first == "plan" and rest[-1:] in (["reads"], ["tags"]):
        return "reads"
    if first == "plan" and form.kind != "safetab" and rest[:1] == ["parts"] and len(rest) > 1:
        return f"table-{filled(form)[int(rest[1])]}"
    return _FIELDS.get(first, "")


@dataclass(frozen=True)
class Proposal:
    """A plan with one mechanism, and the answers of ``/v1`` about it.

    Attributes:
        asked: the requests for noise, with the rows of the form that each is about.
        answers: the answer to each of them.
        cost: the guarantee under the account's relation.
        rehearsal: the dry run's answer, or its problem; None if the key may not register.
        capacity: how often the plan fits; None if the key may not ask, or the account takes no releases.
        periods: the member ``periods`` of the requests; empty if none were typed.
    """

    mechanism: Mechanism
    plan: Mapping[str, Any]
    asked: Sequence[Question]
    answers: Sequence[Mapping[str, Any]]
    cost: Mapping[str, Any]
    rehearsal: Mapping[str, Any] | None = field(default=None)
    capacity: Mapping[str, Any] | None = field(default=None)
    periods: Mapping[str, Any] = field(default_factory=dict)
