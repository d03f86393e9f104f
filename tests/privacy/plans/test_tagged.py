"""The price of another value of a tagged attribute: against the enumerated laws of what small plans publish."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence as Listed
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from service.errors import InvalidInput
from service.privacy.accounting.guarantee import guarantee
from service.privacy.accounting.pricing import QUANTA, price
from service.privacy.accounting.privacy_filter import Budget, Definition, open_weights, spent_alone
from service.privacy.mechanisms import Declaration, Declared, DiscreteGaussian, Geometric
from service.privacy.plans import Choice, Group, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.notation import check_relation, read_plan, write_plan
from service.privacy.plans.tagged import as_replacement, possibly_tagged_part, statement_faults, tagged_part
from service.privacy.plans.walking import Neighbouring, Priced, condense, mechanisms_of, runs_of
from tests.privacy.strategies import plans

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
TAG = "hispanic"
VALUES = range(3)
BUDGETS = {
    "pure": Budget(definition=Definition.PURE, cap=Fraction(1)),
    "zcdp": Budget(definition=Definition.ZCDP, cap=Fraction(1)),
    "rdp": Budget(definition=Definition.RDP, cap=Fraction(1), alpha=Fraction(8)),
    "approximate": Budget(definition=Definition.APPROXIMATE, cap=Fraction(2), delta=Fraction(1, 10**6)),
}

Published = Callable[[int], tuple[int, ...]]
"""The true answer, cell by cell, given the attribute's value of the one record that can change."""


@dataclass(frozen=True)
class Example:
    """A plan over small data: what each of its mechanisms publishes, from left to right, once for each run."""

    plan: Plan
    published: tuple[Published, ...]


def one_hot(value: int) -> tuple[int, ...]:
    return tuple(int(value == cell) for cell in VALUES)


def centred(value: int) -> tuple[int, ...]:
    return (value - 1,)


def nothing(value: int) -> tuple[int, ...]:  # another attribute
    return (1, 0)


def where(kind: int) -> Published:
    """Return the count of a part of the data, those of a value."""
    return lambda value: (int(value == kind),)


def noise(**fields: Any) -> Geometric:
    return Geometric(scale=Fraction(4), **fields)


TABLE = noise(tags=(TAG,), cells=1)
SUM = DiscreteGaussian(sigma_squared=Fraction(8), tags=(TAG,))
BY_VALUE = Parallel(parts=(noise(), noise(), noise()), max_degree=1, tags=(TAG,))
EXAMPLES = {
    "histogram": Example(Repeat(part=TABLE, count=40), (one_hot,)),
    "counted histogram": Example(Repeat(part=replace(TABLE, cells_replaced=2), count=40), (one_hot,)),
    "sum": Example(Repeat(part=SUM, count=40), (centred,)),
    "both": Example(Sequence(parts=(TABLE, SUM, noise(reads="nothing capped"))), (one_hot, centred, nothing)),
    "divided by it": Example(BY_VALUE, tuple(map(where, VALUES))),
    "counted parts": Example(
        Repeat(part=replace(BY_VALUE, parts=(noise(cells_replaced=1),) * 3), count=40), tuple(map(where, VALUES))
    ),
    "a choice": Example(
        Choice(parts=(Sequence(parts=(SUM, TABLE)), Parallel(parts=(TABLE,), max_degree=1))),
        (centred, one_hot, lambda _: (0,)),
    ),
    "a household": Example(
        Group(part=Sequence(parts=(TABLE, SUM)), size=2),
        (lambda value: tuple(2 * n for n in one_hot(value)), lambda value: (2 * (value - 1),)),
    ),
}


def masses(mechanism: Any) -> tuple[dict[int, float], int]:
    """Return the noise's law by enumeration, and the denominator of the lattice on which its losses are."""
    unit = int(mechanism.scale if isinstance(mechanism, Geometric) else 2 * mechanism.sigma_squared)
    power = 1 if isinstance(mechanism, Geometric) else 2
    weights = {x: math.exp(-(abs(x) ** power) / unit) for x in range(-300, 301)}
    total = math.fsum(weights.values())
    return {x: weight / total for x, weight in weights.items() if weight > 0}, unit


def losses(mechanism: Any, shift: int) -> Counter[Fraction]:
    """Return the law of the loss when a cell moves, by its exact values."""
    law, unit = masses(mechanism)
    found: Counter[Fraction] = Counter()
    for x, mass in law.items():
        if isinstance(mechanism, Geometric):
            loss = Fraction(abs(x - shift) - abs(x), unit)
        else:
            loss = Fraction((x - shift) ** 2 - x * x, unit)
        found[loss] += mass  # type: ignore[assignment]
    return found


def moved(example: Example, one: int, other: int) -> Iterator[tuple[Any, int, int]]:
    """Yield each cell's noise, the distance by which another value moves it, and how often it runs."""
    for (mechanism, times), published in zip(runs_of(example.plan), example.published, strict=True):
        for before, after in zip(published(one), published(other), strict=True):
            if before != after:
                yield mechanism, after - before, times


