"""Entries that register a release: committed at once, reserved, or proposed.

They share a file because they have the same content: the release and its cost. Entries of held releases also say until
when it is held. Most entries of a journal register a release that commits at once; ``committed_texts`` handles these
without parsing.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import Annotated, Any, ClassVar, NamedTuple, Self, cast

from service.ledger.access.key_records import Role
from service.ledger.journal.account_state import AccountState, Charge, HeldRelease
from service.ledger.journal.canonical_json import CanonicalObject, canonical
from service.ledger.journal.charge_sums import CapPrices
from service.ledger.journal.entries.base import (
    AmountField,
    CapPricesField,
    Content,
    EntryView,
    Filing,
    Form,
    ParsedEntry,
    PeriodsField,
    Rows,
    Text,
    TextOrNone,
    text,
    whole,
)
from service.ledger.journal.entry_texts import (
    PriceKey,
    price_of,
    tags_of,
    write,
)
from service.ledger.journal.journal import Kind
from service.ledger.releases.reservation_rows import State
from service.ledger.storage.tables import Release, ReleaseTag


class Origin(NamedTuple):
    """The account under this one in which a release was registered, and the number of its entry there."""

    account: str
    seq: int

    @classmethod
    def read(cls, value: Any) -> Self:
        """Read an origin.

        Raises:
            KeyError, TypeError, ValueError: the value is no origin.
        """
        if value.keys() != set(cls._fields):
            raise ValueError("expected an account and a number")
        return cls(text(value["account"]), whole(value["seq"]))

    def write(self) -> str:
        """Return its canonical JSON."""
        return _ORIGIN % (quoted(self.account), self.seq)


ORIGIN_MEMBERS = "{" + ",".join(f'"{name}":%({name})s' for name in sorted(Origin._fields)) + "}"
"""An origin's canonical JSON, with a place for each value."""
_ORIGIN = ORIGIN_MEMBERS.replace("%(account)s", "%s").replace("%(seq)s", "%s")


class OwnMembers(NamedTuple):
    """The members of a registration that each account of a line has for itself; None: the account has no such member.

    Attributes:
        price: the price that the account was charged.
        caps: the prices under its caps on tags.
        periods: those that it was charged for, as canonical JSON.
    """

    price: PriceKey
    caps: CapPrices | None = None
    periods: str | None = None


def _read_plan(value: object) -> str:
    if not isinstance(value, dict):
        raise TypeError("expected a plan")
    return write(value)


