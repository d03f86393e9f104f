"""The contract of journal entries: all that the rest of the service may ask of one.

A kind is a frozen dataclass. Its fields are those of the entry's content, each with a ``Form`` that writes it and reads
it back. Canonical content, refusals and fast paths follow from the forms, so that each field is declared once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from operator import itemgetter
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

from sqlalchemy import Connection

from service.ledger.access.key_records import Role
from service.ledger.accounts import budgets
from service.ledger.accounts.approvers import read_approvers, write_approvers
from service.ledger.journal import journal
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.canonical_json import CanonicalObject, canonical
from service.ledger.journal.chains import UNREADABLE, BrokenChain
from service.ledger.journal.charge_sums import CapPrices
from service.ledger.journal.entry_texts import PriceKey, price_key_of, price_of, write
from service.ledger.journal.journal import BEFORE_FIRST, AccountHead, Actor, Head, Kind, Row
from service.ledger.releases.reservation_rows import State
from service.ledger.storage.tables import Base
from service.privacy.accounting.privacy_filter import Budget

WRONG = "the entry's content is not valid for its kind"
AROUND = ("account", "actor", "content", "key", "kind", "release", "seq", "time")
"""The members of every entry, in canonical order; older ones, and those of an issuer's principals, have no key."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a field in the content of an entry.

    Attributes:
        read: returns the value that a member states; any error that it raises refuses the entry.
        write: returns the member's canonical JSON.
        required: whether the member is always there; otherwise an absent member is read as None.
        omitted: whether None is written by leaving the member out.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], str] = canonical
    required: bool = True
    omitted: bool = False


def text(value: object) -> str:
    """Return a member that is text.

    Raises:
        TypeError: it is not text.
    """
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value


def text_or_none(value: object) -> str | None:
    """Return a member that is text or null.

    Raises:
        TypeError: it is neither.
    """
    return None if value is None else text(value)


def whole(value: object) -> int:
    """Return a member that is an integer of at least 0.

    Raises:
        TypeError, ValueError: the member is no such integer.
    """
    if type(value) is not int:
        raise TypeError("expected an integer")
    if value < 0:
        raise ValueError("expected an integer of at least 0")
    return value


def exact(value: object) -> str:
    """Return a member that is an exact number as text.

    Raises:
        TypeError, ValueError, ZeroDivisionError: the member is no exact number.
    """
    stated = text(value)
    Fraction(stated)
    return stated


def read_amount(value: Any) -> PriceKey:
    """Return the key of a member that is a price.

    Raises:
        KeyError, TypeError, ValueError: the member is no price.
    """
    amount = price_key_of(value)
    if price_of(amount) != value:
        raise ValueError("expected the figures of a price and no others")
    return amount


def _read_periods(value: object) -> str:
    if not isinstance(value, str | dict):
        raise TypeError("expected periods")
    return write(value)


Text = Annotated[str, Form(text)]
TextOrNone = Annotated[str | None, Form(text_or_none)]
ReasonField = Annotated[str | None, Form(text, omitted=True)]
Whole = Annotated[int, Form(whole)]
AmountField = Annotated[PriceKey, Form(read_amount, lambda amount: canonical(price_of(amount)))]


def _read_cap_prices(value: Any) -> CapPrices:
    if not value:
        raise ValueError("expected at least one price")
    return tuple(sorted((tag, read_amount(price)) for tag, price in value.items()))


def _write_cap_prices(prices: CapPrices) -> str:
    return canonical({tag: price_of(amount) for tag, amount in prices})


CapPricesField = Annotated[CapPrices | None, Form(_read_cap_prices, _write_cap_prices, omitted=True)]
BUDGET = Form(budgets.read_budget, lambda budget: canonical(budgets.write_budget(budget)))
BudgetField = Annotated[Budget, BUDGET]
APPROVERS = Form(read_approvers, write_approvers)


PeriodsField = Annotated[str | None, Form(_read_periods, str, omitted=True)]


