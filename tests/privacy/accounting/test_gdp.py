"""The least mu of Gaussian differential privacy, against the best tests' own error rates in mpmath."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from service.privacy.accounting import gdp
from service.privacy.accounting.gdp import least_mu
from service.privacy.accounting.guarantee import PlanProfile
from service.privacy.mechanisms import (
    AboveThreshold,
    Declaration,
    Declared,
    DiscreteGaussian,
    DiscreteOsgt,
    Exponential,
    Gaussian,
    Geometric,
    Laplace,
    RandomizedResponse,
)
from service.privacy.plans import Choice, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from tests.privacy.reference import exactly, mp, oracle
from tests.privacy.tight import exact

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE


def quantile(p: Any) -> Any:
    """Phi^-1, by Newton's steps on the log, for p at most 1/2 or by symmetry."""
    if p > mp.mpf(1) / 2:
        return -quantile(1 - p)
    x = -mp.sqrt(-2 * mp.log(2 * p)) if p < mp.mpf("0.5") else mp.mpf(0)
    for _ in range(100):
        reached = mp.erfc(-x / mp.sqrt(2)) / 2
        step = mp.log(reached / p) * reached / mp.npdf(x)
        x -= step
        if abs(step) < mp.eps * 1000 * (1 + abs(x)):
            return x
    raise ArithmeticError


def of_test(right: Any, wrong: Any) -> Any:
    """The mu of Gaussian noise at which the best test has these true and false positives."""
    return quantile(right) - quantile(wrong)


def of_atoms(atoms: exact.Atoms, least: str = "1e-400") -> Any:
    """The least mu of a law given by its atoms: the largest of all likelihood-ratio tests that are rarely right."""
    right, wrong, best = mp.mpf(0), mp.mpf(0), mp.mpf(0)
    for loss in sorted(atoms, reverse=True):
        right, wrong = right + atoms[loss], wrong + atoms[loss] * mp.exp(-loss)
        if loss < -5 or right > 1 - mp.mpf(10) ** -20:
            break
        if wrong > mp.mpf(least):
            best = max(best, of_test(right, wrong))
    return best


def assert_just_above(found: Fraction | None, truth: Any, relative: float = 1e-6) -> None:
    assert found is not None
    assert exactly(truth) * (1 - Fraction(1, 10**30)) <= found <= exactly(truth) * (1 + Fraction(relative))


def gaussian(variance: str, shift: int = 1) -> exact.Atoms:
    return exact.noise(oracle.discrete_gaussian(variance), shift, nats=1200)


ATOMS: dict[str, tuple[Plan, Neighbouring, Callable[[], exact.Atoms]]] = {
    "geometric": (Geometric(scale=Fraction(2)), ADD, lambda: exact.noise(oracle.geometric("2"), 1)),
    "steps": (Geometric(scale=Fraction(3), sensitivity=4), ADD, lambda: exact.noise(oracle.geometric("3"), 4)),
    "three values": (RandomizedResponse(epsilon=Fraction(2), values=3), REPLACE, lambda: exact.response("2", 3)),
    "many values": (RandomizedResponse(epsilon=Fraction(1), values=60), REPLACE, lambda: exact.response("1", 60)),
    "five": (
        Repeat(part=Geometric(scale=Fraction(1)), count=5),
        ADD,
        lambda: exact.composed([exact.noise(oracle.geometric("1"), 1)] * 5),
    ),
    "narrow": (DiscreteGaussian(sigma_squared=Fraction(1, 4)), ADD, lambda: gaussian("1/4")),
    "one": (DiscreteGaussian(sigma_squared=Fraction(1)), ADD, lambda: gaussian("1")),
    "by three": (DiscreteGaussian(sigma_squared=Fraction(5), sensitivity=3), ADD, lambda: gaussian("5", 3)),
    "thirty": (DiscreteGaussian(sigma_squared=Fraction(30)), ADD, lambda: gaussian("30")),
    "both": (
        Sequence(parts=(Geometric(scale=Fraction(2)), DiscreteGaussian(sigma_squared=Fraction(2)))),
        ADD,
        lambda: exact.composed([exact.noise(oracle.geometric("2"), 1), gaussian("2")]),
    ),
    "offset": (
        DiscreteOsgt(sigma_squared=Fraction(4), m=Fraction(1, 2)),
        ADD,
        lambda: exact.noise(oracle.discrete_osgt("4", "1/2"), 1, nats=1200),
    ),
}


@pytest.mark.parametrize("name", ATOMS)
def test_mu_is_that_of_the_best_test(name: str) -> None:
    plan, neighbouring, atoms = ATOMS[name]
    with mp.workdps(60):
        assert_just_above(least_mu(plan, neighbouring), of_atoms(atoms()))


