"""New entries of accounts' journals that may give messages, read without the plans that they contain.

The texts link the place that was reached with the account's sealed head. Of a long journal, one look reads a part.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection, select

from service.ledger.journal.canonical_json import DECODER
from service.ledger.journal.chains import BrokenChain, is_hash, read_end
from service.ledger.journal.entries import Content, read_text
from service.ledger.journal.journal import Head
from service.ledger.journal.linked_heads import texts_after
from service.ledger.releases import release_rows
from service.ledger.storage.tables import Entry, Release

EVENTS: Mapping[str, str] = {
    "proposed": "release.proposed",
    "approved": "release.approved",
    "voided": "release.rejected",
    "expired": "release.expired",
    "refused": "release.refused",
    "change_proposed": "change.proposed",
    "change_approved": "change.approved",  # it goes on waiting; these end a proposal, or one steward decided alone:
    **dict.fromkeys(("budget_changed", "caps_changed", "account_reopened", "approvers_changed"), "change.approved"),
    "change_rejected": "change.rejected",
}
"""The kinds of entries of accounts that give messages, each with the event that it may be."""
_PROPOSED = "proposed"  # the one kind whose text contains a plan
_MOST = 10_000  # entries of one walk; of more, the limit of an hour would leave nothing
_AT_ONCE = 500  # releases whose rows are read together


class NewEntry(NamedTuple):
    """A new entry; its content is left out where that has a plan."""

    kind: str
    head: Head
    time: str
    actor: str | None
    release: str | None
    content: Content | None


class OwnRelease(NamedTuple):
    """A release that was registered in an account, without its plan.

    Attributes:
        kind: of the entry that registered it.
    """

    id: str
    name: str
    kind: str


@dataclass
class Walk:
    """A walk along the texts of an account from the place that was reached to its head, which may take several looks.

    Attributes:
        entries: those that may give messages, as far as the walk came; none is sure before it came to its end.
        releases: those of the account itself that entries are about, by their ids.
    """

    start: Head
    end: Head
    reached: Head
    entries: list[NewEntry] = field(default_factory=list)
    releases: dict[str, OwnRelease] = field(default_factory=dict)

    def go_on(self, connection: Connection, account_id: int, kinds: Collection[str], most: int) -> int:
        """Read on, until about so many characters are read; return the number that were read.

        Entries about releases of accounts under this one are left out: those accounts' own journals tell the same.

        Args:
            kinds: of entries that may give messages.

        Raises:
            BrokenChain: the texts do not link the place with the head.
            Altered: the row of a release is not as the service wrote it.
        """
        if not is_hash(self.start.hash):
            raise BrokenChain("the place that was reached is no entry's")
        size, new = 0, list[NewEntry]()
        for head, body in texts_after(connection, account_id, self.reached, self.end.seq):
            self.reached, size = head, size + len(body)
            new += _entries_in(head, body, kinds)
            if size >= most:
                break
        else:
            if self.reached != self.end:
                raise BrokenChain("the entries do not link the last one that was read with the account's head")
        self.releases |= _own_releases(connection, account_id, new)
        own = (one for one in new if one.release is None or one.release in self.releases)
        self.entries += islice(own, max(0, _MOST - len(self.entries)))
        return size


def _entries_in(head: Head, body: str, kinds: Collection[str]) -> Iterator[NewEntry]:
    """Yield the entry of a text if it is of these kinds."""
    end = read_end(body)
    if end is None:
        raise BrokenChain("an entry's text does not end as the service writes it")
    if end.kind in kinds:
        content = None if end.kind == _PROPOSED else read_text(body).content
        yield NewEntry(end.kind, head, end.time, actor_of(body), end.release, content)


def actor_of(body: str) -> str | None:
    """Return the actor in an entry's text, which begins with the members account and actor; None where it does not."""
    try:
        _, after = DECODER.raw_decode(body, len('{"account":'))
        actor, _ = DECODER.raw_decode(body, after + len(',"actor":'))
    except ValueError:
        return None
    return actor if isinstance(actor, str) else None


def _own_releases(connection: Connection, account_id: int, entries: Sequence[NewEntry]) -> dict[str, OwnRelease]:
    """Return the releases that entries are about and that were registered in the account, by their ids.

    The seal of a row shows that the service wrote its id and state. It does not show this of the name without the plan.

    Raises:
        Altered: the row of one is not as the service wrote it.
    """
    columns = (Release.id, Release.name, Release.seq, Release.state, Release.seal, Entry.kind)
    query = select(*columns).join(Entry, (Entry.account_id == Release.account_id) & (Entry.seq == Release.seq))
    ids, found = sorted({one.release for one in entries if one.release is not None}), dict[str, OwnRelease]()
    for start in range(0, len(ids), _AT_ONCE):
        some = (Release.account_id == account_id, Release.id.in_(ids[start : start + _AT_ONCE]))
        for row in connection.execute(query.where(*some)):
            release_rows.require_state(connection, row)
            found[row.id] = OwnRelease(row.id, row.name, row.kind)
    return found
