"""Cumulant functions in doubles against sums and error functions in mpmath, with the errors that are claimed."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flint import acb
from scipy.special import wofz  # type: ignore[import-untyped]  # it publishes no types

from service.privacy.laws.loss_laws import DiscreteGaussianLoss, DiscreteOsgtLoss, LadderLoss
from service.privacy.numerics.numbers import precision
from service.privacy.tight.atoms import atoms_of
from service.privacy.tight.families import UNIT, Family, Ladders, Laplaces
from service.privacy.tight.noise import WOFZ, AtomFamily, DiscreteGaussians, Osgts
from tests.privacy.reference import mp, oracle
from tests.privacy.tight import exact

AT_C, AT_T = (0.03, 0.5, 3.0, 40.0), (1e-3, 0.1, 1.0, 7.0, 55.0)


def array(*figures: float) -> Any:
    return np.array(figures)


def assert_is(family: Family, transform: Any, at_c: tuple[float, ...] = AT_C) -> None:
    """K at real c, and along lines, within what is claimed; transform is E exp(zL), in mpmath."""
    for c in at_c:
        real = mp.log(mp.re(transform(mp.mpf(c))))
        assert abs(family.cumulant(array(c))[0, 0] - real) <= UNIT * (abs(real) + family.floor[0])
        found, error = family.along_line(c, array(*AT_T))
        for t, change, claimed in zip(AT_T, found[0], error[0], strict=True):
            truth = transform(mp.mpc(c, t)) / transform(mp.mpf(c))
            assert abs(mp.exp(mp.mpc(change)) / truth - 1) <= UNIT * claimed


def of_atoms(atoms: exact.Atoms) -> Any:
    return lambda z: mp.fsum(p * mp.exp(z * loss) for loss, p in atoms.items())


@pytest.mark.parametrize("scale", ["100000", "40", "1", "0.04"])
@pytest.mark.parametrize("s", [1, 2, 7])
def test_ladders_are_geometric_noise(scale: str, s: int) -> None:
    with mp.workdps(60):
        b, q = oracle.number(scale), mp.exp(-1 / oracle.number(scale))
        atoms = {s / b: 1 / (1 + q), -s / b: q**s / (1 + q)}
        atoms |= {(s - 2 * x) / b: (1 - q) / (1 + q) * q**x for x in range(1, s)}
        law = LadderLoss(s / Fraction(scale), s)
        assert_is(Ladders(array(1), array(float(law.e)), array(s), array(law.inner)), of_atoms(atoms))


@pytest.mark.parametrize("epsilon", ["0.001", "1", "30"])
def test_ladders_are_randomised_response(epsilon: str) -> None:
    with mp.workdps(60):
        for values in (2, 5, 10**6):
            law = LadderLoss(Fraction(epsilon), 2 if values > 2 else 1, values)
            family = Ladders(array(1), array(float(law.e)), array(law.s), array(law.inner))
            assert_is(family, of_atoms(exact.response(epsilon, values)))


@pytest.mark.parametrize("e", [1e-5, 0.01, 1.0, 5.0, 30.0])
def test_laplace_cumulants_are_those_of_the_loss_law(e: float) -> None:
    def transform(z: Any) -> Any:
        """From the loss's law: atoms of 1/2 at e and exp(-e)/2 at -e, density exp((x-e)/2)/4 between."""
        largest, w = mp.mpf(e), z + mp.mpf(1) / 2
        ends = (mp.exp(largest * z) + mp.exp(-largest * (z + 1))) / 2
        return ends + mp.exp(-largest / 2) * mp.sinh(largest * w) / (2 * w)

    with mp.workdps(60):
        assert_is(Laplaces(array(1), array(e)), transform)


@pytest.mark.parametrize("v", ["1e-6", "0.000169", "0.05", "0.29", "0.31", "1", "1.3", "9.4", "140"])
@pytest.mark.parametrize("s", [1, 3])
def test_discrete_gaussian_cumulants_are_those_of_the_theta_function(v: str, s: int) -> None:
    with mp.workdps(60):
        variance = oracle.number(v)

        def theta(u: Any) -> Any:
            centre, reach = int(mp.nint(-mp.re(u))), int(16 * mp.sqrt(variance)) + 12
            return mp.fsum(mp.exp(-((x + u) ** 2) / (2 * variance)) for x in range(centre - reach, centre + reach + 1))

        def transform(z: Any) -> Any:
            return mp.exp(s * s / (2 * variance) * z * (z + 1)) * theta(mp.mpc(z) * s) / theta(mp.mpc(0))

        assert_is(DiscreteGaussians(array(1), array(float(v)), array(s)), transform, (0.03, 0.5, 3.0, 40.25))


