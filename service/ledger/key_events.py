"""Keys as the installation's journal has them: what became of each, and who has had its token in hand."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from service.ledger import installation_journal
from service.ledger.installation import Secret
from service.ledger.journal import Actor, Broken
from service.ledger.keys import ISSUED, KeyRecord


@dataclass(frozen=True, slots=True)
class Known:
    """A key as the entries made it.

    Attributes:
        record: its row, but for the last use and what took its place.
        maker: the id of the key with which somebody made it; None: nobody's, or not known.
    """

    record: KeyRecord
    maker: str | None


def keys_of(connection: Connection, secret: Secret) -> dict[str, Known]:
    """All keys that the journal tells of, by id.

    Raises:
        Broken: the journal is not sound.
    """
    known: dict[str, Known] = {}
    for said in installation_journal.read(connection, secret):
        try:
            _take(known, said["kind"], said["content"], said.get("key"))
        except (KeyError, TypeError):
            raise Broken(f"entry {said['seq']}: it does not say what one of its kind says") from None
    return known


def _take(known: dict[str, Known], kind: str, content: Mapping[str, Any], by: str | None) -> None:
    match kind:
        case "key_made" | "key_adopted" | "key_left":
            reach = None if content["accounts"] is None else tuple(content["accounts"])
            record = KeyRecord(**{**content, "accounts": reach}, sealed=kind != "key_left")
            known[record.id] = Known(record, by)
        case "key_rotated":
            key = known[content["id"]]
            known[content["id"]] = replace(key, record=replace(key.record, expires_at=content["expires_at"]))
        case "key_revoked" if content["id"] in known:  # somebody may revoke a row that the service did not write
            key = known[content["id"]]
            known[content["id"]] = replace(key, record=replace(key.record, revoked_at=content["revoked_at"]))


def people_behind(known: Mapping[str, Known], actor: Actor) -> frozenset[str]:
    """Everybody who could act as this one: whoever had the key's token in hand, or that of a key that made it.

    Whoever makes or rotates a key is shown its token. What the operator makes by a command is shown to nobody else.
    Where an entry names no key, or one of another installation, all of the principal's count.
    """
    people = {actor.name}
    seen: set[str] = set()
    waiting = list(_keys(known, actor))
    while waiting:
        key_id = waiting.pop()
        if key_id in seen:
            continue
        seen.add(key_id)
        record, maker = known[key_id].record, known[key_id].maker
        if record.created_by is None:
            continue
        people.add(record.created_by)
        waiting += _keys(known, Actor(record.created_by, maker))
        if record.rotated_from is not None and record.rotated_from in known:
            waiting.append(record.rotated_from)
    return frozenset(people)


def _keys(known: Mapping[str, Known], actor: Actor) -> Iterable[str]:
    if actor.key is not None and actor.key in known:
        return (actor.key,)
    if actor.name.startswith(ISSUED):
        return ()
    return (key_id for key_id, key in known.items() if key.record.name == actor.name)
