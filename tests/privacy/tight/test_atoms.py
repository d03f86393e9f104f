"""Sums over many atoms against exact rational sums of the same doubles."""

import math
from fractions import Fraction

import numpy as np
import pytest

from service.privacy.tight.atoms import AtomEnumeration, convolve, law_from_profile, profile
from service.privacy.tight.contour import sketch_of
from service.privacy.tight.laws import Atoms, compose_laws
from tests.privacy.reference import mp


def law(count: int, seed: int) -> Atoms:
    dice = np.random.default_rng(seed)
    p = np.exp(-np.linspace(0, 80, count)) * dice.uniform(0.5, 1.5, count)
    return Atoms(np.sort(dice.uniform(-8, 20, count)), p / p.sum(), rounding=0.0)


def exactly(atoms: Atoms, epsilon: float) -> Fraction:
    above = [(x, p) for x, p in zip(atoms.x.tolist(), atoms.p.tolist(), strict=True) if x > epsilon]
    with mp.workdps(40):
        value = mp.fsum(mp.mpf(p) * -mp.expm1(mp.mpf(epsilon) - mp.mpf(x)) for x, p in above)
        return Fraction(*map(int, mp.mpf(value).as_integer_ratio())) if value else Fraction(0)


@pytest.mark.parametrize("count", [100, 1 << 15])
def test_a_profile_is_not_below_the_exact_sum(count: int) -> None:
    atoms = law(count, count)
    epsilons = np.array([0.0, 1.5, 7.0, 15.0, 19.9])
    whole = AtomEnumeration(sketch_of(compose_laws({atoms: 1})), atoms)
    for epsilon, found in zip(epsilons.tolist(), profile(atoms, epsilons).tolist(), strict=True):
        truth = exactly(atoms, epsilon)
        assert truth <= Fraction(found) <= truth * (1 + Fraction(1, 10**8)) + Fraction(1, 10**20)
        assert truth <= Fraction(math.exp(whole.log_delta(epsilon)[0])) * (1 + Fraction(1, 10**14))


def test_a_law_on_a_long_grid_has_no_smaller_profile_than_it_was_made_from() -> None:
    points = np.linspace(0.0, 30.0, (1 << 14) + 1)
    with mp.workdps(30):
        deltas = np.array([float(mp.exp(-(mp.mpf(x) ** 2) / 3)) for x in points.tolist()])
    deltas = np.maximum(deltas, 1e-130)
    found = law_from_profile(points, deltas, float(points[1]))
    for k in range(0, len(points), 997):
        truth = Fraction(float(deltas[k])) - Fraction(found.infinite)
        assert exactly(found, float(points[k])) * (1 + Fraction(found.rounding)) >= truth * (1 - Fraction(1, 10**15))


def test_joined_atoms_count_what_their_sum_loses() -> None:
    """Two hundred equal losses are joined to one, so their sum is off by up to 199 units."""
    ladder = Atoms(0.1 * np.arange(200.0), np.full(200, 1 / 200), rounding=0.0)
    assert convolve(ladder, ladder).rounding >= 1e-14 + 200 * 2.0**-53


def test_masses_far_out_do_not_vanish() -> None:
    """At losses near 600, with probabilities near 1e-130: exp(-x) of these would be far below all doubles."""
    points = np.linspace(0.0, 600.0, 601)
    deltas = np.exp(-points / 2.02)
    law = law_from_profile(points, deltas, 1.0)
    assert (law.p >= 0).all()
    assert (law.p[-600:] > 0).all()
    assert profile(law, points) == pytest.approx(deltas, rel=1e-9, abs=0.0)
    for k in (0, 300, 550, 599, 600):
        truth = Fraction(float(deltas[k]))
        assert exactly(law, float(k)) + Fraction(law.infinite) >= truth * (1 - Fraction(law.rounding))
        assert profile(law, points[k : k + 1])[0] >= truth * (1 - Fraction(1, 10**15))