@pytest.mark.parametrize("epsilon", ["1e-6", "1", "5", "40", "700"])
def test_pure_privacy_alone_has_the_mu_of_two_valued_response(epsilon: str) -> None:
    plan = Declared(guarantee=Declaration(epsilon=Fraction(epsilon)), reference="a proof")
    with mp.workdps(60):
        e = oracle.number(epsilon)
        assert_just_above(least_mu(plan, ADD), -2 * quantile(1 / (1 + mp.exp(e))), 1e-9)


@pytest.mark.parametrize("scale", ["1/4", "1", "20"])
def test_laplace_noise_has_the_mu_of_its_median_or_its_edge(scale: str) -> None:
    """The best threshold lies between the centres; of the accused one, 1 - exp((x - s)/b)/2 is above it."""
    with mp.workdps(40):
        b = oracle.number(scale)
        places = [mp.mpf(1) / 2 + mp.mpf(k) / 400 for k in range(200)] + [1 - mp.mpf(10) ** -30]
        truth = max(of_test(1 - mp.exp((x - 1) / b) / 2, mp.exp(-x / b) / 2) for x in places)
        assert_just_above(least_mu(Laplace(scale=Fraction(scale)), ADD), truth)


@pytest.mark.parametrize(
    "plan",
    [
        Gaussian(sigma_squared=Fraction(4)),
        Repeat(part=Gaussian(sigma_squared=Fraction(36)), count=9),
        Declared(guarantee=Declaration(mu=Fraction(1, 2)), reference="a proof"),
        Choice(parts=(Gaussian(sigma_squared=Fraction(4)), Gaussian(sigma_squared=Fraction(5)))),
    ],
)
def test_gaussian_noise_has_its_own_mu(plan: Plan) -> None:
    found = least_mu(plan, ADD)
    assert found is not None
    assert Fraction(1, 2) <= found <= Fraction(1, 2) * (1 + Fraction(1, 10**15))


def test_noise_beside_gaussian_noise() -> None:
    """The truth is the largest over a fine grid: the loss's law is smooth, and mu flat at its maximum."""
    plan = Sequence(parts=(Geometric(scale=Fraction(1)), Gaussian(sigma_squared=Fraction(4))))
    with mp.workdps(30):
        atoms, rho = exact.noise(oracle.geometric("1"), 1), mp.mpf(1) / 8

        def of_threshold(e: Any) -> Any:
            scale = mp.sqrt(4 * rho)
            right = mp.fsum(p * mp.erfc((e - x - rho) / scale) for x, p in atoms.items()) / 2
            wrong = mp.fsum(p * mp.exp(-x) * mp.erfc((e - x + rho) / scale) for x, p in atoms.items()) / 2
            return of_test(right, wrong)

        truth = max(of_threshold(mp.mpf(k) / 200) for k in range(1000))
        assert_just_above(least_mu(plan, ADD), truth, 2e-6)


@pytest.mark.parametrize(
    ("plan", "relative"),
    [
        (DiscreteGaussian(sigma_squared=Fraction(10**4)), 4.3e-5),
        (DiscreteGaussian(sigma_squared=Fraction(10**6)), 1e-6),
        (Repeat(part=DiscreteGaussian(sigma_squared=Fraction(10**8)), count=10**6), 1e-6),
        (
            Sequence(parts=(DiscreteGaussian(sigma_squared=Fraction(10**7)), Gaussian(sigma_squared=Fraction(10**5)))),
            1e-6,
        ),
    ],
)
def test_wide_noise_is_nearly_gaussian(plan: Plan, relative: float) -> None:
    """The bound by smoothing is above the mu of Gaussian noise of the same rho by a known share."""
    profile, found = PlanProfile.of(plan, ADD), least_mu(plan, ADD)
    assert found is not None
    assert profile.losses.rho.nats is not None
    assert 0 <= float(found**2 / (2 * profile.losses.rho.nats)) - 1 <= 2 * relative + 1e-9


def test_a_discrete_gaussian_is_not_gdp_with_the_mu_of_its_rho() -> None:
    found = least_mu(DiscreteGaussian(sigma_squared=Fraction(1)), ADD)
    assert found is not None
    assert found > Fraction("1.0457")
    with mp.workdps(40):
        atoms = gaussian("1")
        assert max(exact.delta(atoms, k / 8) / of_gaussian(1, k / 8) for k in range(40)) > 1.1


def of_gaussian(mu: Any, e: Any) -> Any:
    m, e = mp.mpf(mu), mp.mpf(e)
    return (mp.erfc((e / m - m / 2) / mp.sqrt(2)) - mp.exp(e) * mp.erfc((e / m + m / 2) / mp.sqrt(2))) / 2


