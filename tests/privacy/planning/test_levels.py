"""The levels of a SafeTab plan, found by the names of their mechanisms."""

from fractions import Fraction

import pytest

from service.privacy.accounting.zcdp import plan_rho
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms import DiscreteGaussian, Gaussian, Geometric, Mechanism
from service.privacy.planning.levels import find_level, laws_of, levels_of
from service.privacy.plans import Choice, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring, condense


def _noise(name: str, scale: int, cells: int | None = 9, cells_added: int | None = None) -> Geometric:
    return Geometric(name=name, scale=Fraction(scale), cells=cells, cells_added=cells_added)


def _choice(name: str, *, swapped: bool = False, nested: bool = False) -> Choice:
    step_2: Plan = _noise(f"{name}/b", 3)
    steps = Sequence(parts=(_noise(f"{name}/a", 2), Parallel(parts=(step_2,), max_degree=1) if nested else step_2))
    parts: tuple[Plan, Plan] = (_noise(f"{name}/t", 1), steps)
    return Choice(parts=parts[::-1] if swapped else parts)


def test_levels_are_found_wherever_each_group_has_one_turn() -> None:
    plan = Sequence(
        parts=(
            Parallel(parts=(_choice("x/y"),), max_degree=9),
            _choice("z", swapped=True, nested=True),
            Repeat(part=Sequence(parts=(Repeat(part=_choice("repeated"), count=2),)), count=3),
            Choice(parts=(_choice("inside"), _choice("inside too"))),
            _choice("twice"),
            Parallel(parts=(_choice("twice"),), max_degree=1),
        )
    )
    assert [(level.name, level.count) for level in levels_of(plan)] == [
        ("x/y", 1), ("z", 1), ("repeated", 6), ("twice", 1), ("twice", 1)
    ]  # fmt: skip
    first, second = find_level(plan, "x/y"), find_level(plan, "z")
    assert first is not None
    assert second is not None
    assert (first.pointer, first.branches) == ("/parts/0/parts/0", (0, 1))
    assert (second.pointer, second.branches) == ("/parts/1", (1, 0))
    assert laws_of(first) == laws_of(second) == tuple(NoiseLaw(scale=Fraction(scale)) for scale in (1, 2, 3))
    for name in ("twice", "inside", "x", ""):
        assert find_level(plan, name) is None


def test_plans_of_another_form_have_no_level() -> None:
    a, b, c = (_noise(f"n/{letter}", 1) for letter in "abc")
    other = _noise("m/c", 1)
    for plan in (
        Choice(parts=(a, b)),
        Choice(parts=(a, Sequence(parts=(b,)))),
        Choice(parts=(a, Sequence(parts=(b, other)))),
        Choice(parts=(a, Sequence(parts=(b, c)), other)),
        Choice(parts=(a, Sequence(parts=(b, Repeat(part=c, count=2))))),
        Sequence(parts=(a, Sequence(parts=(b, c)))),
    ):
        assert list(levels_of(plan)) == []


def test_noise_that_is_not_of_whole_counts_has_no_law() -> None:
    whole = _noise("n/a", 1)
    for other in (
        Gaussian(name="n/c", sigma_squared=Fraction(1)),
        Geometric(name="n/c", scale=Fraction(1), granularity=Fraction(1, 2)),
    ):
        mechanism: Mechanism = other
        level = find_level(Choice(parts=(whole, Sequence(parts=(_noise("n/b", 1), mechanism)))), "n")
        assert level is not None
        assert laws_of(level) is None


@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize("groups", [1, 2, 9])
def test_a_plan_costs_what_its_promise_allows(relation: Neighbouring, groups: int) -> None:
    """A record in so many groups, each of which may take either branch: a plan that lists them, folded."""
    total, step_1, step_2 = (
        DiscreteGaussian(name=f"n/{name}", sigma_squared=Fraction(v), cells=1)
        for name, v in (("t", 9), ("a", 90), ("b", 11))
    )
    choice = Choice(parts=(total, Sequence(parts=(step_1, step_2))))
    plan = Repeat(part=choice, count=groups)
    level = find_level(plan, "n")
    assert level is not None
    assert level.count == groups
    listed = Parallel(parts=(choice,) * (groups + 5), max_degree=groups)
    assert plan_rho(condense(plan), relation).nats == plan_rho(condense(listed), relation).nats
