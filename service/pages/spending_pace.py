"""The pace of an account's spending, and the day on which its budget would be spent at this pace."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

_DAYS = 90  # that the pace is taken from, where the account is as old
_FEWEST = timedelta(days=1)  # a shorter time gives no pace
_FARTHEST = timedelta(days=36_525)


class Pace(NamedTuple):
    """A pace of spending.

    Attributes:
        since: the moment from which on it is taken.
        days: the number of days since then.
        spends: whether anything was spent since.
        until: the moment at which nothing would be left; None: it is more than a century away.
    """

    since: datetime
    days: int
    spends: bool
    until: datetime | None


def pace_of(points: Sequence[Mapping[str, Any]], now: datetime) -> Pace | None:
    """Return the pace of the last 90 days, or since the account was opened.

    It is an estimate: the budget's definition may count equal releases unequally, and a changed cap moves the end.

    Args:
        points: of the spending history.
        now: the present moment.

    Returns:
        None if the account is younger than a day, or an infinite loss is counted.
    """
    moments = [datetime.fromisoformat(point["at"]) for point in points]
    since = max(moments[0], now - timedelta(days=_DAYS))
    before = [point for point, moment in zip(points, moments, strict=True) if moment <= since] or points[:1]
    first, last = before[-1]["counted"], points[-1]["counted"]
    if now - since < _FEWEST or first is None or last is None:
        return None
    days = (now - since) / timedelta(days=1)
    spent = (last - first) / days
    left = points[-1]["remaining"] / spent if spent > 0 else None
    if left is None or left > _FARTHEST / timedelta(days=1):
        return Pace(since, int(days), left is not None, None)
    return Pace(since, int(days), True, now + timedelta(days=left))
