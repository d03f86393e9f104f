"""The noise laws as one family on the integers: log mass(x) = -x²/(2 sigma²) - |x|/b + constant."""

from dataclasses import dataclass
from fractions import Fraction

from service.privacy.keyed import Keyed
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Geometric, Mechanism


@dataclass(frozen=True, slots=True)
class Law(Keyed):
    """A law of integer noise, symmetric about 0, with exact parameters.

    ``scale`` alone is the geometric law (discrete Laplace), ``sigma_squared`` alone the discrete
    Gaussian; both together are offset symmetric Gaussian tails of offset m = sigma²/b. Sampling,
    tails and margins read the two coefficients and not the name of a law.

    Attributes:
        sigma_squared: of the Gaussian part (counts squared), positive; None where there is none.
        scale: b of the two-sided exponential part (counts), positive; None where there is none.

    Raises:
        ValueError: a parameter that is not positive, or none at all.
    """

    sigma_squared: Fraction | None = None
    scale: Fraction | None = None

    def __post_init__(self) -> None:
        if self.sigma_squared is None and self.scale is None:
            raise ValueError("expected a sigma_squared or a scale, got neither")
        if self.sigma_squared is not None and self.sigma_squared <= 0:
            raise ValueError("expected a sigma_squared above 0")
        if self.scale is not None and self.scale <= 0:
            raise ValueError("expected a scale above 0")

    @property
    def quadratic(self) -> Fraction:
        """The coefficient of x² in -log mass(x), which is 1/(2 sigma²)."""
        return Fraction(0) if self.sigma_squared is None else 1 / (2 * self.sigma_squared)

    @property
    def linear(self) -> Fraction:
        """The coefficient of |x| in -log mass(x), which is 1/b."""
        return Fraction(0) if self.scale is None else 1 / self.scale


def noise_law(mechanism: Mechanism) -> Law | None:
    """The law of a mechanism's noise; None where it is continuous or declared: accounted for here, never drawn."""
    match mechanism:
        case Geometric(scale=scale):
            return Law(scale=scale)
        case DiscreteGaussian(sigma_squared=sigma_squared):
            return Law(sigma_squared=sigma_squared)
        case DiscreteOsgt(sigma_squared=sigma_squared, m=m):
            return Law(sigma_squared=sigma_squared, scale=sigma_squared / m if m else None)
    return None
