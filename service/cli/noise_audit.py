"""Self-audit: certified lower bounds on the loss of the service's own noise, beside the claimed upper bounds.

A bound above its claim refutes the claim and shows a bug of the sampler or of the accountant. Noise is tested against
its own shift. A mechanism that does more than add noise is tested by runs on two neighbouring inputs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from service.empirical.bounds import (
    BoundMethod,
    bound_from_outputs,
    bound_from_residuals,
    delta_at_least,
    epsilon_at_least,
    pure_epsilon_of_shift,
)
from service.noise import Keystream, NoiseLaw, add_noise, sample
from service.privacy.accounting.guarantee import deltas_at, guarantee
from service.privacy.accounting.pure import plan_epsilon
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Geometric, Mechanism
from service.privacy.numerics.loss import Loss, least_loss
from service.privacy.numerics.numbers import double_up
from service.privacy.plans import Plan
from service.privacy.plans.walking import Neighbouring

RISK = 1e-7  # risk of one test: a false alarm in one of about 45,000 audits

_DELTAS = (Fraction(1, 1000), Fraction(1, 100), Fraction(1, 10))
_EPSILONS = (Fraction(0), Fraction(1, 2))
_WIDE = Fraction(90_000)

Runs = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class Subject:
    """A mechanism under audit.

    Attributes:
        name: the mechanism and its parameters, for the report.
        plan: the plan by which the service accounts for it, under ``add_remove``.
        draw: returns so many residuals, or outputs of so many runs on each of two neighbouring inputs.
        shift: the distance by which one record moves a residual.
    """

    name: str
    plan: Plan
    draw: Callable[[int], NDArray[np.int64] | Runs]
    shift: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim and the bound that tests it; both in nats, or probabilities.

    Attributes:
        subject: the name of the subject.
        statement: the claimed figure, as in ``epsilon at delta 0.01``.
        claim: the service's upper bound.
        bound: the certified lower bound.
    """

    subject: str
    statement: str
    claim: float
    bound: float

    @property
    def violated(self) -> bool:
        """True where the bound refutes the claim."""
        return self.bound > self.claim


def audit(subjects: Sequence[Subject], size: int, generator: np.random.Generator) -> Iterator[Finding]:
    """Test every claim about every subject.

    Args:
        subjects: the subjects.
        size: the number of values that are drawn for each subject.
        generator: splits each sample into a part that chooses an event and a part that tests it.

    Returns:
        The findings, one for each claim.
    """
    for subject in subjects:
        drawn = subject.draw(size)
        for statement, claim, question in _claims(subject.plan, isinstance(drawn, tuple)):
            if isinstance(drawn, tuple):
                bound = bound_from_outputs(*drawn, question, RISK, generator)
            else:
                bound = bound_from_residuals(drawn.astype(np.float64), subject.shift, question, RISK, generator)
            yield Finding(subject.name, statement, claim, bound.value)


def _claims(plan: Plan, of_runs: bool) -> Iterator[tuple[str, float, BoundMethod]]:
    relation = Neighbouring.ADD_REMOVE
    pure = plan_epsilon(plan, relation)
    if pure.nats is not None:
        yield "epsilon", _bound_value(pure), epsilon_at_least() if of_runs else pure_epsilon_of_shift
    # Deltas and epsilons are rounded up: a bound against a larger one is weaker, and so stays valid.
    for delta in _DELTAS:
        claimed = least_loss(one.epsilon for one in guarantee(plan, relation, deltas=[delta]).approximate)
        yield f"epsilon at delta {float(delta)}", _bound_value(claimed), epsilon_at_least(double_up(delta))
    for epsilon in _EPSILONS:
        claimed = least_loss(one.delta for one in deltas_at(plan, relation, epsilon))
        yield f"delta at epsilon {float(epsilon)}", _bound_value(claimed), delta_at_least(double_up(epsilon))


def _bound_value(loss: Loss) -> float:
    return np.inf if loss.nats is None else double_up(loss.nats)


def own_noise(new_keystream: Callable[[], Keystream] = Keystream) -> list[Subject]:
    """Return the service's samplers as subjects: narrow and wide laws, against shifts by one and by about their width.

    Args:
        new_keystream: makes the keystream of a drawing call; a test passes fixed ones.
    """
    subjects = []
    for scale in (Fraction(1, 4), Fraction(1), Fraction("2.336"), Fraction(17), Fraction(300), Fraction(100_000)):
        for shift in (1, max(2, round(scale))):
            mechanism = Geometric(scale=scale, sensitivity=shift)
            subjects.append(
                _of_law(f"geometric, scale {float(scale):g}", mechanism, NoiseLaw(scale=scale), shift, new_keystream)
            )
    for variance in map(Fraction, ("0.3", "1.21", "9.375", "100", "90000", "10000000000")):
        for shift in (1, max(2, round(float(variance) ** 0.5))):
            gaussian = DiscreteGaussian(sigma_squared=variance, sensitivity=shift)
            name = f"discrete Gaussian, variance {float(variance):g}"
            subjects.append(_of_law(name, gaussian, NoiseLaw(sigma_squared=variance), shift, new_keystream))
    for variance, m, shift in (
        (Fraction(4), Fraction(1, 2), 1),
        (Fraction(40), Fraction(3), 4),
        (_WIDE, Fraction(200), 250),
    ):
        osgt = DiscreteOsgt(sigma_squared=variance, m=m, sensitivity=shift)
        law = NoiseLaw(sigma_squared=variance, scale=variance / m)
        subjects.append(
            _of_law(f"discrete OSGT, {float(variance):g} and {float(m):g}", osgt, law, shift, new_keystream)
        )
    return [*subjects, _noisy_counts(Fraction(2), new_keystream)]


def _of_law(
    name: str, mechanism: Mechanism, law: NoiseLaw, shift: int, new_keystream: Callable[[], Keystream]
) -> Subject:
    return Subject(f"{name}, shift {shift}", mechanism, lambda size: sample(law, size, new_keystream()), shift)


def _noisy_counts(scale: Fraction, new_keystream: Callable[[], Keystream]) -> Subject:
    """Return a subject of noisy counts with one record more or less, tested by runs, as any mechanism can be."""

    def draw(size: int) -> Runs:
        less, more = (add_noise([count] * size, NoiseLaw(scale=scale), new_keystream()) for count in (41, 42))
        return less.astype(np.float64), more.astype(np.float64)

    return Subject(f"noisy counts, geometric, scale {float(scale):g}", Geometric(scale=scale), draw)


def report(findings: Iterator[Finding]) -> Iterator[tuple[str, bool]]:
    """Yield lines for a terminal, each with True where it reports a violation."""
    yield f"{'':<48}{'claim':<26}{'at most':>12}{'at least':>12}", False
    for finding in findings:
        # Rounded down, as the bound itself: a bound that is shown above its claim is above it.
        claim, bound = finding.claim, np.floor(finding.bound * 1e8) / 1e8
        mark = "  VIOLATED" if finding.violated else ""
        yield f"{finding.subject:<48}{finding.statement:<26}{claim:>12.8f}{bound:>12.8f}{mark}", finding.violated
