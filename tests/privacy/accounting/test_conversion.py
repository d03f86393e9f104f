"""From curves to (epsilon, delta) and back: against mpmath's own optimisation, and against true deltas."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from service.privacy.accounting.conversion import (
    best_order,
    conversion,
    epsilon_to_rho_analytic,
    epsilon_to_rho_at,
    pure_to_delta,
    rdp_to_delta,
    rdp_to_epsilon,
    rho_to_delta_analytic,
    rho_to_epsilon_analytic,
)
from service.privacy.accounting.renyi import RenyiCurve, declared_orders
from service.privacy.mechanisms import Declaration, Declared, DiscreteGaussian, Geometric, Mechanism
from service.privacy.numerics.arithmetic import Doubles
from service.privacy.numerics.loss import INFINITE, Loss
from service.privacy.plans import Choice, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.composition_program import build_program
from service.privacy.plans.walking import Neighbouring, condense
from tests.privacy.reference import assert_just_above, exactly, mp, nats, oracle, plan_tau, reported, rows

ADD = Neighbouring.ADD_REMOVE
CONVERSIONS = rows("conversion")


def line(rho: Fraction) -> tuple[Callable[[Fraction], Loss], Callable[[Doubles], Doubles]]:
    """The curve of rho-zCDP, exact and in doubles."""
    return (lambda alpha: Loss(rho * alpha)), (lambda alphas: float(rho) * alphas)


def curve(plan: Plan) -> tuple[Callable[[Fraction], Loss], Callable[[Doubles], Doubles]]:
    """The curve of a plan."""
    condensed = condense(plan)
    return (lambda alpha: plan_tau(condensed, ADD, alpha)), RenyiCurve(build_program(condensed, ADD)).rough


@pytest.mark.parametrize("row", CONVERSIONS, ids=lambda row: row["rho"])
def test_reference_values_are_met_and_never_from_below(row: dict[str, Any]) -> None:
    rho, delta = Fraction(row["rho"]), Fraction(row["delta"])
    assert_just_above(reported(rdp_to_epsilon(*line(rho), delta).loss), row["epsilon"])
    assert_just_above(reported(rho_to_epsilon_analytic(rho, delta)), row["epsilon_analytic"])


def test_every_conversion_of_the_reference_is_compared() -> None:
    assert len(CONVERSIONS) == 5


@pytest.mark.parametrize("rho", ["1e-9", "0.003", "1/3", "7", "900"])
@pytest.mark.parametrize("delta", ["1e-300", "1e-30", "1e-5", "0.3"])
def test_the_best_order_is_found_at_every_size(rho: str, delta: str) -> None:
    truth = exactly(oracle.epsilon_zcdp(rho, delta))
    found = rdp_to_epsilon(*line(Fraction(rho)), Fraction(delta))
    assert (
        truth * (1 - Fraction(1, 10**25)) <= nats(found.loss) <= truth * (1 + Fraction(1, 10**9)) + Fraction(1, 10**15)
    )


@pytest.mark.parametrize("order", ["1.0000001", "1.5", "3", "1e4", "1e9"])
@pytest.mark.parametrize("delta", ["1e-300", "1e-10", "0.9"])
def test_a_conversion_adds_the_theorems_term_rounded_up(order: str, delta: str) -> None:
    a, d = oracle.number(order), oracle.number(delta)
    truth = exactly((mp.log(1 / d) + (a - 1) * mp.log(1 - 1 / a) - mp.log(a)) / (a - 1))
    added = conversion(Fraction(order), Fraction(delta))
    assert truth - abs(truth) / 10**30 <= added <= truth + abs(truth) / 10**25


def test_no_delta_converts_to_nothing() -> None:
    with pytest.raises(ArithmeticError):
        conversion(Fraction(2), Fraction(0))


def test_an_order_beyond_the_thousands_is_found() -> None:
    """At rho = 1e-6 and delta = 1e-9 the best order is 3402."""
    found = rdp_to_epsilon(*line(Fraction(1, 10**6)), Fraction(1, 10**9))
    assert found.alpha is not None
    assert 3000 < found.alpha < 4000
    assert 1000 < best_order(lambda t, alpha: 1e-6 * alpha + 20 / np.exp(t)) < 10000


PLANS: list[Plan] = [
    Repeat(part=Geometric(scale=Fraction("2.5"), sensitivity=3), count=40),
    Repeat(part=DiscreteGaussian(sigma_squared=Fraction("0.3")), count=3),
    Choice(parts=(Geometric(scale=Fraction(1)), Repeat(part=Geometric(scale=Fraction(3)), count=6))),
    Parallel(parts=(Geometric(scale=Fraction(1, 2)), DiscreteGaussian(sigma_squared=Fraction(1, 2))), max_degree=1),
]


@pytest.mark.parametrize("number", range(len(PLANS)))
@pytest.mark.parametrize("delta", ["1e-30", "1e-6", "0.2"])
def test_curves_convert_at_an_order_that_no_other_beats(number: int, delta: str) -> None:
    exact, rough = curve(PLANS[number])
    found = rdp_to_epsilon(exact, rough, Fraction(delta))
    assert found.alpha is not None
    for k in range(-80, 81):
        order = 1 + (found.alpha - 1) * Fraction(11, 10) ** k
        other = max(nats(exact(order)) + conversion(order, Fraction(delta)), Fraction(0))
        assert nats(found.loss) <= other * (1 + Fraction(1, 10**9))


def test_a_declared_curve_is_converted_at_its_own_orders_where_that_is_best() -> None:
    """Also at the last one, a digit beyond which nothing is known."""
    points = ((Fraction(5, 4), Fraction(1, 100)), (Fraction(3), Fraction(1, 50)), (Fraction(32), Fraction(1, 5)))
    plan = Declared(guarantee=Declaration(rdp=points), reference="a proof")
    exact, rough = curve(plan)
    assert declared_orders(build_program(plan, ADD)) == [Fraction(5, 4), Fraction(3), Fraction(32)]
    for delta in (Fraction(1, 10**20), Fraction(1, 10**6), Fraction(1, 4)):
        found = rdp_to_epsilon(exact, rough, delta, kinks=declared_orders(build_program(plan, ADD)))
        at_points = min(tau + conversion(order, delta) for order, tau in points)
        assert nats(found.loss) <= max(at_points, Fraction(0))
        assert found.alpha is not None
        assert found.alpha <= 32
    deep = rdp_to_delta(exact, rough, Fraction(2), declared_orders(build_program(plan, ADD)))
    assert deep.alpha == 32


def test_between_the_orders_of_a_declared_curve_the_best_order_is_found_too() -> None:
    """Nearly all of this loss is a geometric mechanism's, whose best order is far from 2 and 500."""
    points = ((Fraction(2), Fraction(1, 10**9)), (Fraction(500), Fraction(1, 10**9)))
    noise, plan = PLANS[0], Declared(guarantee=Declaration(rdp=points), reference="a proof")
    delta = Fraction(1, 10**6)
    alone = nats(rdp_to_epsilon(*curve(noise), delta).loss)
    both = Sequence(parts=(noise, plan))
    found = rdp_to_epsilon(*curve(both), delta, kinks=declared_orders(build_program(both, ADD)))
    assert found.alpha not in (2, 500)
    assert alone < nats(found.loss) < alone + Fraction(1, 10**6)


