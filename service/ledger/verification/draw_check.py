"""The check of draws against each other: the ledger would have admitted each one after those before it.

An attacker can remove the rows of draws and branches for a moment, and can make the database hide some or give false
answers. Entries stay, so the rules are applied again to the draws in the order of their entries, without the database.
"""

import hashlib
import json
from collections import defaultdict

import numpy as np
from sqlalchemy import Connection, text

from service.ledger.draws import tabulated_groups
from service.ledger.draws.choice_branches import WHOLE
from service.ledger.draws.places import choice_points_of
from service.ledger.draws.tabulation_layout import Layout, by_branch
from service.ledger.journal.entries import Drawn
from service.ledger.journal.ordered_rows import BadRow
from service.privacy.planning.levels import Level
from service.privacy.plans import Plan

_REMEMBERED = 4096  # mechanisms and repetitions that were drawn for a partition
_TAKEN = "the branches that were taken are not those of the draws"
_OTHER_BRANCH = "another branch of a choice above the draw had been drawn from"
_TABULATED = "the groups that are drawn had been drawn at this level"


class DrawOverlaps:
    """The draws of one account, in the order of their entries."""

    def __init__(self) -> None:
        self._drawn_once = _DrawnOnce()
        self._taken: dict[tuple[str, str, str, int], tuple[int, int, str]] = {}  # as branches_taken should be
        self._branches = defaultdict[tuple[str, str, int], set[int]](set)  # of a turn, for all partitions
        self._drawn: set[tuple[str, str, str]] = set()  # partitions at a choice, except the groups of tabulations
        self._tabulations: set[str] = set()
        self._tabulated: set[tuple[str, str]] = set()  # choices

    def take(self, seq: int, release: str, content: Drawn) -> None:
        """Take the next draw, of which nothing but its entry is known."""
        self._drawn_once.take(seq, release, content)

    def check_repeats(self) -> None:
        """Require that no draw repeats an earlier one.

        Raises:
            BadRow: a draw repeats an earlier one, for a partition or for the whole input beside a partition.
        """
        self._drawn_once.check()

    def take_branches(self, seq: int, release: str, content: Drawn, plan: Plan) -> None:
        """Check a draw, or the second step of a tabulation, at the choices above it in its release's plan.

        Raises:
            BadRow: another branch of one was drawn from, or a tabulation has drawn them all.
        """
        draw, partition = content.draw, content.partition
        for point in choice_points_of(plan, content.mechanism, content.repetition):
            choice, at = (release, point.pointer), (release, point.pointer, point.turn)
            if partition == WHOLE:
                others, tabulated = self._branches[at] - {point.branch}, choice in self._tabulated
            else:
                places = [self._taken.get((*choice, name, point.turn)) for name in (partition, WHOLE)]
                others = {place[1] for place in places if place is not None} - {point.branch}
                group = self._taken.get((*choice, partition, 0))
                tabulated = group is not None and group[2] in self._tabulations
            if others:
                raise BadRow(seq, _OTHER_BRANCH)
            if tabulated:
                raise BadRow(seq, _TABULATED)
            self._taken.setdefault((*choice, partition, point.turn), (seq, point.branch, draw))
            self._branches[at].add(point.branch)
            self._drawn.add((*choice, partition))

    def take_groups(self, seq: int, release: str, draw: str, level: Level, layout: Layout) -> None:
        """Check the groups of a tabulation, by the branch of the level's choice that each has.

        Args:
            draw: the id of the tabulation's draw.

        Raises:
            BadRow: one of them was drawn or tabulated, or the whole input was drawn.
        """
        node = level.pointer
        for branch, groups in zip(level.branches, by_branch(layout), strict=True):
            for group in groups:
                drawn = {(release, node, group), (release, node, WHOLE)} & self._drawn
                if drawn or (release, node, group, 0) in self._taken:
                    raise BadRow(seq, _TABULATED)
                self._taken[release, node, group, 0] = (seq, branch, draw)
                self._branches[release, node, 0].add(branch)
        self._tabulations.add(draw)
        self._tabulated.add((release, node))

    def check_rows(self, connection: Connection, account_id: int, last: int) -> None:
        """Compare all draws with the rows of the branches that they took.

        Args:
            last: the number of the account's last entry, for faults of no single entry.

        Raises:
            BadRow: the rows are not those of the draws.
        """
        strange = False
        marked = tabulated_groups.marked_of(connection, account_id)
        for row in connection.execute(_BRANCHES, {"account": account_id}):
            where = (row.release_id, row.node, row.partition, row.turn)
            if self._taken.get(where, (0, 0, ""))[1:] == (row.branch, row.draw_id):
                del self._taken[where]
            else:
                strange = True
        missing = [seq for seq, _, draw in self._taken.values() if draw not in self._tabulations or draw in marked]
        if missing or strange:
            raise BadRow(min(missing, default=last), _TAKEN)


class _DrawnOnce:
    """A record of 24 bytes for each draw, by which two of the same counts are found at the end.

    A draw for a partition has a second record, a mark in the place of the whole input, unless its mechanism and
    repetition got one not long ago. Two marks in one place are sound; any two other records in one place are not.
    """

    def __init__(self) -> None:
        self._records = bytearray()
        self._marked = set[bytes]()  # some of the places that have a mark

    def take(self, seq: int, release: str, content: Drawn) -> None:
        """Record a draw."""
        place = release, content.mechanism, content.repetition
        self._record(_digest(*place, content.partition), seq, mark=False)
        if content.partition == WHOLE:
            return
        whole = _digest(*place, WHOLE)
        if whole not in self._marked:
            if len(self._marked) >= _REMEMBERED:
                self._marked.clear()
            self._marked.add(whole)
            self._record(whole, seq, mark=True)

    def _record(self, digest: bytes, seq: int, *, mark: bool) -> None:
        self._records += digest + (2 * seq + mark).to_bytes(8, "little")

    def check(self) -> None:
        """Require that no two draws are of the same counts.

        Raises:
            BadRow: two are; it names the later one of the pair that was complete first.
        """
        records = np.frombuffer(self._records, _RECORD)
        in_order = records[np.lexsort((records["low"], records["high"]))]  # stable, so entries stay in order
        former, latter = in_order[:-1], in_order[1:]
        same = (former["high"] == latter["high"]) & (former["low"] == latter["low"])
        second = np.flatnonzero(same & ((former["seq"] & latter["seq"] & 1) == 0))
        if len(second):
            pair = second[np.argmin(latter["seq"][second])]
            seq, earlier = (int(one["seq"][pair]) // 2 for one in (latter, former))
            raise BadRow(seq, f"the draw repeats that of entry {earlier}, wholly or in part")


_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("seq", "<u8")])  # a digest; the entry twice, and one for a mark


def _digest(release: str, mechanism: str, repetition: int, partition: str) -> bytes:
    """Return 16 bytes, which no client can choose to be those of other values."""
    written = json.dumps((release, mechanism, repetition, partition)).encode()
    return hashlib.blake2b(written, digest_size=16).digest()


# From the few branches to their releases, whatever the planner assumes about the two tables' sizes.
_BRANCHES = text(
    "SELECT b.release_id, b.node, b.partition, b.turn, b.branch, b.draw_id FROM branches_taken b CROSS JOIN releases r"
    " WHERE r.id = b.release_id AND r.account_id = :account"
)