@pytest.mark.parametrize(("v", "m", "s"), [(40.0, 3.0, 1.0), (630.0, 15.0, 1.0), (1.0, 0.0, 1.0), (2.0, 5.0, 2.0)])
def test_osgt_is_the_integral(v: float, m: float, s: float) -> None:
    family = Osgts(array(1), array(v), array(m), array(s))
    density, sigma = oracle.osgt_density(str(v), str(m))
    for c, t in ((0.5, 0.0), (3.0, 0.0), (3.0, 1.0), (0.5, 7.0)):
        centre = c * s
        points = [-40 * sigma, *(k * sigma for k in range(-16, 0, 4)), 0, mp.mpf(s), centre + 12 * sigma]
        points = sorted({*points, centre + 30 * sigma, centre + 4 * sigma})
        z = mp.mpc(c, t)
        with mp.workdps(30):
            truth = mp.quad(lambda y, z=z: density(y) ** (1 + z) * density(y - s) ** -z, points)
        change, error = family.along_line(c, array(t))
        found = mp.exp(mp.mpc(change[0, 0]) + family.cumulant(array(c))[0, 0])
        assert abs(found / truth - 1) <= 1e-13 + UNIT * error[0, 0]


def test_the_error_function_is_as_near_as_its_documentation_says() -> None:
    """In balls: w(iu) = exp(u²) erfc(u), at the arguments that offset tails have."""
    dice = np.random.default_rng(1)
    u = 10 ** dice.uniform(-6, 5, 600) + 1j * 10 ** dice.uniform(-6, 6, 600) * dice.choice([-1, 0, 1], 600)
    found = wofz(1j * u)
    for one, value in zip(u.tolist(), found.tolist(), strict=True):
        with precision(4_000 if abs(one) < 30 else 128):
            at = acb(one.real, one.imag)
            truth = at.erfc() * (at * at).exp() if abs(one) < 30 else _far_erfcx(at)
            assert abs(acb(value.real, value.imag) - truth) < abs(truth) * WOFZ * UNIT


def _far_erfcx(u: acb) -> acb:
    """exp(u²) erfc(u) far from 0 by its asymptotic series, whose error is below its first term that is left out."""
    term = total = 1 / (u * acb.pi().sqrt())
    for k in range(6):
        term = -term * (2 * k + 1) / (2 * u * u)
        total += term
    return total


def test_osgt_far_out_is_as_near_as_it_says() -> None:
    """Exponents of thousands are subtracted from one another there."""
    v, m, c, t = 300.0, 0.01, 20000.7, 1.0
    density, sigma = oracle.osgt_density(str(v), str(m))
    points = [-c + k * sigma for k in range(-20, 24, 4)]  # the tilted density lies about -c s

    def transform(z: Any) -> Any:
        with mp.workdps(40):
            return mp.quad(lambda y: mp.exp((1 + z) * mp.log(density(y)) - z * mp.log(density(y - 1))), points)

    change, error = Osgts(array(1), array(v), array(m), array(1.0)).along_line(c, array(t))
    with mp.workdps(40):
        assert (
            abs(mp.exp(mp.mpc(change[0, 0])) * transform(mp.mpf(c)) / transform(mp.mpc(c, t)) - 1) <= UNIT * error[0, 0]
        )


@pytest.mark.parametrize(("v", "s", "c", "t"), [(1.67, 5, 1334.11, 127848.05), (0.35, 1, 0.0527, 6.5e-6)])
def test_the_discrete_gaussian_is_as_near_as_it_says(v: float, s: int, c: float, t: float) -> None:
    """After thousands of turns, and where hardly anything has turned yet."""
    with mp.workdps(60):
        reach = range(-20, 21)  # from the tilted mass's middle

        def transform(z: Any) -> Any:
            """Sums over the noise at x of exp(-x²/2v + zL), L = (s² - 2sx)/2v."""
            middle = int(mp.nint(-c * s))
            noise = (mp.mpf(middle + x) for x in reach)
            return mp.fsum(mp.exp((z * (s * s - 2 * s * x) - x * x) / (2 * mp.mpf(v))) for x in noise)

        change, error = DiscreteGaussians(array(1), array(v), array(s)).along_line(c, array(t))
        truth = transform(mp.mpc(c, t)) / transform(mp.mpf(c))
        assert abs(mp.exp(mp.mpc(change[0, 0])) / truth - 1) <= UNIT * error[0, 0]