@given(st.fractions(Fraction("1.0001"), 10**6), st.integers(2, 300))
def test_a_curve_of_one_order_converts_there_whatever_its_digits(order: Fraction, digits: int) -> None:
    plan = Declared(guarantee=Declaration(rdp=((order, Fraction(1)),)), reference="a proof")
    delta = Fraction(1, 10**digits)
    exact, rough = curve(plan)
    found = rdp_to_epsilon(exact, rough, delta, kinks=(order,))
    assert found.loss.nats is not None
    assert found.loss.nats <= 1 + conversion(order, delta)


def test_pure_epsilon_caps_and_stands_in_for_what_is_infinite() -> None:
    nothing = (lambda alpha: INFINITE), (lambda alphas: np.full_like(alphas, math.inf))
    assert rdp_to_epsilon(*nothing, Fraction(1, 10)).loss.nats is None
    capped = rdp_to_epsilon(*nothing, Fraction(1, 10), Loss(Fraction(3)))
    assert (capped.loss, capped.alpha) == (Loss(Fraction(3)), None)
    assert rdp_to_epsilon(*line(Fraction(5)), Fraction(1, 10**9), Loss(Fraction(2))).loss == Loss(Fraction(2))
    assert nats(rdp_to_epsilon(*line(Fraction(5)), Fraction(1, 10**9), Loss(Fraction(99))).loss) < 99
    certain = rdp_to_delta(*nothing, Fraction(1))
    assert nats(certain.loss) == 1
    assert certain.alpha is None


