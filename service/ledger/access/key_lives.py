"""Keys held against what was done with them: when each could act, as the installation's journal has it.

The journals of accounts and of the installation have no common order but time. Clocks differ, and time may have been
set back by an operator who acknowledged it, so only what is certain is a fault.
"""

from bisect import bisect
from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection

from service.ledger.access.key_events import Known, keys_in, people_behind
from service.ledger.access.key_records import KeyRecord, Role, includes
from service.ledger.installation.installation_journal import read_after
from service.ledger.journal.entries import Stated
from service.ledger.journal.journal import BEFORE_FIRST, Actor, Broken
from service.ledger.storage import clock
from service.ledger.storage.database import secret_of

TOLERANCE = timedelta(seconds=60)
"""By how much clocks differ. A server that learns of a key's end commits nothing of it later, at most seconds after."""

_NEVER = "~"  # after every moment
_OF_KEYS = ("key_made", "key_adopted", "key_left")


class _Life(NamedTuple):
    """A key with the moments before which, and from which on, it can have made nothing; and what ended it."""

    record: KeyRecord
    since: str
    until: str
    ended: str


class KeyLives:
    """The keys of an installation's journal, as far as it is sound: of what is not, verification tells apart."""

    def __init__(self, entries: Iterator[dict[str, Any]]) -> None:
        self._entries: list[dict[str, Any]] = []
        self._latest: list[str] = []  # of each entry: no entry up to it was made after this moment
        self._place: dict[str, int] = {}  # of the entry that made a key, from 1
        ends: dict[str, tuple[str, str]] = {}
        latest = ""
        try:
            for said in entries:
                content = said["content"]
                latest = max(latest, said["time"], _acknowledged(said))
                self._entries.append(said)
                self._latest.append(latest)
                if said["kind"] in _OF_KEYS:
                    self._place.setdefault(content["id"], len(self._entries))
                if (end := _end(said["kind"], content, latest)) is not None:
                    ends[content["id"]] = min(end, ends.get(content["id"], end))
        except Broken:
            pass
        self._known_at = lru_cache(maxsize=64)(lambda number: keys_in(self._entries[:number]))
        self._people = lru_cache(maxsize=4096)(self._find_one_person)
        known, earliest = self._known_at(len(self._entries)), _NEVER
        self._lives: dict[str, _Life] = {}
        for said in reversed(self._entries):  # time may have been set back after a key was made
            earliest = min(earliest, said["time"])
            if said["kind"] in _OF_KEYS:
                record = known[said["content"]["id"]]
                self._lives[record.id] = _life(record, earliest, ends.get(record.id))

    def fault(self, entry: Stated, account: str | None) -> str | None:
        """Find why the key that an entry names cannot have made it, in words; None where it can.

        Nothing is known of keys that are older than the installation's journal, or of another installation.

        Args:
            entry: what it says.
            account: the one that the key must reach; None where that is another account's to tell.
        """
        if entry.key is None:
            return None
        steward = entry.content.needs_steward(entry.release)
        return self.fault_of(entry.key, entry.by.name, entry.time, account, steward=steward)

    def fault_of(self, key: str, actor: str, at: str, account: str | None, *, steward: bool) -> str | None:
        """Find the same of an entry of which only this is known."""
        life = self._lives.get(key)
        if life is None:
            return None
        record, role = life.record, "steward" if steward else "pipeline"
        if at >= life.until:
            reason = f"{life.ended} by then"
        elif at < life.since:
            reason = "was not made by then"
        elif record.name != actor:
            reason = "is another principal's"
        elif not includes(record.role, _role(steward=steward)):
            reason = f"has not the role {role}"
        elif account is not None and record.accounts is not None and account not in record.accounts:
            reason = "is limited to other accounts"
        else:
            return None
        return f"the key {record.id} of {record.name!r}, which the entry names, {reason}"

    def is_one_person(self, proposer: Actor, approver: Actor, at: str) -> bool:
        """Whether somebody is certain to have been behind both when one approved what the other had proposed.

        Keys count that were made before, by their order in the journal or by time. Versions whose entries name no key
        had no such rule; of keys of another installation nobody knows who made them.
        """
        asked = proposer.key if approver.key is None else approver.key
        if asked not in self._place:
            return False
        made = [self._place[actor.key] for actor in (proposer, approver) if actor.key in self._place]
        return self._people(proposer, approver, max(bisect(self._latest, _moved(at, -TOLERANCE, "")), *made))

    def _find_one_person(self, proposer: Actor, approver: Actor, number: int) -> bool:
        known: Known = self._known_at(number)
        return bool(people_behind(known, proposer) & people_behind(known, approver))


def lives_of(connection: Connection) -> KeyLives:
    """Read the lives of all keys from the installation's journal."""
    return KeyLives(said for _, said in read_after(connection, secret_of(connection), BEFORE_FIRST))


def _end(kind: str, content: dict[str, Any], latest: str) -> tuple[str, str] | None:
    """Find when an entry has a key end, and how, where what was made before it was made up to the moment ``latest``."""
    if kind == "key_revoked":
        return latest, "was revoked"
    if kind == "key_rotated":
        return max(content["expires_at"], latest), "had expired"
    if kind not in _OF_KEYS:
        return None
    if content["revoked_at"] is not None:  # before it was adopted
        return content["revoked_at"], "was revoked"
    return None if content["expires_at"] is None else (content["expires_at"], "had expired")


def _life(record: KeyRecord, earliest: str, end: tuple[str, str] | None) -> _Life:
    """Find when a key could act, where what was made after it was made from the moment ``earliest`` on."""
    since = min(record.created_at, earliest) if clock.is_stamp(record.created_at) else ""
    until, ended = end or (_NEVER, "")
    return _Life(record, _moved(since, -TOLERANCE, ""), _moved(until, TOLERANCE, _NEVER), ended)


def _role(*, steward: bool) -> Role:
    return "steward" if steward else "pipeline"


def _acknowledged(said: dict[str, Any]) -> str:
    """The moment that the service had reached when an operator acknowledged that it was put back; else none."""
    mark = said["content"].get("mark") if said["kind"] == "mark_acknowledged" else None
    return "" if mark is None else str(mark["written_at"])


def _moved(moment: str, by: timedelta, otherwise: str) -> str:
    """A moment moved; ``otherwise`` where it is none, as in an adopted row."""
    return clock.later(moment, by) if clock.is_stamp(moment) else otherwise
