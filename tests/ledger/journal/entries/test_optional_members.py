"""Optional members of registrations, before there is a real one: the fast paths read what parsing reads."""

import json
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, NamedTuple

import pytest

from service.ledger.journal.account_state import Charge
from service.ledger.journal.entries import Committed, Origin, committed_texts, registration
from service.ledger.journal.entries.base import Form, Text, TextOrNone
from service.ledger.journal.entries.committed_texts import CommittedTexts, start_of
from service.ledger.journal.entry_texts import PriceKey, write
from service.ledger.journal.journal import BEFORE_FIRST, AccountHead, Actor, following

_PRICE: PriceKey = ("1", "1/7", "0", "0", ("1", None))
_ORIGIN = Origin('be"low', 7)


def _read_shares(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise TypeError("expected shares")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared(Committed):
    """A registration with two optional members, which stand between others as those to come do."""

    ended: Annotated[dict[str, Any] | None, Form(_read_shares, write, omitted=True)] = None
    periods: Annotated[str | None, Form(str, omitted=True)] = None


class _SharedCharge(NamedTuple):
    amount: PriceKey
    subject: object
    own: bool
    ended: dict[str, Any] | None = None
    periods: str | None = None


class _OwnMembers(NamedTuple):
    price: PriceKey
    ended: dict[str, Any] | None = None
    periods: str | None = None


_ENDS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"a": {"delta": "0", "quanta": ["1", None, -3]}},
    {'x","delta":"0","name":"n': {',"delta":"0","name":"n"': [{"plan": {}}]}},
)
_PERIODS = (None, "all", '","plan":{"type":"p"},"price":{', "\\")
_NAMES = ("n", '","periods":"all","plan":{', 'é\\"')


def _content(name: str, ended: dict[str, Any] | None, periods: str | None, origin: Origin | None) -> _Shared:
    plan = write({"type": "geometric", "epsilon": "1", "name": name, "tags": [name]})
    return _Shared(
        accountant="1",
        ended=ended,
        delta="0",
        name=name,
        origin=origin,
        periods=periods,
        plan=plan,
        price=_PRICE,
        tags=(name,),
    )


def _body(content: Committed, actor: str = "ann") -> str:
    chain = AccountHead(1, "people", BEFORE_FIRST)
    row, _ = following(chain, content.KIND, content.content(), actor=Actor(actor, "key"), release_id="r", at="now")
    return str(row["body"])


def _found(texts: CommittedTexts, body: str, content: Committed) -> Any:
    return texts.find_unknown(
        body,
        start_of("people"),
        accountant=content.accountant,
        delta=content.delta,
        name=content.name,
        origin=content.origin,
        plan=content.plan,
        tags=write(list(content.tags)),
        release="r",
        seq=1,
        time="now",
    )


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> CommittedTexts:
    monkeypatch.setattr(committed_texts, "Charge", _SharedCharge)
    return CommittedTexts(_Shared)


@pytest.mark.parametrize("origin", [None, _ORIGIN])
def test_what_is_read_without_parsing_is_what_was_written(texts: CommittedTexts, origin: Origin | None) -> None:
    for name, ended, periods in product(_NAMES, _ENDS, _PERIODS):
        content = _content(name, ended, periods, origin)
        body = _body(content, actor=name)
        stated = {key: value for key, value in (("ended", ended), ("periods", periods)) if value is not None}
        charge = (_PRICE, (content.plan, content.tags), origin is None, ended, periods)
        assert tuple(texts.registered(body) or ()) == charge
        assert _found(texts, body, content) == (name, _PRICE, "key", stated)
        assert _Shared.read(json.loads(body)["content"]) == content


def test_a_value_that_holds_the_text_after_it_is_left_to_be_parsed(texts: CommittedTexts) -> None:
    ended = {"a": {"a": "0", "name": "n"}}
    content = _content("n", ended, None, None)
    body = _body(content)
    assert texts.registered(body) is None
    assert _found(texts, body, content) is None
    assert _Shared.read(json.loads(body)["content"]) == content


