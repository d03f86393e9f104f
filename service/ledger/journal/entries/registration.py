"""Entries that register a release: committed at once, reserved, or proposed.

They share a file because they have the same content: the release and its cost. Entries of held releases also say until
when it is held. Most entries of a journal register a release that commits at once. So these are also written, compared
and read without parsing, by the fixed texts between their members, which follow from the members' names.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from typing import Annotated, Any, ClassVar, NamedTuple, Self, cast, get_type_hints

from service.ledger.journal.account_state import AccountState, HeldRelease
from service.ledger.journal.canonical_json import CanonicalObject, canonical
from service.ledger.journal.entries.base import (
    AROUND,
    AmountField,
    Content,
    EntryView,
    Filing,
    Form,
    ParsedEntry,
    Rows,
    Text,
    TextOrNone,
    text,
    whole,
)
from service.ledger.journal.entry_texts import (
    PriceKey,
    SpendingKey,
    price_key_in,
    price_key_of,
    price_of,
    tags_of,
    write,
)
from service.ledger.journal.journal import Kind
from service.ledger.releases.reservation_rows import State
from service.ledger.storage.tables import Release, ReleaseTag

_REMEMBERED = 4096  # distinct prices, names and lists of tags


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


_ORIGIN_MEMBERS = "{" + ",".join(f'"{name}":%({name})s' for name in sorted(Origin._fields)) + "}"
_ORIGIN = _ORIGIN_MEMBERS.replace("%(account)s", "%s").replace("%(seq)s", "%s")


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
        delta: the delta for showing its cost, an exact number.
        origin: of a release of an account under this one.
        plan: as canonical JSON.
        price: the price that the account was charged.
        tags: its own.
    """

    CHANGES_BALANCE: ClassVar[bool] = True

    accountant: Text
    delta: Text
    name: Text
    origin: Annotated[Origin | None, Form(Origin.read, Origin.write, omitted=True)] = None
    plan: Annotated[str, Form(_read_plan, str)]
    price: AmountField
    tags: Annotated[tuple[str, ...], Form(_read_tags, lambda tags: canonical(list(tags)))]

    @property
    def subject(self) -> SpendingKey:
        """Return the plan and tags that the release spends on."""
        return self.plan, self.tags

    @property
    def own(self) -> bool:
        """Return whether the release was registered in this account, and not in one under it."""
        return self.origin is None

    @property
    def held_until(self) -> str | None:
        """Return the moment at which its reservation ends."""
        return None

    def needs_steward(self, release: str | None) -> bool:  # noqa: ARG002
        """Return False: pipelines register releases."""
        return False

    def along(self, prices: Sequence[PriceKey], origin: Origin) -> Iterator[CanonicalObject]:
        """Yield the content for each account of a line, root first, at that account's price; this one is the last.

        Args:
            prices: one for each account of the line, root first; the last one is that of this content.
            origin: of the release, for the accounts above.
        """
        members, write_price = self.members(), self.FORMS["price"].write
        for amount in prices[:-1]:
            yield CanonicalObject.of({**members, "origin": origin.write(), "price": write_price(amount)})
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
        }

    def rows(self, filing: Filing) -> Rows:
        """Return the rows of the release and its tags; none for a release of an account under this one."""
        if not self.own:
            return Rows()
        row = self.row(filing, json.dumps(json.loads(self.plan), ensure_ascii=False))
        tags = tags_of(self.subject)
        where = {"account_id": filing.account_id, "seq": filing.seq}
        return Rows({Release: [row], ReleaseTag: [where | {"tag": tag} for tag in sorted(tags)]})

    def shown(self) -> EntryView:
        """Return a view with the release's name and owner."""
        return EntryView(is_release=True, name=self.name, owner=None if self.origin is None else self.origin.account)


class Committed(Registration):
    """A release that committed at once."""

    __slots__ = ()
    KIND: ClassVar[Kind] = "committed"

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:  # noqa: ARG002
        """Count the release as committed."""
        chain.commit(self.price, self.subject, own=self.own)


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
        held = HeldRelease(self.next_state(), self.price, self.subject, self.expires_at, self.own, entry.by)
        chain.hold(entry.release_id, held)


class Reserved(_Holding):
    """A release that is only reserved."""

    __slots__ = ()
    KIND: ClassVar[Kind] = "reserved"


class Proposed(_Holding):
    """A release that a second steward must approve."""

    __slots__ = ()
    KIND: ClassVar[Kind] = "proposed"


# Entries are handled without parsing: all fixed parts of such an entry's text follow from its members' names.


def _template(members: Iterable[str]) -> str:
    """Return the text of an entry that registers a release at once, with a place for each value."""
    content = ",".join(f'"{name}":%({name})s' for name in members)
    stated = {name: f"%({name})s" for name in AROUND} | {"content": f"{{{content}}}", "kind": f'"{Committed.KIND}"'}
    return "{" + ",".join(f'"{name}":{value}' for name, value in stated.items()) + "}"


def _cut(members: Iterable[str]) -> tuple[str, str, str, str]:
    """Return the fixed texts around an entry's actor, price and key, which only the entry states."""
    start, rest = _template(members).split("%(actor)s")
    before, rest = rest.split("%(price)s")
    between, after = rest.split(f"{_NAMING}%(key)s")
    return start, before, between, after


