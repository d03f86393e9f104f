"""Moments as text that sorts as time does."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from service.ledger.clock import is_stamp, now, stamp


def test_now_is_the_present_moment_as_a_stamp() -> None:
    before = stamp(datetime.now(UTC))
    assert before <= now() <= stamp(datetime.now(UTC))
    assert is_stamp(now())


@pytest.mark.parametrize(
    ("moment", "written"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05.000000Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC), "2026-01-02T03:04:05.000060Z"),
        (datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2025-12-31T23:00:00.000000Z"),
    ],
)
def test_every_moment_has_the_same_shape_in_utc(moment: datetime, written: str) -> None:
    assert stamp(moment) == written
    assert is_stamp(written)


def test_a_time_without_a_zone_is_no_moment() -> None:
    with pytest.raises(ValueError, match="time zone"):
        stamp(datetime(2026, 1, 2))  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize(
    "text",
    ["", "2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.1Z", "2026-01-02t03:04:05.000000z",
     "2026-01-02T03:04:05.000000+00:00", "2026-02-30T03:04:05.000000Z", " 2026-01-02T03:04:05.000000Z"],
)  # fmt: skip
def test_other_texts_are_no_stamps(text: str) -> None:
    assert not is_stamp(text)
