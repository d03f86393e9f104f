"""Reading releases."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, Row, select

from service.errors import NotFound
from service.ledger.journal import Head
from service.ledger.tables import Entry, Release, ReleaseTag
from service.privacy.law import noise_law
from service.privacy.notation import read_plan
from service.privacy.plan import Plan, mechanisms_of


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """A stored release; ``head`` is the journal entry that charged it."""

    id: str
    name: str
    document: dict[str, Any]
    tags: tuple[str, ...]
    delta: Fraction
    state: str
    created_at: str
    head: Head

    @property
    def plan(self) -> Plan:
        """The plan as a value, to be priced or drawn from."""
        return read_plan(self.document)


def expires(plan: Plan) -> bool:
    """Whether a reservation ends by itself: not where something could be published without the service drawing it."""
    return all(noise_law(mechanism) is not None for mechanism in mechanisms_of(plan))


def read_release(connection: Connection, account_id: int, release_id: str) -> ReleaseRecord:
    """A release of an account.

    Raises:
        NotFound: the account has none with this id.
    """
    query = _RELEASES.where(Release.account_id == account_id, Release.id == release_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound("release", release_id)
    return _record(row)


def require_release(connection: Connection, account_id: int, release_id: str) -> None:
    """Refuse what is no release of an account, without reading its plan, which may be long.

    Raises:
        NotFound: the account has none with this id.
    """
    query = select(Release.seq).where(Release.account_id == account_id, Release.id == release_id)
    if connection.execute(query).first() is None:
        raise NotFound("release", release_id)


def list_releases(
    connection: Connection, account_id: int, after: int, limit: int, tag: str | None, state: str | None
) -> Sequence[ReleaseRecord]:
    """A page of an account's releases in the order of their registration.

    With ``tag``, those that carry it themselves or on a node of their plan.
    """
    query = _RELEASES.where(Release.account_id == account_id, Release.seq > after).order_by(Release.seq).limit(limit)
    if tag is not None:
        query = query.join(
            ReleaseTag, (ReleaseTag.account_id == Release.account_id) & (ReleaseTag.seq == Release.seq)
        ).where(ReleaseTag.tag == tag)
    if state is not None:
        query = query.where(Release.state == state)
    return [_record(row) for row in connection.execute(query)]


_RELEASES = select(
    Release.id,
    Release.name,
    Release.plan,
    Release.tags,
    Release.delta,
    Release.state,
    Release.created_at,
    Release.seq,
    Entry.hash,
).join(Entry, (Entry.account_id == Release.account_id) & (Entry.seq == Release.seq))


def _record(row: Row[*tuple[Any, ...]]) -> ReleaseRecord:
    return ReleaseRecord(
        id=row.id,
        name=row.name,
        document=json.loads(row.plan),
        tags=tuple(json.loads(row.tags)),
        delta=Fraction(row.delta),
        state=row.state,
        created_at=row.created_at,
        head=Head(row.seq, row.hash),
    )
