"""The form with the file of true counts, and the page with the noisy counts that answers it.

The file is sent on in memory; it is never kept or shown.
"""

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it publishes no types
from anyio import to_thread
from fastapi import Response

from service.api.http.csv_answers import MEDIA_TYPE as CSV
from service.api.http.memory_room import room_of
from service.api.publication.noisy_tables import PARQUET
from service.api.schemas.granularity import EXPECTED_COUNT, MOST_FAULTS
from service.errors import InvalidInput
from service.pages.shell.api_client import (
    LONGEST_ANSWER,
    WITHOUT_PLAN,
    Answer,
    Query,
    Refused,
    Visit,
    address,
    ask,
    get,
)
from service.pages.shell.fault_texts import plain
from service.pages.shell.forms import Form, text_of
from service.pages.shell.layout import page
from service.pages.shell.separated_text import column_names, has_commas, with_commas
from service.pages.shell.whole_tables import as_file

NO_FILE = "expected a file with a line of names and a column count"
_FILES = {"csv": CSV, "parquet": PARQUET}
"""The media types of the file of noisy counts, by its ending."""
_SHOWN = 8  # rows of the noisy counts that the page shows
_UNFOLDED = 4  # bytes of memory for a byte of a file whose separators are replaced: at most two are written, and moved
_NOT_OF_THE_FORM = (401, 403, 404)  # refusals of the key, of the account or of the release
_USED = {
    "title": "This form has drawn another table",
    "detail": "It was sent before, with another file or other fields, and is good for one draw. Nothing more was drawn"
    " or charged. Open the page again to draw this table.",
}


class SentCounts(NamedTuple):
    """The part of a form that has the file.

    Attributes:
        table: the file's content; empty where none was chosen.
        ending: of the file of noisy counts.
        once: the Idempotency-Key of the form.
    """

    table: bytes
    ending: str
    once: str

    @property
    def kept(self) -> dict[str, Any]:
        """The variables of a refused form's template.

        A draw whose answer was lost may be committed: the same key again has it answered, and not drawn twice.
        """
        return {"once": self.once, "file": self.ending}


def counts_of(form: Form) -> SentCounts:
    """Return the file that a form sends.

    Raises:
        InvalidInput: the form is not one of a page.
    """
    ending, once = text_of(form, "file") or "csv", text_of(form, "once")
    if not once or ending not in _FILES:
        raise InvalidInput.at("/file" if once else "/once", "expected the form of the page")
    return SentCounts(form.files.get("counts", b""), ending, once)


async def draw_counts(visit: Visit, path: str, query: Query, sent: SentCounts) -> Answer:
    """Draw the counts of the file, and return the answer with the noisy counts.

    Raises:
        Refused: ``/v1`` draws nothing.
    """
    table = sent.table
    if not has_commas(table):
        room_of(visit.request.scope)(_UNFOLDED * len(table))
        table = await to_thread.run_sync(with_commas, table)
    headers = {"content-type": CSV, "accept": _FILES[sent.ending], "idempotency-key": sent.once}
    # not bounded: the answer is a file, which is not parsed
    answer = await ask(visit, "POST", path, query=query, content=table, headers=headers, bounded=False)
    if answer.status != 201:
        raise Refused(json.loads(answer.body))
    return answer


async def show_drawn(visit: Visit, account: str, answer: Answer, sent: SentCounts, *, charged: bool) -> Response:
    """Render the page after a draw, which has the noisy counts within: their labels are stored nowhere.

    Noisy counts that are too long for a page are sent as the file itself.

    Args:
        charged: whether the draw registered its release.
    """
    draw, release = answer.headers["x-draw"], answer.headers["x-release"]
    name, kind = f"noisy-{draw}.{sent.ending}", _FILES[sent.ending]
    if len(answer.body) > LONGEST_ANSWER:
        return as_file(answer.body, name, kind)
    path = address("accounts", account, "releases", release)
    found = await get(visit, path, {"with_charge": "true"} | WITHOUT_PLAN)
    encoded = await to_thread.run_sync(base64.b64encode, answer.body)
    names, rows = await to_thread.run_sync(_FIRST_ROWS[sent.ending], answer.body)
    shown: dict[str, Any] = {"release": found, "charged": charged, "name": name, "names": names, "rows": rows}
    return page(visit.request, "drawn.html", shown | {"file": f"data:{kind};base64,{encoded.decode()}"}, back=True)


def _first_of_csv(table: bytes) -> tuple[list[str], list[list[str]]]:
    names, *rows = islice(csv.reader(io.TextIOWrapper(io.BytesIO(table), "utf-8", newline="")), _SHOWN + 1)
    return names, rows


def _first_of_parquet(table: bytes) -> tuple[list[str], list[list[str]]]:
    first = next(pq.ParquetFile(io.BytesIO(table)).iter_batches(_SHOWN))
    return first.schema.names, [[str(value) for value in row.values()] for row in first.to_pylist()]


_FIRST_ROWS = {"csv": _first_of_csv, "parquet": _first_of_parquet}
"""The functions that read the names of the columns and the first rows of a file of noisy counts, by its ending."""


def fault_of_file(refused: Refused, granularity: str | None, table: bytes) -> dict[str, str]:
    """Return the fault of the field ``counts`` in words; empty if the file has none.

    Args:
        refused: the refusal of ``/v1``.
        granularity: of the counts, where it is another number than 1.
        table: the file, of which the names of columns are told.

    Raises:
        Refused: the refusal, which is one of no form.
    """
    if refused.status in _NOT_OF_THE_FORM:
        raise refused
    number = EXPECTED_COUNT if not granularity else f"expected a multiple of {granularity}"
    found = {one: detail.replace(EXPECTED_COUNT, number) for one, detail in refused.faults.items() if is_of_file(one)}
    return {"counts": "; ".join(map(plain, _by_column(found, column_names(table))))} if found else {}


def _by_column(faults: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return the faults of a file, of which equal ones of a column are one.

    Args:
        faults: as ``/v1`` states them: at a row and a column, or at a row alone.
        names: of the columns; empty where they are unknown.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for pointer, detail in faults.items():
        groups.setdefault((pointer.partition("/")[2].partition("/")[2], detail.partition(": ")[2]), []).append(pointer)
    told = []
    for (column, text), pointers in groups.items():
        if len(pointers) == 1:
            told.append(faults[pointers[0]])
            continue
        name = f" (“{names[int(column) - 1]}”)" if column and len(names) >= int(column) else ""
        number = f"{'at least ' if len(faults) >= MOST_FAULTS else ''}{len(pointers)}"
        where = f"{number} rows, the first of which is row {pointers[0].split('/')[1]}"
        told.append(f"column {column}{name}, in {where}: {text}" if column else f"in {where}: {text}")
    return told


def is_of_file(pointer: str) -> bool:
    """Return whether a fault's pointer is a row of the file."""
    return pointer[1:2].isdigit()


def problem_in_words(refused: Refused) -> dict[str, Any]:
    """Return the problem; the form's key is called nothing, since nobody typed it."""
    used = refused.problem["type"] == "/problems/idempotency_conflict"
    return refused.problem | (_USED if used else {})
