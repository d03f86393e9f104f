"""Continuous Gaussian noise."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from service.privacy.fields import variance_or_rho
from service.privacy.laws.loss_laws import GaussianLoss
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms.base import Continuous, RdpBounds, WorkEstimate
from service.privacy.numerics.loss import INFINITE, Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Continuous):
    """Continuous Gaussian noise; accounted, never drawn."""

    TYPE = "gaussian"
    LABEL = "Gaussian"
    PARAMETER = "sigma_squared"
    FIELDS = (variance_or_rho("The variance, of the density proportional to exp(-y²/(2 sigma²))."),)

    sigma_squared: Fraction

    def scaled(self, multiplier: Fraction) -> Self:
        return replace(self, sigma_squared=self.sigma_squared * multiplier**2)

    def pure_epsilon(self) -> Loss:
        return INFINITE

    def rho(self) -> Loss:
        """Return s²/(2 sigma²)."""
        return gaussian_rho(self.sensitivity, self.sigma_squared)

    def rdp(self) -> RdpBounds:
        return RdpBounds(slope=self.rho().nats)

    def loss_law(self) -> GaussianLoss:
        return GaussianLoss(sigma_squared=self.sigma_squared, sensitivity=self.sensitivity)

    def noise_law(self) -> NoiseLaw:
        return NoiseLaw(sigma_squared=self.sigma_squared)

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.0, tight=False, linear=True)


def gaussian_rho(sensitivity: Fraction | int, variance: Fraction) -> Loss:
    """Return s²/(2 sigma²), for the discrete Gaussian too (Canonne, Kamath, Steinke 2020, Theorem 4)."""
    top, bottom = sensitivity.numerator, sensitivity.denominator
    return Loss(Fraction(top**2 * variance.denominator, 2 * bottom**2 * variance.numerator))