@pytest.mark.parametrize("spacing", [None, 0.01])
def test_a_table_is_the_sum_over_its_atoms(spacing: float | None) -> None:
    """Also by the transform, at enough points that it is taken."""
    x = 0.01 * np.arange(-2000.0, 2001)
    p = np.exp(-((x - 2) ** 2) / 8)
    p /= p.sum()
    t = np.asarray(0.3 * np.arange(0, 3000), dtype=np.float64)
    change, error = AtomFamily(array(1), x, p, spacing).along_line(0.7, t)
    with mp.workdps(40):
        for k in (0, 3, 700, 2999):
            terms = [
                (mp.mpf(q) * mp.exp(mp.mpf(0.7) * mp.mpf(y)), mp.expj(mp.mpf(t[k]) * mp.mpf(y)))
                for y, q in zip(x.tolist(), p.tolist(), strict=True)
            ]
            truth = mp.fsum(weight * turn for weight, turn in terms) / mp.fsum(weight for weight, _ in terms)
            assert abs(mp.exp(mp.mpc(change[0, k])) - truth) <= UNIT * error[0, k] * abs(truth) + 1e-13


@pytest.mark.parametrize(
    "law",
    [
        LadderLoss(Fraction(3, 2), 5),
        LadderLoss(Fraction(2), 2, 60),
        DiscreteGaussianLoss(sigma_squared=Fraction(7, 3), sensitivity=2),
        DiscreteOsgtLoss(sigma_squared=Fraction(9), m=Fraction(2), sensitivity=3),
    ],
)
def test_losses_are_the_same_in_both_directions(law: Any) -> None:
    """K(z) = K(-1-z): the probability of a loss is exp(loss) times that of its negative."""
    atoms = atoms_of(law)
    assert np.allclose(atoms.x, -atoms.x[::-1])
    kept = np.minimum(atoms.p, atoms.p[::-1]) > 1e-120
    assert np.allclose((atoms.p / atoms.p[::-1])[kept], np.exp(atoms.x)[kept], rtol=1e-10)
    assert atoms.p.sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("start", [0, 1 << 14])
def test_the_transform_counts_all_that_it_loses(start: int) -> None:
    """Along a contour, t are rounded multiples of a step: the difference of two is off by a unit of the largest."""
    spacing, h, points = 0.0263, 2 * math.pi / 977.3, 1 << 14
    x = spacing * np.arange(-4000.0, 4001)
    p = np.exp(-np.abs(x - 104) / 3)
    family = AtomFamily(array(1), x, p / p.sum(), spacing)
    t = np.asarray(h * np.arange(start, start + points), dtype=np.float64)
    t = np.delete(t, [5, 6, 4000, 9001])  # as points that are negligible are left out
    tilted, mean = family.p, float(family.p @ x)
    value, lost = family._transformed(tilted, mean, t, spacing)
    lost = np.broadcast_to(lost, t.shape)
    some = np.append(np.arange(0, len(t), 1500), len(t) - 1)
    angle = np.outer(t[some].astype(np.longdouble), x - np.longdouble(mean))
    real, imaginary = np.cos(angle) @ tilted - 1, np.sin(angle) @ tilted
    error = np.hypot(value.real[some] - real, value.imag[some] - imaginary)
    assert (error <= UNIT * lost[some]).all()
    assert lost.max() < 1e5


def test_points_that_are_on_no_run_are_summed_one_by_one() -> None:
    """The least difference is twice the step here."""
    x = 0.01 * np.arange(-2000.0, 2001)
    p = np.full(len(x), 1 / len(x))
    family = AtomFamily(array(1), x, p, 0.01)
    t = 0.3 * np.cumsum(np.tile([2.0, 3.0], 100))
    value, _ = family._transformed(p, 0.0, t, 0.01)
    assert value == pytest.approx(family._summed(p, 0.0, t), abs=1e-12)
