"""Pure differential privacy: epsilon, the largest privacy loss (seed 004, Lemma 1 composes it)."""

from fractions import Fraction

from service.privacy.loss import INFINITE, ZERO, Loss, largest, total
from service.privacy.mechanisms import Declared, Geometric, Laplace, Mechanism, RandomizedResponse
from service.privacy.outline import Foldable, Notion, fold
from service.privacy.plan import Neighbouring


def mechanism_epsilon(mechanism: Mechanism) -> Loss:
    """Pure epsilon (nats) of one cell moved by the sensitivity; exact, infinite for Gaussian noise."""
    match mechanism:
        case Geometric() | Laplace():
            s, scale = mechanism.sensitivity, mechanism.scale
            return Loss(Fraction(s.numerator * scale.denominator, s.denominator * scale.numerator))
        case RandomizedResponse(epsilon=epsilon):
            return Loss(epsilon)
        case Declared(guarantee=guarantee) if guarantee.epsilon is not None:
            return Loss(guarantee.epsilon)
        case _:
            return INFINITE


def mechanism_delta(mechanism: Mechanism) -> Loss:
    """The probability with which a declared guarantee does not hold; 0 for every other mechanism."""
    return Loss(mechanism.guarantee.delta) if isinstance(mechanism, Declared) else ZERO


_EPSILON = Notion(mechanism_epsilon, total, largest)
_DELTA = Notion(mechanism_delta, total, largest)


def plan_epsilon(plan: Foldable, neighbouring: Neighbouring) -> Loss:
    """Pure epsilon of a plan, in nats."""
    return fold(plan, neighbouring, _EPSILON)


def plan_delta(plan: Foldable, neighbouring: Neighbouring) -> Fraction:
    """The sum of the deltas that a plan's declared mechanisms spend, which can exceed 1."""
    return fold(plan, neighbouring, _DELTA).nats or Fraction(0)
