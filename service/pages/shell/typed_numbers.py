"""Numbers and durations as people type them: with a decimal comma or a percent sign, or in words such as 2 weeks."""

import re

from service.privacy.numerics.numbers import MAX_LENGTH, exact_text, parse_exact

_BLANK = re.compile(r"(?<=[0-9])[ \u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_COMMA = re.compile(r"([+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?)")
_EITHER = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # 1,000 is one or a thousand, by the country
_NO_PART = re.compile(r"[+-]?[0-9]{1,3}\.000")  # and so may be 1.000, where nobody else writes the zeros
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+")
_LONGEST_THOUSAND = len("+100.000")
_DURATION = re.compile(r"([0-9]{1,4}) *(hour|day|week)s?", re.IGNORECASE)


def with_point(text: str) -> str:
    """Return a number with a point for its decimal comma, and without blanks; any other text as it is.

    One that may be a thousand, such as 1.000, ends in a blank: ``/v1`` refuses it, and a form that is sent again drops
    the blank.
    """
    bare = text.strip()
    if len(bare) > MAX_LENGTH:  # no number, and a pattern would work on all of it
        return bare
    bare = _BLANK.sub("", bare)
    if may_be_thousand(bare):
        return f"{bare} "
    found = None if _EITHER.fullmatch(bare) else _COMMA.fullmatch(bare)
    return bare if found is None else f"{found[1] or '0'}.{found[2]}"


def whole_text(text: str) -> str:
    """Return a whole number as ``with_point`` does; 1.500, which may be 1500, ends in a blank like 1.000."""
    bare = text.strip()
    return f"{bare} " if has_points_for_thousands(bare) else with_point(bare)


def may_be_thousand(text: str) -> bool:
    """Return whether a number has a point and three zeros, which are nothing in some countries and 000 in others."""
    return len(text) <= _LONGEST_THOUSAND and _NO_PART.fullmatch(text) is not None


def has_points_for_thousands(text: str) -> bool:
    """Return whether points separate groups of three digits, which decimal commas make marks of thousands."""
    return len(text) <= MAX_LENGTH and _THOUSANDS.fullmatch(text) is not None


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
