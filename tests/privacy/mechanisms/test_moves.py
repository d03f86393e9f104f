"""Mechanisms whose cells a record moves by different distances: against enumerated losses."""

import itertools
from collections.abc import Sequence as Listed
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp  # type: ignore[import-untyped]

from service.errors import InvalidInput
from service.privacy.accounting.pricing import QUANTA, price
from service.privacy.accounting.pure import plan_epsilon
from service.privacy.accounting.zcdp import plan_rho
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Gaussian, Geometric
from service.privacy.plans import Choice, Group, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.notation import read_plan, write_plan
from service.privacy.plans.tagged import as_replacement
from service.privacy.plans.walking import Neighbouring, Priced
from service.privacy.tight import TightProfile
from tests.privacy.reference import nats, oracle

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
ONE_LARGE_OR_MANY = (((2, 1),), ((1, 3),))
MIXED = (((3, 1), (1, 1)), ((2, 2),))
LAWS = {
    "geometric": (Geometric(scale=Fraction(2)), oracle.geometric(Fraction(2))),
    "discrete Gaussian": (DiscreteGaussian(sigma_squared=Fraction(3)), oracle.discrete_gaussian(Fraction(3))),
    "narrow": (DiscreteGaussian(sigma_squared=Fraction("0.3")), oracle.discrete_gaussian(Fraction("0.3"))),
    "offset": (
        DiscreteOsgt(sigma_squared=Fraction(4), m=Fraction("0.5")),
        oracle.discrete_osgt(Fraction(4), Fraction("0.5")),
    ),
}
X = np.arange(-120, 121)

every_law = pytest.mark.parametrize("law", LAWS)
every_moves = pytest.mark.parametrize("moves", [ONE_LARGE_OR_MANY, MIXED], ids=["one large or many", "mixed"])
both_relations = pytest.mark.parametrize("neighbouring", [ADD, REPLACE])


def moving(law: str, moves: Any) -> Any:
    largest = max(by for alternative in moves for by, _ in alternative)
    return replace(LAWS[law][0], moves=moves, sensitivity=largest)


def changes(moves: Any, neighbouring: Neighbouring) -> list[list[int]]:
    """The distances by which each change moves cells: a replacement undoes one alternative and does another."""
    once = [[by for by, cells in alternative for _ in range(cells)] for alternative in moves]
    return once if neighbouring is ADD else [one + [-by for by in two] for one, two in itertools.product(once, once)]


@cache
def log_masses(law: str, distance: int) -> Any:
    return np.array([float(LAWS[law][1](abs(int(x) - distance))) for x in X])


def losses(law: str, distances: Listed[int]) -> tuple[Any, Any]:
    """The loss of independent cells that are moved by these distances, and the probabilities of its values."""
    return _losses(law, tuple(sorted(map(abs, distances))))  # the laws are symmetric


@cache
def _losses(law: str, distances: tuple[int, ...]) -> tuple[Any, Any]:
    stay = log_masses(law, 0)
    mass = np.exp(stay) / np.exp(stay).sum()
    values: Any = np.zeros(1)
    probabilities: Any = np.ones(1)
    for distance in distances:
        loss = stay - log_masses(law, distance)
        sums = np.round(np.add.outer(values, loss).ravel(), 10)
        values, place = np.unique(sums, return_inverse=True)
        probabilities = np.bincount(place, np.multiply.outer(probabilities, mass).ravel())
    return values, probabilities


def delta(law: str, every: list[list[int]], epsilon: float) -> float:
    laws = (losses(law, distances) for distances in every)
    return max(float(p @ np.maximum(0.0, -np.expm1(np.minimum(epsilon - x, 0.0)))) for x, p in laws)


def tau(law: str, every: list[list[int]], alpha: float) -> float:
    laws = (losses(law, distances) for distances in every)
    return max(float(logsumexp((alpha - 1) * x[p > 0] + np.log(p[p > 0]))) / (alpha - 1) for x, p in laws)


def priced(plan: Priced, neighbouring: Neighbouring, alpha: Fraction) -> float:
    """The Rényi divergence that the service charges."""
    one = price(plan, neighbouring, (alpha,))
    assert None not in one.quanta
    return float(one.linear * alpha + sum(Fraction(quanta or 0, QUANTA) for quanta in one.quanta))


