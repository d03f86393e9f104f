"""Tables that small screens show row by row: each cell has its column's name, and every part an ARIA role.

A screen reader does not recognise a table that is laid out as blocks, unless its parts have roles.
"""

import re
from html import escape, unescape

from markupsafe import Markup

_TABLE = re.compile(r"<table(?P<attributes>[^>]*)>(?P<content>.*?)</table>", re.DOTALL)
_ROW = re.compile(r"<tr>(?P<cells>.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<(?P<tag>t[dh])(?P<attributes>[^>]*)>(?P<content>.*?)</(?P=tag)>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_BLANKS = re.compile(r"\s+")
_LINE = 44  # characters that fit side by side on a small screen


def stacked(html: str) -> Markup:
    """Return HTML with its tables marked so; a table without a row of headings stays as it is."""
    return Markup(_TABLE.sub(lambda found: _table(found, least=0), html))  # noqa: S704 - nothing is added but labels


def stacked_where_wide(html: str) -> Markup:
    """Return HTML with only those tables marked that do not fit a small screen."""
    return Markup(_TABLE.sub(lambda found: _table(found, least=_LINE), html))  # noqa: S704 - likewise


def _table(match: re.Match[str], least: int) -> str:
    rows = [list(_CELL.finditer(row["cells"])) for row in _ROW.finditer(match["content"])]
    if "<thead" not in match["content"] or not rows:
        return match[0]
    if max(sum(len(_text(cell["content"])) + 2 for cell in row) for row in rows) <= least:
        return match[0]
    labels = [_text(cell["content"]) for cell in rows[0]]
    inside = _ROW.sub(lambda row: _row(row, labels), match["content"])
    inside = re.sub(r"<(thead|tbody)>", r'<\1 role="rowgroup">', inside)
    return f'<table class="stack" role="table"{match["attributes"]}>{inside}</table>'


def _row(match: re.Match[str], labels: list[str]) -> str:
    labelled = iter(labels)
    cells = _CELL.sub(lambda cell: _cell(cell, next(labelled, "")), match["cells"])
    return f'<tr role="row">{cells}</tr>'


def _cell(match: re.Match[str], label: str) -> str:
    tag, attributes = match["tag"], match["attributes"]
    if tag == "th":
        role = "rowheader" if 'scope="row"' in attributes else "columnheader"
        return f'<th role="{role}"{attributes}>{match["content"]}</th>'
    return f'<td role="cell" data-label="{escape(label)}"{attributes}>{match["content"]}</td>'


def _text(html: str) -> str:
    return _BLANKS.sub(" ", unescape(_TAG.sub("", html))).strip()
