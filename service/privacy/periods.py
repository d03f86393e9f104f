"""Periods: the calendars of accounts, the periods that releases read, and the windows that these touch.

A period is a whole number. Days are counted from 1 January of the year 1, which is day 1 (as by
``datetime.date.toordinal``), weeks from the one of that day, which is week 0, months and quarters from January of the
year 0. Years and waves have their own numbers. The proofs are in ``docs/mathematics/periods.md``.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.errors import InvalidInput

MOST_WINDOWS = 10_000  # that one release touches
MOST_OFFSETS = 1_000
LONGEST_SPAN = 100_000  # periods from the first offset to the last
MOST_ANY = 366  # the days of a year: each charge reads the totals of as many periods
LARGEST_INDEX = 10**9  # far below 2^61, so that no two places have the same hash (decision 0006)
MOST_PAIRS = 100_000  # of a range of periods and a run of offsets, of one request: what it takes to count its windows

Ranges = tuple[tuple[int, int], ...]
"""Whole numbers as ranges, first and last included: ascending, disjoint and not adjacent."""


class Calendar(StrEnum):
    """The kind of periods that an account counts by."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"
    INDEX = "index"


_MONTHS = {Calendar.MONTH: 1, Calendar.QUARTER: 3, Calendar.YEAR: 12}
_EXAMPLES = {
    Calendar.DAY: "2026-01-31",
    Calendar.WEEK: "2026-W05",
    Calendar.MONTH: "2026-01",
    Calendar.QUARTER: "2026-Q1",
    Calendar.YEAR: "2026",
}
_SHAPES = {
    Calendar.DAY: "([1-9][0-9]{3})-([0-9]{2})-([0-9]{2})",
    Calendar.WEEK: "([1-9][0-9]{3})-W([0-9]{2})",
    Calendar.MONTH: "([1-9][0-9]{3})-([0-9]{2})",
    Calendar.QUARTER: "([1-9][0-9]{3})-Q([0-9])",
    Calendar.YEAR: "([1-9][0-9]{3})",
}


@dataclass(frozen=True, slots=True)
class PeriodSet:
    """A set of periods, or of places of windows: ranges, or all that there are and will be."""

    ranges: Ranges = ()
    everything: bool = False

    @property
    def number(self) -> int:
        """The number of members of a set that is not all."""
        return sum(last - first + 1 for first, last in self.ranges)

    def __contains__(self, member: int) -> bool:
        """Tell whether a number is a member."""
        return self.everything or any(first <= member <= last for first, last in self.ranges)

    @property
    def members(self) -> Iterable[int]:
        """The members of a set that is not all, ascending."""
        return (member for first, last in self.ranges for member in range(first, last + 1))


ALL = PeriodSet(everything=True)


@dataclass(frozen=True, slots=True)
class Offsets:
    """The participation of a unit in the periods {t + o} of one window, for one t; t is the window's place."""

    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnyPeriods:
    """The participation of a unit in at most so many periods, whichever they are; the place of a period is itself."""

    most: int


Participation = Offsets | AnyPeriods


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods of an account: what it counts, and in which of them one unit can be."""

    calendar: Calendar
    participation: Participation

    @property
    def windows_of_each(self) -> int:
        """The number of windows that hold one period."""
        return self.touched(PeriodSet(((0, 0),))).number

    @property
    def several(self) -> int | None:
        """The most periods of one unit, where they may be any; their totals are kept one by one (P-9)."""
        return self.participation.most if isinstance(self.participation, AnyPeriods) else None

    def window_at(self, place: int) -> PeriodSet:
        """Return the periods at a place: of its window, or the one period where a unit may be in any."""
        return set_of((place + first, place + last) for first, last in _runs(self.participation))

    def touched(self, periods: PeriodSet) -> PeriodSet:
        """Return the places of the windows that a release over some of the periods touches."""
        return touched(self.participation, periods)

    def of_account(self, other: "Periods", periods: PeriodSet) -> PeriodSet:
        """Return the periods here that hold any of the periods of an account below, whose calendar nests in this."""
        return mapped(other.calendar, self.calendar, periods)


def set_of(ranges: Iterable[tuple[int, int]]) -> PeriodSet:
    """Return the union of ranges, first and last included, in its one normal form."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return PeriodSet(tuple(merged))


def _runs(participation: Participation) -> Ranges:
    """Return the distances from a place to its periods."""
    if isinstance(participation, AnyPeriods):
        return ((0, 0),)
    return set_of((offset, offset) for offset in participation.offsets).ranges