def test_a_large_delta_needs_no_epsilon() -> None:
    assert nats(rdp_to_epsilon(*line(Fraction(1, 10**4)), Fraction(1, 2)).loss) == 0
    assert nats(rdp_to_epsilon(*line(Fraction(0)), Fraction(1, 10**300)).loss) == 0


@pytest.mark.parametrize("rho", ["1e-6", "0.1", "2.5562", "50"])
@pytest.mark.parametrize("delta", ["1e-100", "1e-10", "0.01"])
def test_delta_is_the_inverse_of_epsilon_and_above_the_gaussians(rho: str, delta: str) -> None:
    found = rdp_to_epsilon(*line(Fraction(rho)), Fraction(delta))
    back = rdp_to_delta(*line(Fraction(rho)), nats(found.loss))
    if found.loss.nats == 0:
        assert nats(back.loss) <= Fraction(delta)
        return
    assert Fraction(delta) * (1 - Fraction(1, 10**6)) <= nats(back.loss) <= Fraction(delta) * (1 + Fraction(1, 10**9))
    assert exactly(oracle.delta_gaussian(rho, nats(found.loss))) < nats(back.loss)


def geometric_composition(epsilon: str, count: int) -> Any:
    """Losses of so many independent geometric mechanisms of sensitivity 1, by the binomial law."""
    e = oracle.number(epsilon)
    p = 1 / (1 + mp.exp(-e))
    return [((2 * k - count) * e, mp.binomial(count, k) * p**k * (1 - p) ** (count - k)) for k in range(count + 1)]


@pytest.mark.parametrize(("epsilon", "count"), [("0.1", 60), ("0.5", 18), ("2", 5)])
@pytest.mark.parametrize("delta", ["1e-12", "1e-6", "0.05"])
def test_a_converted_epsilon_holds_for_the_true_distribution(epsilon: str, count: int, delta: str) -> None:
    plan = Repeat(part=Geometric(scale=1 / Fraction(epsilon)), count=count)
    found = nats(rdp_to_epsilon(*curve(plan), Fraction(delta)).loss)
    losses = geometric_composition(epsilon, count)
    truth = mp.fsum(p * (1 - mp.exp(oracle.number(found) - loss)) for loss, p in losses if loss > oracle.number(found))
    assert exactly(truth) <= Fraction(delta)


@pytest.mark.parametrize("epsilon", ["1e-300", "0.01", "1", "17.14", "1e6", "1e300"])
@pytest.mark.parametrize("delta", ["1e-300", "1e-10", "0.99"])
def test_rho_that_implies_an_epsilon_does_imply_it_and_hardly_more_would(epsilon: str, delta: str) -> None:
    rho = epsilon_to_rho_at(Fraction(epsilon), Fraction(delta))
    assert rho >= 0
    assert nats(rdp_to_epsilon(*line(rho), Fraction(delta)).loss) <= Fraction(epsilon) * (1 + Fraction(1, 10**9))
    if rho and float(rho) > 1e-290:
        more = rdp_to_epsilon(*line(rho * (1 + Fraction(1, 10**5))), Fraction(delta)).loss
        assert nats(more) > Fraction(epsilon) * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize("rho", ["1e-400", "1e-20", "1e20", "1e400"])
