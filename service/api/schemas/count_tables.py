"""Tables of counts as comma-separated values: columns of labels, and one of true counts.

The labels of a row are the name of a disjoint set of records. They are spelt as partitions are, and stand for one row
only, so that no records are counted in two rows by two spellings. No error quotes a value of the table.
"""

import codecs
import csv
import io
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from service.api.http.memory_room import Take
from service.api.schemas.exact_numbers import LARGEST_INTEGER
from service.api.schemas.granularity import EXPECTED_COUNT, MOST_FAULTS, count_text, json_counts, units_of
from service.errors import Fault, InvalidInput, TooLarge
from service.privacy.numerics.numbers import parse_exact
from service.privacy.partitions import EXPECTED_NAME, unclear

COUNT, NOISY, MARGIN, CONFIDENCE = "count", "noisy", "moe", "confidence"
KEY = "key"  # the column that names the rows where the mechanism has a threshold
MOST_COLUMNS = 100

_ADDED = (NOISY, MARGIN, CONFIDENCE)
_WHOLE = re.compile(r"-?[0-9]{1,16}")
# Upper bounds on the memory of the table while it is read and answered.
_A_ROW, _A_VALUE, _A_BYTE = 300, 70, 4
_PART = 1 << 14  # rows of an answer that are made at a time


@dataclass(frozen=True, eq=False)
class CountTable:
    """A table of counts.

    Attributes:
        columns: the names of all columns, in order.
        place: the place of the counts among them.
        rows: the values of each row; the place of the counts is empty.
        counts: exact numbers.
        lines: the last line of each row in the text.
    """

    columns: Sequence[str]
    place: int
    rows: Sequence[list[str]]
    counts: Sequence[int | Fraction]
    lines: Sequence[int]

    @property
    def keys(self) -> list[str] | None:
        """The keys of the rows; None if no column has keys."""
        if KEY not in self.columns:
            return None
        place = self.columns.index(KEY)
        return [row[place] for row in self.rows]

    def published(self, keys: Sequence[str] | None) -> "CountTable":
        """Return the table with the rows of these keys alone, in their order; None: all rows, as they are."""
        if keys is None:
            return self
        of_key = dict(zip(self.keys or (), self.rows, strict=True))
        return replace(self, rows=[of_key[key] for key in keys])

    def units(self, unit: Fraction) -> NDArray[np.int64]:
        """Return the counts in units of a granularity.

        Raises:
            InvalidInput: counts are not multiples of it; the faults name their lines.
        """
        try:
            return units_of(self.counts, unit, "")
        except InvalidInput as refused:
            faults = [(self.lines[int(pointer.removeprefix("/"))], detail) for pointer, detail in refused.faults]
            raise InvalidInput([_fault(line, self.place, detail) for line, detail in faults]) from None


def read_table(body: bytes | bytearray, most_values: int, take: Take) -> CountTable:
    """Read a table of counts in UTF-8, with or without a byte order mark.

    The first line has the names of the columns. One of them is ``count``. Each other value is a label.

    Args:
        body: the text, by RFC 4180.
        most_values: the limit on the number of values.
        take: reserves so many bytes of the shared memory limit.

    Raises:
        InvalidInput: the table is malformed, has no row, or labels or counts are not accepted. The first faults of
            the whole table are told together; each names a line and a column, and never a value.
        TooLarge: it has more values than ``most_values``, or needs more memory than one principal may take.
        Unavailable: the memory is in use by other requests.
    """
    rows = body.count(b"\n") + body.count(b"\r") - body.count(b"\r\n") + 1  # at most
    values = body.count(b",") + rows
    if values > most_values:
        raise TooLarge(f"expected a table of at most {most_values} values")
    take(_A_ROW * rows + _A_VALUE * values + _A_BYTE * len(body))
    lines = csv.reader(io.StringIO(_decoded(body), newline=""), strict=True)
    try:
        columns = next(lines, [])
    except csv.Error:
        raise InvalidInput([_malformed(lines)[1]]) from None
    place, wrong = _place_of_counts(columns)
    table, faults = _read_rows(lines, columns, place)
    faults += [(1, fault) for fault in wrong]
    faults += _faults_of_labels(table)
    if faults:
        raise InvalidInput([fault for _, fault in sorted(faults)[:MOST_FAULTS]])
    return table


