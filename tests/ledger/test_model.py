"""The ledger against a model in plain fractions: accounts, charges, refusals, changes of budget, closing."""

from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from service.errors import AccountClosed, BudgetExceeded
from service.ledger import charges, opening
from service.ledger.budgets import read_budget
from service.ledger.database import Database
from service.ledger.spending import composed, counts
from service.privacy.filter import remaining
from service.privacy.plan import Neighbouring
from service.privacy.pure import plan_delta, plan_epsilon
from service.privacy.zcdp import plan_rho
from tests.ledger.charging import ANN, account_of, charge, entries_of, open_account, prepared

_CAPS = {"pure": "epsilon", "zcdp": "rho"}
_figures = st.fractions(Fraction(1, 1000), 3, max_denominator=1000)
_deltas = st.sampled_from([Fraction(0), Fraction(1, 10**9), Fraction(1, 3 * 10**9)])
_leaves = st.tuples(_figures.map(lambda figure: figure / 10), _deltas)
_trees = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("sequence"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("repeat"), st.integers(1, 4), inner),
        st.tuples(st.just("parallel"), st.integers(1, 3), st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


def _plan(tree: Any, cap: str) -> dict[str, Any]:
    """The plan that a tree stands for, of declared mechanisms: their figures are in every notion what they say."""
    match tree:
        case ("sequence", parts):
            return {"type": "sequence", "parts": [_plan(part, cap) for part in parts]}
        case ("repeat", count, part):
            return {"type": "repeat", "count": count, "part": _plan(part, cap)}
        case ("parallel", degree, parts):
            return {"type": "parallel", "max_degree": degree, "parts": [_plan(part, cap) for part in parts]}
        case (figure, delta):
            return {"type": "declared", cap: str(figure), "delta": str(delta), "reference": "the model"}
    raise AssertionError(tree)


def _cost(tree: Any) -> tuple[Fraction, Fraction]:
    """Loss and delta of a tree under add_remove, by enumerating in which parts a record may be."""
    match tree:
        case ("sequence", parts):
            return _sum([_cost(part) for part in parts])
        case ("repeat", count, part):
            return _sum([_cost(part)] * count)
        case ("parallel", degree, parts):
            held = list(combinations([_cost(part) for part in parts], min(degree, len(parts))))
            return max(_sum(chosen)[0] for chosen in held), max(_sum(chosen)[1] for chosen in held)
        case (figure, delta):
            return figure, delta
    raise AssertionError(tree)


def _sum(costs: Any) -> tuple[Fraction, Fraction]:
    return sum((loss for loss, _ in costs), Fraction(0)), sum((delta for _, delta in costs), Fraction(0))


class _Model:
    """What the ledger should say of one account."""

    def __init__(self, definition: str, cap: Fraction, delta: Fraction) -> None:
        self.definition, self.cap, self.delta = definition, cap, delta
        self.open = True
        self.spent, self.declared = Fraction(0), Fraction(0)
        self.entries = 1

    def budget(self) -> dict[str, str]:
        return {"definition": self.definition, _CAPS[self.definition]: str(self.cap), "delta": str(self.delta)}

    def admits(self, loss: Fraction, delta: Fraction) -> bool:
        return self.spent + loss <= self.cap and self.declared + delta <= self.delta


class _Ledger(RuleBasedStateMachine):
    """A ledger and its model, driven by the same rules."""

    names = Bundle("names")
    database: Database
    opened = 0  # of all runs: the database is one

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, _Model] = {}

    @rule(target=names, definition=st.sampled_from(["pure", "zcdp"]), cap=_figures, delta=_deltas)
    def open(self, definition: str, cap: Fraction, delta: Fraction) -> str:
        type(self).opened += 1
        name, model = f"account-{self.opened}", _Model(definition, cap, delta * 3)
        open_account(self.database, name, **model.budget())
        self.models[name] = model
        return name

    @rule(name=names, trees=st.lists(_trees, min_size=1, max_size=3), rehearsed=st.booleans())
    def charge(self, name: str, trees: list[Any], rehearsed: bool) -> None:
        model = self.models[name]
        plans = [_plan(tree, _CAPS[model.definition]) for tree in trees]
        costs = [_cost(tree) for tree in trees]
        running = [_sum(costs[: number + 1]) for number in range(len(costs))]
        expected: type[Exception] | None = None if all(model.admits(*cost) for cost in running) else BudgetExceeded
        if not model.open:
            expected = AccountClosed
        if rehearsed:
            new = prepared(self.database, *plans, name=name)
            self._expect(expected, lambda: charges.dry_run(self.database, ANN, new))
            return
        self._expect(expected, lambda: charge(self.database, *plans, name=name))
        if expected is None:
            model.spent, model.declared = model.spent + running[-1][0], model.declared + running[-1][1]
            model.entries += len(plans)

    @rule(name=names, cap=_figures, delta=_deltas)
    def change_budget(self, name: str, cap: Fraction, delta: Fraction) -> None:
        model = self.models[name]
        fits = model.spent <= cap and model.declared <= delta
        wanted = _Model(model.definition, cap, delta)
        self._expect(None if fits else BudgetExceeded, lambda: self._change(name, read_budget(wanted.budget())))
        if fits:
            model.cap, model.delta = cap, delta
            model.entries += 1

    @rule(name=names, state=st.sampled_from(["open", "closed"]))
    def change_state(self, name: str, state: str) -> None:
        model = self.models[name]
        self._change(name, state)
        model.entries += model.open != (state == "open")
        model.open = state == "open"

    def _change(self, name: str, change: Any) -> None:
        opening.change_account(self.database, ANN, name, change, lambda account: account.name, "/budget")

    def _expect(self, error: type[Exception] | None, act: Any) -> None:
        if error is None:
            act()
        else:
            with pytest.raises(error):
                act()

    @invariant()
    def ledger_and_model_agree(self) -> None:
        for name, model in self.models.items():
            account = account_of(self.database, name)
            total = account.totals.epsilon if model.definition == "pure" else account.totals.rho
            assert (total.value, account.totals.delta) == (model.spent, model.declared)
            assert remaining(account.budget, account.weights, account.totals) == model.cap - model.spent
            assert account.state == ("open" if model.open else "closed")
            assert account.head.seq == model.entries

    def teardown(self) -> None:
        """What is dearer to check holds at the end of every run: the chain, the sums, the spending by subplans."""
        for name, model in self.models.items():
            assert len(entries_of(self.database, name)) == model.entries
            account = account_of(self.database, name)
            with self.database.read() as connection:
                spent = composed(counts(connection, account.id)[0])
            price = plan_epsilon if model.definition == "pure" else plan_rho
            assert price(spent, Neighbouring.ADD_REMOVE).nats == model.spent
            assert plan_delta(spent, Neighbouring.ADD_REMOVE) == model.declared


def test_the_ledger_does_as_the_model(database: Database) -> None:
    machine = type("Ledger", (_Ledger,), {"database": database})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
