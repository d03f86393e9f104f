"""Tables as comma-separated values (RFC 4180), which a spreadsheet opens without running any of their texts."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

MEDIA_TYPE = "text/csv"
ANSWER: dict[str, Any] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "string",
            "description": "A table with a line of names (RFC 4180, UTF-8). A text that a spreadsheet would take for a"
            " formula begins with an apostrophe.",
        }
    }
}
"""The content of an answer that may be a table, for ``responses``."""

_ROWS = 1 << 14  # written at a time
_BEGIN_FORMULAS = frozenset("=+-@\u2212")  # also in wide, small and other forms, as compatibility composition has them
_DROPPED = frozenset("\t\r\n")  # before a formula, by some spreadsheets: such texts are marked whatever follows
_UNSEEN = frozenset(
    ("Cc", "Cf", "Cn", "Zs", "Zl", "Zp", "Mn", "Me")
)  # categories without a width or a mark of their own
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and symbols by their category
_NUMBER = re.compile(r"[+-]?[0-9]+([./][0-9]+)?(e[+-]?[0-9]+)?", re.IGNORECASE)


def written(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield a table as text, many rows at a time.

    Args:
        columns: the names in the first line.
        rows: None is written as nothing, and a list of texts as one text with semicolons.
    """
    lines = ([_cell(value) for value in row] for row in chain([columns], rows))
    while some := list(islice(lines, _ROWS)):
        text = io.StringIO()
        csv.writer(text).writerows(some)
        yield text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "; ".join(str(_cell(item)) for item in value)
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        first, *others = value.split(";")  # where some spreadsheets end cells, and read quotation marks again
        return ";".join((_harmless(first), *(_harmless(one, ' "') for one in others)))
    return value


def _harmless(cell: str, before: str = "") -> str:
    """Return a text with an apostrophe, if a spreadsheet could run it.

    Args:
        before: characters that may come before a formula, and before the apostrophe.
    """
    text = cell.lstrip(before) if before else cell
    for character in text:
        if character in _DROPPED or unicodedata.normalize("NFKC", character)[0] in _BEGIN_FORMULAS:
            return f"{cell[: len(cell) - len(text)]}'{text}"
        if not (unicodedata.category(character) in _UNSEEN or character in _BLANK or character in before):
            break
    return cell
