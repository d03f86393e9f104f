"""Periods: calendars against ``datetime``, windows against sets of numbers, and everything that is refused."""

from collections.abc import Callable
from datetime import date, timedelta
from itertools import product

import pytest
from hypothesis import given, strategies as st

from service.errors import InvalidInput
from service.privacy.periods import (
    ALL,
    LARGEST_INDEX,
    AnyPeriods,
    Calendar,
    Offsets,
    Participation,
    Periods,
    PeriodSet,
    containing,
    mapped,
    nests_in,
    read_account_periods,
    read_participation,
    read_period,
    read_periods,
    require_few_windows,
    set_of,
    touched,
    write_account_periods,
    write_period,
    write_periods,
)

DAY, WEEK, MONTH, QUARTER, YEAR, INDEX = Calendar
TEXTS: dict[Calendar, Callable[[date], str]] = {
    DAY: date.isoformat,
    WEEK: lambda day: f"{day.isocalendar().year}-W{day.isocalendar().week:02d}",
    MONTH: lambda day: day.strftime("%Y-%m"),
    QUARTER: lambda day: f"{day.year}-Q{(day.month + 2) // 3}",
    YEAR: lambda day: str(day.year),
}
"""The period that holds a day, by the standard library."""


def days() -> list[date]:
    """Every day of 2000 to 2032, with each year of 53 weeks and each leap year, and those about the limits."""
    first = date(2000, 1, 1)
    spans = [(first, (date(2033, 1, 1) - first).days), (date(1000, 1, 1), 800), (date(1899, 12, 1), 500)]
    return [start + timedelta(days=n) for start, number in spans for n in range(number)] + [
        date(9999, 12, 31) - timedelta(days=n) for n in range(800)
    ]


def test_every_day_is_in_the_periods_that_the_standard_library_says() -> None:
    for day in days():
        number = read_period(DAY, day.isoformat(), "")
        assert number == day.toordinal()
        for calendar, text in TEXTS.items():
            period = containing(DAY, calendar, number)
            assert write_period(calendar, period) == text(day)
            if text(day)[0] != "0":  # the first days of the year 1000 are in a week of 999
                assert read_period(calendar, text(day), "") == period


@pytest.mark.parametrize("calendar", TEXTS)
def test_consecutive_numbers_are_consecutive_periods(calendar: Calendar) -> None:
    """A window of adjacent offsets would have gaps otherwise."""
    periods = [containing(DAY, calendar, day.toordinal()) for day in days()[: 33 * 365]]
    assert sorted(set(periods)) == list(range(periods[0], periods[-1] + 1))


def test_a_calendar_nests_where_every_period_lies_in_one() -> None:
    """By definition: the days of each period are in a single period of the other."""
    groups = {calendar: [containing(DAY, calendar, day.toordinal()) for day in days()] for calendar in TEXTS}
    for inner, outer in product(TEXTS, TEXTS):
        above: dict[int, set[int]] = {}
        for period, container in zip(groups[inner], groups[outer], strict=True):
            above.setdefault(period, set()).add(container)
        assert nests_in(inner, outer) == all(len(containers) == 1 for containers in above.values())
        if nests_in(inner, outer):
            assert all(above[period] == {containing(inner, outer, period)} for period in above)
    assert [outer for outer in Calendar if nests_in(INDEX, outer)] == [INDEX]
    assert [inner for inner in Calendar if nests_in(inner, INDEX)] == [INDEX]
    assert containing(INDEX, INDEX, -7) == -7


@given(st.sets(st.integers(700_000, 701_500), min_size=1, max_size=30))
def test_a_release_is_charged_above_to_every_period_that_holds_one_of_its_own(members: set[int]) -> None:
    for outer in (DAY, WEEK, MONTH, QUARTER, YEAR):
        above = mapped(DAY, outer, set_of((one, one) for one in members))
        assert set(above.members) == {containing(DAY, outer, one) for one in members}
        assert mapped(DAY, outer, ALL) is ALL


integers = st.sets(st.integers(-40, 40), min_size=1, max_size=25)


@given(integers)
def test_a_set_has_one_form(members: set[int]) -> None:
    made = set_of((one, one) for one in members)
    assert list(made.members) == sorted(members)
    assert made.number == len(members)
    assert all(last + 1 < first for (_, last), (first, _) in zip(made.ranges, made.ranges[1:], strict=False))
    assert set_of(reversed(made.ranges)) == made == set_of([*made.ranges, *made.ranges])


