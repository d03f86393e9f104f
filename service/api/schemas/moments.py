"""Moments in requests: RFC 3339 with a time zone, read as moments in UTC."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, WithJsonSchema

_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_LOST_SIGN = re.compile(r":\d{2}(\.\d+)? \d{2}:\d{2}$", re.ASCII)


def _require_text(value: Any) -> Any:
    """Refuse numbers, which pydantic would take for seconds or milliseconds since 1970, by their size."""
    if value is not None and not (isinstance(value, str) and _MOMENT.fullmatch(value)):
        raise ValueError("expected a time as in RFC 3339, such as 2031-12-31T23:59:59Z")
    return value


def _of_query(value: Any) -> Any:
    """Return the moment at which a day begins; explain a sign that an address turned into a blank."""
    if isinstance(value, str) and _DAY.fullmatch(value):
        return f"{value}T00:00:00Z"
    if isinstance(value, str) and _LOST_SIGN.search(value):
        raise ValueError("expected a time with its offset: in an address, write %2B for the sign +, or use Z")
    if not (isinstance(value, str) and _MOMENT.fullmatch(value)):
        raise ValueError("expected a day such as 2031-12-31, or a time as in RFC 3339, such as 2031-12-31T23:59:59Z")
    return value


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("expected a moment in the years 1 to 9999 of UTC") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc), BeforeValidator(_require_text)]
MomentInQuery = Annotated[
    AwareDatetime,
    AfterValidator(_in_utc),
    BeforeValidator(_of_query),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "date"}]}),
]
"""A moment as a query parameter, or a day, which stands for the moment at which it begins in UTC."""
