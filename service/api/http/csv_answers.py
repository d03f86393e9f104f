"""Tables as comma-separated values (RFC 4180), which a spreadsheet opens without running any of their texts."""

import csv
import io
import re
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
# At the beginning of a text, or of the next cell where a spreadsheet ends cells at semicolons; also in wide forms, and
# behind characters that a spreadsheet may drop: line breaks, and what has no width.
_FORMULA = re.compile('(^|;[ "]*)(?=[=+\\-@\\t\\r\\n\uff1d\uff0b\uff0d\uff20\ufeff\u200b\u2060])')
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
        return _FORMULA.sub(r"\1'", value)
    return value
