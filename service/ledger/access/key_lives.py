"""Key lives: the periods in which keys could act, by the installation's journal, for checking entries made with them.

The journals of accounts and of the installation share no order except time. Clocks differ, and an operator may have
acknowledged that time was set back. So only certain contradictions are faults.
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
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import ParsedEntry
from service.ledger.journal.journal import BEFORE_FIRST, Actor
from service.ledger.storage import clock
from service.ledger.storage.transaction import secret_of

TOLERANCE = timedelta(seconds=60)
"""The difference between clocks. A server that learns of a key's end commits nothing of it more than seconds later."""

_NEVER = "~"  # after every moment
_OF_KEYS = ("key_made", "key_adopted", "key_left")


class _Life(NamedTuple):
    """A key's period: the moments before and after which it can have made nothing, and the words for its end."""

    record: KeyRecord
    since: str
    until: str
    ended: str


class KeyLives:
    """The keys of an installation's journal, up to its first fault, which verification reports separately."""

    def __init__(self, entries: Iterator[dict[str, Any]]) -> None:
        self._entries: list[dict[str, Any]] = []
        self._latest: list[str] = []  # for each entry: no entry up to it was made after this moment
        self._place: dict[str, int] = {}  # the number of the entry that made a key, from 1
        ends: dict[str, tuple[str, str]] = {}
        latest = ""
        try:
            for members in entries:
                content = members["content"]
                latest = max(latest, members["time"], _acknowledged(members))
                self._entries.append(members)
                self._latest.append(latest)
                if members["kind"] in _OF_KEYS:
                    self._place.setdefault(content["id"], len(self._entries))
                if (end := _end(members["kind"], content, latest)) is not None:
                    ends[content["id"]] = min(end, ends.get(content["id"], end))
        except BrokenChain:
            pass
        self._known_at = lru_cache(maxsize=64)(lambda number: keys_in(self._entries[:number]))
        self._people = lru_cache(maxsize=4096)(self._find_one_person)
        known, earliest = self._known_at(len(self._entries)), _NEVER
        self._lives: dict[str, _Life] = {}
        for members in reversed(self._entries):  # time may have been set back after a key was made
            earliest = min(earliest, members["time"])
            if members["kind"] in _OF_KEYS:
                record = known[members["content"]["id"]]
                self._lives[record.id] = _life(record, earliest, ends.get(record.id))

    def fault(self, entry: ParsedEntry, account: str | None) -> str | None:
        """Return the reason why the key that an entry names cannot have made it, in words; None if it can.

        Keys that are older than the installation's journal, or of another installation, are unknown and have no fault.

        Args:
            entry: the parsed entry.
            account: the account that the key must reach; None where another account's check covers that.
        """
        if entry.key is None:
            return None
        role = entry.content.least_role(entry.release)
        return self.fault_of(entry.key, entry.by.name, entry.time, account, role)

    def fault_of(self, key: str, actor: str, at: str, account: str | None, role: Role) -> str | None:
        """Return the fault of an entry of which only these values are known."""
        life = self._lives.get(key)
        if life is None:
            return None
        record = life.record
        if at >= life.until:
            reason = f"{life.ended} by then"
        elif at < life.since:
            reason = "was not made by then"
        elif record.name != actor:
            reason = "is another principal's"
        elif not includes(record.role, role):
            reason = f"has not the role {role}"
        elif account is not None and record.accounts is not None and account not in record.accounts:
            reason = "is limited to other accounts"
        else:
            return None
        return f"the key {record.id} of {record.name!r}, which the entry names, {reason}"

    def is_one_person(self, proposer: Actor, approver: Actor, at: str) -> bool:
        """Return whether one principal certainly could use both keys when one approved the other's proposal.

        The keys that were made before count, by their order in the journal or by time. Versions whose entries name no
        key had no such rule. For keys of another installation the makers are unknown.
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
    return KeyLives(members for _, members in read_after(connection, secret_of(connection), BEFORE_FIRST))


def _end(kind: str, content: dict[str, Any], latest: str) -> tuple[str, str] | None:
    """Return the moment at which an entry ends a key, and how; ``latest`` is the latest moment of earlier entries."""
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
    """Return a key's period; ``earliest`` is the earliest moment of later entries."""
    since = min(record.created_at, earliest) if clock.is_stamp(record.created_at) else ""
    until, ended = end or (_NEVER, "")
    return _Life(record, _moved(since, -TOLERANCE, ""), _moved(until, TOLERANCE, _NEVER), ended)


def _acknowledged(members: dict[str, Any]) -> str:
    """Return the moment that time had reached when an operator acknowledged that it was set back; empty if none was."""
    mark = members["content"].get("mark") if members["kind"] == "mark_acknowledged" else None
    return "" if mark is None else str(mark["written_at"])


def _moved(moment: str, by: timedelta, otherwise: str) -> str:
    """Return a moment moved by ``by``; ``otherwise`` if the text is no moment, as in an adopted row."""
    return clock.later(moment, by) if clock.is_stamp(moment) else otherwise