class Filing(NamedTuple):
    """The filing of an entry: the account by its id, the number, the release and the time."""

    account_id: int
    seq: int
    release: str | None
    time: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that an entry wrote, beside itself and the account's own row.

    Attributes:
        added: rows by table, without seals and without data that is never in the journal, such as noisy counts.
        changed: columns of its release's row with their new values.
    """

    added: Mapping[type[Base], list[dict[str, Any]]] = field(default_factory=dict)
    changed: Mapping[str, Any] = field(default_factory=dict)


class EntryView(NamedTuple):
    """The journal page's view of an entry.

    Attributes:
        is_release: whether its release has a page.
        name: of its release, if the entry states it.
        owner: the account in which the release was registered; None: the journal's own account.
        remark: the text after the kind where there is no release.
        reason: the reason that the actor gave.
        detail: what of its release the entry is about, such as what was drawn.
        periods: those that the journal's account was charged for, as canonical JSON; None: it has none.
        budget: the account's, as JSON, if the entry states or proposes one.
    """

    is_release: bool = False
    name: str | None = None
    owner: str | None = None
    remark: str | None = None
    reason: str | None = None
    detail: str | None = None
    periods: str | None = None
    budget: dict[str, Any] | None = None


class Content(ABC):
    """The content of an entry of one kind, beyond the members of every entry."""

    __slots__ = ()
    KIND: ClassVar[Kind]
    CHANGES_BALANCE: ClassVar[bool]
    """True if such an entry can change the committed or held spending, or the budget."""
    FORMS: ClassVar[dict[str, Form]]
    """The form of each field, in canonical order."""

    def __init_subclass__(cls) -> None:
        """Collect the forms of the kind's fields."""
        hints = get_type_hints(cls, include_extras=True).items()
        forms = [(name, form) for name, hint in hints for form in getattr(hint, "__metadata__", ())]
        cls.FORMS = dict(sorted(forms, key=itemgetter(0)))

    @classmethod
    def read(cls, content: object) -> Self:
        """Read a content.

        Raises:
            KeyError, TypeError, ValueError, ArithmeticError, ServiceError: this kind does not write such a content.
        """
        if not isinstance(content, dict) or not content.keys() <= cls.FORMS.keys():
            raise ValueError("expected the fields of the kind and no others")
        values = {
            name: form.read(content[name])
            for name, form in cls.FORMS.items()
            if name in content or (form.required and not form.omitted)
        }
        return cls(**values)

    def members(self, *names: str) -> dict[str, str]:
        """Return the members of these names, or all of them, as canonical JSON."""
        members: dict[str, str] = {}
        for name in names or self.FORMS:
            value, form = getattr(self, name), self.FORMS[name]
            if value is not None or not form.omitted:
                members[name] = form.write(value)
        return members

    def content(self) -> CanonicalObject:
        """Return the canonical content."""
        return CanonicalObject.of(self.members())

    def following(
        self, account: AccountHead, *, actor: Actor | None, release_id: str | None = None, at: str
    ) -> tuple[Row, Head]:
        """Return the next entry of an account as its row, and the head that it makes."""
        return journal.following(account, self.KIND, self.content(), actor=actor, release_id=release_id, at=at)

    def append(
        self, connection: Connection, account: AccountHead, *, actor: Actor, release_id: str | None = None, at: str
    ) -> Head:
        """Write the next entry of an account that the caller has locked, and return the new head."""
        return journal.append(connection, account, self.KIND, self.content(), actor=actor, release_id=release_id, at=at)

    @abstractmethod
    def least_role(self, release: str | None) -> Role:
        """Return the least role that may make such an entry; ``release`` is the one that it names."""

    @abstractmethod
    def next_state(self) -> State | None:
        """Return the state that it brings its release to; None if it changes no state."""

    @abstractmethod
    def replay(self, chain: AccountState, entry: "ParsedEntry") -> None:
        """Apply the entry's effect to an account.

        Raises:
            BrokenChain: such an entry cannot stand here; the text says why.
            KeyError, TypeError, ValueError, ArithmeticError: its content is invalid.
        """

    @abstractmethod
    def rows(self, filing: Filing) -> Rows:
        """Return the rows that it wrote under this filing."""

    @abstractmethod
    def view(self) -> EntryView:
        """Return the journal page's view of it."""


class OfAccount(Content):
    """The content of an entry about an account and not a release, stored only in the account's own row."""

    __slots__ = ()

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return steward: stewards change accounts."""
        return "steward"

    def next_state(self) -> None:
        """Return no state."""

    def rows(self, filing: Filing) -> Rows:  # noqa: ARG002
        """Return no rows."""
        return Rows()

    def view(self) -> EntryView:
        """Return an empty view beyond the kind."""
        return EntryView()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOfAccount(OfAccount):
    """The content of an entry in which a steward changes an account, or proposes to.

    Attributes:
        reason: the steward's own words; None: none were given, or the entry is of a version that asked for none.
    """

    reason: ReasonField = None

    def view(self) -> EntryView:
        """Return the reason."""
        return EntryView(reason=self.reason)


@dataclass(frozen=True, slots=True)
class EntryMembers:
    """The members of every entry, whatever its kind."""

    account: str
    seq: int
    kind: str
    release: str | None
    time: str
    actor: str | None
    key: str | None

    @property
    def by(self) -> Actor:
        """Return the actor.

        Raises:
            BrokenChain: an entry of its kind has an actor, and this one names none.
        """
        if self.actor is None:
            raise BrokenChain(WRONG)
        return Actor(self.actor, self.key)

    @property
    def release_id(self) -> str:
        """Return the release that the entry is about.

        Raises:
            BrokenChain: an entry of its kind is about a release, and this one names none.
        """
        if self.release is None:
            raise BrokenChain(WRONG)
        return self.release

    def with_content(self, content: Content) -> "ParsedEntry":
        """Return the entry with this content."""
        return ParsedEntry(self.account, self.seq, self.kind, self.release, self.time, self.actor, self.key, content)


@dataclass(frozen=True, slots=True)
class ParsedEntry(EntryMembers):
    """A parsed entry, with its content as one of its kind."""

    content: Content

    def filing(self, account_id: int) -> Filing:
        """Return its filing in the journal of an account."""
        return Filing(account_id, self.seq, self.release, self.time)

    def follow(self, chain: AccountState, head: Head) -> None:
        """Apply the entry to an account; ``head`` is the head that it makes.

        Raises:
            BrokenChain: an entry of this kind cannot stand here, or its content is invalid.
        """
        if (self.content.KIND == "account_opened") != (chain.head == BEFORE_FIRST):
            raise BrokenChain("an account is opened by its first entry, and by no other")
        try:
            self.content.replay(chain, self)
        except BrokenChain:  # a ValueError that has a reason already
            raise
        except UNREADABLE:
            raise BrokenChain(WRONG) from None
        chain.head = head


def read_members(members: Mapping[str, Any]) -> EntryMembers:
    """Read the members of every entry; the content is not examined.

    Raises:
        BrokenChain: a member is missing or invalid.
    """
    try:
        if not members.keys() <= set(AROUND):
            raise BrokenChain(WRONG)
        return EntryMembers(
            account=text(members["account"]),
            seq=whole(members["seq"]),
            kind=text(members["kind"]),
            release=text_or_none(members["release"]),
            time=text(members["time"]),
            actor=text_or_none(members["actor"]),
            key=text(members["key"]) if "key" in members else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BrokenChain(WRONG) from None