def truth(example: Example, definition: str, spent: Fraction) -> bool:
    """Return whether the true loss about the value is within a figure."""
    pairs = itertools.permutations(VALUES, 2)
    return all(_within(list(moved(example, one, other)), definition, spent) for one, other in pairs)


def _within(cells: Listed[tuple[Any, int, int]], definition: str, spent: Fraction) -> bool:
    laws = [(losses(mechanism, shift), times) for mechanism, shift, times in cells]
    if definition == "pure":
        return sum((times * max(law) for law, times in laws), Fraction(0)) <= spent

    def tau(alpha: float) -> float:
        moments = ((math.fsum(math.exp(math.log(p) + (alpha - 1) * x) for x, p in law.items()), n) for law, n in laws)
        return math.fsum(n * math.log(moment) for moment, n in moments) / (alpha - 1)

    slack = 1 + 1e-9
    if definition == "rdp":
        return tau(8) <= float(spent) * slack
    if definition == "zcdp":
        return all(tau(alpha) / alpha <= float(spent) * slack for alpha in (1.001, 1.5, 2, 4, 8))
    return _delta(laws, float(spent)) <= float(BUDGETS[definition].delta)


def _delta(laws: Listed[tuple[Counter[Fraction], int]], epsilon: float) -> float:
    """Return the least delta of a product of laws: their losses convolved on their lattice, run by run."""
    step = Fraction(1, math.lcm(*(loss.denominator for law, _ in laws for loss in law)))
    product, least = np.ones(1), 0
    for law, times in laws:
        places = {int(loss / step): mass for loss, mass in law.items()}
        row = np.zeros(max(places) - min(places) + 1)
        row[[place - min(places) for place in places]] = list(places.values())
        for _ in range(times):
            product, least = np.convolve(product, row), least + min(places)
            kept = np.flatnonzero(product > 1e-16)  # what is left out makes the truth smaller
            product, least = product[kept[0] : kept[-1] + 1], least + int(kept[0])
    above = float(step) * (least + np.arange(len(product))) - epsilon
    return float(np.sum(product[above > 0] * -np.expm1(-above[above > 0])))


def spent(plan: Priced, definition: str, relation: Neighbouring = ADD) -> Fraction | None:
    budget = BUDGETS[definition]
    weights = open_weights(budget)
    return spent_alone(budget, weights, price(plan, relation, weights.orders))


def priced(plan: Plan, definition: str) -> Fraction | None:
    part = tagged_part(plan, (), TAG)
    assert part is not None
    return spent(as_replacement(part, ADD), definition)


