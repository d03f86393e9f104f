"""Costs of each mechanism: against sums and integrals in mpmath, never through the code's own formulas."""

from collections.abc import Iterator
from fractions import Fraction
from operator import methodcaller
from typing import Any

import pytest
from hypothesis import given, strategies as st

from service.privacy.accounting.rdp import interpolate, mechanism_tau
from service.privacy.accounting.zcdp import mechanism_rho
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    DiscreteOsgt,
    Gaussian,
    Geometric,
    Laplace,
    Mechanism,
    Osgt,
    RandomizedResponse,
)
from service.privacy.mechanisms.discrete_gaussian import SMOOTH_SIGMA_SQUARED
from tests.privacy.reference import assert_bounds, assert_just_above, exactly, mp, nats, oracle, reported, rows

BUILT: dict[str, Any] = {
    "geometric": lambda row: Geometric(scale=Fraction(row["scale"]), sensitivity=int(row["sensitivity"])),
    "discrete_gaussian": lambda row: DiscreteGaussian(
        sigma_squared=Fraction(row["sigma_squared"]), sensitivity=int(row["sensitivity"])
    ),
    "laplace": lambda row: Laplace(scale=Fraction(row["scale"]), sensitivity=Fraction(row["sensitivity"])),
}
COSTS = [row for row in rows("cost") if row["mechanism"] in BUILT]


@pytest.mark.parametrize("row", COSTS, ids=lambda row: f"{row['mechanism']}-{row['sensitivity']}")
def test_reference_values_are_met_and_never_from_below(row: dict[str, Any]) -> None:
    mechanism = BUILT[row["mechanism"]](row)
    assert_just_above(reported(mechanism_rho(mechanism)), row["rho"])
    for order, tau in row["renyi"].items():
        assert_just_above(reported(mechanism_tau(mechanism, Fraction(order))), tau)
    epsilon = mechanism.pure_epsilon()
    if row["epsilon"] is None:
        assert epsilon.nats is None
    else:
        assert nats(epsilon) == Fraction(row["epsilon"])


def test_every_reference_value_of_a_built_mechanism_is_compared() -> None:
    assert sorted({row["mechanism"] for row in COSTS}) == sorted(BUILT)
    assert len(COSTS) == 11


ORDERS = [Fraction(order) for order in ("1.001", "1.37", "2", "3.3", "17")]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize(("scale", "s"), [("0.3", 1), ("0.3", 5), ("3.7", 1), ("3.7", 4), ("11/3", 7)])
def test_geometric_is_the_sum_over_the_integers(scale: str, s: int, order: Fraction) -> None:
    mechanism = Geometric(scale=Fraction(scale), sensitivity=s)
    truth = oracle.renyi_discrete(oracle.geometric(scale), s, order, nats=200 + 60 * int(order))
    assert_bounds(nats(mechanism_tau(mechanism, order)), truth)


@pytest.mark.parametrize(("scale", "s"), [("0.3", 1), ("0.3", 5), ("3.7", 4), ("9", 2)])
def test_geometric_rho_is_the_divergence_at_order_1_and_bounds_all_orders(scale: str, s: int) -> None:
    mechanism = Geometric(scale=Fraction(scale), sensitivity=s)
    rho = nats(mechanism_rho(mechanism))
    assert_bounds(rho, oracle.kl_discrete(oracle.geometric(scale), s))
    for k in range(-12, 30):
        order = 1 + Fraction(3, 2) ** k
        assert nats(mechanism_tau(mechanism, order)) <= rho * order * (1 + Fraction(1, 2**90))


