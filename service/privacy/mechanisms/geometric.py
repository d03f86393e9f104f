"""Geometric noise: the discrete Laplace law."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from service.privacy.fields import THRESHOLD, scale_or_epsilon
from service.privacy.laws.divergences import geometric
from service.privacy.laws.loss_laws import LadderLoss
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms.base import Discrete, RdpBounds, WorkEstimate, rounded_rho
from service.privacy.numerics.arithmetic import Arithmetic, Number
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.loss import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometric(Discrete):
    """Discrete Laplace noise.

    Its mass is proportional to exp(-|x|/scale) on the integers.

    Attributes:
        scale: units of granularity.
    """

    TYPE = "geometric"
    LABEL = "geometric"
    PARAMETER = "scale"
    FIELDS = (scale_or_epsilon("b of the mass proportional to exp(-|x|/b), in counts."),)
    AFTER = (THRESHOLD,)

    scale: Fraction

    def scaled(self, multiplier: Fraction) -> Self:
        return replace(self, scale=self.scale * multiplier)

    def with_share(self, share: Fraction) -> Self:
        """Return the mechanism with this share of its epsilon.

        Args:
            share: above 0; above 1 for more epsilon.
        """
        return replace(self, scale=self.scale / share)

    def pure_epsilon(self) -> Loss:
        return Loss(Fraction(self.sensitivity * self.scale.denominator, self.scale.numerator))

    def rho_curve(self) -> Curve:
        return Curve(_rho, (self.scale, self.sensitivity))

    def rho(self) -> Loss:
        return rounded_rho(self.rho_curve(), self.sensitivity / self.scale)

    def rdp(self) -> RdpBounds:
        return RdpBounds(curve=Curve(geometric, (self.scale, self.sensitivity)))

    def loss_law(self) -> LadderLoss:
        return LadderLoss(self.sensitivity / self.scale, self.sensitivity)

    def noise_law(self) -> NoiseLaw:
        return NoiseLaw(scale=self.scale)

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.03)


def _rho(scale: Number, sensitivity: Number, at: Arithmetic) -> Number:
    """Return the KL divergence between the noise and the noise moved by s; the sup of tau/alpha is at alpha -> 1.

    With e = 1/b, S = s e and q = exp(-e) the loss is S left of 0, -S right of s and (s-2x) e between; its mean
    is S - (e/sinh e)(1 - q^s), for s = 1 e tanh(e/2). Without cancellation: e/sinh e is (1 + C)(1 - t²) for
    t = tanh(e/2), C = (e/2) coth(e/2) - 1, and 1 - q^s is S - x(-S) for x(u) = e^u - 1 - u.
    """
    rate = 1 / scale
    loss, q, excess = sensitivity * rate, at.exp(-rate), at.coth_excess(rate / 2)
    t, rest = -at.expm1(-rate) / (1 + q), 4 * q / ((1 + q) * (1 + q))  # rest = 1 - t²
    return loss * (t * t - excess * rest) + (1 + excess) * rest * at.exp_excess(-loss)
