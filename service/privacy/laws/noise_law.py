"""Laws of noise: one family, log mass(x) = -x²/(2 sigma²) - |x|/b + constant, and tables of masses."""

from dataclasses import dataclass
from fractions import Fraction

from service.privacy.numerics.keyed import Keyed

Masses = tuple[tuple[int, Fraction], ...]
"""Ascending integers with their probabilities, which add up to 1."""


@dataclass(frozen=True, slots=True)
class NoiseLaw(Keyed):
    """A law of noise with exact parameters: a mass on the integers, or a density; symmetric about 0 but for tables.

    ``scale`` alone is the geometric law (discrete Laplace), ``sigma_squared`` alone the discrete
    Gaussian; both together are offset symmetric Gaussian tails of offset m = sigma²/b. Sampling,
    tails and margins read the two coefficients and not the name of a law. A table has neither.

    Attributes:
        sigma_squared: of the Gaussian part (counts squared), positive; None where there is none.
        scale: b of the two-sided exponential part (counts), positive; None where there is none.
        rows: of a table: the law for each count from 0 on, the last one for all larger counts too; a single one for all
            counts. Empty for other laws.

    Raises:
        ValueError: a parameter that is not positive, or none at all.
    """

    sigma_squared: Fraction | None = None
    scale: Fraction | None = None
    rows: tuple[Masses, ...] = ()

    def __post_init__(self) -> None:
        if self.rows and (self.sigma_squared is not None or self.scale is not None):
            raise ValueError("expected no sigma_squared and no scale beside rows")
        if self.sigma_squared is None and self.scale is None and not self.rows:
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

    @property
    def offset(self) -> Fraction:
        """m = sigma²/b, of the tails exp(-(|x| + m)²/(2 sigma²)) (counts); 0 where there is no exponential part.

        Raises:
            ValueError: there is no Gaussian part.
        """
        if self.sigma_squared is None:
            raise ValueError("expected a Gaussian part")
        return self.sigma_squared * self.linear


def offset_law(sigma_squared: Fraction, m: Fraction) -> NoiseLaw:
    """Return offset symmetric Gaussian tails; without an offset the Gaussian law.

    Args:
        sigma_squared: counts squared.
        m: counts, at least 0.
    """
    return NoiseLaw(sigma_squared=sigma_squared, scale=sigma_squared / m if m else None)
