"""Allotted accounts on the ledger itself: against a model in plain fractions, and every way to get one wrong."""

import io
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from service.cli.ledger_commands import _charge_allotments_again
from service.errors import AccountClosed, BudgetExceeded, Conflict, Forbidden, InvalidInput, ServiceError
from service.ledger.accounts import account_changes, budgets
from service.ledger.accounts.allotments import Amount, amount_of
from service.ledger.accounts.budgets import read_budget
from service.ledger.accounts.waiting_changes import ChangedAccount
from service.ledger.installation.signing import Signer
from service.ledger.journal.entries import Allotted, read_text
from service.ledger.releases import charges, preparation
from service.ledger.spending import spending
from service.ledger.storage.database import Database
from service.ledger.verification.imports import rebuild
from service.ledger.verification.recompute import recompute
from service.ledger.verification.verify import verify
from service.privacy.accounting.guarantee import guarantee
from service.privacy.accounting.pricing import price
from service.privacy.accounting.privacy_filter import open_weights, spent_of_cap
from service.privacy.accounting.totals import Totals
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring, condense
from tests.ledger.charging import (
    ANN,
    BOB,
    account_of,
    carry_out,
    change_account,
    charge,
    commit,
    entries_of,
    half_price,
    open_account,
    prepared,
    reserve,
    set_caps,
    void,
)
from tests.ledger.ledgers import exported

PURE = {"definition": "pure", "epsilon": "1"}
MONTHS = {"calendar": "month", "participation": {"offsets": [0, 1]}}


def used(database: Database, name: str) -> Fraction | None:
    """The figure of its budget that an account counts."""
    account = account_of(database, name)
    return spent_of_cap(account.budget, account.weights, account.totals)


def allot(database: Database, name: str, parent: str, **stated: Any) -> None:
    open_account(database, name, parent=parent, funding="allotted", **stated)


def set_budget(database: Database, name: str, **budget: str) -> ChangedAccount:
    return change_account(database, name, read_budget(budget))


def noise(definition: str, size: Fraction) -> dict[str, Any]:
    if definition == "zcdp":
        return {"type": "discrete_gaussian", "rho": str(size)}
    guarantees: dict[str, dict[str, Any]] = {
        "pure": {"epsilon": str(size)},
        "rdp": {"rdp": [{"alpha": "3", "epsilon": str(size)}]},
    }
    return {"type": "declared", "reference": "a proof", **guarantees[definition]}


def budget_of(definition: str, cap: Fraction) -> dict[str, str]:
    order = {"alpha": "3"} if definition == "rdp" else {}
    return {"definition": definition, "rho" if definition == "zcdp" else "epsilon": str(cap), **order}


class Refused(Exception):
    """A refusal of the model."""


@dataclass
class Node:
    """An account of the model, with its releases by id: size and state."""

    name: str
    parent: "Node | None"
    allotted: bool
    cap: Fraction
    closed: bool = False
    amount: Fraction = Fraction(0)  # that the accounts above count, of an allotted one
    releases: dict[str, tuple[Fraction, str]] = field(default_factory=dict)
    below: list["Node"] = field(default_factory=list)

    @property
    def counted(self) -> Fraction:
        own = sum((size for size, state in self.releases.values() if state in ("committed", "reserved")), Fraction(0))
        return own + sum((one.amount if one.allotted else one.counted for one in self.below), Fraction(0))

    def charged(self) -> Iterator["Node"]:
        """The accounts that its releases charge."""
        place: Node | None = self
        while place is not None:
            yield place
            place = None if place.allotted else place.parent

    def require(self, more: Fraction) -> None:
        for one in self.charged():
            if one.closed or one.counted + more > one.cap:
                raise Refused

    def set_amount(self) -> None:
        amount = self.counted if self.closed else max(self.cap, self.counted)
        if self.parent is not None and self.allotted:
            if amount > self.amount:
                self.parent.require(amount - self.amount)
            self.amount = amount


