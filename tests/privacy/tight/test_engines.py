"""The ways to invert one composition against one another, and where each is taken."""

import math
from fractions import Fraction

import numpy as np
import pytest

from service.privacy.laws.loss_laws import DiscreteGaussianLoss, GaussianLoss, LadderLoss
from service.privacy.mechanisms import DiscreteGaussian, Gaussian, Geometric, Laplace, Mechanism
from service.privacy.plans import Choice, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from service.privacy.tight.atoms import AtomEnumeration, atoms_of, law_from_profile, profile
from service.privacy.tight.contour_selection import ContourSelector
from service.privacy.tight.gaussian import gaussian_delta
from service.privacy.tight.laws import Atoms, ComposedLaw
from service.privacy.tight.search import least_epsilon
from tests.privacy.reference import nats

ADD = Neighbouring.ADD_REMOVE


@pytest.mark.parametrize(
    "laws",
    [
        {LadderLoss(Fraction(1, 2)): 30},
        {LadderLoss(Fraction(3, 4), 3): 5, LadderLoss(Fraction(1, 2), 2, 9): 4},
        {DiscreteGaussianLoss(sigma_squared=Fraction(3), sensitivity=1): 6},
        {DiscreteGaussianLoss(sigma_squared=Fraction(1, 5), sensitivity=2): 2, LadderLoss(Fraction(2, 7)): 3},
        {
            LadderLoss(Fraction(random, 1009)): 1
            for random in (311, 340, 401, 419, 457, 503, 547, 601, 653, 709, 757, 811)
        },
    ],
)
@pytest.mark.parametrize("delta", [1e-5, 1e-3, 0.05])
def test_enumeration_and_contours_agree(laws: dict[ComposedLaw, int], delta: float) -> None:
    atoms, lines = AtomEnumeration.of(laws), ContourSelector.of(laws)
    with np.errstate(all="ignore"):
        one, two = (least_epsilon(analysis, math.log(delta)) for analysis in (atoms, lines))
    assert one is not None
    assert two is not None
    assert two[0] == pytest.approx(one[0], rel=1e-6)


@pytest.mark.parametrize("count", [1, 10_000])
@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 4.0, 30.0])
def test_a_line_finds_the_closed_form(count: int, epsilon: float) -> None:
    """Ten thousand Gaussians of standard deviation 100, as in prv_accountant's own tests, are one of 1."""
    line, method = ContourSelector.of({GaussianLoss(sigma_squared=Fraction(count)): count}).at(epsilon)
    closed = float(nats(gaussian_delta(Fraction(1, 2), Fraction(epsilon))))
    found = math.exp(line.log_delta(epsilon)[0])
    assert method == "contour"
    assert closed * (1 - 1e-15) <= found <= closed * (1 + 1e-9)


@pytest.mark.parametrize(
    ("plan", "method"),
    [
        (Repeat(part=Gaussian(sigma_squared=Fraction(9)), count=7), "closed form"),
        (DiscreteGaussian(sigma_squared=Fraction(9)), "atoms"),
        (Repeat(part=Geometric(scale=Fraction(40)), count=10**9), "lattice"),
        (Repeat(part=Laplace(scale=Fraction(3)), count=4), "lattice"),
        (Sequence(parts=(Gaussian(sigma_squared=Fraction(9)), Geometric(scale=Fraction(4)))), "contour"),
        (
            Repeat(part=Choice(parts=(Gaussian(sigma_squared=Fraction(9)), Laplace(scale=Fraction(4)))), count=9),
            "contour",
        ),
    ],
)
def test_the_method_is_reported(plan: Plan, method: str) -> None:
    found = TightProfile.of(plan, ADD)
    assert found is not None
    bound = found.epsilon(Fraction(1, 10**7))
    assert bound is not None
    assert bound.method == method


def test_a_law_has_the_profile_that_it_was_made_from() -> None:
    points = np.linspace(0.0, 3.0, 40)
    source = atoms_of(DiscreteGaussianLoss(sigma_squared=Fraction(5), sensitivity=1))
    law = law_from_profile(points, profile(source, points))
    assert law.p.sum() + law.infinite == pytest.approx(1, abs=1e-12)
    assert profile(law, points) == pytest.approx(profile(source, points), rel=1e-9)
    between = (points[1:] + points[:-1]) / 2
    assert (profile(law, between) >= profile(source, between)).all()


def test_bounds_out_of_line_are_passed_by() -> None:
    """One bound that is raised above the chord of its neighbours does not count."""
    points = np.array([0.0, 0.5, 1.0, 2.0])
    deltas = -np.expm1((points - 2) / 2)
    raised = deltas.copy()
    raised[1] += 0.1
    assert isinstance(law := law_from_profile(points, raised), Atoms)
    chord = profile(law_from_profile(points[[0, 2, 3]], deltas[[0, 2, 3]]), points)
    assert profile(law, points) == pytest.approx(chord, abs=1e-11)


@pytest.mark.parametrize("kind", [Laplace, Geometric])
def test_many_of_many_kinds_are_bounded_in_time_and_sound(kind: type[Mechanism]) -> None:
    """Above the same with a little more noise each, below the same with a little less."""
    plans = [
        Sequence(parts=tuple(kind(scale=Fraction(20_000 + 37 * k, 1000) * noise) for k in range(600)))  # type: ignore[call-arg]
        for noise in (Fraction(101, 100), Fraction(1), Fraction(99, 100))
    ]
    analyses = [tight for tight in (TightProfile.of(plan, ADD) for plan in plans) if tight is not None]
    bounds = [analysis.epsilon(Fraction(1, 10**10)) for analysis in analyses]
    less, here, more = (nats(bound.loss) for bound in bounds if bound is not None)
    assert less < here < more
    assert more < less * Fraction(104, 100)
