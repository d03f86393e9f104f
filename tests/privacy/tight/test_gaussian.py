"""The closed form of Gaussian compositions: against reference values and mpmath's error function."""

from fractions import Fraction
from typing import Any

import pytest

from service.privacy.accounting.conversion import epsilon_to_rho_analytic
from service.privacy.tight.gaussian import gaussian_delta, gaussian_epsilon, gaussian_rho_at
from tests.privacy.reference import assert_just_above, exactly, mp, nats, oracle, reported, rows
from tests.privacy.tight import exact


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


def test_an_epsilon_of_0_is_found_where_it_suffices() -> None:
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


@pytest.mark.parametrize(
    ("variance", "closed_form", "truth"),
    [
        ("4", "3.09943", "3.10294"),
        ("25", "1.18160", "1.17869"),
        ("31.36", "1.04987", "1.05104"),
        ("100", "0.57464", "0.57436"),
    ],
)
def test_the_closed_form_is_no_bound_for_the_discrete_gaussian_in_either_direction(
    variance: str, closed_form: str, truth: str
) -> None:
    """The guide's figures at delta = 1e-10 (errata.md), rounded to five places."""
    closed = nats(gaussian_epsilon(1 / (2 * Fraction(variance)), Fraction(1, 10**10), Fraction(4)))
    discrete = exact.epsilon(exact.noise(oracle.discrete_gaussian(variance), 1), mp.mpf(10) ** -10)
    half = Fraction(1, 200_000)
    assert abs(closed - Fraction(closed_form)) <= half
    assert abs(exactly(discrete) - Fraction(truth)) <= half
    assert (closed < exactly(discrete)) == (variance in {"4", "31.36"})


@pytest.mark.parametrize(("delta", "times"), [("1e-6", "23.4"), ("1e-10", "31.6")])
def test_the_loss_exceeds_epsilon_with_a_probability_of_many_delta(delta: str, times: str) -> None:
    """The loss is normal, of mean 0.02 and variance 0.04; one above epsilon + t has delta / (1 - e^-t) at most."""
    found = mp.mpf(float(nats(gaussian_epsilon(Fraction(1, 50), Fraction(delta), Fraction(4)))))

    def share(loss: Any) -> Any:
        return mp.erfc((loss - mp.mpf("0.02")) / mp.mpf("0.2") / mp.sqrt(2)) / 2 / mp.mpf(delta)

    assert abs(share(found) - mp.mpf(times)) < mp.mpf("0.05")
    assert share(found + mp.mpf("0.1")) < 1 / -mp.expm1(mp.mpf("-0.1"))


@pytest.mark.parametrize("epsilon", ["1e-12", "0.01", "1", "1000", "1e4"])
@pytest.mark.parametrize("delta", ["1e-300", "1e-10", "0.4", "0.999"])
def test_the_largest_rho_keeps_what_was_asked_for_and_hardly_more_would(epsilon: str, delta: str) -> None:
    target, share = Fraction(epsilon), Fraction(delta)
    rho = gaussian_rho_at(target, share, epsilon_to_rho_analytic(target, share))
    assert nats(gaussian_delta(rho, target)) <= share
    assert nats(gaussian_delta(rho * (1 + Fraction(1, 10**12)), target)) > share
