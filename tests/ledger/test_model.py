"""The ledger against a model in plain fractions: every operation on accounts under others and on held releases."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from service.errors import AccountClosed, AlreadyDrawn, BudgetExceeded, Conflict, Forbidden, InvalidInput
from service.ledger.accounts.budgets import read_budget
from service.ledger.accounts.lines import MAX_DEPTH
from service.ledger.draws import draws, places
from service.ledger.draws.stored_draws import Turn
from service.ledger.releases import charges
from service.ledger.spending.spending import as_plan, counts
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.privacy.accounting.privacy_filter import remaining
from service.privacy.accounting.pure import plan_delta, plan_epsilon
from service.privacy.accounting.zcdp import plan_rho
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring, mechanisms_of
from tests.ledger import charging
from tests.ledger.charging import (
    ANN,
    BOB,
    account_of,
    carry_out,
    change_account,
    entries_of,
    left,
    open_account,
    prepared,
    release_of,
)

# An epsilon is exact under the first two, a rho under the others. The (epsilon, delta) budgets convert at 1e-200, where
# no conversion says less than the sum of the epsilons, so that what they count is that sum.
_FAMILIES = (("pure", "approximate"), ("zcdp", "rdp"))
_TAIL = Fraction(1, 10**200)
_ORDER = 2

_figures = st.integers(1, 3000).map(lambda number: Fraction(number, 1000)) | st.integers(1, 21).map(
    lambda number: Fraction(number, 7)
)
_deltas = st.sampled_from([Fraction(0), Fraction(1, 10**9), Fraction(1, 3 * 10**9)])


def _trees(drawn: bool) -> Any:
    """Trees of a mechanism's loss and delta; what is drawn here declares no delta."""
    leaves = st.tuples(_figures.map(lambda figure: figure / 40), st.just(Fraction(0)) if drawn else _deltas)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.just("sequence"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("repeat"), st.integers(1, 3), inner),
            st.tuples(st.just("parallel"), st.integers(1, 3), st.lists(inner, min_size=1, max_size=3)),
        ),
        max_leaves=4,
    )


def _plan(tree: Any, family: int, drawn: bool) -> dict[str, Any]:
    """The plan that a tree stands for."""
    match tree:
        case ("sequence", parts):
            return {"type": "sequence", "parts": [_plan(part, family, drawn) for part in parts]}
        case ("repeat", count, part):
            return {"type": "repeat", "count": count, "part": _plan(part, family, drawn)}
        case ("parallel", degree, parts):
            return {"type": "parallel", "max_degree": degree, "parts": [_plan(part, family, drawn) for part in parts]}
        case (figure, delta):
            cap = ("epsilon", "rho")[family]
            if drawn:
                return {"type": ("geometric", "discrete_gaussian")[family], cap: str(figure)}
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


@dataclass(eq=False)
class _Account:
    """Expected state of one account."""

    definition: str
    cap: Fraction
    delta: Fraction
    parent: "_Account | None"
    threshold: Fraction | None
    open: bool = True
    entries: int = 1

    @property
    def family(self) -> int:
        return next(number for number, names in enumerate(_FAMILIES) if self.definition in names)

    @property
    def line(self) -> "list[_Account]":
        """From the account up."""
        return [self, *(self.parent.line if self.parent else [])]

    def stewards(self, *, frees: bool) -> tuple[Request, ...]:
        """Return the stewards that a change needs: two if more can be spent after it and releases may need approval."""
        return (ANN, BOB) if frees and any(above.threshold is not None for above in self.line) else (ANN,)

    def size(self, loss: Fraction) -> Fraction:
        """A loss in the account's definition."""
        return loss * _ORDER if self.definition == "rdp" else loss

    def budget(self, cap: Fraction, delta: Fraction) -> dict[str, str]:
        match self.definition:
            case "approximate":
                total = {"delta": str(delta + _TAIL), "declared_delta": str(delta)}
                return {"definition": "approximate", "epsilon": str(cap), **total}
            case "rdp":
                return {"definition": "rdp", "alpha": str(_ORDER), "epsilon": str(cap), "delta": str(delta)}
        return {"definition": self.definition, ("epsilon", "rho")[self.family]: str(cap), "delta": str(delta)}


