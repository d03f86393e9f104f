"""The law of a sum of n cells' noise: certified tails, exact margins of error, expected size.

Geometric noise has a closed form: a sum is the difference of two negative binomial counts, and the race between them
ends after n to 2n - 1 steps (``_GeometricRace``). All others are inverted from their characteristic function by the
trapezoid rule over one period of M (``_Spectrum``):

    1/M times the sum over j of phi(2 pi j/M)^n D_m(2 pi j/M) = P(|S mod M| <= m),  D_m(t) = sin((2m+1)t/2)/sin(t/2),

where S mod M is in (-M/2, M/2], and so never larger than S in size. So P(|S| > m) is at least P(|S mod M| > m), and
exceeds it by at most P(|S| > M/2), which is negligible by Chernoff's bound. phi falls from 0 to pi, so that a few of
its values bound the frequencies that are left out. If sigma is in the billions and n in the millions, a hundred
frequencies are left. phi of a table is complex and need not fall. As |k| <= m is symmetric, the real part of
phi^n takes its place, and no frequency is left out. All of this is ball arithmetic, with errors as radii.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from flint import arb, ctx

from service.privacy.accuracy.tails import coverage, excess_of, margin_of_error, smallest
from service.privacy.laws.characteristic import characteristic, characteristics, powers_of_masses, sine
from service.privacy.laws.noise_law import Masses, NoiseLaw
from service.privacy.laws.noise_tails import tail
from service.privacy.numerics.arithmetic import double
from service.privacy.numerics.half_gaussian_sums import half_line
from service.privacy.numerics.numbers import ball, ceiling, double_down, floor as lower_bound, precision

MOST_RACED_CELLS = 64
"""The largest number of geometric cells whose sum uses the closed form."""
_FREQUENCIES = 1 << 8
_STEEP = Fraction(1000)  # nats: noise that falls faster is 0, except with a probability below exp(-1000)
_DIGITS = 50  # bits to which tails are known, relative to the allowed excess
_HALF = 100  # bits to which the expected size is known
_LONGEST_PERIOD = 1 << 17  # of tables, whose frequencies are all transformed


def variance(law: NoiseLaw) -> arb:
    """Return Var X of one cell, in counts squared, as a ball."""
    if law.rows:
        return ball(max(_mean_square(row, 1) - _mean(row) ** 2 for row in law.rows))
    if law.sigma_squared is None:
        return 1 / (2 * (ball(law.linear) / 2).sinh() ** 2)
    offset = ball(law.sigma_squared * law.linear)
    moments = half_line(offset, law.sigma_squared, 3, lattice=True)
    return moments[2] / moments[0]


def mean_size(law: NoiseLaw) -> arb:
    """Return E|X| of one cell, in counts, as a ball."""
    if law.rows:
        return ball(max(sum((abs(value) * mass for value, mass in row), Fraction(0)) for row in law.rows))
    if law.sigma_squared is None:
        return 1 / ball(law.linear).sinh()
    offset = ball(law.sigma_squared * law.linear)
    moments = half_line(offset, law.sigma_squared, 2, lattice=True)
    return moments[1] / moments[0]


def _mean(masses: Masses) -> Fraction:
    return sum((value * mass for value, mass in masses), Fraction(0))


def _mean_square(masses: Masses, cells: int) -> Fraction:
    """Return E S² of the noise of so many cells, in counts squared."""
    square = sum((value * value * mass for value, mass in masses), Fraction(0))
    return cells * square + cells * (cells - 1) * _mean(masses) ** 2


def _chernoff_of_masses(masses: Masses, cells: int, nats: float) -> int:
    """Return what ``_chernoff`` does for a table: by log E exp(sX) on either side, or the largest |S| + 1."""
    size = max(abs(value) for value, _ in masses) or 1
    values, weights = (np.array([float(one) for one in column]) for column in zip(*masses, strict=True))
    slopes = np.logspace(-8, 3, 400) / size
    sizes = []
    for sign in (1, -1):
        with np.errstate(all="ignore"):
            cumulant = np.log(np.exp(np.outer(sign * slopes, values)) @ weights)
            best = ball(Fraction(float(slopes[int(np.nanargmin((cells * cumulant + nats) / slopes))])))
        moment = sum((ball(mass) * (sign * best * value).exp() for value, mass in masses), arb(0))
        sizes.append((cells * moment.log() + ball(Fraction(nats))) / best)
    return min(max(int(one.upper().ceil().fmpz()) for one in sizes), cells * size + 1)


def _chernoff(law: NoiseLaw, cells: int, nats: float) -> int:
    """Return a size x of the right order, with P(|S| >= x) <= 2 exp(-nats) proven.

    log E exp(sX) is at most sigma² s²/2 (Canonne, Kamath, Steinke 2020, Cor. 8). It is also at most that of geometric
    noise of rate r = 1/b + 1/(2 sigma²), -log(1 - (sinh(s/2)/sinh(r/2))²). The reason is that the mass falls by at
    least r from x to x+1. So the law is the geometric one times factors that fall with |x|, which can only make large
    values rarer (Chebyshev's association inequality).
    """
    if law.rows:
        return _chernoff_of_masses(law.rows[0], cells, nats)
    sizes: list[arb] = []
    exponent = ball(Fraction(nats))
    if law.sigma_squared is not None:
        sizes.append((2 * cells * ball(law.sigma_squared) * exponent).sqrt())
    rate = min(law.linear + law.quadratic, _STEEP)
    u = np.concatenate([np.logspace(-12, -2, 200), np.linspace(0.01, 0.999, 800)])
    r = min(max(double(rate), 1e-200), 1e200)
    with np.errstate(all="ignore"):
        share = np.exp(r * (u - 1)) * (np.expm1(-r * u) / np.expm1(-r)) ** 2
        rough_sizes = (-cells * np.log1p(-share) + nats) / u
    best = ball(rate) * ball(Fraction(float(u[int(np.nanargmin(rough_sizes))])))
    ratio = (best / 2).sinh() / (ball(rate) / 2).sinh()
    sizes.append((exponent - cells * (-ratio * ratio).log1p()) / best)
    return min(int(one.upper().ceil().fmpz()) for one in sizes if one.is_finite())


@dataclass(frozen=True, slots=True)
class _SingleCell:
    """The noise of one cell, whose tail is known to any precision."""

    law: NoiseLaw

    def tail_probability(self, margin: int) -> arb:
        """Return P(|X| > margin)."""
        return tail(self.law, margin)

    def mean_size(self) -> arb:
        """Return E|X|."""
        return mean_size(self.law)


@dataclass(frozen=True, slots=True)
class _GeometricRace:
    """S of n cells of geometric noise, q = exp(-1/b): certified tails from positive terms.

    X is A - B for two geometric counts, and S a difference of two negative binomial ones. Of one factor of each,
    1/((1-qz)(1-q/z)) = (1/(1-qz) + (q/z)/(1-q/z))/(1-q²): the counts are lost one by one, B's with probability
    1/(1+q), A's with q/(1+q) and a step down, until one side has none left. So, with W_i the sum over j <= i of
    C(n-1+j, j) q^j/(1+q)^(n+j), for k >= 1

        P(S >= k) = sum over i < n of W_i C(k+n-1, k+i) q^(k+i) (1-q)^(n-1-i).
    """

    law: NoiseLaw
    cells: int

    def tail_probability(self, margin: int) -> arb:
        """Return P(|S| > margin)."""
        n, k, rate = self.cells, margin + 1, ball(self.law.linear)
        q, p = (-rate).exp(), -(-rate).expm1()
        weight = (1 + q) ** -n
        sums = [weight]
        for j in range(1, n):
            weight = weight * (n - 1 + j) / j * q / (1 + q)
            sums.append(sums[-1] + weight)
        term, total = (-rate * (k + n - 1)).exp(), arb(0)
        for i in range(n - 1, -1, -1):
            total += sums[i] * term
            if i:
                term = term * (k + i) / (n - i) * (p / q)
        return 2 * total

    def mean_size(self) -> arb:
        """Return E|S| = Var X times the sum over i <= n of P(S_i = 0).

        |k| is the mean of (1 - cos kt)/(1 - cos t) over t, and 1 - phi^n = Var X (1 - cos t) (phi + ... + phi^n).
        P(S_i = 0) = (1-q)^2i/(1-q²)^(2i-1) times the sum over j < i of C(i-1, j)² q^2j.
        """
        rate = ball(self.law.linear)
        q, p, r = (-rate).exp(), -(-rate).expm1(), -(-2 * rate).expm1()
        total, squares = arb(0), [q ** (2 * j) for j in range(self.cells)]
        for i in range(1, self.cells + 1):
            inner = sum((math.comb(i - 1, j) ** 2 * squares[j] for j in range(i)), arb(0))
            total += inner * p ** (2 * i) / r ** (2 * i - 1)
        return variance(self.law) * total


@dataclass(frozen=True, slots=True)
class _Spectrum:
    """The law of S from its characteristic function.

    Attributes:
        period: M.
        weights: 2 phi^n/(M sin(pi j/M)) at j = 1, 2, ...; the last counts half at M/2.
        cut: a bound on the size of what the frequencies beyond add to a tail.
        cut_mean: a bound on the size of what they add to the expected size.
        folded: a bound on P(|S| > M/2).
    """

    law: NoiseLaw
    cells: int
    period: int
    weights: list[arb]
    cut: arb
    cut_mean: arb
    folded: arb

    @classmethod
    def of(cls, law: NoiseLaw, cells: int, excess: Fraction) -> "_Spectrum":
        bits = max(_DIGITS + _bits(1 / excess), _HALF)
        half = 2 * (_chernoff(law, cells, bits * math.log(2)) // 2 + 1)
        if law.scale is not None and law.sigma_squared is not None:
            half = 1 << half.bit_length()  # transforms of such a length are quickest
        period, tolerance = 2 * half, arb(2) ** -bits
        if law.rows:
            return cls._of_masses(law, cells, 1 << (period - 1).bit_length(), 2 * tolerance)
        table = characteristics(law, period)
        if table is None:
            fewest = smallest(
                lambda j: j >= 1 and (j >= half or _left_out(law, cells, period, j)[0] < tolerance), half // 8
            )
            last = min(fewest, half, _FREQUENCIES)
            table = [characteristic(law, j, period) for j in range(1, last + 1)]
        else:
            negligible = 2.0 ** (-(bits + 20) / cells)
            table = table[: next((j for j, phi in enumerate(table, 1) if float(phi.mid()) < negligible), half)]
        last = len(table)
        weights = [2 * _power(phi, cells) / (period * sine(j, period)) for j, phi in enumerate(table, 1)]
        if last == half:
            weights[-1] /= 2
        cut, cut_mean = (arb(0), arb(0)) if last >= half else _left_out(law, cells, period, last)
        return cls(law, cells, period, weights, cut, cut_mean, 2 * tolerance)

    @classmethod
    def _of_masses(cls, law: NoiseLaw, cells: int, period: int, folded: arb) -> "_Spectrum":
        if period > _LONGEST_PERIOD:
            raise ValueError("expected a sum of fewer cells, or a table of smaller values")
        powers = powers_of_masses(law.rows[0], cells, period)
        weights = [2 * power / (period * sine(j, period)) for j, power in enumerate(powers, 1)]
        weights[-1] /= 2
        return cls(law, cells, period, weights, arb(0), arb(0), folded)

    def tail_probability(self, margin: int) -> arb:
        """Return P(|S| > margin)."""
        if 2 * margin + 2 > self.period:
            return arb(0).union(self.folded)
        factor = ball(Fraction(2 * margin + 1, self.period))
        inside = sum((weight * (factor * j).sin_pi() for j, weight in enumerate(self.weights, 1)), factor)
        return 1 - inside + arb(0, self.cut.upper()) + arb(0).union(self.folded)

    def mean_size(self) -> arb:
        """Return E|S mod M| = M/4 - (2/M) times the sum over odd j of phi^n/sin²(pi j/M), with the part beyond M/2.

        The mean of |S| beyond M/2 is at most sqrt(E S² P(|S| > M/2)) (Cauchy and Schwarz). M/2 is even.
        """
        odd = enumerate(self.weights[::2])
        near = sum((weight / sine(2 * i + 1, self.period) for i, weight in odd), arb(0))
        exact = _mean_square(self.law.rows[0], self.cells) if self.law.rows else None
        square = self.cells * variance(self.law) if exact is None else ball(exact)
        far = arb((square * self.folded).abs_upper()).sqrt()
        return ball(Fraction(self.period, 4)) - near + arb(0, self.cut_mean.upper()) + arb(0).union(far)

    def likely_margin(self, excess: float) -> int:
        """Return the margin as found in doubles, without proof."""
        weights = np.array([float(weight.mid()) for weight in self.weights])
        j = np.arange(1, len(weights) + 1)
        low, high = -1, self.period // 2

        def beyond(margin: int) -> float:
            factor = (2 * margin + 1) / self.period
            return float(1 - factor - np.sum(weights * np.sin(np.pi * factor * j)))

        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if beyond(middle) <= excess else (middle, high)
        return high


def _power(phi: arb, cells: int) -> arb:
    """Return phi^n for phi > 0, also if its ball contains 0."""
    return phi**cells if phi > 0 else arb(0).union(arb(phi.abs_upper()) ** cells)


def _left_out(law: NoiseLaw, cells: int, period: int, last: int) -> tuple[arb, arb]:
    """Return bounds on the contributions of the frequencies beyond the last to a tail and to the expected size.

    The block from t to 2t, t = 2 pi j/M, has j frequencies, with phi <= phi(t) and sin(u/2) >= u/pi. So it adds at most
    (2/M) j phi(t)^n pi/t = phi(t)^n to a tail, and pi/t times as much to the expected size.
    """
    tail, mean, j = arb(0), arb(0), last
    while 2 * j < period:
        power = _power(characteristic(law, j, period), cells)
        tail += power
        mean += power * period / (2 * j)
        if power < arb(2) ** (-4 * ctx.prec):
            blocks = (period // j).bit_length()  # all others are smaller
            return tail + blocks * power, mean + blocks * power * period / j
        j *= 2
    return tail, mean


@dataclass(frozen=True, slots=True)
class NoiseSum:
    """The sum S of the noise of some cells, precise enough for confidences up to 1 - excess."""

    law: NoiseLaw
    cells: int
    excess: Fraction
    tails: _SingleCell | _GeometricRace | _Spectrum

    @classmethod
    def of(cls, law: NoiseLaw, cells: int, excess: Fraction) -> "NoiseSum":
        """Return the sum of several cells' noise.

        Args:
            excess: 1 less the largest confidence for which a margin will be computed.

        Raises:
            ValueError: the noise is too wide.
        """
        if cells == 1:
            return cls(law, cells, excess, _SingleCell(law))
        if len(law.rows) > 1:
            raise ValueError("expected a single cell: the noise of a table with rows depends on each count")
        with precision(_working_bits(cells, excess)):
            widest = 200 if law.scale is None or law.sigma_squared is None else 100
            if not cells * variance(law) <= ball(Fraction(1 << widest)):
                raise ValueError(f"expected noise of the sum with a variance of at most 2^{widest}")
            raced = law.sigma_squared is None and not law.rows and cells <= MOST_RACED_CELLS
            return cls(law, cells, excess, _GeometricRace(law, cells) if raced else _Spectrum.of(law, cells, excess))

    @property
    def method(self) -> str:
        """The method by which tails are found."""
        return "characteristic function" if isinstance(self.tails, _Spectrum) else "closed form"

    def margin(self, confidence: Fraction) -> tuple[int, float]:
        """Return the smallest m that is proven to have P(|S| > m) <= 1 - confidence, and the coverage, rounded down.

        If too few frequencies were computed to prove it, m is a larger one from Chernoff's bound.

        Returns:
            The margin in counts, and the coverage.

        Raises:
            ValueError: the confidence is out of range (``excess_of``).
        """
        if isinstance(self.tails, _SingleCell):
            least = margin_of_error(self.law, confidence)
            return least, coverage(self.law, least)
        excess = excess_of(confidence)
        with precision(_working_bits(self.cells, self.excess)):
            allowed = ball(excess)
            proven = _chernoff(self.law, self.cells, math.log(2 / excess) + 1e-9) - 1
            guess = self.tails.likely_margin(float(excess)) if isinstance(self.tails, _Spectrum) else proven // 2
            margin = smallest(
                lambda m: m >= proven or (m >= 0 and bool(self.tails.tail_probability(m) <= allowed)),
                min(guess, proven),
            )
            covered = 1 - self.tails.tail_probability(margin) + arb(0, arb(2) ** -ctx.prec)
        return margin, max(
            double_down(lower_bound(lambda: covered)), double_down(confidence) if margin == proven else 0
        )

    def variance(self) -> Fraction:
        """Return Var S, in counts squared, rounded up; of a table E S², more if it has a mean, for its worst row."""
        if self.law.rows:
            return max(_mean_square(row, self.cells) for row in self.law.rows)
        return self.cells * variance_of_cell(self.law)

    def mean_size(self) -> Fraction:
        """Return E|S|, in counts, rounded up; never above Var S, as S is whole."""
        if not isinstance(self.tails, _Spectrum):
            return require_finite(ceiling(self.tails.mean_size))
        with precision(_working_bits(self.cells, self.excess)):
            size = self.tails.mean_size()
        return min(require_finite(ceiling(lambda: size)), self.variance())


def _bits(value: Fraction) -> int:
    return max(0, value.numerator.bit_length() - value.denominator.bit_length() + 1)


def _working_bits(cells: int, excess: Fraction) -> int:
    return 2 * _HALF + _bits(1 / excess) + cells.bit_length()


def variance_of_cell(law: NoiseLaw) -> Fraction:
    """Return Var X of one cell, in counts squared, rounded up."""
    return require_finite(ceiling(lambda: variance(law)))


def require_finite(value: Fraction | None) -> Fraction:
    """Return the value, which must be finite.

    Args:
        value: None if it is infinite, or unknown at every precision.

    Raises:
        ArithmeticError: the value is None.
    """
    if value is None:
        raise ArithmeticError("expected a finite number")
    return value
