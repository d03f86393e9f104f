"""Keys as the installation's journal has them: what became of each, and who has had its token in hand."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from service.ledger import installation_journal
from service.ledger.journal import Actor, Broken
from service.ledger.keys import FIRST_PRINCIPAL, KeyRecord
from service.ledger.secret import Secret

Known = Mapping[str, KeyRecord]
"""Keys by their ids, as the entries made them: without their last use, and what took their place."""


def keys_of(connection: Connection, secret: Secret) -> Known:
    """All keys that the journal tells of.

    Raises:
        Broken: the journal is not sound.
    """
    return keys_in(installation_journal.read(connection, secret))


def keys_in(entries: Iterable[dict[str, Any]]) -> Known:
    """The same, of what checked entries say.

    Raises:
        Broken: one does not say what one of its kind says.
    """
    known: dict[str, KeyRecord] = {}
    for said in entries:
        try:
            _take(known, said["kind"], said["content"])
        except (KeyError, TypeError):
            raise Broken(f"entry {said['seq']}: it does not say what one of its kind says") from None
    return known


def _take(known: dict[str, KeyRecord], kind: str, content: dict[str, Any]) -> None:
    match kind:
        case "key_made" | "key_adopted" | "key_left":
            reach = None if content["accounts"] is None else tuple(content["accounts"])
            record = KeyRecord(**{**content, "accounts": reach}, sealed=kind != "key_left")
            known[record.id] = record
        case "key_rotated" | "key_revoked":
            column = "expires_at" if kind == "key_rotated" else "revoked_at"
            value = content[column]
            if content["id"] in known:  # somebody may revoke a row that the service did not write
                known[content["id"]] = replace(known[content["id"]], **{column: value})


def people_behind(known: Known, actor: Actor) -> frozenset[str]:
    """Everybody who could act as this one: whoever had the key's token in hand, or could act as one of those.

    Whoever makes or rotates a key is shown its token, and so is whoever repeats that request as the same principal.
    What the operator makes, by a command or with the first key, is shown to nobody else. Where an entry names no key,
    or one of another installation, all of its principal count.
    """
    people, seen, operator = {actor.name}, set[str](), _operator(known)
    waiting = [actor.key] if actor.key is not None and actor.key in known else list(_named(known, actor.name))
    while waiting:
        record = known[waiting.pop()]
        if record.id in seen or record.created_by is None or record.created_by == operator:
            continue
        seen.add(record.id)
        people.add(record.created_by)
        waiting += _named(known, record.created_by)
        if record.rotated_from is not None and record.rotated_from in known:
            waiting.append(record.rotated_from)
    return frozenset(people)


def _operator(known: Known) -> str | None:
    """The principal as which the operator makes keys over HTTP, with the first key; None where somebody else knows one.

    Whoever has made or rotated a key of that principal could act as it.
    """
    made_by = {known[key_id].created_by for key_id in _named(known, FIRST_PRINCIPAL)}
    return FIRST_PRINCIPAL if made_by <= {None, FIRST_PRINCIPAL} else None


def _named(known: Known, name: str) -> Iterable[str]:
    """The keys of a principal; a person of an issuer has none."""
    return (key_id for key_id, record in known.items() if record.name == name)
