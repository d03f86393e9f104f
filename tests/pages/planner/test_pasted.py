"""Rows that were pasted or uploaded, as rows of the form."""

import pytest

from service.pages.planner.form import MOST_ROWS, Form, FormFaults, empty_form
from service.pages.planner.pasted import with_pasted


def _read(text: str, kind: str = "margins") -> list[dict[str, str]]:
    form = empty_form(kind)  # type: ignore[arg-type]
    return [dict(row) for row in with_pasted(form, text).rows]


_ROW = {"table": "Total", "geography": "State", "moe": "6", "confidence": "0.95", "cells": "1", "sensitivity": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "Total\tState\t6\n",
        "\ufeffTotal,State,6,,,\r\n",
        '"Total";"State";"6"',
        "Margin of error,Table,Geography\n6,Total,State",
        "moe\tTABLE\tgeography\r\n6\tTotal\tState\r\n\r\n",
        "Total\tState\t6\t0,95",
        "Total,State,6,0.95,1,1",
    ],
)
def test_a_table_becomes_rows(text: str) -> None:
    assert _read(text) == [_ROW]


def test_points_beside_semicolons_are_marks_of_thousands() -> None:
    with pytest.raises(FormFaults) as refused:
        _read("Total;State;6\nAge;State;1.234")
    assert "without a point between its digits, in row 2 of" in refused.value.faults["targets"]
    assert _read("Total;State;6;0.950")[0]["confidence"] == "0.950"
    assert _read("Total\tState\t1.234", "variances")[0]["variance"] == "1.234"


def test_margins_and_counts_with_three_digits_after_a_point_are_for_v1_to_refuse() -> None:
    assert _read("Total\tState\t1.500")[0]["moe"] == "1.500 "
    assert _read("County\t12.345", "safetab")[0]["moe"] == "12.345 "
    typical = _read("a\t\t0.125\t1.500", "relative_errors")[0]
    assert (typical["relative_error"], typical["typical_count"]) == ("0.125", "1.500 ")


def test_rows_are_added_to_those_of_the_form() -> None:
    form = with_pasted(empty_form("margins"), "Total\tState\t6")
    longer = with_pasted(form, "Age\tCounty\t11,5")
    assert [row["moe"] for row in longer.rows] == ["6", "11.5"]
    typical = _read("a,,0.05,1200\nb,,0.1,400", "relative_errors")
    assert [(row["relative_error"], row["typical_count"]) for row in typical] == [("0.05", "1200"), ("0.1", "400")]


def test_commas_of_a_text_stay() -> None:
    assert _read("Sex, age\tState\t6")[0]["table"] == "Sex, age"
    assert _read('"Sex, age",State,6')[0]["table"] == "Sex, age"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([2], "row 2 of"),
        ([1, 3], "rows 1 and 3 of"),
        (range(1, 13), "rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more of"),
    ],
)
def test_all_rows_that_are_too_long_are_told(wrong: list[int], told: str) -> None:
    rows = ["Total,State,6,,,,more" if number in wrong else "Total,State,6" for number in range(1, 14)]
    with pytest.raises(FormFaults) as refused:
        _read("\n".join(rows))
    assert told in refused.value.faults["targets"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t\n",
        "a\tb\t6\t0.9\t1\t1\t7",
        "Table,Colour\nTotal,red",
        "Table,Table\nTotal,Age",
        '"Total,State,6',
        "\n".join(["Total,State,6"] * (MOST_ROWS + 1)),
        "x" * (1 << 19),
        "\n" * 3000 + "Total,State,6",
        "\r\n" * 3000,
        "," * 20_000,
    ],
)
def test_what_is_no_such_table_is_refused(text: str) -> None:
    with pytest.raises(FormFaults) as refused:
        _read(text)
    assert list(refused.value.faults) == ["targets"]
    assert "x" * 10 not in str(refused.value.faults)
    form: Form = empty_form("margins")
    assert len(form.rows) == 3
