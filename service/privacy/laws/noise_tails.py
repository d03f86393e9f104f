"""Tails of integer noise as balls, which contain the true probability."""

from fractions import Fraction

from flint import arb

from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.numerics.half_gaussian_sums import half_line
from service.privacy.numerics.numbers import ball


def tail(law: NoiseLaw, margin: int) -> arb:
    """Return a ball that contains P(|X| > margin), with an absolute radius of about 2^-p at the precision p in force.

    Args:
        margin: counts.

    Raises:
        ValueError: the margin is below 0.
    """
    if margin < 0:
        raise ValueError(f"expected a margin of at least 0, got {margin}")
    if law.rows:
        return ball(tail_of_rows(law, margin))
    if law.sigma_squared is None:
        return _geometric_tail(law.linear, margin + 1)
    return _gaussian_tail(law, law.sigma_squared, margin + 1)


def tail_of_rows(law: NoiseLaw, margin: int) -> Fraction:
    """Return P(|X| > margin) of a table, exactly; the largest of its rows."""
    return max(sum((mass for value, mass in row if abs(value) > margin), Fraction(0)) for row in law.rows)


def upper_tail(law: NoiseLaw, first: int) -> arb:
    """Return a ball that contains P(X >= first), ``first`` itself included; its radius is that of ``tail``.

    The noise is symmetric about 0: above 0 it is half of both tails, and from 0 down 1 less the half beyond.

    Args:
        first: counts; any integer.
    """
    return tail(law, first - 1) / 2 if first > 0 else 1 - tail(law, -first) / 2


def _geometric_tail(rate: Fraction, first: int) -> arb:
    """Return P(|X| >= first) for mass proportional to q^|x|, q = exp(-rate): 2 q^first/(1-q) over (1+q)/(1-q)."""
    return 2 * (-ball(rate * first)).exp() / (1 + (-ball(rate)).exp())


def _gaussian_tail(law: NoiseLaw, sigma_squared: Fraction, first: int) -> arb:
    """Return P(|X| >= first) for mass proportional to exp(-c x² - |x|/b), first >= 1.

    Completing the square about -m, m = sigma²/b, makes both sides half-lines: with g(y) =
    exp(-(2xy + y²)/(2 sigma²)), all mass is twice the trapezoid sum of g at x = m, and that from ``first`` on
    exp(-c first² - first/b) times the whole sum at x = m + first.
    """
    offset = sigma_squared * law.linear
    all_mass, beyond = (half_line(ball(x), sigma_squared, 1, lattice=True)[0] for x in (offset, offset + first))
    return (-ball(law.quadratic * first * first + law.linear * first)).exp() * (beyond + arb(0.5)) / all_mass
