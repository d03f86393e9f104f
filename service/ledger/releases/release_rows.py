"""The rows of releases, each sealed with the installation's secret, with its state and all stated values.

A seal is the digest of the parts that never change, among them the hash of the journal entry, followed by a code of
that digest and the state. So the state can be read and changed without the plan, which may be long.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from service.errors import Altered
from service.ledger.storage.secret import Secret, encoded, sealed_values
from service.ledger.storage.tables import Entry, Release
from service.ledger.storage.transaction import batch, secret_of

FIXED = (
    Release.id,
    Release.account_id,
    Release.seq,
    Release.name,
    Release.plan,
    Release.tags,
    Release.delta,
    Release.created_at,
    Release.expires_at,
    Release.periods,
)
_OPTIONAL: tuple[str, ...] = ("periods",)  # added after the first seals, and null in the rows of most releases
_NAMES = tuple(column.key for column in FIXED if column.key not in _OPTIONAL)
_PURPOSE = "release"
_DIGITS = 64  # of a digest


def seal_of(secret: Secret, row: Mapping[Any, Any], entry_hash: str) -> str:
    """Return the seal of a row with this entry hash.

    Args:
        row: the columns ``FIXED``, and the state.
    """
    return _sealed(secret, _digest(row, entry_hash), row["id"], row["state"])


def is_sealed(secret: Secret, row: Row[*tuple[Any, ...]], entry_hash: str) -> bool:
    """Return whether the service wrote a row as it is; the row has the columns ``FIXED``, state and seal."""
    return secret.is_text(row.seal, seal_of(secret, row._mapping, entry_hash))


def require_seal(connection: Connection, row: Row[*tuple[Any, ...]], entry_hash: str) -> None:
    """Refuse a row that the service did not write.

    Raises:
        Altered: the row is not as the service wrote it.
    """
    if not is_sealed(secret_of(connection), row, entry_hash):
        raise altered(row.id)


def sealed_plan(connection: Connection, release_id: str) -> str:
    """Return the plan of a release as the ledger stores it.

    Raises:
        Altered: the row is not as the service wrote it.
    """
    return sealed_plan_and_tags(connection, release_id)[0]


def sealed_plan_and_tags(connection: Connection, release_id: str) -> tuple[str, str]:
    """Return the plan of a release, and its own tags, as the ledger stores them.

    Raises:
        Altered: the row is not as the service wrote it.
    """
    return sealed_plans_and_tags(connection, [release_id])[release_id]


def sealed_plans_and_tags(connection: Connection, release_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the plans of some releases, and their own tags, by their ids.

    Raises:
        Altered: a row is missing, or not as the service wrote it.
    """
    found = {row.id: row for row in connection.execute(_WITH_HASH.where(Release.id.in_(release_ids)))}
    for release_id in release_ids:
        if release_id not in found:
            raise altered(release_id)
        require_seal(connection, found[release_id], found[release_id].hash)
    return {release_id: (str(found[release_id].plan), str(found[release_id].tags)) for release_id in release_ids}


def require_state(connection: Connection, row: Row[*tuple[Any, ...]]) -> None:
    """Refuse a row with an id and state that the service did not write.

    Args:
        row: the columns ``STATE``.

    Raises:
        Altered: id or state are not as the service wrote them.
    """
    secret = secret_of(connection)
    if not secret.is_text(row.seal, state_seal(secret, row._mapping)):
        raise altered(row.id)


def state_seal(secret: Secret, row: Mapping[Any, Any]) -> str:
    """Return the seal of a release for its state; of everything else, its present seal is believed.

    Args:
        row: the columns ``STATE``.
    """
    return _sealed(secret, str(row["seal"])[:_DIGITS], row["id"], row["state"])


def unsealed(seal: object) -> str:
    """Return the fault of a row whose seal does not match, in words."""
    if seal is None:
        return "the release's row has no seal; the first start of a server after an upgrade seals old rows"
    return "the release's row was not written by the service"


def update_states(connection: Connection, release_ids: Sequence[str], state: str) -> None:
    """Bring releases, whose present states were checked, to another state.

    Raises:
        Altered: the row of one is not as the service wrote it.
    """
    secret, changed = secret_of(connection), []
    for row in connection.execute(_STATES.where(Release.id.in_(release_ids))).all():
        require_state(connection, row)
        changed.append({"release": row.id, "new": state, "code": state_seal(secret, {**row._mapping, "state": state})})
    if changed:
        connection.execute(_UPDATE_STATE, batch(changed))


def seal_old(connection: Connection, secret: Secret, after: str, limit: int) -> list[str]:
    """Seal up to ``limit`` rows that are older than seals and follow ``after``; return their ids.

    Args:
        after: a release's id; only later ones are looked at.

    Returns:
        Ascending; empty once none is left.
    """
    query = select(*FIXED, Release.state, Entry.hash).where(Release.seal.is_(None), Release.id > after)
    query = query.join(Entry, (Entry.account_id == Release.account_id) & (Entry.seq == Release.seq))
    rows = connection.execute(query.order_by(Release.id).limit(limit)).all()
    if rows:
        sealed = [{"release": row.id, "code": seal_of(secret, row._mapping, row.hash)} for row in rows]
        connection.execute(_UPDATE, batch(sealed))
    return [row.id for row in rows]


def _digest(row: Mapping[Any, Any], entry_hash: str) -> str:
    return hashlib.sha256(encoded(*sealed_values(row, _NAMES, _OPTIONAL), entry_hash)).hexdigest()


def _sealed(secret: Secret, digest: str, release_id: str, state: str) -> str:
    return digest + secret.row_seal(_PURPOSE, digest, release_id, state)


def altered(release_id: str, reason: str = "run verify") -> Altered:
    """Return the refusal to use a release whose row or entry is not as the service wrote it."""
    return Altered("the release", f"the row of release {release_id!r}", reason)


_WITH_HASH = select(*FIXED, Release.state, Release.seal, Entry.hash).join(
    Entry, (Entry.account_id == Release.account_id) & (Entry.seq == Release.seq)
)
WITH_HASH = _WITH_HASH.where(Release.id == bindparam("release"))
STATE = (Release.id, Release.state, Release.seal)
_STATES = select(*STATE)
_UPDATE_STATE = (
    update(Release).where(Release.id == bindparam("release")).values(state=bindparam("new"), seal=bindparam("code"))
)
_UPDATE = update(Release).where(Release.id == bindparam("release")).values(seal=bindparam("code"))
