"""The branches of choices: for each partition and turn, the first draw fixes the branch.

For each of its groups, a tabulation takes all branches of a level's choice, because it draws both steps at once.
"""

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from sqlalchemy import Connection, TextClause, bindparam, insert, select, text

from service.errors import AlreadyDrawn
from service.ledger.storage.tables import BranchTaken, Draw, Tabulation
from service.privacy.mechanisms import Mechanism
from service.privacy.partitions import Partitions
from service.privacy.planning.levels import levels_of
from service.privacy.plans import Node, Plan
from service.privacy.plans.walking import mechanisms_of, runs_of

WHOLE = ""
"""The partition of a draw of the whole input."""


@dataclass(frozen=True, slots=True)
class ChoicePoint:
    """A ``choice`` above a mechanism: its place, the branch that leads to the mechanism, and its turn.

    Attributes:
        tabulated: the mechanism as whose draws its tabulations are stored; None if it is no level.
    """

    pointer: str
    branch: int
    turn: int
    tabulated: str | None = None


class LaterDraw(NamedTuple):
    """A draw that was made since the ledger was read for another one.

    Attributes:
        taken: the number of partitions that it took of each mechanism.
    """

    id: str
    release_id: str
    mechanism: str
    partition: str
    repetition: int
    is_tabulation: bool
    taken: Sequence[tuple[str, int]]


def path_to(plan: Plan, mechanism: Mechanism) -> list[tuple[Node, int]]:
    """Return the nodes from the root down to a mechanism, each with the index of the child on the way."""
    if isinstance(plan, Mechanism):
        return []
    for number, part in enumerate(plan.children):
        if part is mechanism or part == mechanism:
            return [(plan, number)]
        below = path_to(part, mechanism)
        if below:
            return [(plan, number), *below]
    return []


