"""Columns of numbers that a user uploads or pastes: text, one number per line.

A refusal names the number of the line and never repeats its text, which may be a true count.
"""

import math
import re

from service.errors import InvalidInput

MOST_BYTES = 16 << 20
MOST_NUMBERS = 1_000_000

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_NO_NAMES = frozenset({"nan", "na", "inf", "infinity", "null", "none"})
_LONGEST = 400  # characters of a line: longer text is not taken for a number, since int() would take long for it


def read_column(content: bytes, pointer: str) -> list[int | float]:
    """Return the numbers of a column. Blank lines are skipped, and a first line without a number is a heading.

    Raises:
        InvalidInput: the column is too large or not text, or a line is not one number; the fault is at ``pointer``.
    """
    if len(content) > MOST_BYTES:
        raise InvalidInput.at(pointer, f"expected at most {MOST_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput.at(
            pointer, "expected text in UTF-8, one number per line; got another kind of file"
        ) from None
    if "\0" in text:
        raise InvalidInput.at(pointer, "expected text, one number per line; got another kind of file")
    lines = [line.strip().strip('"') for line in text.splitlines()]
    numbers: list[int | float] = []
    for place, line in enumerate(lines, 1):
        if not line:
            continue
        number = _number(line)
        if number is not None:
            numbers.append(number)
        elif numbers or not _is_heading(line, place):
            raise InvalidInput.at(pointer, f"line {place}: {_expected(line)}")
    if len(numbers) > MOST_NUMBERS:
        raise InvalidInput.at(pointer, f"expected at most {MOST_NUMBERS:,} numbers")
    return numbers


def _number(line: str) -> int | float | None:
    if len(line) > _LONGEST or not _NUMBER.fullmatch(line):
        return None
    number = float(line)
    return (int(number) if number.is_integer() else number) if math.isfinite(number) else None


def _is_heading(line: str, place: int) -> bool:
    """Return whether a line is a heading, and neither a mistyped number nor a missing value."""
    is_name = line[0].isalpha() and line.lower() not in _NO_NAMES and not any(mark in line for mark in ",;\t")
    return place == 1 and len(line) <= _LONGEST and is_name


def _expected(line: str) -> str:
    several = any(mark in line for mark in ",;\t")
    return "expected one number" + ("; got several columns, or a decimal comma" if several else "")
