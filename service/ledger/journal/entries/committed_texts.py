"""The texts of entries that register a release at once, compared and read without parsing.

Most entries of a journal are such entries. All fixed parts of their texts follow from the names of their members.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple, get_type_hints

from service.ledger.journal.account_state import Charge
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.chains import UNREADABLE
from service.ledger.journal.entries.base import AROUND, Form
from service.ledger.journal.entries.registration import ORIGIN_MEMBERS, Committed, Origin
from service.ledger.journal.entry_texts import PriceKey, price_key_in, price_key_of

_REMEMBERED = 4096  # distinct values of a member
_NONE: Mapping[str, Any] = {}
_NAMING = ',"key":'
_ORIGIN = ',"origin":%(origin)s'
_PATTERNS = {str: r'"[^"\\]*(?:\\.[^"\\]*)*"', int: "[0-9]+"}
_KNOWN = ("accountant", "delta", "name", "plan")  # the values before the price, in order, of an account's own release
_KNOWN_BELOW = ("accountant", "delta", "name", *sorted(Origin._fields), "plan")


class OnlyStated(NamedTuple):
    """The values of an entry that only its text states.

    Attributes:
        optional: the optional members that the entry has, except its origin.
    """

    actor: str
    amount: PriceKey
    key: str | None
    optional: Mapping[str, Any]


def start_of(account: str) -> str:
    """Return the beginning of the text of an account's entries."""
    return _START % quoted(account)


class CommittedTexts:
    """The fixed texts of the entries of a kind that registers a release at once.

    Optional members may stand anywhere between the accountant and the plan; at least one other member is between two
    of them. The text before the price is cut at their places into pieces. Most entries have no such member, so the
    pieces are tried as one text first.
    """

    def __init__(self, kind: type[Committed]) -> None:
        """Cut the text of the kind's entries.

        Raises:
            TypeError: a member stands at a place that these texts cannot have.
        """
        names = tuple(kind.FORMS)
        optional = [name for name, form in kind.FORMS.items() if form.omitted and name != "origin"]
        self._optional = [(name, f',"{name}":', _reader(kind.FORMS[name])) for name in optional]
        start, rest = _template(names).split("%(actor)s")
        before, rest = rest.split("%(price)s")
        between, after = rest.split(f"{_NAMING}%(key)s")
        pieces: list[str] = []
        for name in optional:
            piece, before = _halves(before, f',"{name}":%({name})s')
            pieces.append(piece)
        pieces.append(before)
        own = [piece.replace(_ORIGIN, "") for piece in pieces]
        if not all(map(_PLACE.search, own)) or "%(plan)s" not in own[-1]:
            raise TypeError(f"expected optional members before the plan, each after another member, in {names}")
        below = [piece.replace("%(origin)s", ORIGIN_MEMBERS) for piece in pieces]
        self._own, self._below = _in_order(own, _KNOWN), _in_order(below, _KNOWN_BELOW)
        self._whole_own, self._whole_below = ("".join(piece for piece, _ in cut) for cut in (self._own, self._below))
        ((self._between, _),) = _in_order([between], ("tags",))
        ((self._after, _),) = _in_order([after], ("release", "seq", "time"))
        _, to_price = _halves(pieces[-1], "%(plan)s")
        patterns = [f"{start}%(actor)s{pieces[0]}", *pieces[1:]]
        patterns[-1] = patterns[-1].removesuffix(f"%(plan)s{to_price}")
        self._up_to_plan = re.compile(_pattern("".join(patterns)))
        self._pieces_up_to_plan = [re.compile(_pattern(piece)) for piece in patterns]
        self._price, self._tags = to_price + "{", "}" + _halves(between, "%(tags)s")[0] + "["
        committed = _halves(after, "%(release)s")[0]
        self._key, self._committed = _halves(between, "%(tags)s")[1] + _NAMING + '"', committed + '"'

    def find_unknown(
        self,
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
    ) -> OnlyStated | None:
        """Return the values of an entry that registers a release at once, as far as only its text states them.

        Args:
            start: the result of ``start_of``.
            plan: as canonical JSON, like ``tags``.
            origin: account and entry of the registration, for a release of an account under this one; None for its own.

        Returns:
            None if the text is not, letter by letter, that of such an entry with all the other values.
        """
        known: tuple[object, ...]
        if origin is None:
            whole, pieces = self._whole_own, self._own
            known = quoted(accountant), quoted(delta), quoted(name), plan
        else:
            whole, pieces = self._whole_below, self._below
            known = quoted(accountant), quoted(delta), quoted(name), quoted(origin[0]), origin[1], plan
        fixed = whole % known
        at = body.find(fixed, len(start))
        actor, end, optional = body[len(start) : at], at + len(fixed), _NONE
        if at < 0:
            found = self._beside_optional(body, len(start), [piece % known[places] for piece, places in pieces])
            if found is None:
                return None
            actor, end, optional = found
        between, after = self._between % tags, self._after % (quoted(release), seq, quoted(time))
        tags_at = body.rfind(between)
        price = body[end:tags_at]
        naming = body[tags_at + len(between) : -len(after)]  # empty in older entries
        if body != f"{start}{body[len(start) : end]}{price}{between}{naming}{after}":
            return None
        amount, by = _amount_of(price), _name_of(actor)
        key = _name_of(naming.removeprefix(_NAMING)) if naming.startswith(_NAMING) else None
        if amount is None or by is None or (naming and key is None):
            return None
        return OnlyStated(by, amount, key, optional)

    def registered(self, body: str) -> Charge | None:
        """Return the charge of an entry's canonical text without parsing it; None if it must be parsed after all.

        Names are in order, and quotes within texts are escaped, so a name with its quotes stands nowhere else. The
        members after the plan are found from the end, whatever the plan holds.
        """
        match = self._up_to_plan.match(body)
        if match is not None:
            plan_at, own, optional = match.end(), match[1] is None, _NONE
        else:
            found = self._start_beside_optional(body)
            if found is None:
                return None
            plan_at, own, optional = found
        at = body.rfind(self._price)
        if at < plan_at:
            return None
        tags_at, committed = body.find(self._tags, at), body.rfind(self._committed)
        named = body.rfind(self._key, max(tags_at, 0), max(committed, 0))
        end = committed - 1 if named < 0 else named  # older entries, and those of an issuer's principals, name no key
        if not at < tags_at < end:
            return None
        amount = price_key_in(body[at + len(self._price) - 1 : tags_at + 1])
        tags = _tags_of(body[tags_at + len(self._tags) - 1 : end])
        if amount is None or tags is None:
            return None
        return Charge(amount, (body[plan_at:at], tags), own, **optional)

    def _beside_optional(
        self, body: str, start: int, pieces: Sequence[str]
    ) -> tuple[str, int, Mapping[str, Any]] | None:
        """Find pieces with optional members between them; return the text before them, their end and the members."""
        gaps, end = list[str](), start
        for piece in pieces:
            at = body.find(piece, end)
            if at < 0:
                return None
            gaps.append(body[end:at])
            end = at + len(piece)
        optional = self._optional_in(gaps[1:])
        return None if optional is None else (gaps[0], end, optional)

    def _start_beside_optional(self, body: str) -> tuple[int, bool, Mapping[str, Any]] | None:
        """Return the start of an entry's plan, whether the release is the account's own, and the optional members."""
        gaps, end, own = list[str](), 0, True
        for pattern in self._pieces_up_to_plan:
            match = pattern.search(body, end) if gaps else pattern.match(body)
            if match is None:
                return None
            gaps.append(body[end : match.start()])
            end, own = match.end(), own and (not pattern.groups or match[1] is None)
        optional = self._optional_in(gaps[1:])
        return None if optional is None else (end, own, optional)

    def _optional_in(self, gaps: Sequence[str]) -> Mapping[str, Any] | None:
        """Return the optional members in the gaps between pieces; None where one of them is anything else."""
        optional: dict[str, Any] = {}
        for (name, label, read), gap in zip(self._optional, gaps, strict=True):
            if gap:
                optional[name] = read(gap.removeprefix(label)) if gap.startswith(label) else None
                if optional[name] is None:
                    return None
        return optional


