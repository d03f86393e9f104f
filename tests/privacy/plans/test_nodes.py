"""The contract of every node: its document, its parts and where they are, and how their losses compose.

``tests/privacy/plans/test_walking.py`` holds the losses against the enumeration of where a record can be.
"""

from collections.abc import Sequence as Listed
from fractions import Fraction
from typing import Any

import pytest

from service.privacy.accounting.zcdp import plan_rho
from service.privacy.mechanisms import DiscreteGaussian, Geometric
from service.privacy.plans import Choice, Group, Node, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.notation import read_plan, walk, write_plan
from service.privacy.plans.walking import (
    Neighbouring,
    children_with_pointers,
    condense,
    mechanisms_of,
    restrict,
    runs_of,
)

ONE = DiscreteGaussian(name="one", sigma_squared=Fraction(10), tags=("sex",))  # rho 1/20
TWO = DiscreteGaussian(name="two", sigma_squared=Fraction(5), tags=("age",))  # rho 1/10
NODES: Listed[tuple[Node, Fraction, int]] = [  # with their rho under add_remove, and how often mechanism "two" runs
    (Sequence(parts=(ONE, TWO)), Fraction(3, 20), 1),
    (Parallel(parts=(ONE, TWO, ONE), max_degree=1), Fraction(1, 10), 1),
    (Parallel(parts=(ONE, TWO, ONE), max_degree=2), Fraction(3, 20), 1),
    (Parallel(parts=(ONE, TWO), max_degree=9), Fraction(3, 20), 1),
    (Choice(parts=(ONE, TWO)), Fraction(1, 10), 1),
    (Repeat(part=TWO, count=7), Fraction(7, 10), 7),
    (Group(part=TWO, size=3), Fraction(9, 10), 1),
    (Repeat(part=Sequence(parts=(Repeat(part=TWO, count=2), ONE), tags=("state",)), count=3), Fraction(3, 4), 6),
    (Group(part=Choice(parts=(ONE, Group(part=TWO, size=2))), size=2), Fraction(16, 10), 1),
]
EXAMPLES = [node for node, _, _ in NODES]
every = pytest.mark.parametrize("node", EXAMPLES, ids=lambda node: node.TYPE)


def at(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        document = document[int(step) if isinstance(document, list) else step]
    return document


@every
def test_its_pointers_lead_to_its_parts_in_its_document(node: Node) -> None:
    document = write_plan(node)
    assert document["type"] == node.TYPE
    assert [at(document, pointer) for pointer, _ in children_with_pointers(node)] == [
        write_plan(part) for part in node.children
    ]
    assert [at(document, pointer) for pointer, _ in walk(node)] == [write_plan(part) for _, part in walk(node)]


def test_a_document_with_names_of_its_own_reads_back() -> None:
    for node in (Sequence(parts=(ONE, TWO)), Choice(parts=(TWO, ONE), tags=("a", "b")), Group(part=ONE, size=2)):
        assert read_plan(write_plan(node)) == node


@every
def test_other_parts_take_the_place_of_its_own(node: Node) -> None:
    other = Geometric(scale=Fraction(1))
    changed = node.with_children([other] * len(node.children))
    assert type(changed) is type(node)
    assert list(mechanisms_of(changed)) == [other] * len(node.children)
    assert changed.with_children(node.children) == node


@pytest.mark.parametrize(("node", "rho", "times"), NODES)
def test_losses_compose_as_worked_out_by_hand(node: Node, rho: Fraction, times: int) -> None:
    assert plan_rho(node, Neighbouring.ADD_REMOVE).nats == rho
    assert plan_rho(condense(node), Neighbouring.ADD_REMOVE).nats == rho
    assert {one.name: count for one, count in runs_of(node)}["two"] == times


@every
def test_a_node_whose_losses_add_up_loses_what_its_parts_lose(node: Node) -> None:
    def rho(plan: Plan) -> Fraction:
        nats = plan_rho(plan, Neighbouring.REPLACE_ONE).nats
        assert nats is not None
        return nats

    apart = sum((rho(part) for part in node.children), Fraction(0))
    assert (rho(node) == apart) or not node.SUM


@every
def test_tags_restrict_it_to_the_parts_that_carry_them(node: Node) -> None:
    kept = restrict(node, "age")
    assert kept is not None
    assert {mechanism.name for mechanism in mechanisms_of(kept)} == {"two"}
    assert restrict(node, "never used") is None


@every
def test_it_says_in_words_what_it_is(node: Node) -> None:
    said = node.in_words("2 parts")
    assert ("2 parts" in said) is (len(node.children) > 1)
    for field in ("max_degree", "count", "size"):
        assert not hasattr(node, field) or str(getattr(node, field)) in said