def test_the_printed_integral_of_seed_004_would_understate() -> None:
    """Eq. (17) gives 0.540 at epsilon = 1, alpha = 2; the sum is 0.7353."""
    assert 0.7353 < reported(mechanism_tau(Geometric(scale=Fraction(1)), Fraction(2))) < 0.7354


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize(("square", "s"), [("0.11", 1), ("0.3", 3), ("1.2", 1), ("1.2", 2), ("1.99", 1), ("0.04", 1)])
def test_discrete_gaussian_is_the_sum_over_the_integers(square: str, s: int, order: Fraction) -> None:
    mechanism = DiscreteGaussian(sigma_squared=Fraction(square), sensitivity=s)
    truth = oracle.renyi_discrete(oracle.discrete_gaussian(square), s, order)
    assert_bounds(nats(mechanism_tau(mechanism, order)), truth, 2e-15)


@pytest.mark.parametrize("square", [str(SMOOTH_SIGMA_SQUARED), "3", "9.4"])
def test_from_variance_2_on_the_slope_bounds_the_discrete_gaussian_within_2e_15(square: str) -> None:
    for order in ORDERS:
        bound = nats(mechanism_tau(DiscreteGaussian(sigma_squared=Fraction(square)), order))
        assert bound == order / (2 * Fraction(square))
        assert_bounds(bound, oracle.renyi_discrete(oracle.discrete_gaussian(square), 1, order), 2e-15)


def test_the_discrete_gaussian_attains_its_slope_at_whole_orders() -> None:
    """... and is a sixth below it between them at sigma² = 0.11."""
    mechanism = DiscreteGaussian(sigma_squared=Fraction("0.11"))
    rho = nats(mechanism_rho(mechanism))
    assert mechanism_tau(mechanism, Fraction(3)).rational
    assert nats(mechanism_tau(mechanism, Fraction(3))) == 3 * rho
    shares = [nats(mechanism_tau(mechanism, Fraction(k, 100))) / (rho * k / 100) for k in range(101, 200)]
    assert 0.83 < min(shares) < 0.84
    assert max(shares) < 1


@pytest.mark.parametrize(("scale", "s"), [("0.4", "1"), ("7", "0.5")])
def test_laplace_is_the_integral(scale: str, s: str) -> None:
    mechanism = Laplace(scale=Fraction(scale), sensitivity=Fraction(s))
    density, spread = oracle.laplace_density(scale)
    for order in (Fraction("1.2"), Fraction(7)):
        truth = oracle.renyi_continuous(density, spread, s, order)
        assert_bounds(nats(mechanism_tau(mechanism, order)), truth, 1e-12)
    low, high = -150 * spread, 150 * spread + oracle.number(s)
    divergence = mp.quad(
        lambda y: density(y) * (abs(y - oracle.number(s)) - abs(y)) / oracle.number(scale),
        [low, -10 * spread, 0, oracle.number(s), 10 * spread, high],
    )
    assert_bounds(nats(mechanism_rho(mechanism)), divergence, 1e-12)


def test_gaussian_is_linear_and_exact() -> None:
    mechanism = Gaussian(sigma_squared=Fraction("40/3"), sensitivity=Fraction("1.5"))
    assert nats(mechanism_rho(mechanism)) == Fraction("2.25") * 3 / 80
    assert mechanism_rho(mechanism).rational
    assert nats(mechanism_tau(mechanism, Fraction(7, 3))) == Fraction(7, 3) * nats(mechanism_rho(mechanism))
    assert mechanism.pure_epsilon().nats is None


def response(epsilon: Fraction, values: int, truth: int) -> list[Any]:
    """The distribution of k-ary randomised response, by its definition."""
    odds = [mp.exp(oracle.number(epsilon)) if value == truth else mp.mpf(1) for value in range(values)]
    return [one / mp.fsum(odds) for one in odds]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize(("epsilon", "values"), [("0.2", 2), ("1", 3), ("2", 60), ("5", 4)])
def test_randomised_response_is_the_sum_over_its_values_in_both_directions(
    epsilon: str, values: int, order: Fraction
) -> None:
    mechanism = RandomizedResponse(epsilon=Fraction(epsilon), values=values)
    p, q = (response(Fraction(epsilon), values, truth) for truth in (0, 1))
    alpha = oracle.number(order)
    for one, other in ((p, q), (q, p)):
        moment = mp.fsum(a**alpha * b ** (1 - alpha) for a, b in zip(one, other, strict=True))
        assert_bounds(nats(mechanism_tau(mechanism, order)), mp.log(moment) / (alpha - 1))
    assert nats(mechanism.pure_epsilon()) == Fraction(epsilon)


