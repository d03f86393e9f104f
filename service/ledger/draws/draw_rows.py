"""The rows of draws, each sealed with the installation's secret: all but the noisy counts, of which it has the hash.

The hash of the journal entry is under the seal too, and that of a tabulation's groups. So nothing is read of a draw
that rests on an entry's text, for whose hash only the whole chain up to the account's head would vouch.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from service.errors import Altered
from service.ledger.journal.entries import Drawn, read_text
from service.ledger.journal.journal import up_to
from service.ledger.storage.database import batch
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, Draw, Entry

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
    """Return the seal of a row whose entry has this hash; ``layout_hash``: of a tabulation's groups."""
    return secret.seal(_PURPOSE, *(row[name] for name in _NAMES), entry_hash, layout_hash)


def is_sealed(secret: Secret, row: Row[*tuple[Any, ...]], entry_hash: str, layout_hash: object) -> bool:
    """Whether the service wrote a row as it is; it has the columns ``FIXED`` and seal."""
    return isinstance(row.seal, str) and secret.is_text(
        row.seal, seal_of(secret, row._mapping, entry_hash, layout_hash)
    )


def unsealed(seal: object) -> str:
    """Return what is wrong with a row that has not its seal, in words."""
    if seal is None:
        return "the draw's row has no seal; a server that starts seals what an older version wrote, once"
    return "the draw's row was not written by the service"


def altered(draw_id: str) -> Altered:
    """Return the refusal to read a draw that is not as the service wrote it."""
    return Altered("the draw", f"the row of draw {draw_id!r}")


def seal_old(connection: Connection, secret: Secret, after: str, limit: int) -> list[str]:
    """Seal some rows that are older than seals, where their entry says them; which they are, with the others."""
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
    """The seal of an older row; None of one that its entry does not say."""
    try:
        entry = read_text(row.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry.content, Drawn):
        return None
    (said,) = entry.content.rows(entry.filing(row.account_id)).added[Draw]
    if said != {name: row._mapping[name] for name in _NAMES}:
        return None
    return seal_of(secret, row._mapping, row.hash, entry.content.layout_hash)
