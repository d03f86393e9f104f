"""The past state of a release at an entry of its account's journal, for answers that are replayed."""

import json
from dataclasses import dataclass

from sqlalchemy import Connection, select

from service.ledger.descriptions.metadata import Metadata
from service.ledger.draws import partitions, stored_draws as drawn
from service.ledger.draws.partitions import DrawnFor
from service.ledger.releases import releases
from service.ledger.storage.tables import Release


@dataclass(frozen=True, slots=True)
class OmittedParts:
    """The parts of a release that stored answers omit, because they can be long: metadata and drawn partitions."""

    tags: list[str]
    metadata: Metadata
    drawn: list[DrawnFor]


def omitted_parts_at(connection: Connection, account_id: int, release_id: str, seq: int) -> OmittedParts:
    """Return the state of a release when the entry ``seq`` was the last.

    Raises:
        Altered: a counter or a draw is not as the service wrote it, or a description.
    """
    metadata = releases.metadata_of(connection, account_id, release_id, until=seq)
    tags = connection.execute(select(Release.tags).where(Release.id == release_id)).scalar_one()
    return OmittedParts(json.loads(tags), metadata, _drawn_for(connection, release_id, seq))


def _drawn_for(connection: Connection, release_id: str, seq: int) -> list[DrawnFor]:
    """Return the counters of partitions without later draws.

    Raises:
        Altered: a counter or a draw is not as the service wrote it.
    """
    later = drawn.taken_after(connection, release_id, seq)
    most: dict[str, DrawnFor] = {}
    for counter in partitions.counters_of(connection, release_id):
        then = counter.drawn - later[counter.mechanism, counter.repetition]
        if then > 0 and (counter.mechanism not in most or then > most[counter.mechanism].drawn):
            most[counter.mechanism] = DrawnFor(counter.mechanism, counter.most, then)
    return list(most.values())
