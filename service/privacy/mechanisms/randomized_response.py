"""Randomised response, and the rho of all mechanisms that are only known to be epsilon-DP."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from service.privacy.grammar import ABOVE_0, ExactNumber, Unit, WholeNumber
from service.privacy.laws.divergences import randomized_response
from service.privacy.laws.loss_laws import LadderLoss
from service.privacy.laws.response_zcdp import response_rho
from service.privacy.mechanisms.base import Mechanism, RdpBounds, WorkEstimate, rounded_rho
from service.privacy.numerics.arithmetic import Arithmetic, Number
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.loss import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse(Mechanism):
    """k-ary randomised response, under replace_one only.

    The odds of the true value to each other value are exp(epsilon).

    Attributes:
        epsilon: nats.
        values: k.
    """

    TYPE = "randomized_response"
    LABEL = "randomised response"
    FIELDS = (
        ExactNumber("epsilon", required=True, unit=Unit.NATS, bound=ABOVE_0, description="Pure loss, in nats."),
        WholeNumber("values", least=2, default=2, description="The number of values to choose from."),
    )

    epsilon: Fraction
    values: int = 2

    def faults(self, *, replaced: bool, divided: bool) -> Iterator[tuple[str, str]]:
        if not replaced:
            yield "type", "expected replace_one for randomized_response, got add_remove"
        elif divided:
            yield "type", "expected no randomized_response below parallel or choice"

    def moved(self, *, replaced: bool, one_side: bool) -> tuple[Mechanism, int]:
        if one_side or not replaced:
            raise ValueError("expected randomized_response under replace_one only, not below parallel or choice")
        return self, 1

    def grouped(self, size: int) -> tuple[Mechanism, int]:
        """Return the mechanism and ``size``: that many records change that many answers, randomised independently."""
        return self, size

    def pure_epsilon(self) -> Loss:
        return Loss(self.epsilon)

    def rho_curve(self) -> Curve | None:
        """Return the formula for two values; the rho of more is found by a search."""
        return pure_rho_curve(self.epsilon) if self.values == 2 else None

    def rho(self) -> Loss:
        """Return the largest tau(alpha)/alpha, rounded up; at most that of two values, as it is epsilon-DP."""
        of_two = rounded_rho(pure_rho_curve(self.epsilon), self.epsilon)
        found = response_rho(self.epsilon, self.values) if self.values > 2 else None
        return of_two if found is None else min(of_two, Loss(found, rational=False))

    def rdp(self) -> RdpBounds:
        return RdpBounds(curve=Curve(randomized_response, (self.epsilon, self.values)))

    def loss_law(self) -> LadderLoss:
        return LadderLoss(self.epsilon, 2, self.values) if self.values > 2 else LadderLoss(self.epsilon)

    def noise_law(self) -> None:
        return None

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.03, proof=0.0 if self.values == 2 else 1.5)


def pure_rho_curve(epsilon: Fraction) -> Curve:
    """Return the formula of rho of any epsilon-DP mechanism."""
    return Curve(_rho, (epsilon,))


def _rho(epsilon: Number, at: Arithmetic) -> Number:
    """Return epsilon tanh(epsilon/2), the least rho that epsilon-DP implies.

    The usual epsilon²/2 (Bun and Steinke 2016, Prop. 3.3) is looser: 4.5 against 2.72 at epsilon = 3.
    """
    return epsilon * -at.expm1(-epsilon) / (1 + at.exp(-epsilon))
