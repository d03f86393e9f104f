"""The entry of an allotment, of which no released version has written one yet."""

import json
from typing import Any

import pytest

from service.errors import InvalidInput
from service.ledger.journal.account_state import AccountState, Allotment
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import Allotted, ParsedEntry
from service.ledger.journal.entry_texts import NOTHING

PRICE = {"epsilon": "1", "rho": "1/2", "delta": "0", "linear": "0", "quanta": []}
PLAN = {"delta": "0", "epsilon": "1", "reference": "the budget of the account share", "type": "declared"}
CONTENT: dict[str, Any] = {
    "accountant": "1",
    "before": PLAN | {"epsilon": "2"},
    "caps": {"race": PRICE},
    "child": "share",
    "plan": PLAN,
    "price": PRICE,
}


def test_writing_undoes_reading() -> None:
    text = Allotted.read(CONTENT).content().text
    assert text == json.dumps(CONTENT, sort_keys=True, separators=(",", ":"))
    short = {name: value for name, value in CONTENT.items() if name not in ("before", "caps")}
    assert json.loads(Allotted.read(short).content().text) == short


@pytest.mark.parametrize("name", ["accountant", "child", "plan", "price"])
def test_a_member_that_is_missing_is_refused(name: str) -> None:
    with pytest.raises((KeyError, TypeError)):
        Allotted.read({other: value for other, value in CONTENT.items() if other != name})


@pytest.mark.parametrize("name", [*CONTENT, "unheard_of"])
@pytest.mark.parametrize("value", [7.5, True, [], [1], None])
def test_a_member_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError, InvalidInput)):
        Allotted.read(CONTENT | {name: value})


def _entry(**members: Any) -> ParsedEntry:
    return ParsedEntry("agency", 2, "allotted", None, "", "ann", None, Allotted.read({**CONTENT, **members}))


def test_an_entry_that_cannot_stand_is_refused() -> None:
    """Each counts the amount that it replaces, and every cap of the account."""
    chain = AccountState("agency")
    with pytest.raises(BrokenChain, match="another amount"):
        _entry().content.replay(chain, _entry())
    text = json.dumps(CONTENT["before"], sort_keys=True, separators=(",", ":"))
    chain.allot("share", Allotment(text, NOTHING, (), 1))
    with pytest.raises(BrokenChain, match="under every cap"):
        _entry().content.replay(chain, _entry())
