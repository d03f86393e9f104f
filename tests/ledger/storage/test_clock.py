"""Moments as text that sorts as time does."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from service.errors import Unavailable
from service.ledger.storage import clock
from service.ledger.storage.clock import is_stamp, now, stamp


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_clock", clock._Clock())


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


def test_a_clock_beyond_what_can_be_written_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 253_402_300_800 * 10**9)  # the year 10000
    with pytest.raises(Unavailable, match="beyond the year 9999"):
        now()


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


class _System:
    """A system whose clock is set, in seconds, while its monotonic clock goes on."""

    def __init__(self) -> None:
        self.wall, self.passed = 1_800_000_000, 0

    def time_ns(self) -> int:
        return self.wall * 10**9

    def monotonic_ns(self) -> int:
        return self.passed * 10**9

    def go(self, seconds: int, *, wall: int | None = None) -> None:
        self.passed += seconds
        self.wall += seconds if wall is None else wall


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> _System:
    made = _System()
    monkeypatch.setattr(clock, "time", made)
    monkeypatch.setattr(clock, "_clock", clock._Clock())
    return made


def test_a_clock_that_is_set_back_does_not_take_time_back(system: _System) -> None:
    assert now() == "2027-01-15T08:00:00.000000Z"
    system.go(10)
    assert (now(), clock.seconds_behind()) == ("2027-01-15T08:00:10.000000Z", 0)
    system.go(5, wall=-3600)
    assert (now(), clock.seconds_behind()) == ("2027-01-15T08:00:15.000000Z", 3605)
    system.go(60)
    assert (now(), clock.seconds()) == ("2027-01-15T08:01:15.000000Z", 1_800_000_075)
    system.go(1, wall=7200)
    assert (now(), clock.seconds_behind()) == ("2027-01-15T09:01:10.000000Z", 0), "the system's clock is ahead again"


def test_time_goes_on_from_a_moment_that_the_ledger_wrote(system: _System) -> None:
    clock.go_on_from("2027-01-15T08:00:30.250000Z")
    assert now() == "2027-01-15T08:00:30.250000Z"
    clock.go_on_from("2027-01-15T08:00:20.000000Z")
    system.go(1)
    assert now() == "2027-01-15T08:00:31.250000Z"
