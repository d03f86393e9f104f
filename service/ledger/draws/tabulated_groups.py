"""The groups of tabulations: for each of them, all branches of its level's choice are taken.

A row for each group makes a look-up short, but tens of thousands of rows take seconds to write. So a large tabulation
commits its layout, which names its groups, and the rows follow in short transactions, between which others write. After
the last row comes a mark, sealed with the secret. Look-ups read the layouts of large tabulations that have no mark. So
removing a mark does not allow a group to be drawn again.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

import structlog
from sqlalchemy import Connection, Row, TextClause, bindparam, literal, select, text

from service.errors import AlreadyDrawn, Altered, Unavailable
from service.ledger.draws import draw_rows, stored_draws
from service.ledger.draws.choice_branches import SMALL, WHOLE, LaterDraw
from service.ledger.draws.tabulation_layout import Layout, by_branch
from service.ledger.releases import release_rows
from service.ledger.spending import kept_figures
from service.ledger.spending.kept_figures import KeptFigures
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Draw, KnownCost, Tabulation
from service.ledger.storage.transaction import secret_of
from service.privacy.partitions import distinct
from service.privacy.planning.levels import Level, find_level
from service.privacy.plans.notation import read_plan

_RECORDED = "recorded "  # the beginning of a mark's subject in `known_costs`
_AT_ONCE = 2_000  # groups that are looked up by one statement, or sorted while no other thread runs

_log = structlog.get_logger("service.tabulations")


def refuse_drawn_groups(
    connection: Connection, release_id: str, level: Level, groups: Sequence[str], since: Sequence[LaterDraw] | None
) -> None:
    """Refuse a tabulation if one of these groups was drawn, or all groups by a draw of the whole input.

    Args:
        since: the draws of the account since the last time that this was asked; None: it was not asked before.

    Raises:
        AlreadyDrawn: a group was drawn; the error names the draw.
    """
    name = level.step_2.name or ""
    if since is None:
        at_risk: Sequence[str] = groups
    else:
        partitions = {one.partition for one in since if one.release_id == release_id}
        at_risk = [group for group in groups if group in partitions] if partitions else ()
    drawn = tabulation_with(connection, release_id, name, groups, since)
    if drawn is None:  # looked for second, as a tabulation that has a mark by the first look has all of its rows
        drawn = _drawn_among(connection, release_id, level.pointer, [*at_risk, WHOLE])
    if drawn is not None:
        raise AlreadyDrawn(drawn, "one of these groups has been drawn at this level")


def _drawn_among(connection: Connection, release_id: str, node: str, groups: Sequence[str]) -> str | None:
    for start in range(0, len(groups), _AT_ONCE):
        given = {"release": release_id, "node": node, "groups": _array(groups[start : start + _AT_ONCE])}
        drawn: str | None = connection.execute(_statement(connection, _DRAWN), given).scalar_one_or_none()
        if drawn is not None:
            return drawn
    return None


def tabulation_with(
    connection: Connection, release_id: str, mechanism: str, groups: Sequence[str], since: Sequence[LaterDraw] | None
) -> str | None:
    """Return a tabulation of a level whose layout has one of the groups, of those that may have no rows; or None.

    Args:
        mechanism: the level's second step, as whose draws its tabulations are stored.
        since: the draws of the account since the last time that this was asked; None: it was not asked before.

    Raises:
        Altered: a tabulation is not as the service wrote it.
    """
    if since is None:
        rows = connection.execute(_LARGE_OF_LEVEL, {"release": release_id, "mechanism": mechanism})
        small, large = [], [row.id for row in rows if not _is_marked(connection, row)]
    else:
        of_level = release_id, mechanism
        later = [one for one in since if one.is_tabulation and (one.release_id, one.mechanism) == of_level]
        small, large = [one.id for one in later if one.is_small], [one.id for one in later if not one.is_small]
    wanted = distinct(groups) if small or large else ()
    for draw_ids, at_once in ((small, True), (large, False)):
        for draw_id, layout in stored_draws.read_layouts(connection, draw_ids, at_once=at_once):
            if any(group in wanted for group in layout.groups):  # meanwhile other threads run
                return draw_id
    return None


def record(
    database: Database, release_id: str, level: Level, layout: Layout, draw_id: str, *, failing: bool = True
) -> None:
    """Write the rows of a tabulation's groups in many transactions, and mark it.

    Args:
        failing: whether a failure is raised; otherwise it is logged, as the tabulation is committed and its answer must
            not be lost. ``record_left`` writes the rows another time.
    """
    at: dict[str, Any] = {"release_id": release_id, "node": level.pointer, "draw_id": draw_id}
    try:
        for branch, groups in _pieces(level, layout):
            database.write(partial(_take, branch=branch, groups=groups, **at), is_committed=lambda *_: False)
        database.write(partial(_mark, draw_id=draw_id), is_committed=lambda *_: False)
    except Exception as error:
        if failing:
            raise
        _log.warning("groups not recorded yet", draw=draw_id, error=type(error).__name__)


def record_left(database: Database, before: str, stopping: threading.Event) -> int:
    """Write the rows of groups that were left without them, of tabulations drawn before a moment.

    Args:
        stopping: set when the server stops, which ends this after the present tabulation.

    Returns:
        The number of tabulations. One whose rows cannot be written is logged and delays no other.
    """
    with database.read() as connection:
        left = [row for row in connection.execute(_LARGE, {"before": before}) if not _is_marked(connection, row)]
    number = 0
    for row in left:
        if stopping.is_set():
            break
        try:
            _record_left(database, row.release_id, row.id)
        except Altered as error:
            _log.critical("groups not recorded", draw=row.id, detail=str(error))
        except Unavailable as error:
            _log.warning("groups not recorded yet", draw=row.id, error=type(error).__name__)
        else:
            number += 1
    return number


def _record_left(database: Database, release_id: str, draw_id: str) -> None:
    with database.read() as connection:
        ((_, layout),) = stored_draws.read_layouts(connection, [draw_id], at_once=True)
        plan = release_rows.sealed_plan(connection, release_id)
    level = find_level(read_plan(json.loads(plan)), layout.level)
    if level is None:
        raise draw_rows.altered(draw_id)
    record(database, release_id, level, layout, draw_id)


def record_at_once(
    connection: Connection, release_id: str, level: Level, layout: Layout, draw_id: str, size: int
) -> None:
    """Write the rows of a tabulation's groups in this transaction, and mark it if it is large.

    Args:
        size: the number of its noisy counts.
    """
    for branch, groups in _pieces(level, layout):
        _take(connection, release_id, level.pointer, branch, groups, draw_id)
    if size > SMALL:
        _mark(connection, draw_id)


def marked_of(connection: Connection, account_id: int) -> set[str]:
    """Return the draws of an account's tabulations that are marked, or so small that they need no mark.

    Returns:
        Ids of draws.
    """
    rows = connection.execute(_ALL_OF_ACCOUNT, {"account": account_id})
    return {row.id for row in rows if row.size <= SMALL or _is_marked(connection, row)}


def _mark(connection: Connection, draw_id: str) -> None:
    secret = secret_of(connection)
    kept_figures.write(connection, secret, [_mark_of(secret, draw_id)])


def _mark_of(secret: Secret, draw_id: str) -> KeptFigures:
    """Return the mark, which holds for a version of the ledger: rows of an earlier one may have been given up."""
    return KeptFigures(_RECORDED + draw_id, secret.version, "")


def _is_marked(connection: Connection, row: Row[*tuple[Any, ...]]) -> bool:
    secret = secret_of(connection)
    return row.seal is not None and kept_figures.is_kept(secret, _mark_of(secret, row.id), row.seal)


def _pieces(level: Level, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Yield the groups in the order of the primary key, so that each of its pages is read and written once or twice."""
    for branch, groups in zip(level.branches, by_branch(layout), strict=True):
        runs = (groups[start : start + _AT_ONCE] for start in range(0, len(groups), _AT_ONCE))
        in_order = merge(*map(sorted, runs))  # sorting all would keep other threads waiting
        while piece := list(islice(in_order, SMALL)):
            yield branch, piece


