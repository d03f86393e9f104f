"""Discrete Gaussian noise."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from service.privacy.fields import THRESHOLD, variance_or_rho
from service.privacy.laws.divergences import discrete_gaussian
from service.privacy.laws.loss_laws import DiscreteGaussianLoss
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms.base import Discrete, RdpBounds, WorkEstimate
from service.privacy.mechanisms.gaussian import gaussian_rho
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.loss import INFINITE, Loss

SMOOTH_SIGMA_SQUARED = 2
"""From this variance on, alpha*rho stands for the discrete Gaussian's divergence. It is never below the divergence, and
exceeds it by a share of less than 8 pi² sigma² exp(-2 pi² sigma²) < 2e-15 for whole s (Poisson summation of the theta
function in ``divergences.discrete_gaussian``)."""
_SUMMED = 10  # below this variance its divergence is a sum


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussian(Discrete):
    """Discrete Gaussian noise.

    Its mass is proportional to exp(-x²/(2 sigma_squared)) on the integers.

    Attributes:
        sigma_squared: units of granularity, squared; the variance is a little less.
    """

    TYPE = "discrete_gaussian"
    LABEL = "discrete Gaussian"
    PARAMETER = "sigma_squared"
    FIELDS = (variance_or_rho("Of the mass proportional to exp(-x²/(2 sigma²))."),)
    AFTER = (THRESHOLD,)

    sigma_squared: Fraction

    def scaled(self, multiplier: Fraction) -> Self:
        return replace(self, sigma_squared=self.sigma_squared * multiplier**2)

    def with_share(self, share: Fraction) -> Self:
        """Return the mechanism with this share of its rho.

        Args:
            share: above 0; above 1 for more rho.
        """
        return replace(self, sigma_squared=self.sigma_squared / share)

    def pure_epsilon(self) -> Loss:
        return INFINITE

    def rho(self) -> Loss:
        """Return s²/(2 sigma²)."""
        return gaussian_rho(self.sensitivity, self.sigma_squared)

    def rdp(self) -> RdpBounds:
        """Return the slope and, for small variances, the curve, which is below the slope at most orders.

        Orders alpha with whole alpha*s attain the slope, because theta has period 1.
        """
        if self.sigma_squared >= SMOOTH_SIGMA_SQUARED:
            return RdpBounds(slope=self.rho().nats)
        curve = Curve(discrete_gaussian, (self.sigma_squared, self.sensitivity))
        return RdpBounds(curve=curve, slope=self.rho().nats, attained_at=self.sensitivity)

    def loss_law(self) -> DiscreteGaussianLoss:
        return DiscreteGaussianLoss(sigma_squared=self.sigma_squared, sensitivity=self.sensitivity)

    def noise_law(self) -> NoiseLaw:
        return NoiseLaw(sigma_squared=self.sigma_squared)

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.0 if self.sigma_squared >= _SUMMED else 0.5, linear=True)
