"""The planner's form and its requests."""

from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from service.pages.planner.form import (
    MOST_ROWS,
    Form,
    digest_of,
    empty_form,
    field_of_question,
    field_of_release,
    filled,
    form_of,
    label_of,
    plan_of,
    questions,
    release_of,
    widened,
    with_row,
    without_row,
)
from service.privacy.accuracy.calibration import margin_to_scale, margin_to_sigma_squared

_SENT = {
    "account": [" people "],
    "delta": ["1e-10"],
    "release": ["tables"],
    "tags": ["a, b ,,"],
    "reserve_for": [""],
    "table": ["Total", "", "Age", "Sex"],
    "geography": ["State", "", "", "County"],
    "moe": ["6", "", "7", "8"],
    "confidence": ["0.95", "0.95", "0.9", "0.95"],
    "cells": ["1", "1", "2", "x"],
    "sensitivity": ["1", "1", "1", "3"],
}


def _form(**sent: list[str]) -> Form:
    texts = _SENT | sent
    return form_of("margins", lambda name: texts.get(name, []))


def test_blank_rows_are_not_asked_about() -> None:
    form = _form()
    assert filled(form) == [0, 2, 3]
    assert form["account"] == "people"


def test_tables_are_asked_once_for_each_confidence() -> None:
    asked = questions(_form(), "geometric", {"neighbouring": "add_remove"}, "1e-10")
    assert [(one.body["confidence"], one.rows) for one in asked] == [("0.95", (0, 3)), ("0.9", (2,))]
    assert asked[0].body["queries"] == [
        {"name": "State/Total", "moe": "6", "cells": 1, "sensitivity": "1"},
        {"name": "County/Sex", "moe": "8", "cells": "x", "sensitivity": "3"},
    ]
    assert asked[1].body["queries"] == [{"name": "Age", "moe": "7", "cells": 2, "sensitivity": "1"}]


def test_a_replaced_record_leaves_as_many_cells_as_it_enters() -> None:
    first, second = questions(_form(), "geometric", {"neighbouring": "replace_one"}, "1e-10")
    assert [query["cells"] for query in (*first.body["queries"], *second.body["queries"])] == [2, "x", 4]


def test_a_plan_has_its_tables_in_the_order_of_the_form() -> None:
    form = _form()
    asked = questions(form, "geometric", {"neighbouring": "add_remove"}, "1e-10")
    answers = [
        {"queries": [{"mechanism": {"name": query["name"]}} for query in question.body["queries"]]}
        for question in asked
    ]
    assert plan_of(form, asked, answers) == {
        "type": "sequence",
        "parts": [
            {"name": "State/Total", "tags": ["State"]},
            {"name": "Age"},
            {"name": "County/Sex", "tags": ["County"]},
        ],
    }


_PLAIN = {"name": "people"}


def test_a_release_says_what_was_typed() -> None:
    plan = {"type": "sequence"}
    body = {"name": "tables", "plan": plan, "tags": ["a", "b"], "delta": "1e-10"}
    assert release_of(_form(), _PLAIN, plan) == body
    assert release_of(_form(reserve_for=["P1D"]), _PLAIN, plan) == body | {"reserve_for": "P1D"}
    assert "delta" not in release_of(_form(delta=[""]), _PLAIN, plan)
    assert release_of(_form(tags=["a; b\r\n; a c,d"]), _PLAIN, plan)["tags"] == ["a", "b", "a c", "d"]
    waves = {"name": "panel", "periods": {"calendar": "index"}}
    assert release_of(_form(periods=["1 to 3"]), waves, plan) == body | {"periods": {"from": 1, "to": 3}}
    assert release_of(_form(periods=["all"]), _PLAIN, plan) == body | {"periods": "all"}


@pytest.mark.parametrize(
    ("pointer", "field"),
    [
        ("/queries/1/moe", "moe-3"),
        ("/queries/0/name", "table-0"),
        ("/queries/1/cells", "cells-3"),
        ("/confidence", "confidence-0"),
        ("/queries", "table-0"),
        ("/mechanism", ""),
        ("", ""),
    ],
)
def test_a_place_in_a_question_is_a_field(pointer: str, field: str) -> None:
    form = _form()
    assert (
        field_of_question(form, questions(form, "geometric", {"neighbouring": "add_remove"}, "1e-10")[0], pointer)
        == field
    )


@pytest.mark.parametrize(
    ("pointer", "field"),
    [
        ("/levels/1/moe", "moe-1"),
        ("/levels/0/name", "level-0"),
        ("/stability", "stability"),
        ("/stage_1_fraction", "stage_1_fraction"),
        ("/confidence", "confidence"),
        ("/levels", "level-0"),
    ],
)
def test_a_place_in_a_question_of_safetab_is_a_field(pointer: str, field: str) -> None:
    sent = {"level": ["Nation", "County"], "moe": ["6", "11"]}
    form = form_of("safetab", lambda name: sent.get(name, []))
    (asked,) = questions(form, "geometric", {"neighbouring": "add_remove"}, "1e-10")
    assert field_of_question(form, asked, pointer) == field
    assert label_of(form, field)


@pytest.mark.parametrize(
    ("pointer", "field"),
    [
        ("/name", "release"),
        ("/tags/1", "tags"),
        ("/reserve_for", "reserve_for"),
        ("/deltas/0", "delta"),
        ("/plan/parts/2/name", "table-3"),
        ("/plan", ""),
        ("/header/Idempotency-Key", ""),
    ],
)
def test_a_place_in_a_release_is_a_field(pointer: str, field: str) -> None:
    assert field_of_release(_form(), pointer) == field


def test_rows_come_and_go() -> None:
    form = _form()
    assert [row["table"] for row in without_row(form, 1).rows] == ["Total", "Age", "Sex"]
    assert without_row(form, 17).rows == form.rows
    longer = with_row(form)
    assert longer.rows[:-1] == form.rows
    assert longer.rows[-1]["confidence"] == "0.95"
    full = empty_form("safetab")
    for _ in range(MOST_ROWS):
        full = with_row(full)
    assert len(full.rows) == MOST_ROWS


def test_a_form_of_uneven_columns_is_padded() -> None:
    form = _form(moe=["6"], cells=["1"] * 300)
    assert len(form.rows) == MOST_ROWS
    assert form.rows[1]["moe"] == ""


@settings(max_examples=40)
@given(st.integers(0, 2_000), st.fractions(1, 50))
def test_widened_margins_have_noise_at_least_so_many_times_as_wide(margin: int, factor: Fraction) -> None:
    form = _form(moe=[str(margin), "", "7", "8"])
    wider = int(widened(form, float(factor)).rows[0]["moe"])
    confidence = Fraction(95, 100)
    exact = Fraction(float(factor))
    assert margin_to_scale(wider, confidence) >= exact * margin_to_scale(margin, confidence)
    before, after = (margin_to_sigma_squared(one, confidence) for one in (margin, wider))
    assert after >= exact**2 * before
    assert widened(form, float(factor)).rows[1] == form.rows[1]


def test_a_digest_knows_account_and_plan() -> None:
    plans = ({"scale": "1"}, {"scale": "2"}, {"scale": 1})
    digests = {digest_of(account, plan, {}) for account in ("a", "b") for plan in plans}
    assert len(digests) == 6
    assert digest_of("a", {}, {}) != digest_of("a", {}, {"periods": "all"})
    assert digest_of("a", {"x": 1, "y": 2}, {}) == digest_of("a", {"y": 2, "x": 1}, {})