@every_law
@every_moves
@both_relations
def test_the_privacy_profile_is_the_largest_of_all_changes(law: str, moves: Any, neighbouring: Neighbouring) -> None:
    """Also where no single change has the largest profile everywhere.

    Profiles of many losses are joined linearly between the points of a grid, which is up to 2e-3 above the largest.
    """
    profile = TightProfile.of(moving(law, moves), neighbouring)
    assert profile is not None
    for epsilon in (0.25, 1.0, 2.0, 4.0):
        found = profile.delta(Fraction(epsilon))
        assert found is not None
        truth = delta(law, changes(moves, neighbouring), epsilon)
        assert truth * (1 - 1e-8) - 1e-15 <= float(nats(found.loss)) <= truth * (1 + 2e-3) + 1e-12


def test_no_single_change_is_the_worst_everywhere() -> None:
    """So that the test above would notice if one alternative stood for all."""
    once, thrice = ([[2]], [[1, 1, 1]])
    ahead = [delta("geometric", once, epsilon) - delta("geometric", thrice, epsilon) for epsilon in (0.25, 1.25)]
    assert ahead[0] > 1e-3
    assert ahead[1] < -1e-3


@every_law
@every_moves
@both_relations
def test_moment_bounds_are_the_largest_of_all_changes(law: str, moves: Any, neighbouring: Neighbouring) -> None:
    plan = moving(law, moves)
    orders = (Fraction(3, 2), Fraction(2), Fraction(8))
    for alpha in orders:
        truth = tau(law, changes(moves, neighbouring), float(alpha))
        slack = 0.15 if law == "narrow" else 1e-8  # charges take the slope of narrow Gaussian noise, and not its curve
        assert truth * (1 - 1e-8) <= priced(plan, neighbouring, alpha) <= truth * (1 + slack)
        assert float(nats(plan_rho(plan, neighbouring))) * float(alpha) >= truth * (1 - 1e-8)


@both_relations
def test_pure_losses_add_up_within_an_alternative(neighbouring: Neighbouring) -> None:
    sides = 1 if neighbouring is ADD else 2
    assert nats(plan_epsilon(moving("geometric", ONE_LARGE_OR_MANY), neighbouring)) == Fraction(3, 2) * sides
    assert nats(plan_epsilon(moving("geometric", MIXED), neighbouring)) == 2 * sides


@both_relations
def test_one_alternative_of_one_distance_is_sensitivity_and_cells(neighbouring: Neighbouring) -> None:
    moves = moving("discrete Gaussian", (((2, 3),),))
    cells = DiscreteGaussian(
        sigma_squared=Fraction(3), sensitivity=2, cells=3 if neighbouring is ADD else 6, cells_added=None
    )
    for delta_at in (Fraction(1, 10**6), Fraction(1, 10**3)):
        one, two = (TightProfile.of(plan, neighbouring) for plan in (moves, cells))
        assert one is not None
        assert two is not None
        assert one.epsilon(delta_at) == two.epsilon(delta_at)


@every_law
def test_smaller_distances_need_not_be_listed(law: str) -> None:
    more = (*MIXED, ((3, 1),), ((2, 1), (1, 1)), ((1, 2),))
    for neighbouring in (ADD, REPLACE):
        for epsilon in (0.5, 3.0):
            some, every = (delta(law, changes(moves, neighbouring), epsilon) for moves in (MIXED, more))
            assert every == pytest.approx(some, rel=1e-12)


@pytest.mark.parametrize("moves", [ONE_LARGE_OR_MANY, MIXED], ids=["one large or many", "mixed"])
@pytest.mark.parametrize("law", ["geometric", "discrete Gaussian"])
def test_a_group_bounds_whatever_its_records_move(law: str, moves: Any) -> None:
    """Two records may do different alternatives, in the same cells or in others."""
    once = changes(moves, ADD)
    together = [
        [sum(pair) for pair in itertools.zip_longest([0] * apart + one, two, fillvalue=0)]
        for one, moved in itertools.product(once, once)
        for two in set(itertools.permutations(moved))
        for apart in range(len(two) + 1)
    ]
    group = Group(part=moving(law, moves), size=2)
    assert priced(group, ADD, Fraction(4)) >= tau(law, together, 4.0) * (1 - 1e-9)
    assert TightProfile.of(group, ADD) is None


@pytest.mark.parametrize("law", ["geometric", "discrete Gaussian"])
def test_another_value_undoes_one_alternative_and_does_another(law: str) -> None:
    part = as_replacement(moving(law, MIXED), ADD)
    truth = tau(law, changes(MIXED, REPLACE), 4.0)
    assert truth * (1 - 1e-9) <= priced(part, ADD, Fraction(4)) <= truth * (1 + 1e-9)


