"""Stored figures of large plans, which lists and balances would take seconds to compute again.

Nothing depends on them: charges and verification price plans themselves, and figures that do not match their seal are
not used. There is one exception: the number of partitions that a tabulation took (``stored_draws.taken_by``), without
which some requests are not answered again.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import Connection, select, text

from service import __version__
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import KnownCost
from service.privacy.accounting.pricing import ACCOUNTANT

FOUND_BY = f"{__version__} {ACCOUNTANT}"
"""The versions on which every figure depends."""

_PURPOSE = "known cost"
_KEEP = text(
    "INSERT INTO known_costs (subject, state, cost, seal) VALUES (:subject, :state, :cost, :seal)"
    " ON CONFLICT (subject) DO UPDATE SET state = excluded.state, cost = excluded.cost, seal = excluded.seal"
)


class KeptFigures(NamedTuple):
    """Figures as JSON text, with their subject and its state."""

    subject: str
    state: str
    cost: str


def read_kept(connection: Connection, secret: Secret, state: str, subjects: Collection[str]) -> dict[str, str]:
    """Return the known figures of some subjects in this state.

    Args:
        state: the state of the subjects for which the figures hold.

    Returns:
        The figures by subject; subjects without any, or with figures that the service did not write, are left out.
    """
    query = select(KnownCost.subject, KnownCost.cost, KnownCost.seal)
    rows = connection.execute(query.where(KnownCost.subject.in_(subjects), KnownCost.state == state)).all()
    return {
        row.subject: row.cost for row in rows if is_kept(secret, KeptFigures(row.subject, state, row.cost), row.seal)
    }


def is_kept(secret: Secret, known: KeptFigures, seal: object) -> bool:
    """Return whether the service stored figures with this seal."""
    # SQLite stores values of any type in a column.
    return all(isinstance(part, str) for part in known) and secret.is_text(seal, _seal(secret, known))


def keep(database: Database, secret: Secret, found: Iterable[KeptFigures]) -> None:
    """Store figures, in place of older ones of the same subjects."""
    database.write(lambda connection: write(connection, secret, found), is_committed=lambda _, __: False)


def write(connection: Connection, secret: Secret, found: Iterable[KeptFigures]) -> None:
    """Store figures as part of the caller's transaction."""
    connection.execute(_KEEP, [one._asdict() | {"seal": _seal(secret, one)} for one in sorted(found)])


def _seal(secret: Secret, known: KeptFigures) -> str:
    return secret.hmac(_PURPOSE, *(part.encode() for part in known)).hex()
