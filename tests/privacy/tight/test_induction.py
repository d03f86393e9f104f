"""Choices that are made one after another, and parts in which a record is, against all that an adversary can do."""

import math
import random
from fractions import Fraction
from typing import Any

import pytest

from service.privacy.mechanisms import (
    DiscreteGaussian,
    Gaussian,
    Geometric,
    Laplace,
    Mechanism,
    Osgt,
)
from service.privacy.plans import Choice, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from service.privacy.tight.induction import MOST_STATES, DividedPart, _in_order, worst_of_division
from service.privacy.tight.kernels import StepLaws
from service.privacy.tight.profiles import evaluate_sum
from service.privacy.tight.work_budget import CALL, NotTight, work_limit
from service.privacy.tight.worst_case import MOST_BRANCHES, Division, plan_sum
from tests.privacy.reference import mp, nats
from tests.privacy.tight import adversary

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE


def bell(rho: str) -> DiscreteGaussian:
    return DiscreteGaussian(sigma_squared=1 / (2 * Fraction(rho)))


def geometric(loss: str) -> Geometric:
    return Geometric(scale=1 / Fraction(loss))


def bound(plan: Plan, at: float, neighbouring: Neighbouring = ADD) -> float:
    """The service's delta."""
    profile = TightProfile.of(plan, neighbouring)
    assert profile is not None
    found = profile.delta(Fraction(at))
    assert found is not None
    return float(nats(found.loss))


def epsilon(plan: Plan, delta: str, neighbouring: Neighbouring = ADD) -> float:
    profile = TightProfile.of(plan, neighbouring)
    assert profile is not None
    found = profile.epsilon(Fraction(delta))
    assert found is not None
    return float(nats(found.loss))


def assert_least(found: float, target: float, moves: adversary.Moves, start: Any, unit: float) -> None:
    """An adversary reaches no more than ``target`` at the epsilon found, and more at one that is less by 1e-5."""
    assert adversary.delta(moves, start, found, unit) <= target * (1 + 1e-9)
    assert adversary.delta(moves, start, found * (1 - 1e-5), unit) > target


@pytest.mark.parametrize(
    ("count", "rho", "about"), [(2, "0.1", 3.023296), (10, "0.1", 10.73353), (10, "0.3", 14.39932)]
)
def test_choices_one_after_another(count: int, rho: str, about: float) -> None:
    """The worst law of one choice, composed, gave 3.0661, 10.86 and 14.95."""
    plan = Repeat(part=Choice(parts=(geometric("1"), bell(rho))), count=count)
    unit = 1 / 30
    losses = adversary.two_valued(30, unit), adversary.gaussian(0.5 / float(rho), unit)
    found = epsilon(plan, "1e-6")
    assert found == pytest.approx(about, abs=1e-5)
    assert_least(found, 1e-6, adversary.turns(losses), count, unit)


def test_a_changed_record_leaves_one_branch_and_enters_another() -> None:
    """The second branch is picked after the outcome of the first."""
    plan = Choice(parts=(bell("0.1"), Sequence(parts=(bell("0.01"), bell("0.09")))))
    one = adversary.gaussian(5, 0.01)
    two = adversary.in_sequence(adversary.gaussian(50, 0.01), adversary.gaussian(50 / 9, 0.01))
    found = epsilon(plan, "1e-6", REPLACE)
    assert found == pytest.approx(2.934059, abs=1e-6)
    assert_least(found, 1e-6, adversary.turns([one, two]), 2, 0.01)


def picks(parts: list[tuple[adversary.Loss, int]], places: int) -> tuple[adversary.Moves, Any]:
    """A record in so many of some parts."""

    def moves(left: tuple[int, tuple[int, ...]]) -> list[tuple[adversary.Loss, Any]]:
        more, counts = left
        if not more:
            return []
        return [
            (parts[k][0], (more - 1, (*counts[:k], count - 1, *counts[k + 1 :])))
            for k, count in enumerate(counts)
            if count
        ]

    return moves, (places, tuple(count for _, count in parts))


