"""Tables on small screens: each cell has its column's name, and each part its role."""

from html.parser import HTMLParser

import pytest

from service.pages.shell.responsive_tables import stacked, stacked_where_wide

_TABLE = (
    '<table>\n<thead><tr><th scope="col">Name</th><th scope="col" class="number">A &amp; <b>B</b>\n C</th></tr></thead>'
    '<tbody><tr><th scope="row"><a href="/x">x</a></th><td class="number">1</td></tr><tr><td></td><td>{}</td></tr>'
    "</tbody></table>"
)


class _Seen(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("table", "thead", "tbody", "tr", "th", "td"):
            self.cells.append((tag, dict(attrs)))


def test_cells_are_labelled_by_their_columns_and_parts_have_roles() -> None:
    seen = _Seen(stacked(f"<p>before</p>{_TABLE}<p>after</p>")).cells
    roles = {"table": {"table"}, "thead": {"rowgroup"}, "tbody": {"rowgroup"}, "tr": {"row"}, "td": {"cell"}}
    for tag, attributes in seen:
        assert attributes["role"] in roles.get(tag, {"rowheader", "columnheader"})
    assert [attributes["role"] for tag, attributes in seen if tag == "th"] == ["columnheader"] * 2 + ["rowheader"]
    labels = [attributes["data-label"] for tag, attributes in seen if tag == "td"]
    assert labels == ["A & B C", "Name", "A & B C"]
    assert [attributes.get("class") for tag, attributes in seen if tag == "td"] == ["number", None, None]


@pytest.mark.parametrize("html", ["", "<p>a</p>", "<table><tbody><tr><td>no headings</td></tr></tbody></table>"])
def test_what_has_no_headings_stays_as_it_is(html: str) -> None:
    assert stacked(html) == html


def test_what_fits_a_small_screen_stays_a_table() -> None:
    narrow, wide = _TABLE.format("1"), _TABLE.format("word " * 12)
    assert stacked_where_wide(narrow) == narrow
    assert stacked_where_wide(narrow + wide) == narrow + str(stacked(wide))
    assert 'class="stack"' in stacked_where_wide(wide)