def _take(connection: Connection, release_id: str, node: str, branch: int, groups: Sequence[str], draw_id: str) -> None:
    """Write the rows of some groups, except those that an earlier attempt wrote.

    Raises:
        Altered: the row of a group is not that of this tabulation.
    """
    given = {"release": release_id, "node": node, "branch": branch, "draw": draw_id, "groups": _array(groups)}
    written = connection.execute(_statement(connection, _TAKE), given).rowcount
    if written != len(groups) and connection.execute(_statement(connection, _TAKEN), given).scalar_one() != len(groups):
        raise draw_rows.altered(draw_id)


# Many names are one parameter, a JSON array. One statement or one parameter for each would be too many.
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
_TAKEN = (
    "SELECT count(*) FROM (SELECT (SELECT taken.branch FROM branches_taken AS taken WHERE taken.release_id = :release"
    " AND taken.node = :node AND taken.partition = given.value AND taken.turn = 0 AND taken.draw_id = :draw) AS branch"
    " FROM {each}) AS found WHERE found.branch = CAST(:branch AS bigint)"
)
_MARKED = (
    select(Draw.id, Draw.release_id, Draw.size, KnownCost.seal)
    .join(Tabulation, Tabulation.draw_id == Draw.id)
    .outerjoin(KnownCost, KnownCost.subject == literal(_RECORDED) + Draw.id)
)
_LARGE_OF_LEVEL = _MARKED.where(
    Draw.release_id == bindparam("release"), Draw.mechanism == bindparam("mechanism"), Draw.size > SMALL
)
_LARGE = _MARKED.where(Draw.size > SMALL, Draw.created_at < bindparam("before"))
_ALL_OF_ACCOUNT = _MARKED.where(Draw.account_id == bindparam("account"))


def _array(groups: Sequence[str]) -> str:
    return json.dumps(groups, ensure_ascii=False)  # escapes would take up to three times the bytes


def _statement(connection: Connection, statement: str) -> TextClause:
    return text(statement.format(each=_EACH[connection.dialect.name]))
