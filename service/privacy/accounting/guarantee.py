"""The whole guarantee of a plan, in every notion, at given orders and deltas."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from service.privacy.accounting.conversion import (
    BoundAtOrder,
    pure_to_delta,
    rdp_to_delta,
    rdp_to_epsilon,
    rho_to_delta_analytic,
    rho_to_epsilon_analytic,
)
from service.privacy.accounting.pure import plan_delta, plan_epsilon
from service.privacy.accounting.renyi import RenyiCurve, declared_orders
from service.privacy.accounting.zcdp import certified_rho
from service.privacy.numerics.arithmetic import Doubles, double
from service.privacy.numerics.loss import INFINITE, Loss, least_loss
from service.privacy.plans.composition_program import build_program
from service.privacy.plans.condensed import Condensed
from service.privacy.plans.walking import Neighbouring, Priced, condense
from service.privacy.tight import TightBound, TightProfile

USUAL_ORDERS = tuple(
    Fraction(order) for order in ("1.25", "1.5", "2", "3", "4", "5", "8", "16", "32", "64", "256", "1024")
)
USUAL_DELTA = Fraction(1, 10**10)


@dataclass(frozen=True, slots=True)
class ApproximateStatement:
    """One (epsilon, delta) statement, with the analysis that gave it.

    Attributes:
        delta: the requested one, which includes the deltas that mechanisms declare.
        epsilon: nats, an upper bound.
        via: ``zcdp``, ``rdp``, ``pure``, ``analytic`` or ``tight``.
        alpha: the order that gave it; None if it needs no order.
        adaptive: whether it holds if later mechanisms are chosen after seeing earlier outputs.
        method: for ``tight``, its method of computation, or another analysis whose figure is not larger; None for
            others.
    """

    delta: Fraction
    epsilon: Loss
    via: str
    alpha: Fraction | None
    adaptive: bool
    method: str | None = None


@dataclass(frozen=True, slots=True)
class DeltaStatement:
    """The delta that one analysis shows at an epsilon; ``method`` as in ``ApproximateStatement``."""

    delta: Loss
    via: str
    method: str | None = None


@dataclass(frozen=True, slots=True)
class BestStatements:
    """The least epsilon at one delta, among the adaptive statements and among all."""

    delta: Fraction
    adaptive: ApproximateStatement | None
    fixed: ApproximateStatement | None


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Upper bounds on what a plan loses; losses in nats."""

    epsilon: Loss
    rho: Loss
    rdp: tuple[tuple[Fraction, Loss], ...]
    delta: Fraction
    approximate: tuple[ApproximateStatement, ...]
    best: tuple[BestStatements, ...]


def guarantee(
    plan: Priced,
    neighbouring: Neighbouring,
    *,
    deltas: Sequence[Fraction] = (USUAL_DELTA,),
    orders: Sequence[Fraction] = USUAL_ORDERS,
    adaptive: bool = True,
    tight: bool = True,
) -> Guarantee:
    """Return upper bounds on a plan's loss, in every requested notion.

    Args:
        plan: the release, or all releases.
        neighbouring: the relation under which the figures hold.
        deltas: each strictly between 0 and 1.
        orders: each above 1; for the ``rdp`` figures only, conversions search all orders.
        adaptive: false if the plan is a ledger's history: figures converted from what turned out to be spent are an
            odometer reading, not a guarantee under adaptive choice (Rogers et al. 2016).
        tight: whether to add the tight statement, which is not adaptive.

    Raises:
        ValueError: a mechanism has no loss under this relation (``Mechanism.moved``).
    """
    condensed = condense(plan)
    losses = PlanLosses.of(condensed, neighbouring)
    profile = TightProfile.of(condensed, neighbouring, len(deltas)) if deltas and tight else None
    statements = [statement for delta in deltas for statement in _at_delta(losses, profile, delta, adaptive)]
    approximate = [statement for statement in statements if tight or statement.via != "tight"]
    return Guarantee(
        epsilon=losses.epsilon,
        rho=losses.rho,
        rdp=tuple(zip(orders, losses.curve.taus(orders), strict=True)),
        delta=losses.delta,
        approximate=tuple(approximate),
        best=tuple(_best_statements(delta, approximate) for delta in deltas),
    )


@dataclass(frozen=True, slots=True)
class PlanLosses:
    """The losses of a plan from which every conversion starts.

    Attributes:
        epsilon: its pure loss.
        rho: its zCDP loss.
        delta: the sum of what its mechanisms declare.
        curve: its Rényi curve.
        orders: those at which the curve may have a kink.
    """

    epsilon: Loss
    rho: Loss
    delta: Fraction
    curve: RenyiCurve
    orders: list[Fraction]

    @classmethod
    def of(cls, plan: Condensed, neighbouring: Neighbouring) -> "PlanLosses":
        program = build_program(plan, neighbouring)
        curve = RenyiCurve(program)
        return cls(
            plan_epsilon(program, neighbouring),
            certified_rho(curve.linear_at_integers),
            plan_delta(program, neighbouring),
            curve,
            declared_orders(program),
        )

    def tau(self, alpha: Fraction) -> Loss:
        (tau,) = self.curve.taus([alpha])
        return tau

    def near(self, alpha: Fraction | None) -> Fraction | None:
        """Return an order to search from, if the curve is known to be convex; else None."""
        return alpha if self.curve.is_convex else None


