"""Mechanisms known only by a guarantee that was proved elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Self

from service.errors import InvalidInput
from service.privacy.grammar import (
    ABOVE_1,
    AT_LEAST_0,
    PROBABILITY,
    Document,
    DocumentForm,
    ExactNumber,
    Inner,
    InnerList,
    TextLine,
    Unit,
    write_fields,
)
from service.privacy.laws.divergences import randomized_response
from service.privacy.laws.loss_laws import GaussianLoss, LadderLoss
from service.privacy.mechanisms.base import Mechanism, RdpBounds, WorkEstimate, rounded_rho
from service.privacy.mechanisms.randomized_response import pure_rho_curve
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.keyed import Keyed
from service.privacy.numerics.loss import INFINITE, Loss, least_loss
from service.privacy.numerics.numbers import ball, ceiling

_ALPHA = ExactNumber("alpha", required=True, unit=Unit.ORDER, bound=ABOVE_1)
_BOUND = ExactNumber("epsilon", required=True, unit=Unit.NATS, bound=AT_LEAST_0)
_RDP_POINT = DocumentForm("RdpPoint", "A Rényi bound at one order.", (_ALPHA, _BOUND))
_EPSILON = ExactNumber("epsilon", unit=Unit.NATS, bound=AT_LEAST_0)
_DELTA = ExactNumber("delta", unit=Unit.PROBABILITY, bound=PROBABILITY)
_MU = ExactNumber(
    "mu",
    unit=Unit.STANDARD_DEVIATIONS,
    bound=AT_LEAST_0,
    description="mu of Gaussian differential privacy: at most as much is lost as by Gaussian noise of variance 1 on an"
    " answer that moves by mu.",
)
_RHO = ExactNumber("rho", unit=Unit.NATS, bound=AT_LEAST_0)
RDP = InnerList("rdp", form=_RDP_POINT, most=1000)
_DECLARATION = DocumentForm(
    "Declaration",
    "A guarantee proved elsewhere: at least one of epsilon, mu, rho and rdp.",
    (_EPSILON, _DELTA, _MU, _RHO, RDP),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(Keyed):
    """A guarantee that was proved elsewhere: any of pure, Gaussian, zCDP and RDP, each beside ``delta``.

    Attributes:
        epsilon: pure loss (nats), or None.
        delta: probability that the other figures do not hold.
        mu: of Gaussian differential privacy, or None.
        rho: zCDP loss (nats), or None.
        rdp: (order, loss in nats) pairs by ascending order, or empty.
    """

    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)
    mu: Fraction | None = None
    rho: Fraction | None = None
    rdp: tuple[tuple[Fraction, Fraction], ...] = ()

    @property
    def slope(self) -> Fraction | None:
        """The rho that is stated or follows from mu, whichever is less: mu-GDP is mu²/2-zCDP, as Gaussian noise is."""
        stated = [] if self.rho is None else [self.rho]
        return min(stated + ([] if self.mu is None else [self.mu**2 / 2]), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared(Mechanism):
    """A mechanism known only by its guarantee.

    Attributes:
        reference: the reason why the guarantee holds; no loss depends on it.
        add_remove: the guarantee when a record is only added or only removed, needed below ``parallel`` and ``choice``
            under ``replace_one``.
    """

    TYPE = "declared"
    LABEL = "declared"
    DECLARED = True
    BEFORE = (*_DECLARATION.fields, *Mechanism.BEFORE)
    FIELDS = (
        TextLine(
            "reference",
            required=True,
            description="The reason why the guarantee holds, such as a reference to its proof.",
        ),
        Inner(
            "add_remove",
            form=_DECLARATION,
            description="Below parallel and choice under replace_one: the guarantee that holds when a record is only"
            " added or removed.",
        ),
    )

    guarantee: Declaration
    reference: str
    add_remove: Declaration | None = None

    @classmethod
    def read(cls, document: Document, at: str, **shared: Any) -> Self:
        one_sided = document.get("add_remove")
        figures = [field.name for field in _DECLARATION.fields]
        missing = [name for name in figures if document.get(name) and not (one_sided or document).get(name)]
        if missing:
            raise InvalidInput.at(f"{at}/add_remove", f"expected the fields that are declared; missing: {missing}")
        return cls(
            guarantee=read_declaration(document, at),
            reference=document["reference"],
            add_remove=None if one_sided is None else read_declaration(one_sided, f"{at}/add_remove"),
            **shared,
        )

    def parameters(self) -> dict[str, Any]:
        document = {"reference": self.reference} | _write_declaration(self.guarantee)
        return document if self.add_remove is None else document | {"add_remove": _write_declaration(self.add_remove)}

    def faults(self, *, replaced: bool, divided: bool) -> Iterator[tuple[str, str]]:
        if self.add_remove is None and replaced and divided:
            yield (
                "add_remove",
                "expected add_remove: below parallel and choice, a changed record can leave one part and enter another",
            )
        elif self.add_remove is not None and not replaced:
            yield "add_remove", "expected none: the account's relation is add_remove already"

    def moved(self, *, replaced: bool, one_side: bool) -> tuple[Mechanism, int]:  # noqa: ARG002
        if not one_side:
            return self, 1
        if self.add_remove is None:
            raise ValueError("expected add_remove of a declared mechanism below parallel or choice")
        return replace(self, guarantee=self.add_remove), 1

    def grouped(self, size: int) -> tuple[Mechanism, int]:
        if size == 1:
            return self, 1
        one_sided = None if self.add_remove is None else _group_declaration(self.add_remove, size)
        return replace(self, guarantee=_group_declaration(self.guarantee, size), add_remove=one_sided), 1

    def simplest(self) -> Mechanism:
        """Return the mechanism without its reference."""
        return replace(self, reference="")

    def pure_epsilon(self) -> Loss:
        return INFINITE if self.guarantee.epsilon is None else Loss(self.guarantee.epsilon)

    def delta(self) -> Loss:
        return Loss(self.guarantee.delta)

    def rho(self) -> Loss:
        stated, epsilon = self.guarantee.slope, self.guarantee.epsilon
        bounds = [] if stated is None else [Loss(stated)]
        if epsilon is not None:
            bounds.append(rounded_rho(pure_rho_curve(epsilon), epsilon))
        return least_loss(bounds)

    def rdp(self) -> RdpBounds:
        epsilon = self.guarantee.epsilon
        curve = None if epsilon is None else Curve(randomized_response, (epsilon, 2))
        return RdpBounds(curve=curve, slope=self.guarantee.slope, points=self.guarantee.rdp)

    def loss_law(self) -> LadderLoss | GaussianLoss | None:
        """Return a law that dominates the loss; None without epsilon and mu: none follows from rho or Rényi points.

        An (epsilon, delta)-DP mechanism is dominated by one that loses everything with probability delta and is
        otherwise two-valued randomised response (Kairouz, Oh, Viswanath 2015, Theorem 3.4). A mu-GDP mechanism is
        dominated by Gaussian noise of variance 1 beside a move of mu, by definition (Dong, Roth and Su 2022, Definition
        2.6). Where both are declared, both dominate, and the law is the one with the lower rho.
        """
        epsilon, mu = self.guarantee.epsilon, self.guarantee.mu
        if epsilon is None or (mu is not None and Loss(mu**2 / 2) < rounded_rho(pure_rho_curve(epsilon), epsilon)):
            return None if mu is None else GaussianLoss(sigma_squared=Fraction(1), sensitivity=mu)
        return LadderLoss(epsilon)

    def noise_law(self) -> None:
        return None

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.03)


def read_declaration(document: Document, at: str) -> Declaration:
    """Return a declared guarantee: at least one of epsilon, mu, rho and rdp, none negative, delta below 1.

    Raises:
        InvalidInput: the document does not state such a guarantee.
    """
    exact = {
        field.name: field.read(document, at)
        for field in (_EPSILON, _MU, _RHO, _DELTA)
        if document.get(field.name) is not None
    }
    points = sorted(
        (_ALPHA.read(point, f"{at}/rdp/{number}"), _BOUND.read(point, f"{at}/rdp/{number}"))
        for number, point in enumerate(document.get("rdp") or ())
    )
    if any(one == other for (one, _), (other, _) in pairwise(points)):
        raise InvalidInput.at(f"{at}/rdp", "expected each order once")
    if not points and not exact.keys() - {"delta"}:
        raise InvalidInput.at(at, "expected at least one of epsilon, mu, rho and rdp")
    return Declaration(
        epsilon=exact.get("epsilon"),
        delta=exact.get("delta", Fraction(0)),
        mu=exact.get("mu"),
        rho=exact.get("rho"),
        rdp=tuple(points),
    )


def _write_declaration(declaration: Declaration) -> dict[str, Any]:
    stated = [field for field in (_EPSILON, _MU, _RHO, _DELTA) if getattr(declaration, field.name) is not None]
    document = write_fields(stated, declaration)
    if declaration.rdp:
        document["rdp"] = [_ALPHA.write(alpha) | _BOUND.write(epsilon) for alpha, epsilon in declaration.rdp]
    return document


def _group_declaration(one: Declaration, size: int) -> Declaration:
    """Return the guarantee for ``size`` records that follows from a guarantee for one.

    Pure: size*epsilon. Gaussian without a delta: size*mu (Dong, Roth and Su 2022, Theorem 2.14). zCDP without a delta:
    size² rho (Bun and Steinke 2016, Prop. 1.9). For mu and rho beside a delta, and for Rényi orders, nothing is known,
    and the loss is infinite. Without an epsilon, nothing bounds how a change affects the event of probability delta,
    and only delta = 1 is certain.
    """
    epsilon = None if one.epsilon is None else one.epsilon * size
    if one.delta == 0:
        mu, rho = None if one.mu is None else one.mu * size, None if one.rho is None else one.rho * size**2
        return Declaration(epsilon=epsilon, mu=mu, rho=rho)
    delta = Fraction(1) if one.epsilon is None else min(one.delta * _group_delta_factor(one.epsilon, size), Fraction(1))
    return Declaration(epsilon=epsilon, delta=delta)


def _group_delta_factor(epsilon: Fraction, size: int) -> Fraction:
    """Return 1 + e^epsilon + ... + e^((size-1) epsilon), rounded up: the factor on delta of ``size`` changes in a row.

    This is (e^(size epsilon) - 1)/(e^epsilon - 1), and size at epsilon = 0 (the sum in the proof of Vadhan 2017, Lemma
    2.2). If it is too large to be computed, the result is 2^9999, which makes any delta that can be declared exceed 1.
    """
    if epsilon == 0:
        return Fraction(size)
    factor = ceiling(lambda: ball(epsilon * size).expm1() / ball(epsilon).expm1())
    return Fraction(2**9999) if factor is None else factor


def declared_in(plan: object) -> Declared | None:
    """Return a plan that is one declared mechanism; None for any other."""
    return plan if isinstance(plan, Declared) else None
