"""Zero-concentrated differential privacy: rho, the slope that bounds every Rényi divergence."""

from fractions import Fraction
from functools import lru_cache

from service.privacy.accounting.batch_costs import BatchCosts, LinearCosts
from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.loss import Loss, largest_losses, total_loss
from service.privacy.plans.composition_program import Foldable, Notion, fold
from service.privacy.plans.walking import Neighbouring


@lru_cache(maxsize=65536)
def mechanism_rho(mechanism: Mechanism) -> Loss:
    """Return the zCDP loss (nats) of one cell moved by the sensitivity; irrational ones are rounded up from balls."""
    return mechanism.rho()


def plan_rho(plan: Foldable, neighbouring: Neighbouring) -> Loss:
    """Return an upper bound on the zCDP rho of a plan (nats), to 96 bits, under the neighbouring relation.

    Ledgers add these figures up. Source: Haney et al. 2021, Lemma 2.

    Raises:
        ValueError: a mechanism has no loss under this relation (``Mechanism.moved``).
    """
    return fold(plan, neighbouring, Notion(mechanism_rho, total_loss, largest_losses))


def certified_rho(plan: LinearCosts) -> Loss:
    """Return an upper bound on a plan's rho (nats), less than 1e-11 of itself above it, for thousands of mechanisms.

    Args:
        plan: its costs, split into those of mechanisms with a rational rho and the others.
    """
    curves = [mechanism.rho_curve() for mechanism in plan.plan.mechanisms]
    costs = BatchCosts(plan, curves, lambda mechanism, _: mechanism_rho(mechanism), orders=False)
    return costs.bounds([Fraction(1)])[0]
