"""The periods of accounts and of releases as text, in rows and in entries of the journal."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from service.ledger.journal.canonical_json import canonical
from service.privacy import periods
from service.privacy.periods import ALL, Periods, PeriodSet

EVERY_PERIOD = '"all"'
"""The periods of a release to all periods, as canonical JSON."""
_REMEMBERED = 4096
_NAMED = 12  # runs of periods that a name states


@dataclass(frozen=True, slots=True)
class ChargedPeriods:
    """The periods of a release in one account of its line.

    Attributes:
        text: canonical JSON, in the account's own calendar.
        places: those of the windows that it touches.
    """

    text: str
    places: PeriodSet


@lru_cache(maxsize=_REMEMBERED)
def read(text: str) -> Periods:
    """Return the periods in the text of an account's row.

    Raises:
        InvalidInput, ValueError: the service writes no such text.
    """
    return periods.read_account_periods(json.loads(text), "")


def write(account: Periods) -> str:
    """Return the periods of an account as canonical JSON."""
    return canonical(periods.write_account_periods(account))


def charged(account: Periods, read_periods: PeriodSet, pointer: str) -> ChargedPeriods:
    """Return periods of a release as they are charged to an account.

    Raises:
        InvalidInput: they touch more windows than one release may.
    """
    places = periods.require_few_windows(account.participation, read_periods, pointer)
    return ChargedPeriods(canonical(periods.write_periods(account.calendar, read_periods)), places)


def stated(account: Periods, text: str) -> ChargedPeriods:
    """Return the periods in the text of a row or an entry of an account.

    Raises:
        InvalidInput, ValueError: the text is not the one that the service writes for any periods.
    """
    return (_stated if len(text) < _SHORT else _stated.__wrapped__)(write(account), text)


_SHORT = 1 << 12


@lru_cache(maxsize=_REMEMBERED)
def _stated(account: str, text: str) -> ChargedPeriods:
    own = read(account)
    found = charged(own, periods.read_periods(own.calendar, json.loads(text), ""), "")
    if found.text != text:
        raise ValueError("expected periods in their normal form")
    return found


def name_of(account: Periods, places: Iterable[int]) -> str:
    """Return the periods at places of an account as text, runs of them by their ends, many of them cut."""
    runs = periods.set_of((place, place) for place in places).ranges
    ends = [[str(periods.write_period(account.calendar, end)) for end in run] for run in runs[:_NAMED]]
    shown = [first if first == last else f"{first} to {last}" for first, last in ends]
    left = sum(last - first + 1 for first, last in runs[_NAMED:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def read_by_another(account: Periods, below: str | None, text: str | None) -> str:
    """Return the periods of a release of an account below as this one is charged for them, as canonical JSON.

    Args:
        below: the text of the periods of the account below; None: it has none, so all periods are charged.
        text: the periods of the release there.

    Raises:
        InvalidInput, ValueError: the service writes no such texts.
    """
    if below is None:
        return EVERY_PERIOD
    if text is None:
        raise ValueError("expected periods of a release in an account with periods")
    own = read(below)
    found = periods.read_periods(own.calendar, json.loads(text), "")
    return canonical(periods.write_periods(account.calendar, account.of_account(own, found)))


def along(line: tuple[Periods | None, ...], own: PeriodSet | None) -> list[PeriodSet | None]:
    """Return the periods of a release in each account of a line, root first, from those in its own, the last.

    An account above one without periods is charged for all of its periods.
    """
    account = line[-1]
    return [
        None if one is None else ALL if account is None or own is None else one.of_account(account, own) for one in line
    ]