class Run:
    """Random operations on a tree of accounts, with the model beside it."""

    def __init__(self, database: Database, definition: str, seed: int) -> None:
        self.database, self.definition, self.chance = database, definition, random.Random(seed)
        open_account(database, "n0", **budget_of(definition, Fraction(20)))
        self.nodes = [Node("n0", None, False, Fraction(20))]

    def size(self, most: int = 40) -> Fraction:
        return Fraction(self.chance.randint(1, most), self.chance.choice((12, 30, 70)))

    def step(self) -> None:
        node = self.chance.choice(self.nodes if len(self.nodes) > 4 else self.nodes[:1])
        actions = ("open", "charge", "charge", "reserve", "settle", "budget", "budget", "state")
        action = "open" if len(self.nodes) < 5 else self.chance.choice(actions)
        getattr(self, action)(node)

    def agree(self, expected: Callable[[], None], actual: Callable[[], object]) -> bool:
        """Do both or neither."""
        try:
            expected()
        except Refused:
            with pytest.raises((BudgetExceeded, AccountClosed, Conflict)):
                actual()
            return False
        actual()
        return True

    def open(self, parent: Node) -> None:
        if len(self.nodes) == 12:
            return
        node = Node(f"n{len(self.nodes)}", parent, self.chance.random() < 0.8, self.size(40))
        line: Node | None = parent
        depth = 1
        while line is not None:
            depth, line = depth + 1, line.parent

        def expected() -> None:
            above: Node | None = parent
            while above is not None:
                if above.closed:
                    raise Refused
                above = above.parent
            node.set_amount()

        funding = "allotted" if node.allotted else None
        stated = budget_of(self.definition, node.cap)
        if depth <= 8 and self.agree(
            expected, lambda: open_account(self.database, node.name, parent=parent.name, funding=funding, **stated)
        ):
            parent.below.append(node)
            self.nodes.append(node)

    def charge(self, node: Node, hold: bool = False) -> None:
        size = self.size(20)
        done: list[charges.Registered] = []
        reserve_for = timedelta(days=9) if hold else None

        def actual() -> None:
            done.extend(charge(self.database, noise(self.definition, size), name=node.name, reserve_for=reserve_for))

        if self.agree(lambda: node.require(size), actual):
            node.releases[done[0].id] = size, "reserved" if hold else "committed"

    def reserve(self, node: Node) -> None:
        self.charge(node, hold=True)

    def settle(self, node: Node) -> None:
        held = [release for release, (_, state) in node.releases.items() if state == "reserved"]
        if held:
            release = self.chance.choice(held)
            size, _ = node.releases[release]
            if self.chance.random() < 0.5:
                commit(self.database, release, node.name)
                node.releases[release] = size, "committed"
            else:
                void(self.database, release, node.name, attestation="nothing left")
                node.releases[release] = size, "voided"

    def budget(self, node: Node) -> None:
        before = node.cap, node.amount
        cap = self.chance.choice([self.size(150), max(node.counted, Fraction(1, 99)), node.cap / 2])

        def expected() -> None:
            if cap < node.counted:
                raise Refused
            node.cap = cap
            node.set_amount()

        stated = budget_of(self.definition, cap)
        if not self.agree(expected, lambda: set_budget(self.database, node.name, **stated)):
            node.cap, node.amount = before

    def state(self, node: Node) -> None:
        def expected() -> None:
            node.closed = not node.closed
            node.set_amount()

        to = "open" if node.closed else "closed"
        before = node.closed, node.amount
        if not self.agree(expected, lambda: change_account(self.database, node.name, to)):
            node.closed, node.amount = before

    def check(self) -> None:
        for node in self.nodes:
            assert used(self.database, node.name) == node.counted
            account = account_of(self.database, node.name)
            allotted = account.allotted
            of_others = [one for one in self.nodes if one.allotted and node in list(_above(one))]
            assert (allotted.accounts if allotted else 0) == len(of_others)
            if allotted is not None:
                counted = spent_of_cap(account.budget, account.weights, allotted.totals)
                assert counted == sum(one.amount for one in of_others)


def _above(node: Node) -> Iterator[Node]:
    return iter(()) if node.parent is None else node.parent.charged()


