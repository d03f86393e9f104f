"""The check of draws against each other: the ledger would not have refused a later one beside those before it.

An attacker can remove the rows of draws and branches for a moment, and can make an index hide some. Entries stay, so
the rules are applied again to the draws in the order of their entries.
"""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, text

from service.ledger.draws.choice_branches import WHOLE, ChoicePoint
from service.ledger.journal.ordered_rows import BadRow

_TAKEN = "the branches that were taken are not those of the draws"
_OTHER_BRANCH = "another branch of a choice above the draw had been drawn from"
_TABULATED = "the groups that are drawn had been drawn at this level"


class DrawOverlaps:
    """The draws of one account, in the order of their entries."""

    def __init__(self, connection: Connection, account_id: int) -> None:
        self._connection, self._account = connection, account_id
        self._taken: dict[tuple[str, str, str, int], tuple[int, int, str]] = {}  # as branches_taken should be
        self._branches = defaultdict[tuple[str, str, int], set[int]](set)  # of a turn, for all partitions
        self._drawn: set[tuple[str, str, str]] = set()  # partitions at a choice, except the groups of tabulations
        self._tabulations: set[str] = set()
        self._tabulated: set[tuple[str, str]] = set()  # choices

    def take(self, seq: int, draw: str, release: str, forks: Sequence[ChoicePoint], partition: str) -> None:
        """Check a draw below these choices, or the second step of a tabulation.

        Raises:
            BadRow: another branch of one was drawn from, or a tabulation has drawn them all.
        """
        for fork in forks:
            choice, at = (release, fork.pointer), (release, fork.pointer, fork.turn)
            if partition == WHOLE:
                others, tabulated = self._branches[at] - {fork.branch}, choice in self._tabulated
            else:
                places = [self._taken.get((*choice, name, fork.turn)) for name in (partition, WHOLE)]
                others = {place[1] for place in places if place is not None} - {fork.branch}
                group = self._taken.get((*choice, partition, 0))
                tabulated = group is not None and group[2] in self._tabulations
            if others:
                raise BadRow(seq, _OTHER_BRANCH)
            if tabulated:
                raise BadRow(seq, _TABULATED)
            self._taken.setdefault((*choice, partition, fork.turn), (seq, fork.branch, draw))
            self._branches[at].add(fork.branch)
            self._drawn.add((*choice, partition))

    def take_groups(
        self, seq: int, draw: str, release: str, node: str, branches: Sequence[tuple[int, Sequence[str]]]
    ) -> None:
        """Check the groups of a tabulation, by the branch of the level's choice that each has.

        Raises:
            BadRow: one of them was drawn or tabulated, or the whole input was drawn.
        """
        for branch, groups in branches:
            for group in groups:
                drawn = {(release, node, group), (release, node, WHOLE)} & self._drawn
                if drawn or (release, node, group, 0) in self._taken:
                    raise BadRow(seq, _TABULATED)
                self._taken[release, node, group, 0] = (seq, branch, draw)
                self._branches[release, node, 0].add(branch)
        self._tabulations.add(draw)
        self._tabulated.add((release, node))

    def check_end(self, last: int) -> None:
        """Compare all draws with each other, and with the rows of the branches that they took.

        Raises:
            BadRow: two are of the same counts, or the rows are not those of the draws.
        """
        second = self._connection.execute(_SECOND, {"account": self._account}).scalar_one()
        if second is not None:
            raise BadRow(second, "the mechanism, partition and repetition had been drawn, or the whole input had been")
        strange = False
        for row in self._connection.execute(_BRANCHES, {"account": self._account}):
            where = (row.release_id, row.node, row.partition, row.turn)
            if self._taken.get(where, (0, 0, ""))[1:] == (row.branch, row.draw_id):
                del self._taken[where]
            else:
                strange = True
        if self._taken or strange:
            raise BadRow(min((seq for seq, _, _ in self._taken.values()), default=last), _TAKEN)


# The first draw beside an earlier one of the same partition, or where either is of the whole input. The compared
# expressions have no index: the unique index may have been made to hide rows.
_SECOND = text(
    "SELECT min(seq) FROM (SELECT seq, row_number() OVER (PARTITION BY release_id, mechanism, repetition, name"
    " ORDER BY seq) AS nth, row_number() OVER earlier AS nth_of_all, min(name) OVER earlier AS least FROM ("
    "SELECT seq, release_id || '' AS release_id, mechanism || '' AS mechanism, repetition + 0 AS repetition,"
    " partition || '' AS name FROM draws WHERE account_id = :account) AS drawn WINDOW earlier AS (PARTITION BY"
    " release_id, mechanism, repetition ORDER BY seq ROWS UNBOUNDED PRECEDING)) AS numbered"
    " WHERE nth > 1 OR (nth_of_all > 1 AND least = '')"
)
# From the few branches to their releases, whatever the planner assumes about the two tables' sizes.
_BRANCHES = text(
    "SELECT b.release_id, b.node, b.partition, b.turn, b.branch, b.draw_id FROM branches_taken b CROSS JOIN releases r"
    " WHERE r.id = b.release_id AND r.account_id = :account"
)
