"""Integer noise with offset symmetric Gaussian tails."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import ClassVar, Self

from service.privacy.fields import THRESHOLD, offset_tails
from service.privacy.laws.loss_laws import DiscreteOsgtLoss
from service.privacy.laws.noise_law import NoiseLaw, offset_law
from service.privacy.laws.offset_tails import osgt_bounds
from service.privacy.laws.offset_tails_zcdp import osgt_rho
from service.privacy.mechanisms.base import Discrete, Mechanism, RdpBounds, WorkEstimate
from service.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from service.privacy.numerics.loss import INFINITE, Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteOsgt(Discrete):
    """Noise with offset symmetric Gaussian tails on the integers, between discrete Gaussian and geometric.

    Its mass is proportional to exp(-x²/(2 sigma²) - |x| m/sigma²). It is the discrete Gaussian at m = 0, and comes near
    geometric noise of scale sigma_squared/m as both parameters grow.

    Attributes:
        sigma_squared: units of granularity, squared; the variance is less.
        m: units of granularity, at least 0.
    """

    TYPE = "discrete_osgt"
    LABEL = "discrete OSGT"
    OFFSET = True
    FIELDS = offset_tails(
        "Of the mass proportional to exp(-x²/(2 sigma²) - |x| m/sigma²).",
        "The offset of the tails, at least 0, in counts; 0 is the discrete Gaussian.",
    )
    AFTER = (THRESHOLD,)
    on_integers: ClassVar[bool] = True

    sigma_squared: Fraction
    m: Fraction

    def simplest(self) -> Mechanism:
        """Return the mechanism on the integers, with a granularity of 1; without an offset the discrete Gaussian."""
        if self.m:
            return Discrete.simplest(self)
        shared = {one.name: getattr(self, one.name) for one in fields(DiscreteGaussian)}
        return DiscreteGaussian(**(shared | {"granularity": Fraction(1)}))

    def scaled(self, multiplier: Fraction) -> Self:
        return replace(self, sigma_squared=self.sigma_squared * multiplier**2, m=self.m * multiplier)

    def pure_epsilon(self) -> Loss:
        return INFINITE

    def rho(self) -> Loss:
        return Loss(osgt_rho(self), rational=False)

    def rdp(self) -> RdpBounds:
        curve, line = osgt_bounds(self)
        return RdpBounds(curve=curve, line=line)

    def loss_law(self) -> DiscreteOsgtLoss:
        return DiscreteOsgtLoss(sigma_squared=self.sigma_squared, m=self.m, sensitivity=self.sensitivity)

    def noise_law(self) -> NoiseLaw:
        return offset_law(self.sigma_squared, self.m)

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=1.2, vectorized=False, proof=500.0)
