"""Continuous Gaussian noise."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self

from service.privacy.document import Document, read_noise_parameter, write_noise_parameter
from service.privacy.loss import INFINITE, Loss
from service.privacy.loss_laws import GaussianLoss
from service.privacy.mechanisms.base import Continuous, RdpBounds, Work, read_cells, read_sensitivity
from service.privacy.noise_law import NoiseLaw
from service.privacy.numbers import exact_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Continuous):
    """Continuous Gaussian noise of variance ``sigma_squared``; accounted, never drawn."""

    TYPE = "gaussian"

    sigma_squared: Fraction

    @classmethod
    def read(cls, document: Document, at: str) -> Self:
        s = read_sensitivity(document, at)
        variance = read_noise_parameter(document, at, "sigma_squared", "rho", s * s / 2)
        return cls(sigma_squared=variance, sensitivity=s, **read_cells(document))

    def parameters(self) -> dict[str, Any]:
        rho = self.sensitivity**2 / (2 * self.sigma_squared)
        noise = write_noise_parameter("sigma_squared", self.sigma_squared, "rho", rho)
        return noise | {"sensitivity": exact_text(self.sensitivity)}

    def scaled(self, multiplier: Fraction) -> Self:
        return replace(self, sigma_squared=self.sigma_squared * multiplier**2)

    def pure_epsilon(self) -> Loss:
        return INFINITE

    def rho_curve(self) -> None:
        return None

    def rho(self) -> Loss:
        """Return s²/(2 sigma²)."""
        return gaussian_rho(self.sensitivity, self.sigma_squared)

    def rdp(self) -> RdpBounds:
        return RdpBounds(slope=self.rho().nats)

    def loss_law(self) -> GaussianLoss:
        return GaussianLoss(sigma_squared=self.sigma_squared, sensitivity=self.sensitivity)

    def noise_law(self) -> NoiseLaw:
        return NoiseLaw(sigma_squared=self.sigma_squared)

    def work(self) -> Work:
        return Work(at_order=0.0, tight=False, linear=True)


def gaussian_rho(sensitivity: Fraction | int, variance: Fraction) -> Loss:
    """Return s²/(2 sigma²), for the discrete Gaussian too (Canonne, Kamath, Steinke 2020, Theorem 4)."""
    top, bottom = sensitivity.numerator, sensitivity.denominator
    return Loss(Fraction(top**2 * variance.denominator, 2 * bottom**2 * variance.numerator))