def touched(participation: Participation, periods: PeriodSet) -> PeriodSet:
    """Return the places whose totals a release over some periods is charged to.

    Offsets O: S - O, since t + o is in S where t is in S - o; window t may begin before the calendar's first period.
    Any periods: S itself.
    """
    if periods.everything:
        return periods
    runs = _runs(participation)
    return set_of(
        (first - last_offset, last - first_offset)
        for first, last in periods.ranges
        for first_offset, last_offset in runs
    )


def pairs_of(participation: Participation, periods: PeriodSet) -> int:
    """Return the number of pairs of a range of periods and a run of offsets: ``touched`` takes as long."""
    return len(periods.ranges) * len(_runs(participation))


def require_few_windows(participation: Participation, periods: PeriodSet, at: str) -> PeriodSet:
    """Return the places of the windows that a release touches.

    Raises:
        InvalidInput: they are more than a release may touch, or too scattered to count.
    """
    if pairs_of(participation, periods) > MOST_PAIRS:
        most = MOST_PAIRS // pairs_of(participation, PeriodSet(((0, 0),)))
        raise InvalidInput.at(at, f"expected at most {most} ranges of adjacent periods")
    places = touched(participation, periods)
    if places.number > MOST_WINDOWS:
        raise InvalidInput.at(at, f"expected periods of at most {MOST_WINDOWS} windows, got {places.number}")
    return places


def nests_in(inner: Calendar, outer: Calendar) -> bool:
    """Tell whether each period of one calendar lies in one period of another."""
    if inner is outer:
        return True
    if inner is Calendar.DAY:
        return outer is not Calendar.INDEX
    return inner in _MONTHS and outer in _MONTHS and _MONTHS[inner] < _MONTHS[outer]


def containing(inner: Calendar, outer: Calendar, period: int) -> int:
    """Return the period of a calendar, in which ``inner`` nests, that holds a period of ``inner``."""
    if inner is outer:
        return period
    if outer is Calendar.WEEK:
        return _week_of(period)
    if inner is Calendar.DAY:
        year, month, _ = _date(period)
        return (12 * year + month - 1) // _MONTHS[outer]
    return period * _MONTHS[inner] // _MONTHS[outer]


def mapped(inner: Calendar, outer: Calendar, periods: PeriodSet) -> PeriodSet:
    """Return the periods of a calendar, in which ``inner`` nests, that hold any of the periods: all that is read.

    A range stays a range, since neighbouring periods lie in the same period or in neighbouring ones.
    """
    if periods.everything:
        return periods
    return set_of((containing(inner, outer, first), containing(inner, outer, last)) for first, last in periods.ranges)


def write_period(calendar: Calendar, period: int) -> str | int:
    """Return a period as ISO 8601 writes it, a quarter as 2026-Q1, a wave as its number.

    The years of periods that may be stated have four digits. Windows can begin before them.
    """
    match calendar:
        case Calendar.DAY:
            year, month, day = _date(period)
            return f"{year:04d}-{month:02d}-{day:02d}"
        case Calendar.WEEK:
            year, _, _ = _date(7 * period + 4)  # its Thursday is in the year that the week counts to
            return f"{year:04d}-W{period - _week_of(_day(year, 1, 4)) + 1:02d}"
        case Calendar.MONTH:
            return f"{period // 12:04d}-{period % 12 + 1:02d}"
        case Calendar.QUARTER:
            return f"{period // 4:04d}-Q{period % 4 + 1}"
        case Calendar.YEAR:
            return f"{period:04d}"
    return period


def read_period(calendar: Calendar, stated: object, at: str) -> int:
    """Return a period of the years 1000 to 9999, or a wave, of at most 10^9 either way.

    Raises:
        InvalidInput: the document states no such period.
    """
    if calendar is Calendar.INDEX:
        if isinstance(stated, int) and not isinstance(stated, bool) and abs(stated) <= LARGEST_INDEX:
            return stated
        raise InvalidInput.at(at, f"expected a whole number from -{LARGEST_INDEX} to {LARGEST_INDEX}")
    parts = re.fullmatch(_SHAPES[calendar], stated) if isinstance(stated, str) else None
    if parts is not None:
        period = _numbered(calendar, *map(int, parts.groups()))
        if write_period(calendar, period) == stated:  # or else it is no date: 30 February is another day
            return period
    raise InvalidInput.at(at, f"expected a {calendar} such as {_EXAMPLES[calendar]}")


def _numbered(calendar: Calendar, year: int, part: int = 1, day: int = 1) -> int:
    match calendar:
        case Calendar.DAY:
            return _day(year, part, day)
        case Calendar.WEEK:
            return _week_of(_day(year, 1, 4)) + part - 1  # week 1 is that of 4 January
        case Calendar.MONTH:
            return 12 * year + part - 1
        case Calendar.QUARTER:
            return 4 * year + part - 1
    return year


