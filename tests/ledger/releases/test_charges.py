"""Charges: admission, all or nothing, queues, and totals that are the sum of the journal bit for bit."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from sqlalchemy import event, text

from service.errors import AccountClosed, Altered, BudgetExceeded, InvalidInput, NotFound
from service.ledger.releases import budget_refusals, charges, preparation
from service.ledger.releases.preparation import NewRelease
from service.ledger.storage.database import Database
from service.privacy.accounting import pricing
from service.privacy.accounting.pricing import ACCOUNTANT, Price, estimate_price
from service.privacy.accounting.privacy_filter import remaining
from service.privacy.plans.notation import read_plan
from tests.ledger.charging import (
    account_of,
    change_account,
    charge,
    entries_of,
    of_every_definition,
    open_account,
    prepared,
)
from tests.ledger.writing import unprotected

_TENTH = {"type": "gaussian", "rho": "0.1"}
_APPROXIMATE = {"definition": "approximate", "epsilon": "1", "delta": "1e-9"}


def _random_plan(random: Random, depth: int = 2) -> dict[str, Any]:
    """Any kind of node or mechanism, with cheap parameters of awkward denominators."""
    small = f"{random.randint(1, 9)}/{random.choice((997, 1000, 1009, 10**6 + 3))}"
    if depth == 0 or random.random() < 0.3:
        return random.choice([
            {"type": "geometric", "epsilon": small, "sensitivity": random.randint(1, 3)},
            {"type": "discrete_gaussian", "sigma_squared": random.choice(("0.7", "1.9", "7/3", "1234.5"))},
            {"type": "discrete_gaussian", "rho": small, "cells": 2},
            {"type": "laplace", "epsilon": small},
            {"type": "gaussian", "rho": small, "tags": ["g"]},
            {"type": "declared", "epsilon": small, "delta": "1e-12", "reference": "r"},
            {"type": "declared", "rdp": [{"alpha": "9", "epsilon": small}], "reference": "r"},
        ])  # fmt: skip
    parts = [_random_plan(random, depth - 1) for _ in range(random.randint(1, 3))]
    return random.choice([
        {"type": "sequence", "parts": parts},
        {"type": "parallel", "max_degree": random.randint(1, 3), "parts": parts},
        {"type": "choice", "parts": parts},
        {"type": "repeat", "count": random.randint(1, 5), "part": parts[0]},
    ])  # fmt: skip


@of_every_definition
def test_after_a_random_history_the_journal_gives_the_totals(database: Database, budget: dict[str, str]) -> None:
    random = Random(2020)
    open_account(database, **budget)
    outcomes: Counter[str] = Counter()
    for _ in range(60):
        before = account_of(database)
        plans = [_random_plan(random) for _ in range(random.choice((1, 1, 3)))]
        try:
            charge(database, *plans)
        except BudgetExceeded:
            outcomes["refused"] += 1
            assert account_of(database).totals == before.totals
        else:
            outcomes["charged"] += 1
        if random.random() < 0.1:
            change_account(database, "people", random.choice(("closed", "open")))
            change_account(database, "people", "open")
    account, entries = account_of(database), entries_of(database)
    assert outcomes["charged"] > 5
    assert sum(entry.kind == "committed" for entry in entries) >= outcomes["charged"]
    assert remaining(account.budget, account.weights, account.totals) >= 0
    stored = _column(database, "SELECT price FROM releases ORDER BY seq")
    journalled = [json.loads(entry.body)["content"]["price"] for entry in entries if entry.kind == "committed"]
    assert [json.loads(price) for price in stored] == journalled


def _column(database: Database, query: str) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(text(query)).scalars())


def test_a_charge_fits_exactly_or_not_at_all(database: Database) -> None:
    open_account(database)
    charge(database, *[_TENTH] * 9)
    with pytest.raises(BudgetExceeded):
        charge(database, {"type": "gaussian", "rho": str(Fraction(1, 10) + Fraction(1, 10**50))})
    charge(database, _TENTH)
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, {"type": "gaussian", "rho": "1e-390"})
    (failure,) = refused.value.failures
    assert (failure.account, failure.definition, failure.cap) == ("people", "zcdp", "rho")
    assert (failure.remaining, failure.requested) == (Fraction(0), Fraction(1, 10**18))
    assert refused.value.noise_multiplier() is None


def test_a_refusal_says_what_would_have_fitted_when_it_is_asked(database: Database) -> None:
    """rho goes with the inverse square of the noise: 0.4 fits 0.1 at twice the noise."""
    open_account(database, definition="zcdp", rho="0.1")
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, {"type": "gaussian", "rho": "0.4"})
    assert refused.value.noise_multiplier() == 2


def test_all_of_a_batch_or_nothing(database: Database) -> None:
    opened = open_account(database)
    with pytest.raises(BudgetExceeded):
        charge(database, *[_TENTH] * 11)
    assert account_of(database).totals == opened.totals
    for table in ("releases", "release_tags", "spending"):
        assert _column(database, f"SELECT * FROM {table}") == []
    assert len(charge(database, *[_TENTH] * 10)) == 10


def test_a_closed_account_takes_nothing(database: Database) -> None:
    open_account(database)
    change_account(database, "people", "closed")
    for attempt in (charge, lambda *_: charges.dry_run(database, prepared(database, _TENTH))):
        with pytest.raises(AccountClosed):
            attempt(database, _TENTH)


def test_a_rehearsal_is_the_charge_without_its_traces(database: Database) -> None:
    opened = open_account(database)
    (rehearsed,) = charges.dry_run(database, prepared(database, _TENTH))
    assert rehearsed.account.totals.rho.finite == Fraction(1, 10)
    assert account_of(database) == opened
    (charged,) = charge(database, _TENTH)
    assert charged.account.totals == rehearsed.account.totals
    with pytest.raises(BudgetExceeded):
        charges.dry_run(database, prepared(database, {"type": "gaussian", "rho": "0.91"}))


def test_what_was_prepared_for_one_account_is_not_charged_to_another(database: Database) -> None:
    open_account(database)
    open_account(database, "other", definition="approximate", epsilon="1", delta="1e-6")
    both = [*prepared(database, _TENTH, name="other"), *prepared(database, _TENTH)]
    with pytest.raises(ValueError, match="prepared for other"):
        charges.dry_run(database, both)


def test_a_release_is_priced_before_its_account_is_locked(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(database)
    ready = prepared(database, _TENTH)
    monkeypatch.delattr(preparation, "price")  # whoever prices under the lock fails now
    (registered,) = charges.dry_run(database, ready)
    assert registered.account.totals.rho.finite == Fraction(1, 10)


def test_what_is_charged_is_written_down(database: Database) -> None:
    open_account(database)
    plan = {"type": "sequence", "parts": [_TENTH | {"tags": ["b", "a"]}, _TENTH], "tags": ["s"]}
    (registered,) = charge(database, plan)
    entry = entries_of(database)[-1]
    assert (entry.kind, entry.release_id, entry.seq) == ("committed", registered.id, registered.account.head.seq)
    content = json.loads(entry.body)["content"]
    assert content["plan"] == plan
    assert (content["price"]["rho"], content["price"]["epsilon"], content["accountant"]) == ("1/5", None, ACCOUNTANT)
    assert _column(database, "SELECT tag FROM release_tags ORDER BY tag") == ["a", "b", "s"]


def test_plans_that_mean_nothing_to_the_account(database: Database) -> None:
    opened = open_account(database)
    response = {"type": "randomized_response", "epsilon": "0.1"}
    with pytest.raises(InvalidInput) as refused:
        charge(database, {"type": "sequence", "parts": [_TENTH, response]})
    assert [fault.pointer for fault in refused.value.faults] == ["/plan/parts/1/type"]
    with pytest.raises(NotFound):
        charge(database, _TENTH, name="nobody")
    assert account_of(database) == opened


def test_threads_fill_a_budget_exactly(database: Database) -> None:
    open_account(database, definition="pure", epsilon="2")
    plan = {"type": "geometric", "epsilon": "0.1"}

    def attempt(_: int) -> bool:
        try:
            charge(database, plan)
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(16) as threads:
        assert Counter(threads.map(attempt, range(40))) == {True: 20, False: 20}
    assert account_of(database).totals.epsilon.finite == 2
    assert Counter(entry.kind for entry in entries_of(database)) == {
        "account_opened": 1,
        "committed": 20,
        "refused": 20,
    }


def test_a_charge_runs_the_same_statements_however_long_the_ledger_is(database: Database) -> None:
    open_account(database)
    charge(database, {"type": "gaussian", "rho": "0.001"})  # after this one nothing is prepared for the first time
    statements: list[str] = []
    event.listen(database.pools.writer, "before_cursor_execute", lambda *given: statements.append(given[2]))
    charge(database, {"type": "gaussian", "rho": "0.001"})
    first = statements.copy()
    charge(database, *[{"type": "gaussian", "rho": f"{n}/1000000"} for n in range(1, 200)])
    statements.clear()
    charge(database, {"type": "gaussian", "rho": "0.001"})
    assert len(statements) == len(first) < 12
    assert [_kind(statement) for statement in statements] == [_kind(statement) for statement in first]


def _kind(statement: str) -> str:
    """The statement without the time that is left, which PostgreSQL is told as a number."""
    return " ".join(word for word in statement.split() if not any(map(str.isdigit, word)))


def _geometric(scale: str) -> dict[str, Any]:
    return {"type": "geometric", "scale": scale}


@pytest.mark.parametrize(
    ("budget", "parts", "steps"),
    [
        ({"definition": "pure", "epsilon": "1"}, [_geometric("1")] * 2, 30),
        ({"definition": "pure", "epsilon": "1"}, [_geometric(f"0.{number}") for number in range(11, 19)], 30),
        ({"definition": "zcdp", "rho": "1e-3"}, [{"type": "gaussian", "rho": f"0.{k}"} for k in range(11, 41)], 30),
        ({"definition": "pure", "epsilon": "1"}, [_geometric(f"0.{number}") for number in range(11, 61)], 0),
        ({"definition": "zcdp", "rho": "1e-3"}, [{"type": "gaussian", "rho": f"0.{k}"} for k in range(100, 500)], 0),
        ({"definition": "zcdp", "rho": "1e-3"}, [{"type": "gaussian", "rho": "0.1"}] * 200, 0),
        ({"definition": "zcdp", "rho": "1e-9"}, [{"type": "osgt", "sigma_squared": "40", "m": "3"}], 0),
        ({"definition": "pure", "epsilon": "1"}, [{"type": "discrete_osgt", "sigma_squared": "1.5", "m": "0.001"}], 0),
        (_APPROXIMATE, [_geometric("0.1"), {"type": "discrete_gaussian", "sigma_squared": "1"}], 40),
        (_APPROXIMATE, [_geometric(f"0.{number}") for number in range(11, 31)], 0),
    ],
)
def test_a_refusal_searches_for_noise_where_that_takes_few_and_light_steps(
    database: Database, monkeypatch: pytest.MonkeyPatch, budget: dict[str, str], parts: list[Any], steps: int
) -> None:
    """The serving process searches: decided beforehand, not at all where it would take long."""
    estimated: list[Price] = []

    def counted(*asked: Any) -> Price:
        estimated.append(estimate_price(*asked))
        return estimated[-1]

    monkeypatch.setattr(budget_refusals, "estimate_price", counted)
    open_account(database, **budget)
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, {"type": "sequence", "parts": parts})
    assert (refused.value.noise_multiplier() is not None) is (steps > 0)
    assert len(estimated) <= steps
    assert bool(estimated) is (steps > 0)


@pytest.mark.parametrize("scale", ["1e-300", "1e300"])
def test_no_refusal_searches_by_exact_prices_at_many_orders(
    database: Database, monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    open_account(database, **_APPROXIMATE)
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, {"type": "sequence", "parts": [_geometric("0.1"), _geometric(scale)]})
    monkeypatch.delattr(pricing, "_price")
    assert refused.value.noise_multiplier() is None


def test_a_refusal_of_a_long_plan_does_not_even_read_it(database: Database) -> None:
    open_account(database, rho="1e-3", definition="zcdp")
    plan = {"type": "gaussian", "rho": "0.1"}
    for tags, expected in (([], True), ([f"{number:0100}" for number in range(200)], False)):
        with pytest.raises(BudgetExceeded) as refused:
            charge(database, plan | {"tags": tags})
        assert (refused.value.noise_multiplier() is not None) is expected


def test_the_delta_of_a_release_is_that_of_the_sealed_budget(database: Database) -> None:
    """The owner of the database may show another text of the budget for a moment."""
    open_account(database, definition="approximate", epsilon="8", delta="1e-6")
    plan = {"type": "gaussian", "rho": "1/64"}
    asked = [NewRelease("a release", read_plan(plan), plan, (), None, "/plan", None, None)]
    (before,) = preparation.prepare(database, "people", asked)
    assert before.delta == Fraction(1, 10**6)
    with database.read() as connection:
        budget = connection.execute(text("SELECT budget FROM accounts")).scalar_one()
    changed = json.dumps(json.loads(budget) | {"delta": "0.9"})
    unprotected(database, "accounts", "UPDATE accounts SET budget = :budget", budget=changed)
    with pytest.raises(Altered):
        preparation.prepare(database, "people", asked)