def _template(members: Iterable[str]) -> str:
    """Return the text of an entry that registers a release at once, with a place for each value."""
    content = ",".join(f'"{name}":%({name})s' for name in members)
    stated = {name: f"%({name})s" for name in AROUND} | {"content": f"{{{content}}}", "kind": f'"{Committed.KIND}"'}
    return "{" + ",".join(f'"{name}":{value}' for name, value in stated.items()) + "}"


def _halves(text: str, mark: str) -> tuple[str, str]:
    """Return the texts before and after a mark.

    Raises:
        TypeError: it does not stand in the text exactly once.
    """
    halves = text.split(mark)
    if len(halves) != 2:
        raise TypeError(f"expected {mark!r} once in {text!r}")
    return halves[0], halves[1]


_PLACE = re.compile(r"%\((\w+)\)s")


def _in_order(pieces: Iterable[str], names: tuple[str, ...]) -> list[tuple[str, slice]]:
    """Return texts with places for these values, which must be all of them, each with the part of the values it takes.

    Raises:
        TypeError: there are other places.
    """
    cut, found = [], list[str]()
    for piece in pieces:
        places = _PLACE.findall(piece)
        cut.append((_PLACE.sub("%s", piece), slice(len(found), len(found) + len(places))))
        found += places
    if tuple(found) != names:
        raise TypeError(f"expected places for {names}, got {found}")
    return cut


def _pattern(piece: str) -> str:
    """Return the pattern of a piece with any values; its first group, if there is one, is an origin."""
    origin = ",".join(f'"{name}":{_PATTERNS[kind]}' for name, kind in sorted(get_type_hints(Origin).items()))
    pattern = re.escape(piece).replace(re.escape(_ORIGIN), rf'(,"origin":\{{{origin}\}})?')
    return re.sub(r"%\\\(\w+\\\)s", lambda _: _PATTERNS[str], pattern)


def _reader(form: Form) -> Callable[[str], Any]:
    """Return a function that reads a member's canonical JSON; it returns None for any other text."""

    @lru_cache(maxsize=_REMEMBERED)
    def read(text: str) -> Any:
        try:
            value = form.read(json.loads(text))
            return value if form.write(value) == text else None
        except UNREADABLE:
            return None

    return read


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
def _tags_of(text: str) -> tuple[str, ...] | None:
    try:
        return tuple(json.loads(text))
    except ValueError:
        return None


_START = _template(()).split("%(actor)s")[0].replace("%(account)s", "%s")
_TEXTS = CommittedTexts(Committed)
find_unknown, registered = _TEXTS.find_unknown, _TEXTS.registered
