"""Targets that were pasted from a spreadsheet or uploaded as CSV, as rows of the planner's form."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace

from service.pages.planner.form import COLUMNS, MOST_ROWS, Column, Form, FormFaults, empty_row, filled
from service.pages.shell.separated_text import separator_of
from service.pages.shell.typed_numbers import has_points_for_thousands

LONGEST_TABLE = 1 << 17  # characters, and bytes of a file
_MOST_LINES = 10 * MOST_ROWS  # with blank ones
_MOST_SEPARATORS = 100 * MOST_ROWS  # of cells: a text may have some too
_LONGEST_NAME = 60  # characters of the name of an unknown column
_MOST_TOLD = 10  # rows that a fault names
_FIELD = "targets"


def with_pasted(form: Form, text: str) -> Form:
    """Return the form with the rows of a table after its own; rows of it that were empty are dropped.

    Columns are separated by tabs, semicolons or commas. Their order is the form's, unless the first line names them. An
    empty cell has the column's initial text. Numbers may have decimal commas.

    Raises:
        FormFaults: the text is no such table, or has too many rows.
    """
    if len(text) > LONGEST_TABLE or text.count("\n") + text.count("\r") > 2 * _MOST_LINES:
        raise FormFaults({_FIELD: f"expected at most {MOST_ROWS} rows"})
    lines = [line.rstrip("\n") for line in io.StringIO(text.removeprefix("\ufeff"), newline=None) if line.strip()]
    if len(lines) > 2 * MOST_ROWS:
        raise FormFaults({_FIELD: f"expected at most {MOST_ROWS} rows"})
    if not lines:
        raise FormFaults({_FIELD: "expected rows that were copied from a spreadsheet, or a CSV file"})
    separator = separator_of(lines[0])
    if text.count(separator) > _MOST_SEPARATORS:
        raise FormFaults({_FIELD: f"expected at most {len(COLUMNS[form.kind])} columns in each row"})
    try:
        table = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=separator, strict=True))
    except csv.Error:
        raise FormFaults({_FIELD: "expected a table whose quotation marks are closed"}) from None
    columns = _named(form, table[0])
    if columns is None:
        columns = list(COLUMNS[form.kind])
    else:
        table = table[1:]
    long = [number for number, cells in enumerate(table, 1) if any(cell.strip() for cell in cells[len(columns) :])]
    if long:
        raise FormFaults({_FIELD: f"expected at most {len(columns)} columns in {_rows_text(long)} of the table"})
    if separator == ";" and (
        thousands := [number for number, cells in enumerate(table, 1) if _has_thousands(columns, cells)]
    ):
        raise FormFaults(
            {_FIELD: f"expected 1000, without a point between its digits, in {_rows_text(thousands)} of the table"}
        )
    rows = [dict(form.rows[number]) for number in filled(form)]
    for cells in table:
        given = {column.name: column.text(cell) for column, cell in zip(columns, cells, strict=False) if cell.strip()}
        rows.append(empty_row(form.kind) | given)
    if len(rows) > MOST_ROWS:
        raise FormFaults({_FIELD: f"expected at most {MOST_ROWS} rows"})
    return replace(form, rows=tuple(rows))


def _has_thousands(columns: Sequence[Column], cells: Sequence[str]) -> bool:
    numbers = (cell.strip() for column, cell in zip(columns, cells, strict=False) if column.numeric)
    return any(map(has_points_for_thousands, numbers))


def _rows_text(numbers: Sequence[int]) -> str:
    """Return the numbers of rows in words: the first ones of many."""
    if len(numbers) > _MOST_TOLD:
        shown = ", ".join(map(str, numbers[:_MOST_TOLD]))
        return f"rows {shown} and {len(numbers) - _MOST_TOLD} more"
    *most, last = map(str, numbers)
    return f"rows {', '.join(most)} and {last}" if most else f"row {last}"


def _named(form: Form, first: Sequence[str]) -> list[Column] | None:
    """Return the columns that a first line names; None if it names none.

    Raises:
        FormFaults: it names some columns, and something else.
    """
    known = {name: column for column in COLUMNS[form.kind] for name in (column.name, column.label.lower())}
    names = [cell.strip().lower() for cell in first]
    found = [known[name] for name in names if name in known]
    if not found:
        return None
    if len(found) < len(names) or len(set(found)) < len(found):
        expected = ", ".join(column.label for column in COLUMNS[form.kind])
        unknown = next((cell.strip() for cell in first if cell.strip().lower() not in known), None)
        got = "" if unknown is None else f"; got “{unknown[:_LONGEST_NAME]}”"
        raise FormFaults({_FIELD: f"expected a first line with some of: {expected}; each once and nothing else{got}"})
    return found