def _week_of(day: int) -> int:
    return (day - 1) // 7  # day 1 was a Monday


def _day(year: int, month: int, day: int) -> int:
    """Return the number of a date; years are counted from March on, so that the leap day is the last of its year."""
    year, month = year - (month <= 2), (month - 3) % 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 306


def _date(number: int) -> tuple[int, int, int]:
    """Return year, month and day of a day's number."""
    cycle, day = divmod(number + 305, 146_097)  # 400 years
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # from March on
    return 400 * cycle + year + (month >= 10), (month + 2) % 12 + 1, day - (153 * month + 2) // 5 + 1


def read_periods(calendar: Calendar, stated: object, at: str) -> PeriodSet:
    """Return the periods that a release states: ``"all"``, a range by ``from`` and ``to``, or a ``list``.

    Raises:
        InvalidInput: they are none of these; the fault is at ``at`` or below.
    """
    match stated:
        case "all":
            return ALL
        case {"from": first_stated, "to": last_stated, **rest} if not rest:
            first = read_period(calendar, first_stated, f"{at}/from")
            last = read_period(calendar, last_stated, f"{at}/to")
            if last < first:
                raise InvalidInput.at(f"{at}/to", f"expected a period not before {at}/from")
            return PeriodSet(((first, last),))
        case {"list": [*listed], **rest} if not rest and 1 <= len(listed) <= MOST_WINDOWS:
            periods = [read_period(calendar, one, f"{at}/list/{place}") for place, one in enumerate(listed)]
            return set_of((period, period) for period in periods)
    raise InvalidInput.at(
        at, f'expected "all", an object with from and to, or one with a list of 1 to {MOST_WINDOWS} periods'
    )


def write_periods(calendar: Calendar, periods: PeriodSet) -> str | dict[str, object]:
    """Return periods in their one normal form, which ``read_periods`` reads."""
    if periods.everything:
        return "all"
    if len(periods.ranges) == 1:
        ((first, last),) = periods.ranges
        return {"from": write_period(calendar, first), "to": write_period(calendar, last)}
    return {"list": [write_period(calendar, period) for period in periods.members]}


def read_participation(stated: object, at: str) -> Participation:
    """Return the participation that an account states: ``offsets`` from 0 on, ascending, or ``any`` so many periods.

    Raises:
        InvalidInput: the document states no participation; the fault is at ``at`` or below.
    """
    match stated:
        case {"offsets": [*offsets], **rest} if not rest:
            return Offsets(_read_offsets(offsets, f"{at}/offsets"))
        case {"any": most, **rest} if not rest:
            if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MOST_ANY:
                raise InvalidInput.at(f"{at}/any", f"expected a whole number from 1 to {MOST_ANY}")
            return AnyPeriods(most)
    raise InvalidInput.at(at, "expected an object with either offsets or any")


def read_account_periods(stated: object, at: str) -> Periods:
    """Return the periods that an account states: a calendar and a participation.

    Raises:
        InvalidInput: they are none of an account; the fault is at ``at`` or below.
    """
    match stated:
        case {"calendar": calendar, "participation": participation, **rest} if not rest:
            named = next((one for one in Calendar if one.value == calendar), None)
            if named is None:
                raise InvalidInput.at(f"{at}/calendar", f"expected one of {', '.join(Calendar)}")
            return Periods(named, read_participation(participation, f"{at}/participation"))
    raise InvalidInput.at(at, "expected an object with calendar and participation")


def write_account_periods(periods: Periods) -> dict[str, object]:
    """Return periods of an account as ``read_account_periods`` reads them."""
    unit = periods.participation
    stated = {"any": unit.most} if isinstance(unit, AnyPeriods) else {"offsets": list(unit.offsets)}
    return {"calendar": periods.calendar.value, "participation": stated}


def _read_offsets(offsets: Sequence[object], at: str) -> tuple[int, ...]:
    if not 1 <= len(offsets) <= MOST_OFFSETS:
        raise InvalidInput.at(at, f"expected a list of 1 to {MOST_OFFSETS} whole numbers")
    read: list[int] = []
    for place, offset in enumerate(offsets):
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= LONGEST_SPAN:
            raise InvalidInput.at(f"{at}/{place}", f"expected a whole number from 0 to {LONGEST_SPAN}")
        if read[-1:] >= [offset] or (not read and offset != 0):
            raise InvalidInput.at(f"{at}/{place}", "expected 0 first, and then each larger than the one before")
        read.append(offset)
    return tuple(read)
