"""Conversion between periods and the texts that pages show and users type.

``/v1`` interprets the typed texts. The module has no side effects.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import InvalidInput
from service.privacy.periods import MOST_OFFSETS, MOST_WINDOWS, Calendar

EVERY_PERIOD = "all"
_MOST_SHOWN = 6  # parts of a list of periods, and runs of a window
_RANGE = re.compile(r"\sto\s|\.\.\.?")  # without the blanks around: a search for long runs of them is quadratic
_OFFSETS = re.compile(r"([0-9]{1,9})(?:\s*[-–]\s*([0-9]{1,9}))?")  # noqa: RUF001 - people type either dash
_WHOLE = re.compile(r"-?[0-9]{1,12}")
_PLURALS = {calendar: f"{calendar.value}s" for calendar in Calendar} | {Calendar.INDEX: "waves"}


def calendar_text(calendar: str) -> str:
    """Return the word for the periods of a calendar, such as months or waves."""
    return _PLURALS[Calendar(calendar)]


def periods_text(periods: object) -> str:
    """Return the periods of a release, as answers state them, in words; a long list is cut."""
    match periods:
        case {"from": first, "to": last}:
            return _run_text(first, last)
        case {"list": [*listed]}:
            return _joined([str(one) for one in listed])
    return "all periods"


def stored_periods_text(text: str) -> str:
    """Return in words the periods that the text of a journal entry states."""
    return periods_text(json.loads(text))


def window_text(window: Mapping[str, Any]) -> str:
    """Return the periods of a window, as answers state it, in words; many runs are cut."""
    runs = [_run_text(run["from"], run["to"]) if isinstance(run, dict) else str(run) for run in window["periods"]]
    return _joined(runs)


def _run_text(first: object, last: object) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _joined(parts: Sequence[str]) -> str:
    more = len(parts) - _MOST_SHOWN
    return ", ".join(parts) if more <= 1 else f"{', '.join(parts[:_MOST_SHOWN])} and {more} more"


def offsets_of(text: str, pointer: str) -> list[int]:
    """Return the offsets of a text such as ``0-3, 12-15``, ascending, each once.

    Raises:
        InvalidInput: a part is neither a whole number nor a range of them, or there are too many.
    """
    too_many = InvalidInput.at(pointer, f"expected at most {MOST_OFFSETS} offsets")
    parts = text.split(",", MOST_OFFSETS)
    if len(parts) > MOST_OFFSETS:
        raise too_many
    offsets: list[int] = []
    for first, last in sorted(_run_of_offsets(part, pointer) for part in parts):
        new = range(max(first, offsets[-1] + 1) if offsets else first, last + 1)
        if len(offsets) + len(new) > MOST_OFFSETS:
            raise too_many
        offsets += new
    return offsets


def _run_of_offsets(text: str, pointer: str) -> tuple[int, int]:
    found = _OFFSETS.fullmatch(text.strip())
    first, last = (0, -1) if found is None else (int(found[1]), int(found[2] or found[1]))
    if last < first:
        raise InvalidInput.at(pointer, "expected whole numbers and ranges of them, such as 0-3, 12-15")
    return first, last


def stated_periods(text: str, calendar: str | None) -> object:
    """Return the periods that a user typed, as a request states them; None if nothing was typed.

    Args:
        text: ``all``, a range ``A to B``, or a list ``A, B``. A part that is not a period is passed on for ``/v1`` to
            refuse, and so are too many parts, of which the last is all that is left of the text.
        calendar: the calendar of the account; None if the account has no periods.
    """
    if not text:
        return None
    if text.casefold() in (EVERY_PERIOD, "all periods"):
        return EVERY_PERIOD
    ends = _RANGE.split(text, maxsplit=2)
    if len(ends) == 2:
        return {"from": _period(ends[0], calendar), "to": _period(ends[1], calendar)}
    return {"list": [_period(part, calendar) for part in text.split(",", MOST_WINDOWS)]}


def _period(text: str, calendar: str | None) -> str | int:
    stripped = text.strip()
    return int(stripped) if calendar == Calendar.INDEX and _WHOLE.fullmatch(stripped) else stripped
