"""The partitions that releases were drawn for, so that a draw need not read the entries of earlier draws again."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_MOST = 200_000  # numbers of all releases together; the releases that were drawn last keep theirs

Turn = tuple[str, int]
"""A mechanism and a repetition."""


class Place(NamedTuple):
    """An entry of a journal, by its number and hash."""

    seq: int
    hash: str


class DrawnFor(NamedTuple):
    """The partitions that a release of an account was drawn for after a draw of this process."""

    account: str
    release_id: str
    numbers: Mapping[Turn, int]


class OwnEntry(NamedTuple):
    """An entry that this process committed, by the account's name."""

    account: str
    place: Place
    previous: Place


@dataclass(slots=True)
class _Release:
    """The partitions that a release was drawn for.

    Attributes:
        since: the number of the account's entry after which ``later`` has all draws of this process; earlier ones may
            have been forgotten.
        reached: the entry up to which all draws are in ``counted``; None: none are counted.
        later: the numbers after draws that this process committed.
    """

    since: int
    reached: Place | None = None
    counted: Counter[Turn] = field(default_factory=Counter)
    later: dict[Turn, int] = field(default_factory=dict)


class DrawnPartitions:
    """Partitions drawn, by release; any thread may use them."""

    def __init__(self) -> None:
        self._releases: OrderedDict[str, _Release] = OrderedDict()
        self._number = 0
        self._runs: dict[str, tuple[Place, Place]] = {}  # by account: all entries from one to the other are own ones
        self._changing = threading.Lock()

    def note(self, entries: Iterable[OwnEntry], drawn: Collection[DrawnFor]) -> None:
        """Record what this process committed, in the order of the entries."""
        with self._changing:
            for account, release_id, _ in drawn:
                self._of(account, release_id)  # before the account's run has the entries
            for account, place, previous in entries:
                first, last = self._runs.get(account, (previous, previous))
                if place.seq > last.seq:
                    self._runs[account] = (first if last == previous else previous), place
            for account, release_id, numbers in drawn:
                later = self._of(account, release_id).later
                self._number -= len(later)
                for turn, number in numbers.items():
                    later[turn] = max(number, later.get(turn, 0))
                self._number += len(later)
            self._shrink()

    def get(self, account: str, release_id: str, turns: Iterable[Turn]) -> tuple[Place | None, dict[Turn, int]]:
        """Return the numbers of some turns, and the entry of the account up to which all draws are counted in them."""
        with self._changing:
            release, run = self._of(account, release_id), self._runs.get(account)
            if run and release.reached and max(run[0].seq, release.since) <= release.reached.seq < run[1].seq:
                self._number -= len(release.counted) + len(release.later)
                for turn, number in release.later.items():  # all entries since are own ones
                    release.counted[turn] = max(number, release.counted[turn])
                release.later.clear()
                release.reached = run[1]
                self._number += len(release.counted)
            return release.reached, {turn: release.counted[turn] for turn in turns}

    def add(self, account: str, release_id: str, after: Place | None, to: Place, numbers: Mapping[Turn, int]) -> None:
        """Count the draws of the entries between two; leave them out where other ones were counted meanwhile."""
        with self._changing:
            release = self._of(account, release_id)
            if release.reached == after:
                self._number -= len(release.counted)
                release.counted.update(numbers)
                release.reached = to
                self._number += len(release.counted)
            self._shrink()

    def _of(self, account: str, release_id: str) -> _Release:
        release = self._releases.get(release_id)
        if release is None:
            run = self._runs.get(account)
            release = self._releases[release_id] = _Release(run[1].seq if run else 0)
        self._releases.move_to_end(release_id)
        return release

    def _shrink(self) -> None:
        while self._number + len(self._releases) > _MOST and len(self._releases) > 1:
            _, dropped = self._releases.popitem(last=False)
            self._number -= len(dropped.counted) + len(dropped.later)
