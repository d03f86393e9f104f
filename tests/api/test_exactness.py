"""Budgets fill exactly: stated numbers are added as rationals, and the service's rounding never changes a sum."""

from fractions import Fraction
from typing import Any

import pytest

from tests.api.calls import Client, charge, concentrated, json_of, open_account, problem_of, pure, release
from tests.oracles import files

_EPSILON = Fraction("17.14355074359")  # of rho = 293764/114921 at 1e-10, to its last digit: tests/oracles/values.json

_CAPS = [
    ({"definition": "pure"}, "epsilon", pure),
    ({"definition": "zcdp"}, "rho", concentrated),
    # tau(2) of a Gaussian is 2 rho: an order at which thirds stay thirds.
    ({"definition": "rdp", "alpha": "2"}, "epsilon", lambda loss: concentrated(str(Fraction(str(loss)) / 2))),
]


@pytest.mark.parametrize(("definition", "cap", "mechanism"), _CAPS)
def test_a_tenth_ten_times_fills_one(client: Client, definition: Any, cap: str, mechanism: Any) -> None:
    open_account(client, budget=definition | {cap: 1})
    for _ in range(10):
        left = release(client, mechanism("0.1"))["remaining"]
    assert left[cap] == 0
    refused = problem_of(charge(client, mechanism("1e-15")), "budget_exceeded")
    assert (refused["account"], refused["definition"], refused["cap"]) == ("people", definition["definition"], cap)
    assert (refused["requested"], refused["remaining"]) == (pytest.approx(1e-15), 0)


@pytest.mark.parametrize(("definition", "cap", "mechanism"), _CAPS)
def test_a_tenth_and_two_tenths_fit_three_tenths(embedded: Client, definition: Any, cap: str, mechanism: Any) -> None:
    open_account(embedded, budget=definition | {cap: "0.3"})
    release(embedded, mechanism(0.1))
    assert release(embedded, mechanism(0.2))["remaining"][cap] == 0
    problem_of(charge(embedded, mechanism("1e-300")), "budget_exceeded")


@pytest.mark.parametrize(("definition", "cap", "mechanism"), _CAPS)
def test_a_third_three_times_fills_one(embedded: Client, definition: Any, cap: str, mechanism: Any) -> None:
    open_account(embedded, budget=definition | {cap: 1})
    for _ in range(2):
        release(embedded, mechanism("1/3"))
    too_much = Fraction(1, 3) + Fraction(1, 10**40)
    problem_of(charge(embedded, mechanism(f"{too_much.numerator}/{too_much.denominator}")), "budget_exceeded")
    release(embedded, mechanism("1/3"))
    problem_of(charge(embedded, mechanism("1e-300")), "budget_exceeded")


def test_an_approximate_account_takes_the_pure_route_exactly(embedded: Client) -> None:
    open_account(embedded, budget={"definition": "approximate", "epsilon": 1, "delta": "1e-300"})
    for _ in range(10):
        release(embedded, pure("0.1"))
    problem_of(charge(embedded, pure("1e-15")), "budget_exceeded")


def test_declared_deltas_fill_their_cap_exactly(embedded: Client) -> None:
    open_account(embedded, budget={"definition": "zcdp", "rho": 1, "delta": "1e-9"})
    declared = {"type": "declared", "rho": "0.01", "delta": "1e-10", "reference": "a proof"}
    for _ in range(10):
        release(embedded, declared)
    refused = problem_of(charge(embedded, declared | {"delta": "1e-30"}), "budget_exceeded")
    assert (refused["cap"], refused["remaining"], refused["requested"]) == ("delta", 0, pytest.approx(1e-30))
    release(embedded, declared | {"delta": 0})


def test_many_small_charges_of_awkward_denominators_never_undercount(embedded: Client) -> None:
    """A charge is rounded up where the common denominator would pass 10^60: the total is never below the sum."""
    open_account(embedded)
    spent = Fraction(0)
    for prime in (999983, 999979, 999961, 999959, 999953, 999931, 999917, 999907, 999883, 999863, 999853, 999809):
        amount = Fraction(1, 100) + Fraction(1, prime)
        spent += amount
        left = release(embedded, concentrated(f"{amount.numerator}/{amount.denominator}"))["remaining"]["rho"]
        assert Fraction(repr(left)) <= 1 - spent
    assert left == pytest.approx(float(1 - spent), rel=1e-12)


@pytest.fixture(scope="module")
def redistricting() -> dict[str, Any]:
    """Return the 2020 Census redistricting release, persons in the United States, as a plan."""
    allocation = files.allocation()
    scale = Fraction(allocation["global_scale"]) ** 2
    parts = []
    for level in allocation["levels"]:
        for query in level["queries"]:
            variance = scale / (Fraction(level["proportion"]) * Fraction(query["proportion"]))
            name, tags = f"{level['geolevel']}/{query['name']}", [level["geolevel"]]
            parts.append({"type": "discrete_gaussian", "name": name, "sigma_squared": str(variance), "tags": tags})
    assert len(parts) == 65
    return {"type": "sequence", "parts": parts}


def test_the_redistricting_release_fits_its_budget_exactly(client: Client, redistricting: dict[str, Any]) -> None:
    open_account(client, budget={"definition": "zcdp", "rho": "293764/114921"}, neighbouring="replace_one")
    done = release(client, redistricting, delta="1e-10")
    assert done["cost"]["zcdp"]["rho_exact"] == "293764/114921"
    assert done["remaining"] == {"definition": "zcdp", "rho": 0}
    (by_zcdp,) = [statement for statement in done["cost"]["approximate"] if statement["via"] == "zcdp"]
    assert f"{by_zcdp['epsilon']:.7f}" in {"17.1435507", "17.1435508"}
    assert _EPSILON <= Fraction(repr(by_zcdp["epsilon"])) < _EPSILON + Fraction(1, 10**7)
    assert (by_zcdp["delta"], by_zcdp["adaptive"]) == (1e-10, True)
    assert by_zcdp["alpha"] == pytest.approx(3.911, abs=1e-3)
    balance = json_of(client.get("/v1/accounts/people/balance?delta=1e-10"))
    assert balance["spent"]["zcdp"]["rho_exact"] == "293764/114921"
    # Nothing is left, so no noise is large enough.
    assert problem_of(charge(client, redistricting), "budget_exceeded")["noise_multiplier_that_fits"] is None


def test_the_redistricting_release_does_not_fit_a_hair_less(embedded: Client, redistricting: dict[str, Any]) -> None:
    less = Fraction(293764, 114921) - Fraction(1, 10**50)
    budget = {"definition": "zcdp", "rho": f"{less.numerator}/{less.denominator}"}
    open_account(embedded, budget=budget, neighbouring="replace_one")
    refused = problem_of(charge(embedded, redistricting), "budget_exceeded")
    assert refused["noise_multiplier_that_fits"] == pytest.approx(1, abs=2e-6)
    assert refused["noise_multiplier_that_fits"] > 1
    assert json_of(embedded.get("/v1/accounts/people/balance"))["releases"] == 0
