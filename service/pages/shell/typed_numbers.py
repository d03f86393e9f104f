"""Numbers and durations as people type them: with a decimal comma or a percent sign, or in words such as 2 weeks."""

import re

from service.privacy.numerics.numbers import MAX_LENGTH, exact_text, parse_exact

_BLANK = re.compile(r"(?<=[0-9])[ \u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_COMMA = re.compile(r"([+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?)")
_EITHER = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # 1,000 is one or a thousand, by the country
_DURATION = re.compile(r"([0-9]{1,4}) *(hour|day|week)s?", re.IGNORECASE)


def with_point(text: str) -> str:
    """Return a number with a point for its decimal comma, and without blanks; any other text as it is."""
    bare = text.strip()
    if len(bare) > MAX_LENGTH:  # no number, and a pattern would work on all of it
        return bare
    bare = _BLANK.sub("", bare)
    found = None if _EITHER.fullmatch(bare) else _COMMA.fullmatch(bare)
    return bare if found is None else f"{found[1] or '0'}.{found[2]}"


def number_text(text: str) -> str:
    """Return a typed number as ``/v1`` takes it: 12,5 as 12.5, and 20 % as 0.2; any other text as it is."""
    bare = text.strip()
    if not bare.endswith("%"):
        return with_point(bare)
    try:
        return exact_text(parse_exact(with_point(bare[:-1])) / 100)
    except ValueError:
        return bare


def duration_text(text: str) -> str:
    """Return a typed duration as ``/v1`` takes it: 24 hours as PT24H, and 1 week as P7D; any other text as it is."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return text.strip()
    number, unit = int(found[1]), found[2].lower()
    return f"PT{number}H" if unit == "hour" else f"P{7 * number if unit == 'week' else number}D"
