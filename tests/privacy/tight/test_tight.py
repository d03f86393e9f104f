"""Tight figures against enumerations and closed forms in mpmath, published tables, and the other analyses."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from service.privacy.accounting.guarantee import deltas_at, guarantee
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
from service.privacy.plans import Choice, Group, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import MOST_WORK, TightBound, TightProfile
from tests.privacy.accounting.test_guarantee import base_gaussian, base_geometric
from tests.privacy.reference import exactly, mp, nats, oracle, pl94, rows, safetab
from tests.privacy.strategies import plans
from tests.privacy.tight import exact

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
WITHIN = Fraction(1, 10**6)


def tight(plan: Plan, neighbouring: Neighbouring = ADD) -> TightProfile:
    found = TightProfile.of(plan, neighbouring)
    assert found is not None
    return found


def epsilon(plan: Plan, delta: str, neighbouring: Neighbouring = ADD) -> Fraction:
    found = tight(plan, neighbouring).epsilon(Fraction(delta))
    assert found is not None
    return nats(found.loss)


def delta(plan: Plan, at: Fraction, neighbouring: Neighbouring = ADD) -> Fraction:
    found = tight(plan, neighbouring).delta(at)
    assert found is not None
    return nats(found.loss)


def assert_least(plan: Plan, target: str, profile: Any, neighbouring: Neighbouring = ADD) -> None:
    """Epsilon holds at ``target`` by the true profile, and one that is less by a millionth does not."""
    found, asked = epsilon(plan, target, neighbouring), oracle.number(target)
    at = mp.mpf(found.numerator) / found.denominator
    assert profile(at) <= asked
    assert profile(at * (1 - mp.mpf(10) ** -6)) > asked or found == 0


def assert_just_above(found: Fraction, truth: Any, within: Fraction = WITHIN) -> None:
    """Never below, but for the digits of the truth itself, and close."""
    true = exactly(truth)
    assert found >= true * (1 - Fraction(1, 10**30))
    assert found <= true * (1 + within)


def geometric(loss: str, s: int = 1) -> Geometric:
    return Geometric(scale=s / Fraction(loss), sensitivity=s)


@pytest.mark.parametrize("row", rows("tight_geometric_composition"), ids=lambda row: row["delta"])
def test_reference_compositions_are_reproduced(row: dict[str, Any]) -> None:
    plan = Sequence(parts=tuple(Repeat(part=geometric(p["epsilon"]), count=p["count"]) for p in row["parts"]))
    found = epsilon(plan, row["delta"])
    assert Fraction(row["epsilon"]) * (1 - Fraction(1, 10**16)) <= found <= Fraction(row["epsilon"]) * (1 + WITHIN)


@pytest.mark.parametrize("row", [row for row in rows("cost") if row["mechanism"] == "osgt"], ids=lambda row: row["m"])
def test_reference_profiles_of_osgt_are_reproduced(row: dict[str, Any]) -> None:
    noise = Osgt(sigma_squared=Fraction(row["sigma_squared"]), m=Fraction(row["m"]))
    for at, published in row["delta"].items():
        assert_just_above(delta(noise, Fraction(at)), mp.mpf(published) * (1 - mp.mpf(10) ** -16))


@pytest.mark.parametrize("at", ["0.1", "0.5", "0.94"])
def test_osgt_is_its_closed_form(at: str) -> None:
    """Sadeghi and Korki 2022, for losses that only outputs below 0 have."""
    v, m, e = mp.mpf(630), mp.mpf(15), oracle.number(at)
    unit, crossing = mp.sqrt(2 * v), m + mp.mpf(1) / 2 - v * e
    with mp.workdps(80):
        both = mp.erfc((m - crossing) / unit) - mp.exp(e) * mp.erfc((m - crossing + 1) / unit)
        truth = both / (2 * mp.erfc(m / unit))
    assert_just_above(delta(Osgt(sigma_squared=Fraction(630), m=Fraction(15)), Fraction(at)), truth)


def test_osgt_at_the_published_check_value() -> None:
    assert float(epsilon(Osgt(sigma_squared=Fraction(40), m=Fraction(3)), "1e-10")) == pytest.approx(0.93663, abs=5e-6)


def test_the_discrete_gaussian_is_not_the_continuous_one() -> None:
    atoms = exact.noise(oracle.discrete_gaussian("31.36"), 1)
    found = epsilon(DiscreteGaussian(sigma_squared=Fraction("31.36")), "1e-10")
    assert_just_above(found, exact.epsilon(atoms, mp.mpf(10) ** -10))
    assert float(found) == pytest.approx(1.05104, abs=5e-6)


def test_tight_figures_of_safetab_are_reproduced() -> None:
    by_geometric, by_gaussian = safetab(base_geometric()), safetab(base_gaussian())
    assert float(epsilon(by_geometric, "1e-10")) == pytest.approx(14.05, abs=0.01)
    assert 11.6662 < epsilon(by_gaussian, "1e-10") < 11.69  # above the continuous Gaussian of the same rho


def test_an_adversary_that_picks_the_second_mechanism_is_met() -> None:
    """0.1527, where the best fixed combination has 0.1277."""
    first, sharp = RandomizedResponse(epsilon=Fraction(1, 2)), RandomizedResponse(epsilon=Fraction(2), values=60)
    law = exact.response("0.5", 2)
    e = mp.mpf("0.6")

    def after(loss: Any) -> Any:
        """The most that the second mechanism adds after a first loss."""
        return max(exact.delta(law, e - loss), exact.delta(exact.response("2", 60), e - loss))

    def below_0(x: Any, profile: Any) -> Any:
        return profile(x) if x >= 0 else 1 - mp.exp(x) * (1 - profile(-x))

    truth = mp.fsum(p * below_0(e - x, lambda y: after(e - y)) for x, p in law.items())
    assert float(truth) == pytest.approx(0.1527, abs=5e-5)
    fixed = max(exact.delta(exact.composed([law, two]), e) for two in (law, exact.response("2", 60)))
    assert float(fixed) == pytest.approx(0.1277, abs=5e-5)
    # Responses stand for themselves only outside a choice: the two-valued as noise, the 60-valued by its law.
    plan = Sequence(
        parts=(geometric("0.5"), Choice(parts=(geometric("0.5"), Geometric(scale=Fraction(1), sensitivity=2))))
    )
    two_steps = exact.noise(oracle.geometric("1"), 2)
    e = mp.mpf("0.6")
    profiles = (law, two_steps)
    best = mp.fsum(p * below_0(e - x, lambda y: max(exact.delta(one, y) for one in profiles)) for x, p in law.items())
    apart = max(exact.delta(exact.composed([law, one]), e) for one in profiles)
    found = delta(plan, Fraction("0.6"))
    assert_just_above(found, best)
    assert found > exactly(apart)
    assert first != sharp


@pytest.mark.parametrize(
    ("target", "method"), [("1e-120", "atoms"), ("1e-128", "lattice"), ("1e-135", "lattice"), ("1e-300", "lattice")]
)
@pytest.mark.parametrize("variance", ["1", "0.2"])
def test_a_delta_below_the_enumerated_tails_is_found_along_a_line(variance: str, target: str, method: str) -> None:
    """Enumerated tails of 1e-130 count as lost."""
    noise = DiscreteGaussian(sigma_squared=Fraction(variance))
    atoms = exact.noise(oracle.discrete_gaussian(variance), 1, 1700)
    least = exact.epsilon(atoms, oracle.number(target))
    found = tight(noise).epsilon(Fraction(target))
    assert found is not None
    assert found.method == method
    assert_just_above(nats(found.loss), least, Fraction(1, 10**10))
    at = exactly(least) + Fraction(3, 10)
    assert_just_above(delta(noise, at), exact.delta(atoms, mp.mpf(at.numerator) / at.denominator))


@pytest.mark.parametrize(
    ("variance", "offset", "shift"),
    [("1e19", "1e19", 5), ("1e20", "1e20", 2), ("3e20", "1e20", 6), ("1e30", "1e30", 4), ("3e17", "1e17", 3)],
)
def test_an_offset_beyond_the_digits_of_doubles_cuts_off_no_noise(variance: str, offset: str, shift: int) -> None:
    """Such noise is nearly geometric; where its reach was a difference of two large doubles, delta was 1 % too low."""
    with mp.workdps(90):
        plan = DiscreteOsgt(sigma_squared=Fraction(variance), m=Fraction(offset), sensitivity=shift)
        atoms = exact.noise(oracle.discrete_osgt(variance, offset), shift, 300)
        for at in ("1/1000", "1/2"):
            e = Fraction(at)
            truth = exact.delta(atoms, mp.mpf(e.numerator) / e.denominator)
            assert_just_above(delta(plan, e), truth, Fraction(1, 10**6))
    thrice = Repeat(part=plan, count=30)
    like = Repeat(part=Geometric(scale=Fraction(variance) / Fraction(offset), sensitivity=shift), count=30)
    assert epsilon(thrice, "1e-6") >= epsilon(like, "1e-6") * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize(("narrow", "wider"), [("0.0012", "0.087"), ("0.0012", "0.07"), ("0.01", "0.0203")])
def test_narrow_noise_is_enumerated(narrow: str, wider: str) -> None:
    """A line's margin for rounding was up to 69 % of epsilon."""
    plan = Sequence(parts=tuple(DiscreteGaussian(sigma_squared=Fraction(one)) for one in (narrow, wider)))
    atoms = exact.composed([exact.noise(oracle.discrete_gaussian(one), 1, 1200) for one in (narrow, wider)])
    for target in ("1e-10", "1e-30", "1e-100"):
        assert_just_above(epsilon(plan, target), exact.epsilon(atoms, oracle.number(target)))


