"""Figures read from an entry's text without parsing it are those that parsing gives, whatever names are in it."""

import json
from typing import Any

import pytest

from service.ledger.journal import replay
from service.ledger.journal.account_state import Charge
from service.ledger.journal.entries.committed_texts import registered
from service.ledger.journal.entry_texts import price_key_of, spending_key_of
from service.ledger.journal.journal import BEFORE_FIRST, AccountHead, Actor, Kind, following
from service.ledger.storage.database import Database
from tests.ledger.charging import account_of
from tests.ledger.ledgers import Clock, everything

_PRICE = {"epsilon": None, "rho": "1/7", "delta": "0", "linear": "1/7", "quanta": ["1", None, "3"]}
_NAMES = (
    "",
    "été \U0001f600",
    "\\",
    'x","plan":{},"price":{"delta":"0"},"tags":[]},"kind":"committed","release":"y',
    '\\","plan":{"a":1},"price":{',
    '},"tags":[\\\\',
    "\n\x01",
)


def _body(
    kind: Kind, content: dict[str, object], account: str = "people", actor: str = "ann", key: str | None = None
) -> str:
    chain, who = AccountHead(1, account, BEFORE_FIRST), Actor(actor, key)
    row, _ = following(chain, kind, content, actor=who, release_id="r", at="now")
    return str(row["body"])


def _content(text: str, **more: object) -> dict[str, object]:
    plan = {"type": "geometric", "epsilon": "1/3", "name": text, "tags": [text, "t"]}
    return {"accountant": "1", "name": text, "plan": plan, "tags": [text], "delta": "0", "price": _PRICE, **more}


@pytest.mark.parametrize("text", _NAMES)
@pytest.mark.parametrize("origin", [None, "below"])
@pytest.mark.parametrize("named", [True, False])
def test_names_cannot_pass_for_what_is_beside_them(text: str, origin: str | None, named: bool) -> None:
    above: dict[str, Any] = {} if origin is None else {"origin": {"account": text, "seq": 7}}
    body = _body("committed", _content(text, **above), account=text, actor=text, key=text if named else None)
    content = json.loads(body)["content"]
    assert registered(body) == Charge(price_key_of(content["price"]), spending_key_of(content), origin is None)


def test_all_other_entries_are_left_to_be_parsed() -> None:
    assert registered(_body("committed", {})) is None
    assert registered(_body("reserved", _content("a", expires_at="later"))) is None
    assert registered(_body("committed", _content("a", expires_at="later"))) is None
    assert registered(_body("refused", _content("a"))) is None
    assert registered(_body("repriced", {"was": _PRICE, "price": _PRICE, "accountant": "1"})) is None
    assert registered(_body("committed", _content("a", price={"rho": "1"}))) is None
    assert registered("") is None


def test_an_account_is_the_same_at_every_entry_with_all_of_them_parsed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(database, Clock(monkeypatch))
    for name in ("agency", "programme", "product", "alone"):
        account = account_of(database, name)
        with database.read() as connection:
            moments = [replay.replay(connection, account, seq) for seq in range(1, account.head.seq + 1)]
            with monkeypatch.context() as patched:
                patched.setattr(replay, "registered", lambda _: None)
                assert moments == [replay.replay(connection, account, seq) for seq in range(1, account.head.seq + 1)]
        assert moments[-1].account.totals == account.totals
