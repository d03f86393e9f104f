"""Numbers and durations as people type them: with a decimal comma or a percent sign, or in words such as 2 weeks."""

import re

from service.privacy.numerics.numbers import exact_text, parse_exact

_BLANK = re.compile(r"(?<=[0-9])[ \u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_COMMA = re.compile(r"([+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?)")
_EITHER = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # 1,000 is one or a thousand, by the country
_DURATION = re.compile(r"([0-9]{1,4}) *(hour|day|week)s?", re.IGNORECASE)
_PERCENT = re.compile(r"(.*?)\s*%")


def with_point(text: str) -> str:
    """Return a number with a point for its decimal comma, and without blanks; any other text as it is."""
    bare = _BLANK.sub("", text.strip())
    found = None if _EITHER.fullmatch(bare) else _COMMA.fullmatch(bare)
    return bare if found is None else f"{found[1] or '0'}.{found[2]}"


def number_text(text: str) -> str:
    """Return a typed number as ``/v1`` takes it: 12,5 as 12.5, and 20 % as 0.2; any other text as it is."""
    percent = _PERCENT.fullmatch(text.strip())
    if percent is None:
        return with_point(text)
    try:
        return exact_text(parse_exact(with_point(percent[1])) / 100)
    except ValueError:
        return text.strip()


def duration_text(text: str) -> str:
    """Return a typed duration as ``/v1`` takes it: 24 hours as PT24H, and 1 week as P7D; any other text as it is."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return text.strip()
    number, unit = int(found[1]), found[2].lower()
    return f"PT{number}H" if unit == "hour" else f"P{7 * number if unit == 'week' else number}D"