@pytest.mark.parametrize("definition", ["pure", "zcdp", "rdp"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.statistics)])
def test_allotments_count_what_a_model_counts(
    new_database: Callable[[], Database], signer: Signer, definition: str, seed: int
) -> None:
    database, copy = new_database(), new_database()
    run = Run(database, definition, seed)
    for number in range(60):
        run.step()
        if number % 5 == 4:
            run.check()
    assert sum(node.allotted for node in run.nodes) > 2
    for node in run.nodes:
        entries_of(database, node.name)  # with verification, and replay to the same totals
        found = recompute(database, node.name, apply=False)
        assert (found.prices, found.over) == ([], [])
    file = exported(database, signer)
    rebuild(copy, lambda: io.BytesIO(file), signer.public_key)
    for node in run.nodes:
        found_there, found_here = account_of(copy, node.name), account_of(database, node.name)
        ids: dict[str, Any] = {"id": 0, "spending_sum": ""}  # PostgreSQL skips the ids of accounts that were refused
        assert replace(found_there, **ids) == replace(found_here, **ids)
    assert exported(copy, signer).splitlines()[1:] == file.splitlines()[1:]  # the first states the time


_CAPS = {
    "pure": {"definition": "pure", "epsilon": "1/2"},
    "zcdp": {"definition": "zcdp", "rho": "1/8"},
    "rdp": {"definition": "rdp", "alpha": "3", "epsilon": "1/4"},
    "approximate": {"definition": "approximate", "epsilon": "1/2", "delta": "1e-9"},
}
_PARENTS = {
    "pure": {"definition": "pure", "epsilon": "9", "delta": "1e-6"},
    "zcdp": {"definition": "zcdp", "rho": "9", "delta": "1e-6"},
    "rdp": {"definition": "rdp", "alpha": "3", "epsilon": "9", "delta": "1e-6"},
    "lower": {"definition": "rdp", "alpha": "2", "epsilon": "9", "delta": "1e-6"},
    "higher": {"definition": "rdp", "alpha": "4", "epsilon": "9", "delta": "1e-6"},
    "approximate": {"definition": "approximate", "epsilon": "20", "delta": "1e-6", "declared_delta": "1e-7"},
}


@pytest.mark.parametrize("parent", _PARENTS)
@pytest.mark.parametrize("child", _CAPS)
def test_a_cap_is_allotted_where_the_account_above_can_count_it(
    new_database: Callable[[], Database], child: str, parent: str
) -> None:
    """Pure under anything; zCDP under zCDP, RDP and (epsilon, delta); RDP at orders up to its own."""
    counts = {
        "pure": set(_PARENTS),
        "zcdp": set(_PARENTS) - {"pure"},
        "rdp": {"rdp", "lower", "approximate"},
        "approximate": set(_PARENTS),
    }
    database = new_database()
    open_account(database, "agency", **_PARENTS[parent])
    if parent not in counts[child]:
        with pytest.raises(InvalidInput, match=f"got {_CAPS[child]['definition']}") as refused:
            allot(database, "share", "agency", **_CAPS[child])
        assert [fault.pointer for fault in refused.value.faults] == ["/budget/definition"]
        assert len(entries_of(database, "agency")) == 1
        return
    allot(database, "share", "agency", **_CAPS[child])
    before = used(database, "agency")
    assert before
    charge(
        database,
        {"type": "discrete_gaussian", "rho": "1/900"} if child != "pure" else noise("pure", Fraction(1, 9)),
        name="share",
    )
    assert used(database, "agency") == before
    delta = account_of(database, "agency").totals.delta
    assert delta == (Fraction("1e-9") if child == "approximate" else 0)
    for name in ("agency", "share"):
        entries_of(database, name)


def test_an_account_above_counts_one_mechanism_with_the_whole_cap(database: Database) -> None:
    """The oracle is a declared release of the same guarantee (A-1a: two of its parts would count less)."""
    open_account(database, "agency", definition="zcdp", rho="9")
    open_account(database, "other", definition="zcdp", rho="9")
    allot(database, "share", "agency", **PURE)
    set_budget(database, "share", definition="pure", epsilon="2")
    charge(database, noise("pure", Fraction(2)), name="other")
    assert account_of(database, "agency").totals == account_of(database, "other").totals
    with database.read() as connection:
        (committed, _), (of_other, _) = (
            spending.counts(connection, account_of(database, name)) for name in ("agency", "other")
        )
    deltas = (Fraction(1, 10**6),)
    tight = [
        guarantee(condense(spending.as_plan(one)), Neighbouring.ADD_REMOVE, deltas=deltas, orders=(), adaptive=False)
        for one in (committed, of_other)
    ]
    assert tight[0] == tight[1]
    assert spending.as_plan(committed, "any tag") == spending.as_plan(committed)