@dataclass(eq=False)
class _Release:
    """Expected state of one release."""

    name: str
    account: _Account
    plan: dict[str, Any]
    loss: Fraction
    delta: Fraction
    state: str
    expires: int | None  # the hour; None: never by itself
    reserved: bool
    proposed: bool
    drawn: bool = False

    @property
    def counts(self) -> bool:
        return self.state in ("proposed", "reserved", "committed")

    def due(self, hour: int) -> bool:
        return self.state in ("proposed", "reserved") and self.expires is not None and self.expires <= hour


@dataclass
class _Model:
    accounts: dict[str, _Account] = field(default_factory=dict)
    releases: dict[str, _Release] = field(default_factory=dict)
    hour: int = 0

    def charged(self, account: _Account, *, seen: bool = False) -> tuple[Fraction, Fraction, int]:
        """Loss, delta and number of what counts; as it is ``seen``, without what is due and not written down."""
        found = [
            release
            for release in self.releases.values()
            if account in release.account.line and release.counts and not (seen and release.due(self.hour))
        ]
        loss, delta = _sum([(release.loss, release.delta) for release in found])
        return account.size(loss), delta, len(found)

    def settle(self, release: _Release, state: str) -> None:
        release.state = state
        for account in release.account.line:
            account.entries += 1

    def sweep(self, line: list[_Account]) -> None:
        """Apply what a writer that locks these accounts writes down first."""
        for release in self.releases.values():
            if release.due(self.hour) and set(line) & set(release.account.line):
                self.settle(release, "expired")

    def refusal(self, account: _Account, costs: list[tuple[Fraction, Fraction]]) -> type[Exception] | None:
        if not all(one.open for one in account.line):
            return AccountClosed
        loss, delta = _sum(costs)  # of positive costs all fit in turn where all fit together
        for one in account.line:
            spent, declared, _ = self.charged(one)
            if spent + one.size(loss) > one.cap or declared + delta > one.delta:
                return BudgetExceeded
        return None


