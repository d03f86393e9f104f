"""Columns of numbers that a user uploads or pastes: text, one number per line.

A refusal names the number of the line and never repeats its text, which may be a true count. Lines are counted first,
and then read one after another: a list of all lines would take many times the memory of the column.
"""

import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from service.api.http.json_size import counter
from service.errors import InvalidInput

MOST_BYTES = 16 << 20
MOST_NUMBERS = 1_000_000
_A_NUMBER = 80  # bytes: the number, its place in a list, and its text in a request
_MOST_WHOLE = 10**18  # from which a number stays a float, which takes no more memory the larger it is
_PART = 1 << 14  # numbers that are written at once

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_NO_NAMES = frozenset({"nan", "na", "inf", "infinity", "null", "none"})
_LONGEST = 400  # characters of a line: longer text is not taken for a number, since int() would take long for it


def read_column(content: bytes, pointer: str) -> list[int | float]:
    """Return the numbers of a column. Blank lines are skipped, and a first line without a number is a heading.

    Raises:
        InvalidInput: the column is too large or not text, or a line is not one number; the fault is at ``pointer``.
    """
    if len(content) > MOST_BYTES:
        raise InvalidInput.at(pointer, f"expected at most {MOST_BYTES >> 20} MiB")
    if max(_line_ends(content)) > 2 * MOST_NUMBERS:  # half of them blank
        raise _too_many(pointer)
    if b"\0" in content:
        raise _no_text(pointer)
    numbers: list[int | float] = []
    try:
        for place, line in _lines(content):
            number = _number(line)
            if number is not None:
                numbers.append(number)
            elif numbers or not _is_heading(line, place):
                raise InvalidInput.at(pointer, f"line {place}: {_expected(line)}")
            if len(numbers) > MOST_NUMBERS:
                raise _too_many(pointer)
    except UnicodeDecodeError:
        raise _no_text(pointer) from None
    return numbers


def memory_of(content: bytes) -> int:
    """Return an upper bound on the bytes that the numbers of a column take, counted before they are read."""
    return _A_NUMBER * min(MOST_NUMBERS, sum(_line_ends(content)) + 1)


def as_json(question: Mapping[str, Any]) -> bytes:
    """Return a request with columns as JSON: long lists in parts, without an object for every number."""
    return f"{{{', '.join(f'{json.dumps(name)}: {_text(value)}' for name, value in question.items())}}}".encode()


def _text(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return f"[{', '.join(json.dumps(value[at : at + _PART])[1:-1] for at in range(0, len(value), _PART))}]"


def _lines(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank with their numbers; of a long line only the beginning, which is refused."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig")
    place, begins = 0, True
    while part := text.readline(_LONGEST + 1):
        place += begins
        begins = part.endswith("\n")
        line = part.strip().strip('"')
        if line:
            yield place, (line if begins or len(part) <= _LONGEST else part)


def _line_ends(content: bytes) -> tuple[int, int]:
    """Return the numbers of line feeds and of carriage returns."""
    count = counter(content)
    return count(b"\n"), count(b"\r")


def _no_text(pointer: str) -> InvalidInput:
    return InvalidInput.at(pointer, "expected text in UTF-8, one number per line; got another kind of file")


def _too_many(pointer: str) -> InvalidInput:
    return InvalidInput.at(pointer, f"expected at most {MOST_NUMBERS:,} numbers, one per line")


def _number(line: str) -> int | float | None:
    if len(line) > _LONGEST or not _NUMBER.fullmatch(line):
        return None
    number = float(line)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < _MOST_WHOLE else number


def _is_heading(line: str, place: int) -> bool:
    """Return whether a line is a heading, and neither a mistyped number nor a missing value."""
    is_name = line[0].isalpha() and line.lower() not in _NO_NAMES and not any(mark in line for mark in ",;\t")
    return place == 1 and len(line) <= _LONGEST and is_name


def _expected(line: str) -> str:
    several = any(mark in line for mark in ",;\t")
    return "expected one number" + ("; got several columns, or a decimal comma" if several else "")
