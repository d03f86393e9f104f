"""Periods of accounts and releases, as requests state them and answers show them."""

import json
import re
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema

from service.errors import InvalidInput
from service.ledger.accounts.accounts import AccountRecord
from service.privacy.periods import (
    MOST_ANY,
    Calendar,
    Periods,
    PeriodSet,
    read_period,
    write_account_periods,
    write_period,
)
from service.privacy.plans.walking import Neighbouring

MANY_WINDOWS = 2000
"""The number of windows beyond which a helper process reads and compares them."""

_PERIOD: dict[str, Any] = {
    "anyOf": [{"type": "string", "maxLength": 10}, {"type": "integer"}],
    "description": "2026-01-31, 2026-W05, 2026-01, 2026-Q1 or 2026, or the number of a wave, as the account counts.",
}

StatedPeriods = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "all"},
                {
                    "type": "object",
                    "properties": {"from": _PERIOD, "to": _PERIOD},
                    "required": ["from", "to"],
                    "additionalProperties": False,
                },
                {
                    "type": "object",
                    "properties": {"list": {"type": "array", "items": _PERIOD, "minItems": 1, "maxItems": 10_000}},
                    "required": ["list"],
                    "additionalProperties": False,
                },
                {"type": "null"},
            ]
        }
    ),
    Field(
        description="The periods of the account's calendar whose data the release reads in any way, by linkage or"
        " imputation too; only in an account with periods. all: every period, those to come as well, as for a static"
        " register. The plan's sensitivities must hold for all that one unit can change over these periods together,"
        " within a window of this account and of each account above it."
    ),
]

_PARTICIPATION: dict[str, dict[str, Any]] = {
    "offsets": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    "any": {"type": "integer", "minimum": 1, "maximum": MOST_ANY},
}

StatedAccountPeriods = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "calendar": {"enum": [calendar.value for calendar in Calendar]},
                        "participation": {
                            "anyOf": [
                                {
                                    "type": "object",
                                    "properties": {name: form},
                                    "required": [name],
                                    "additionalProperties": False,
                                }
                                for name, form in _PARTICIPATION.items()
                            ]
                        },
                    },
                    "required": ["calendar", "participation"],
                    "additionalProperties": False,
                },
                {"type": "null"},
            ]
        }
    ),
    Field(
        description="The account counts by periods; never changed. calendar: the kind of period; index numbers waves or"
        " panels. participation: a promise about the design, for each unit, that never depends on answers. offsets: the"
        " unit is in the periods t + offset alone, for one t; [0] is one period, [0, 1, ..., 11] a sliding year of"
        " months. The budget then holds for each such window of periods. any: the unit is in at most so many periods,"
        " whichever they are. The budget then holds for each set of so many periods: the sum of the largest is compared"
        " with it, and a release counts once for each of its periods that is among them."
    ),
]


class AccountPeriodsBody(BaseModel):
    """The periods that an account counts by."""

    calendar: Calendar
    participation: dict[str, list[int] | int]
    statement: str = Field(description="The promise and the guarantee, in words.")


class WindowBody(BaseModel):
    """A window: the periods in which one unit can be; with participation any, the worst ones together."""

    start: str | int = Field(description="Its first period; with offsets it names the window.")
    periods: list[Any] = Field(description="Its periods; runs of them as from and to.")


def window_body(periods: Periods, window: PeriodSet) -> dict[str, Any]:
    """Return a window of an account with periods."""
    shown = [
        written[0] if first == last else {"from": written[0], "to": written[1]}
        for first, last in window.ranges
        for written in [(write_period(periods.calendar, first), write_period(periods.calendar, last))]
    ]
    return {"start": write_period(periods.calendar, window.ranges[0][0]), "periods": shown}


def window_member(account: AccountRecord, window: PeriodSet | None) -> dict[str, Any]:
    """Return the member that shows a window; none for an account without periods."""
    if account.periods is None:
        return {}
    return {"window": None if window is None else window_body(account.periods, window)}


def read_query_period(account: AccountRecord, stated: str | None, name: str = "period") -> int | None:
    """Return the period that a query parameter states; None where it is not given.

    Raises:
        InvalidInput: it is no period of the account's calendar, or the account has no periods.
    """
    at = f"/query/{name}"
    if stated is None:
        return None
    if account.periods is None:
        raise InvalidInput.at(at, f"expected none, as the account {account.name!r} has no periods")
    calendar = account.periods.calendar
    if calendar is Calendar.INDEX and re.fullmatch("-?[0-9]{1,10}", stated):
        return read_period(calendar, int(stated), at)
    return read_period(calendar, stated, at)


def account_periods_body(account: AccountRecord) -> dict[str, Any]:
    """Return the members that show an account's periods; none for an account without them."""
    if account.periods is None:
        return {}
    return {"periods": write_account_periods(account.periods) | {"statement": statement_of(account, account.periods)}}


def release_periods_body(periods: str | None) -> dict[str, Any]:
    """Return the members that show a release's periods, given as JSON; none in an account without them."""
    return {} if periods is None else {"periods": json.loads(periods)}


def statement_of(account: AccountRecord, periods: Periods) -> str:
    """Return the promise on which the budget of an account relies, and what it then guarantees."""
    calendar = "wave" if periods.calendar is Calendar.INDEX else periods.calendar.value
    where, runs = f"in the data of at most one {calendar}", periods.window_at(0).ranges
    if (periods.several or 1) > 1:
        where = f"in the data of at most {periods.several} {calendar}s, whichever they are"
    elif runs != ((0, 0),):
        parts = [f"t + {first}" if first == last else f"t + {first} to t + {last}" for first, last in runs]
        where = f"in the data of the {calendar}s {', '.join(parts)} alone, for one {calendar} t"
    same = (
        f" A record that replaces another is in the data of the same {calendar}s."
        if account.neighbouring is Neighbouring.REPLACE_ONE
        else ""
    )
    return (
        f"Each {account.unit} is {where}. Each cap of the budget holds for each {account.unit} over its whole life."
        f"{same}"
    )
