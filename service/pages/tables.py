"""Tables that small screens show row by row: each cell says its column, and every part what it is.

A table that is laid out as blocks is none to a screen reader any more, unless its parts have roles.
"""

import re
from html import escape, unescape

from markupsafe import Markup

_TABLE = re.compile(r"<table(?P<attributes>[^>]*)>(?P<content>.*?)</table>", re.DOTALL)
_ROW = re.compile(r"<tr>(?P<cells>.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<(?P<tag>t[dh])(?P<attributes>[^>]*)>(?P<content>.*?)</(?P=tag)>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_BLANKS = re.compile(r"\s+")
_LINE = 44  # characters that stand beside each other on a small screen


def stacked(html: str) -> Markup:
    """HTML with its tables so marked; one without a row of headings stays as it is."""
    return Markup(_TABLE.sub(lambda found: _table(found, least=0), html))  # noqa: S704 - nothing is added but labels


def stacked_where_wide(html: str) -> Markup:
    """The same of those tables alone that do not fit a small screen as they are."""
    return Markup(_TABLE.sub(lambda found: _table(found, least=_LINE), html))  # noqa: S704 - likewise


def _table(found: re.Match[str], least: int) -> str:
    rows = [list(_CELL.finditer(row["cells"])) for row in _ROW.finditer(found["content"])]
    if "<thead" not in found["content"] or not rows:
        return found[0]
    if max(sum(len(_text(cell["content"])) + 2 for cell in row) for row in rows) <= least:
        return found[0]
    labels = [_text(cell["content"]) for cell in rows[0]]
    inside = _ROW.sub(lambda row: _row(row, labels), found["content"])
    inside = re.sub(r"<(thead|tbody)>", r'<\1 role="rowgroup">', inside)
    return f'<table class="stack" role="table"{found["attributes"]}>{inside}</table>'


def _row(found: re.Match[str], labels: list[str]) -> str:
    labelled = iter(labels)
    cells = _CELL.sub(lambda cell: _cell(cell, next(labelled, "")), found["cells"])
    return f'<tr role="row">{cells}</tr>'


def _cell(found: re.Match[str], label: str) -> str:
    tag, attributes = found["tag"], found["attributes"]
    if tag == "th":
        role = "rowheader" if 'scope="row"' in attributes else "columnheader"
        return f'<th role="{role}"{attributes}>{found["content"]}</th>'
    return f'<td role="cell" data-label="{escape(label)}"{attributes}>{found["content"]}</td>'


def _text(html: str) -> str:
    return _BLANKS.sub(" ", unescape(_TAG.sub("", html))).strip()
