"""rho of k-ary randomised response: the largest tau(alpha)/alpha, which is not at alpha = 1 if there are many values.

With w = alpha - 1/2, y = epsilon w and b = (k - 2)/(2 exp(epsilon/2)), the moment generating function of the loss is
proportional to b + cosh(y), and alpha (alpha - 1) = w² - 1/4. So rho is epsilon² times the largest
s(y) = (f(y) - f(y0))/(y² - y0²) over y > y0 = epsilon/2, for f(y) = log(b + cosh(y)).

f as a function of y² is convex up to one point, and concave from there on. For its slope is half of
sinh(y)/(y (b + cosh(y))), which grows where R(y) = (sinh(2y) - 2y)/(2 y cosh(y) - 2 sinh(y)) < b. And R grows from 2
on, since the quotients 2^(2n-1)/n of its power series' coefficients do (Biernacki and Krzyz 1955). So s falls above y0
if R(y0) >= b, and rho is the Kullback-Leibler divergence, its limit at y0. Otherwise s grows and then falls, and its
derivative has the sign of h(y) = f'(y) (y² - y0²)/(2y) - f(y) + f(y0).
"""

from fractions import Fraction

from flint import arb, ctx

from service.privacy.numerics.numbers import ball, ceiling


def response_rho(epsilon: Fraction, values: int) -> Fraction | None:
    """Return rho (nats), rounded up to 96 bits; None if no precision suffices.

    Args:
        epsilon: nats, above 0.
        values: k, at least 3.
    """
    return ceiling(lambda: _rho(ball(epsilon), values))


def _rho(epsilon: arb, values: int) -> arb:
    """Return a ball with rho, at the precision in force; not finite if that is too low."""
    y0 = epsilon / 2
    b = (values - 2) / (2 * y0.exp())
    if b <= 2 or _growth(y0, b) > 0:
        return epsilon * epsilon.expm1() / (epsilon.exp() + values - 1)
    if not _growth(y0.max(arb(2) ** -20), b) < 0:
        return arb("nan")

    def rise(y: arb) -> arb:
        """Return f(y) - f(y0)."""
        return (2 * ((y + y0) / 2).sinh() * ((y - y0) / 2).sinh() / (b + y0.cosh())).log1p()

    def h(y: arb) -> arb:
        return y.sinh() / (b + y.cosh()) * (y - y0) * (y + y0) / (2 * y) - rise(y)

    low, high = y0.mid(), 2 * y0.mid() + 1
    while not h(high) < 0:
        if high > 1 << 20:
            return arb("nan")
        high = 2 * high
    for _ in range(ctx.prec):
        middle = ((low + high) / 2).mid()
        at = h(middle)
        if at > 0:
            low = middle
        elif at < 0:
            high = middle
        else:
            break
    between = low.union(high)
    middle, area = between.mid(), (between - y0) * (between + y0)
    slope = 2 * between * h(between) / (area * area)
    largest = rise(middle) / ((middle - y0) * (middle + y0)) + slope * (between - middle)
    return epsilon * epsilon * largest


def _growth(y: arb, b: arb) -> arb:
    """Return a number with the sign of R(y) - b."""
    return (2 * y).sinh() - 2 * y - b * (2 * y * y.cosh() - 2 * y.sinh())