class _Ledger(RuleBasedStateMachine):
    """A ledger and its model, driven by the same rules."""

    database: Database
    clock: "_Clock"
    opened = 0  # of all runs: the database is one

    def __init__(self) -> None:
        super().__init__()
        self.model = _Model()
        self.clock.hour = 0

    @initialize(family=st.integers(0, 1), threshold=st.none() | st.just(Fraction(1, 20)))
    def begin(self, family: int, threshold: Fraction | None) -> None:
        """A line of three with room, so that runs get far."""
        self._open(family, False, Fraction(3), Fraction(1, 10**9), None, None)
        self._open(family, True, Fraction(2), Fraction(1, 10**9), f"account-{self.opened}", threshold)
        self._open(family, False, Fraction(1), Fraction(1, 10**9), f"account-{self.opened}", None)

    def _open(
        self, family: int, second: bool, cap: Fraction, delta: Fraction, under: str | None, threshold: Fraction | None
    ) -> None:
        type(self).opened += 1
        parent = None if under is None else self.model.accounts[under]
        family = family if parent is None else parent.family
        name = f"account-{self.opened}"
        new = _Account(_FAMILIES[family][second], cap, delta * 3, parent, threshold)
        expected: type[Exception] | None = None
        if parent is not None and len(new.line) > MAX_DEPTH:
            expected = InvalidInput
        elif not all(account.open for account in new.line):
            expected = AccountClosed
        text = None if threshold is None else str(threshold)
        budget = new.budget(new.cap, new.delta)
        self._expect(expected, lambda: open_account(self.database, name, parent=under, approval_above=text, **budget))
        if expected is None:
            self.model.accounts[name] = new

    @rule(
        data=st.data(),
        drawn=st.booleans(),
        hours=st.sampled_from([None, 1, 2, 3]),
        rehearsed=st.sampled_from([False, False, False, True]),
    )
    def charge(self, data: Any, drawn: bool, hours: int | None, rehearsed: bool) -> None:
        name = data.draw(st.sampled_from(list(self.model.accounts)))
        model = copy.deepcopy(self.model) if rehearsed else self.model  # a rehearsal writes nothing down
        account = model.accounts[name]
        trees = data.draw(st.lists(_trees(drawn), min_size=1, max_size=3))
        plans = [_plan(tree, account.family, drawn) for tree in trees]
        costs = [_cost(tree) for tree in trees]
        model.sweep(account.line)
        expected = model.refusal(account, costs)
        reserve_for = None if hours is None else timedelta(hours=hours)
        ready = prepared(self.database, *plans, name=name, reserve_for=reserve_for)
        if rehearsed:
            self._expect(expected, lambda: charges.dry_run(self.database, ready))
            return
        if expected is not None:
            self._expect(expected, lambda: carry_out(self.database, charges.register(ANN, ready)))
            account.entries += expected is BudgetExceeded
            return
        done = charging.charge(self.database, *plans, name=name, reserve_for=reserve_for)
        for registered, plan, (loss, delta) in zip(done, plans, costs, strict=True):
            state = "committed" if hours is None else "reserved"
            if any(one.threshold is not None and one.size(loss) > one.threshold for one in account.line):
                state = "proposed"
            ends = self.model.hour + hours if hours is not None and drawn else None
            release = _Release(name, account, plan, loss, delta, state, ends, hours is not None, state == "proposed")
            self.model.releases[registered.id] = release
            for one in account.line:
                one.entries += 1

    @rule(data=st.data())
    @precondition(lambda self: self.model.releases)
    def commit(self, data: Any) -> None:
        chosen, release = self._locked(data)
        expected = None if release.state in ("reserved", "committed") else Conflict
        self._expect(expected, lambda: charging.commit(self.database, chosen, release.name))
        if release.state == "reserved":
            self.model.settle(release, "committed")

    @rule(data=st.data(), attested=st.booleans())
    @precondition(lambda self: self.model.releases)
    def void(self, data: Any, attested: bool) -> None:
        chosen, release = self._locked(data)
        held = release.state in ("proposed", "reserved")
        expected: type[Exception] | None = None if held or release.state == "voided" else Conflict
        undrawn = next(mechanisms_of(read_plan(release.plan))).__class__.__name__ == "Declared"
        if held and undrawn and not attested:
            expected = InvalidInput
        said = "nothing was published" if attested else None
        self._expect(expected, lambda: charging.void(self.database, chosen, release.name, attestation=said))
        if held and expected is None:
            self.model.settle(release, "voided")

    @rule(data=st.data(), by_proposer=st.booleans())
    @precondition(lambda self: self.model.releases)
    def approve(self, data: Any, by_proposer: bool) -> None:
        chosen, release = self._locked(data)
        to = "reserved" if release.reserved else "committed"
        expected: type[Exception] | None = None
        if not release.proposed or (not by_proposer and release.state in ("voided", "expired")):
            expected = Conflict
        elif by_proposer:
            expected = Forbidden
        who = ANN if by_proposer else BOB
        self._expect(expected, lambda: charging.approve(self.database, chosen, release.name, who))
        if expected is None and release.state == "proposed":
            self.model.settle(release, to)

    @rule(data=st.data())
    @precondition(lambda self: self.model.releases)
    def draw(self, data: Any) -> None:
        chosen, release = self._chosen(data)
        if release.state != "committed":
            self.model.sweep(release.account.line)
        plan = read_plan(release.plan)
        mechanism = next(mechanisms_of(plan))
        expected: type[Exception] | None = AlreadyDrawn if release.drawn else None
        if release.state not in ("reserved", "committed"):
            expected = Conflict
        act = lambda: draws.draw(  # noqa: E731
            self.database,
            ANN,
            release.name,
            chosen,
            draws.seal(places.place_of(plan, mechanism, Turn()), np.array([1, 2])),
        )
        self._expect(expected, act)
        if expected is None:
            if release.state == "reserved":
                self.model.settle(release, "committed")
            release.drawn = True
            release.account.entries += 1

    @rule(hours=st.integers(1, 3))
    def wait(self, hours: int) -> None:
        self.model.hour += hours
        self.clock.hour += hours

    @rule(data=st.data(), what=st.sampled_from(["open", "budget", "state", "state", "threshold"]))
    def steward(self, data: Any, what: str) -> None:
        name = data.draw(st.sampled_from(list(self.model.accounts)))
        cap, delta = data.draw(_figures), data.draw(_deltas)
        match what:
            case "open":
                above = data.draw(st.none() | _figures.map(lambda figure: figure / 40))
                self._open(data.draw(st.integers(0, 1)), data.draw(st.booleans()), cap, delta, name, above)
            case "budget":
                self._change_budget(name, cap, delta)
            case "state":
                self._change_state(name, data.draw(st.sampled_from(["open", "closed", "open"])))
            case "threshold":
                self._change_threshold(name, cap / 10)

    def _change_budget(self, name: str, cap: Fraction, delta: Fraction) -> None:
        account = self.model.accounts[name]
        if account.definition == "approximate":
            delta = account.delta  # declared_delta is fixed
        self.model.sweep([account])
        spent, declared, _ = self.model.charged(account)
        fits = spent <= cap and declared <= delta
        wanted = read_budget(account.budget(cap, delta))
        stewards = account.stewards(frees=cap > account.cap or delta > account.delta)
        self._expect(None if fits else BudgetExceeded, lambda: self._change(name, wanted, *stewards))
        if fits:
            account.cap, account.delta = cap, delta
            account.entries += len(stewards)

    def _change_state(self, name: str, state: str) -> None:
        account = self.model.accounts[name]
        stewards = account.stewards(frees=state == "open" and not account.open)
        self._change(name, state, *stewards)
        account.entries += len(stewards) if account.open != (state == "open") else 0
        account.open = state == "open"

    def _change_threshold(self, name: str, threshold: Fraction) -> None:
        account = self.model.accounts[name]
        fits = account.threshold is None or threshold <= account.threshold
        self._expect(None if fits else Conflict, lambda: self._change(name, threshold))
        if fits:
            account.entries += account.threshold != threshold
            account.threshold = threshold

    def _change(self, name: str, change: Any, *stewards: Request) -> None:
        for steward in stewards or (ANN,):
            change_account(self.database, name, change, steward)

    def _chosen(self, data: Any) -> tuple[str, _Release]:
        chosen = data.draw(st.sampled_from(list(self.model.releases)))
        return chosen, self.model.releases[chosen]

    def _locked(self, data: Any) -> tuple[str, _Release]:
        """A release after somebody locked its line."""
        chosen, release = self._chosen(data)
        self.model.sweep(release.account.line)
        return chosen, release

    def _expect(self, error: type[Exception] | None, act: Callable[[], object]) -> None:
        if error is None:
            act()
        else:
            with pytest.raises(error):
                act()

    @invariant()
    def ledger_and_model_agree(self) -> None:
        for name, model in self.model.accounts.items():
            account = account_of(self.database, name)
            spent, declared, number = self.model.charged(model)
            assert account.totals.delta == declared
            assert remaining(account.budget, account.weights, account.totals) == model.cap - spent
            assert account.releases == number
            assert account.state == ("open" if model.open else "closed")
            assert account.head.seq == model.entries
            assert left(self.database, name) == model.cap - self.model.charged(model, seen=True)[0]
        for chosen, release in self.model.releases.items():
            state = "expired" if release.due(self.model.hour) else release.state
            assert release_of(self.database, chosen, release.name).state == state

    def teardown(self) -> None:
        """Check at the end of every run what is dearer to check: the chain, the sums, the spending by subplans."""
        for name, model in self.model.accounts.items():
            assert len(entries_of(self.database, name)) == model.entries
            account = account_of(self.database, name)
            with self.database.read() as connection:
                parts = counts(connection, account)
            price = (plan_epsilon, plan_rho)[model.family]
            for subplans, states in zip(parts, (("committed",), ("proposed", "reserved")), strict=True):
                found = [
                    (release.loss, release.delta)
                    for release in self.model.releases.values()
                    if model in release.account.line and release.state in states
                ]
                plan = as_plan(subplans)
                assert (price(plan, Neighbouring.ADD_REMOVE).nats, plan_delta(plan, Neighbouring.ADD_REMOVE)) == _sum(
                    found
                )


class _Clock:
    """The ledger's clock, which stands still until a rule moves it."""

    hour = 0

    def now(self) -> str:
        return clock.stamp(datetime(2030, 1, 1, tzinfo=UTC) + timedelta(hours=self.hour))


def test_the_ledger_does_as_the_model(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    still = _Clock()
    monkeypatch.setattr(clock, "now", still.now)
    machine = type("Ledger", (_Ledger,), {"database": database, "clock": still})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=5, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
