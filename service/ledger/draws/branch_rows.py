"""The branches of choices as stored: for each partition and turn, the first draw fixes the branch."""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, insert, select

from service.errors import AlreadyDrawn
from service.ledger.draws import tabulated_groups
from service.ledger.draws.choice_branches import WHOLE, ChoicePoint, LaterDraw
from service.ledger.storage.tables import BranchTaken, Draw, Tabulation
from service.ledger.storage.transaction import batch

_OTHER_TAKEN = "another branch of a choice above this mechanism has been drawn from"


def refuse_other_branch(
    connection: Connection,
    release_id: str,
    points: Sequence[ChoicePoint],
    partition: str,
    since: Sequence[LaterDraw] | None,
    *,
    is_tabulation: bool,
) -> None:
    """Refuse a draw under choices if another branch was taken, or if a tabulation drew all branches.

    Args:
        is_tabulation: whether the draw is a tabulation, whose groups ``refuse_drawn_groups`` compares with those of
            others.
        since: the draws of the account since the last time that this was asked, so that only these are searched for
            tabulations of the whole level; None: it was not asked before.

    Raises:
        AlreadyDrawn: one of these was drawn; the error names the draw.
    """
    own = {} if partition == WHOLE else _taken(connection, release_id, points, (partition, WHOLE))
    for point in points:
        tabulated = None if is_tabulation else _tabulation(connection, release_id, point, partition, since)
        if tabulated is not None:
            raise AlreadyDrawn(tabulated, "this partition has been tabulated")
        if partition == WHOLE:
            taken = _other_branch(connection, release_id, point)
        else:
            taken = next((draw for branch, draw in own.get(_place(point), ()) if branch != point.branch), None)
        if taken is not None:
            raise AlreadyDrawn(taken, _OTHER_TAKEN)


def _tabulation(
    connection: Connection, release_id: str, point: ChoicePoint, partition: str, since: Sequence[LaterDraw] | None
) -> str | None:
    """Return a tabulation that drew a partition at a choice; of the whole input, any tabulation of the choice.

    Of the whole input it is found by its draw, and not by its groups, which may be millions.
    """
    if point.tabulated is None:
        return None
    if since is None and partition == WHOLE:
        given = {"release": release_id, "mechanism": point.tabulated}
        return connection.execute(_ANY_TABULATED, given).scalar_one_or_none()
    of_level = release_id, point.tabulated
    if since is None:
        tabulated = tabulated_groups.tabulation_with(connection, *of_level, [partition], since)
        of_partition = {"release": release_id, "node": point.pointer, "partitions": (partition, WHOLE)}
        return tabulated or connection.execute(_TABULATED, of_partition).scalar_one_or_none()
    if partition == WHOLE:
        later = (one.id for one in since if one.is_tabulation and (one.release_id, one.mechanism) == of_level)
        return next(later, None)
    return tabulated_groups.tabulation_with(connection, *of_level, [partition], since)


def _place(point: ChoicePoint) -> tuple[str, int]:
    return point.pointer, point.turn


def _taken(
    connection: Connection, release_id: str, points: Sequence[ChoicePoint], partitions: Sequence[str]
) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Return the branches that some partitions took of choices, each with its draw.

    One statement reads them for all choices: between statements a writer waits for the interpreter, and others for it.

    Returns:
        By the place and the turn of each choice, also of choices in each other's turns; none for a choice of which no
        branch was taken.
    """
    found = defaultdict[tuple[str, int], list[tuple[int, str]]](list)
    if points:
        nodes, turns = [point.pointer for point in points], list({point.turn for point in points})
        given = {"release": release_id, "partitions": partitions, "nodes": nodes, "turns": turns}
        for row in connection.execute(_TAKEN_AT, given):
            found[row.node, row.turn].append((row.branch, row.draw_id))
    return found


def _other_branch(connection: Connection, release_id: str, point: ChoicePoint) -> str | None:
    """Return a draw of another branch for any partition."""
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
_TAKEN_AT = select(BranchTaken.node, BranchTaken.turn, BranchTaken.branch, BranchTaken.draw_id).where(
    BranchTaken.release_id == bindparam("release"),
    _OF_PARTITION,
    BranchTaken.node.in_(bindparam("nodes", expanding=True)),  # of pairs SQLite would use no index
    BranchTaken.turn.in_(bindparam("turns", expanding=True)),
)
_OF_CHOICE = _TAKEN.where(BranchTaken.release_id + BranchTaken.node == bindparam("choice")).order_by(BranchTaken.branch)
_TAKE = insert(BranchTaken)
_LOWER_BRANCH = _OF_CHOICE.where(BranchTaken.branch < bindparam("branch"))
_HIGHER_BRANCH = _OF_CHOICE.where(BranchTaken.branch > bindparam("branch"))


def take_branches(
    connection: Connection, release_id: str, points: Sequence[ChoicePoint], partition: str, draw_id: str
) -> None:
    """Record the branches that a draw takes, unless an earlier draw of the same partition and turn recorded them.

    Raises:
        AlreadyDrawn: the recorded branch is another one, written since ``refuse_other_branch``.
    """
    taken = _taken(connection, release_id, points, (partition,))
    rows = []
    for point in points:
        for branch, drawn in taken.get(_place(point), ()):  # one at most
            if branch != point.branch:
                raise AlreadyDrawn(drawn, _OTHER_TAKEN)
        if _place(point) not in taken:
            at = {"release_id": release_id, "node": point.pointer, "partition": partition, "turn": point.turn}
            rows.append(at | {"branch": point.branch, "draw_id": draw_id})
    if rows:
        connection.execute(_TAKE, batch(rows))
