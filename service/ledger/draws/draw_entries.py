"""The journal entries of draws, for readers who check noisy counts against them."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select

from service.ledger.draws.draw_rows import altered
from service.ledger.draws.stored_draws import DrawOutline, DrawRecord
from service.ledger.journal.chains import is_hashed
from service.ledger.storage.tables import Entry


def entries_of_draws(
    connection: Connection, account_id: int, draws: Sequence[DrawRecord | DrawOutline]
) -> list[dict[str, Any]]:
    """Return the entries of some draws of an account, as they were hashed, each with its hash and the one before it.

    Raises:
        Altered: one is not as the service wrote it.
    """
    numbers = {number for draw in draws for number in (draw.head.seq - 1, draw.head.seq)}
    query = select(Entry.seq, Entry.hash, Entry.body).where(Entry.account_id == account_id, Entry.seq.in_(numbers))
    rows = {row.seq: row for row in connection.execute(query)}
    found = []
    for draw in draws:
        before, row = rows.get(draw.head.seq - 1), rows.get(draw.head.seq)
        if before is None or row is None or not is_hashed(before.hash, row.body, draw.head.hash):
            raise altered(draw.id)
        found.append({"entry": json.loads(row.body), "previous": before.hash, "hash": draw.head.hash})
    return found
