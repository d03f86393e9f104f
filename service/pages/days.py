"""Days that visitors type, as moments that ``/v1`` takes."""

from datetime import UTC, date, datetime, timedelta

EXPECTED = "expected a day"


def beginning_of(day: str) -> str:
    """Return the moment at which a day begins, in UTC.

    Raises:
        ValueError: the text is no day.
    """
    return _midnight(date.fromisoformat(day))


def end_of(day: str) -> str:
    """Return the moment at which a day is over, in UTC.

    Raises:
        ValueError: the text is no day, or the last one that a computer counts.
    """
    try:
        return _midnight(date.fromisoformat(day) + timedelta(days=1))
    except OverflowError as error:
        raise ValueError(EXPECTED) from error


def before(day: str) -> str:
    """Return the day before a day."""
    return (date.fromisoformat(day) - timedelta(days=1)).isoformat()


def _midnight(day: date) -> str:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).isoformat().replace("+00:00", "Z")
