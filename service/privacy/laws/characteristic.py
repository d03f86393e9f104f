"""Characteristic functions of integer noise, E[cos(tX)] at t = 2 pi j/M, as balls.

For all laws but tables it is positive and falls from t = 0 to t = pi. For the geometric law and the discrete Gaussian
(a theta function, a product of falling factors) the formula shows this. The mass of the joint law is the product of
theirs, so its transform is the circular convolution of theirs. Both are mixtures of symmetric arcs, and convolutions of
such mixtures are such mixtures.
"""

import math
from fractions import Fraction

from flint import acb, arb, ctx, fmpq

from service.privacy.laws.noise_law import Masses, NoiseLaw
from service.privacy.numerics.half_gaussian_sums import half_line, term_count
from service.privacy.numerics.numbers import ball

_DUAL_FROM = Fraction(1, 2)  # sigma²: from here on a few terms of the dual sum suffice
_TABLE = 1 << 15  # frequencies that are transformed at once
_DIRECT = 400  # sums of fewer terms are taken term by term
_SMALL = 256  # sigma²: below it Cauchy's estimate is too coarse
_ORDERS = range(16, 400, 8)


def characteristic(law: NoiseLaw, j: int, period: int) -> arb:
    """Return E[cos(2 pi j X/period)] for 0 <= 2j <= period, at the precision in force."""
    if law.sigma_squared is None:
        side = sine(j, period) / (ball(law.linear) / 2).sinh()
        return 1 / (1 + side * side)
    if law.scale is None:
        return _theta(law.sigma_squared, j, period)
    offset, x = law.sigma_squared * law.linear, ball(law.sigma_squared) * 2 * arb.pi() * j / period
    whole = half_line(ball(offset), law.sigma_squared, 1, lattice=True)[0]
    return _half_line_at(acb(ball(offset), x), law.sigma_squared).real / whole


def characteristics(law: NoiseLaw, period: int) -> list[arb] | None:
    """Return the characteristic function of a joint law at j = 1, ..., period/2; None if one by one is better.

    The mass is folded onto one period. The mass beyond half of it must be negligible, and is added as a radius.

    Args:
        period: even.
    """
    if law.sigma_squared is None or law.scale is None or period > _TABLE:
        return None
    half, quadratic, linear = period // 2, ball(law.quadratic), ball(law.linear)
    mass, ratio, shrink = [arb(1)], (-quadratic - linear).exp(), (-2 * quadratic).exp()
    for _ in range(half):
        mass.append(mass[-1] * ratio)
        ratio *= shrink
    beyond = 2 * mass[-1] * ratio / (1 - ratio)
    folded = [acb(one) for one in (*mass[: half + 1], *mass[half - 1 : 0 : -1])]
    transformed = acb.dft(folded)
    # The place half of the period stands for -half as well, and is in the law once.
    whole = transformed[0].real + arb(0, (mass[half] + beyond).upper())
    radius = arb(0, (mass[half] + beyond).upper())
    return [(one.real + radius) / whole for one in transformed[1 : half + 1]]


