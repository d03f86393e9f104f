"""Rendering of Markdown as parts of pages."""

import re

from service.pages.guide import address_of
from service.pages.shell.markdown import Document, Section, render


def _render(text: str, folder: str = "guide") -> Document:
    return render(text, folder, address_of)


def test_the_first_heading_is_the_title_and_not_in_the_text() -> None:
    document = _render("# Of `zCDP`\n\nText.\n\n## One part\n\n### A part of it\n\n## One part\n")
    assert document.title == "Of zCDP"
    assert "<h1" not in document.html
    assert document.sections == [
        Section("one-part", "One part", 2),
        Section("a-part-of-it", "A part of it", 3),
        Section("one-part-1", "One part", 2),
    ]
    assert '<h2 id="one-part-1">' in document.html
    assert _render("Text alone.").title == ""


def test_links_to_files_become_links_to_their_pages() -> None:
    document = _render("[a](b.md) [c](index.md#d) [e](../problems/conflict.md) [f](/docs) [g](https://h.example/i.md)")
    assert document.links == ["/guide/b", "/guide", "/problems/conflict"]
    for link in ("/guide/b", "/guide#d", "/problems/conflict", "/docs", "https://h.example/i.md"):
        assert f'href="{link}"' in document.html
    assert _render("[a](../guide/b.md)", "problems").links == ["/guide/b"]


def test_formulas_are_mathml() -> None:
    html = _render("The $\\epsilon$ and\n\n$$\\frac{1}{2}$$\n\nand 5 $ or 6 $.").html
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mi>&#x003F5;</mi>' in html
    assert 'display="block"><mrow><mfrac>' in html
    assert "5 $ or 6 $" in html


def test_primes_and_names_of_functions_are_set_apart() -> None:
    html = _render("$K''(0)$ and $\\log x$ and $\\log(x)$").html
    assert "<mrow><mi>K</mi><mo>&#x02033;</mo></mrow>" in html
    assert html.count("<mspace") == 1


def test_bars_and_infinity_stand_close_to_their_neighbours() -> None:
    html = _render("$|x|$ and $\\lVert x\\rVert_2$ up to $\\infty$, but $\\left|\\frac12\\right|$").html
    assert html.count('<mo stretchy="false" lspace="0" rspace="0">') == 4
    assert html.count('stretchy="true"') == 2
    assert "<mi>&#x0221E;</mi>" in html


def test_a_formula_keeps_the_punctuation_beside_it() -> None:
    html = _render("At ($\\epsilon$, $\\delta$), $n$-fold").html
    kept = re.findall(r'<span class="whole">(.*?)<span class="math inline"><math.*?</math></span>(.*?)</span>', html)
    assert kept == [("(", ","), ("", "),"), ("", "-")]


def test_formulas_side_by_side_are_apart_so_that_they_can_be_set_below_each_other() -> None:
    html = _render("$$a=b,\\qquad c=d$$").html
    assert html.count("<math ") == 2
    assert html.count('class="math block"') == 1


def test_tables_and_listings_scroll_by_the_keyboard_and_carry_no_style() -> None:
    html = _render("| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python run\nx = '<b>'\n```\n").html
    assert '<div class="scroll" tabindex="0"><table>' in html
    assert '<td class="number">2</td>' in html
    assert "style=" not in html
    assert '<pre class="python" tabindex="0"><code>x = \'&lt;b&gt;\'\n</code></pre>'.replace("'", "&#x27;") in html


def test_html_is_shown_and_not_passed_through() -> None:
    html = _render("<script>alert(1)</script>\n\nand <b onclick=x>this</b>").html
    assert "<script" not in html
    assert "<b " not in html
    assert "&lt;script&gt;" in html


def test_tables_that_do_not_fit_a_small_screen_have_labelled_cells_and_roles() -> None:
    html = str(_render("| A `&` | $x^2$\n|---|--:\n| {} | 1".format("word " * 12)).html)
    assert '<table class="stack" role="table">' in html
    assert html.count('role="rowgroup"') == html.count('role="row"') == html.count('role="columnheader"') == 2
    assert re.findall("<td([^>]*)>", html) == [
        ' role="cell" data-label="A &amp;"',
        ' class="number" role="cell" data-label="x2"',
    ]


def test_tables_that_fit_stay_tables() -> None:
    narrow = "| A | B |\n|---|---|\n| 1 | <b> |\n"
    html = str(_render(f"{narrow}\ntext\n\n{narrow.replace('1', 'word ' * 12)}").html)
    first, second = html.split("text")
    assert "role=" not in first
    assert "data-label" not in first
    assert 'class="stack"' in second
