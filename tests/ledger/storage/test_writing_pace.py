"""Rests between the long transactions of one principal."""

from contextlib import suppress

import pytest

from service.ledger.storage.writing_pace import WritingPace, rest_after


class _Time:
    """A clock that stands still, and the processor's seconds that a thread has used."""

    def __init__(self) -> None:
        self.now = self.used = 0.0

    def pace(self) -> WritingPace:
        return WritingPace(lambda: self.now, lambda: self.used)

    def write(self, pace: WritingPace, principal: str, seconds: float) -> None:
        with pace.timed(principal):
            self.used += seconds


def test_a_brief_transaction_is_followed_by_no_rest() -> None:
    time = _Time()
    pace = time.pace()
    time.write(pace, "ann", 0.05)
    assert (pace.rest_of("ann"), rest_after(0.05)) == (0, 0)


def test_a_long_transaction_is_followed_by_a_rest_of_many_times_as_long() -> None:
    time = _Time()
    pace = time.pace()
    time.write(pace, "ann", 0.5)
    assert (pace.rest_of("ann"), pace.rest_of("bob")) == (15, 0)
    time.now = 14
    assert pace.rest_of("ann") == 1
    time.now = 20
    assert pace.rest_of("ann") == 0


def test_rests_add_up_and_what_was_refused_counts_too() -> None:
    time = _Time()
    pace = time.pace()
    time.write(pace, "ann", 0.5)
    with suppress(ValueError), pace.timed("ann"):
        time.used += 0.1
        raise ValueError
    assert pace.rest_of("ann") == pytest.approx(18)


def test_principals_that_wrote_long_ago_are_forgotten() -> None:
    time = _Time()
    pace = time.pace()
    for number in range(1001):
        time.write(pace, f"principal {number}", 1)
    assert (pace.rest_of("principal 0"), pace.rest_of("principal 1")) == (0, 30)