def _in_order(piece: str, *names: str) -> str:
    """Return a text with places for these values, which must be all of them."""
    if tuple(re.findall(r"%\((\w+)\)s", piece)) != names:
        raise TypeError(f"expected places for {names} in {piece!r}")
    return re.sub(r"%\(\w+\)s", "%s", piece)


_NAMING = ',"key":'
_MEMBERS = tuple(Committed.FORMS)
_pieces = _cut(_MEMBERS)
_START = _in_order(_pieces[0], "account")
_BELOW = _in_order(
    _pieces[1].replace("%(origin)s", _ORIGIN_MEMBERS), "accountant", "delta", "name", "account", "seq", "plan"
)
_OWN = _in_order(_cut(name for name in _MEMBERS if name != "origin")[1], "accountant", "delta", "name", "plan")
_BETWEEN = _in_order(_pieces[2], "tags")
_AFTER = _in_order(_pieces[3], "release", "seq", "time")


def start_of(account: str) -> str:
    """Return the beginning of the text of an account's entries."""
    return _START % quoted(account)


def find_unknown(
    body: str,
    start: str,
    *,
    accountant: str,
    delta: str,
    name: str,
    origin: tuple[str, int] | None,
    plan: str,
    tags: str,
    release: str,
    seq: int,
    time: str,
) -> tuple[str, PriceKey, str | None] | None:
    """Return actor, price and key of an entry that registers a release at once, which only its text states.

    Args:
        start: the result of ``start_of``.
        plan: as canonical JSON, like ``tags``.
        origin: account and entry of the registration, for a release of an account under this one; None for its own.

    Returns:
        None if the text is not, letter by letter, that of such an entry with all the other values.
    """
    if origin is None:
        before = _OWN % (quoted(accountant), quoted(delta), quoted(name), plan)
    else:
        before = _BELOW % (quoted(accountant), quoted(delta), quoted(name), quoted(origin[0]), origin[1], plan)
    between, after = _BETWEEN % tags, _AFTER % (quoted(release), seq, quoted(time))
    at, tags_at = body.find(before), body.rfind(between)
    actor, price = body[len(start) : at], body[at + len(before) : tags_at]
    naming = body[tags_at + len(between) : -len(after)]  # empty in older entries
    if at < 0 or body != f"{start}{actor}{before}{price}{between}{naming}{after}":
        return None
    amount, by = _amount_of(price), _name_of(actor)
    key = _name_of(naming.removeprefix(_NAMING)) if naming.startswith(_NAMING) else None
    if amount is None or by is None or (naming and key is None):
        return None
    return by, amount, key


class Registered(NamedTuple):
    """The content of an entry that registers a release at once; ``own``: in this account, not in one under it."""

    amount: PriceKey
    subject: SpendingKey
    own: bool


def registered(body: str) -> Registered | None:
    """Return the content of an entry's canonical text without parsing it; None if it must be parsed after all.

    Names are in order, and quotes within texts are escaped, so a name with its quotes stands nowhere else. The members
    after the plan are found from the end, whatever the plan holds.
    """
    start, at = _UP_TO_PLAN.match(body), body.rfind(_PRICE)
    if start is None or at < start.end():
        return None
    tags_at, committed = body.find(_TAGS, at), body.rfind(_COMMITTED)
    named = body.rfind(_KEY, max(tags_at, 0), max(committed, 0))
    end = committed - 1 if named < 0 else named  # older entries, and those of an issuer's principals, name no key
    if not at < tags_at < end:
        return None
    amount = price_key_in(body[at + len(_PRICE) - 1 : tags_at + 1])
    tags = _tags(body[tags_at + len(_TAGS) - 1 : end])
    if amount is None or tags is None:
        return None
    return Registered(amount, (body[start.end() : at], tags), start[1] is None)


def _up_to_plan() -> re.Pattern[str]:
    pattern = {str: r'"[^"\\]*(?:\\.[^"\\]*)*"', int: "[0-9]+"}
    origin = ",".join(f'"{name}":{pattern[kind]}' for name, kind in get_type_hints(Origin).items())
    start = re.escape(_template(_MEMBERS).split("%(plan)s")[0])
    start = start.replace(r',"origin":%\(origin\)s', rf'(,"origin":\{{{origin}\}})?')
    return re.compile(re.sub(r"%\\\(\w+\\\)s", lambda _: pattern[str], start))


def _before(after: str, member: str) -> str:
    """Return the fixed text between the values of two members."""
    return _template(_MEMBERS).split(f"%({after})s")[1].split(f"%({member})s")[0]


_UP_TO_PLAN = _up_to_plan()
_PRICE, _TAGS = _before("plan", "price") + "{", "}" + _before("price", "tags") + "["
_KEY, _COMMITTED = _before("tags", "key") + '"', _before("key", "release") + '"'


@lru_cache(maxsize=_REMEMBERED)
def _amount_of(text: str) -> PriceKey | None:
    """Return the price key in the text of an entry; None if the text is no price in canonical form."""
    try:
        price = json.loads(text)
        return price_key_of(price) if canonical(price) == text else None
    except (KeyError, TypeError, ValueError):
        return None


@lru_cache(maxsize=_REMEMBERED)
def _name_of(text: str) -> str | None:
    """Return the text with this canonical JSON; None if it is the canonical JSON of no text."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) and canonical(value) == text else None


@lru_cache(maxsize=_REMEMBERED)
def _tags(text: str) -> tuple[str, ...] | None:
    try:
        return tuple(json.loads(text))
    except ValueError:
        return None
