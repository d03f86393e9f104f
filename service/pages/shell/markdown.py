"""Rendering of the repository's Markdown files: formulas as MathML, headings with anchors, no script or style.

The text is the service's own. HTML in it is escaped all the same.
"""

import re
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise, takewhile
from posixpath import normpath
from typing import Any, NamedTuple

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

_PRIMED = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>(&#x0203[23];)</mi></msup>")
_NAMED = re.compile(r"(<mi>(?:log|ln|sinh|cosh|tanh)</mi>)(?=<m(?:i|n|row|frac|sup|sub)\b)")
_BARS = re.compile(r"<mo(?: stretchy=\"false\")?>(&#x0007C;|&#x02016;)</mo>")
_INFINITY = re.compile(r"<mo>(&#x0221E;)</mo>")
# An inline formula, with the punctuation that must stay on its line.
_BOUND = re.compile(r"[(\[]*<span class=\"math inline\">.*?</span>[-.,;:)\]]*")
_LINE = 44  # characters that fit side by side on a small screen
_ROLES = {
    "table_open": "table",
    "thead_open": "rowgroup",
    "tbody_open": "rowgroup",
    "tr_open": "row",
    "th_open": "columnheader",
    "td_open": "cell",
}
_FILE = re.compile(r"(?P<path>[\w./-]+)\.md(?P<anchor>#.*)?")


class Section(NamedTuple):
    """A heading of the second or third level: its anchor, its text, and its level."""

    anchor: str
    title: str
    level: int


class Document(NamedTuple):
    """A rendered file.

    Attributes:
        title: its first heading, which is not in ``html``; empty if it has none.
        html: the rest of it.
        sections: its headings of the second and third level, in order.
        links: the addresses of the files that it links to, in order.
    """

    title: str
    html: Markup
    sections: Sequence[Section]
    links: Sequence[str]


def render(text: str, folder: str, address: Callable[[str], str]) -> Document:
    """Render a file's text.

    Args:
        text: Markdown, with tables and formulas between dollars.
        folder: the file's own folder, the base of its links to other files.
        address: returns the address of another file's page, from its path without ``.md``.
    """
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.use(dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, renderer=_inline)
    reader.use(anchors_plugin, min_level=2, max_level=3)
    reader.core.ruler.push("classes", _classes)
    reader.add_render_rule("fence", _listing)
    reader.add_render_rule("math_block", _display)
    reader.add_render_rule("table_open", _table_open)
    reader.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = reader.parse(text)
    _label_wide_tables(tokens, reader)
    links = _addressed(tokens, folder, address)
    title = ""
    if tokens and tokens[0].tag == "h1":
        title, tokens = _text(tokens[1]), tokens[3:]
    headings = [(token, inline) for token, inline in pairwise(tokens) if token.tag in ("h2", "h3")]
    sections = [
        Section(str(token.attrs["id"]), _text(inline), int(token.tag[1]))
        for token, inline in headings
        if token.type == "heading_open"
    ]
    bound = _BOUND.sub(r'<span class="whole">\g<0></span>', reader.renderer.render(tokens, reader.options, {}))
    return Document(title, Markup(bound), sections, links)  # noqa: S704 - the renderer escapes HTML


def _text(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _inline(latex: str, _: dict[str, Any]) -> str:
    return _mathml(latex, "inline")


def _mathml(latex: str, display: str) -> str:
    """Return the converter's MathML with four corrections for browsers.

    A prime is not a superscript: its own shape is raised already, and at a superscript's size it would vanish. The name
    of a function gets a small space before an argument without parentheses. The bars of absolute values and norms get
    no space on either side, unlike operators, and neither does infinity.
    """
    mathml = _PRIMED.sub(r"<mrow>\1<mo>\2</mo></mrow>", convert(latex, display=display))
    mathml = _BARS.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', mathml)
    mathml = _INFINITY.sub(r"<mi>\1</mi>", mathml)
    return _NAMED.sub(r'\1<mspace width="0.17em" />', mathml)


def _classes(state: StateCore) -> None:
    """Align columns by a class: the page's Content-Security-Policy forbids style attributes."""
    for token in state.tokens:
        if token.attrs.pop("style", None) == "text-align:right":
            token.attrs["class"] = "number"


def _label_wide_tables(tokens: Sequence[Token], reader: MarkdownIt) -> None:
    """Mark the tables that do not fit a small screen, as the templates' macro ``table`` does.

    Small screens show these row by row. So each cell states its column's name, and every part states its ARIA role.
    """

    def text(inline: Token) -> str:
        return Markup(reader.renderer.render([inline], reader.options, {})).striptags()  # noqa: S704 - tags are removed

    for begin in [place for place, token in enumerate(tokens) if token.type == "table_open"]:
        table = list(takewhile(lambda token: token.type != "table_close", tokens[begin:]))
        cells = [(cell, text(inline)) for cell, inline in pairwise(table) if cell.type in ("th_open", "td_open")]
        labels = [label for cell, label in cells if cell.type == "th_open"]
        rows = [cells[first : first + len(labels)] for first in range(0, len(cells), len(labels))]
        if max(sum(len(shown) + 2 for _, shown in row) for row in rows) <= _LINE:
            continue
        table[0].attrSet("class", "stack")
        for token in table:
            if token.type in _ROLES:
                token.attrSet("role", _ROLES[token.type])
        for row in rows[1:]:
            for (cell, _), label in zip(row, labels, strict=True):
                cell.attrSet("data-label", label)


def _table_open(renderer: RendererHTML, tokens: Sequence[Token], place: int, options: OptionsDict, env: EnvType) -> str:
    return '<div class="scroll" tabindex="0">' + renderer.renderToken(tokens, place, options, env)


def _listing(_: RendererHTML, tokens: Sequence[Token], place: int, *_options: OptionsDict | EnvType) -> str:
    """Render code that can be scrolled by keyboard; the first word of its info string is its class."""
    kind = tokens[place].info.partition(" ")[0]
    return f'<pre class="{escape(kind)}" tabindex="0"><code>{escape(tokens[place].content)}</code></pre>\n'


def _display(_: RendererHTML, tokens: Sequence[Token], place: int, *_options: OptionsDict | EnvType) -> str:
    """Render display formulas; several with wide spaces between them stand side by side only if they fit.

    The block can be scrolled, since even a single formula can be wider than a small screen.
    """
    formulas = [_mathml(latex, "block") for latex in tokens[place].content.strip().split(r"\qquad")]
    return f'<div class="math block" tabindex="0">{"".join(formulas)}</div>\n'


def _addressed(tokens: Sequence[Token], folder: str, address: Callable[[str], str]) -> list[str]:
    """Replace links to other files with links to their pages; return the addresses of these, in order."""
    links = []
    for token in tokens:
        for child in token.children or ():
            match = _FILE.fullmatch(str(child.attrs.get("href", "")))
            if match:
                link = address(normpath(f"{folder}/{match['path']}"))
                child.attrs["href"] = link + (match["anchor"] or "")
                links.append(link)
    return links
