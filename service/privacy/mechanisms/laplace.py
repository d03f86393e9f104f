"""Continuous Laplace noise."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from service.privacy.fields import scale_or_epsilon
from service.privacy.laws.divergences import laplace
from service.privacy.laws.loss_laws import LaplaceLoss
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms.base import Continuous, RdpBounds, WorkEstimate, rounded_rho
from service.privacy.numerics.arithmetic import Arithmetic, Number
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.loss import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace(Continuous):
    """Continuous Laplace noise; accounted, never drawn."""

    TYPE = "laplace"
    LABEL = "Laplace"
    PARAMETER = "scale"
    FIELDS = (scale_or_epsilon("b of the density proportional to exp(-|y|/b), in the unit of the noise."),)

    scale: Fraction

    def scaled(self, multiplier: Fraction) -> Self:
        return replace(self, scale=self.scale * multiplier)

    def pure_epsilon(self) -> Loss:
        return Loss(self.sensitivity / self.scale)

    def rho_curve(self) -> Curve:
        return Curve(_rho, (self.scale, self.sensitivity))

    def rho(self) -> Loss:
        return rounded_rho(self.rho_curve(), self.sensitivity / self.scale)

    def rdp(self) -> RdpBounds:
        return RdpBounds(curve=Curve(laplace, (self.scale, self.sensitivity)))

    def loss_law(self) -> LaplaceLoss:
        return LaplaceLoss(scale=self.scale, sensitivity=self.sensitivity)

    def noise_law(self) -> NoiseLaw:
        return NoiseLaw(scale=self.scale)

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.03)


def _rho(scale: Number, sensitivity: Number, at: Arithmetic) -> Number:
    """Return S - 1 + exp(-S) for S = s/b: the KL divergence, which is the supremum of tau/alpha."""
    return at.exp_excess(-sensitivity / scale)