@pytest.mark.parametrize("delta", ["1e-400", "1e-300", "0.5"])
def test_no_size_of_figures_breaks_a_bound(rho: str, delta: str) -> None:
    exact = (lambda alpha: Loss(Fraction(rho) * alpha)), curve(Sequence(parts=(_declared(rho),)))[1]
    found = nats(rdp_to_epsilon(*exact, Fraction(delta)).loss)
    assert found >= 0
    if found > Fraction(1, 10**90):  # below it the search, in doubles, sees no slope at all
        # Bun and Steinke 2016, Prop. 1.3, rests on one of the orders that are searched.
        assert found <= nats(rho_to_epsilon_analytic(Fraction(rho), Fraction(delta))) * (1 + Fraction(1, 10**6))
    for epsilon in ("1e-400", "1", "1e400"):
        reached = nats(rdp_to_delta(*exact, Fraction(epsilon)).loss)
        assert 0 < reached <= 1


def _declared(rho: str) -> Mechanism:
    return Declared(guarantee=Declaration(rho=Fraction(rho)), reference="a proof")


@pytest.mark.parametrize("near", ["1.0000001", "1.9", "3400", "1e9"])
@pytest.mark.parametrize("rho", ["1e-9", "1e-6", "0.3", "900"])
def test_an_order_found_from_another_is_the_one_found_from_all(rho: str, near: str) -> None:
    def above(t: Doubles, alpha: Doubles) -> Doubles:
        return float(rho) * alpha + (20 - np.log(alpha)) / np.exp(t)

    found, cold = best_order(above, Fraction(near)), best_order(above)
    assert math.log(found - 1) == pytest.approx(math.log(cold - 1), abs=2e-6)
    truth = math.sqrt(20 / float(rho))  # but for the logarithm
    assert 0.3 * truth < cold - 1 < 1.5 * truth


def test_an_order_at_a_kink_is_found() -> None:
    kinked = best_order(lambda t, alpha: np.maximum(alpha / 10, 3 - alpha), Fraction(50))
    assert float(kinked) == pytest.approx(30 / 11, abs=1e-5)


def minimum(function: Callable[[Any], Any]) -> Any:
    """Of a function of log(alpha-1) with one minimum, at 60 digits."""
    low = min((mp.mpf(k) / 2 for k in range(-80, 120)), key=function) - 1
    high, golden = low + 2, (mp.sqrt(5) - 1) / 2
    for _ in range(110):
        x, y = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, y) if function(x) < function(y) else (x, high)
    return function((low + high) / 2)


def excess(t: Any) -> Any:
    z = mp.exp(t)
    return z * (t - mp.log1p(z)) - mp.log1p(z)


EXTREME = [("1e-12", "1e-9"), ("1e-12", "1e-5"), ("1e-3", "1"), ("5", "30"), ("1e4", "1.02e4"), ("1e4", "1.5e4")]


@pytest.mark.parametrize(("rho", "epsilon"), EXTREME)
def test_delta_at_an_epsilon_is_the_least_over_all_orders(rho: str, epsilon: str) -> None:
    """Down to 1e-271."""
    with mp.workdps(60):
        r, e = oracle.number(rho), oracle.number(epsilon)
        truth = mp.exp(minimum(lambda t: mp.exp(t) * (r * (1 + mp.exp(t)) - e) + excess(t)))
    found = nats(rdp_to_delta(*line(Fraction(rho)), Fraction(epsilon)).loss)
    assert exactly(truth) * (1 - Fraction(1, 10**40)) <= found <= exactly(truth) * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("count", [100, 10**4, 10**9])
@pytest.mark.parametrize("loss", ["1e-6", "1e-3", "0.5"])
def test_delta_of_many_geometrics_is_the_least_over_all_orders(loss: str, count: int) -> None:
    plan = Repeat(part=Geometric(scale=1 / Fraction(loss)), count=count)
    with mp.workdps(60):
        e = oracle.number(loss)
        epsilon = Fraction(mp.nstr(count * e * mp.tanh(e / 2) + 6 * e * mp.sqrt(count), 20))

        def exponent(t: Any) -> Any:
            z = mp.exp(t)
            moment = z * e + mp.log1p(mp.exp(-(2 * z + 1) * e)) - mp.log1p(mp.exp(-e))
            return count * moment - z * oracle.number(epsilon) + excess(t)

        truth = min(mp.exp(minimum(exponent)), mp.mpf(1))
    found = nats(rdp_to_delta(*curve(plan), epsilon, near=Fraction(3)).loss)
    assert exactly(truth) * (1 - Fraction(1, 10**40)) <= found <= exactly(truth) * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("epsilon", ["1e-12", "1e-3", "1", "1e4"])
