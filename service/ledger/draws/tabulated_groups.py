"""The groups of tabulations: for each of them, all branches of its level's choice are taken.

A row for each group makes a look-up short, but tens of thousands of rows take seconds to write. So a tabulation commits
its layout, which names its groups, with a mark that they have no rows yet. The rows are written after that commit, in
short transactions between which others write, and the last one deletes the mark. Until then, look-ups read the layout.
"""

import json
from collections.abc import Iterator, Sequence

import structlog
from sqlalchemy import Connection, TextClause, delete, insert, select, text

from service.errors import AlreadyDrawn
from service.ledger.draws import stored_draws
from service.ledger.draws.choice_branches import WHOLE, LaterDraw
from service.ledger.draws.tabulation_layout import Layout, by_branch
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Draw, Release, UnrecordedGroups
from service.privacy.planning.levels import Level, find_level
from service.privacy.plans.notation import read_plan

_AT_ONCE = 500  # rows of one transaction: about 10 ms

_log = structlog.get_logger("service.tabulations")


def refuse_drawn_groups(
    connection: Connection, release_id: str, level: Level, groups: Sequence[str], since: Sequence[LaterDraw] | None
) -> None:
    """Refuse a tabulation if one of these groups was drawn, or all groups by a draw of the whole input.

    Args:
        since: the draws of the account since the last time that this was asked; None: it was not asked before.

    Raises:
        AlreadyDrawn: one was; the error names the draw.
    """
    if since is None:
        tabulations, at_risk = unrecorded(connection, release_id, level.pointer), groups
    else:
        later = [one for one in since if one.release_id == release_id]
        tabulations = [one.id for one in later if one.is_tabulation and one.mechanism == level.step_2.name]
        partitions = {one.partition for one in later}
        at_risk = [group for group in groups if group in partitions] if partitions else ()
    given = {"release": release_id, "node": level.pointer, "groups": json.dumps([*at_risk, WHOLE])}
    drawn = connection.execute(_given(connection, _DRAWN), given).scalar_one_or_none()
    drawn = drawn or tabulation_with(connection, tabulations, groups)
    if drawn is not None:
        raise AlreadyDrawn(drawn, "one of these groups has been drawn at this level")


def tabulation_with(connection: Connection, draw_ids: Sequence[str], groups: Sequence[str]) -> str | None:
    """Return the first of these tabulations that has one of the groups, by its layout; None if none has."""
    if not draw_ids:
        return None
    wanted = set(groups)
    layouts = stored_draws.read_layouts(connection, draw_ids)
    return next((draw_id for draw_id, layout in layouts if not wanted.isdisjoint(layout.groups)), None)


def unrecorded(connection: Connection, release_id: str, node: str) -> Sequence[str]:
    """Return the tabulations of a level, by their draws, whose groups have no rows yet, or not all."""
    at = UnrecordedGroups.release_id == release_id, UnrecordedGroups.node == node
    return connection.execute(select(UnrecordedGroups.draw_id).where(*at)).scalars().all()


def mark_unrecorded(connection: Connection, release_id: str, level: Level, draw_id: str) -> None:
    """Mark a tabulation: its groups have no rows yet."""
    connection.execute(insert(UnrecordedGroups).values(release_id=release_id, node=level.pointer, draw_id=draw_id))


def record_later(database: Database, release_id: str, level: Level, layout: Layout, draw_id: str) -> None:
    """Write the rows of a tabulation's groups in many transactions, and delete its mark in the last one.

    A failure is logged and changes nothing for the caller: the tabulation is committed, and ``record_left`` writes the
    rows another time.
    """
    try:
        _record(database, release_id, level, layout, draw_id)
    except Exception as error:  # noqa: BLE001 - whatever it is, the answer of a committed draw must not be lost
        _log.warning("groups not recorded yet", draw=draw_id, error=type(error).__name__)


def record_left(database: Database, before: str) -> int:
    """Write the rows of groups that were left without them, of tabulations drawn before a moment.

    Returns:
        The number of tabulations.
    """
    query = (
        select(UnrecordedGroups.release_id, UnrecordedGroups.draw_id, Release.plan)
        .join(Draw, Draw.id == UnrecordedGroups.draw_id)
        .join(Release, Release.id == UnrecordedGroups.release_id)
        .where(Draw.created_at < before)
    )
    with database.read() as connection:
        left = connection.execute(query).all()
    for release_id, draw_id, plan in left:
        with database.read() as connection:
            ((_, layout),) = stored_draws.read_layouts(connection, [draw_id])
        level = find_level(read_plan(json.loads(plan)), layout.level)
        if level is not None:
            _record(database, release_id, level, layout, draw_id)
    return len(left)


def _record(database: Database, release_id: str, level: Level, layout: Layout, draw_id: str) -> None:
    mark = delete(UnrecordedGroups).where(UnrecordedGroups.draw_id == draw_id)
    pieces = list(_pieces(level, layout))
    for number, (branch, groups) in enumerate(pieces, 1):

        def work(
            connection: Connection, number: int = number, branch: int = branch, groups: list[str] = groups
        ) -> None:
            _take(connection, release_id, level.pointer, branch, groups, draw_id)
            if number == len(pieces):
                connection.execute(mark)

        database.write(work, is_committed=lambda *_: False)


def record_at_once(connection: Connection, release_id: str, level: Level, layout: Layout, draw_id: str) -> None:
    """Write the rows of a tabulation's groups in this transaction."""
    for branch, groups in _pieces(level, layout):
        _take(connection, release_id, level.pointer, branch, groups, draw_id)


def _pieces(level: Level, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Yield the groups in the order of the primary key, so that each of its pages is read and written once or twice."""
    for branch, groups in zip(level.branches, by_branch(layout), strict=True):
        groups.sort()
        for start in range(0, len(groups), _AT_ONCE):
            yield branch, groups[start : start + _AT_ONCE]


def _take(connection: Connection, release_id: str, node: str, branch: int, groups: Sequence[str], draw_id: str) -> None:
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
# A group has its row already if an earlier attempt at these rows was cut short.
_TAKE = (
    "INSERT INTO branches_taken (release_id, node, partition, turn, branch, draw_id)"
    " SELECT :release, :node, given.value, 0, CAST(:branch AS bigint), :draw FROM {each} WHERE NOT EXISTS"
    " (SELECT 1 FROM branches_taken AS taken WHERE taken.release_id = :release AND taken.node = :node"
    " AND taken.partition = given.value AND taken.turn = 0) ORDER BY given.value"
)


def _given(connection: Connection, statement: str) -> TextClause:
    return text(statement.format(each=_EACH[connection.dialect.name]))
