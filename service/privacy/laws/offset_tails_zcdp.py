"""zCDP of offset symmetric Gaussian tails: the KL divergence, where it is proven to bound every tau(alpha)/alpha.

Write K(z) = z tau(z+1), w = z + 1/2, p = z(z+1) = w² - 1/4. K(0) = 0, K is even in w, KL = K'(0), and the claim
is K <= KL p for all z > 0.

**Continuous noise**: it holds if K''(0) <= 2 K'(0), which is one comparison. In units of sigma, with
a = m + s/2 and v = w s, completing the square gives K = p s²/2 + log B(v) - log B(s/2),

    B(v) = Q(a-v) + Q(a+v) + s phi(a) e^(s²/8 - v²/2) times the integral of cosh(2 a v t) e^(-s² t²/2), |t| <= 1/2,

and p is (v² - s²/4)/s², so it is enough that log B is concave in v² from v = s/2 on: that B'/(v B) falls.
 1. By parts, B'/v = c e^(-v²/2) W(v), c > 0, W the integral of cosh(2 a v t) u(t) over |t| <= 1/2 with
    u(t) = (2 + 2m/s) e^(s² (1/4 - t²)/2) - (1 + 2m/s), which is 1 or more.
 2. U = -log u has U' = s² t/(1 - k e^(s² t²/2)) with k e^(s²/8) < 1, convex on [0, 1/2]: the even density u is a
    limit of those that satisfy the GHS inequality (Ellis, Monroe, Newman 1976, Comm. Math. Phys. 46): the
    third derivative of log W is nowhere above 0 on v >= 0, hence W'/(v W) falls.
 3. Let l = W'/W - v, the derivative of log (B'/v); l/v falls. Where l <= 0, B'/(v B) falls, as B grows. Where
    l > 0, on an interval from 0, it falls where F = B'/l - B >= 0; and F' = B' (l/v - l')/l² >= 0. So it falls
    everywhere from v = s/2 on if it falls at v = s/2, and there it says K''(0) <= 2 K'(0).

**On the integers** the sums have ripples of relative size exp(-2 pi² sigma²), and steps 1 and 2 have no
counterpart. There the claim is verified for each mechanism (``_is_proven``), with a slack if it is needed.
"""

import math
from fractions import Fraction

from flint import arb

from service.privacy.laws.offset_tails import TailParameters, is_too_wide, loss_moments, osgt_tau, product_tau
from service.privacy.numerics.arithmetic import BALLS
from service.privacy.numerics.numbers import ball, ceiling, precision

_PRECISIONS = (160, 320, 640, 1280, 2560)  # bits
_ATTEMPTS = tuple(
    (degree, Fraction(slack))
    for degree, slack in ((3, "0"), (24, "0"), (3, "1e-10"), (3, "1e-8"), (3, "1e-6"), (3, "1e-4"))
)
"""Degrees of the series in ``_is_proven`` and slacks, relative, of rho: the cheapest first, then the tightest."""
_NEGLIGIBLE = Fraction(1, 10**12)  # a gain, relative to rho, that is not worth a proof
_HALVINGS = 100
_EVALUATIONS = 150  # of K in one attempt
_WIDEST, _NARROWEST = Fraction(2), Fraction(1, 1000)  # steps of z, relative


def osgt_rho(mechanism: TailParameters) -> Fraction:
    """Return rho (nats) of one cell moved by the sensitivity, rounded up.

    It is the KL divergence if that is proven. Otherwise it is s²/(2v) + s m/v, because ``product_tau`` at order 1
    bounds tau(alpha)/alpha at every order.
    """
    otherwise = product_tau(mechanism, Fraction(1))
    if is_too_wide(mechanism):
        return otherwise
    divergence = ceiling(lambda: loss_moments(mechanism)[0])
    if divergence is None or divergence >= otherwise * (1 - _NEGLIGIBLE) or not _starts_below(mechanism):
        return otherwise
    if not mechanism.on_integers:
        return min(divergence, otherwise)
    for degree, slack in _ATTEMPTS:
        if _is_proven(mechanism, divergence * (1 + slack), degree):
            return min(divergence * (1 + slack), otherwise)
    return otherwise