def choice_points_above(plan: Plan, mechanism: Mechanism, repetition: int) -> list[ChoicePoint]:
    """Return the choices above a mechanism; the turn of each is the repetition without the repeats below it."""
    way, points, pointer = path_to(plan, mechanism), list[ChoicePoint](), ""
    for depth, (node, number) in enumerate(way):
        if node.CHOOSES:
            below = math.prod(inner.times for inner, _ in way[depth:])
            level = None if points else next(levels_of(node), None)  # there is none below another choice
            tabulated = None if level is None else level.step_2.name
            points.append(ChoicePoint(pointer, number, repetition // below, tabulated))
        pointer += node.pointer_to(number)
    return points


@dataclass(frozen=True, slots=True)
class DeclaringMechanisms:
    """The mechanisms below a choice that declare one number of partitions, for look-ups by name.

    All choices below that one share it. Lists of texts and numbers take only milliseconds to send between processes.

    Attributes:
        names: sorted.
        numbers: for each name, the number of these mechanisms before it in the plan.
        times: for each name, the number of its runs in a turn of the choice.
    """

    names: list[str]
    numbers: list[int]
    times: list[int]

    def find(self, name: str) -> tuple[int, int] | None:
        """Return the number of a mechanism and the number of its runs; None for any other mechanism."""
        place = bisect_left(self.names, name)
        if place == len(self.names) or self.names[place] != name:
            return None
        return self.numbers[place], self.times[place]


@dataclass(frozen=True, slots=True)
class ChoiceBound:
    """A declared number of partitions that the branches of a ``choice`` share, in one turn of it.

    Attributes:
        pointer: the place of the choice in the plan.
        turn: the turn of the choice.
        most: the declared number.
        declaring: the mechanisms that declare it below this choice, or below the topmost one above it.
        turns: the number of turns of this choice in one turn of the topmost one.
        starts: for each branch the number of its first declaring mechanism, and at the end the number after the last
            one.
    """

    pointer: str
    turn: int
    most: int
    declaring: DeclaringMechanisms
    turns: int
    starts: list[int]

    def find(self, mechanism: str) -> tuple[int, range] | None:
        """Return the branch to a mechanism and its repetitions in the turn; None if it is not bounded here."""
        found = self.declaring.find(mechanism)
        if found is None or not self.starts[0] <= found[0] < self.starts[-1]:
            return None
        number, times = found[0], found[1] // self.turns
        return bisect_right(self.starts, number) - 1, range(self.turn * times, (self.turn + 1) * times)


def bounds_above(plan: Plan, mechanism: Mechanism, repetition: int) -> list[ChoiceBound]:
    """Return the bounds of the choices above a mechanism, by its declared number of partitions; none without one.

    Each partition takes one branch of a choice, and the choice is charged for one branch. If each mechanism were
    bounded by itself, a caller could invent as many partitions for every branch. A list of names needs no such bound.
    """
    declared, bounds = mechanism.partitions, list[ChoiceBound]()
    if declared is None or declared.names is not None:
        return bounds
    way, pointer, first, turns = path_to(plan, mechanism), "", 0, 1
    declaring: DeclaringMechanisms | None = None
    sizes = _sizes(way, declared) if any(node.CHOOSES for node, _ in way) else []
    for depth, (node, child) in enumerate(way):
        if declaring is None and node.CHOOSES:
            declaring = _declaring(node, declared)
        if declaring is not None:
            starts = list(accumulate(sizes[depth], initial=first))
            if node.CHOOSES:
                turn = repetition // math.prod(inner.times for inner, _ in way[depth:])
                bounds.append(ChoiceBound(pointer, turn, declared.most, declaring, turns, starts))
            first, turns = starts[child], turns * node.times
        pointer += node.pointer_to(child)
    return bounds


def _sizes(way: Sequence[tuple[Node, int]], declared: Partitions) -> list[list[int]]:
    """Return, for each node on the way to a mechanism, how many mechanisms below each child declare its number."""
    sizes, size = list[list[int]](), 1
    for node, child in reversed(way):
        parts = enumerate(node.children)
        sizes.append([size if number == child else _number(part, declared) for number, part in parts])
        size = sum(sizes[-1])
    return sizes[::-1]


def _number(plan: Plan, declared: Partitions) -> int:
    return sum(below.partitions == declared for below in mechanisms_of(plan))


def _declaring(choice: Node, declared: Partitions) -> DeclaringMechanisms:
    found = ((below.name or "", times) for below, times in runs_of(choice) if below.partitions == declared)
    rows = sorted((name, number, times) for number, (name, times) in enumerate(found))
    return DeclaringMechanisms(
        [name for name, _, _ in rows], [number for _, number, _ in rows], [times for *_, times in rows]
    )


def refuse_other_branch(
    connection: Connection,
    release_id: str,
    points: Sequence[ChoicePoint],
    partition: str,
    since: Sequence[LaterDraw] | None = None,
) -> None:
    """Refuse a draw under choices if another branch was taken, or if a tabulation drew all branches.

    Args:
        since: the draws of the account since the last time that this was asked, so that only these are searched for
            tabulations of the whole level; None: it was not asked before.

    Raises:
        AlreadyDrawn: one of these was drawn; the error names the draw.
    """
    for point in points:
        tabulated = _tabulation(connection, release_id, point, partition, since)
        if tabulated is not None:
            raise AlreadyDrawn(tabulated, "this partition has been tabulated")
        taken = _other_branch(connection, release_id, point, partition)
        if taken is not None:
            raise AlreadyDrawn(taken, "another branch of a choice above this mechanism has been drawn from")


def _tabulation(
    connection: Connection, release_id: str, point: ChoicePoint, partition: str, since: Sequence[LaterDraw] | None
) -> str | None:
    """Return a tabulation that drew a partition at a choice; of the whole input, any tabulation of the choice.

    A tabulation is found by its draw, and not by its groups, which may be millions.
    """
    if point.tabulated is None:
        return None
    if partition != WHOLE:
        given = {"release": release_id, "node": point.pointer, "partitions": (partition, WHOLE)}
        return connection.execute(_TABULATED, given).scalar_one_or_none()
    if since is None:
        given = {"release": release_id, "mechanism": point.tabulated}
        return connection.execute(_ANY_TABULATED, given).scalar_one_or_none()
    of = release_id, point.tabulated
    return next((one.id for one in since if one.is_tabulation and (one.release_id, one.mechanism) == of), None)


def _other_branch(connection: Connection, release_id: str, point: ChoicePoint, partition: str) -> str | None:
    """Return a draw of another branch for a partition; of the whole input, for any partition."""
    given = {"release": release_id, "node": point.pointer, "turn": point.turn, "branch": point.branch}
    if partition != WHOLE:
        of = given | {"partitions": (partition, WHOLE)}
        return connection.execute(_OTHER_BRANCH, of).scalar_one_or_none()
    level = {"choice": release_id + point.pointer, "turn": point.turn, "branch": point.branch}
    found = (connection.execute(query, level).scalar_one_or_none() for query in (_LOWER_BRANCH, _HIGHER_BRANCH))
    return next(filter(None, found), None)


# Statements are built once, because building one costs more than running it.
_AT = (
    BranchTaken.release_id == bindparam("release"),
    BranchTaken.node == bindparam("node"),
)
_OF_PARTITION = BranchTaken.partition.in_(bindparam("partitions", expanding=True))
_TABULATED = (  # the rows of groups are of turn 0
    select(Tabulation.draw_id)
    .join(BranchTaken, BranchTaken.draw_id == Tabulation.draw_id)
    .where(*_AT, _OF_PARTITION, BranchTaken.turn == 0)
    .limit(1)
)
_ANY_TABULATED = (
    select(Draw.id)
    .join(Tabulation, Tabulation.draw_id == Draw.id)
    .where(Draw.release_id == bindparam("release"), Draw.mechanism == bindparam("mechanism"))
    .limit(1)
)
_TAKEN = select(BranchTaken.draw_id).where(BranchTaken.turn == bindparam("turn")).limit(1)
_OTHER_BRANCH = _TAKEN.where(*_AT, _OF_PARTITION, BranchTaken.branch != bindparam("branch"))
_OF_CHOICE = _TAKEN.where(BranchTaken.release_id + BranchTaken.node == bindparam("choice")).order_by(BranchTaken.branch)
_LOWER_BRANCH = _OF_CHOICE.where(BranchTaken.branch < bindparam("branch"))
_HIGHER_BRANCH = _OF_CHOICE.where(BranchTaken.branch > bindparam("branch"))


def take_branches(
    connection: Connection, release_id: str, points: Sequence[ChoicePoint], partition: str, draw_id: str
) -> None:
    """Record the branches that a draw takes, unless an earlier draw of the same partition and turn recorded them."""
    for point in points:
        at = {"release_id": release_id, "node": point.pointer, "partition": partition, "turn": point.turn}
        held = select(BranchTaken.branch).where(
            *(getattr(BranchTaken, column) == value for column, value in at.items())
        )
        if connection.execute(held).first() is None:
            connection.execute(insert(BranchTaken).values(**at, branch=point.branch, draw_id=draw_id))


def refuse_drawn_groups(connection: Connection, release_id: str, node: str, groups: Sequence[str]) -> None:
    """Refuse a tabulation if one of these groups was drawn, or all groups by a draw of the whole input.

    Raises:
        AlreadyDrawn: one was; the error names the draw.
    """
    given = {"release": release_id, "node": node, "groups": json.dumps([*groups, WHOLE])}
    drawn = connection.execute(_given(connection, _DRAWN), given).scalar_one_or_none()
    if drawn is not None:
        raise AlreadyDrawn(drawn, "one of these groups has been drawn at this level")


def take_groups(
    connection: Connection, release_id: str, node: str, branch: int, groups: Sequence[str], draw_id: str
) -> None:
    """Record that groups were drawn, in one statement: the primary key admits each group only once."""
    given = {"release": release_id, "node": node, "branch": branch, "draw": draw_id, "groups": json.dumps(groups)}
    connection.execute(_given(connection, _TAKE), given)


# Tens of thousands of names are one parameter, a JSON array. One statement or one parameter for each would be too many.
_EACH = {
    "sqlite": "json_each(:groups) AS given",
    "postgresql": "json_array_elements_text(CAST(:groups AS json)) AS given(value)",
}
# A subquery for each name, which neither database turns into a join. PostgreSQL's statistics do not know rows of a
# moment ago, and in a join it would compare each name with all groups of the level.
_DRAWN = (
    "SELECT found.draw_id FROM (SELECT (SELECT taken.draw_id FROM branches_taken AS taken WHERE taken.release_id ="
    " :release AND taken.node = :node AND taken.partition = given.value LIMIT 1) AS draw_id FROM {each}) AS found"
    " WHERE found.draw_id IS NOT NULL LIMIT 1"
)
# In the order of the primary key: each of its pages is then read and written once.
_TAKE = (
    "INSERT INTO branches_taken (release_id, node, partition, turn, branch, draw_id)"
    " SELECT :release, :node, given.value, 0, CAST(:branch AS bigint), :draw FROM {each} ORDER BY given.value"
)


def _given(connection: Connection, statement: str) -> TextClause:
    return text(statement.format(each=_EACH[connection.dialect.name]))