@pytest.mark.parametrize("rho", ["1/1000", "1/8", "2"])
def test_a_declared_rho_has_a_mu_that_all_its_deltas_keep(rho: str) -> None:
    plan = Declared(guarantee=Declaration(rho=Fraction(rho)), reference="a proof")
    found, profile = least_mu(plan, ADD), PlanProfile.of(plan, ADD)
    assert found is not None
    assert found**2 > 2 * Fraction(rho)
    with mp.workdps(60):
        mu = mp.mpf(found.numerator) / found.denominator
        for step in range(1, 40):
            e = Fraction(step * float(found) * 0.73)
            delta = profile.other_delta(e)
            assert exactly(of_gaussian(mu, mp.mpf(e.numerator) / e.denominator)) >= delta


@pytest.mark.parametrize("at", [4, 12, 40, 300])
@pytest.mark.parametrize(
    "plan",
    [DiscreteGaussian(sigma_squared=Fraction(3)), Declared(guarantee=Declaration(rho=Fraction(1)), reference="-")],
)
def test_a_tail_holds_from_its_place_on(plan: Plan, at: int) -> None:
    """The bounds themselves, evaluated at places further out; and that of smoothing against the truth."""
    profile = PlanProfile.of(plan, ADD)
    assert profile.losses.rho.nats is not None
    tails = gdp._Tails.of(profile, profile.losses.rho.nats)
    found = tails.certified(float(at), 0.0)
    if found is None:
        assert at == 4
        return
    with mp.workdps(80):
        rho, mu = (mp.mpf(one.numerator) / one.denominator for one in (tails.rho, found))
        for k in range(40):
            e = at * (1 + mp.mpf(k) ** 2 / 50)
            if tails.noise is None:
                bound = 2 * rho / (mp.e * (e - rho)) * mp.exp(-((e - rho) ** 2) / (4 * rho))
                assert bound <= of_gaussian(mu, e)
            elif e < 200:
                assert exact.delta(gaussian("3"), e) <= of_gaussian(mu, e)


NO_MU: list[tuple[Plan, Neighbouring]] = [
    (Declared(guarantee=Declaration(epsilon=Fraction(1), delta=Fraction(1, 10**9)), reference="-"), ADD),
    (Declared(guarantee=Declaration(mu=Fraction(1), delta=Fraction(1, 10**9)), reference="-"), ADD),
    (Declared(guarantee=Declaration(rdp=((Fraction(2), Fraction(1)),)), reference="-"), ADD),
]


@pytest.mark.parametrize(("plan", "neighbouring"), NO_MU)
def test_what_is_not_gaussian_private_has_no_mu(plan: Plan, neighbouring: Neighbouring) -> None:
    assert least_mu(plan, neighbouring) is None
    assert least_mu(Sequence(parts=(plan, Geometric(scale=Fraction(3)))), neighbouring) is None


def test_what_loses_nothing_has_mu_0() -> None:
    assert least_mu(Sequence(parts=()), ADD) == 0


CHOSEN = [
    Choice(parts=(Geometric(scale=Fraction(1)), DiscreteGaussian(sigma_squared=Fraction(5)))),
    Parallel(
        parts=(Geometric(scale=Fraction(1)), DiscreteGaussian(sigma_squared=Fraction(5)), Geometric(scale=Fraction(9))),
        max_degree=2,
    ),
]


@pytest.mark.parametrize("plan", CHOSEN)
def test_choices_are_no_better_than_each_branch(plan: Plan) -> None:
    found = least_mu(plan, ADD)
    with mp.workdps(60):
        atoms = exact.noise(oracle.geometric("1"), 1)
        if isinstance(plan, Parallel):
            atoms = exact.composed([atoms, gaussian("5")])
        assert_just_above(found, of_atoms(atoms), 1e-4)  # their profiles stand on a grid


@pytest.mark.parametrize("work", [0, 1 << 12, 1 << 16])
@pytest.mark.parametrize("name", ["five", "one", "both"])
def test_with_little_work_the_figure_is_only_larger(monkeypatch: pytest.MonkeyPatch, name: str, work: int) -> None:
    monkeypatch.setattr(gdp, "MOST_WORK", work)
    plan, neighbouring, atoms = ATOMS[name]
    found = least_mu(plan, neighbouring)
    with mp.workdps(60):
        assert found is None or found >= exactly(of_atoms(atoms()))


@pytest.mark.parametrize("size", ["1e-400", "1e-160", "1e-30", "1e30", "1e300", "1e400"])
def test_no_size_of_a_loss_breaks_it(size: str) -> None:
    loss = Fraction(size)
    for plan in (
        Exponential(epsilon=loss),
        Laplace(scale=1 / loss),
        Geometric(scale=1 / loss),
        DiscreteGaussian(sigma_squared=1 / loss),
        Gaussian(sigma_squared=1 / loss),
        Declared(guarantee=Declaration(epsilon=loss), reference="a test"),
        Declared(guarantee=Declaration(rho=loss), reference="a test"),
        AboveThreshold(threshold_scale=1 / loss, query_scale=1 / loss),
    ):
        found = least_mu(plan, Neighbouring.ADD_REMOVE)
        assert found is None or found > 0