def powers_of_masses(masses: Masses, cells: int, period: int) -> list[arb]:
    """Return the real part of E[exp(2 pi i j X/period)]^cells of a law given by its masses at j = 1, ..., period/2.

    Args:
        period: even.
    """
    folded = [acb(0)] * period
    for value, mass in masses:
        folded[value % period] += ball(mass)
    return [(one**cells).real for one in acb.dft(folded)[1 : period // 2 + 1]]


def sine(j: int, period: int) -> arb:
    """Return sin(pi j/period)."""
    return arb.sin_pi_fmpq(fmpq(j, period))


def _theta(v: Fraction, j: int, period: int) -> arb:
    """Return E[cos(2 pi j X/period)] of a discrete Gaussian, by the sum over the integers or its dual (Poisson).

    The omitted tails are radii.
    """
    if v < _DUAL_FROM:
        last = term_count(float(v), ctx.prec)
        rate, at, all_mass = 1 / (2 * ball(v)), arb(1), arb(1)
        for x in range(1, last + 1):
            weight = 2 * (-rate * x * x).exp()
            at += weight * arb.cos_pi_fmpq(fmpq(2 * j * x, period))
            all_mass += weight
        rest = arb(0, (4 * (-rate * (last + 1) ** 2).exp()).upper())
        return (at + rest) / (all_mass + rest)
    half_turn = 2 * arb.pi() ** 2 * ball(v)  # exp(-v (2 pi u)²/2) = exp(-half_turn u²)
    u, at, all_mass = ball(Fraction(j, period)), arb(0), arb(0)
    last = 2 + math.isqrt(math.ceil(ctx.prec / 14 / float(min(v, Fraction(10**6)))))
    for k in range(-last, last + 1):
        at += (-half_turn * (u + k) ** 2).exp()
        all_mass += (-half_turn * k * k).exp()
    # Relative to the middle term: beyond it |u + k|² - u² is at least (last+1)², as 0 <= u <= 1/2, less last + 1.
    rest = 4 * (-half_turn * (last + 1) * last).exp()
    relative = 1 + arb(0, rest.upper())
    return at * relative / (all_mass * relative)


def _half_line_at(z: acb, v: Fraction) -> acb:
    """Return the trapezoid sum of exp(-(2zy + y²)/(2v)) over the integers y >= 0 for complex z, Re z >= 0."""
    rate = float((z.real / ball(v)).mid())
    count = min(
        ctx.prec * 0.7 / rate if rate else math.inf, math.sqrt(ctx.prec * 1.4 * float(min(v, Fraction(10**30))))
    )
    if count < _DIRECT or v < _SMALL:
        return _direct(z, ball(v))
    return _euler_maclaurin(z, v)


def _direct(z: acb, v: arb) -> acb:
    """Add term by term, as ``half_gaussian_sums`` does for real z; the rest is below a geometric sum."""
    term, ratio, shrink = acb(1), (-(2 * z + 1) / (2 * v)).exp(), (-1 / v).exp()
    total, tiny = acb(0.5), arb(2) ** -ctx.prec
    while True:
        term, ratio = term * ratio, ratio * shrink
        size, falls = arb(term.abs_upper()), arb(ratio.abs_upper())
        if not size.is_finite() or (size < tiny and falls < 0.9999):
            break
        total += term
    radius = arb(0, (size / (1 - falls)).upper())
    return total + acb(radius, radius)


def _euler_maclaurin(z: acb, v: Fraction) -> acb:
    """Return the moment 0 as ``half_gaussian_sums._euler_maclaurin`` does, with |z| for x in Cauchy's estimate:

    |g(y + rho)| <= exp(-(2 x y + y²)/(2v)) exp((2 |z| r + 2 y r + r²)/(2v)) on circles |rho| = r, x = Re z.
    """
    variance = ball(v)
    root = (2 * variance).sqrt()
    w = z / root
    rate = float((abs(z) / variance).abs_upper())
    n, radius, least = 0, 0.0, math.inf
    for order in _ORDERS:
        reach = order / max(3.0, 2 * rate)
        log = math.lgamma(order + 1) - order * math.log(2 * math.pi * reach) + reach * rate + reach * reach / float(v)
        if log < least:
            n, radius, least = order, reach, log
        if log < -0.7 * ctx.prec:
            break
    total = (arb.pi() * variance / 2).sqrt() * _scaled_erfc(w)
    slope, curvature = -z / variance, 1 / variance
    before, derivative = acb(1), slope
    for i in range(1, n, 2):
        total -= arb(fmpq.bernoulli(i + 1) / math.factorial(i + 1)) * derivative
        before, derivative = derivative, slope * derivative - i * curvature * before
        before, derivative = derivative, slope * derivative - (i + 1) * curvature * before
    r, x = ball(Fraction(radius)), z.real
    shifted = half_line(x - r, v, 1, lattice=False)[0]
    # 2 zeta(n) < 4
    scale = 4 * math.factorial(n) / (2 * arb.pi() * r) ** n * ((2 * r * abs(z) + r * r) / (2 * variance)).exp()
    bound = arb(0, (scale * shifted).upper())
    return total + acb(bound, bound)


def _scaled_erfc(w: acb) -> acb:
    """Return exp(w²) erfc(w); the exponential loses the digits that the square has before its point."""
    extra = max(0, int(math.log2(max(1.0, float(min(abs(w * w).abs_upper(), arb(1e30)))))))
    with ctx.workprec(ctx.prec + extra + 8):
        return (w * w).exp() * w.erfc()
