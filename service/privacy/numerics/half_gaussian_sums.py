"""Sums and integrals of a Gaussian over a half-line, as balls: the parts of the formulas of offset tails.

With g(y) = exp(-(2 x y + y²)/(2 v)), v = sigma², these are the moments of g over y >= 0. On the real line they are
integrals. On the integers they are sums by the trapezoid rule (the term at 0 counts half), so that both noises have the
same formulas. g(y) = f(x + y)/f(x) for the Gaussian f, so nothing overflows for x >= 0.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from flint import arb, ctx, fmpq

from service.privacy.numerics.numbers import ball

_DIRECT_BELOW = 256  # sigma²: up to here a sum over the integers takes a few hundred terms
_DIRECT_RATE = 0.25  # nats by which g falls per count: from here on too
_POISSON_FROM = Fraction(1, 2)  # sigma²: from here on three terms of the dual sum suffice


def half_line(x: arb, v: Fraction, moments: int, *, lattice: bool) -> list[arb]:
    """Return the first ``moments`` moments of g, of y^p g(y) over y >= 0; for x >= 0 or about 0, else they overflow.

    If few terms matter, a sum is taken term by term, else by the Euler-Maclaurin formula.

    Args:
        v: sigma², above 0.
        lattice: take the trapezoid sum over the integers; if false, the integral.

    Returns:
        Balls at the precision in force, moment 0 first.
    """
    if not lattice:
        return _integrals(x, ball(v), moments)
    short = v < _DIRECT_BELOW or not x < ball(v) * _DIRECT_RATE
    order = None if short else _order(x, v)
    return _sums(x, ball(v), moments) if order is None else _euler_maclaurin(x, v, moments, *order)


def log_half_line(x: arb, v: Fraction, *, lattice: bool) -> arb:
    """Return log of the moment 0 for any x: left of 0 it is the whole line less the other half.

    The whole line is exp(x²/(2 v)) times ``whole_line``.

    Returns:
        A ball at the precision in force; NaN if that precision is too low to know x.
    """
    if not abs(x.rad()) < 1:
        return arb.nan()  # a higher precision is needed
    if not x < 0:
        return half_line(x, v, 1, lattice=lattice)[0].log()  # also for a narrow ball around 0
    square = x * x / (2 * ball(v))
    (other,) = half_line(-x, v, 1, lattice=lattice)
    return square + (whole_line(x, v, lattice=lattice) - (-square).exp() * other).log()


def whole_line(x: arb, v: Fraction, *, lattice: bool) -> arb:
    """Return the integral of exp(-(y+x)²/(2 v)) over the real line, or its sum over the integers y."""
    if lattice and v < _POISSON_FROM:
        u = x - (x + arb(0.5)).mid().floor()
        return (-u * u / (2 * ball(v))).exp() * (1 + gaussian_side(u, ball(v)))
    total = arb(1)
    if lattice:
        # Poisson: 1 + 2 sum over k >= 1 of r^(k²) cos(2 pi k x), r = exp(-2 pi² v); the rest is below a geometric sum.
        r = (-2 * arb.pi() ** 2 * ball(v)).exp()
        last = math.isqrt(math.ceil(ctx.prec * Fraction(4, 100) / v)) + 1  # 2 pi² v last² > prec log 2
        for k in range(1, last):
            total += 2 * r ** (k * k) * (2 * k * x).cos_pi()
        rest = 2 * r ** (last * last) / (1 - r)
        total += rest.union(-rest)
    return (2 * arb.pi() * ball(v)).sqrt() * total


def gaussian_terms(u: Any, variance: Any, how_many: int, exp: Callable[[Any], Any]) -> Any:
    """Return the terms of ``gaussian_side`` for 0 < |y| <= ``how_many``, in any arithmetic with such an ``exp``."""
    side, rate = 0, 1 / (2 * variance)
    for y in range(1, how_many + 1):
        even, odd = -(y * y) * rate, (2 * y) * u * rate
        side = side + exp(even + odd) + exp(even - odd)
    return side


def gaussian_side(u: arb, variance: arb) -> arb:
    """Return the sum over integers y other than 0 of exp(-(y² - 2 y u)/(2 v)), |u| <= 1/2 (``term_count`` terms).

    The omitted terms are added as a radius; the result is NaN if the precision is too low to know u. For |u| <= 1 (u
    exceeds 1/2 by rounding at most) they are at most exp(-(y²-2y)/(2 v)). From y = n+1 on, each is at most
    exp(-(2n+1)/(2 v)) times the one before, so both sides together are below 2 exp(-(n²-1)/(2 v)) / (1 - exp(-(2n+1)/(2
    v))).
    """
    if not abs(u) < 1:
        return arb.nan()
    n = term_count(float(variance.mid()), ctx.prec)
    beyond = 2 * (-(n * n - 1) / (2 * variance)).exp() / -(-(2 * n + 1) / (2 * variance)).expm1()
    side: arb = gaussian_terms(u, variance, n, arb.exp)
    return side + arb(0, beyond.upper())


def term_count(variance: float, bits: int) -> int:
    """Return the number n of terms that leaves about 2^-bits beyond them: n² - 1 > 2 variance bits log 2."""
    return math.isqrt(math.ceil(2 * variance * bits * 0.7)) + 2


def _integrals(x: arb, v: arb, moments: int) -> list[arb]:
    """Return the moments: moment 0 is sigma times Mills' ratio, the others follow by parts from g' = -(x+y) g/v.

    erfc(w) = exp(-w²) U(1/2, 1/2, w²)/sqrt(pi) (DLMF 7.11.3, 13.6.8), for w whose exponential has too many digits.
    """
    square = x * x / (2 * v)
    if x > 0 and square > 1000:
        zero = (v / 2).sqrt() * square.hypgeom_u(arb(0.5), arb(0.5))
    else:
        zero = (arb.pi() * v / 2).sqrt() * square.exp() * (x / (2 * v).sqrt()).erfc()
    integrals = [zero, v - x * zero]
    for p in range(1, moments - 1):
        integrals.append(p * v * integrals[p - 1] - x * integrals[p])
    return integrals[:moments]


def _sums(x: arb, v: arb, moments: int) -> list[arb]:
    """Return the moments, summed term by term: g(y+1)/g(y) = exp(-(2x+2y+1)/(2v)) falls by exp(-1/v) for each y.

    So three exponentials suffice for all terms. The terms from y on are below the geometric sums of g(y) q^i (y+i)^p,
    where q is the ratio at y: g(y)/(1-q) for p = 0, and at most g(y) p! (y+1)^p/(1-q)^(p+1).
    """
    term, ratio, shrink = arb(1), (-(2 * x + 1) / (2 * v)).exp(), (-1 / v).exp()
    totals = [arb(0.5)] + [arb(0)] * (moments - 1)
    tiny, y = arb(2) ** -ctx.prec, 0
    while True:
        term, ratio, y = term * ratio, ratio * shrink, y + 1
        if not term.is_finite() or (term < tiny and ratio < 0.999):
            break
        for p in range(moments):
            totals[p] += y**p * term
    return [
        total + arb(0).union(math.factorial(p) * term * (arb(y + 1) ** p) / (1 - ratio) ** (p + 1))
        for p, total in enumerate(totals)
    ]


def _euler_maclaurin(x: arb, v: Fraction, moments: int, n: int, radius: Fraction) -> list[arb]:
    """Return the integrals with the corrections at 0 (DLMF 2.10.1), for f(y) = y^p g(y):

    sum' of f  =  integral of f  -  sum over k = 1..n/2 of B_2k/(2k)! f^(2k-1)(0)  +  R.

    g^(i)(0) = (-1/sigma)^i He_i(x/sigma), and f^(i)(0) = i!/(i-p)! g^(i-p)(0). |R| <= 2 zeta(n)/(2 pi)^n times
    the integral of |f^(n)|. By Cauchy's estimate on circles of any radius r, with (y + r)^p bounding |zeta|^p,
        |f^(n)(y)| <= n!/r^n (y+r)^p g(y) exp((2 r (x + y) + r²)/(2 v)),
    and g(y) exp(r y/v) is g with x - r in place of x.
    """
    variance, r = ball(v), ball(radius)
    totals = _integrals(x, variance, moments)
    slope, curvature = -x / variance, 1 / variance
    # Derivatives of g at 0, from g' = -(x+y) g/v: g^(i+1) = -(x g^(i) + i g^(i-1))/v.
    derivatives = [arb(1), slope]
    for i in range(1, n):
        derivatives.append(slope * derivatives[i] - i * curvature * derivatives[i - 1])
    for i in range(1, n, 2):
        weight = arb(_bernoulli_over_factorial(i + 1))
        for p in range(min(i + 1, moments)):
            totals[p] -= weight * math.perm(i, p) * derivatives[i - p]
    shifted = _integrals(x - r, variance, moments)
    bounds = [sum((math.comb(p, i) * r ** (p - i) * shifted[i] for i in range(p + 1)), arb(0)) for p in range(moments)]
    # 2 zeta(n) < 4
    scale = 4 * math.factorial(n) / (2 * arb.pi() * r) ** n * ((2 * r * x + r * r) / (2 * variance)).exp()
    return [total + arb(0, (scale * bound).upper()) for total, bound in zip(totals, bounds, strict=True)]


def _order(x: arb, v: Fraction) -> tuple[int, Fraction] | None:
    """Return an even n and a radius r whose remainder is below the precision in force; None if none is found.

    The choice is not part of the proof: the remainder is bounded for any n and r. By Stirling it is about exp(-n log(2
    pi e r/n) + r²/v + r x/v); r = n/3 makes the first term n log 5.7, unless sigma is too small for it.
    """
    variance, rate = float(min(v, Fraction(10**30))), float((x / ball(v)).mid())
    for n in range(8, ctx.prec, 8):
        r = min(n / 3, math.sqrt(n * variance) / 2)
        log = math.lgamma(n + 1) - n * math.log(2 * math.pi * r) + r * r / variance + r * rate
        if log < -math.log(2) * ctx.prec:
            return n, Fraction(r)
    return None


@lru_cache(maxsize=1200)
def _bernoulli_over_factorial(n: int) -> fmpq:
    return fmpq.bernoulli(n) / math.factorial(n)
