"""Texts of periods: what is shown of them, and what typed text becomes in a request."""

from typing import Any

import pytest

from service.errors import InvalidInput
from service.pages.shell.period_texts import (
    calendar_text,
    offsets_of,
    periods_text,
    stated_periods,
    stored_periods_text,
    window_text,
)
from service.privacy.periods import Calendar, read_periods, write_periods


@pytest.mark.parametrize(
    ("typed", "offsets"),
    [
        ("0", [0]),
        ("0-3, 12-15", [0, 1, 2, 3, 12, 13, 14, 15]),
        ("12 - 13,0,1", [0, 1, 12, 13]),
        ("0\N{EN DASH}2", [0, 1, 2]),
        ("0-2,1-3", [0, 1, 2, 3]),
        ("0-999", list(range(1000))),
        ("5", [5]),
        ("3-4,0-365," + "0-365," * 300 + "1", list(range(366))),
    ],
)
def test_offsets_are_numbers_and_ranges(typed: str, offsets: list[int]) -> None:
    assert offsets_of(typed, "/offsets") == offsets


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", "whole numbers and ranges"),
        ("0,,1", "whole numbers and ranges"),
        ("0-3-5", "whole numbers and ranges"),
        ("3-0", "whole numbers and ranges"),
        ("-1", "whole numbers and ranges"),
        ("0.5", "whole numbers and ranges"),
        ("1e3", "whole numbers and ranges"),
        ("\N{SUPERSCRIPT TWO}", "whole numbers and ranges"),
        ("NaN", "whole numbers and ranges"),
        ("0-1000", "at most 1000 offsets"),
        ("0-999999999", "at most 1000 offsets"),
        ("0-9999999999", "whole numbers and ranges"),
        ("0-900,2000-2900,4000", "at most 1000 offsets"),
        ("0," * 1000 + "0", "at most 1000 offsets"),
    ],
)
def test_other_offsets_are_refused(typed: str, expected: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        offsets_of(typed, "/offsets")
    assert [fault.pointer for fault in refused.value.faults] == ["/offsets"]
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("typed", "calendar", "stated"),
    [
        ("", "month", None),
        ("all", "month", "all"),
        ("All periods", None, "all"),
        ("2026-01", "month", {"list": ["2026-01"]}),
        ("2026-01 to 2026-03", "month", {"from": "2026-01", "to": "2026-03"}),
        ("2026-W01..2026-W05", "week", {"from": "2026-W01", "to": "2026-W05"}),
        ("2026-01, 2026-04", "month", {"list": ["2026-01", "2026-04"]}),
        ("-2 to 3", "index", {"from": -2, "to": 3}),
        ("1,5", "index", {"list": [1, 5]}),
        ("one", "index", {"list": ["one"]}),
        ("2026", "year", {"list": ["2026"]}),
        ("to", "month", {"list": ["to"]}),
        ("a to b to c", "month", {"list": ["a to b to c"]}),
        ("2026-01   to \t 2026-03", "month", {"from": "2026-01", "to": "2026-03"}),
        ("2026-01 ... 2026-03", "month", {"from": "2026-01", "to": "2026-03"}),
        (f"1{' ' * 3000}2", "index", {"list": [f"1{' ' * 3000}2"]}),
    ],
)
def test_typed_periods_are_stated_as_releases_state_them(typed: str, calendar: str | None, stated: Any) -> None:
    assert stated_periods(typed, calendar) == stated


@pytest.mark.parametrize("text", ["2026-01 to 2026-03", "2026-02", "2026-01, 2026-04", "all periods"])
def test_shown_periods_can_be_typed(text: str) -> None:
    found = read_periods(Calendar.MONTH, stated_periods(text, "month"), "")
    assert periods_text(write_periods(Calendar.MONTH, found)) == text


def test_long_lists_are_cut() -> None:
    assert periods_text({"list": list(range(20))}) == "0, 1, 2, 3, 4, 5 and 14 more"
    assert periods_text({"list": list(range(7))}) == "0, 1, 2, 3, 4, 5, 6"
    assert stored_periods_text('{"from":"2026-01","to":"2026-01"}') == "2026-01"
    window = {"start": "2025-01", "periods": [{"from": "2025-01", "to": "2025-04"}, "2026-01"]}
    assert window_text(window) == "2025-01 to 2025-04, 2026-01"
    assert [calendar_text(one) for one in ("month", "index")] == ["months", "waves"]


def test_only_so_many_periods_are_read_of_a_text_as_a_release_may_have() -> None:
    stated: Any = stated_periods("1," * 50_000, "index")
    assert len(stated["list"]) == 10_001
    with pytest.raises(InvalidInput, match="list of 1 to 10000 periods"):
        read_periods(Calendar.INDEX, stated, "")
