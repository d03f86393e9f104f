"""The sparse vector technique, which tells which of many answers are above a threshold."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from service.privacy.fields import SENSITIVITY
from service.privacy.grammar import ABOVE_0, Constant, ExactNumber, Unit, WholeNumber, write_fields
from service.privacy.laws.divergences import randomized_response
from service.privacy.laws.loss_laws import LadderLoss
from service.privacy.mechanisms.base import Mechanism, RdpBounds, WorkEstimate, rounded_rho
from service.privacy.mechanisms.randomized_response import pure_rho_curve
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.loss import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class AboveThreshold(Mechanism):
    """The sparse vector technique: which of many answers are above a threshold; accounted, never drawn.

    Laplace noise is drawn once for the threshold, and anew for each answer; where the sensitivity, all answers and the
    threshold are whole, it may be geometric. For each answer in turn it is
    published whether the noisy answer reaches the noisy threshold. After so many positives nothing more is published.

    If the noise of the threshold moves up with the answers, by s at most, no negative becomes less likely; this costs
    s/threshold_scale. A positive then becomes less likely by a factor of at most exp(2s/query_scale), as its answer may
    move down by s. So the pure loss is s/threshold_scale + 2 positives s/query_scale, however many answers there are
    (Lyu, Su, Li 2017, Theorem 4). Where a change moves no two answers in opposite directions, a positive costs
    s/query_scale (Theorem 5).

    Attributes:
        threshold_scale, query_scale: b of the noise of the threshold and of each answer.
        positives: after so many it ends.
        answers: ``monotone`` if a change moves no two of them in opposite directions.
        sensitivity: the distance by which one change moves an answer.
    """

    TYPE = "above_threshold"
    LABEL = "above threshold"
    FIELDS = (
        ExactNumber(
            "threshold_scale",
            required=True,
            unit=Unit.COUNTS,
            bound=ABOVE_0,
            description="b of the Laplace noise that is added to the threshold, once. Geometric noise only where the"
            " sensitivity, all answers and the threshold are whole.",
        ),
        ExactNumber(
            "query_scale",
            required=True,
            unit=Unit.COUNTS,
            bound=ABOVE_0,
            description="b of the Laplace noise that is added to each answer, drawn anew for each; geometric as above.",
        ),
        WholeNumber(
            "positives", default=1, description="After so many answers above the threshold nothing more is published."
        ),
        Constant(
            "answers",
            value="monotone",
            description="A promise that a changed record moves no two answers in opposite directions, as one that is"
            " only added moves counts.",
        ),
        SENSITIVITY,
    )

    threshold_scale: Fraction
    query_scale: Fraction
    positives: int = 1
    answers: str | None = None
    sensitivity: Fraction = Fraction(1)

    @property
    def epsilon(self) -> Fraction:
        """The pure loss, nats."""
        sides = 2 if self.answers is None else 1
        return self.sensitivity * (1 / self.threshold_scale + sides * self.positives / self.query_scale)

    def parameters(self) -> dict[str, Any]:
        return {name: value for name, value in write_fields(self.FIELDS, self).items() if value is not None}

    def moved(self, *, replaced: bool, one_side: bool) -> tuple[Mechanism, int]:  # noqa: ARG002
        return self, 1

    def grouped(self, size: int) -> tuple[Mechanism, int]:
        """Return the mechanism of answers that move ``size`` times as far.

        Its loss is the pure one of all that have this epsilon, which is convex in epsilon and 0 at 0. This gives (1) of
        ``docs/mathematics/group-privacy.md``.
        """
        return replace(self, sensitivity=self.sensitivity * size), 1

    def pure_epsilon(self) -> Loss:
        return Loss(self.epsilon)

    def rho_curve(self) -> Curve:
        return pure_rho_curve(self.epsilon)

    def rho(self) -> Loss:
        return rounded_rho(self.rho_curve(), self.epsilon)

    def rdp(self) -> RdpBounds:
        return RdpBounds(curve=Curve(randomized_response, (self.epsilon, 2)))

    def loss_law(self) -> LadderLoss:
        """Return the loss of two-valued randomised response, which dominates all that have this pure loss."""
        return LadderLoss(self.epsilon)

    def noise_law(self) -> None:
        return None

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.03)
