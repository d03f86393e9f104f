"""The bound on what an analysis may take: how it counts, and that what is beyond it falls back soundly."""

from fractions import Fraction

import pytest

from service.privacy import tight
from service.privacy.accounting.guarantee import guarantee
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Laplace, Mechanism, Osgt
from service.privacy.plans import Choice, Plan, Sequence
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from service.privacy.tight.work_budget import NotTight, attempt_budget, spend, work_limit


def test_work_in_an_inner_block_counts_in_the_outer_one() -> None:
    with work_limit(8):
        with work_limit(5):
            spend(5)
            with pytest.raises(NotTight):
                spend(1)
        assert attempt_budget() == 3 * 7 / 8
        with work_limit(100), pytest.raises(NotTight):
            spend(4)
        spend(3)
    spend(1e300)  # nothing is limited outside


def test_a_refusal_within_leaves_what_was_not_taken() -> None:
    with work_limit(8):
        with pytest.raises(NotTight), work_limit(4):
            spend(5)
        spend(8)


@pytest.fixture
def less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a quarter of what the service allows, for plans that take all of it."""
    for name in ("MOST_WORK", "MOST_TOGETHER"):
        monkeypatch.setattr(tight, name, getattr(tight, name) / 4)


@pytest.fixture
def metered(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """All that analyses spend, but for what they are refused."""
    spent: list[float] = []

    def counted(numbers: float) -> None:
        spend(numbers)
        spent.append(numbers)

    for module in ("contour", "noise", "atoms", "profiles", "kernels", "induction"):
        monkeypatch.setattr(f"service.privacy.tight.{module}.spend", counted)
    return spent


def laplace(k: int) -> Mechanism:
    return Laplace(scale=Fraction(1000 + k, 500))


def gaussian(k: int) -> Mechanism:
    return DiscreteGaussian(sigma_squared=Fraction(1000 + k, 500))


def branches(count: int) -> Plan:
    """Composites, each with densities: their profiles have to be evaluated point by point."""
    return Choice(parts=tuple(Sequence(parts=(laplace(k), gaussian(3 * k))) for k in range(count)))


_LONG: dict[str, Plan] = {
    "unlike branches": branches(60),
    "unlike branches under one another": Choice(parts=(Sequence(parts=(branches(30), gaussian(7))), laplace(9))),
    "unlike choices": Sequence(parts=tuple(Choice(parts=(laplace(k), gaussian(3 * k))) for k in range(100))),
    "unlike offset tails on the integers": Sequence(
        parts=tuple(DiscreteOsgt(sigma_squared=Fraction(10**6 + k), m=Fraction(3)) for k in range(100))
    ),
    "unlike offset tails": Choice(parts=tuple(Osgt(sigma_squared=40 + Fraction(k), m=Fraction(k)) for k in range(60))),
}


@pytest.mark.parametrize("name", _LONG)
def test_laws_and_a_figure_take_no_more_than_is_allowed(name: str, less: None, metered: list[float]) -> None:
    profile = TightProfile.of(_LONG[name], Neighbouring.REPLACE_ONE)
    if profile is not None:
        profile.epsilon(Fraction(1, 10**10))
    assert tight.MOST_WORK / 8 < sum(metered) <= 2 * tight.MOST_WORK


def test_another_analysis_is_named() -> None:
    whole = guarantee(branches(65), Neighbouring.REPLACE_ONE)
    (by_tight,) = (statement for statement in whole.approximate if statement.via == "tight")
    (by_rdp,) = (statement for statement in whole.approximate if statement.via == "rdp")
    assert (by_tight.method, by_tight.epsilon) == ("rdp", by_rdp.epsilon)


def test_many_deltas_share_the_work_and_each_holds(less: None, metered: list[float]) -> None:
    plan = Sequence(parts=tuple(gaussian(3 * k) for k in range(300)))
    deltas = [Fraction(1, 10**k) for k in range(1, 101)]
    found = [epsilon(TightProfile.of(plan, Neighbouring.ADD_REMOVE, len(deltas)), delta) for delta in deltas]
    assert sum(metered) <= tight.MOST_TOGETHER
    for delta, together in list(zip(deltas, found, strict=True))[::33]:
        alone = epsilon(TightProfile.of(plan, Neighbouring.ADD_REMOVE), delta)
        assert alone * (1 - Fraction(1, 10**9)) <= together <= alone * (1 + Fraction(1, 10**4))


def epsilon(profile: TightProfile | None, delta: Fraction) -> Fraction:
    figure = None if profile is None else profile.epsilon(delta)
    assert figure is not None
    assert figure.loss.nats is not None
    return figure.loss.nats