def test_a_record_is_in_some_of_unlike_parts() -> None:
    """The worst law of the parts, composed, gave 7.81 by way of another analysis."""
    plan = Parallel(parts=(bell("1"), bell("0.01"), bell("0.01")), max_degree=2)
    moves, start = picks([(adversary.gaussian(0.5, 0.01), 1), (adversary.gaussian(50, 0.01), 2)], 2)
    found = epsilon(plan, "1e-6")
    assert found == pytest.approx(7.135759, abs=1e-5)
    assert_least(found, 1e-6, moves, start, 0.01)


def replaced(parts: list[tuple[adversary.Loss, int]], places: int) -> tuple[adversary.Moves, Any]:
    """A record that is removed from so many of some parts, and added to as many; in both cases twice the loss."""

    def moves(left: tuple[int, int, tuple[int, ...]]) -> list[tuple[adversary.Loss, Any]]:
        removed, added, counts = left
        found = []
        for k, count in enumerate(counts):
            rest = (*counts[:k], count - 1, *counts[k + 1 :])
            if count and removed and added:
                found.append((adversary.in_sequence(parts[k][0], parts[k][0]), (removed - 1, added - 1, rest)))
            if count and removed:
                found.append((parts[k][0], (removed - 1, added, rest)))
            if count and added:
                found.append((parts[k][0], (removed, added - 1, rest)))
        return found

    return moves, (places, places, tuple(count for _, count in parts))


def test_a_changed_record_leaves_some_of_unlike_parts_and_enters_others() -> None:
    plan = Parallel(parts=(bell("0.5"), bell("0.01"), bell("0.01"), geometric("0.2")), max_degree=2)
    losses = [(adversary.gaussian(1, 0.01), 1), (adversary.gaussian(50, 0.01), 2), (adversary.two_valued(20, 0.01), 1)]
    moves, start = replaced(losses, 2)
    for at in (1.0, 4.0):
        truth = adversary.delta(moves, start, at, 0.01)
        assert truth * (1 - 1e-11) <= bound(plan, at, REPLACE) <= truth * (1 + 1e-5)


def test_of_parts_that_are_ordered_the_largest_add_up() -> None:
    plan = Parallel(parts=tuple(map(geometric, ("1", "0.5", "0.25", "0.25"))), max_degree=3)
    largest = Sequence(parts=tuple(map(geometric, ("1", "0.5", "0.25"))))
    assert bound(plan, 0.3) == bound(largest, 0.3)


@pytest.mark.parametrize("seed", range(40))
def test_no_adversary_reaches_more_than_the_bound(seed: int) -> None:
    """Random branches on one lattice, at random epsilons: never below the truth, and within a ten-thousandth of it."""
    dice = random.Random(seed)
    unit = dice.choice([0.05, 0.1, 0.2])
    branches: list[Mechanism] = []
    losses: list[adversary.Loss] = []
    for _ in range(dice.randint(2, 3)):
        steps = dice.randint(1, 9)
        if dice.random() < 0.5:
            branches.append(Geometric(scale=1 / (Fraction(str(unit)) * steps)))
            losses.append(adversary.two_valued(steps, unit))
        else:  # losses (1 - 2x)/2v are odd multiples of 1/2v
            branches.append(DiscreteGaussian(sigma_squared=1 / (2 * steps * Fraction(str(unit)))))
            losses.append(adversary.gaussian(1 / (2 * steps * unit), unit))
    if dice.random() < 0.5:
        count = dice.randint(2, 4)
        plan: Plan = Repeat(part=Choice(parts=tuple(branches)), count=count)
        moves, start = adversary.turns(losses), count
    else:
        counts, places = [dice.randint(1, 2) for _ in branches], dice.randint(1, 3)
        parts = [branch for branch, count in zip(branches, counts, strict=True) for _ in range(count)]
        plan = Parallel(parts=tuple(parts), max_degree=places)
        moves, start = picks(list(zip(losses, counts, strict=True)), places)
    for _ in range(3):
        at = dice.uniform(0.02, 4)
        truth = adversary.delta(moves, start, at, unit)
        assert truth * (1 - 1e-11) - 1e-15 <= bound(plan, at) <= truth * (1 + 1e-4) + 1e-14


