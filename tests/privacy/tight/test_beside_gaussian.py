"""Atoms that are far apart beside a little Gaussian noise, against the same sum in mpmath."""

import random
from fractions import Fraction
from typing import Any

import pytest

from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Gaussian, Geometric, Mechanism
from service.privacy.plans import Sequence
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from service.privacy.tight.beside_gaussian import AtomsBesideGaussian
from tests.privacy.reference import exactly, mp, nats, oracle
from tests.privacy.tight import exact

ADD = Neighbouring.ADD_REMOVE


def beside(noise: Mechanism, rho: str) -> TightProfile:
    plan = Sequence(parts=(noise, Gaussian(sigma_squared=1 / (2 * Fraction(rho)))))
    profile = TightProfile.of(plan, ADD)
    assert profile is not None
    assert isinstance(profile.analysis, AtomsBesideGaussian)
    return profile


def assert_just_above(profile: TightProfile, at: Any, truth: Any, within: float) -> None:
    found = profile.delta(exactly(at))
    assert found is not None
    assert truth <= mp.mpf(nats(found.loss).numerator) / nats(found.loss).denominator <= truth * (1 + mp.mpf(within))


def test_integer_noise_beside_a_little_gaussian_noise() -> None:
    """A line gave 48.12 at 3.5e-82."""
    with mp.workdps(60):
        profile = beside(DiscreteOsgt(sigma_squared=Fraction("0.1583"), m=Fraction("0.05488")), "1.715e-4")
        atoms = exact.noise(oracle.discrete_osgt("0.1583", "0.05488"), 1)

        def delta(at: Any) -> Any:
            return exact.beside_gaussian(atoms, "1.715e-4", at)

        found = profile.epsilon(Fraction("3.5e-82"))
        assert found is not None
        least = exact.inverse(delta, mp.mpf("3.5e-82"), 80)
        assert exactly(least) <= nats(found.loss) <= exactly(least) * (1 + Fraction(1, 10**9))
        for at in ("0.001", "1", "3", "10", "47", "48"):
            assert_just_above(profile, mp.mpf(at), delta(mp.mpf(at)), 1e-7)


@pytest.mark.parametrize("seed", range(12))
def test_two_losses_beside_a_little_gaussian_noise(seed: int) -> None:
    dice = random.Random(seed)
    loss = str(round(dice.uniform(0.5, 30), 3))
    rho = f"{10 ** dice.uniform(-12, -5):.6e}"
    with mp.workdps(60):
        profile = beside(Geometric(scale=1 / Fraction(loss)), rho)
        atoms, width = exact.response(loss, 2), mp.sqrt(2 * mp.mpf(rho))
        for _ in range(5):  # around the loss, where delta falls, and anywhere
            near = mp.mpf(loss) + mp.mpf(dice.uniform(-6, 9)) * width
            for at in (near, mp.mpf(dice.uniform(0, float(loss)))):
                truth = exact.beside_gaussian(atoms, rho, at)
                assert_just_above(profile, at, truth, 1e-3 if truth > mp.mpf(10) ** -40 else 1)


def test_one_loss_beside_a_gaussian_is_far_from_all_others() -> None:
    """All other losses of so narrow noise are rarer than 1e-130. A line gave 731.89 at 1e-60."""
    with mp.workdps(60):
        profile = beside(DiscreteGaussian(sigma_squared=Fraction("0.001")), "5e-5")
        atoms = exact.noise(oracle.discrete_gaussian("0.001"), 1, 1200)
        least = exact.inverse(lambda e: exact.beside_gaussian(atoms, "5e-5", e), mp.mpf("1e-60"), 800)
        found = profile.epsilon(Fraction("1e-60"))
        assert found is not None
        assert exactly(least) <= nats(found.loss) <= exactly(least) * (1 + Fraction(1, 10**9))