def _decoded(body: bytes | bytearray) -> str:
    start = len(codecs.BOM_UTF8) if body.startswith(codecs.BOM_UTF8) else 0
    try:
        text = body[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(body.count(b"\n", 0, start + error.start) + 1, None, "expected UTF-8") from None
    if "\0" in text:
        raise _refused(text.count("\n", 0, text.index("\0")) + 1, None, "expected no NUL character")
    return text


def _place_of_counts(columns: Sequence[str]) -> tuple[int, list[Fault]]:
    """Return the place of the column of counts, and the faults of the columns' names.

    Raises:
        InvalidInput: no column, or more than one, has counts, or there are too many columns.
    """
    if columns.count(COUNT) != 1:
        detail = f"expected the names of the columns, separated by commas, one of them {COUNT}"
        raise _refused(1, None, detail)
    if len(columns) > MOST_COLUMNS:
        raise _refused(1, None, f"expected at most {MOST_COLUMNS} columns")
    faults = [_fault(1, number, EXPECTED_NAME) for number in unclear(columns)]
    for number, name in enumerate(columns):
        if name in _ADDED:
            faults.append(_fault(1, number, f"expected no column named {name}: the answer adds it"))
        elif name in columns[:number]:
            faults.append(_fault(1, number, "expected each name once"))
    return columns.index(COUNT), faults


_Found = tuple[int, Fault]
"""A fault with its line."""


def _read_rows(lines: Iterator[list[str]], columns: Sequence[str], place: int) -> tuple[CountTable, list[_Found]]:
    """Return the rows that are read, and the faults of the others, up to a row that is malformed."""
    rows, counts, numbers = list[list[str]](), list[int | Fraction](), array("Q")
    faults: list[_Found] = []
    try:
        for row in lines:
            number: int = lines.line_num  # type: ignore[attr-defined] # of the reader
            if len(faults) == MOST_FAULTS:
                break
            if len(row) != len(columns):
                detail = f"expected {len(columns)} values, as the first line has names"
                faults.append((number, _fault(number, None, detail)))
                continue
            count = _count_of(row[place])
            if count is None:
                faults.append((number, _fault(number, place, EXPECTED_COUNT)))
            counts.append(count or 0)
            row[place] = ""
            rows.append(row)
            numbers.append(number)
    except csv.Error:
        faults.append(_malformed(lines))
    if not rows and not faults:
        faults.append((2, _fault(2, None, "expected at least one row of labels and a count")))
    return CountTable(columns, place, rows, counts, numbers), faults


def _count_of(text: str) -> int | Fraction | None:
    """Return the count that a text states; None if it states none."""
    if _WHOLE.fullmatch(text) and text.isascii():
        count = int(text)
        return count if abs(count) <= LARGEST_INTEGER else None
    try:
        return parse_exact.__wrapped__(text)  # without its cache: counts are secret
    except ValueError:
        return None


def _faults_of_labels(table: CountTable) -> list[_Found]:
    """Return the first labels of each column that are spelt in another way than partitions, and repeated labels."""
    faults: list[_Found] = []
    for place in range(len(table.columns)):
        if place != table.place:
            found = islice(unclear([row[place] for row in table.rows]), MOST_FAULTS)
            faults += [(line, _fault(line, place, EXPECTED_NAME)) for line in (table.lines[row] for row in found)]
    if len(table.columns) == 1:
        return faults
    seen: set[tuple[str, ...]] = set()
    repeated: list[_Found] = []
    for number, row in enumerate(table.rows):
        labels = tuple(row)
        if labels in seen:
            detail = "expected each combination of labels once: each row counts records of its own"
            repeated.append((table.lines[number], _fault(table.lines[number], None, detail)))
            if len(repeated) == MOST_FAULTS:
                break
        seen.add(labels)
    return faults + repeated


def _refused(line: int, place: int | None, detail: str) -> InvalidInput:
    """Return the refusal of a line, or of a value in it; columns are counted from 1."""
    return InvalidInput([_fault(line, place, detail)])


def _malformed(lines: Iterator[list[str]]) -> _Found:
    """Return the fault of the row at which a reader of a table stopped; the reader's own message may quote the text."""
    number: int = lines.line_num  # type: ignore[attr-defined] # of the reader
    return number, _fault(number, None, "expected values separated by commas, quoted by RFC 4180")


def _fault(line: int, place: int | None, detail: str) -> Fault:
    if place is None:
        return Fault(f"/{line}", f"line {line}: {detail}")
    return Fault(f"/{line}/{place + 1}", f"line {line}, column {place + 1}: {detail}")


def names_with_noisy(table: CountTable) -> list[str]:
    """Return the names of the columns of a table with noisy counts in place of the counts."""
    return [*(NOISY if place == table.place else name for place, name in enumerate(table.columns)), MARGIN, CONFIDENCE]


def rows_with_noisy(
    table: CountTable, noisy: NDArray[np.int64], unit: Fraction, margin: int, confidence: float
) -> Iterator[list[list[object]]]:
    """Yield the rows of a table with noisy counts in place of the counts, each with its margin of error, in parts.

    Args:
        table: the table.
        noisy: in units of the granularity.
        unit: the granularity.
        margin: of error, in units of the granularity.
        confidence: of the margin.
    """
    stated = [count_text(margin, unit), confidence]
    for start in range(0, len(table.rows), _PART):
        counts = json_counts(noisy[start : start + _PART].tolist(), unit)
        rows = zip(table.rows[start : start + _PART], counts, strict=True)
        yield [[*row[: table.place], count, *row[table.place + 1 :], *stated] for row, count in rows]