@pytest.mark.parametrize(
    "branches",
    [
        (Laplace(scale=Fraction(1)), bell("0.3")),
        (Gaussian(sigma_squared=Fraction(2)), geometric("1.5")),
        (Osgt(sigma_squared=Fraction(3), m=Fraction(1)), Laplace(scale=Fraction(2)), bell("0.1")),
    ],
)
@pytest.mark.parametrize("count", [2, 5])
def test_noise_with_a_density_is_bounded(branches: tuple[Plan, ...], count: int) -> None:
    """At least every fixed combination, and at most the worst law of one choice, composed."""
    plan = Repeat(part=Choice(parts=branches), count=count)
    for at in (0.3, 2.0):
        found = bound(plan, at)
        for k in range(count + 1):
            fixed = (Repeat(part=branches[0], count=max(k, 1)), Repeat(part=branches[-1], count=max(count - k, 1)))
            kept = fixed if 0 < k < count else (Repeat(part=branches[-1 if k == 0 else 0], count=count),)
            assert found >= bound(Sequence(parts=kept), at) * (1 - 1e-6)


def test_turns_that_are_too_many_are_taken_together() -> None:
    """The bound falls from that of the worst law alone, and stays above every fixed branch."""
    branches = (geometric("0.1"), bell("0.0012"))
    plan = Repeat(part=Choice(parts=branches), count=1000)
    found = epsilon(plan, "1e-6")
    assert max(epsilon(Repeat(part=one, count=1000), "1e-6") for one in branches) <= found
    for chunk in (300, 10**6):
        assert epsilon(Repeat(part=Choice(parts=branches), count=chunk), "1e-6") > 0


def test_unlike_choices_may_be_interleaved() -> None:
    """The adversary takes the steps of two kinds of choices in any order."""
    first, second = (geometric("1"), bell("0.1")), (geometric("0.6"), bell("0.2"))
    plan = Sequence(parts=(Repeat(part=Choice(parts=first), count=2), Choice(parts=second)))
    unit = 0.1
    laws = [
        (adversary.two_valued(10, unit), adversary.gaussian(5, unit)),
        (adversary.two_valued(6, unit), adversary.gaussian(2.5, unit)),
    ]

    def moves(left: tuple[int, int]) -> list[tuple[adversary.Loss, Any]]:
        return [
            (law, (left[0] - (k == 0), left[1] - (k == 1)))
            for k, branches in enumerate(laws)
            if left[k]
            for law in branches
        ]

    for at in (0.5, 1.5, 3.0):
        truth = adversary.delta(moves, (2, 1), at, unit)
        assert truth * (1 - 1e-11) <= bound(plan, at) <= truth * 1.1


def test_losses_that_differ_by_their_rounding_make_no_loss() -> None:
    """Sums of tenths in different orders: the slope of the profile between two such losses is rounding only."""
    small = Sequence(parts=(geometric("0.3"), geometric("0.1")))
    large = Sequence(parts=(geometric("0.6"), geometric("0.3"), bell("0.1")))
    plan = Sequence(parts=(Choice(parts=(small, large)), bell("0.6")))
    fixed = Sequence(parts=(large, bell("0.6")))
    for at in (0.1, 1.0, 2.7, 5.0):
        assert bound(fixed, at) * (1 - 1e-9) <= bound(plan, at) <= bound(fixed, at) * (1 + 1e-6)