@pytest.mark.parametrize("epsilon", ["0.001", "0.3", "1", "3", "12"])
def test_pure_loss_implies_rho_tightly(epsilon: str) -> None:
    """Two-valued response dominates: rho is its divergence, and bounds tau/alpha at every order."""
    rho, e = nats(mechanism_rho(declared(epsilon=Fraction(epsilon)))), oracle.number(epsilon)
    p, q = (response(Fraction(epsilon), 2, truth) for truth in (0, 1))
    assert_bounds(rho, mp.fsum(a * mp.log(a / b) for a, b in zip(p, q, strict=True)))
    slopes = []
    for k in range(-60, 60):
        z = mp.mpf(2) ** k
        tau = (mp.log(mp.cosh(e * (z + mp.mpf(1) / 2))) - mp.log(mp.cosh(e / 2))) / z
        slopes.append(tau / (1 + z))
    assert max(map(exactly, slopes)) <= rho
    assert rho < Fraction(epsilon) ** 2 / 2


@pytest.mark.parametrize(
    ("epsilon", "values", "constant", "divergence"),
    [
        ("0.5", 2, "0.122459", "0.122459"),
        ("0.5", 50, "0.017159", "0.006404"),
        ("1", 3, "0.364175", "0.364175"),
        ("1", 50, "0.073739", "0.033224"),
        ("3", 100, "0.741383", "0.480802"),
    ],
)
def test_the_response_constant_is_the_divergence_for_few_values_only_and_never_above_rho(
    epsilon: str, values: int, constant: str, divergence: str
) -> None:
    """The guide's figures (mechanisms.md): the largest tau/alpha, on a fine grid of orders, and its limit at 1."""
    e, k = oracle.number(epsilon), values
    limit = e * mp.expm1(e) / (mp.exp(e) + k - 1)
    slopes = [limit]
    for z in (mp.exp(mp.mpf(j) / 200) for j in range(-1400, 1000)):
        moment = (mp.exp((z + 1) * e) + mp.exp(-z * e) + k - 2) / (mp.exp(e) + k - 1)
        slopes.append(mp.log(moment) / z / (z + 1))
    assert abs(max(slopes) - mp.mpf(constant)) < mp.mpf("1e-6")
    assert abs(limit - mp.mpf(divergence)) < mp.mpf("1e-6")
    rho = nats(mechanism_rho(RandomizedResponse(epsilon=Fraction(epsilon), values=values)))
    assert rho >= exactly(max(slopes)) * (1 - Fraction(1, 10**40))


def test_many_valued_response_is_below_its_bound_in_zcdp() -> None:
    """With many values the constant is not the divergence at order 1, which would understate at high orders."""
    mechanism = RandomizedResponse(epsilon=Fraction(3), values=60)
    p, q = (response(Fraction(3), 60, truth) for truth in (0, 1))
    divergence = exactly(mp.fsum(a * mp.log(a / b) for a, b in zip(p, q, strict=True)))
    slopes = [nats(mechanism_tau(mechanism, order)) / order for order in (Fraction(k, 10) for k in range(11, 60))]
    assert max(slopes) > divergence
    assert max(slopes) <= nats(mechanism_rho(mechanism))


def declared(**figures: Any) -> Declared:
    return Declared(guarantee=Declaration(**figures), reference="a test")


def test_a_declared_pure_loss_implies_the_response_that_dominates() -> None:
    mechanism = declared(epsilon=Fraction("0.7"), delta=Fraction(1, 10**6))
    assert nats(mechanism.pure_epsilon()) == Fraction("0.7")
    assert nats(mechanism.delta()) == Fraction(1, 10**6)
    dominating = RandomizedResponse(epsilon=Fraction("0.7"))
    assert mechanism_rho(mechanism) == mechanism_rho(dominating)
    assert mechanism_tau(mechanism, Fraction(5)) == mechanism_tau(dominating, Fraction(5))