@given(integers, st.sets(st.integers(0, 30), max_size=8).map(lambda found: tuple(sorted({0, *found}))))
def test_the_windows_touched_are_those_that_hold_a_period(members: set[int], offsets: tuple[int, ...]) -> None:
    """Every place near enough is tried, far below the first period too."""
    holding = {t for t in range(-80, 81) if members & {t + offset for offset in offsets}}
    periods = set_of((one, one) for one in members)
    assert set(touched(Offsets(offsets), periods).members) == holding
    assert touched(Offsets(offsets), ALL) is ALL


PANEL = Offsets((0, 1, 2, 3, 12, 13, 14, 15))


def test_one_month_of_a_panel_is_in_eight_windows_also_of_those_that_began_before_it() -> None:
    january = read_period(MONTH, "2026-01", "")
    places = touched(PANEL, PeriodSet(((january, january),)))
    assert [write_period(MONTH, place) for place in places.members] == [
        *("2024-10", "2024-11", "2024-12", "2025-01"),
        *("2025-10", "2025-11", "2025-12", "2026-01"),
    ]


def test_a_year_of_days_touches_a_sliding_year_at_once() -> None:
    sliding, year = Offsets(tuple(range(365))), PeriodSet(((739_617, 739_981),))
    assert touched(sliding, year) == PeriodSet(((739_617 - 364, 739_981),))


def test_windows_that_begin_before_the_year_0_have_texts_too() -> None:
    assert [write_period(calendar, -1) for calendar in Calendar] == [
        *("0000-12-30", "0000-W52", "-001-12", "-001-Q4", "-001", -1)
    ]


@pytest.mark.parametrize(
    ("calendar", "stated", "read"),
    [
        (MONTH, "all", ALL),
        (MONTH, {"from": "2025-12", "to": "2026-02"}, PeriodSet(((24311, 24313),))),
        (MONTH, {"from": "2026-01", "to": "2026-01"}, PeriodSet(((24312, 24312),))),
        (MONTH, {"list": ["2026-04", "2026-01", "2026-01"]}, PeriodSet(((24312, 24312), (24315, 24315)))),
        (INDEX, {"list": [3, -1, 4]}, PeriodSet(((-1, -1), (3, 4)))),
        (INDEX, {"from": -LARGEST_INDEX, "to": LARGEST_INDEX}, PeriodSet(((-LARGEST_INDEX, LARGEST_INDEX),))),
        (YEAR, {"from": "1000", "to": "9999"}, PeriodSet(((1000, 9999),))),
    ],
)
def test_periods_are_read(calendar: Calendar, stated: object, read: PeriodSet) -> None:
    assert read_periods(calendar, stated, "/periods") == read
    assert read_periods(calendar, write_periods(calendar, read), "") == read


def test_periods_are_written_in_one_form() -> None:
    assert write_periods(INDEX, ALL) == "all"
    assert write_periods(QUARTER, PeriodSet(((8104, 8105),))) == {"from": "2026-Q1", "to": "2026-Q2"}
    assert write_periods(INDEX, PeriodSet(((1, 2), (5, 5)))) == {"list": [1, 2, 5]}