@pytest.mark.parametrize("definition", BUDGETS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_price_bounds_what_another_value_changes(name: str, definition: str) -> None:
    found = priced(EXAMPLES[name].plan, definition)
    assert found is None or truth(EXAMPLES[name], definition, found)


def literal(plan: Plan) -> Priced:
    """Price the tagged part under replace_one with what the plan states: another value taken for another record."""
    part = tagged_part(plan, (), TAG)
    assert part is not None
    return part


def undivided(plan: Plan) -> Priced:
    """Take cells_replaced as all that another value moves, below parallel too."""
    counted = (replace(part, cells=part.cells_replaced, cells_replaced=None) for part in mechanisms_of(plan))
    return Repeat(part=Parallel(parts=tuple(counted), max_degree=1), count=40)


@pytest.mark.parametrize(
    ("name", "reading", "relation", "caught"),
    [
        ("histogram", literal, REPLACE, {"pure", "zcdp", "rdp", "approximate"}),  # cells 1, spelled out: one of two
        ("sum", literal, REPLACE, {"zcdp", "rdp", "approximate"}),  # two cells by 1, not one by 2
        ("counted parts", undivided, ADD, {"pure", "zcdp", "rdp", "approximate"}),
        ("histogram", lambda plan: plan, ADD, {"pure", "zcdp", "rdp", "approximate"}),  # one record less
    ],
)
def test_a_wrong_reading_is_caught(
    name: str, reading: Callable[[Plan], Priced], relation: Neighbouring, caught: set[str]
) -> None:
    found = {definition: spent(reading(EXAMPLES[name].plan), definition, relation) for definition in BUDGETS}
    assert {
        definition
        for definition, figure in found.items()
        if figure is not None and not truth(EXAMPLES[name], definition, figure)
    } == caught


def test_a_tag_on_another_mechanism_is_no_statement() -> None:
    """A table by the attribute without a tag would be free: the true loss is above the price of the rest."""
    plan = Sequence(parts=(TABLE, noise(cells=1)))
    example = Example(plan, (one_hot, one_hot))
    found = priced(plan, "pure")
    assert found is not None
    assert not truth(example, "pure", found)
    assert [fault.pointer for fault in statement_faults(plan, {TAG}, "persons", "/plan", ())] == ["/plan/parts/1"]


def test_a_replacement_costs_what_the_page_says() -> None:
    gauss = DiscreteGaussian(sigma_squared=Fraction(50), tags=(TAG,))  # rho 1/100
    for plan, rho in (
        (gauss, 4),
        (replace(gauss, cells=3), 12),
        (replace(gauss, cells_replaced=2), 2),
        (Group(part=replace(gauss, cells_replaced=2), size=3), 18),
        (Group(part=gauss, size=3), 36),
        (Choice(parts=(replace(gauss, cells_replaced=1), replace(gauss, cells_replaced=3))), 3),
    ):
        assert spent(as_replacement(plan, ADD), "zcdp") == Fraction(rho, 100)
    assert spent(as_replacement(gauss, REPLACE), "zcdp", REPLACE) == Fraction(2, 100)


def test_declared_figures_count_for_two_records() -> None:
    one = Declared(guarantee=Declaration(epsilon=Fraction(1), delta=Fraction(1, 100)), reference="a proof", tags=(TAG,))
    found = price(as_replacement(one, ADD), ADD, ())
    assert found.epsilon == 2
    assert float(found.delta) == pytest.approx((1 + math.e) / 100, rel=1e-12)
    points = replace(one, guarantee=Declaration(rdp=((Fraction(2), Fraction(1)),)))
    assert price(as_replacement(points, ADD), ADD, (Fraction(2),)).quanta == (None,)


@settings(max_examples=60)
@given(plans(ADD))
def test_a_promise_and_other_values_change_no_price_of_an_account(plan: Plan) -> None:
    def stated(one: Plan) -> Plan:
        document = write_plan(one)

        def visit(node: dict[str, Any]) -> None:
            node["reads"] = "nothing capped"
            if "sensitivity" in node:
                node["cells_replaced"] = 7
            for part in (*node.get("parts", ()), *([node["part"]] if "part" in node else ())):
                visit(part)

        visit(document)
        return read_plan(document)

    assert condense(stated(plan)) == condense(plan)
    assert write_plan(stated(plan)) == write_plan(read_plan(write_plan(stated(plan))))


@settings(max_examples=60)
@given(plans(ADD, 4))
def test_a_replacement_costs_no_less_than_one_record(plan: Plan) -> None:
    """Twice one record's price is a bound from below, by the convexity of each cell's loss."""
    part = as_replacement(plan, ADD)
    for definition in ("pure", "zcdp", "rdp"):
        whole, one = spent(part, definition), spent(plan, definition)
        assert whole is None or (one is not None and whole + Fraction(2, QUANTA) >= 2 * one)


def test_no_tight_figure_rests_on_an_unproven_profile() -> None:
    """The bound on another value below parallel is one on Rényi divergences."""
    divided = Parallel(parts=(noise(cells_replaced=1), noise()), max_degree=1)
    for plan, tight in ((divided, False), (noise(), True), (noise(cells_replaced=2), True)):
        repeated = as_replacement(Repeat(part=plan, count=40), ADD)
        methods = {one.via: one.method for one in guarantee(repeated, ADD).approximate}
        assert (methods["tight"] not in {"pure", "rdp", "zcdp"}) is tight


def test_another_cell_count_belongs_to_add_remove() -> None:
    check_relation(noise(cells_replaced=2), ADD)
    with pytest.raises(InvalidInput) as refused:
        check_relation(Sequence(parts=(noise(cells_replaced=2),)), REPLACE, "/plan")
    assert [fault.pointer for fault in refused.value.faults] == ["/plan/parts/0/cells_replaced"]


STATED = Sequence(parts=(noise(tags=("state",)), noise(reads="nothing capped"), Repeat(part=noise(), count=2)))


def test_each_mechanism_needs_a_statement_of_the_plan() -> None:
    def faults(plan: Plan, *release_tags: str) -> list[str]:
        return [fault.pointer for fault in statement_faults(plan, {TAG}, "persons", "/plan", release_tags)]

    assert faults(STATED) == ["/plan/parts/2/part"]
    assert faults(STATED, "pl94") == ["/plan/parts/2/part"]  # a label of the release states nothing
    assert faults(replace(STATED, tags=("pl94",))) == []
    assert faults(replace(STATED, reads="nothing capped")) == []
    assert faults(STATED, TAG) == ["/plan/parts/1/reads", "/plan/parts/2/part"]
    assert faults(Sequence(parts=(TABLE,), reads="nothing capped")) == ["/plan/reads"]
    assert faults(Sequence(parts=(noise(reads="nothing capped"),), tags=(TAG,))) == ["/plan/parts/0/reads"]


def test_earlier_mechanisms_count_unless_their_tags_were_a_promise() -> None:
    assert possibly_tagged_part(STATED, TAG, stated=False) == STATED
    kept = possibly_tagged_part(STATED, TAG, stated=True)
    assert kept == replace(STATED, parts=STATED.parts[1:])
    assert possibly_tagged_part(noise(tags=("state",)), TAG, stated=True) is None
    assert possibly_tagged_part(TABLE, TAG, stated=True) == TABLE
    assert possibly_tagged_part(noise(tags=("pl94",), reads="nothing capped"), TAG, stated=True) is not None


def test_a_tag_of_the_release_holds_for_all_of_it() -> None:
    assert tagged_part(STATED, (TAG,), TAG) == STATED
    assert tagged_part(STATED, (), TAG) is None
    assert tagged_part(STATED, (), "state") == Sequence(parts=STATED.parts[:1])