@pytest.mark.parametrize(
    ("was", "instead"),
    [
        ('"ended":{"a"', '"basit":{"a"'),  # another member
        ('"ended":{"a"', '"ended": {"a"'),  # not canonical
        ('"ended":{"a":', '"ended":{"a" '),  # no JSON
        ('"periods":"all"', '"periods":7'),  # another type
        ('"periods":"all"', '"periods":null'),  # canonical entries leave it out
        ('"periods":"all"', '"periods":"all","periods":"all"'),
        ('"periods":"all",', ""),
        ('"name":"n"', '"name":"m"'),
        ('"delta":"0","ended"', '"delta":"1","ended"'),
    ],
)
def test_a_text_that_is_not_the_entrys_is_left_to_be_parsed(texts: CommittedTexts, was: str, instead: str) -> None:
    content = _content("n", _ENDS[1], "all", None)
    body = _body(content)
    assert _found(texts, body, content) is not None
    changed = body.replace(was, instead, 1)
    found = _found(texts, changed, content)
    assert changed != body
    assert found is None or (found.optional == {"ended": _ENDS[1]} and not instead)


def test_a_line_has_each_accounts_own_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "OwnMembers", _OwnMembers)
    content = _content("n", _ENDS[1], None, None)
    other = ("2", "1", "0", "0", ())
    above: Any = [_OwnMembers(other), _OwnMembers(other, {"b": 1}, "all")]
    said = [_Shared.read(json.loads(written.text)) for written in content.contents_in_line(above, _ORIGIN)]
    assert [(one.price, one.ended, one.periods, one.origin) for one in said] == [
        (other, None, None, _ORIGIN),
        (other, {"b": 1}, "all", _ORIGIN),
        (_PRICE, _ENDS[1], None, None),
    ]
    assert {(one.plan, one.name, one.tags) for one in said} == {(content.plan, content.name, content.tags)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _First(Committed):
    """A registration whose optional member would be the first."""

    aaa: Annotated[str | None, Form(str, omitted=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Late(Committed):
    """A registration whose optional member would follow the plan."""

    plans: Annotated[str | None, Form(str, omitted=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Twice(Committed):
    """A registration with two optional members side by side."""

    one: Annotated[str | None, Form(str, omitted=True)] = None
    only: Annotated[str | None, Form(str, omitted=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Always(Committed):
    """A registration with a further member that is always there."""

    more: Text = ""
    nothing: TextOrNone = None


@pytest.mark.parametrize("kind", [_First, _Late, _Twice, _Always])
def test_members_at_other_places_are_refused_when_the_service_starts(kind: type[Committed]) -> None:
    with pytest.raises(TypeError, match="expected"):
        CommittedTexts(kind)


def test_a_charge_is_the_contents() -> None:
    content = _content("n", None, None, _ORIGIN)
    assert content.charge == Charge(_PRICE, (content.plan, ("n",)), own=False)


@pytest.mark.parametrize("origin", [None, _ORIGIN])
@pytest.mark.parametrize("caps", [None, (("a", _PRICE), ("b", _PRICE))])
@pytest.mark.parametrize("periods", [None, '"all"', '{"from":"2026-01","to":"2026-03"}'])
def test_caps_and_periods_are_read_beside_each_other(origin: Any, caps: Any, periods: str | None) -> None:
    said: dict[str, Any] = {"accountant": "1", "delta": "0", "name": "n", "price": _PRICE, "tags": ("n",)}
    content = Committed(caps=caps, origin=origin, periods=periods, plan='{"type":"p"}', **said)
    body = _body(content)
    assert committed_texts.registered(body) == content.charge
    assert content.charge[3:] == (caps or (), periods)
    found = committed_texts.find_unknown(
        body,
        start_of("people"),
        accountant="1",
        delta="0",
        name="n",
        origin=origin,
        plan=content.plan,
        tags='["n"]',
        release="r",
        seq=1,
        time="now",
    )
    stated = {name: value for name, value in (("caps", caps), ("periods", periods)) if value is not None}
    assert found == ("ann", _PRICE, "key", stated)
    assert Committed.read(json.loads(body)["content"]) == content
