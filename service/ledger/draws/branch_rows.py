"""The branches of choices as stored: for each partition and turn, the first draw fixes the branch."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, insert, select

from service.errors import AlreadyDrawn
from service.ledger.draws import tabulated_groups
from service.ledger.draws.choice_branches import WHOLE, ChoicePoint, LaterDraw
from service.ledger.storage.tables import BranchTaken, Draw, Tabulation

_OTHER_TAKEN = "another branch of a choice above this mechanism has been drawn from"


def refuse_other_branch(
    connection: Connection,
    release_id: str,
    points: Sequence[ChoicePoint],
    partition: str,
    since: Sequence[LaterDraw] | None = None,
    *,
    is_tabulation: bool = False,
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
    for point in points:
        tabulated = None if is_tabulation else _tabulation(connection, release_id, point, partition, since)
        if tabulated is not None:
            raise AlreadyDrawn(tabulated, "this partition has been tabulated")
        taken = _other_branch(connection, release_id, point, partition)
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
    """Record the branches that a draw takes, unless an earlier draw of the same partition and turn recorded them.

    Raises:
        AlreadyDrawn: the recorded branch is another one, written since ``refuse_other_branch``.
    """
    for point in points:
        at = {"release_id": release_id, "node": point.pointer, "partition": partition, "turn": point.turn}
        held = select(BranchTaken.branch, BranchTaken.draw_id).where(
            *(getattr(BranchTaken, column) == value for column, value in at.items())
        )
        found = connection.execute(held).one_or_none()
        if found is None:
            connection.execute(insert(BranchTaken).values(**at, branch=point.branch, draw_id=draw_id))
        elif found.branch != point.branch:
            raise AlreadyDrawn(found.draw_id, _OTHER_TAKEN)