@pytest.mark.parametrize("delta", ["1e-300", "1e-10", "0.5"])
def test_the_largest_rho_is_the_most_over_all_orders(epsilon: str, delta: str) -> None:
    with mp.workdps(60):
        e, d = oracle.number(epsilon), oracle.number(delta)
        truth = -minimum(lambda t: ((excess(t) - mp.log(d)) / mp.exp(t) - e) / (1 + mp.exp(t)))
    found = epsilon_to_rho_at(Fraction(epsilon), Fraction(delta))
    assert exactly(truth) * (1 - Fraction(1, 10**9)) <= found <= exactly(truth) * (1 + Fraction(1, 10**40))


@pytest.mark.parametrize(("rho", "epsilon"), [("1", "2e154"), ("1e6", "2.5e157"), ("1e-6", "2.2e151")])
def test_exponents_near_the_largest_double_find_their_order(rho: str, epsilon: str) -> None:
    """The exponent (alpha-1)(rho alpha - epsilon) is some -1e308 where it is least, at (epsilon + rho)/(2 rho)."""
    slope, target = Fraction(rho), Fraction(epsilon)

    def exponent(alpha: Fraction) -> Fraction:
        return (alpha - 1) * (slope * alpha - target)

    found = rdp_to_delta(lambda alpha: Loss(slope * alpha), lambda alphas: float(slope) * alphas, target)
    assert found.alpha is not None
    assert found.loss.nats is not None
    least = exponent((target + slope) / (2 * slope))
    assert least <= exponent(found.alpha) <= least * (1 - Fraction(1, 10**12))  # both are negative
    assert 0 < found.loss.nats < Fraction(1, 2**1000)


@pytest.mark.parametrize("pure", ["1e-12", "0.3", "7", "1e4"])
def test_pure_loss_gives_the_delta_of_the_response_that_dominates(pure: str) -> None:
    """P(true answer) - e^epsilon P(it under the other truth), by definition, and so never below a real mechanism's."""
    with mp.workdps(60):
        p, q = (1 / (1 + mp.exp(sign * oracle.number(pure))) for sign in (-1, 1))
        for share in ("0", "0.4", "0.999"):
            epsilon = Fraction(pure) * Fraction(share)
            truth = exactly(p - mp.exp(oracle.number(epsilon)) * q)
            found = nats(pure_to_delta(Fraction(pure), epsilon))
            assert truth * (1 - Fraction(1, 10**30)) <= found <= min(truth * (1 + Fraction(1, 10**25)), Fraction(1))
    assert nats(pure_to_delta(Fraction(pure), Fraction(pure))) == 0


@pytest.mark.parametrize("rho", ["1e-12", "0.003", "1/3", "7", "1e4"])
@pytest.mark.parametrize("delta", ["1e-300", "1e-10", "0.5"])
def test_the_analytic_conversion_has_its_inverses(rho: str, delta: str) -> None:
    epsilon = nats(rho_to_epsilon_analytic(Fraction(rho), Fraction(delta)))
    reached = nats(rho_to_delta_analytic(Fraction(rho), epsilon))
    assert Fraction(delta) * (1 - Fraction(1, 10**20)) <= reached <= Fraction(delta)  # epsilon was rounded up
    back = epsilon_to_rho_analytic(epsilon, Fraction(delta))
    assert abs(back / Fraction(rho) - 1) < Fraction(1, 10**15)
    assert nats(rho_to_epsilon_analytic(back, Fraction(delta))) <= epsilon * (1 + Fraction(1, 2**95))


def test_the_analytic_delta_is_1_where_epsilon_is_below_rho_and_0_where_nothing_is_lost() -> None:
    assert nats(rho_to_delta_analytic(Fraction(2), Fraction(2))) == 1
    assert nats(rho_to_delta_analytic(Fraction(0), Fraction(0))) == 0