def test_a_line_begins_at_the_nearest_allotted_account(database: Database) -> None:
    open_account(database, "agency", **PURE | {"epsilon": "9"})
    allot(database, "programme", "agency", **PURE | {"epsilon": "3"})
    open_account(database, "product", parent="programme", **PURE | {"epsilon": "2"})
    allot(database, "table", "product", **PURE)
    assert [used(database, name) for name in ("agency", "programme", "product", "table")] == [3, 1, 1, 0]
    charge(database, noise("pure", Fraction(1, 2)), name="product")
    charge(database, noise("pure", Fraction(1, 4)), name="table")
    assert [used(database, name) for name in ("agency", "programme", "product", "table")] == [
        3,
        Fraction(3, 2),
        Fraction(3, 2),
        Fraction(1, 4),
    ]
    assert [account_of(database, name).releases for name in ("agency", "programme", "product", "table")] == [0, 1, 1, 1]
    change_account(database, "agency", "closed")  # has no effect on what it has allotted
    charge(database, noise("pure", Fraction(1, 4)), name="product")
    for name in ("agency", "programme", "product", "table"):
        entries_of(database, name)


def test_an_allotment_above_what_the_parent_has_is_refused_and_nothing_is_written(database: Database) -> None:
    open_account(database, "agency", **PURE | {"epsilon": "2", "delta": "1e-9"})
    open_account(database, "programme", parent="agency", **PURE | {"epsilon": "5"})
    charge(database, noise("pure", Fraction(1)), name="programme")
    with pytest.raises(BudgetExceeded) as refused:
        allot(database, "share", "programme", **PURE | {"epsilon": "3/2", "delta": "1e-6"})
    assert refused.value.pointer == "/budget"
    found = [(one.account, one.cap, str(one.requested), str(one.remaining)) for one in refused.value.failures]
    assert found == [
        ("programme", "delta", "1/1000000", "0"),
        ("agency", "epsilon", "3/2", "1"),
        ("agency", "delta", "1/1000000", "1/1000000000"),
    ]
    assert [len(entries_of(database, name)) for name in ("agency", "programme")] == [2, 2]
    with pytest.raises(ServiceError, match="there is no account"):
        account_of(database, "share")


@pytest.mark.parametrize(
    ("stated", "pointer"),
    [
        ({"funding": "allotted"}, "/funding"),
        ({"funding": "allotted", "parent": "nobody"}, "/parent"),
        ({"funding": "allotted", "parent": "agency", "periods": MONTHS}, "/periods"),
        ({"funding": "allotted", "parent": "careful"}, "/budget"),
    ],
)
def test_an_account_that_cannot_be_allotted_is_refused(database: Database, stated: Any, pointer: str) -> None:
    open_account(database, "agency", **PURE | {"epsilon": "9"})
    open_account(database, "careful", parent="agency", approval_above="1/2", **PURE | {"epsilon": "9"})
    with pytest.raises(InvalidInput) as refused:
        open_account(database, "share", **stated, **PURE)
    assert [fault.pointer for fault in refused.value.faults] == [pointer]
    assert [len(entries_of(database, name)) for name in ("agency", "careful")] == [1, 1]


def test_an_approximate_allotment_is_fixed(database: Database) -> None:
    open_account(database, "agency", **_PARENTS["approximate"])
    allot(database, "share", "agency", **_CAPS["approximate"])
    for changed in ({"epsilon": "1"}, {"epsilon": "1/4"}, {"delta": "1e-10"}):
        with pytest.raises(InvalidInput, match="figures that were allotted") as refused:
            set_budget(database, "share", **_CAPS["approximate"] | changed)
        assert [fault.pointer for fault in refused.value.faults] == ["/budget"]
    before = account_of(database, "agency").totals
    change_account(database, "share", "closed")
    change_account(database, "share", "open")
    assert account_of(database, "agency").totals == before
    assert len(entries_of(database, "agency")) == 2
    assert len(entries_of(database, "share")) == 3


