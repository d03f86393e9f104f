"""Tail bounds and margins of error of the noise distributions, certified.

A margin is never too small and a coverage never too large: each rests on a ball that contains
P(|X| > m), not on an approximation of it.
"""

from collections.abc import Callable
from fractions import Fraction

from flint import arb, ctx

from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.numerics.half_gaussian_sums import half_line
from service.privacy.numerics.numbers import ball, double_down, floor as lower_bound, precision

SMALLEST_EXCESS = Fraction(1, 10**30)  # of 1 - confidence
_PRECISIONS = (128, 256, 512, 1024, 2048, 4096)  # bits


def tail(law: NoiseLaw, margin: int) -> arb:
    """Return a ball that contains P(|X| > margin), with an absolute radius of about 2^-p at the precision p in force.

    Args:
        margin: counts.

    Raises:
        ValueError: the margin is below 0.
    """
    if margin < 0:
        raise ValueError(f"expected a margin of at least 0, got {margin}")
    if law.sigma_squared is None:
        return _geometric_tail(law.linear, margin + 1)
    return _gaussian_tail(law, law.sigma_squared, margin + 1)


def excess_of(confidence: Fraction) -> Fraction:
    """Return 1 - confidence: the probability that noise may lie beyond the margin of error.

    Raises:
        ValueError: the confidence is not between 0 and 1, or is above 1 - 1e-30.
    """
    if not 0 < confidence < 1:
        raise ValueError("expected a confidence above 0 and below 1")
    if 1 - confidence < SMALLEST_EXCESS:
        raise ValueError("expected a confidence of at most 1 - 1e-30")
    return 1 - confidence


def is_within(law: NoiseLaw, margin: int, excess: Fraction) -> bool:
    """Tell whether P(|X| > margin) <= excess is proven; a tie that no precision decides is not.

    Args:
        margin: counts.
        excess: the allowed probability beyond the margin.

    Raises:
        ValueError: the margin is below 0.
    """
    return is_at_most(lambda: tail(law, margin), excess)


def is_at_most(probability: Callable[[], arb], excess: Fraction) -> bool:
    """Tell whether a probability is proven to be at most an excess; a tie that no precision decides is not.

    Args:
        probability: returns a ball at the precision in force.
        excess: the allowed probability.
    """
    for bits in _PRECISIONS:
        with precision(bits):
            beyond, allowed = probability(), ball(excess)
            if beyond <= allowed:
                return True
            if beyond > allowed:
                return False
    return False


def margin_of_error(law: NoiseLaw, confidence: Fraction) -> int:
    """Return the margin of error in counts: the smallest integer m with P(|X| > m) <= 1 - confidence.

    If balls cannot decide between m and m + 1, it is m + 1.

    Raises:
        ValueError: the confidence is out of range, see ``excess_of``.
    """
    excess = excess_of(confidence)
    return smallest(lambda margin: margin >= 0 and is_within(law, margin, excess), _likely_margin(law, excess))


def coverage(law: NoiseLaw, margin: int) -> float:
    """Return P(|X| <= margin), rounded down to a double; so it is below 1.

    Args:
        margin: counts.

    Raises:
        ValueError: the margin is below 0.
    """
    # The slack is below the precision; without it the ball around 1 of a very deep tail has a
    # radius whose binary exponent is too long to write out as a rational.
    return double_down(lower_bound(lambda: 1 - tail(law, margin) + arb(0, arb(2) ** -ctx.prec)))


def smallest(holds: Callable[[int], bool], guess: int) -> int:
    """Return the smallest n with ``holds(n)``, for a property that stays true as n grows once it is true.

    If ``guess`` is right this takes two calls, else about log2 of its error more: steps grow eightfold until they pass
    the answer, then halve.

    Args:
        holds: false somewhere and true somewhere, else the search does not end.
        guess: an integer near the answer.
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


def _likely_margin(law: NoiseLaw, excess: Fraction) -> int:
    """Return the margin before rounding: the geometric tail solved for m, or the normal quantile beyond the offset.

    For a joint law, the geometric margin is above the true one, and near it if the offset is large beside sigma.
    """
    size = max(value for value in (law.scale, law.sigma_squared) if value is not None)
    bits = max(0, size.numerator.bit_length() - size.denominator.bit_length())
    margins = []
    with precision(128 + bits):
        if law.linear:
            q = (-ball(law.linear)).exp()
            margins.append((2 / (ball(excess) * (1 + q))).log() / ball(law.linear) - 1)
        if law.sigma_squared is not None:
            root, offset = 1 / ball(law.quadratic).sqrt(), ball(law.sigma_squared * law.linear)
            if offset < 8 * root:
                # The integers beyond m are the unit intervals beyond m + 1/2.
                margins.append((ball(excess) * (offset / root).erfc()).erfcinv() * root - offset - arb(0.5))
        return max(0, int(min(margin.mid() for margin in margins).ceil().fmpz()))


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
