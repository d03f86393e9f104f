"""Margins of error of continuous noise: closed forms, found in doubles and proven in balls.

A sum of Gaussian noise is Gaussian. A sum of n Laplace variables is a difference of two Gamma variables. These lose
their exponential stages one by one, on either side with probability 1/2, so P(S > x) is the sum over j < n of C(n-1+j,
j) 2^-(n+j) times the tail of Gamma(n-j).

One variable with offset tails has a closed form, by Mills' ratio (``half_gaussian_sums``); sums have none.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from flint import arb, ctx
from scipy.optimize import brentq  # type: ignore[import-untyped]  # it publishes no types
from scipy.special import erfcinv, gammaincc  # type: ignore[import-untyped]

from service.privacy.accuracy.sums import require_finite
from service.privacy.accuracy.tails import excess_of
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.numerics.arithmetic import DOUBLES
from service.privacy.numerics.half_gaussian_sums import half_line
from service.privacy.numerics.numbers import ball, ceiling, double_down, floor as lower_bound, precision

MOST_LAPLACE = 1000
"""The largest number of cells in a sum of Laplace noise."""
LARGEST, SMALLEST = Fraction(10) ** 100, Fraction(1, 10**100)
"""The limits of parameters whose margins can be searched in doubles."""
_FLAT = Fraction(1, 10**6)
"""For a confidence below this, 1 - confidence is too coarse in doubles."""


@dataclass(frozen=True, slots=True)
class ContinuousSum:
    """The sum S of the continuous noise of some cells.

    Attributes:
        law: of one cell's noise.
        cells: their number.

    Raises:
        ValueError: the sum has no closed form, or the noise is beyond the limits.
    """

    law: NoiseLaw
    cells: int

    def __post_init__(self) -> None:
        if self._has_offset and self.cells > 1:
            raise ValueError("expected 1 for osgt, whose sums have no closed form; those of discrete_osgt are exact")
        if self.law.sigma_squared is None and self.cells > MOST_LAPLACE:
            raise ValueError(f"expected at most {MOST_LAPLACE} for laplace")
        figures = [self.law.sigma_squared or self.law.scale or Fraction(0)]
        figures += [self.law.offset] if self._has_offset else []
        if not all(SMALLEST <= figure <= LARGEST for figure in figures):
            raise ValueError("expected continuous noise with parameters between 1e-100 and 1e100")

    @property
    def method(self) -> str:
        """The method by which tails are found."""
        return "closed form"

    @property
    def _has_offset(self) -> bool:
        return self.law.sigma_squared is not None and self.law.scale is not None

    def variance(self) -> Fraction:
        """Return Var S (the square of the answer's unit), rounded up."""
        match self.law:
            case NoiseLaw(sigma_squared=None, scale=Fraction() as b):
                return 2 * b * b * self.cells
            case NoiseLaw(sigma_squared=Fraction() as v, scale=None):
                return v * self.cells
            case _:
                return require_finite(ceiling(lambda: self._moment(2)))

    def mean_size(self) -> Fraction:
        """Return E|S| (in the answer's unit), rounded up; for Laplace noise it is 2 b n C(2n, n)/4^n."""
        n = self.cells
        match self.law:
            case NoiseLaw(sigma_squared=None, scale=Fraction() as b):
                return 2 * b * n * Fraction(math.comb(2 * n, n), 4**n)
            case NoiseLaw(sigma_squared=Fraction() as v, scale=None):
                return require_finite(ceiling(lambda: (2 * n * ball(v) / arb.pi()).sqrt()))
            case _:
                return require_finite(ceiling(lambda: self._moment(1)))

    def margin(self, confidence: Fraction) -> tuple[Fraction, float]:
        """Return an x with P(|S| > x) <= 1 - confidence, and its coverage.

        x is above the least such margin by some 1e-13 of itself, or by some 1e-6 for confidences below a millionth.
        There it is a share of a larger margin: the density falls with |x|, so a share of a margin covers at least as
        large a share of what the margin covers.

        Returns:
            The margin in the answer's unit, and the coverage, rounded down to a double.

        Raises:
            ValueError: the confidence is out of range (``excess_of``).
        """
        excess = excess_of(confidence)
        if confidence < _FLAT:
            return self.margin(_FLAT)[0] * confidence / _FLAT, double_down(confidence)
        margin, step = Fraction(self._guess(float(excess))), Fraction(1, 10**13)
        with precision(256):
            while not self.tail_probability(margin) <= ball(excess):
                margin, step = margin * (1 + step), 2 * step
            covered = 1 - self.tail_probability(margin) + arb(0, arb(2) ** -ctx.prec)
        return margin, double_down(lower_bound(lambda: covered))

    def coverage(self, x: Fraction) -> float:
        """Return P(|S| <= x), rounded down to a double; ``x`` is at least 0, in the answer's unit."""
        return double_down(lower_bound(lambda: 1 - self.tail_probability(x) + arb(0, arb(2) ** -ctx.prec)))

    def _moment(self, power: int) -> arb:
        """Return E|X|^power of one variable with offset tails."""
        moments = half_line(ball(self.law.offset), _variance(self.law), power + 1, lattice=False)
        return moments[power] / moments[0]

    def tail_probability(self, x: Fraction) -> arb:
        """Return P(|S| > x).

        Args:
            x: at least 0, in the answer's unit.

        Returns:
            A ball at the precision in force.
        """
        match self.law:
            case NoiseLaw(sigma_squared=None, scale=Fraction() as b):
                return _laplace_tail(ball(x / b), self.cells)
            case NoiseLaw(sigma_squared=Fraction() as v, scale=None):
                return (ball(x) / (2 * self.cells * ball(v)).sqrt()).erfc()
            case _:
                v, m = _variance(self.law), self.law.offset
                near, far = (half_line(ball(at), v, 1, lattice=False)[0] for at in (m, m + x))
                return (-ball(x * (x + 2 * m) / (2 * v))).exp() * far / near

    def _guess(self, excess: float) -> float:
        match self.law:
            case NoiseLaw(sigma_squared=None, scale=Fraction() as b):
                return float(b) * _laplace_quantile(excess, self.cells)
            case NoiseLaw(sigma_squared=Fraction() as v, scale=None):
                return float(math.sqrt(2 * self.cells * float(v)) * erfcinv(excess))
            case _:
                v, m = _variance(self.law), self.law.offset
                return _osgt_quantile(excess, float(m) / math.sqrt(v)) * math.sqrt(v)


def _variance(law: NoiseLaw) -> Fraction:
    if law.sigma_squared is None:
        raise ValueError("expected a Gaussian part")
    return law.sigma_squared


def _laplace_tail(x: arb, n: int) -> arb:
    """Return 2 P(S > x) at scale 1.

    The tail of Gamma(n-j) is the sum over i < n-j of e^-x x^i/i!, so that i counts for j < n-i.
    """
    weight = arb(1) / arb(2) ** n
    weights = [weight]
    for j in range(1, n):
        weight = weight * (n - 1 + j) / (2 * j)
        weights.append(weights[-1] + weight)
    term, total = (-x).exp(), arb(0)
    for i in range(n):
        total += term * weights[n - 1 - i]
        term = term * x / (i + 1)
    return 2 * total


def _laplace_quantile(excess: float, n: int) -> float:
    if n == 1:
        return -math.log(excess)
    j = np.arange(n)
    steps = np.log((n - 1 + j[1:]) / (2 * j[1:]))
    weights = 2 * np.exp(np.concatenate([[0.0], np.cumsum(steps)]) - n * math.log(2))

    def over(x: float) -> float:
        return math.log(max(float(np.sum(weights * gammaincc(n - j, x))), 1e-320)) - math.log(excess)

    high = 2.0
    while over(high) > 0:
        high *= 2
    return float(brentq(over, 0.0, high, xtol=1e-300, rtol=1e-14))


def _osgt_quantile(excess: float, m: float) -> float:
    """Return the quantile in units of sigma; the tail is below exp(-x²/2) and exp(-mx)."""
    at_0 = DOUBLES.log_half_line(np.array(m), Fraction(1), lattice=False)
    needed = math.log(excess)

    def over(x: float) -> float:
        beyond = DOUBLES.log_half_line(np.array(m + x), Fraction(1), lattice=False)
        return float(beyond - at_0 - x * (x / 2 + m)) - needed

    high = min(math.sqrt(-2 * needed), -needed / m if m else math.inf) * (1 + 1e-9)
    return float(brentq(over, 0.0, high, xtol=1e-300, rtol=1e-14))
