"""Rests between the long transactions of one principal."""

import gc
import time as processor
from contextlib import suppress

import pytest

from service.ledger.storage.writing_pace import WritingPace, processor_seconds, rest_after


class _Time:
    """A clock that stands still, and the processor's seconds that a thread has used."""

    def __init__(self) -> None:
        self.now = self.used = 0.0

    def pace(self) -> WritingPace:
        return WritingPace(lambda: self.now, lambda: self.used)

    def write(self, pace: WritingPace, principal: str, seconds: float, root: int | None = 1) -> None:
        with pace.timed(principal, root):
            self.used += seconds


def test_a_brief_transaction_is_followed_by_no_rest() -> None:
    time = _Time()
    pace = time.pace()
    for _ in range(1000):
        time.write(pace, "ann", 0.009)
    assert (pace.rest_of("ann", 1), rest_after(0.009)) == (0, 0)


def test_a_long_transaction_is_followed_by_a_rest_of_many_times_as_long() -> None:
    time = _Time()
    pace = time.pace()
    time.write(pace, "ann", 0.5)
    assert (pace.rest_of("ann", 1), pace.rest_of("bob", 1)) == (48, 0)
    time.now = 47
    assert pace.rest_of("ann", 1) == 1
    time.now = 50
    assert pace.rest_of("ann", 1) == 0


@pytest.mark.parametrize("seconds", [0.0101, 0.02, 0.03, 0.05, 0.06, 0.1, 0.12, 0.5, 2.0])
def test_one_in_a_hundred_requests_at_most_waits_thirty_milliseconds_for_a_transaction(seconds: float) -> None:
    longer_waits = max(0.0, seconds - 0.03)  # the part of the transaction in which a request would come too early
    assert longer_waits / (seconds + rest_after(seconds)) <= 0.01
    assert rest_after(seconds) <= 100 * seconds


def test_a_long_transaction_by_chance_is_followed_by_a_rest_only_if_it_is_repeated() -> None:
    time = _Time()
    pace = time.pace()
    time.write(pace, "ann", 0.03)
    time.write(pace, "ann", 0.03)
    assert pace.rest_of("ann", 1) == 0
    for _ in range(10):
        time.write(pace, "ann", 0.03)
    assert pace.rest_of("ann", 1) == pytest.approx(12 * rest_after(0.03) - 2)


def test_rests_add_up_and_what_was_refused_counts_too() -> None:
    time = _Time()
    pace = time.pace()
    time.write(pace, "ann", 0.5)
    with suppress(ValueError), pace.timed("ann", 1):
        time.used += 0.1
        raise ValueError
    assert pace.rest_of("ann", 1) == pytest.approx(50 + rest_after(0.1) - 2)


def test_the_accounts_of_one_root_may_be_slow_by_the_work_of_others() -> None:
    time = _Time()
    pace = time.pace()
    time.write(pace, "ann", 0.5, 1)
    assert [pace.rest_of("ann", root) for root in (1, 2, None)] == [48, 0, 0]


def test_a_second_slow_root_has_all_accounts_rest_until_only_one_does() -> None:
    time = _Time()
    pace = time.pace()
    time.write(pace, "ann", 0.5, 1)
    time.write(pace, "ann", 0.1, 2)
    rest = rest_after(0.1)
    assert [pace.rest_of("ann", root) for root in (1, 2, 3, None)] == pytest.approx([50, rest, rest, rest])
    time.now = rest
    assert [pace.rest_of("ann", root) for root in (1, 2, 3)] == pytest.approx([50 - rest, 0, 0])


def test_slow_openings_rest_for_themselves() -> None:
    time = _Time()
    pace = time.pace()
    time.write(pace, "ann", 0.5, 1)
    time.write(pace, "ann", 0.1, None)
    assert [pace.rest_of("ann", root) for root in (1, 2, None)] == pytest.approx([50, 0, rest_after(0.1)])


def test_many_accounts_in_turn_rest_as_one_does() -> None:
    time = _Time()
    pace = time.pace()
    rest = rest_after(0.03)
    found = []
    for root in range(150):
        time.write(pace, "ann", 0.03, root)
        found.append(pace.rest_of("ann", root + 1))
    assert found[:3] == pytest.approx([0, 0, 3 * rest - 2])
    assert found[3:] == pytest.approx([rest] * 147)  # two seconds were lenient, once


def test_a_principal_rests_with_some_account_if_and_only_if_one_must_rest() -> None:
    time = _Time()
    pace = time.pace()
    found = []
    for root in (1, 2, None, 3, 3):
        time.write(pace, "ann", 0.03, root)
        found.append((pace.may_rest("ann"), any(pace.rest_of("ann", other) for other in (1, 2, 3, None))))
    assert found == [(False, False), (False, False), (True, True), (True, True), (True, True)]
    assert not pace.may_rest("bob")


def test_principals_that_wrote_long_ago_are_forgotten() -> None:
    time = _Time()
    pace = time.pace()
    for number in range(1001):
        time.write(pace, f"principal {number}", 1)
    assert (pace.rest_of("principal 0", 1), pace.rest_of("principal 1", 1)) == (0, 98)


def test_a_collection_of_garbage_is_no_work_of_the_transaction_in_which_it_is_due() -> None:
    walked: list[list[object]] = [[] for _ in range(100_000)]
    began, before = processor.thread_time(), processor_seconds()
    for _ in range(10):
        gc.collect()
    whole, own = processor.thread_time() - began, processor_seconds() - before
    assert walked
    assert 0 <= own < whole / 5
