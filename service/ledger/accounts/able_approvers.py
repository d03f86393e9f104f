"""The principals of a list of approvers whose keys would not let them approve, and the accounts that refuse a key."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, select

from service.ledger.access.key_events import Known, people_behind
from service.ledger.access.key_records import KeyRecord, includes
from service.ledger.access.keys import ISSUED
from service.ledger.accounts.approvers import Approvers, stored_approvers
from service.ledger.accounts.two_persons import strangers_to
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.journal import Actor
from service.ledger.storage.tables import Account


class NamedKeys:
    """The keys that are valid at a moment, by their principals."""

    def __init__(self, known: Known, at: str) -> None:
        self._known, self._at = known, at
        self._of: dict[str, list[KeyRecord]] = defaultdict(list)
        for record in known.values():
            self._of[record.name].append(record)

    def lack_of(self, rule: Approvers, name: str) -> str | None:
        """Return in words why no key of a principal that a list names could approve now; None: one could.

        Principals of an issuer have no keys, so nothing is known of them. Which accounts a key reaches is not looked
        at.
        """
        if name.startswith(ISSUED):
            return None
        records = self._of.get(name, [])
        if not records:
            return f"no key has the name {name}"
        valid = [one for one in records if one.sealed and one.revoked_at is None and not self._is_over(one)]
        if not valid:
            return f"the keys of {name} are revoked or expired"
        able = [one for one in valid if includes(one.role, "approver")]
        if not able:
            roles = " and ".join(sorted({one.role for one in valid}))
            return f"{name} has the role {roles}, which does not approve"
        strangers = [strangers_to(rule, self._known, Actor(name, one.id)) for one in able]
        if not all(strangers):
            return None
        return f"{' and '.join(sorted(strangers[0]))} made or rotated the key of {name}, and is not on the list"

    def unable(self, rule: Approvers, names: Iterable[str]) -> list[tuple[str, str]]:
        """Return those of some principals on a list that could not approve now, each with the reason in words."""
        return [(name, lack) for name in names if (lack := self.lack_of(rule, name)) is not None]

    def _is_over(self, record: KeyRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= self._at


class ListedIn(NamedTuple):
    """An account with the principals on its list of approvers."""

    account: str
    approvers: frozenset[str]


def lists_of_approvers(connection: Connection, name: str | None = None) -> list[ListedIn]:
    """Return all accounts that list approvers, by name; an aid for those who make keys, whom no seal protects.

    Args:
        name: of a principal; lists without it are left out, where their text tells.
    """
    query = select(Account.name, Account.approvers).where(Account.approvers.is_not(None)).order_by(Account.name)
    if name is not None:
        query = query.where(Account.approvers.contains(canonical(name), autoescape=True))
    found = []
    for row in connection.execute(query):
        try:
            rule = stored_approvers(row.approvers)
        except (KeyError, TypeError, ValueError):  # verification reports it
            continue
        if rule is not None and rule.of is not None:
            found.append(ListedIn(row.name, frozenset(rule.of)))
    return found


def refusing(lists: Iterable[ListedIn], known: Known, key: KeyRecord) -> list[str]:
    """Return the accounts that list a key's principal, and would refuse an approval with this key.

    Args:
        known: all keys, with this one.
    """
    naming = [one for one in lists if key.name in one.approvers] if includes(key.role, "approver") else []
    if not naming:
        return []
    people = people_behind(known, Actor(key.name, key.id))
    return [one.account for one in naming if not people <= one.approvers]