def test_a_declared_rho_implies_a_line_and_nothing_pure() -> None:
    mechanism = declared(rho=Fraction(1, 3))
    assert mechanism.pure_epsilon().nats is None
    assert nats(mechanism_rho(mechanism)) == Fraction(1, 3)
    assert nats(mechanism_tau(mechanism, Fraction(9))) == 3


def test_a_declared_loss_of_0_costs_nothing_anywhere() -> None:
    for mechanism in (declared(epsilon=Fraction(0)), declared(rho=Fraction(0))):
        assert nats(mechanism_rho(mechanism)) == 0
        assert nats(mechanism_tau(mechanism, Fraction("2.5"))) == 0


def test_declared_orders_say_nothing_of_pure_and_zcdp_nor_beyond_the_last() -> None:
    mechanism = declared(rdp=((Fraction(2), Fraction(1, 2)), (Fraction(8), Fraction(1))))
    assert mechanism.pure_epsilon().nats is None
    assert mechanism_rho(mechanism).nats is None
    assert mechanism_tau(mechanism, Fraction(8) + Fraction(1, 10**30)).nats is None
    assert nats(mechanism_tau(mechanism, Fraction(8))) == 1
    assert nats(mechanism_tau(mechanism, Fraction(2))) == Fraction(1, 2)
    # (alpha-1) tau is 0, 1/2 and 7 at 1, 2 and 8, straight between
    assert nats(mechanism_tau(mechanism, Fraction(5))) == (Fraction(1, 2) + Fraction(13, 4)) / 4
    assert nats(mechanism_tau(mechanism, Fraction(3, 2))) == Fraction(1, 2)


def test_the_least_of_several_declared_figures_counts() -> None:
    mechanism = declared(epsilon=Fraction(1), rho=Fraction(1, 4), rdp=((Fraction(4), Fraction(1, 100)),))
    assert nats(mechanism_rho(mechanism)) == Fraction(1, 4)  # below tanh(1/2) = 0.46
    assert nats(mechanism_tau(mechanism, Fraction(4))) == Fraction(1, 100)
    assert nats(mechanism_tau(mechanism, Fraction(100))) <= 1
    assert nats(mechanism_rho(declared(epsilon=Fraction(1), rho=Fraction(2)))) == nats(
        mechanism_rho(declared(epsilon=Fraction(1)))
    )


@pytest.mark.parametrize(
    "mechanism", [Geometric(scale=Fraction(2)), Laplace(scale=Fraction(1)), Gaussian(sigma_squared=Fraction(3))]
)
def test_interpolated_orders_bound_the_curve_they_were_taken_from(mechanism: Mechanism) -> None:
    orders = [Fraction(order) for order in ("1.1", "1.5", "3", "10", "60")]
    points = tuple((order, nats(mechanism_tau(mechanism, order))) for order in orders)
    for k in range(1, 590):
        order = 1 + Fraction(k, 10)
        assert nats(interpolate(points, order)) >= nats(mechanism_tau(mechanism, order)) * (1 - Fraction(1, 2**90))


FAMILIES: list[Any] = [
    lambda noise, s: Geometric(scale=noise, sensitivity=s),
    lambda noise, s: Laplace(scale=noise, sensitivity=Fraction(s)),
    lambda noise, s: DiscreteGaussian(sigma_squared=noise, sensitivity=s),
    lambda noise, s: Gaussian(sigma_squared=noise, sensitivity=Fraction(s)),
    lambda noise, s: RandomizedResponse(epsilon=1 / noise, values=s + 1),
    lambda noise, s: Osgt(sigma_squared=noise**2, m=noise / 3, sensitivity=Fraction(s)),
    lambda noise, s: DiscreteOsgt(sigma_squared=noise**2, m=noise / 3, sensitivity=s),
]
positive = st.fractions(min_value=Fraction(1, 1000), max_value=1000)


