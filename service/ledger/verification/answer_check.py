"""Verification of stored answers: each is as the service wrote it, and the ledger contains what it states.

An answer is stored with its effect: an entry of a journal, a draw or an API key. One without its effect was put in by
somebody who writes the database, or its effect was taken away. The service does not repeat such an answer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection, select, tuple_

from service.ledger.storage import idempotency
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, ApiKey, Draw, Entry

_AT_ONCE = 500


class _Stated(NamedTuple):
    """An answer's principal, and its effect: an entry, a draw or an API key."""

    principal: str
    effect: tuple[str, int, str] | str  # the account's name with the entry's number and hash; otherwise an id


def stored_answer_faults(connection: Connection, secret: Secret) -> Iterator[str]:
    """Yield a line of text for each principal with answers that were altered, and with answers without their effect."""
    altered, missing = Counter[str](), Counter[str]()

    def stated() -> Iterator[_Stated]:
        for principal, answer in idempotency.stored_answers(connection, secret):
            if answer is None:
                altered[principal] += 1
                continue
            said = answer.stated
            if "head" in said:
                account = said["account"] if "account" in said else said["name"]
                yield _Stated(principal, (account, said["head"]["seq"], said["head"]["hash"]))
            elif (made := answer.draw_id or answer.api_key_id) is not None:
                yield _Stated(principal, made)

    all_of_them = stated()
    while some := list(islice(all_of_them, _AT_ONCE)):
        missing.update(_without_effect(connection, some))
    for principal, number in altered.items():
        yield f"stored_answers: {number} of {principal!r} not as stored"
    for principal, number in missing.items():
        yield f"stored_answers: {number} of {principal!r} of entries, draws or keys that are not in the ledger"


def _without_effect(connection: Connection, some: Iterable[_Stated]) -> Iterator[str]:
    places = [one.effect[:2] for one in some if isinstance(one.effect, tuple)]
    ids = [one.effect for one in some if isinstance(one.effect, str)]
    entries = select(Account.name, Entry.seq, Entry.hash).join(Entry, Entry.account_id == Account.id)
    found: set[object] = {
        tuple(row) for row in connection.execute(entries.where(tuple_(Account.name, Entry.seq).in_(places)))
    }
    for table in (Draw, ApiKey):
        found.update(connection.execute(select(table.id).where(table.id.in_(ids))).scalars())
    yield from (one.principal for one in some if one.effect not in found)