@pytest.mark.parametrize("size", [10**3, 10**5])
def test_a_choice_between_small_losses_is_not_much_above_its_worst_branch(size: int) -> None:
    """Their profiles were looked at only up to a loss of 1. Here that of Laplace noise is the larger one."""
    plan = Choice(parts=(Gaussian(sigma_squared=Fraction(size**2)), Laplace(scale=Fraction(size))))
    truth = -mp.expm1(-mp.mpf(1) / (4 * size))
    assert_just_above(delta(plan, Fraction(1, 2 * size)), truth, Fraction(1, 10**4))


LAWS: dict[str, tuple[Mechanism, Any]] = {
    "geometric": (geometric("0.7"), lambda: exact.noise(oracle.geometric("10/7"), 1)),
    "steps": (Geometric(scale=Fraction(3), sensitivity=4), lambda: exact.noise(oracle.geometric("3"), 4)),
    "gaussian": (DiscreteGaussian(sigma_squared=Fraction(2)), lambda: exact.noise(oracle.discrete_gaussian("2"), 1)),
    "narrow": (
        DiscreteGaussian(sigma_squared=Fraction(1, 5), sensitivity=2),
        lambda: exact.noise(oracle.discrete_gaussian("1/5"), 2),
    ),
    "osgt": (
        DiscreteOsgt(sigma_squared=Fraction(6), m=Fraction(1, 2)),
        lambda: exact.noise(oracle.discrete_osgt("6", "1/2"), 1),
    ),
    "response": (RandomizedResponse(epsilon=Fraction(4, 3), values=7), lambda: exact.response("4/3", 7)),
}