@pytest.mark.parametrize("delta", ["0.03", "1e-2", "3e-3", "1e-3"])
def test_the_largest_losses_of_a_divided_input_are_reached(delta: str) -> None:
    """A record is always in both parts of loss 3.37: delta just below 8 * 3.37 is p^8 (1 - e^(epsilon - 26.96))."""
    parts = tuple(map(geometric, ("1.00000000001", "3.37", "3.37")))
    found = epsilon(Repeat(part=Parallel(parts=parts, max_degree=2), count=2), delta, REPLACE)
    with mp.workdps(40):
        top, target = mp.mpf("26.96"), mp.mpf(delta)
        truth = top + mp.log1p(-target * (1 + mp.exp(-mp.mpf("3.37"))) ** 8)
        assert truth <= found <= truth + mp.mpf("1e-8")


@pytest.mark.parametrize("k", [128, 145, 150, 170, 190])
def test_rare_large_losses_do_not_vanish(k: int) -> None:
    """One branch alone reaches P(x <= -1) P(the largest geometric loss) (1 - e^(epsilon - 597)), down to e^-k."""
    top, largest = 597, Fraction(597 - 3 * k)
    branch = Sequence(parts=(geometric(str(largest)), DiscreteGaussian(sigma_squared=Fraction(1, 2 * k))))
    plan = Choice(parts=(branch, DiscreteGaussian(sigma_squared=Fraction(1, 10))))
    with mp.workdps(30):
        truth = mp.exp(-k) / (1 + 2 * mp.exp(-k)) / (1 + mp.exp(-float(largest))) * -mp.expm1(-20)
    assert truth * (1 - mp.mpf("1e-12")) <= bound(plan, top - 20) <= truth * (1 + 1e-6)
    assert epsilon(plan, f"{float(truth / 2)!r}") == pytest.approx(top - math.log(2), abs=1e-6)


def test_nothing_is_searched_where_underflow_would_count(monkeypatch: pytest.MonkeyPatch) -> None:
    branches = geometric("1"), Sequence(parts=(geometric("0.5"), geometric("0.7")))
    profile = TightProfile.of(Choice(parts=branches), ADD)
    assert profile is not None
    monkeypatch.setattr("service.privacy.tight.least_epsilon", None)
    found = profile.epsilon(Fraction(1, 10**299))
    assert found is not None
    assert found.method == "pure"


def test_states_are_counted_no_further_than_needed() -> None:
    seen = 0

    def moves(state: int) -> Any:
        nonlocal seen
        for k in range(10**9):
            seen += 1
            yield 0, 10**9 * state + k

    assert _in_order(moves, 0) is None
    assert seen <= MOST_STATES + 1


def test_laws_are_evaluated_only_after_the_states_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [evaluate_sum(plan_sum(bell(f"0.{k}"), ADD)) for k in range(10, 74)]
    monkeypatch.setattr(StepLaws, "of", None)
    assert worst_of_division([DividedPart(one, one, 1) for one in losses], 2) is None


def test_the_laws_of_a_step_count_as_work() -> None:
    one = evaluate_sum(plan_sum(geometric("1"), ADD))
    with work_limit(CALL - 1), pytest.raises(NotTight):
        StepLaws.of(one)


def test_many_kinds_of_parts_are_not_told_apart() -> None:
    """Of parts that are ordered only the worst stays; of others there may be only so many."""
    ordered = Parallel(parts=tuple(geometric(f"1.{k}") for k in range(100, 100 + 2 * MOST_BRANCHES)), max_degree=2)
    found = plan_sum(ordered, REPLACE)
    assert not any(isinstance(law, Division) for law, _ in found.items)
    assert bound(ordered, 4.0, REPLACE) > 0
    unlike = Parallel(parts=tuple(bell(f"0.{k}") for k in range(100, 101 + MOST_BRANCHES)), max_degree=2)
    with pytest.raises(NotTight):
        plan_sum(unlike, REPLACE)
