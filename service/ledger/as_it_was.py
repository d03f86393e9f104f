"""What a release was when its account's journal ended with some entry: for answers that are given again."""

import json
from collections import Counter
from dataclasses import dataclass

from sqlalchemy import Connection, select

from service.ledger import drawn, partitions, releases
from service.ledger.branches import WHOLE
from service.ledger.layouts import Layout
from service.ledger.metadata import Metadata
from service.ledger.partitions import DrawnFor
from service.ledger.tables import Release
from service.ledger.tabulations import tabulated
from service.privacy.levels import find_level
from service.privacy.notation import read_plan


@dataclass(frozen=True, slots=True)
class Past:
    """What answers do not repeat, as it can be long: what people said of a release, and what it was drawn for."""

    tags: list[str]
    metadata: Metadata
    drawn: list[DrawnFor]


def past_of(connection: Connection, account_id: int, release_id: str, seq: int) -> Past:
    """Read a release as it was when the entry ``seq`` was the last."""
    said = releases.metadata_of(connection, account_id, release_id, until=seq)
    tags = connection.execute(select(Release.tags).where(Release.id == release_id)).scalar_one()
    return Past(json.loads(tags), said, _drawn_for(connection, release_id, seq))


def _drawn_for(connection: Connection, release_id: str, seq: int) -> list[DrawnFor]:
    """The counters of partitions without what was drawn later.

    Raises:
        Altered: a counter or a draw is not as the service wrote it.
    """
    counters = partitions.counters_of(connection, release_id)
    later = _drawn_after(connection, release_id, seq) if counters else Counter[tuple[str, int]]()
    most: dict[str, DrawnFor] = {}
    for counter in counters:
        then = counter.drawn - later[counter.mechanism, counter.repetition]
        if then > 0 and (counter.mechanism not in most or then > most[counter.mechanism].drawn):
            most[counter.mechanism] = DrawnFor(counter.mechanism, counter.most, then)
    return list(most.values())


def _drawn_after(connection: Connection, release_id: str, seq: int) -> Counter[tuple[str, int]]:
    """For how many partitions each mechanism and repetition was drawn after an entry."""
    later = Counter[tuple[str, int]]()
    layouts: list[tuple[int, Layout]] = []
    for mechanism, turn, layout in drawn.turns_after(connection, release_id, seq):
        if layout is not None:
            layouts.append((turn.repetition, layout))
        elif turn.partition != WHOLE:
            later[mechanism, turn.repetition] += 1
    plan = read_plan(json.loads(drawn.plan_text(connection, release_id))) if layouts else None
    for repetition, layout in layouts:
        level = None if plan is None else find_level(plan, layout.level)
        for mechanism_of_level, groups in () if level is None else tabulated(level, layout):
            later[mechanism_of_level.name or "", repetition] += len(groups)
    return later
