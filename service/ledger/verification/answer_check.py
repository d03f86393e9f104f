"""Verification of stored answers: each is as the service wrote it, and the journal contains the entry that it states.

An answer is stored with its effect. One without its entry was put in by somebody who writes the database, or its entry
was taken away. The service does not repeat such an answer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection, select, tuple_

from service.ledger.storage import idempotency
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, Draw, Entry

_AT_ONCE = 500


class _Stated(NamedTuple):
    """An answer's principal, and the entry or the draw that it states."""

    principal: str
    entry: tuple[str, int, str] | None  # the account's name, and the entry's number and hash
    draw_id: str | None


def stored_answer_faults(connection: Connection, secret: Secret) -> Iterator[str]:
    """Yield a line of text for each principal with answers that were altered, and with answers without their entry."""
    altered, missing = Counter[str](), Counter[str]()

    def stated() -> Iterator[_Stated]:
        for principal, answer in idempotency.stored_answers(connection, secret):
            if answer is None:
                altered[principal] += 1
                continue
            said = answer.stated
            if "head" in said:
                account = said["account"] if "account" in said else said["name"]
                yield _Stated(principal, (account, said["head"]["seq"], said["head"]["hash"]), None)
            elif answer.draw_id is not None:
                yield _Stated(principal, None, answer.draw_id)

    all_of_them = stated()
    while some := list(islice(all_of_them, _AT_ONCE)):
        missing.update(_without_entry(connection, some))
    for principal, number in altered.items():
        yield f"stored_answers: {number} of {principal!r} not as stored"
    for principal, number in missing.items():
        yield f"stored_answers: {number} of {principal!r} of entries that are not in the journal"


def _without_entry(connection: Connection, some: Iterable[_Stated]) -> Iterator[str]:
    places = [one.entry[:2] for one in some if one.entry is not None]
    ids = [one.draw_id for one in some if one.draw_id is not None]
    entries = select(Account.name, Entry.seq, Entry.hash).join(Entry, Entry.account_id == Account.id)
    found = {tuple(row) for row in connection.execute(entries.where(tuple_(Account.name, Entry.seq).in_(places)))}
    drawn = set(connection.execute(select(Draw.id).where(Draw.id.in_(ids))).scalars())
    for one in some:
        if one.entry not in found if one.draw_id is None else one.draw_id not in drawn:
            yield one.principal
