"""Spending of an account: distinct summands with their numbers, from which balances are computed."""

import json
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import text

from service.ledger.journal.replay import replay
from service.ledger.spending import subplans
from service.ledger.spending.spending import as_plan, condensed, counts
from service.ledger.spending.subplans import nameless, subplans_of
from service.ledger.storage.database import Database
from service.privacy.accounting.zcdp import plan_rho
from service.privacy.plans import Plan
from service.privacy.plans.notation import read_plan, write_plan
from service.privacy.plans.walking import Neighbouring, condense
from tests.ledger.charging import account_of, charge, entries_of, open_account

_A = {"type": "gaussian", "rho": "0.01"}
_B = {"type": "gaussian", "rho": "0.02"}


def _subplans(plan: dict[str, Any], *tags: str) -> Counter[str]:
    return subplans_of(read_plan(plan), tags)


def _rho(plan: Plan) -> Fraction | None:
    return plan_rho(plan, Neighbouring.ADD_REMOVE).nats


def test_names_and_the_order_of_parts_do_not_distinguish() -> None:
    one = _subplans({"type": "sequence", "parts": [_A | {"name": "x"}, _B, _A]})
    other = _subplans({"type": "sequence", "parts": [_B | {"name": "y"}, {"type": "sequence", "parts": [_A, _A]}]})
    assert one == other
    assert sorted(one.values()) == [1, 2]


def test_tags_distinguish_and_come_down_from_every_node_above() -> None:
    plan = {"type": "sequence", "tags": ["s"], "parts": [_A | {"tags": ["a", "s"]}, _A]}
    found = _subplans(plan, "r")
    assert sorted(json.loads(subplan)["tags"] for subplan in found) == [["a", "r", "s"], ["r", "s"]]


def test_other_nodes_stay_whole() -> None:
    plan = {"type": "parallel", "max_degree": 1, "tags": ["p"], "parts": [_A | {"name": "x", "tags": ["t"]}, _B]}
    ((subplan, count),) = _subplans(plan).items()
    assert count == 1
    document = json.loads(subplan)
    assert (document["type"], document["tags"]) == ("parallel", ["p"])
    assert "name" not in document["parts"][0]


@pytest.mark.parametrize(
    "plan",
    [
        {"type": "repeat", "count": 3, "part": {"type": "choice", "parts": [_A, _B | {"name": "n"}]}},
        {"type": "declared", "rho": "1/3", "delta": "1e-300", "reference": "r", "name": "d"},
        {"type": "geometric", "epsilon": "1e-390", "sensitivity": 2**53, "name": "far beyond the limits of a scale"},
        {"type": "laplace", "scale": f"1/{2**1023}"},
    ],
)
def test_a_subplan_means_the_same_when_it_is_read_again(plan: dict[str, Any]) -> None:
    value = nameless(read_plan(plan))
    ((subplan, count),) = subplans_of(value, ()).items()
    assert count == 1
    assert nameless(read_plan(json.loads(subplan))) == value
    assert nameless(read_plan(write_plan(value))) == value


@pytest.mark.parametrize("tag", [None, "t", "u", "v"])
def test_spending_is_condensed_as_its_plan_is(tag: str | None) -> None:
    parts = [
        _A | {"name": "x", "tags": ["t"]},
        {"type": "repeat", "count": 3, "part": {"type": "sequence", "parts": [_A, _B], "tags": ["u"]}},
        {"type": "choice", "parts": [_A, _B | {"tags": ["t"]}]},
        {"type": "group", "size": 3, "part": {"type": "declared", "epsilon": "0.1", "reference": "r" * 300}},
    ]
    spent = _subplans({"type": "sequence", "parts": parts}) + _subplans(_A) + _subplans(_A)
    for _ in range(2):
        assert condensed(spent, tag) == condense(as_plan(spent, tag))
        assert condensed(spent, tag).size == condense(as_plan(spent, tag)).size


def test_few_condensed_subplans_are_kept_and_no_long_ones() -> None:
    (long,) = _subplans({"type": "declared", "epsilon": "0.1", "reference": "r" * 300})
    (short,) = _subplans({"type": "declared", "epsilon": "0.1", "reference": "of this test"})
    for subplan, kept in ((long, 0), (short, 1), (short, 1)):
        before = subplans._condensed.cache_info()
        subplans.condensed_in(subplan)
        after = subplans._condensed.cache_info()
        assert after.misses - before.misses + after.hits - before.hits == kept
    assert after.hits - before.hits == 1
    assert after.maxsize == 1 << 17


def test_equal_spending_is_one_row_however_often(database: Database) -> None:
    open_account(database)
    for _ in range(5):
        charge(database, {"type": "sequence", "parts": [_A, _B, _A]})
    charge(database, _B, _B)
    with database.read() as connection:
        rows = connection.execute(text("SELECT occurrences FROM spending")).scalars().all()
        assert sorted(rows) == [7, 10]
        committed, held = counts(connection, account_of(database))
        assert (_rho(as_plan(committed)), held) == (Fraction(24, 100), Counter())


def test_spending_by_tag_and_its_replay_from_the_journal(database: Database) -> None:
    open_account(database)
    charge(database, _A | {"tags": ["t"]})
    charge(database, {"type": "sequence", "parts": [_B | {"tags": ["u"]}, _A], "tags": ["t"]})
    charge(database, {"type": "choice", "parts": [_B | {"tags": ["u"]}, _A]})
    account = account_of(database)
    entries = entries_of(database)
    with database.read() as connection:
        for tag, rho in ((None, "0.06"), ("t", "0.04"), ("u", "0.04"), ("v", "0")):
            spent, _ = counts(connection, account)
            assert _rho(as_plan(spent, tag)) == Fraction(rho)
            moment = replay(connection, account, account.head.seq)
            assert _rho(as_plan(moment.committed, tag)) == Fraction(rho)
            assert moment.account == account
            assert moment.account.releases == 3
        earlier = replay(connection, account, 2)
        assert (earlier.account.head.hash, earlier.account.releases) == (entries[1].hash, 1)
        assert earlier.account.totals.rho.finite == Fraction(1, 100)
