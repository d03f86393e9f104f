"""Tables as CSV: what a reader finds again, and what a spreadsheet must not run."""

import csv
import io
from fractions import Fraction

import pytest

from service.api.http.csv_answers import written

_UNSEEN = (
    " \x00\x0b\x0c\x1f\x85\xa0\xad\u034f\u0600\u061c\u115f\u1160\u1680\u17b4\u180e\u2003\u200f\u2028\u2029\u202e\u202f"
    "\u2065\u2066\u2800\u3000\u3164\ufe0f\uffa0\ufff0\U000e0041\U000e0fff"
)


def _read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_a_table_is_read_back() -> None:
    rows: list[list[object]] = [
        ["a,b", 'quo"ted', "two\nlines", "été"],
        [1, -2.5, None, True],
        [["x", "y"], (), Fraction(1, 3), ""],
    ]
    found = _read("".join(written(["p", "q", "r", "s"], rows)))
    assert found == [
        ["p", "q", "r", "s"],
        ["a,b", 'quo"ted', "two\nlines", "été"],
        ["1", "-2.5", "", "true"],
        ["x; y", "", "1/3", ""],
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("a")', "-1/x", "--1"),
        *("\n=1", "\ufeff=1", "\u200b=1", "\u2060=1"),
        *(f"{unseen}=1" for unseen in _UNSEEN),
        *("".join(_UNSEEN) + one for one in "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212"),
    ],
)
def test_a_formula_is_a_text(text: str) -> None:
    assert _read("".join(written(["name"], [[text]])))[1:] == [[f"'{text}"]]
    assert _read("".join(written(["name"], [[[text, "b"]]])))[1:] == [[f"'{text}; b"]]


@pytest.mark.parametrize("text", ["-1", "+2", "-1.5", "-1/3", "-2e-7", "a-b", "'=1", "", " a", "\xa0", "é=1"])
def test_a_number_and_a_plain_text_stay(text: str) -> None:
    assert _read("".join(written(["name", "x"], [[text, 1]])))[1:] == [[text, "1"]]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ('a;=HYPERLINK("x")', 'a;\'=HYPERLINK("x")'),
        ('a; "=1', "a; \"'=1"),
        ("a;b;-c", "a;b;'-c"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("a;'=1", "a;'=1"),
        ('a; \u202e=1;\u3164"=1; b=1', "a; '\u202e=1;'\u3164\"=1; b=1"),
    ],
)
def test_a_formula_is_none_where_semicolons_end_cells(text: str, safe: str) -> None:
    assert _read("".join(written(["name"], [[text]])))[1:] == [[safe]]
    for row in csv.reader(io.StringIO("".join(written(["n"], [[text]]))), delimiter=";"):
        assert [cell for cell in row if cell.startswith(("=", "+", "-", "@", "\uff1d"))] == []


def test_a_long_table_comes_in_parts() -> None:
    parts = list(written(["n"], ([number] for number in range(40_000))))
    assert len(parts) == 3
    assert [row[0] for row in _read("".join(parts))] == ["n", *map(str, range(40_000))]