def _at_delta(
    losses: PlanLosses, profile: TightProfile | None, delta: Fraction, adaptive: bool
) -> Iterator[ApproximateStatement]:
    """Yield the statements of all analyses that apply at one delta; declared deltas are subtracted first."""
    undeclared_delta, rho, pure = delta - losses.delta, losses.rho.nats, losses.epsilon
    by_zcdp = by_rdp = BoundAtOrder(INFINITE, None)
    if undeclared_delta > 0 and rho is not None:
        by_zcdp = rdp_to_epsilon(lambda alpha: Loss(rho * alpha), _linear_curve(rho), undeclared_delta, pure)
        yield ApproximateStatement(delta, by_zcdp.loss, "zcdp", by_zcdp.alpha, adaptive)
    if undeclared_delta > 0:
        by_rdp = by_zcdp
        if not losses.curve.is_linear:
            near = losses.near(by_zcdp.alpha)
            by_curve = rdp_to_epsilon(losses.tau, losses.curve.rough, undeclared_delta, pure, losses.orders, near)
            by_rdp = min(by_curve, by_zcdp, key=lambda one: one.loss)  # rho*alpha is a Rényi curve too
        if by_rdp.loss.nats is not None:
            yield ApproximateStatement(delta, by_rdp.loss, "rdp", by_rdp.alpha, adaptive)
    if undeclared_delta >= 0 and pure.nats is not None:
        yield ApproximateStatement(delta, pure, "pure", None, adaptive)
    if undeclared_delta > 0 and rho is not None:
        yield ApproximateStatement(
            delta, least_loss([rho_to_epsilon_analytic(rho, undeclared_delta), pure]), "analytic", None, adaptive
        )
    others = [(pure if undeclared_delta >= 0 else INFINITE, "pure"), (by_rdp.loss, "rdp"), (by_zcdp.loss, "zcdp")]
    loss, method = _least_known(None if profile is None else profile.epsilon(delta), others)
    if loss.nats is not None:
        yield ApproximateStatement(delta, loss, "tight", None, adaptive=False, method=method)


def _least_known(tight: TightBound | None, others: Iterable[tuple[Loss, str]]) -> tuple[Loss, str]:
    """Return the least known figure of a plan: its own profile's, or another analysis's if that is not above it."""
    loss, method = min(others, key=lambda pair: pair[0])
    return (tight.loss, tight.method) if tight is not None and tight.loss < loss else (loss, method)


def _linear_curve(slope: Fraction) -> Callable[[Doubles], Doubles]:
    rough = double(slope)
    return lambda alphas: rough * alphas


def _best_statements(delta: Fraction, statements: Iterable[ApproximateStatement]) -> BestStatements:
    at_delta = sorted((s for s in statements if s.delta == delta), key=lambda s: s.epsilon)
    return BestStatements(delta, next((s for s in at_delta if s.adaptive), None), next(iter(at_delta), None))


def deltas_at(plan: Priced, neighbouring: Neighbouring, epsilon: Fraction) -> list[DeltaStatement]:
    """Return upper bounds on the delta at which a plan is (epsilon, delta)-private, by analysis; the least first.

    Args:
        epsilon: nats.

    Returns:
        Each at most 1, with the deltas that mechanisms declare; no analysis whose loss is infinite.

    Raises:
        ValueError: a mechanism has no loss under this relation (``Mechanism.moved``).
    """
    return PlanProfile.of(plan, neighbouring).statements(epsilon)


@dataclass(frozen=True, slots=True)
class PlanProfile:
    """The privacy profile of a plan, by every analysis.

    Attributes:
        losses: of the plan.
        tight: its own profile; None where it is not known.
    """

    losses: PlanLosses
    tight: TightProfile | None

    @classmethod
    def of(cls, plan: Priced, neighbouring: Neighbouring, figures: int = 1) -> "PlanProfile":
        """Return the profile of a plan for so many figures; raises as ``deltas_at``."""
        condensed = condense(plan)
        return cls(PlanLosses.of(condensed, neighbouring), TightProfile.of(condensed, neighbouring, figures))

    def tight_delta(self, epsilon: Fraction) -> Fraction | None:
        """Return the tight upper bound on delta at epsilon; None where there is none."""
        tight = None if self.tight is None else self.tight.delta(epsilon)
        return None if tight is None else tight.loss.nats

    def other_delta(self, epsilon: Fraction) -> Fraction:
        """Return the least upper bound on delta at epsilon of all analyses but the tight one, at most 1."""
        least = min(one.delta for one in self._others(epsilon)).nats
        return Fraction(1) if least is None else least

    def statements(self, epsilon: Fraction) -> list[DeltaStatement]:
        """Return what ``deltas_at`` does."""
        found = self._others(epsilon)
        tight = None if self.tight is None else self.tight.delta(epsilon)
        loss, method = _least_known(tight, [(one.delta, one.via) for one in found])
        return sorted([*found, DeltaStatement(loss, "tight", method)], key=lambda one: one.delta)

    def _others(self, epsilon: Fraction) -> list[DeltaStatement]:
        losses, statements = self.losses, list[DeltaStatement]()

        def add(loss: Loss, via: str) -> None:
            beside = Fraction(1) if loss.nats is None else min(loss.nats + losses.delta, Fraction(1))
            statements.append(DeltaStatement(Loss(beside, loss.rational), via))

        if losses.epsilon.nats is not None:
            add(pure_to_delta(losses.epsilon.nats, epsilon), "pure")
        near = None
        if losses.rho.nats is not None:
            rho = losses.rho.nats
            by_zcdp = rdp_to_delta(lambda alpha: Loss(rho * alpha), _linear_curve(rho), epsilon)
            add(by_zcdp.loss, "zcdp")
            near = losses.near(by_zcdp.alpha)
        add(rdp_to_delta(losses.tau, losses.curve.rough, epsilon, losses.orders, near).loss, "rdp")
        if losses.rho.nats is not None:
            add(rho_to_delta_analytic(losses.rho.nats, epsilon), "analytic")
        return statements
