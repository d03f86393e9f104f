"""Moments in requests: RFC 3339 with a time zone, read as moments in UTC."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator

_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def _require_text(value: Any) -> Any:
    """Refuse numbers, which pydantic would take for seconds or milliseconds since 1970, by their size."""
    if value is not None and not (isinstance(value, str) and _MOMENT.fullmatch(value)):
        raise ValueError("expected a time as in RFC 3339, such as 2031-12-31T23:59:59Z")
    return value


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("expected a moment in the years 1 to 9999 of UTC") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc), BeforeValidator(_require_text)]
