"""Lists as JSON pages, or by the header Accept as tables of comma-separated values."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Header, Response

from service.api.http import csv_answers
from service.api.http.accepted_types import JSON, prefers
from service.api.http.dependencies import Streamed, ok
from service.api.http.paging import page, write_cursor

NEXT_CURSOR = "X-Next-Cursor"
"""The header of a table that names the cursor of the next page, where there is one."""

Accepted = Annotated[str, Header(alias="Accept", description=f"{csv_answers.MEDIA_TYPE} for a table; else JSON.")]
AS_TABLE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": csv_answers.ANSWER,
        "headers": {
            NEXT_CURSOR: {
                "description": "Of a table: next_cursor, where others follow.",
                "schema": {"type": "string"},
            }
        },
    }
}
"""The declaration of the two forms of a list, for ``responses``."""
USUAL = JSON


def answer_list(
    accept: str,
    items: Sequence[dict[str, Any]],
    last: str | int | None,
    columns: Sequence[str],
    beside: Mapping[str, Any] | None = None,
) -> Response:
    """Return a page of a list in the form that the client prefers.

    Args:
        accept: the header Accept.
        items: the items of the page.
        last: its last item, where others may follow.
        columns: of the table: the names of members, with dots those of members of members. A value that is an object,
            or a list of objects, is written as JSON.
        beside: further members of the page, which a table leaves out.
    """
    if prefers(accept, csv_answers.MEDIA_TYPE):
        return table_answer(columns, items, None if last is None else write_cursor(last))
    return ok(page(items, last) | dict(beside or {}))


def table_answer(columns: Sequence[str], items: Iterable[Mapping[str, Any]], next_cursor: str | None) -> Response:
    """Return items as a table, with the cursor of the next page in a header."""
    headers = {} if next_cursor is None else {NEXT_CURSOR: next_cursor}
    return Streamed(table_text(columns, items), headers=headers, media_type=csv_answers.MEDIA_TYPE)


def table_text(columns: Sequence[str], items: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield items as a table; columns are those of ``answer_list``."""
    return csv_answers.written(columns, _rows(columns, items))


def _rows(columns: Sequence[str], items: Iterable[Mapping[str, Any]]) -> Iterator[list[object]]:
    paths = [column.split(".") for column in columns]
    return ([_value(item, path) for path in paths] for item in items)


def _value(item: Mapping[str, Any], path: Sequence[str]) -> object:
    value: Any = item
    for name in path:
        value = None if value is None else value.get(name)
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict | list) for one in value)):
        return json.dumps(value, ensure_ascii=False)
    return value
