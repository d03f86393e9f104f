"""How far noise strays: certified tails of |X|, margins of error, coverages.

A margin is never too small and a coverage never too large: each rests on a ball that contains
P(|X| > m), not on an approximation of it.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from flint import arb, ctx, fmpq

from service.privacy.law import Law
from service.privacy.numbers import ball, double_down, floor as lower_bound, precision

SMALLEST_EXCESS = Fraction(1, 10**30)  # of 1 - confidence
_PRECISIONS = (128, 256, 512, 1024, 2048, 4096)  # bits
_DIRECT_BELOW = 256  # sigma²: up to here a sum over the integers takes a few hundred terms


def tail(law: Law, margin: int) -> arb:
    """A ball that contains P(|X| > margin), about as narrow as the precision in force, absolutely.

    Raises:
        ValueError: a margin below 0.
    """
    if margin < 0:
        raise ValueError(f"expected a margin of at least 0, got {margin}")
    if law.linear:
        return _geometric_tail(law.linear, margin + 1)
    sigma_squared = 1 / (2 * law.quadratic)
    if sigma_squared < _DIRECT_BELOW:
        return _direct_tail(law.quadratic, margin + 1)
    return _euler_maclaurin_tail(sigma_squared, margin + 1)


def excess_of(confidence: Fraction) -> Fraction:
    """1 - confidence: the probability that noise may lie beyond the margin of error.

    Raises:
        ValueError: a confidence that is not between 0 and 1, or so near 1 that no margin means it.
    """
    if not 0 < confidence < 1:
        raise ValueError("expected a confidence above 0 and below 1")
    if 1 - confidence < SMALLEST_EXCESS:
        raise ValueError("expected a confidence of at most 1 - 1e-30")
    return 1 - confidence


def within(law: Law, margin: int, excess: Fraction) -> bool:
    """Whether P(|X| > margin) <= excess is proven; a tie that no precision decides is not."""
    for bits in _PRECISIONS:
        with precision(bits):
            beyond, allowed = tail(law, margin), ball(excess)
            if beyond <= allowed:
                return True
            if beyond > allowed:
                return False
    return False


def margin_of_error(law: Law, confidence: Fraction) -> int:
    """The margin of error in counts: the smallest integer m with P(|X| > m) <= 1 - confidence.

    Where balls cannot decide between m and m + 1 it is the larger.

    Raises:
        ValueError: a confidence out of range, see ``excess_of``.
    """
    excess = excess_of(confidence)
    return smallest(lambda margin: margin >= 0 and within(law, margin, excess), _likely_margin(law, excess))


def coverage(law: Law, margin: int) -> float:
    """P(|X| <= margin), rounded down to a double; so it is below 1.

    Raises:
        ValueError: a margin below 0.
    """
    # The slack is below the precision; without it the ball around 1 of a very deep tail has a
    # radius whose binary exponent is too long to write out as a rational.
    return double_down(lower_bound(lambda: 1 - tail(law, margin) + arb(0, arb(2) ** -ctx.prec)))


def smallest(holds: Callable[[int], bool], guess: int) -> int:
    """The smallest n with ``holds(n)``, for a property that once true stays true as n grows.

    Two calls where ``guess`` is right, about log2 of its error more where it is not: steps grow
    eightfold until they straddle the answer, then halve.
    """
    step = 1
    if holds(guess):
        high, low = guess, guess - 1
        while holds(low):
            step *= 8
            high, low = low, low - step
    else:
        low, high = guess, guess + 1
        while not holds(high):
            step *= 8
            low, high = high, high + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _likely_margin(law: Law, excess: Fraction) -> int:
    """The margin of error but for rounding: the geometric tail solved for m, or the normal quantile."""
    size = law.scale if law.scale is not None else 1 / (2 * law.quadratic)
    bits = max(0, size.numerator.bit_length() - size.denominator.bit_length())
    with precision(128 + bits):
        if law.linear:
            q = (-ball(law.linear)).exp()
            margin = (2 / (ball(excess) * (1 + q))).log() / ball(law.linear) - 1
        else:
            # The integers beyond m are the unit intervals beyond m + 1/2.
            margin = ball(excess).erfcinv() / ball(law.quadratic).sqrt() - arb(0.5)
        return max(0, int(margin.mid().ceil().fmpz()))


def _geometric_tail(rate: Fraction, first: int) -> arb:
    """P(|X| >= first) for mass proportional to q^|x|, q = exp(-rate): 2 q^first/(1-q) over (1+q)/(1-q)."""
    return 2 * (-ball(rate * first)).exp() / (1 + (-ball(rate)).exp())


def _direct_tail(quadratic: Fraction, first: int) -> arb:
    """P(|X| >= first) for mass proportional to exp(-c x²), first >= 1: a sum over a sum."""
    return 2 * _one_sided_sum(quadratic, first) / (1 + 2 * _one_sided_sum(quadratic, 1))


def _one_sided_sum(quadratic: Fraction, first: int) -> arb:
    """The sum of f(x) = exp(-c x²) over the integers x >= first >= 0, c = ``quadratic``.

    f(x+1)/f(x) = exp(-c (2x+1)) falls by the constant exp(-2c) from one x to the next, so three
    exponentials serve for all terms. The ratios fall, so that what lies from ``last`` on is a
    sum below the geometric one, f(last)/(1 - f(last+1)/f(last)): it widens the ball.
    """
    # c (last² - first²) is at least the precision times log 2, so the rest is below the rounding.
    last = math.isqrt(first * first + math.ceil(Fraction(7, 10) * ctx.prec / quadratic)) + 1
    term = (-ball(quadratic * first * first)).exp()
    ratio = (-ball(quadratic * (2 * first + 1))).exp()
    shrink = (-ball(2 * quadratic)).exp()
    total = arb(0)
    for _ in range(first, last):
        total += term
        term *= ratio
        ratio *= shrink
    return total + (term / (1 - ratio)).union(arb(0))


def _euler_maclaurin_tail(sigma_squared: Fraction, first: int) -> arb:
    """P(|X| >= first) for mass proportional to f(x) = exp(-x²/(2 sigma²)), sigma >= 16, first >= 1.

    With a = first and t = a/sigma, the Euler-Maclaurin formula (DLMF 2.10.1) on [a, infinity) says

        sum of f(x), x >= a  =  integral of f  +  f(a)/2  -  sum over k = 1..K of B_2k/(2k)! f^(2k-1)(a)  +  R,
        |R| <= |B_2K|/(2K)! integral of |f^(2K)|,    |B_2K|/(2K)! = 2 zeta(2K)/(2 pi)^2K.

    Derivatives are Hermite polynomials: f^(n)(x) = (-1)^n sigma^-n He_n(x/sigma) f(x). In the sum n
    is odd, which makes its minus a plus; below, g_n = He_n(t)/sigma^n. The integral of |f^(2K)| over
    half the line is sigma^(1-2K) sqrt(2 pi) E|He_2K(Z)|/2 for a standard normal Z, and
    E|He_n(Z)| <= sqrt(E He_n(Z)²) = sqrt(n!) by Cauchy-Schwarz.

    The sum over all integers is sigma sqrt(2 pi) (1 + 2w), w = the sum over k >= 1 of r^(k²) with
    r = exp(-2 pi² sigma²), by Poisson summation; r <= w <= r/(1-r). Dividing, with zeta(2K) < 2,

        P = (erfc(t/sqrt 2) + 2 f(a)/(sigma sqrt(2 pi)) (1/2 + sum of B_2k/(2k)! g_(2k-1)) + R') / (1 + 2w),
        |R'| <= 4 sqrt((2K)!)/(2 pi sigma)^2K.
    """
    order = _euler_maclaurin_order(sigma_squared)
    sigma, half_square = ball(sigma_squared).sqrt(), ball(first * first / (2 * sigma_squared))
    slope, curvature = ball(first / sigma_squared), ball(1 / sigma_squared)  # t/sigma and 1/sigma²
    # He_(n+1)(t) = t He_n(t) - n He_(n-1)(t); n runs over the odd numbers 2k - 1.
    even, odd = arb(1), slope
    series = arb(0.5)
    for n in range(1, 2 * order, 2):
        series += arb(_bernoulli_over_factorial(n + 1)) * odd
        even = slope * odd - n * curvature * even
        odd = slope * even - (n + 1) * curvature * odd
    mass = (-half_square).exp() / (sigma * (2 * arb.pi()).sqrt())
    remainder = 4 * arb(math.factorial(2 * order)).sqrt() / (2 * arb.pi() * sigma) ** (2 * order)
    r = (-2 * (arb.pi() * sigma) ** 2).exp()
    total = 1 + 2 * r.union(r / (1 - r))
    return (half_square.sqrt().erfc() + 2 * mass * series + remainder.union(-remainder)) / total


def _euler_maclaurin_order(sigma_squared: Fraction) -> int:
    """The smallest K whose remainder is below the precision in force, or else the one of least remainder.

    It is only a choice: the remainder is bounded whatever K is. It falls with K as long as
    2K < (2 pi sigma)², and at sigma = 16 that reaches beyond 7000 bits.
    """
    log_step = math.log(2 * math.pi) + (math.log(sigma_squared.numerator) - math.log(sigma_squared.denominator)) / 2
    order, enough = 1, -math.log(2) * ctx.prec
    while math.lgamma(2 * order + 1) / 2 - 2 * order * log_step > enough and math.log(2 * order) < 2 * log_step:
        order += 1
    return order


@lru_cache(maxsize=1200)
def _bernoulli_over_factorial(n: int) -> fmpq:
    return fmpq.bernoulli(n) / math.factorial(n)
