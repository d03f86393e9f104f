"""The pace of spending, and the day on which it would end."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.pages.spending_pace import Pace, pace_of

_NOW = datetime(2026, 6, 1, tzinfo=UTC)


def _points(*steps: tuple[float, float | None]) -> list[dict[str, Any]]:
    """Return points of a cap of 1, from the days ago and what was counted."""
    return [
        {"at": (_NOW - timedelta(days=ago)).isoformat(), "counted": counted, "remaining": 1 - (counted or 0)}
        for ago, counted in steps
    ]


def test_the_pace_of_a_young_account_is_since_its_opening() -> None:
    found = pace_of(_points((10, 0.0), (5, 0.1), (1, 0.2)), _NOW)
    assert found == Pace(_NOW - timedelta(days=10), 10, True, found.until if found else None)
    assert found is not None
    assert found.until is not None
    assert found.until - _NOW == pytest.approx(timedelta(days=40), abs=timedelta(seconds=1))


def test_the_pace_of_an_old_account_is_that_of_90_days() -> None:
    found = pace_of(_points((1000, 0.0), (200, 0.4), (100, 0.5), (30, 0.55), (1, 0.59)), _NOW)
    assert found is not None
    assert found.until is not None
    assert (found.days, found.spends) == (90, True)
    assert found.until - _NOW == pytest.approx(timedelta(days=90 * 0.41 / 0.09), abs=timedelta(seconds=1))


def test_without_spending_there_is_no_end() -> None:
    for steps in ([(400.0, 0.0), (200.0, 0.3)], [(50.0, 0.0)], [(50.0, 0.2), (20.0, 0.1)]):
        found = pace_of(_points(*steps), _NOW)
        assert found is not None
        assert (found.spends, found.until) == (False, None)
    slow = pace_of(_points((50, 0.0), (20, 1e-9)), _NOW)
    assert slow is not None
    assert (slow.spends, slow.until) == (True, None)


@pytest.mark.parametrize("steps", [[(0.9, 0.0), (0.1, 0.5)], [(50, 0.0), (20, None)], [(50, None), (20, None)]])
def test_what_has_no_pace(steps: list[tuple[float, float | None]]) -> None:
    assert pace_of(_points(*steps), _NOW) is None