@cache
def enumerated(*names: str) -> Any:
    """The atoms of a composition: made once, which takes longer than all that is asked of them."""
    with mp.workdps(150):
        laws = {name: LAWS[name][1]() for name in names}
        return exact.composed([laws[name] for name in names])


def composition(names: list[str]) -> tuple[Mechanism, ...]:
    """Return the composition of one cell each; a response has none."""
    return tuple(replace(LAWS[name][0], cells=1) if name != "response" else LAWS[name][0] for name in names)


@pytest.mark.parametrize("names", [["geometric"] * 25, ["steps"] * 3, ["gaussian", "geometric"], ["osgt", "response"]])
@pytest.mark.parametrize("target", ["1e-100", "1e-10", "0.1"])
def test_a_composition_is_its_enumeration(names: list[str], target: str) -> None:
    plan, atoms = Sequence(parts=composition(names)), enumerated(*names)
    with mp.workdps(140):
        assert_least(plan, target, lambda e: exact.delta(atoms, e), REPLACE)
        for at in ("1e-6", "0.3", "1"):
            assert_just_above(delta(plan, Fraction(at), REPLACE), exact.delta(atoms, oracle.number(at)))


@pytest.mark.parametrize("names", [["geometric", "gaussian"], ["narrow", "response"], ["osgt"]])
@pytest.mark.parametrize("variance", ["1/8", "50"])
def test_mechanisms_compose_with_a_continuous_gaussian(names: list[str], variance: str) -> None:
    gaussian = Gaussian(sigma_squared=Fraction(variance), cells=1)
    atoms, rho = enumerated(*names), 1 / (2 * oracle.number(variance))
    plan = Sequence(parts=(gaussian, *composition(names)))
    for target in ("1e-100", "1e-6", "0.1"):
        with mp.workdps(150):
            assert_least(plan, target, lambda e: exact.beside_gaussian(atoms, rho, e), REPLACE)