def _read_tags(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("expected a list of tags")
    return tuple(map(text, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration(Content):
    """A release with the price that an account was charged for it.

    Attributes:
        accountant: the version of the accountant that priced it.
        caps: its prices under the account's caps on tags; None where it carries none of the tags.
        delta: the delta for showing its cost, an exact number.
        origin: of a release of an account under this one.
        periods: those that it is charged for, in the account's own calendar, as canonical JSON; None: it has none.
        plan: as canonical JSON.
        price: the price that the account was charged.
        tags: its own.
    """

    CHANGES_BALANCE: ClassVar[bool] = True

    accountant: Text
    caps: CapPricesField = None
    delta: Text
    name: Text
    origin: Annotated[Origin | None, Form(Origin.read, Origin.write, omitted=True)] = None
    periods: PeriodsField = None
    plan: Annotated[str, Form(_read_plan, str)]
    price: AmountField
    tags: Annotated[tuple[str, ...], Form(_read_tags, lambda tags: canonical(list(tags)))]

    @property
    def charge(self) -> Charge:
        """Return the release as the account counts it."""
        return Charge(self.price, (self.plan, self.tags), self.own, self.caps or (), self.periods)

    @property
    def own(self) -> bool:
        """Return whether the release was registered in this account, and not in one under it."""
        return self.origin is None

    @property
    def held_until(self) -> str | None:
        """Return the moment at which its reservation ends."""
        return None

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return pipeline: pipelines register releases."""
        return "pipeline"

    def contents_in_line(self, above: Sequence[OwnMembers], origin: Origin) -> Iterator[CanonicalObject]:
        """Yield the content for each account of a line, root first; this one is the last.

        Args:
            above: one for each account above, root first.
            origin: of the release, for the accounts above.
        """
        members = self.members()
        shared = {name: text for name, text in members.items() if name not in OwnMembers._fields}
        for own in above:
            stated = {name: self.FORMS[name].write(value) for name, value in own._asdict().items() if value is not None}
            yield CanonicalObject.of({**shared, "origin": origin.write(), **stated})
        yield CanonicalObject.of(members)

    def next_state(self) -> State:
        """Return the state that the release begins in: the kinds have the names of these states."""
        return cast("State", self.KIND)

    def row(self, filing: Filing, document: str) -> dict[str, Any]:
        """Return the release's row; ``document`` is its plan in the client's words."""
        return {
            "id": filing.release,
            "account_id": filing.account_id,
            "seq": filing.seq,
            "name": self.name,
            "plan": document,
            "tags": json.dumps(self.tags, ensure_ascii=False),
            "delta": self.delta,
            "state": self.next_state(),
            "price": json.dumps(price_of(self.price)),
            "accountant": self.accountant,
            "created_at": filing.time,
            "expires_at": self.held_until,
            "periods": self.periods,
        }

    def rows(self, filing: Filing) -> Rows:
        """Return the rows of the release and its tags; none for a release of an account under this one."""
        if not self.own:
            return Rows()
        row = self.row(filing, json.dumps(json.loads(self.plan), ensure_ascii=False))
        tags = tags_of(self.charge.subject)
        where = {"account_id": filing.account_id, "seq": filing.seq}
        return Rows({Release: [row], ReleaseTag: [where | {"tag": tag} for tag in sorted(tags)]})

    def view(self) -> EntryView:
        """Return a view with the release's name, its owner and the periods that were charged."""
        owner = None if self.origin is None else self.origin.account
        return EntryView(is_release=True, name=self.name, owner=owner, periods=self.periods)


class Committed(Registration):
    """A release that committed at once."""

    __slots__ = ()
    KIND: ClassVar[Kind] = "committed"

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:  # noqa: ARG002
        """Count the release as committed."""
        chain.commit(self.charge)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holding(Registration):
    """A release that is held.

    Attributes:
        expires_at: the moment at which its reservation ends; None: never.
    """

    expires_at: TextOrNone

    @classmethod
    def until(cls, expires_at: str | None, committed: Committed) -> Self:
        """Return the held form of a release that would commit at once."""
        return cls(**{name: getattr(committed, name) for name in committed.FORMS}, expires_at=expires_at)

    @property
    def held_until(self) -> str | None:
        """Return the moment at which its reservation ends."""
        return self.expires_at

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Count the release as held."""
        chain.hold(entry.release_id, self.held(entry))

    def held(self, entry: ParsedEntry) -> HeldRelease:
        """Return the hold of the release."""
        return HeldRelease(self.next_state(), self.charge, self.expires_at, entry.by)


class Reserved(_Holding):
    """A release that is only reserved."""

    __slots__ = ()
    KIND: ClassVar[Kind] = "reserved"


def read_asking(value: Any) -> tuple[str, ...]:
    """Read the names of the accounts that ask for an approval: at least one, and unlike ones.

    Raises:
        TypeError, ValueError: the service writes no such names.
    """
    names = _read_tags(value)
    if not names or len(set(names)) < len(names):
        raise ValueError("expected at least one name, and no name twice")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(_Holding):
    """A release that other persons must approve.

    Attributes:
        approval_of: the accounts of its line whose approvers must approve it, root first; None: an older version
            proposed it, and did not state them.
    """

    KIND: ClassVar[Kind] = "proposed"

    approval_of: Annotated[
        tuple[str, ...] | None, Form(read_asking, lambda names: canonical(list(names)), omitted=True)
    ] = None

    def held(self, entry: ParsedEntry) -> HeldRelease:
        """Return the hold of the release, with the accounts that ask for its approval."""
        return HeldRelease(self.next_state(), self.charge, self.expires_at, entry.by, self.approval_of)
