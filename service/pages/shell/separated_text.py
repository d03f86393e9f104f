"""Tables as spreadsheets save them: their columns are separated by tabs, semicolons or commas."""

import csv
import io
from collections.abc import Iterator

from service.api.schemas.count_tables import COUNT, MOST_COLUMNS
from service.pages.shell.typed_numbers import has_points_for_thousands, with_point
from service.privacy.partitions import LONGEST

_LONGEST_ROW = 3 * (LONGEST + 1) * MOST_COLUMNS  # characters: of quoted labels, whose quotation marks are doubled
_LONGEST_LINE = 4 * _LONGEST_ROW  # bytes


def separator_of(first_line: str) -> str:
    """Return the character that separates the columns of a table with this first line."""
    return next((one for one in "\t;" if one in first_line), ",")


def has_commas(content: bytes) -> bool:
    """Return whether commas separate the names of a table of true counts, one of which is ``count``.

    A table whose first line is too long for names is said to have commas, for ``/v1`` to refuse it as it is.
    """
    first = _first_line(content)
    return separator_of(first) == "," or COUNT in (name.strip('"\r') for name in first.split(",", MOST_COLUMNS))


def column_names(content: bytes) -> list[str]:
    """Return the names of the columns of a table of true counts; empty if no column is named ``count``.

    The first line of such a table may have counts.
    """
    first = _first_line(content)
    names = next(csv.reader([first], delimiter="," if has_commas(content) else separator_of(first)), [])
    return names if COUNT in names else []


def with_commas(content: bytes) -> bytes:
    """Return a table of true counts separated by commas, as ``/v1`` reads it, with decimal points.

    A table that is not understood is returned as it is, for ``/v1`` to refuse.
    """
    written = io.BytesIO()
    text = io.TextIOWrapper(written, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    try:
        separator = separator_of(_first_line(content))
        rows = _rows(content, separator)
        names = next(rows)
        place = names.index(COUNT) if COUNT in names else len(names)
        writer.writerow(names)
        for row in rows:
            writer.writerow([_count(cell, separator) if number == place else cell for number, cell in enumerate(row)])
    except (UnicodeDecodeError, csv.Error):
        return content
    text.flush()
    return written.getvalue()


def _count(cell: str, separator: str) -> str:
    """Return a typed count for ``/v1``, which refuses one that ends in a blank."""
    number = with_point(cell)
    return f"{number.rstrip()} " if separator == ";" and has_points_for_thousands(cell.strip()) else number


def _first_line(content: bytes) -> str:
    """Return the first line, where it may have names; nothing of one that is longer."""
    end = content.find(b"\n", 0, _LONGEST_LINE)
    if end < 0 and len(content) > _LONGEST_LINE:
        return ""
    return content[: end % (len(content) + 1)].decode("utf-8-sig", "replace")


def _rows(content: bytes, separator: str) -> Iterator[list[str]]:
    """Yield the rows of a table; the reader makes each in one call, which holds all else up.

    Raises:
        csv.Error: a row is malformed, or longer than the labels of all columns can be.
        UnicodeDecodeError: the text is not UTF-8.
    """
    text = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    left = _LONGEST_ROW

    def lines() -> Iterator[str]:
        nonlocal left
        while line := text.readline(left):
            left -= len(line)
            if not left:
                raise csv.Error
            yield line

    for row in csv.reader(lines(), delimiter=separator, strict=True):
        yield row
        left = _LONGEST_ROW