def _starts_below(mechanism: TailParameters) -> bool:
    """Tell whether K''(0) <= 2 K'(0) is proven: the loss's variance is at most twice its mean."""
    for bits in _PRECISIONS:
        with precision(bits):
            mean, square = loss_moments(mechanism)
            excess = square - mean * mean - 2 * mean
            if excess <= 0:
                return True
            if excess > 0:
                return False
    return False


def _is_proven(mechanism: TailParameters, rho: Fraction, degree: int) -> bool:
    """Tell whether K(z) <= rho z(z+1) is proven for all z > 0; rho is at least KL, and K''(0) <= 2 KL.

    **From 0 to some b**: ``_proven_start``. **From there** K, convex in z, is below the chords of a partition, and
    these below the parabola. **Beyond** the order where ``product_tau`` is alpha*rho, that bound serves.
    """
    with precision(_bits(mechanism, degree)):
        s, v = Fraction(mechanism.sensitivity), mechanism.sigma_squared
        excess = rho - s * s / (2 * v)
        if excess <= 0:
            return False
        last, target = s * mechanism.m / v / excess, ball(rho)
        z = _proven_start(mechanism, target, degree, last)
        if z is None:
            return False
        at_z, step = _cumulant(mechanism, z), _WIDEST
        for _ in range(_EVALUATIONS):
            if z >= last:
                return True
            further = z * (1 + step)
            beyond = _cumulant(mechanism, further)
            if _chord_is_below(target, ball(z), at_z, ball(further), beyond):
                z, at_z, step = further, beyond, min(step * 2, _WIDEST)
            else:
                step /= 2
                if step < _NARROWEST:
                    return False
        return False


def _proven_start(mechanism: TailParameters, rho: arb, degree: int, last: Fraction) -> Fraction | None:
    """Return a b with K <= rho p proven up to it, the largest of last, last/2, ...; None if there is none.

    M = exp(K) is the mean of cosh(w L) over a symmetric loss L, so it is a power series in w² without negative
    coefficients. So its excess over its Taylor polynomial of degree n - 1 about p = 0, divided by p^n, grows with p: up
    to p_b, M <= the sum of M_k p^k/k! + E p^n with E from M(p_b). If M_k <= rho^k for all k < n and M(p_b) <= the sum
    of x^k/k! up to k = n, x = rho p_b, then this also holds below p_b: that sum less this one has no negative
    coefficient except perhaps the last, and is not negative at p_b. And the sum is below e^x.

    M_1 = KL <= rho and M_2 = KL² + K''(0) - 2 KL <= rho² are known. As d/dp = 1/(2w) d/dw, M_k = the sum over i < k of
    (-1)^i (k-1+i)!/(i! (k-1-i)!) E L^(k-i), at w = 1/2.
    """
    if degree > 3:
        moments = [arb(1), *loss_moments(mechanism, degree - 1)]
        for k in range(3, degree):
            terms = (_bessel(k, i) * moments[k - i] for i in range(k))
            if not sum(terms, arb(0)) <= rho**k:
                return None
    for halvings in range(_HALVINGS):
        b = last / (1 << halvings)
        x = rho * ball(b * (b + 1))
        series = sum((x**k / math.factorial(k) for k in range(degree + 1)), arb(0))
        if _cumulant(mechanism, b) <= series.log():
            return b
    return None


def _bessel(k: int, i: int) -> int:
    size = math.factorial(k - 1 + i) // (math.factorial(i) * math.factorial(k - 1 - i))
    return -size if i % 2 else size


def _bits(mechanism: TailParameters, degree: int) -> int:
    """Return a working precision: M_k is near (s²/2v)^k and its bound, and is made of moments near s²/v."""
    size = mechanism.sigma_squared / Fraction(mechanism.sensitivity) ** 2
    return 160 + degree * (8 + max(0, size.numerator.bit_length() - size.denominator.bit_length()))


def _cumulant(mechanism: TailParameters, z: Fraction) -> arb:
    tau: arb = osgt_tau(mechanism, ball(z), BALLS)
    return ball(z) * tau


def _chord_is_below(rho: arb, a: arb, at_a: arb, b: arb, at_b: arb) -> bool:
    """Tell whether the straight line through two points of K is nowhere above rho z(z+1)."""
    slope = (at_b - at_a) / (b - a)
    lowest = (slope / rho - 1) / 2  # where the parabola is parallel to it
    return bool(rho * lowest * (lowest + 1) >= at_a + slope * (lowest - a))
