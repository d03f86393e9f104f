"""The closed form of Gaussian compositions: against reference values and mpmath's error function."""

from fractions import Fraction
from typing import Any

import pytest

from service.privacy.conversion import epsilon_to_rho_analytic
from service.privacy.tight.gaussian import gaussian_delta, gaussian_epsilon, gaussian_rho_at
from tests.privacy.reference import assert_just_above, exactly, mp, nats, oracle, reported, rows


@pytest.mark.parametrize("row", rows("conversion"), ids=lambda row: row["rho"])
def test_reference_values_are_met_and_never_from_below(row: dict[str, Any]) -> None:
    above = Fraction(row["epsilon_analytic"]) * 2
    found = gaussian_epsilon(Fraction(row["rho"]), Fraction(row["delta"]), above)
    assert_just_above(reported(found), row["epsilon_gaussian"], 1e-11)


@pytest.mark.parametrize("rho", ["1e-9", "0.02", "3", "400"])
@pytest.mark.parametrize("epsilon", ["0", "1e-6", "0.5", "20"])
def test_delta_is_the_normal_laws_rounded_up(rho: str, epsilon: str) -> None:
    with mp.workdps(250):
        beyond_writing = oracle.delta_gaussian(rho, epsilon) < mp.mpf(10) ** -4000
        truth = Fraction(0) if beyond_writing else exactly(oracle.delta_gaussian(rho, epsilon))
    found = nats(gaussian_delta(Fraction(rho), Fraction(epsilon)))
    assert truth * (1 - Fraction(1, 10**50)) <= found
    assert found <= truth * (1 + Fraction(1, 10**25)) + Fraction(1, 10**4000)


def test_what_needs_no_epsilon_gets_none() -> None:
    assert nats(gaussian_epsilon(Fraction(0), Fraction(1, 10**9), Fraction(1))) == 0
    assert nats(gaussian_epsilon(Fraction(1, 10**9), Fraction(1, 10), Fraction(1))) == 0
    assert nats(gaussian_delta(Fraction(0), Fraction(0))) == 0


@pytest.mark.parametrize("rho", ["1e-400", "1e-30", "1e30", "1e400"])
def test_no_size_of_figures_breaks_a_bound(rho: str) -> None:
    """Above rho + sqrt(4 rho log(1/delta)) a search must not go, nor end in an overflow."""
    above = Fraction(rho) * 3 + 60
    found = nats(gaussian_epsilon(Fraction(rho), Fraction(1, 10**10), above))
    assert 0 <= found <= above
    for epsilon in ("0", "1", "1e400"):
        reached = gaussian_delta(Fraction(rho), Fraction(epsilon)).nats
        assert reached is None or reached >= 0


def test_other_noise_has_no_closed_form() -> None:
    """For the discrete Gaussian it understates: 1.04987 against 1.05104 at sigma = 5.6, delta = 1e-10."""
    closed = nats(gaussian_epsilon(1 / (2 * Fraction("31.36")), Fraction(1, 10**10), Fraction(2)))
    assert Fraction("1.04987") < closed < Fraction("1.04988")
    law = oracle.pmf(oracle.discrete_gaussian("31.36"))
    crossing = oracle.number(closed) * oracle.number("31.36") - mp.mpf(1) / 2  # the loss of X is (2X+1)/(2 sigma²)
    beyond = range(int(mp.ceil(crossing)), max(law))
    truth = mp.fsum(law[x] - mp.exp(oracle.number(closed)) * law[x + 1] for x in beyond)
    assert truth > mp.mpf("1.03e-10")


@pytest.mark.parametrize("epsilon", ["1e-12", "0.01", "1", "1000", "1e4"])
@pytest.mark.parametrize("delta", ["1e-300", "1e-10", "0.4", "0.999"])
def test_the_largest_rho_keeps_what_was_asked_for_and_hardly_more_would(epsilon: str, delta: str) -> None:
    target, share = Fraction(epsilon), Fraction(delta)
    rho = gaussian_rho_at(target, share, epsilon_to_rho_analytic(target, share))
    assert nats(gaussian_delta(rho, target)) <= share
    assert nats(gaussian_delta(rho * (1 + Fraction(1, 10**12)), target)) > share
