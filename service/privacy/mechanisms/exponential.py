"""The exponential mechanism, which selects a candidate by its score."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from service.privacy.grammar import ABOVE_0, Constant, ExactNumber, Unit, write_fields
from service.privacy.laws.divergences import bounded_range
from service.privacy.laws.loss_laws import RangeLoss
from service.privacy.mechanisms.base import Mechanism, RdpBounds, WorkEstimate, rounded_rho
from service.privacy.numerics.arithmetic import Arithmetic, Number
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.loss import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(Mechanism):
    """The exponential mechanism: one of several candidates, each with a probability that grows with its score.

    If a change moves each score by at most the sensitivity s, the probabilities are proportional to exp(epsilon *
    score/(2s)). If it moves no two scores in opposite directions, they are proportional to exp(epsilon * score/s). In
    both cases the range of the privacy loss over all candidates is at most epsilon
    (``docs/mathematics/bounded-range.md``). No loss depends on the sensitivity or on the direction.

    Attributes:
        epsilon: the range of the loss, which is also its pure bound; nats.
        sensitivity: the distance by which one change can move a score.
        scores: ``monotone`` if it moves no two of them in opposite directions.
    """

    TYPE = "exponential"
    LABEL = "exponential"
    FIELDS = (
        ExactNumber(
            "epsilon",
            required=True,
            unit=Unit.NATS,
            bound=ABOVE_0,
            description="Pure loss, and range of the loss over all candidates, in nats. The probabilities of the"
            " candidates are proportional to exp(epsilon*score/(2*sensitivity)).",
        ),
        ExactNumber(
            "sensitivity",
            unit=Unit.COUNTS,
            bound=ABOVE_0,
            default="1",
            description="The distance by which one changed record can move a score, in the unit of the scores. Below"
            " parallel and choice it must also hold for a record that is only added or removed.",
        ),
        Constant(
            "scores",
            value="monotone",
            description="A promise that a changed record moves no two scores in opposite directions, as one that is"
            " only added moves counts. The probabilities are then proportional to exp(epsilon*score/sensitivity).",
        ),
    )

    epsilon: Fraction
    sensitivity: Fraction = Fraction(1)
    scores: str | None = None

    def parameters(self) -> dict[str, Any]:
        return {name: value for name, value in write_fields(self.FIELDS, self).items() if value is not None}

    def score_rate(self) -> Fraction:
        return self.epsilon / (self.sensitivity * (2 if self.scores is None else 1))

    def simplest(self) -> Mechanism:
        """Return the mechanism with its range alone."""
        return replace(self, sensitivity=Fraction(1), scores=None)

    def moved(self, *, replaced: bool, one_side: bool) -> tuple[Mechanism, int]:  # noqa: ARG002
        return self, 1

    def grouped(self, size: int) -> tuple[Mechanism, int]:
        """Return the mechanism with ``size`` times its range.

        Over a chain of ``size`` changes the losses add up, and so do their ranges. Every loss is convex in the range
        and 0 at 0, which gives (1) of ``docs/mathematics/group-privacy.md``; ``bounded-range.md`` beside it proves it.
        """
        return replace(self, epsilon=self.epsilon * size), 1

    def pure_epsilon(self) -> Loss:
        return Loss(self.epsilon)

    def rho_curve(self) -> Curve:
        return Curve(_rho, (self.epsilon,))

    def rho(self) -> Loss:
        return rounded_rho(self.rho_curve(), self.epsilon)

    def rdp(self) -> RdpBounds:
        return RdpBounds(curve=Curve(bounded_range, (self.epsilon,)))

    def loss_law(self) -> RangeLoss:
        return RangeLoss(self.epsilon)

    def noise_law(self) -> None:
        return None

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.03)


def _rho(epsilon: Number, at: Arithmetic) -> Number:
    """Return the largest KL divergence; the sup of tau/alpha is at alpha -> 1 (``docs/mathematics/bounded-range.md``).

    It is e^-s - 1 + s for s = log((e^epsilon - 1)/epsilon), which is the worst t. epsilon²/8 is a little above it.
    """
    t = at.either(
        epsilon,
        lambda: at.log1p(at.exp_excess(epsilon) / epsilon),
        lambda: epsilon + at.log1p(-at.exp(-epsilon)) - at.log(epsilon),
    )
    return at.exp_excess(-t)
