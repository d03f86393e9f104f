"""The numbers of partitions that a process keeps: exact up to an entry, and never more than the journal states."""

import pytest

from service.ledger.storage import drawn_partitions
from service.ledger.storage.drawn_partitions import DrawnFor, DrawnPartitions, OwnEntry, Place

_A = ("a", 0)


def _place(seq: int) -> Place:
    return Place(seq, f"hash {seq}")


def _own(seq: int) -> OwnEntry:
    return OwnEntry("people", _place(seq), _place(seq - 1))


def _counted(kept: DrawnPartitions) -> tuple[Place | None, int]:
    reached, numbers = kept.get("people", "r", [_A])
    return reached, numbers[_A]


def test_own_entries_are_counted_without_reading_them() -> None:
    kept = DrawnPartitions()
    assert _counted(kept) == (None, 0)
    kept.add("people", "r", None, _place(4), {_A: 2})
    kept.note([_own(5), _own(6)], [DrawnFor("people", "r", {_A: 3})])
    kept.note([_own(7)], [DrawnFor("people", "r", {_A: 4})])
    assert _counted(kept) == (_place(7), 4)
    kept.add("people", "r", _place(6), _place(9), {_A: 9})  # another thread was faster
    assert _counted(kept) == (_place(7), 4)


def test_entries_after_those_of_another_process_are_read() -> None:
    kept = DrawnPartitions()
    kept.add("people", "r", None, _place(4), {_A: 2})
    kept.note([_own(6)], [DrawnFor("people", "r", {_A: 4})])
    assert _counted(kept) == (_place(4), 2)
    kept.add("people", "r", _place(4), _place(6), {_A: 2})
    kept.note([_own(7)], [DrawnFor("people", "r", {_A: 5})])
    assert _counted(kept) == (_place(7), 5)


def test_commits_that_are_recorded_late_are_not_passed_over() -> None:
    kept = DrawnPartitions()
    kept.add("people", "r", None, _place(4), {_A: 2})
    kept.note([_own(6)], [DrawnFor("people", "r", {_A: 4})])
    kept.note([_own(5)], [DrawnFor("people", "r", {_A: 3})])
    assert _counted(kept) == (_place(4), 2), "entry 5 is read"
    kept.add("people", "r", _place(4), _place(5), {_A: 1})
    assert _counted(kept) == (_place(6), 4)


def test_a_draw_that_is_recorded_before_the_first_count_is_kept() -> None:
    kept = DrawnPartitions()
    kept.note([_own(5)], [DrawnFor("people", "r", {_A: 3})])
    kept.add("people", "r", None, _place(4), {_A: 2})
    assert _counted(kept) == (_place(5), 3)


def test_a_reader_of_an_earlier_moment_does_not_pass_over_forgotten_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: the numbers of a release are dropped for others while a request reads a moment before its draws."""
    kept = DrawnPartitions()
    kept.note([_own(4)], [])
    kept.note([_own(5)], [DrawnFor("people", "r", {_A: 1})])
    monkeypatch.setattr(drawn_partitions, "_MOST", 1)
    kept.add("people", "another", None, _place(5), {("b", 0): 1})
    kept.add("people", "r", None, _place(4), {})  # from a moment before the draw
    assert _counted(kept) == (_place(4), 0), "entry 5 is read"
    kept.add("people", "r", _place(4), _place(5), {_A: 1})
    kept.note([_own(6)], [DrawnFor("people", "r", {_A: 2})])
    assert _counted(kept) == (_place(6), 2)
