"""The periods of accounts and releases, as the texts that rows and journal entries hold."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.chains import UNREADABLE
from service.privacy import periods
from service.privacy.periods import ALL, Periods, PeriodSet

EVERY_PERIOD = '"all"'
"""The periods of a release to all periods, as canonical JSON."""
_REMEMBERED = 4096
_NAMED = 12  # runs of periods that a name lists


@dataclass(frozen=True, slots=True)
class ChargedPeriods:
    """The periods of a release in one account of its line.

    Attributes:
        text: the periods as canonical JSON, in the account's own calendar.
        places: the places of the windows that the release touches.
    """

    text: str
    places: PeriodSet


@lru_cache(maxsize=_REMEMBERED)
def read(text: str) -> Periods:
    """Return the periods in the text of an account's row.

    Raises:
        InvalidInput, ValueError: the text is not one that the service writes.
    """
    return periods.read_account_periods(json.loads(text), "")


def write(account: Periods) -> str:
    """Return the periods of an account as canonical JSON."""
    return canonical(periods.write_account_periods(account))


def charged(account: Periods, read_periods: PeriodSet, pointer: str) -> ChargedPeriods:
    """Return the periods of a release, as they are charged to an account.

    Raises:
        InvalidInput: they touch more windows than one release may touch.
    """
    places = periods.require_few_windows(account.participation, read_periods, pointer)
    return ChargedPeriods(canonical(periods.write_periods(account.calendar, read_periods)), places)


def touched(account: Periods, text: str) -> PeriodSet:
    """Return the places of the windows that periods touch, in the text of a row that was compared with its seal or sum.

    Raises:
        InvalidInput, ValueError: the text is not one that the service writes.
    """
    return account.touched(periods.read_periods(account.calendar, json.loads(text), ""))


def stated(account: Periods, text: str) -> ChargedPeriods:
    """Return the periods in the text of a row or a journal entry of an account.

    Raises:
        InvalidInput, ValueError: the text is not one that the service writes.
    """
    return (_stated if len(text) < _SHORT else _stated.__wrapped__)(write(account), text)


def number_of(account: str | None, stated_text: str | None) -> int:
    """Return the number of windows that a held release touches, by texts of rows that may not be as they were written.

    Args:
        account: the periods of the account; None: it has none.
        stated_text: the periods of the release.
    """
    if account is None or stated_text is None:
        return 0
    try:
        return stated(read(account), stated_text).places.number
    except UNREADABLE:  # its settlement will refuse it
        return 0


_SHORT = 1 << 12


@lru_cache(maxsize=_REMEMBERED)
def _stated(account: str, text: str) -> ChargedPeriods:
    own = read(account)
    found = charged(own, periods.read_periods(own.calendar, json.loads(text), ""), "")
    if found.text != text:
        raise ValueError("expected periods in their normal form")
    return found


def name_of(account: Periods, places: Iterable[int]) -> str:
    """Return a text that lists the periods at some places: each run by its ends, and at most 12 runs."""
    runs = periods.set_of((place, place) for place in places).ranges
    ends = [[str(periods.write_period(account.calendar, end)) for end in run] for run in runs[:_NAMED]]
    shown = [first if first == last else f"{first} to {last}" for first, last in ends]
    left = sum(last - first + 1 for first, last in runs[_NAMED:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def read_by_another(account: Periods, below: str | None, text: str | None) -> str:
    """Return the periods that an account is charged for by a release of an account below it, as canonical JSON.

    Args:
        account: the periods of the charged account.
        below: the text of the periods of the account below; None if it has none, so that all periods are charged.
        text: the text of the release's periods in the account below.

    Raises:
        InvalidInput, ValueError: the texts are not such as the service writes.
    """
    if below is None:
        return EVERY_PERIOD
    if text is None:
        raise ValueError("expected periods of a release in an account with periods")
    own = read(below)
    found = periods.read_periods(own.calendar, json.loads(text), "")
    return canonical(periods.write_periods(account.calendar, account.of_account(own, found)))


def in_line(line: tuple[Periods | None, ...], own: PeriodSet | None) -> list[PeriodSet | None]:
    """Return the periods of a release in each account of a line, root first.

    An account with periods above an account without any is charged for all of its periods. None stands for an account
    without periods.

    Args:
        line: the periods of the accounts; the last account is the release's own.
        own: the periods of the release in its own account.
    """
    account = line[-1]
    return [
        None if one is None else ALL if account is None or own is None else one.of_account(account, own) for one in line
    ]
