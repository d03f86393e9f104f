"""Which branch of a choice was drawn from, for each partition and turn: the first draw fixes it.

A tabulation takes, for each of its groups, all that is below a level's choice: it draws both steps at once.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, TextClause, insert, select, text

from service.errors import AlreadyDrawn
from service.ledger.tables import BranchTaken, Tabulation
from service.privacy.mechanisms import Mechanism
from service.privacy.plan import Choice, Plan, Repeat, parts_of, pointer_to

WHOLE = ""
"""The partition of a draw of the whole input."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A ``choice`` above a mechanism: where it is, which branch leads to the mechanism, and which turn it is."""

    pointer: str
    branch: int
    turn: int


def way_to(plan: Plan, mechanism: Mechanism) -> list[tuple[Plan, int]]:
    """The nodes from the root down to a mechanism, each with the number of the child that is taken."""
    for number, part in enumerate(parts_of(plan)):
        if part is mechanism or part == mechanism:
            return [(plan, number)]
        below = way_to(part, mechanism)
        if below:
            return [(plan, number), *below]
    return []


def forks_above(plan: Plan, mechanism: Mechanism, repetition: int) -> list[Fork]:
    """The choices above a mechanism; the turn of each is the repetition without the repeats below it."""
    way, forks, pointer = way_to(plan, mechanism), [], ""
    for depth, (node, number) in enumerate(way):
        if isinstance(node, Choice):
            below = math.prod(inner.count for inner, _ in way[depth:] if isinstance(inner, Repeat))
            forks.append(Fork(pointer, number, repetition // below))
        pointer += pointer_to(node, number)
    return forks


@dataclass(frozen=True, slots=True)
class ChoiceBound:
    """A declared number of partitions that the branches of a ``choice`` share, in one turn of it.

    Attributes:
        pointer: where the choice is in the plan.
        turn: which turn of it.
        most: the number.
        mechanisms: those that declare it, by name, with the number of the branch and the repetitions in the turn.
    """

    pointer: str
    turn: int
    most: int
    mechanisms: Mapping[str, tuple[int, range]]


def bounds_above(plan: Plan, mechanism: Mechanism, repetition: int) -> list[ChoiceBound]:
    """Bound the choices above a mechanism by the number of partitions that it declares; none where it declares none.

    Each partition takes one branch of a choice, which is charged for one. Were each mechanism bounded by itself, a
    caller could invent as many partitions for every branch. A list of names needs no such bound.
    """
    declared, bounds = mechanism.partitions, list[ChoiceBound]()
    if declared is None or declared.names is not None:
        return bounds
    way, pointer = way_to(plan, mechanism), ""
    for depth, (node, child) in enumerate(way):
        if isinstance(node, Choice):
            turn = repetition // math.prod(inner.count for inner, _ in way[depth:] if isinstance(inner, Repeat))
            mechanisms = {
                below.name or "": (number, repetitions)
                for number, part in enumerate(node.parts)
                for below, repetitions in _turns(part, turn)
                if below.partitions == declared
            }
            bounds.append(ChoiceBound(pointer, turn, declared.most, mechanisms))
        pointer += pointer_to(node, child)
    return bounds


def _turns(plan: Plan, turn: int, times: int = 1) -> Iterator[tuple[Mechanism, range]]:
    """The mechanisms of a plan that runs in one turn, with their repetitions in that turn."""
    if isinstance(plan, Mechanism):
        yield plan, range(turn * times, (turn + 1) * times)
    for part in parts_of(plan):
        yield from _turns(part, turn, times * plan.count if isinstance(plan, Repeat) else times)


def refuse_other_branch(connection: Connection, release_id: str, forks: Sequence[Fork], partition: str) -> None:
    """Refuse a draw under choices of which another branch was taken, or all of whose branches a tabulation drew.

    Raises:
        AlreadyDrawn: it names the draw.
    """
    for fork in forks:
        query = select(BranchTaken.draw_id).where(
            BranchTaken.release_id == release_id,
            BranchTaken.node == fork.pointer,
            BranchTaken.turn == fork.turn,
            BranchTaken.branch != fork.branch,
        )
        if partition != WHOLE:
            query = query.where(BranchTaken.partition.in_((partition, WHOLE)))
        taken = connection.execute(query.limit(1)).scalar_one_or_none()
        if taken is not None:
            raise AlreadyDrawn(taken, "another branch of a choice above this mechanism has been drawn from")
        _refuse_tabulated(connection, release_id, fork, partition)


def _refuse_tabulated(connection: Connection, release_id: str, fork: Fork, partition: str) -> None:
    query = (
        select(Tabulation.draw_id)
        .join(BranchTaken, BranchTaken.draw_id == Tabulation.draw_id)
        .where(BranchTaken.release_id == release_id, BranchTaken.node == fork.pointer)
    )
    if partition != WHOLE:
        query = query.where(BranchTaken.partition.in_((partition, WHOLE)))
    tabulated = connection.execute(query.limit(1)).scalar_one_or_none()
    if tabulated is not None:
        raise AlreadyDrawn(tabulated, "this partition has been tabulated")


def take_branches(connection: Connection, release_id: str, forks: Sequence[Fork], partition: str, draw_id: str) -> None:
    """Write down which branches a draw took, where no earlier one of the same partition and turn did."""
    for fork in forks:
        at = {"release_id": release_id, "node": fork.pointer, "partition": partition, "turn": fork.turn}
        held = select(BranchTaken.branch).where(
            *(getattr(BranchTaken, column) == value for column, value in at.items())
        )
        if connection.execute(held).first() is None:
            connection.execute(insert(BranchTaken).values(**at, branch=fork.branch, draw_id=draw_id))


def refuse_drawn_groups(connection: Connection, release_id: str, node: str, groups: Sequence[str]) -> None:
    """Refuse a tabulation of groups of which one was drawn; a draw of the whole input drew all of them.

    Raises:
        AlreadyDrawn: it names the draw.
    """
    given = {"release": release_id, "node": node, "groups": json.dumps([*groups, WHOLE])}
    drawn = connection.execute(_given(connection, _DRAWN), given).scalar_one_or_none()
    if drawn is not None:
        raise AlreadyDrawn(drawn, "one of these groups has been drawn at this level")


def take_groups(
    connection: Connection, release_id: str, node: str, branch: int, groups: Sequence[str], draw_id: str
) -> None:
    """Write down that groups were drawn, in one statement: the primary key lets each in once, ever."""
    given = {"release": release_id, "node": node, "branch": branch, "draw": draw_id, "groups": json.dumps(groups)}
    connection.execute(_given(connection, _TAKE), given)


# A hundred thousand names are one parameter, a JSON array: neither a statement for each nor as many parameters.
_EACH = {
    "sqlite": "json_each(:groups) AS given",
    "postgresql": "json_array_elements_text(CAST(:groups AS json)) AS given(value)",
}
_DRAWN = (  # CROSS JOIN: on SQLite a promise that the names come first, each looked up by the primary key
    "SELECT taken.draw_id FROM {each} CROSS JOIN branches_taken AS taken"
    " WHERE taken.release_id = :release AND taken.node = :node AND taken.partition = given.value LIMIT 1"
)
_TAKE = (
    "INSERT INTO branches_taken (release_id, node, partition, turn, branch, draw_id)"
    " SELECT :release, :node, given.value, 0, CAST(:branch AS bigint), :draw FROM {each}"
)


def _given(connection: Connection, statement: str) -> TextClause:
    return text(statement.format(each=_EACH[connection.dialect.name]))
