"""Whole guarantees: published releases, what each analysis says, and which one is best."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from service.privacy.accounting.guarantee import (
    USUAL_DELTA,
    USUAL_ORDERS,
    ApproximateStatement,
    DeltaStatement,
    Guarantee,
    deltas_at,
    guarantee,
)
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    Gaussian,
    Geometric,
    Mechanism,
    RandomizedResponse,
)
from service.privacy.numerics.numbers import double_up
from service.privacy.plans import Choice, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring, restrict
from service.privacy.tight import MOST_WORK
from tests.privacy.reference import exactly, mp, nats, oracle, pl94, plan_tau, reported, safetab
from tests.privacy.strategies import plans

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE


def declared(**figures: Fraction) -> Declared:
    return Declared(guarantee=Declaration(**figures), reference="a proof")  # type: ignore[arg-type]  # no rdp here


def by(found: Guarantee, via: str, delta: Fraction = USUAL_DELTA) -> ApproximateStatement:
    (statement,) = (s for s in found.approximate if s.via == via and s.delta == delta)
    return statement


def test_the_redistricting_release_costs_what_was_published() -> None:
    found = guarantee(pl94(), REPLACE)
    assert nats(found.rho) == Fraction(293764, 114921)
    assert found.rho.rational
    assert found.epsilon.nats is None
    assert found.delta == 0
    truth = Fraction("17.143550743595923")
    assert truth < Fraction(reported(by(found, "zcdp").epsilon)) < truth + Fraction(1, 10**9)
    # One query has a variance of 1.2, where the discrete Gaussian's own curve is a little below its slope.
    assert truth - Fraction(1, 10**10) < Fraction(reported(by(found, "rdp").epsilon)) < truth
    assert by(found, "zcdp").alpha == pytest.approx(3.911, abs=1e-3)
    assert [order for order, _ in found.rdp] == list(USUAL_ORDERS)
    assert dict(found.rdp)[Fraction(2)].nats == 2 * Fraction(293764, 114921)
    assert [statement.via for statement in found.approximate] == ["zcdp", "rdp", "analytic", "tight"]
    assert [statement.adaptive for statement in found.approximate] == [True, True, True, False]
    assert by(found, "tight").method == "contour"
    # a little above the continuous Gaussian of the same rho
    assert Fraction("16.465155374836333") < nats(by(found, "tight").epsilon) < Fraction("16.46516")


def test_a_level_of_the_redistricting_release_costs_its_proportion() -> None:
    level = restrict(pl94(), "County")
    assert level is not None
    found = guarantee(level, REPLACE, deltas=(), orders=())
    assert nats(found.rho) == Fraction(293764, 114921) * Fraction(447, 4099)
    assert (found.rdp, found.approximate, found.best) == ((), (), ())


MARGINS = [6, 6, 11, 11, 50, 50, 50]  # of Haney et al. 2021, Table 4, by level


def base_geometric() -> list[Mechanism]:
    """Eq. (38) with 1/(1-gamma); the irrational scale to 40 digits."""
    log_20 = Fraction(mp.nstr(mp.log(20), 40))
    return [Geometric(scale=(margin + 1) * Fraction(9, 10) / log_20) for margin in MARGINS]


def base_gaussian() -> list[Mechanism]:
    """Eq. (37) with 1/(1-gamma)."""
    rho = [Fraction("1.92") / margin**2 / Fraction(9, 10) for margin in MARGINS]
    return [DiscreteGaussian(sigma_squared=1 / (2 * one)) for one in rho]


def test_safetab_costs_what_its_formulas_say_where_they_are_sound() -> None:
    """The printed 13.2 for geometric RDP rests on an integral that understates."""
    geometric = guarantee(safetab(base_geometric()), ADD)
    assert reported(geometric.epsilon) == pytest.approx(15.3143, abs=5e-5)
    assert reported(by(geometric, "rdp").epsilon) == pytest.approx(14.1944, abs=5e-5)
    assert reported(by(geometric, "pure").epsilon) == reported(geometric.epsilon)
    gaussian = guarantee(safetab(base_gaussian()), ADD)
    assert reported(by(gaussian, "zcdp").epsilon) == pytest.approx(12.1629, abs=5e-5)
    assert reported(by(gaussian, "analytic").epsilon) == pytest.approx(12.7911, abs=5e-5)
    assert reported(by(gaussian, "rdp").epsilon) <= reported(by(gaussian, "zcdp").epsilon) + 1e-9


def test_a_tight_statement_is_not_adaptive() -> None:
    plan = Repeat(part=Gaussian(sigma_squared=Fraction(10)), count=2)
    found = guarantee(plan, ADD)
    tight = by(found, "tight")
    assert not tight.adaptive
    truth = exactly(oracle.epsilon_gaussian("0.1", "1e-10"))
    assert truth <= Fraction(reported(tight.epsilon)) <= truth * (1 + Fraction(1, 10**11))
    (best,) = found.best
    assert best.fixed == tight
    assert best.adaptive is not None
    assert best.adaptive.via in ("zcdp", "rdp")
    assert tight.method == "closed form"


def test_a_history_is_no_adaptive_guarantee() -> None:
    found = guarantee(Geometric(scale=Fraction(1)), ADD, adaptive=False)
    assert not any(statement.adaptive for statement in found.approximate)
    (best,) = found.best
    assert best.adaptive is None
    assert best.fixed is not None


def test_an_empty_history_has_lost_nothing() -> None:
    found = guarantee(Sequence(parts=()), REPLACE)
    assert {nats(found.epsilon), nats(found.rho), found.delta, *(nats(tau) for _, tau in found.rdp)} == {Fraction(0)}
    assert {nats(statement.epsilon) for statement in found.approximate} == {Fraction(0)}
    assert deltas_at(Sequence(parts=()), REPLACE, Fraction(0))[0] == DeltaStatement(found.epsilon, "pure")


def test_declared_deltas_come_off_first() -> None:
    delta = Fraction(1, 10**6)
    plan = Repeat(part=declared(rho=Fraction(1, 100), delta=delta / 4), count=3)
    found = guarantee(plan, ADD, deltas=(delta, delta * 3 / 4, delta / 2))
    assert found.delta == delta * 3 / 4
    beside = guarantee(Repeat(part=declared(rho=Fraction(1, 100)), count=3), ADD, deltas=(delta / 4,))
    assert by(found, "zcdp", delta).epsilon == by(beside, "zcdp", delta / 4).epsilon
    assert by(found, "tight", delta).method == "rdp"  # a declared rho says no more
    assert {statement.delta for statement in found.approximate} == {delta}  # nothing is left at the others
    assert found.best[1].fixed is None


def test_a_plan_that_spends_all_of_delta_is_still_pure_beside_it() -> None:
    found = guarantee(declared(epsilon=Fraction(2), delta=USUAL_DELTA), ADD)
    assert [(s.via, nats(s.epsilon)) for s in found.approximate] == [("pure", Fraction(2)), ("tight", Fraction(2))]


def test_analyses_that_say_nothing_are_left_out() -> None:
    points = ((Fraction(2), Fraction(1, 10)),)
    found = guarantee(Declared(guarantee=Declaration(rdp=points), reference="a proof"), ADD)
    assert [(statement.via, statement.method) for statement in found.approximate] == [("rdp", None), ("tight", "rdp")]
    assert [tau.nats is None for _, tau in found.rdp] == [order > 2 for order in USUAL_ORDERS]
    nothing = Sequence(
        parts=(Declared(guarantee=Declaration(rdp=points), reference="a proof"), declared(epsilon=Fraction(0)))
    )
    assert guarantee(nothing, ADD).epsilon.nats is None


def test_a_declared_curve_converts_at_its_last_order() -> None:
    """A search that ends a digit beyond that order finds an infinite curve."""
    points = ((Fraction(32), Fraction(1, 1000)),)
    found = guarantee(Declared(guarantee=Declaration(rdp=points), reference="a proof"), ADD)
    assert by(found, "rdp").alpha == 32
    assert reported(by(found, "rdp").epsilon) < (23.03 - 1 - 3.4) / 31 + 0.001


@settings(max_examples=10)
@given(plans(REPLACE, 5))
def test_statements_agree_with_one_another(plan: Plan) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # An eighth of what the service allows: the plans that exceed one exceed the other, and take longest then.
        patch.setattr("service.privacy.tight.MOST_WORK", MOST_WORK / 8)
        _assert_statements_agree(plan)


def _assert_statements_agree(plan: Plan) -> None:
    delta = Fraction(1, 10**4)
    found = guarantee(plan, REPLACE, deltas=(delta,), orders=(Fraction(3),))
    (best,) = found.best
    for statement in found.approximate:
        assert found.epsilon.nats is None or nats(statement.epsilon) <= found.epsilon.nats
        assert best.fixed is not None
        assert nats(best.fixed.epsilon) <= nats(statement.epsilon)
        reached = deltas_at(plan, REPLACE, nats(statement.epsilon))[0].delta
        # Where a curve bends sharply, at losses of hundreds of nats, the search for an order ends beside the best one.
        by_order = "rdp" in (statement.via, statement.method) and nats(statement.epsilon) > 100
        assert nats(reached) <= delta * (1 + Fraction(1, 10**3 if by_order else 10**6))
    assert dict(found.rdp)[Fraction(3)] == plan_tau(plan, REPLACE, Fraction(3))


@pytest.mark.parametrize(
    ("plan", "epsilon", "via"),
    [
        (Geometric(scale=Fraction(1)), Fraction(1), "pure"),
        (Gaussian(sigma_squared=Fraction(1)), Fraction(2), "tight"),
        (DiscreteGaussian(sigma_squared=Fraction(5)), Fraction(2), "tight"),
        (Repeat(part=Geometric(scale=Fraction(1)), count=9), Fraction(8), "tight"),
        (declared(rho=Fraction(1, 10)), Fraction(2), "zcdp"),
    ],
)
def test_delta_at_an_epsilon_comes_from_the_best_analysis(plan: Plan, epsilon: Fraction, via: str) -> None:
    least = deltas_at(plan, ADD, epsilon)[0]
    delta, found = least.delta, least.via
    assert found == via
    assert 0 <= nats(delta) < 1
    assert (nats(delta) == 0) == (via == "pure")
    more = deltas_at(Sequence(parts=(plan, declared(epsilon=Fraction(0), delta=Fraction(1, 8)))), ADD, epsilon)[0].delta
    assert Fraction(1, 8) <= nats(more) <= nats(delta) + Fraction(1, 8) + Fraction(1, 20)


def test_above_the_pure_epsilon_every_order_is_better_than_the_last() -> None:
    """The search for an order, from a near one, has no minimum to find."""
    found = {
        one.via: nats(one.delta)
        for one in deltas_at(Geometric(scale=Fraction(3), sensitivity=3), REPLACE, Fraction("2.3"))
    }
    assert found["pure"] == 0 < found["rdp"] < Fraction(1, 10**300)


def test_a_delta_never_exceeds_1() -> None:
    plan = Repeat(part=declared(epsilon=Fraction(1), delta=Fraction(1, 3)), count=10**12)
    assert nats(deltas_at(plan, ADD, Fraction(10**13))[0].delta) == 1
    assert nats(deltas_at(DiscreteGaussian(sigma_squared=Fraction(1, 10**9)), ADD, Fraction(1))[0].delta) == 1


def test_many_equal_parts_cost_as_much_to_price_as_one() -> None:
    """A hundred thousand nodes fold like their few distinct ones, whatever their names are."""
    parts = tuple(Geometric(name=str(k), scale=Fraction(10 + k % 5)) for k in range(20_000))
    plan = Sequence(parts=(Parallel(parts=parts, max_degree=9000), Choice(parts=parts)))
    found = guarantee(plan, REPLACE)
    # the dearest 4000 at scale 10, 4000 at 11, 1000 at 12, two cells each
    assert nats(found.epsilon) == 2 * (400 + Fraction(4000, 11) + Fraction(1000, 12)) + Fraction(2, 10)


@pytest.mark.parametrize("delta", ["1e-300", "1e-10", "0.5"])
@pytest.mark.parametrize("noise", ["1e-400", "1e-9", "1e9", "1e400"])
def test_no_size_of_figures_breaks_a_guarantee(noise: str, delta: str) -> None:
    scale = Fraction(noise)
    for mechanism in (
        Geometric(scale=scale, sensitivity=3),
        DiscreteGaussian(sigma_squared=scale),
        Gaussian(sigma_squared=scale),
        RandomizedResponse(epsilon=scale, values=10**9),
    ):
        found = guarantee(Repeat(part=mechanism, count=10**12), REPLACE, deltas=(Fraction(delta),))
        assert found.approximate
        for statement in found.approximate:
            assert nats(statement.epsilon) >= 0
            assert double_up(nats(statement.epsilon)) >= 0
        once = guarantee(mechanism, REPLACE, deltas=(Fraction(delta),))
        for one, many in zip(once.approximate, found.approximate, strict=True):
            assert nats(one.epsilon) <= nats(many.epsilon) * (1 + Fraction(1, 10**9)) + Fraction(1, 10**300)


def test_more_noise_never_costs_more_in_any_statement() -> None:
    plan = Geometric(scale=Fraction(2), sensitivity=2)
    louder = replace(plan, scale=Fraction("2.01"))
    for less, more in zip(guarantee(louder, ADD).approximate, guarantee(plan, ADD).approximate, strict=True):
        assert nats(less.epsilon) <= nats(more.epsilon)


def test_the_tight_statement_can_be_left_out_and_nothing_else_changes() -> None:
    plan = Sequence(parts=(Geometric(scale=Fraction(3)), Gaussian(sigma_squared=Fraction(5))))
    whole, adaptive = guarantee(plan, ADD), guarantee(plan, ADD, tight=False)
    assert [one.via for one in whole.approximate if one not in adaptive.approximate] == ["tight"]
    assert adaptive.best[0].fixed == adaptive.best[0].adaptive == whole.best[0].adaptive
