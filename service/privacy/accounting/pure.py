"""Pure differential privacy: epsilon, the largest privacy loss (Haney et al. 2021, Lemma 1 composes it)."""

from fractions import Fraction

from service.privacy.numerics.loss import Loss, largest_losses, total_loss
from service.privacy.plans.composition_program import Foldable, Notion, fold
from service.privacy.plans.walking import Neighbouring

_EPSILON = Notion(lambda mechanism: mechanism.pure_epsilon(), total_loss, largest_losses)
_DELTA = Notion(lambda mechanism: mechanism.delta(), total_loss, largest_losses)


def plan_epsilon(plan: Foldable, neighbouring: Neighbouring) -> Loss:
    """Return an upper bound on the pure epsilon of a plan, in nats, under the neighbouring relation.

    Raises:
        ValueError: a mechanism has no loss under this relation (``Mechanism.moved``).
    """
    return fold(plan, neighbouring, _EPSILON)


def plan_delta(plan: Foldable, neighbouring: Neighbouring) -> Fraction:
    """Return the sum of the deltas that a plan's declared mechanisms spend, which can exceed 1.

    Raises:
        ValueError: a mechanism has no loss under this relation (``Mechanism.moved``).
    """
    return fold(plan, neighbouring, _DELTA).nats or Fraction(0)