@pytest.mark.parametrize(("one", "two"), [("1", "1"), ("1", "0.75"), ("0.3", "2")])
def test_two_laplace_mechanisms_agree_with_their_integral(one: str, two: str) -> None:
    plan = Sequence(parts=tuple(Laplace(scale=1 / Fraction(loss)) for loss in (one, two)))
    for at in ("0.000001", "0.1", "0.9", "1.6"):
        assert_just_above(delta(plan, Fraction(at)), exact.laplace_pair(one, two, at))


PUBLISHED = json.loads((Path(__file__).parent / "dp_accounting.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("row", [row for row in PUBLISHED if row[4] != "replace"])
def test_published_profiles_are_reproduced(row: list[Any]) -> None:
    """Poisson sampling and negative epsilons are read off the profile of the mechanism itself.

    Of a pair at sampling rate q, one record removed, it is q delta(log(1 + (e^epsilon - 1)/q)) where that is
    defined, else 1 - e^epsilon; added, and below 0, by delta(-epsilon) = 1 - e^-epsilon (1 - delta'(epsilon)) for the
    two directions. Rows of records replaced are sampled on both sides, which does not reduce to it.
    """
    kind, parameter, sensitivity, rate, adjacency, at, published = row
    s = Fraction(str(sensitivity))
    match kind:
        case "laplace":
            noise: Mechanism = Laplace(scale=Fraction(str(parameter)), sensitivity=s)
        case "gaussian":
            noise = Gaussian(sigma_squared=Fraction(str(parameter)) ** 2, sensitivity=s)
        case _:
            noise = Geometric(scale=1 / Fraction(str(parameter)), sensitivity=int(s))

    def plain(e: Any) -> Any:
        if e < 0:
            return 1 - mp.exp(e) * (1 - plain(-e))
        value = delta(noise, exactly(e))
        return mp.mpf(value.numerator) / value.denominator

    def removed(e: Any) -> Any:
        inside = 1 + (mp.exp(e) - 1) / mp.mpf(rate)
        return rate * plain(mp.log(inside)) if inside > 0 else 1 - mp.exp(e)

    e = mp.mpf(at)
    found = removed(e) if adjacency == "remove" else 1 - mp.exp(e) * (1 - removed(-e))
    assert float(found) == pytest.approx(published, abs=1e-7)


def test_declared_deltas_are_lost() -> None:
    """With probability delta everything is lost; 1 - (1 - delta)^n of n times, not n delta."""
    pair = Declared(guarantee=Declaration(epsilon=Fraction(1, 2), delta=Fraction(1, 10)), reference="a proof")
    plan = Repeat(part=pair, count=3)
    lost = 1 - mp.mpf("0.9") ** 3
    finite = exact.delta(exact.composed([exact.response("0.5", 2)] * 3), "0.7")
    assert_just_above(delta(plan, Fraction("0.7")), lost + (1 - lost) * finite)
    assert tight(plan).epsilon(Fraction(1, 4)) is None
    sure = Declared(guarantee=Declaration(epsilon=Fraction(1), delta=Fraction(1)), reference="a proof")
    assert delta(sure, Fraction(5)) == 1
    assert tight(sure).epsilon(Fraction(99, 100)) is None


@pytest.mark.parametrize("lost", ["1e-330", "1e-300", "0.99999999999999999999"])
def test_a_declared_delta_that_no_double_is_is_not_forgotten(lost: str) -> None:
    pair = Declared(guarantee=Declaration(epsilon=Fraction(1), delta=Fraction(lost)), reference="a proof")
    assert delta(pair, Fraction(2)) >= Fraction(lost)
    assert nats(deltas_at(pair, ADD, Fraction(2))[0].delta) >= Fraction(lost)


def test_a_declared_rho_has_no_tight_figure() -> None:
    rho = Declared(guarantee=Declaration(rho=Fraction(1)), reference="a proof")
    assert TightProfile.of(Sequence(parts=(rho, geometric("1"))), ADD) is None
    found = guarantee(rho, ADD)
    assert [(s.via, s.method) for s in found.approximate if s.via == "tight"] == [("tight", "rdp")]


@settings(max_examples=12)
@given(plans(REPLACE, 5), st.sampled_from(["1e-100", "1e-9", "0.01"]))
def test_tight_is_least_and_consistent(plan: Plan, target: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # An eighth of what the service allows: the plans that exceed one exceed the other, and take longest then.
        patch.setattr("service.privacy.tight.MOST_WORK", MOST_WORK / 8)
        _assert_least_and_consistent(plan, target)


def _assert_least_and_consistent(plan: Plan, target: str) -> None:
    found = guarantee(plan, REPLACE, deltas=(Fraction(target),), orders=())
    by = {s.via: nats(s.epsilon) for s in found.approximate}
    if "tight" not in by:  # the deltas that mechanisms declare leave nothing
        assert not by
        return
    assert by["tight"] <= by.get("rdp", by["tight"])
    assert by["tight"] <= by.get("zcdp", by["tight"])
    reached = deltas_at(plan, REPLACE, by["tight"])[0].delta
    assert nats(reached) <= Fraction(target) * (1 + Fraction(1, 50))
    further = deltas_at(plan, REPLACE, by["tight"] * 2 + 1)[0].delta
    assert nats(further) <= nats(reached) * (1 + Fraction(1, 50))


def test_parts_that_all_can_be_touched_are_composed() -> None:
    parts = (geometric("0.5"), DiscreteGaussian(sigma_squared=Fraction(3)))
    assert delta(Parallel(parts=parts, max_degree=2), Fraction(1)) == delta(Sequence(parts=parts), Fraction(1))
    worst = delta(Parallel(parts=parts, max_degree=1), Fraction(1, 3))
    assert worst >= max(delta(part, Fraction(1, 3)) for part in parts)
    assert worst <= max(delta(part, Fraction(1, 3)) for part in parts) * (1 + WITHIN)


def test_less_noise_of_a_kind_is_worse_without_any_profile() -> None:
    for kind in (
        [Laplace(scale=Fraction(k)) for k in (3, 5)],
        [geometric("0.5", 2), geometric("0.3", 2)],
        [Gaussian(sigma_squared=Fraction(k)) for k in (2, 9)],
    ):
        assert delta(Choice(parts=tuple(kind)), Fraction(1, 10)) == delta(kind[0], Fraction(1, 10))


@pytest.mark.parametrize(
    "branches",
    [
        (Gaussian(sigma_squared=Fraction(10)), Laplace(scale=Fraction(3))),
        (Osgt(sigma_squared=Fraction(40), m=Fraction(3)), DiscreteGaussian(sigma_squared=Fraction(28))),
        (Sequence(parts=(geometric("0.1"), geometric("0.3"))), Laplace(scale=Fraction(3))),
    ],
)
def test_a_choice_costs_what_its_worst_branch_does(branches: tuple[Plan, Plan]) -> None:
    """Run once, it has the pointwise maximum as its profile, and little more."""
    plan = Choice(parts=branches)
    for at in ("0.05", "0.4", "0.9"):
        truth = max(delta(branch, Fraction(at)) for branch in branches)
        found = delta(plan, Fraction(at))
        assert truth * (1 - Fraction(1, 10**9)) <= found <= truth * (1 + Fraction(1, 10**4)) + Fraction(1, 10**12)
    twice = Repeat(part=plan, count=2)
    assert delta(twice, Fraction(1)) >= max(
        delta(Sequence(parts=(one, two)), Fraction(1)) for one in branches for two in branches
    )


def test_the_redistricting_release_is_just_above_its_continuous_gaussian() -> None:
    """Just above the continuous Gaussian of the same rho."""
    found = epsilon(pl94(), "1e-10", REPLACE)
    assert Fraction("16.465155374836333") < found < Fraction("16.46516")


@pytest.mark.parametrize("count", [1, 10**3, 10**6, 10**9])
def test_many_repetitions_of_a_little_are_a_gaussian(count: int) -> None:
    """And as quick as few: n copies at variance n sigma²."""
    noise = Repeat(part=DiscreteGaussian(sigma_squared=Fraction(5 * count)), count=count)
    found = epsilon(noise, "1e-6")
    assert found >= Fraction("1.9945269006963384") * (1 - Fraction(1, 10**9))
    assert count == 1 or found <= Fraction("1.9945269006963384") * (1 + Fraction(1, 10 * count) + WITHIN)


@pytest.mark.parametrize("noise", ["1e-6", "1", "1e18"])
def test_no_size_of_figures_is_too_much(noise: str) -> None:
    figure = Fraction(noise)
    kinds: list[Mechanism] = [
        Geometric(scale=figure, sensitivity=3),
        DiscreteGaussian(sigma_squared=figure),
        DiscreteOsgt(sigma_squared=figure, m=figure / 5),
        Laplace(scale=figure),
        Gaussian(sigma_squared=figure),
        Osgt(sigma_squared=figure, m=figure / 7),
    ]
    for one in kinds:
        for two in (one, geometric("0.5")):
            plan = Sequence(parts=(Repeat(part=one, count=10**9), two))
            found = TightProfile.of(plan, ADD)
            for bound in (found and found.epsilon(Fraction(1, 10**9)), found and found.delta(Fraction(1))):
                assert not isinstance(bound, TightBound) or nats(bound.loss) >= 0


def test_a_changed_record_can_leave_one_part_and_enter_an_unlike_one() -> None:
    """The replacement is worse, at epsilon = 0, than twice either of the two one-sided changes."""
    none, small = Declaration(epsilon=Fraction(0), delta=Fraction(51, 2000)), Declaration(epsilon=Fraction(1, 10))
    one, two = (Declared(guarantee=each, add_remove=each, reference="") for each in (none, small))
    plan = Parallel(parts=(one, two), max_degree=1)
    lost, response = mp.mpf(51) / 2000, mp.tanh(mp.mpf(1) / 20)
    both = exactly(lost + (1 - lost) * response)
    assert delta(one, Fraction(0)) < delta(Repeat(part=two, count=2), Fraction(0)) < both
    assert delta(plan, Fraction(0), REPLACE) >= both


def test_groups_are_tight_where_that_is_proven() -> None:
    noise = Geometric(scale=Fraction(10))
    assert epsilon(Group(part=noise, size=5), "1e-6") == epsilon(replace(noise, sensitivity=5), "1e-6")
    pairs = Group(part=noise, size=2)
    assert epsilon(pairs, "1e-6", REPLACE) == epsilon(replace(noise, sensitivity=2), "1e-6", REPLACE)
    for unproven in (Group(part=noise, size=3), Group(part=Choice(parts=(noise, Laplace(scale=Fraction(9)))), size=2)):
        assert TightProfile.of(unproven, REPLACE) is None
        by = {one.via: one for one in guarantee(unproven, REPLACE).approximate}
        assert by["tight"].epsilon == min(by["rdp"].epsilon, by["pure"].epsilon)
        assert by["tight"].method in {"rdp", "pure"}


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("scale", ["0.7", "5"])
def test_a_group_in_one_cell_is_worse_than_in_several(scale: str, shift: int) -> None:
    """Groups rest on this: one cell moved by a+b, against one moved by a and one by b."""
    noise = Geometric(scale=Fraction(scale))
    apart = Sequence(parts=(noise, replace(noise, sensitivity=shift)))
    for at in (Fraction(0), Fraction(1, 10), Fraction(1, 2)):
        assert delta(apart, at) <= delta(replace(noise, sensitivity=1 + shift), at)


def test_gaussians_in_parallel_are_one_gaussian() -> None:
    """They are totally ordered, so that the largest rhos add up."""
    parts = tuple(Gaussian(sigma_squared=Fraction(1, 2 * rho)) for rho in (1, 2, 3))
    plan = Parallel(parts=parts, max_degree=2)
    assert epsilon(plan, "1e-6") == epsilon(Gaussian(sigma_squared=Fraction(1, 10)), "1e-6")
