"""Plans from other libraries' descriptions: never less loss than these libraries compute."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import opendp.prelude as odp
import pytest
from dp_accounting import NeighboringRelation, dp_event as dp  # type: ignore[import-untyped]
from dp_accounting.pld import PLDAccountant  # type: ignore[import-untyped]

from privacy_budget_ledger import Client, plans
from privacy_budget_ledger.adapters import Neighbouring, NotExpressible, from_dp_event, from_opendp, from_tumult
from privacy_budget_ledger.plans import Plan, repeat, sequence

odp.enable_features("contrib")
_RELATIONS: dict[Neighbouring, Any] = {
    "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
}


def _priced(ledger: Client, plan: Plan, neighbouring: Neighbouring) -> Any:
    return ledger.request("POST", "/v1/compositions", json={"plan": plan.document(), "neighbouring": neighbouring})


def _delta(ledger: Client, plan: Plan, neighbouring: Neighbouring, epsilon: str) -> float:
    body = {"plan": plan.document(), "neighbouring": neighbouring, "epsilon": epsilon}
    return float(ledger.request("POST", "/v1/conversions", json=body)["delta"])


def test_events_have_plans() -> None:
    event = dp.ComposedDpEvent(
        [
            dp.GaussianDpEvent(0.5),
            dp.NoOpDpEvent(),
            dp.SelfComposedDpEvent(dp.ComposedDpEvent([dp.LaplaceDpEvent(2.0)]), 3),
            dp.SelfComposedDpEvent(dp.LaplaceDpEvent(2.0), 0),
            dp.DiscreteLaplaceDpEvent(0.25, 2),
            dp.ZCDpEvent(0.125),
        ]
    )
    assert from_dp_event(event, "add_remove") == sequence(
        plans.Gaussian(sigma_squared="0.25", sensitivity=1, cells=1),
        repeat(3, sequence(plans.Laplace(scale=2, sensitivity=1, cells=1))),
        plans.Geometric(epsilon="0.5", sensitivity=2, cells=1),
        plans.Declared(rho="0.125", reference="dp-accounting: ZCDpEvent"),
    )


def test_a_replaced_record_moves_noise_twice_as_far(ledger: Client) -> None:
    """One contribution of norm C leaves and another comes; the loss of Gaussian noise is then four times as large."""
    for event, one, both in (
        (dp.GaussianDpEvent(2.0), ("zcdp", "rho", 0.125), ("zcdp", "rho", 0.5)),
        (dp.LaplaceDpEvent(2.0), ("pure", "epsilon", 0.5), ("pure", "epsilon", 1.0)),
        (dp.DiscreteLaplaceDpEvent(0.25, 2), ("pure", "epsilon", 0.5), ("pure", "epsilon", 1.0)),
    ):
        for neighbouring, (notion, name, loss) in (("add_remove", one), ("replace_one", both)):
            relation: Neighbouring = neighbouring  # type: ignore[assignment]
            assert _priced(ledger, from_dp_event(event, relation), relation)[notion][name] == loss


@pytest.mark.parametrize(
    "event",
    [
        dp.GaussianDpEvent(1.1),
        dp.LaplaceDpEvent(1.3),
        dp.DiscreteLaplaceDpEvent(0.7, 2),
        dp.ComposedDpEvent([dp.GaussianDpEvent(2.0), dp.SelfComposedDpEvent(dp.LaplaceDpEvent(3.0), 2)]),
    ],
    ids=lambda event: type(event).__name__,
)
def test_the_loss_is_that_of_the_other_accountant(event: Any, ledger: Client) -> None:
    other = PLDAccountant(_RELATIONS["add_remove"]).compose(event).get_delta(0.5)
    here = _delta(ledger, from_dp_event(event, "add_remove"), "add_remove", "0.5")
    assert here == pytest.approx(other, rel=2e-3)


def test_randomised_response_is_that_of_the_other_accountant(ledger: Client) -> None:
    event = dp.RandomizedResponseDpEvent(0.3, 4)
    plan = from_dp_event(event, "replace_one")
    assert isinstance(plan, plans.RandomizedResponse)
    exact = 1 + 4 * (1 - Fraction(0.3)) / Fraction(0.3)
    assert 0 <= float(Fraction(plan.epsilon)) - math.log(exact) < 1e-14
    other = PLDAccountant(_RELATIONS["replace_one"]).compose(event).get_delta(0.5)
    assert _delta(ledger, plan, "replace_one", "0.5") == pytest.approx(other, rel=2e-3)


def test_laplace_noise_loses_most_in_one_cell(ledger: Client) -> None:
    """A contribution of L1 norm 1 that is spread over two cells loses no more, whatever the epsilon."""
    whole = from_dp_event(dp.LaplaceDpEvent(1.0), "add_remove")
    for share in ("0.1", "0.3", "0.5"):
        rest = str(1 - Fraction(share))
        spread = sequence(plans.Laplace(scale=1, sensitivity=share), plans.Laplace(scale=1, sensitivity=rest))
        for epsilon in ("0", "0.1", "0.5", "0.9"):
            bound = _delta(ledger, whole, "add_remove", epsilon)
            assert bound >= _delta(ledger, spread, "add_remove", epsilon) * (1 - 1e-6)


def test_a_float_of_an_event_is_read_towards_more_loss() -> None:
    gaussian = from_dp_event(dp.GaussianDpEvent(0.1), "add_remove")
    assert isinstance(gaussian, plans.Gaussian)
    assert gaussian.sigma_squared == "0.01"
    assert Fraction(0.1) ** 2 > Fraction("0.01")
    discrete = from_dp_event(dp.DiscreteLaplaceDpEvent(0.1, 1), "add_remove")
    assert isinstance(discrete, plans.Geometric)
    assert Fraction(discrete.epsilon or 0) >= Fraction(0.1)


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)), "PoissonSampledDpEvent"),
        (dp.SampledWithReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)), "SampledWithReplacementDpEvent"),
        (dp.SampledWithoutReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)), "SampledWithoutReplacementDpEvent"),
        (dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.NonPrivateDpEvent()]), "NonPrivateDpEvent"),
        (dp.SelfComposedDpEvent(dp.UnsupportedDpEvent(), 2), "UnsupportedDpEvent"),
        (dp.SingleEpochTreeAggregationDpEvent(1.0, 4), "SingleEpochTreeAggregationDpEvent"),
        (dp.RepeatAndSelectDpEvent(dp.GaussianDpEvent(1.0), 1.0, 1.0), "RepeatAndSelectDpEvent"),
        (dp.MixtureOfGaussiansDpEvent(1.0, [1.0], [1.0]), "MixtureOfGaussiansDpEvent"),
        (dp.ZCDpEvent(0.1, 0.1), "ZCDpEvent"),
        (dp.ZCDpEvent(0.1, math.nan), "ZCDpEvent"),
        (dp.ZCDpEvent(math.inf), "ZCDpEvent"),
        (dp.RandomizedResponseDpEvent(0.3, 4), "RandomizedResponseDpEvent"),
        (dp.NoOpDpEvent(), "NoOpDpEvent"),
        (dp.ComposedDpEvent([]), "ComposedDpEvent"),
        (dp.GaussianDpEvent(0.0), "GaussianDpEvent"),
        (dp.GaussianDpEvent(-1.0), "GaussianDpEvent"),
        (dp.GaussianDpEvent(math.inf), "GaussianDpEvent"),
        (dp.GaussianDpEvent(math.nan), "GaussianDpEvent"),
        (dp.LaplaceDpEvent(0.0), "LaplaceDpEvent"),
        (dp.LaplaceDpEvent(1j), "LaplaceDpEvent"),
        (dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 2.5), "SelfComposedDpEvent"),
        (dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), -1), "SelfComposedDpEvent"),
        (dp.DiscreteLaplaceDpEvent(0.0, 1), "DiscreteLaplaceDpEvent"),
        (dp.DiscreteLaplaceDpEvent(0.1, 0), "DiscreteLaplaceDpEvent"),
        (dp.DiscreteLaplaceDpEvent(0.1, 1.5), "DiscreteLaplaceDpEvent"),
        ("an event", "str"),
    ],
)
def test_an_event_without_a_sound_plan_is_refused_by_name(event: Any, named: str) -> None:
    with pytest.raises(NotExpressible, match=named):
        from_dp_event(event, "add_remove")


@pytest.mark.parametrize("parameter", [0.0, 1.0, 1.5])
def test_a_response_without_a_finite_loss_is_refused(parameter: float) -> None:
    with pytest.raises(NotExpressible, match="RandomizedResponseDpEvent"):
        from_dp_event(dp.RandomizedResponseDpEvent(parameter, 4), "replace_one")


@pytest.mark.parametrize("relation", ["REPLACE_ONE", "replace-one", "", None, NeighboringRelation.REPLACE_ONE])
def test_another_relation_is_refused_and_not_taken_for_the_weaker_one(relation: Any) -> None:
    with pytest.raises(ValueError, match="expected add_remove or replace_one"):
        from_dp_event(dp.GaussianDpEvent(1.0), relation)


def test_a_response_among_less_than_two_values_is_refused() -> None:
    with pytest.raises(NotExpressible, match="RandomizedResponseDpEvent with a whole number from 2"):
        from_dp_event(dp.RandomizedResponseDpEvent(0.3, 1), "replace_one")


def test_an_adapted_plan_is_registered(ledger: Client, account: Any) -> None:
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(np.float32(10.0)), np.int64(4))
    release = ledger.register(account.name, name="trained", plan=from_dp_event(event, "add_remove"))
    assert release.remaining["rho"] == 0.48


def _integers(metric: Any) -> tuple[Any, Any]:
    return odp.vector_domain(odp.atom_domain(T=int)), metric


def test_a_measurement_has_the_loss_of_its_map() -> None:
    laplace = odp.m.make_laplace(*_integers(odp.l1_distance(T=int)), scale=3.0)
    declared = from_opendp(laplace, 2)
    assert Fraction(declared.epsilon or 0) >= Fraction(laplace.map(2)) >= Fraction(2, 3)  # type: ignore[no-untyped-call]
    assert declared.reference == "OpenDP: MaxDivergence of L1Distance(i32) at 2"
    gaussian = odp.m.make_gaussian(*_integers(odp.l2_distance(T=float)), scale=3.0)
    assert Fraction(from_opendp(gaussian, 1.0).rho or 0) >= Fraction(1, 18)
    approximate = from_opendp(odp.c.make_approximate(gaussian), 1.0)
    assert (approximate.rho, approximate.delta) == (from_opendp(gaussian, 1.0).rho, "0")


def test_a_fixed_delta_is_declared_beside_epsilon() -> None:
    gaussian = odp.m.make_gaussian(*_integers(odp.l2_distance(T=float)), scale=3.0)
    profile = odp.c.make_zCDP_to_approxDP(gaussian)
    fixed = odp.c.make_fix_delta(profile, 1e-6)
    declared, (epsilon, delta) = from_opendp(fixed, 1.0), fixed.map(1.0)  # type: ignore[no-untyped-call]
    assert (Fraction(declared.epsilon or 0) >= epsilon, Fraction(declared.delta or 0) >= delta) == (True, True)
    with pytest.raises(NotExpressible, match="got SmoothedMaxDivergence"):
        from_opendp(profile, 1.0)


def test_a_measurement_of_infinite_loss_is_refused() -> None:
    laplace = odp.m.make_laplace(*_integers(odp.l1_distance(T=int)), scale=0.0)
    with pytest.raises(NotExpressible, match="expected a finite loss of MaxDivergence"):
        from_opendp(laplace, 1)


# Tumult Analytics 0.21 takes versions of pandas, pyarrow and Spark that the service does not. So these are stand-ins of
# its budgets: classes of the same names, with the members that the adapter reads.


@dataclass(frozen=True)
class _Rational:
    p: int
    q: int
    is_Rational: bool = True  # noqa: N815 - as in sympy


@dataclass(frozen=True)
class _Root:
    is_Rational: bool = False  # noqa: N815 - as in sympy


@dataclass(frozen=True)
class _ExactNumber:
    expr: Any
    rounded_up: float = math.nan

    def to_float(self, round_up: bool) -> float:
        assert round_up
        return self.rounded_up


@dataclass(frozen=True)
class PureDPBudget:
    """Stand-in of a budget of Tumult."""

    value: Any
    is_infinite: bool = False


class ApproxDPBudget(PureDPBudget):
    """Stand-in of a budget of Tumult."""


class RhoZCDPBudget(PureDPBudget):
    """Stand-in of a budget of Tumult."""


def test_budgets_are_declared_losses() -> None:
    tenth, tiny = _ExactNumber(_Rational(1, 10)), _ExactNumber(_Rational(1, 10**9))
    root = _ExactNumber(_Root(), math.nextafter(math.sqrt(2), 2))
    assert from_tumult(PureDPBudget(tenth)) == plans.Declared(epsilon="0.1", reference="Tumult Analytics: PureDPBudget")
    assert from_tumult(ApproxDPBudget((tenth, tiny))) == plans.Declared(
        epsilon="0.1", delta="1e-9", reference="Tumult Analytics: ApproxDPBudget"
    )
    assert from_tumult(RhoZCDPBudget(tenth)).rho == "0.1"
    assert Fraction(from_tumult(RhoZCDPBudget(root)).rho or 0) ** 2 > 2


def test_an_infinite_or_unknown_budget_is_refused() -> None:
    budget = PureDPBudget(_ExactNumber(_Rational(1, 0)), is_infinite=True)
    beyond = PureDPBudget(_ExactNumber(_Root(), math.inf))  # finite, and beyond the doubles
    for infinite in (budget, beyond):
        with pytest.raises(NotExpressible, match="expected a finite PureDPBudget"):
            from_tumult(infinite)
    with pytest.raises(NotExpressible, match="got str"):
        from_tumult("a budget")