@both_relations
def test_moves_compose_as_any_mechanism(neighbouring: Neighbouring) -> None:
    """A choice of the alternatives is the same, or a bound: there, either side of a replacement chooses by itself."""
    one = moving("geometric", ONE_LARGE_OR_MANY)
    other = Geometric(scale=Fraction(5))
    choices: list[Plan] = [
        Repeat(part=one, count=2),
        Sequence(parts=(one, other)),
        Choice(parts=(one, other)),
        Parallel(parts=(one, one, other), max_degree=2),
    ]
    written_out = Choice(
        parts=(
            Geometric(scale=Fraction(2), sensitivity=2),
            Geometric(scale=Fraction(2), cells=3 if neighbouring is ADD else 6),
        )
    )
    plain: list[Plan] = [
        Repeat(part=written_out, count=2),
        Sequence(parts=(written_out, other)),
        Choice(parts=(written_out, other)),
        Parallel(parts=(written_out, written_out, other), max_degree=2),
    ]
    for plan, same in zip(choices, plain, strict=True):
        assert plan_epsilon(plan, neighbouring) == plan_epsilon(same, neighbouring)
        assert plan_rho(plan, neighbouring) == plan_rho(same, neighbouring)
        profiles = [TightProfile.of(one, neighbouring) for one in (plan, same)]
        assert all(profile is not None for profile in profiles)
        found, bound = (profile.epsilon(Fraction(1, 10**4)) for profile in profiles if profile is not None)
        assert found is not None
        assert bound is not None
        assert nats(bound.loss) * Fraction(97, 100) <= nats(found.loss) <= nats(bound.loss)


DOCUMENT: dict[str, Any] = {"type": "discrete_gaussian", "rho": "1/2"}


def test_a_document_reads_back_in_normal_form() -> None:
    moves = [[{"by": 1, "cells": 2}, {"by": 2}], [{"by": 1}, {"by": 2}, {"by": 1}], [{"by": 1, "cells": 9}]]
    plan = read_plan(DOCUMENT | {"moves": moves})
    assert write_plan(plan)["moves"] == [[{"by": 2, "cells": 1}, {"by": 1, "cells": 2}], [{"by": 1, "cells": 9}]]
    assert write_plan(plan)["sigma_squared"] == "4"  # rho is that of the largest distance
    assert read_plan(write_plan(plan)) == plan
    assert hash(read_plan(write_plan(plan))) == hash(plan)


def test_distances_are_multiples_of_granularity() -> None:
    moves = [[{"by": "1.5"}, {"by": "0.5", "cells": 4}]]
    plan = read_plan({"type": "geometric", "scale": "10", "granularity": "0.5", "moves": moves})
    assert plan == Geometric(
        name="/", scale=Fraction(20), sensitivity=3, granularity=Fraction(1, 2), moves=(((3, 1), (1, 4)),)
    )
    assert write_plan(plan)["moves"] == [[{"by": "1.5", "cells": 1}, {"by": "0.5", "cells": 4}]]


def test_continuous_noise_takes_any_distance() -> None:
    plan = read_plan(
        {"type": "gaussian", "sigma_squared": "1", "moves": [[{"by": "1/3"}], [{"by": "0.2", "cells": 2}]]}
    )
    assert isinstance(plan, Gaussian)
    assert plan.sensitivity == Fraction(1, 3)
    assert nats(plan_rho(plan, ADD)) == Fraction(1, 18)
    assert read_plan(write_plan(plan)) == plan


@pytest.mark.parametrize(
    ("stated", "pointer"),
    [
        ({"moves": [[{"by": 0}]]}, "/moves/0/0/by"),
        ({"moves": [[{"by": 1}], [{"by": 1}, {"by": "-2"}]]}, "/moves/1/1/by"),
        ({"moves": [[{"by": "1.5"}]]}, "/moves/0/0/by"),
        ({"moves": [[{"by": "nan"}]]}, "/moves/0/0/by"),
        ({"moves": [[{"by": "1e400"}]], "granularity": "1"}, "/moves/0/0/by"),
        ({"moves": [[{"by": 2}], [{"by": 1, "cells": 2**53}, {"by": 1}]]}, "/moves/1"),
        ({"moves": [[{"by": 1}]], "sensitivity": 1}, "/sensitivity"),
        ({"moves": [[{"by": 1}]], "cells": 1}, "/cells"),
        ({"moves": [[{"by": 1}]], "cells_added": 1}, "/cells_added"),
        ({"moves": [[{"by": 1}]], "cells_replaced": 1}, "/cells_replaced"),
    ],
)
def test_what_has_no_meaning_is_refused(stated: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_plan(DOCUMENT | stated)
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


def test_a_mechanism_with_moves_is_never_priced_as_one_cell() -> None:
    with pytest.raises(ValueError, match="moves all cells alike"):
        moving("geometric", MIXED).moved(replaced=False, one_side=False)
