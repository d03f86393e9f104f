"""Integer noise with offset symmetric Gaussian tails."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

from service.privacy.document import Document, read_non_negative, read_positive
from service.privacy.loss import INFINITE, Loss
from service.privacy.loss_laws import DiscreteOsgtLoss
from service.privacy.mechanisms.base import Discrete, Mechanism, RdpBounds, Work, read_cells, read_lattice
from service.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from service.privacy.noise_law import NoiseLaw, offset_law
from service.privacy.numbers import exact_text
from service.privacy.osgt import osgt_bounds
from service.privacy.osgt_zcdp import osgt_rho


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteOsgt(Discrete):
    """Offset symmetric Gaussian tails on the integers: mass proportional to exp(-x²/(2 sigma²) - |x| m/sigma²).

    Its two ends are the discrete Gaussian (m = 0) and the geometric (both growing, scale sigma_squared/m).

    Attributes:
        sigma_squared: units of granularity, squared; the variance is less.
        m: units of granularity, at least 0.
    """

    TYPE = "discrete_osgt"
    on_integers: ClassVar[bool] = True

    sigma_squared: Fraction
    m: Fraction

    @classmethod
    def read(cls, document: Document, at: str) -> Self:
        lattice = read_lattice(document, at)
        unit = lattice["granularity"]
        variance = read_positive(document, at, "sigma_squared") / unit**2
        return cls(
            sigma_squared=variance, m=read_non_negative(document, at, "m") / unit, **lattice, **read_cells(document)
        )

    def parameters(self) -> dict[str, Any]:
        variance, m = self.sigma_squared * self.granularity**2, self.m * self.granularity
        return {"sigma_squared": exact_text(variance), "m": exact_text(m)} | self.lattice()

    def simplest(self) -> Mechanism:
        """Return the same on the integers; without an offset the discrete Gaussian."""
        if self.m:
            return Discrete.simplest(self)
        shared = {one.name: getattr(self, one.name) for one in fields(DiscreteGaussian)}
        return DiscreteGaussian(**(shared | {"granularity": Fraction(1)}))

    def scaled(self, multiplier: Fraction) -> Self:
        return replace(self, sigma_squared=self.sigma_squared * multiplier**2, m=self.m * multiplier)

    def pure_epsilon(self) -> Loss:
        return INFINITE

    def rho_curve(self) -> None:
        return None

    def rho(self) -> Loss:
        return Loss(osgt_rho(self), rational=False)

    def rdp(self) -> RdpBounds:
        curve, line = osgt_bounds(self)
        return RdpBounds(curve=curve, line=line)

    def loss_law(self) -> DiscreteOsgtLoss:
        return DiscreteOsgtLoss(sigma_squared=self.sigma_squared, m=self.m, sensitivity=self.sensitivity)

    def noise_law(self) -> NoiseLaw:
        return offset_law(self.sigma_squared, self.m)

    def work(self) -> Work:
        return Work(at_order=1.2, in_arrays=False, proof=500.0)