def test_closing_gives_back_what_is_neither_spent_held_nor_allotted(database: Database) -> None:
    """A void after closing gives back when the account is opened or closed again (A-6)."""
    open_account(database, "agency", **PURE | {"epsilon": "9"})
    allot(database, "share", "agency", **PURE)
    charge(database, noise("pure", Fraction(1, 8)), name="share")
    (held,) = reserve(database, {"type": "geometric", "epsilon": "1/4"}, name="share")
    allot(database, "part", "share", **PURE | {"epsilon": "1/16"})
    change_account(database, "share", "closed")
    assert used(database, "agency") == Fraction(7, 16)
    void(database, held, "share")
    assert used(database, "agency") == Fraction(7, 16)
    entries_of(database, "share")
    with pytest.raises(AccountClosed):
        set_budget(database, "part", **PURE | {"epsilon": "1/8"})
    change_account(database, "share", "open")
    assert used(database, "agency") == 1
    change_account(database, "share", "closed")
    assert used(database, "agency") == Fraction(3, 16)
    set_budget(database, "agency", **PURE | {"epsilon": "1/2"})
    with pytest.raises(BudgetExceeded) as refused:
        change_account(database, "share", "open")
    assert refused.value.pointer == "/state"
    set_budget(database, "share", **PURE | {"epsilon": "1/2"})
    change_account(database, "share", "open")
    for name in ("agency", "share", "part"):
        entries_of(database, name)


def test_nothing_spent_is_given_back_as_nothing(database: Database) -> None:
    """A closed account that has spent nothing charges a mechanism of 0."""
    for definition, parent in (("pure", "approximate"), ("zcdp", "zcdp"), ("rdp", "rdp")):
        open_account(database, f"agency-{definition}", **_PARENTS[parent])
        allot(database, definition, f"agency-{definition}", **_CAPS[definition])
        change_account(database, definition, "closed")
        assert used(database, f"agency-{definition}") in (0, Fraction(0))
        entries_of(database, f"agency-{definition}")
        entries_of(database, definition)


def test_a_raise_takes_two_stewards_where_an_account_above_asks_for_them(database: Database) -> None:
    open_account(database, "agency", approval_above="1/2", **PURE | {"epsilon": "9"})
    allot(database, "share", "agency", **PURE | {"epsilon": "1/2"})
    waiting = set_budget(database, "share", **PURE)
    assert waiting.waits
    assert used(database, "agency") == Fraction(1, 2)
    entries_of(database, "share")
    assert not change_account(database, "share", read_budget(PURE), BOB).waits
    assert used(database, "agency") == 1
    set_budget(database, "share", **PURE | {"epsilon": "1/4"})
    assert used(database, "agency") == Fraction(1, 4)
    entries_of(database, "agency")


def test_a_raise_needs_a_key_that_reaches_the_parent(database: Database) -> None:
    """A key that is limited to the account learns nothing of the room above it."""
    open_account(database, "agency", **PURE | {"epsilon": "9"})
    allot(database, "share", "agency", **PURE)

    def change(stated: Any) -> ChangedAccount:
        operation = account_changes.change_account(
            database, ANN, "share", stated, "/budget", lambda name: name == "share"
        )
        return carry_out(database, operation)

    for cap in ("2", "100"):
        with pytest.raises(Forbidden, match="reaches agency"):
            change(read_budget(PURE | {"epsilon": cap}))
    change(read_budget(PURE | {"epsilon": "1/2"}))
    change("closed")
    with pytest.raises(Forbidden):
        change("open")
    entries_of(database, "agency")


def test_caps_above_count_the_whole_allotment_as_a_replacement(database: Database) -> None:
    """Two changes cost twice epsilon or four times rho (A-7), whatever the releases say that they read."""
    caps = {"race": {"definition": "pure", "epsilon": "4"}, "sex": {"definition": "zcdp", "rho": "9"}}
    open_account(database, "agency", caps=caps, definition="zcdp", rho="9")
    allot(database, "share", "agency", **PURE)
    race, sex = account_of(database, "agency").caps
    assert (race.totals.epsilon.finite, race.totals.delta) == (Fraction(2), Fraction(0))
    assert sex.totals.rho.finite >= Fraction("1.52")  # 2 tanh(1)
    charge(database, noise("pure", Fraction(1, 9)), name="share")  # without a statement: the caps are not its own
    with pytest.raises(BudgetExceeded) as refused:
        set_budget(database, "share", **PURE | {"epsilon": "5/2"})
    assert [(one.tag, str(one.requested), str(one.remaining)) for one in refused.value.failures] == [("race", "5", "4")]
    set_budget(database, "share", **PURE | {"epsilon": "2"})
    set_budget(database, "share", **PURE | {"epsilon": "1/2"})
    assert account_of(database, "agency").caps[0].totals.epsilon.finite == 1
    with pytest.raises(InvalidInput, match="cap on a tag"):
        allot(database, "other", "agency", definition="zcdp", rho="1/100")
    with pytest.raises(Conflict, match="has allotted"):
        set_caps(database, {"age": PURE}, "agency")
    set_caps(database, {"race": PURE | {"epsilon": "5"}}, "agency")
    for name in ("agency", "share"):
        entries_of(database, name)


