"""Tables of pages: each cell has its column's name, and each part its role."""

from html.parser import HTMLParser

import pytest
from jinja2 import Template
from markupsafe import Markup

from service.pages.shell.layout import _ENVIRONMENT

_TABLE: Template = _ENVIRONMENT.from_string(
    """{% from "macros.html" import table, table_row %}
    {% call table(columns, caption) %}{% for cells in rows %}{{ table_row(columns, cells) }}{% endfor %}{% endcall %}"""
)
_COLUMNS = [("", ""), ("A & B", "number"), ("C", "")]


class _Seen(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.parts: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parts.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts += [data.strip()] * bool(data.strip())


def test_cells_have_their_columns_names_and_parts_their_roles() -> None:
    rows = [["<one>", 1, Markup("<b>bold</b>")], ["two", 2, ""]]
    seen = _Seen(_TABLE.render(columns=_COLUMNS, rows=rows, caption="Both"))
    assert [(tag, attributes.get("role")) for tag, attributes in seen.parts if tag not in ("b", "caption")] == [
        ("table", "table"),
        ("thead", "rowgroup"),
        ("tr", "row"),
        ("td", "cell"),
        *[("th", "columnheader")] * 2,
        ("tbody", "rowgroup"),
        *[("tr", "row"), ("th", "rowheader"), ("td", "cell"), ("td", "cell")] * 2,
    ]
    cells = [attributes for tag, attributes in seen.parts if tag == "td"][1:]
    assert [cell["data-label"] for cell in cells] == ["A & B", "C"] * 2
    assert [cell.get("class") for cell in cells] == ["number", None] * 2
    assert seen.texts == ["Both", "A & B", "C", "<one>", "1", "bold", "two", "2"]


@pytest.mark.parametrize("cells", [["one", 1], ["one", 1, 2, 3]])
def test_a_row_has_a_cell_for_each_column(cells: list[object]) -> None:
    with pytest.raises(ValueError, match="zip"):
        _TABLE.render(columns=_COLUMNS, rows=[cells], caption="")
