"""Mechanisms known only by a guarantee that was proved elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, Self

from flint import arb

from service.errors import InvalidInput
from service.privacy.grammar import (
    ABOVE_0,
    ABOVE_1,
    AT_LEAST_0,
    PROBABILITY,
    Document,
    DocumentForm,
    ExactNumber,
    ExactNumbers,
    Inner,
    InnerList,
    NumberBound,
    TextLine,
    Unit,
    WholeNumber,
    write_fields,
)
from service.privacy.laws.divergences import randomized_response
from service.privacy.laws.listed_losses import listed_rho, listed_tau
from service.privacy.laws.loss_laws import GaussianLoss, LadderLoss, ListedLoss, LossMasses
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
_MOST_MASSES = 2000
_MIN_KEY = WholeNumber(
    "min_key", required=True, least=-_MOST_MASSES, most=_MOST_MASSES, description="The key of the first value."
)
_VALUES = ExactNumbers(
    "values",
    required=True,
    bound=NumberBound(lambda value: 0 <= value <= 1, "expected a number of at least 0 and at most 1"),
    most=_MOST_MASSES,
    description="Probabilities of the losses (min_key + i) * discretization_interval.",
)
_INFINITY_MASS = ExactNumber(
    "infinity_mass",
    unit=Unit.PROBABILITY,
    bound=PROBABILITY,
    default="0",
    description="Probability of an infinite loss. What the probabilities lack of 1 counts as infinite too.",
)
_INTERVAL = ExactNumber("discretization_interval", required=True, unit=Unit.NATS, bound=ABOVE_0)
_PMF = DocumentForm(
    "LossProbabilities",
    "The distribution of a privacy loss, its losses moved so that no delta gets smaller.",
    (_MIN_KEY, _VALUES, _INFINITY_MASS, _INTERVAL),
)
_PESSIMISTIC = Inner("pessimistic_pmf", required=True, form=_PMF)
_DIRECTION = DocumentForm("LossDistribution", "A privacy loss distribution of one direction.", (_PESSIMISTIC,))
_SYMMETRIC = Inner(
    "symmetric", form=_DIRECTION, description="The distribution of both directions, where they are alike."
)
_REMOVE = Inner("remove", form=_DIRECTION, description="The loss under the data with the record.")
_ADD = Inner("add", form=_DIRECTION, description="The loss under the data without the record.")
_PLD = Inner(
    "pld",
    form=DocumentForm(
        "LossDistributions",
        "Privacy loss distributions: either symmetric, or both remove and add.",
        (_SYMMETRIC, _REMOVE, _ADD),
    ),
    description="Privacy loss distributions, as dp-accounting's protocol buffers in JSON; no other figure beside them.",
)
_FURTHEST = 600  # nats: exponentials of larger losses leave the range of doubles
_ROUNDING = Fraction(1, 10**9)  # by which sums of rounded probabilities may be above 1
_UNCERTAIN = Fraction(1, 10**14)  # of a probability that was rounded to a double, or made by a Fourier transform
_DECLARATION = DocumentForm(
    "Declaration",
    "A guarantee proved elsewhere: at least one of epsilon, mu, rho and rdp; or pld.",
    (_EPSILON, _DELTA, _MU, _RHO, RDP, _PLD),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(Keyed):
    """A guarantee that was proved elsewhere: any of pure, Gaussian, zCDP and RDP, each beside ``delta``; or ``pld``.

    Attributes:
        epsilon: pure loss (nats), or None.
        delta: probability that the other figures do not hold.
        mu: of Gaussian differential privacy, or None.
        rho: zCDP loss (nats), or None.
        rdp: (order, loss in nats) pairs by ascending order, or empty.
        pld: the law of the loss in both directions, which has all figures; or None.
    """

    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)
    mu: Fraction | None = None
    rho: Fraction | None = None
    rdp: tuple[tuple[Fraction, Fraction], ...] = ()
    pld: ListedLoss | None = None

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
        known, figures = one_sided or document, [field.name for field in _DECLARATION.fields]
        missing = [name for name in figures if document.get(name) and not known.get(name)]
        if "pld" in missing and known.get("epsilon"):  # has all figures too, as pld has
            missing.remove("pld")
        if missing and not known.get("pld"):
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
        pld = self.guarantee.pld
        if replaced and pld is not None and pld.remove != pld.add:
            yield "pld", "expected symmetric: under replace_one either of two neighbours can come first"

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
        if self.guarantee.pld is not None:
            return Loss(self.guarantee.pld.largest)
        return INFINITE if self.guarantee.epsilon is None else Loss(self.guarantee.epsilon)

    def delta(self) -> Loss:
        return Loss(self.guarantee.delta if self.guarantee.pld is None else self.guarantee.pld.infinite)

    def rho(self) -> Loss:
        if self.guarantee.pld is not None:
            return Loss(listed_rho(self.guarantee.pld), rational=False)
        stated, epsilon = self.guarantee.slope, self.guarantee.epsilon
        bounds = [] if stated is None else [Loss(stated)]
        if epsilon is not None:
            bounds.append(rounded_rho(pure_rho_curve(epsilon), epsilon))
        return least_loss(bounds)

    def rdp(self) -> RdpBounds:
        epsilon, pld = self.guarantee.epsilon, self.guarantee.pld
        if pld is not None:
            return RdpBounds(curve=Curve(partial(listed_tau, pld), (), vectorized=False))
        curve = None if epsilon is None else Curve(randomized_response, (epsilon, 2))
        return RdpBounds(curve=curve, slope=self.guarantee.slope, points=self.guarantee.rdp)

    def loss_law(self) -> LadderLoss | GaussianLoss | ListedLoss | None:
        """Return a law that dominates the loss; None without epsilon and mu: none follows from rho or Rényi points.

        An (epsilon, delta)-DP mechanism is dominated by one that loses everything with probability delta and is
        otherwise two-valued randomised response (Kairouz, Oh, Viswanath 2015, Theorem 3.4). A mu-GDP mechanism is
        dominated by Gaussian noise of variance 1 beside a move of mu, by definition (Dong, Roth and Su 2022, Definition
        2.6). Where both are declared, both dominate, and the law is the one with the lower rho. The law of a declared
        pld has its infinite losses too.
        """
        if self.guarantee.pld is not None:
            return self.guarantee.pld
        epsilon, mu = self.guarantee.epsilon, self.guarantee.mu
        if epsilon is None or (mu is not None and Loss(mu**2 / 2) < rounded_rho(pure_rho_curve(epsilon), epsilon)):
            return None if mu is None else GaussianLoss(sigma_squared=Fraction(1), sensitivity=mu)
        return LadderLoss(epsilon)

    def noise_law(self) -> None:
        return None

    def work(self) -> WorkEstimate:
        if self.guarantee.pld is None:
            return WorkEstimate(at_order=0.03)
        sizes = len(self.guarantee.pld.remove.masses) + len(self.guarantee.pld.add.masses)
        return WorkEstimate(at_order=0.001 * sizes, vectorized=False, proof=0.3 * sizes)


def read_declaration(document: Document, at: str) -> Declaration:
    """Return a declared guarantee: at least one of epsilon, mu, rho and rdp, none negative, delta below 1; or pld.

    Raises:
        InvalidInput: the document does not state such a guarantee.
    """
    if document.get("pld") is not None:
        others = [field.name for field in _DECLARATION.fields if field is not _PLD and document.get(field.name)]
        if others:
            raise InvalidInput.at(f"{at}/pld", f"expected no other figure beside pld, got {others}")
        return Declaration(pld=_read_pld(document["pld"], f"{at}/pld"))
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
        raise InvalidInput.at(at, "expected at least one of epsilon, mu, rho and rdp, or pld")
    return Declaration(
        epsilon=exact.get("epsilon"),
        delta=exact.get("delta", Fraction(0)),
        mu=exact.get("mu"),
        rho=exact.get("rho"),
        rdp=tuple(points),
    )


def _read_pld(document: Document, at: str) -> ListedLoss:
    stated = {field.name for field in (_SYMMETRIC, _REMOVE, _ADD) if document.get(field.name) is not None}
    if stated not in ({"symmetric"}, {"remove", "add"}):
        raise InvalidInput.at(at, f"expected symmetric, or both remove and add; got {sorted(stated)}")
    both = [_read_direction(document[name], f"{at}/{name}") for name in sorted(stated, reverse=True)]
    (spacing, one), (other_spacing, other) = both[0], both[-1]
    if spacing != other_spacing:
        raise InvalidInput.at(
            f"{at}/add/{_PESSIMISTIC.name}/{_INTERVAL.name}", f"expected that of remove, {spacing}, got {other_spacing}"
        )
    return ListedLoss(spacing, one, other)


def _read_direction(document: Document, at: str) -> tuple[Fraction, LossMasses]:
    """Return the spacing and the distribution of one direction.

    A distribution whose losses were moved up, or a part of which is missing, has E exp(-L) <= 1, the probability of its
    finite losses under the other neighbour. Losses that were moved down have more, as far as rounded probabilities can
    tell. No figure depends on the losses below 0, in which most of these probabilities are lost.
    """
    at, document = f"{at}/{_PESSIMISTIC.name}", document[_PESSIMISTIC.name]
    spacing, masses, first = _INTERVAL.read(document, at), _VALUES.read(document, at), _MIN_KEY.read(document, at)
    found = LossMasses(first, masses, _INFINITY_MASS.read(document, at))
    if max(-first, first + len(masses) - 1) * spacing > _FURTHEST:
        raise InvalidInput.at(f"{at}/{_VALUES.name}", f"expected losses between -{_FURTHEST} and {_FURTHEST} nats")
    total = sum(masses) + found.stated_infinite
    if total > 1 + _ROUNDING:
        detail = f"expected probabilities that add up to at most 1, got {float(total):.10f} with {_INFINITY_MASS.name}"
        raise InvalidInput.at(f"{at}/{_VALUES.name}", detail)
    if found.infinite == 1:
        raise InvalidInput.at(f"{at}/{_VALUES.name}", "expected finite losses of some probability")

    def of_other() -> arb:
        step, beside = (-ball(spacing)).exp(), arb(0)
        for mass in reversed(masses):
            beside = beside * step + ball(max(mass - _UNCERTAIN, Fraction(0)))
        return beside * (-ball(spacing * first)).exp()

    reached = ceiling(of_other)
    if reached is None or reached > 1 + _ROUNDING:
        detail = "expected E exp(-L) of at most 1, as a pessimistic estimate has, got more: losses were rounded down"
        raise InvalidInput.at(f"{at}/{_VALUES.name}", detail)
    return spacing, found


def _write_pld(pld: ListedLoss) -> dict[str, Any]:
    sides = {"symmetric": pld.remove} if pld.remove == pld.add else {"remove": pld.remove, "add": pld.add}
    return {name: {_PESSIMISTIC.name: _write_masses(masses, pld.spacing)} for name, masses in sides.items()}


def _write_masses(masses: LossMasses, spacing: Fraction) -> dict[str, Any]:
    document = _MIN_KEY.write(masses.first) | _VALUES.write(masses.masses)
    return document | _INFINITY_MASS.write(masses.stated_infinite) | _INTERVAL.write(spacing)


def _write_declaration(declaration: Declaration) -> dict[str, Any]:
    if declaration.pld is not None:
        return {_PLD.name: _write_pld(declaration.pld)}
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
    and only delta = 1 is certain. Of privacy loss distributions, the largest finite loss and the probability of an
    infinite one are an epsilon and a delta.
    """
    if one.pld is not None:
        return _group_declaration(Declaration(epsilon=one.pld.largest, delta=one.pld.infinite), size)
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