def test_an_allotment_is_charged_to_every_window_of_an_account_with_periods(database: Database) -> None:
    open_account(database, "agency", periods=MONTHS, **PURE | {"epsilon": "3"})
    charge(database, noise("pure", Fraction(1)), name="agency", periods={"from": "2026-01", "to": "2026-01"})
    with pytest.raises(BudgetExceeded) as refused:
        allot(database, "whole", "agency", **PURE | {"epsilon": "5/2"})
    assert {one.window for one in refused.value.failures} <= {"2025-12", "2026-01"}
    allot(database, "whole", "agency", **PURE)
    allot(database, "alike", "agency", periods=MONTHS, **PURE | {"epsilon": "1/2"})
    charge(database, noise("pure", Fraction(1, 2)), name="alike", periods="all")
    charge(database, noise("pure", Fraction(1)), name="whole")
    assert used(database, "agency") == Fraction(5, 2)
    other = {"calendar": "day", "participation": {"offsets": [0]}}
    with pytest.raises(InvalidInput) as unlike:
        allot(database, "unlike", "agency", periods=other, **PURE | {"epsilon": "1/100"})
    assert [fault.pointer for fault in unlike.value.faults] == ["/periods"]
    set_budget(database, "alike", **PURE)
    assert used(database, "agency") == 3
    change_account(database, "alike", "closed")
    assert used(database, "agency") == Fraction(5, 2)
    for name in ("agency", "whole", "alike"):
        entries_of(database, name)


def test_of_two_raises_at_once_one_fits(database: Database) -> None:
    open_account(database, "agency", **PURE | {"epsilon": "3"})
    for name in ("one", "two"):
        allot(database, name, "agency", **PURE)

    def raised(name: str) -> bool:
        try:
            set_budget(database, name, **PURE | {"epsilon": "2"})
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(raised, ("one", "two")))
    assert sorted(done) == [False, True]
    assert used(database, "agency") == 3
    for name in ("agency", "one", "two"):
        entries_of(database, name)


def test_releases_of_two_children_and_raises_go_on_at_once(database: Database) -> None:
    """Nothing deadlocks, and nothing is lost."""
    open_account(database, "agency", **PURE | {"epsilon": "100"})
    for name in ("one", "two"):
        allot(database, name, "agency", **PURE)

    def work(number: int) -> None:
        name = ("one", "two", "agency")[number % 3]
        charge(database, noise("pure", Fraction(1, 100)), name=name)
        if name != "agency":
            set_budget(database, name, **PURE | {"epsilon": str(1 + number)})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(18)))
    assert used(database, "one") == used(database, "two") == Fraction(6, 100)
    caps = [account_of(database, name).budget.cap for name in ("one", "two")]
    assert used(database, "agency") == Fraction(6, 100) + sum(caps)
    for name in ("agency", "one", "two"):
        entries_of(database, name)


