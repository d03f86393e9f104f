"""What a release was when its account's journal ended with some entry: for answers that are given again."""

import json
from collections import Counter
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from service.ledger import drawn, releases
from service.ledger.branches import WHOLE
from service.ledger.metadata import Metadata
from service.ledger.partitions import DrawnFor
from service.ledger.tables import Draw, PartitionsDrawn, Release, Tabulation
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
    """The counters of partitions without what was drawn later."""
    columns = (PartitionsDrawn.mechanism, PartitionsDrawn.repetition, PartitionsDrawn.most, PartitionsDrawn.drawn)
    query = select(*columns).where(PartitionsDrawn.release_id == release_id).order_by(PartitionsDrawn.mechanism)
    counters = connection.execute(query).all()
    later = _drawn_after(connection, release_id, seq) if counters else Counter[tuple[str, int]]()
    most: dict[str, DrawnFor] = {}
    for mechanism, repetition, declared, number in counters:
        then = number - later[mechanism, repetition]
        if then > 0 and (mechanism not in most or then > most[mechanism].drawn):
            most[mechanism] = DrawnFor(mechanism, declared, then)
    return list(most.values())


def _drawn_after(connection: Connection, release_id: str, seq: int) -> Counter[tuple[str, int]]:
    """For how many partitions each mechanism and repetition was drawn after an entry."""
    query = select(Draw.mechanism, Draw.repetition, func.count()).outerjoin(Tabulation, Tabulation.draw_id == Draw.id)
    query = query.where(Draw.release_id == release_id, Draw.seq > seq, Draw.partition != WHOLE)
    plain = query.where(Tabulation.draw_id.is_(None)).group_by(Draw.mechanism, Draw.repetition)
    later = Counter({(name, repetition): number for name, repetition, number in connection.execute(plain)})
    layouts = drawn.layouts_after(connection, release_id, seq)
    plan = read_plan(json.loads(drawn.plan_text(connection, release_id))) if layouts else None
    for repetition, layout in layouts:
        level = None if plan is None else find_level(plan, layout.level)
        for mechanism, groups in () if level is None else tabulated(level, layout):
            later[mechanism.name or "", repetition] += len(groups)
    return later