@given(st.sampled_from(FAMILIES), positive, positive, st.integers(1, 12), st.fractions(Fraction("1.001"), 200))
def test_more_noise_never_costs_more(family: Any, noise: Fraction, more: Fraction, s: int, order: Fraction) -> None:
    less, quieter = family(noise + more, s), family(noise, s)
    slack = 1 + Fraction(1, 2**90)
    for cost in (methodcaller("pure_epsilon"), mechanism_rho, lambda m: mechanism_tau(m, order)):
        dear = cost(quieter).nats
        assert dear is None or nats(cost(less)) <= dear * slack


@given(st.sampled_from(FAMILIES[:4]), positive, st.integers(1, 12), st.fractions(Fraction("1.001"), 200))
def test_one_cell_moved_far_costs_at_least_as_much_as_many_moved_by_one(
    family: Any, noise: Fraction, s: int, order: Fraction
) -> None:
    """The divergence of additive noise is superadditive in the shift."""
    near, far = family(noise, 1), family(noise, s)
    for cost in (methodcaller("pure_epsilon"), mechanism_rho, lambda m: mechanism_tau(m, order)):
        one = cost(near).nats
        assert one is None or nats(cost(far)) * (1 + Fraction(1, 2**49)) >= s * one


def test_a_looser_bound_serves_if_cancellation_exhausts_the_precision() -> None:
    """epsilon²/2 (Bun and Steinke 2016, Prop. 3.3)."""
    epsilon = Fraction(1, 10**3000)
    assert nats(mechanism_rho(Laplace(scale=1 / epsilon))) == epsilon**2 / 2


EXTREMES = [Fraction(text) for text in ("1e-400", "1e-20", "1e-3", "1", "2/3", "1e9", "1e400")]


def extremes() -> Iterator[Mechanism]:
    for noise in EXTREMES:
        for s in (1, 3, 2**53):
            for family in FAMILIES:
                yield family(noise, s)


@pytest.mark.parametrize("text", ["1.000000000001", "1.5", "1e6", "1e400"])
def test_at_the_extremes_the_bounds_stay_in_order(text: str) -> None:
    """The Rényi bound is at most pure epsilon and, but for rounding, alpha*rho; and at least the one at order 1."""
    order = Fraction(text)
    for mechanism in extremes():
        tau, rho, epsilon = mechanism_tau(mechanism, order), mechanism_rho(mechanism), mechanism.pure_epsilon()
        assert 0 < nats(tau) <= nats(rho) * order * (1 + Fraction(1, 2**90)) + Fraction(1, 2**3000)
        assert epsilon.nats is None or nats(tau) <= epsilon.nats
        if isinstance(mechanism, Geometric | Laplace):
            assert nats(tau) >= nats(rho) * (1 - Fraction(1, 2**90))


@pytest.mark.parametrize("order", ["1.000000000001", "1e6"])
@pytest.mark.parametrize("noise", ["1e-3", "0.05", "30", "1e9", "1e40"])
def test_at_the_extremes_the_bounds_are_right(noise: str, order: str) -> None:
    """The moments written out, at 400 digits."""
    with mp.workdps(400):
        a = oracle.number(order)
        z, e = a - 1, 1 / oracle.number(noise)
        geometric = mp.log(mp.exp(e) / (mp.exp(e) + 1) * (mp.exp(z * e) + mp.exp(-a * e))) / z
        laplace = mp.log(a / (2 * a - 1) * mp.exp(z * e) + z / (2 * a - 1) * mp.exp(-a * e)) / z
        pairs = [(Geometric(scale=Fraction(noise)), geometric), (Laplace(scale=Fraction(noise)), laplace)]
        for mechanism, truth in pairs:
            assert_bounds(nats(mechanism_tau(mechanism, Fraction(order))), truth)
