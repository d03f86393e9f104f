"""The rows of draws, each sealed with the installation's secret; the seal covers the noisy counts by their hash.

The seal also covers the hashes of the journal entry and of a tabulation's groups. So reading a draw never depends on an
entry's text, whose hash only the whole chain up to the account's head would confirm.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from service.errors import Altered
from service.ledger.journal.entries import Drawn, read_text
from service.ledger.journal.journal import up_to
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, Draw, Entry
from service.ledger.storage.transaction import batch

FIXED = (
    Draw.id,
    Draw.release_id,
    Draw.mechanism,
    Draw.partition,
    Draw.repetition,
    Draw.account_id,
    Draw.seq,
    Draw.size,
    Draw.noisy_hash,
    Draw.created_at,
)
_NAMES = tuple(column.key for column in FIXED)
_PURPOSE = "draw"
_UPDATE = update(Draw).where(Draw.id == bindparam("draw")).values(seal=bindparam("code"))


def seal_of(secret: Secret, row: Mapping[Any, Any], entry_hash: str, layout_hash: object) -> str:
    """Return the seal of a row with this entry hash; ``layout_hash`` is the hash of a tabulation's groups.

    Args:
        row: the columns ``FIXED``.
        layout_hash: None for a draw that is no tabulation.
    """
    return secret.seal(_PURPOSE, *(row[name] for name in _NAMES), entry_hash, layout_hash)


def is_sealed(secret: Secret, row: Row[*tuple[Any, ...]], entry_hash: str, layout_hash: object) -> bool:
    """Return whether the service wrote a row as it is; the row has the columns ``FIXED`` and seal."""
    return secret.is_text(row.seal, seal_of(secret, row._mapping, entry_hash, layout_hash))


def unsealed(seal: object) -> str:
    """Return the fault of a row whose seal does not match, in words."""
    if seal is None:
        return "the draw's row has no seal; the first start of a server after an upgrade seals old rows"
    return "the draw's row was not written by the service"


def altered(draw_id: str) -> Altered:
    """Return the refusal to read a draw that is not as the service wrote it."""
    return Altered("the draw", f"the row of draw {draw_id!r}")


def seal_old(connection: Connection, secret: Secret, after: str, limit: int) -> list[str]:
    """Seal up to ``limit`` rows that are older than seals, if their entries agree; return all examined ids.

    Args:
        after: a draw's id; only later ones are looked at.

    Returns:
        Ascending, those left without a seal included; empty once none is left to look at.
    """
    query = select(*FIXED, Entry.hash, Entry.body).where(Draw.seal.is_(None), Draw.id > after)
    query = query.join(Entry, (Entry.account_id == Draw.account_id) & (Entry.seq == Draw.seq))
    query = query.join(Account, Account.id == Draw.account_id).where(up_to(Draw.seq, Account.head_seq))
    rows = connection.execute(query.order_by(Draw.id).limit(limit)).all()
    codes = [(row.id, _code(secret, row)) for row in rows]
    sealed = [{"draw": draw_id, "code": code} for draw_id, code in codes if code is not None]
    if sealed:
        connection.execute(_UPDATE, batch(sealed))
    return [row.id for row in rows]


def _code(secret: Secret, row: Row[*tuple[Any, ...]]) -> str | None:
    """Return the seal for an older row; None if its entry does not agree."""
    try:
        entry = read_text(row.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry.content, Drawn):
        return None
    (expected,) = entry.content.rows(entry.filing(row.account_id)).added[Draw]
    if expected != {name: row._mapping[name] for name in _NAMES}:
        return None
    return seal_of(secret, row._mapping, row.hash, entry.content.layout_hash)
