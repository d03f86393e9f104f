"""The least noise: it keeps what it is to keep by another computation, and the next smaller one does not."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from service.privacy.accuracy.calibration import rank_of, value_of_rank
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Gaussian, Osgt
from service.privacy.planning.least_noise import Target, delta_of_cells, least_gaussian, least_osgt
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from tests.privacy.reference import mp, oracle, rows

ONE = Target(Fraction(1), Fraction(1, 10**10))


@pytest.mark.parametrize("row", [row for row in rows("cost") if row["mechanism"] == "osgt"], ids=lambda row: row["m"])
def test_delta_of_offset_tails_is_the_references(row: dict[str, object]) -> None:
    mechanism = Osgt(sigma_squared=Fraction(str(row["sigma_squared"])), m=Fraction(str(row["m"])))
    deltas = row["delta"]
    assert isinstance(deltas, dict)
    for epsilon, wanted in deltas.items():
        found = delta_of_cells(mechanism, 1, Fraction(epsilon))
        assert found is not None
        assert float(found) == pytest.approx(float(wanted), rel=1e-12)


@pytest.mark.parametrize("epsilon", ["0.05", "0.3", "1.3", "4"])
@pytest.mark.parametrize(
    "mechanism",
    [
        DiscreteOsgt(sigma_squared=Fraction(4), m=Fraction(1, 2), sensitivity=3),
        DiscreteOsgt(sigma_squared=Fraction(40), m=Fraction(3), sensitivity=2),
        DiscreteGaussian(sigma_squared=Fraction(2), sensitivity=1),
    ],
    ids=str,
)
def test_delta_on_the_integers_is_the_sum_over_them(mechanism: DiscreteOsgt | DiscreteGaussian, epsilon: str) -> None:
    v, m, s = mechanism.sigma_squared, getattr(mechanism, "m", Fraction(0)), mechanism.sensitivity
    mass = oracle.pmf(oracle.discrete_osgt(v, m))
    factor = mp.exp(mp.mpf(epsilon))
    exact = mp.fsum(max(p - factor * mass.get(x - s, mp.mpf(0)), mp.mpf(0)) for x, p in mass.items())
    found = delta_of_cells(mechanism, 1, Fraction(epsilon))
    assert found is not None
    assert (
        exact * (1 - mp.mpf(10) ** -20)
        <= mp.mpf(found.numerator) / found.denominator
        <= exact * (1 + mp.mpf(10) ** -20)
    )


@pytest.mark.parametrize("kind", [Gaussian, DiscreteGaussian])
@pytest.mark.parametrize("cells", [1, 3])
def test_the_least_gaussian_noise_keeps_the_target_and_barely(
    kind: type[Gaussian] | type[DiscreteGaussian], cells: int
) -> None:
    target = Target(Fraction(1), Fraction(1, 10**10), cells)
    found = least_gaussian(kind, Fraction(1), target)
    held, next_one = (
        TightProfile.of(
            kind(sigma_squared=value_of_rank(rank_of(found.sigma_squared) + step), cells=cells), Neighbouring.ADD_REMOVE
        )
        for step in (0, -100)
    )
    assert held is not None
    assert next_one is not None
    one, two = held.epsilon(target.delta), next_one.epsilon(target.delta)
    assert one is not None
    assert two is not None
    assert float(one.loss.nats or 0) == pytest.approx(1, rel=1e-10)
    assert (two.loss.nats or 0) > 1
    smaller = delta_of_cells(kind(sigma_squared=value_of_rank(rank_of(found.sigma_squared) - 1)), cells, target.epsilon)
    assert smaller is not None
    assert smaller > target.delta


def test_the_gaussian_is_the_known_one() -> None:
    """Epsilon 1.11995 at delta 1e-10 belongs to the variance 27.70468."""
    found = least_gaussian(Gaussian, Fraction(1), Target(Fraction("1.11995"), Fraction(1, 10**10)))
    assert float(found.sigma_squared) == pytest.approx(27.70468, rel=1e-5)


@pytest.mark.parametrize(
    ("epsilon", "delta", "sub_gaussian"), [("0.94", "1e-10", False), ("0.5", "1e-4", True), ("0.2", "0.01", False)]
)
def test_no_offset_of_a_brute_search_needs_less_variance(epsilon: str, delta: str, sub_gaussian: bool) -> None:
    target = Target(Fraction(epsilon), Fraction(delta), 1, sub_gaussian)
    found = least_osgt(Osgt, Fraction(1), target)
    reached = delta_of_cells(found, 1, target.epsilon)
    assert reached is not None
    assert reached <= target.delta
    best = _variance(float(found.sigma_squared), float(getattr(found, "m", 0)))
    for r in np.linspace(0, 0.67448 if sub_gaussian else 30, 12):
        low, high = 1e-3, 1e6
        for _ in range(45):
            middle = (low * high) ** 0.5
            brute = Osgt(sigma_squared=Fraction(middle) ** 2, m=Fraction(float(r) * middle))
            low, high = (
                (low, middle) if (delta_of_cells(brute, 1, target.epsilon) or 0) <= target.delta else (middle, high)
            )
        assert best <= _variance(high * high, r * high) * (1 + 1e-5)


def _variance(v: float, m: float) -> float:
    r = mp.mpf(m) / mp.sqrt(v)  # Sadeghi and Korki 2022, (2)
    return float(v * (1 + r * r - r * mp.exp(-r * r / 2) / (mp.sqrt(2 * mp.pi) * mp.erfc(r / mp.sqrt(2)) / 2)))


def test_the_least_noise_on_the_integers_holds_and_is_as_good_as_on_the_line() -> None:
    for cells in (1, 3):
        target = Target(Fraction("0.3"), Fraction(1, 10**6), cells, sub_gaussian=True)
        found = least_osgt(DiscreteOsgt, Fraction(1), target)
        reached = delta_of_cells(found, cells, target.epsilon)
        assert reached is not None
        assert target.delta * Fraction(99, 100) <= reached <= target.delta
        on_line = least_osgt(Osgt, Fraction(1), target)
        assert float(found.sigma_squared) == pytest.approx(float(on_line.sigma_squared), rel=1e-3)
        assert found.sigma_squared > least_gaussian(DiscreteGaussian, Fraction(1), target).sigma_squared


def test_the_known_offset_tails_are_beaten() -> None:
    """sigma² = 40, m = 3 of Sadeghi and Korki 2022 has epsilon 0.93663 at delta 1e-10 and the variance 27.70468."""
    target = Target(Fraction("0.93663"), Fraction(1, 10**10), 1, sub_gaussian=True)
    found = least_osgt(Osgt, Fraction(1), target)
    assert _variance(float(found.sigma_squared), float(getattr(found, "m", 0))) < 27.70468 * (1 + 1e-6)


def test_negligible_deltas_are_not_told_from_smaller_ones() -> None:
    wide = DiscreteOsgt(sigma_squared=Fraction(40), m=Fraction(3))
    delta = delta_of_cells(wide, 1, Fraction(1))
    assert delta is not None
    assert delta_of_cells(wide, 1, Fraction(1), delta / 2) == delta
    assert delta_of_cells(wide, 1, Fraction(1), Fraction(1, 2)) == Fraction(1, 2)


def test_noise_like_geometric_noise_is_found_from_far_away() -> None:
    # Its sigma is a hundred times that of Gaussian noise, where the deltas of small offsets have ten thousand digits.
    target = Target(Fraction("0.5"), Fraction(1, 10**6))
    found = least_osgt(DiscreteOsgt, Fraction(1), target)
    reached = delta_of_cells(found, 1, target.epsilon)
    assert reached is not None
    assert reached <= target.delta
    assert isinstance(found, DiscreteOsgt)
    geometric = 1 / (2 * math.sinh(0.25) ** 2)
    assert _variance(float(found.sigma_squared), float(found.m)) == pytest.approx(geometric, rel=0.05)


@pytest.mark.parametrize(
    ("epsilon", "delta", "sensitivity"),
    [
        ("5", "0.1", 1),
        ("5", "0.05", 1),
        ("3", "0.1", 1),
        ("2", "0.1", 1),
        ("8", "0.02", 2),
        ("4", "0.001", 1),
        ("1", "0.1", 1),
    ],
)
def test_no_narrow_noise_of_a_brute_search_on_the_integers_needs_less_variance(
    epsilon: str, delta: str, sensitivity: int
) -> None:
    """Every width and every offset of a grid: where noise is hardly wider than a place, delta goes up and down."""
    target = Target(Fraction(epsilon), Fraction(delta))
    for kind, offsets in ((DiscreteOsgt, np.linspace(0, 8, 161)), (DiscreteGaussian, np.zeros(1))):
        found = (
            least_osgt(DiscreteOsgt, Fraction(sensitivity), target)
            if kind is DiscreteOsgt
            else least_gaussian(DiscreteGaussian, Fraction(sensitivity), target)
        )
        reached = delta_of_cells(found, 1, target.epsilon)
        assert reached is not None
        assert reached <= target.delta
        v, m = (float(value) for value in (found.sigma_squared, getattr(found, "m", 0)))
        _, variance = _on_the_integers(np.array([v]), np.array([m]), sensitivity, float(epsilon))
        sigma, offset = (part.ravel() for part in np.meshgrid(np.geomspace(0.15, 12, 500), offsets))
        deltas, variances = _on_the_integers(sigma**2, offset * sigma, sensitivity, float(epsilon))
        assert variance[0] <= variances[deltas <= float(delta)].min() * (1 + 1e-9)


def _on_the_integers(v: Any, m: Any, sensitivity: int, epsilon: float) -> tuple[Any, Any]:
    x = np.arange(-60, 61)
    mass = np.exp(-(x * x / 2 + np.abs(x) * m[:, None]) / v[:, None])
    mass /= mass.sum(axis=1)[:, None]
    loss = np.maximum(mass[:, sensitivity:] - math.exp(epsilon) * mass[:, :-sensitivity], 0).sum(axis=1)
    return loss + mass[:, :sensitivity].sum(axis=1), (mass * x * x).sum(axis=1)


def test_large_offsets_come_near_laplace_noise() -> None:
    """Laplace noise of scale b has delta 1 - exp((epsilon - 1/b)/2); noise with a large offset is about that."""
    epsilon, delta = 8.1184, 5.6536e-6
    scale = 1 / (epsilon - 2 * math.log1p(-delta))
    noise = least_osgt(Osgt, Fraction(1), Target(Fraction("8.1184"), Fraction("5.6536e-6")))
    assert isinstance(noise, Osgt)
    with mp.workdps(40):
        v, m = (mp.mpf(one.numerator) / one.denominator for one in (noise.sigma_squared, noise.m))
        points = [0, *(k * mp.mpf(scale) for k in (1, 4, 16, 64))]
        moments = [mp.quad(lambda y, n=n: y**n * mp.exp(-(y * y + 2 * m * y) / (2 * v)), points) for n in (0, 2)]
    assert 2 * scale**2 <= float(moments[1] / moments[0]) <= 2 * scale**2 * (1 + 1e-5)
