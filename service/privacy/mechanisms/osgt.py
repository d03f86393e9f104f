"""Continuous noise with offset symmetric Gaussian tails."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import ClassVar, Self

from service.privacy.fields import offset_tails
from service.privacy.laws.loss_laws import OsgtLoss
from service.privacy.laws.noise_law import NoiseLaw, offset_law
from service.privacy.laws.offset_tails import osgt_bounds
from service.privacy.laws.offset_tails_zcdp import osgt_rho
from service.privacy.mechanisms.base import Continuous, Mechanism, RdpBounds, WorkEstimate
from service.privacy.mechanisms.gaussian import Gaussian
from service.privacy.numerics.loss import INFINITE, Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Osgt(Continuous):
    """Continuous noise with offset symmetric Gaussian tails; accounted, never drawn.

    Its density is proportional to exp(-y²/(2 sigma²) - |y| m/sigma²). At m = 0 it is the Gaussian.

    Attributes:
        sigma_squared: counts squared; the variance is less.
        m: counts, at least 0.
    """

    TYPE = "osgt"
    LABEL = "OSGT"
    OFFSET = True
    FIELDS = offset_tails(
        "Of the density proportional to exp(-y²/(2 sigma²) - |y| m/sigma²).",
        "The offset of the tails, at least 0, in the unit of the noise; 0 is the Gaussian.",
    )
    on_integers: ClassVar[bool] = False

    sigma_squared: Fraction
    m: Fraction

    def simplest(self) -> Mechanism:
        """Return the Gaussian if there is no offset, else the mechanism itself."""
        if self.m:
            return self
        return Gaussian(**{one.name: getattr(self, one.name) for one in fields(Gaussian)})

    def scaled(self, multiplier: Fraction) -> Self:
        return replace(self, sigma_squared=self.sigma_squared * multiplier**2, m=self.m * multiplier)

    def pure_epsilon(self) -> Loss:
        return INFINITE

    def rho(self) -> Loss:
        return Loss(osgt_rho(self), rational=False)

    def rdp(self) -> RdpBounds:
        curve, line = osgt_bounds(self)
        return RdpBounds(curve=curve, line=line)

    def loss_law(self) -> OsgtLoss:
        return OsgtLoss(sigma_squared=self.sigma_squared, m=self.m, sensitivity=self.sensitivity)

    def noise_law(self) -> NoiseLaw:
        return offset_law(self.sigma_squared, self.m)

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.3, vectorized=False)