@pytest.mark.parametrize(
    ("calendar", "stated", "pointer"),
    [
        (MONTH, "ALL", "/periods"),
        (MONTH, "2026-01", "/periods"),
        (MONTH, None, "/periods"),
        (MONTH, [], "/periods"),
        (MONTH, {}, "/periods"),
        (MONTH, {"from": "2026-01"}, "/periods"),
        (MONTH, {"from": "2026-01", "to": "2026-02", "list": ["2026-01"]}, "/periods"),
        (MONTH, {"list": []}, "/periods"),
        (MONTH, {"list": ["2026-01"] * 10_001}, "/periods"),
        (MONTH, {"list": "2026-01"}, "/periods"),
        (MONTH, {"list": ["2026-01", "2026-13"]}, "/periods/list/1"),
        (MONTH, {"from": "2026-02", "to": "2026-01"}, "/periods/to"),
        (INDEX, {"from": 1, "to": 0}, "/periods/to"),
        (MONTH, {"from": "2026-1", "to": "2026-02"}, "/periods/from"),
        (MONTH, {"from": "2026-01", "to": "2026-00"}, "/periods/to"),
        (MONTH, {"list": ["2026-01-01"]}, "/periods/list/0"),
        (MONTH, {"list": ["0999-01"]}, "/periods/list/0"),
        (MONTH, {"list": ["12026-01"]}, "/periods/list/0"),
        (MONTH, {"list": ["2026-01\n"]}, "/periods/list/0"),
        (MONTH, {"list": ["\uff12026-01"]}, "/periods/list/0"),
        (MONTH, {"list": [24312]}, "/periods/list/0"),
        (DAY, {"list": ["2026-02-29"]}, "/periods/list/0"),
        (DAY, {"list": ["1900-02-29"]}, "/periods/list/0"),
        (DAY, {"list": ["2026-00-10"]}, "/periods/list/0"),
        (WEEK, {"list": ["2026-W00"]}, "/periods/list/0"),
        (WEEK, {"list": ["2027-W53"]}, "/periods/list/0"),
        (QUARTER, {"list": ["2026-Q5"]}, "/periods/list/0"),
        (QUARTER, {"list": ["2026-Q0"]}, "/periods/list/0"),
        (YEAR, {"list": [2026]}, "/periods/list/0"),
        (INDEX, {"list": ["1"]}, "/periods/list/0"),
        (INDEX, {"list": [True]}, "/periods/list/0"),
        (INDEX, {"list": [1.0]}, "/periods/list/0"),
        (INDEX, {"list": [LARGEST_INDEX + 1]}, "/periods/list/0"),
    ],
)
def test_what_are_no_periods_is_refused_where_it_stands(calendar: Calendar, stated: object, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_periods(calendar, stated, "/periods")
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ({"offsets": [0]}, Offsets((0,))),
        ({"offsets": [0, 1, 2, 3, 12, 13, 14, 15]}, PANEL),
        ({"offsets": [0, 100_000]}, Offsets((0, 100_000))),
        ({"any": 1}, AnyPeriods(1)),
        ({"any": 366}, AnyPeriods(366)),
    ],
)
def test_participation_is_read_and_written(stated: object, read: Participation) -> None:
    assert read_participation(stated, "") == read
    account = Periods(Calendar.WEEK, read)
    assert write_account_periods(account) == {"calendar": "week", "participation": stated}
    assert read_account_periods(write_account_periods(account), "") == account


@pytest.mark.parametrize(
    ("stated", "pointer"),
    [
        (None, ""),
        ("any", ""),
        ({}, ""),
        ({"any": 1, "offsets": [0]}, ""),
        ({"offsets": 0}, ""),
        ({"any": 1, "more": 2}, ""),
        ({"any": 0}, "/any"),
        ({"any": -1}, "/any"),
        ({"any": 367}, "/any"),
        ({"any": True}, "/any"),
        ({"any": 1.0}, "/any"),
        ({"any": "1"}, "/any"),
        ({"any": None}, "/any"),
        ({"offsets": []}, "/offsets"),
        ({"offsets": list(range(1001))}, "/offsets"),
        ({"offsets": [1]}, "/offsets/0"),
        ({"offsets": [0, 0]}, "/offsets/1"),
        ({"offsets": [0, 2, 1]}, "/offsets/2"),
        ({"offsets": [0, True]}, "/offsets/1"),
        ({"offsets": [-1, 0]}, "/offsets/0"),
        ({"offsets": [0, 100_001]}, "/offsets/1"),
        ({"offsets": [0, "1"]}, "/offsets/1"),
    ],
)
def test_what_is_no_participation_is_refused_where_it_stands(stated: object, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_participation(stated, "")
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


def test_a_release_touches_at_most_ten_thousand_windows() -> None:
    def refusal(participation: Participation, periods: PeriodSet) -> str:
        with pytest.raises(InvalidInput) as refused:
            require_few_windows(participation, periods, "/periods")
        return str(refused.value)

    most, more = PeriodSet(((1, 10_000),)), PeriodSet(((1, 10_001),))
    assert require_few_windows(Offsets((0,)), most, "") == most
    assert require_few_windows(Offsets((0,)), most, "").number == 10_000
    assert require_few_windows(PANEL, ALL, "") is ALL
    assert require_few_windows(AnyPeriods(3), most, "") == most
    assert "at most 10000 windows, got 10001" in refusal(AnyPeriods(3), more)
    assert refusal(Offsets((0,)), more) == "/periods: expected periods of at most 10000 windows, got 10001"
    assert refusal(Offsets((0, 1)), most) == "/periods: expected periods of at most 10000 windows, got 10001"
    centuries = PeriodSet(((-LARGEST_INDEX, LARGEST_INDEX),))
    assert "got 2000000001" in refusal(Offsets((0,)), centuries)
    every_other = set_of((2 * n, 2 * n) for n in range(9000))
    assert require_few_windows(Offsets(tuple(range(0, 20, 2))), every_other, "").number == 9009
    scattered = refusal(Offsets(tuple(range(0, 1998, 2))), every_other)
    assert scattered == "/periods: expected at most 100 ranges of adjacent periods"