def test_an_account_that_is_over_its_cap_is_charged_above_for_what_it_spent(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a theorem proved wrong, pricing again reaches the accounts above in the next run."""
    open_account(database, "agency", definition="zcdp", rho="9")
    with monkeypatch.context() as wrong:
        wrong.setattr(preparation, "price", half_price)
        wrong.setattr(charges, "ACCOUNTANT", "0")
        allot(database, "share", "agency", definition="zcdp", rho="1")
        charge(database, noise("zcdp", Fraction(9, 5)), name="share")
    assert used(database, "share") == Fraction(9, 10)
    assert recompute(database, "agency", apply=False).allotments == []
    assert recompute(database, "share", apply=True).over
    assert used(database, "agency") == 1
    (found,) = recompute(database, "agency", apply=False).allotments
    assert used(database, "agency") == 1
    assert recompute(database, "agency", apply=True).allotments == [found]
    assert (found.child, found.old[1], found.new[1]) == ("share", "1", "9/5")
    assert used(database, "agency") == Fraction(9, 5)
    for name in ("agency", "share"):
        with database.read() as connection:
            assert verify(connection, name).valid


def test_an_entry_states_the_amount_before_and_after(database: Database) -> None:
    open_account(database, "agency", **PURE | {"epsilon": "9"})
    allot(database, "share", "agency", **PURE)
    set_budget(database, "share", **PURE | {"epsilon": "2"})
    stated = [
        content
        for one in entries_of(database, "agency")
        if isinstance(content := read_text(one.body).content, Allotted)
    ]
    plans = [
        f'{{"delta":"0","epsilon":"{cap}","reference":"the budget of the account share","type":"declared"}}'
        for cap in "12"
    ]
    assert [(one.child, one.before, one.plan) for one in stated] == [("share", None, plans[0]), ("share", *plans)]
    assert [
        budgets.read_price(dict(zip(("epsilon", "rho", "delta", "linear", "quanta"), one.price, strict=True))).epsilon
        for one in stated
    ] == [1, 2]


def test_dry_runs_and_prepared_releases_know_their_own_line_alone(database: Database) -> None:
    open_account(database, "agency", **PURE | {"epsilon": "9"})
    allot(database, "share", "agency", **PURE)
    (release,) = prepared(database, noise("pure", Fraction(1, 2)), name="share")
    assert len(release.line.ids) == 1
    assert charges.dry_run(database, [release])[0].account.name == "share"
    assert used(database, "share") == 0


def test_a_line_of_allotments_is_charged_again_up_to_its_root(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account charges above it what it is charged for its own allotments: one run charges all of them."""
    open_account(database, "a", definition="pure", epsilon="3")
    allot(database, "b", "a", definition="pure", epsilon="3")
    allot(database, "c", "b", definition="pure", epsilon="2")
    with monkeypatch.context() as wrong:
        wrong.setattr(preparation, "price", half_price)
        wrong.setattr(charges, "ACCOUNTANT", "0")
        charge(database, noise("pure", Fraction(4)), name="c")
    for name in "abc":
        recompute(database, name, apply=True)
    assert _charge_allotments_again(database), "the accounts above are over their budgets"
    assert [used(database, name) for name in "abc"] == [4, 4, 4]
    for name in "abc":
        with database.read() as connection:
            assert verify(connection, name).valid
    assert not _charge_allotments_again(database), "nothing differs any more"


def test_declared_deltas_beyond_the_budgets_come_on_top_of_its_delta() -> None:
    """By F-3 they do not replace other parts of the delta."""
    budget = read_budget({"definition": "approximate", "epsilon": "4", "delta": "1/1000", "declared_delta": "1/2000"})
    weights = open_weights(budget)
    spent = Totals(delta=Fraction(9, 10_000))
    assert amount_of(budget, weights, spent, "open") == Amount(Fraction(4), Fraction(14, 10_000))
    assert amount_of(budget, weights, replace(spent, delta=Fraction(1, 2000)), "closed") == Amount(
        Fraction(4), Fraction(1, 1000)
    )


def test_an_infinite_loss_of_an_allotted_account_is_counted_by_no_account_above(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, "agency", definition="pure", epsilon="9")
    allot(database, "share", "agency", **PURE)
    with monkeypatch.context() as wrong:
        finite = price(read_plan(noise("pure", Fraction(1))), Neighbouring.ADD_REMOVE, ())
        wrong.setattr(preparation, "price", lambda *_: finite)
        wrong.setattr(charges, "ACCOUNTANT", "0")
        charge(database, noise("zcdp", Fraction(1)), name="share")
    recompute(database, "share", apply=True)
    assert used(database, "share") is None
    with pytest.raises(Conflict, match="'share' has an infinite loss"):
        recompute(database, "agency", apply=True)
    with database.read() as connection:
        assert not verify(connection, "share").valid


def test_an_approximate_budget_with_periods_is_not_allotted(database: Database) -> None:
    """Its windows may all fit though the bound of them does not, so no amount follows from its totals."""
    approximate = {"definition": "approximate", "epsilon": "4", "delta": "1e-6"}
    open_account(database, "agency", periods=MONTHS, **approximate | {"delta": "1e-3"})
    with pytest.raises(InvalidInput) as refused:
        allot(database, "share", "agency", periods=MONTHS, **approximate)
    assert [fault.pointer for fault in refused.value.faults] == ["/periods"]
