"""Noise parameters from target margins of error.

Parameters are numbers of 12 significant decimal digits, on the safe side for accuracy: rounded so that there is less
noise, never more, than the target allows.

The exact calibrations search the largest parameter whose tail meets the target. There is one, and a search finds it,
because P(|X| > m) grows with the parameter. Let f(x) = exp(-a h(|x|)), h increasing, a = 1/b or 1/(2 sigma²). Then
P(|X| > m)/P(|X| <= m) is a quotient of two sums. The numerator is the sum of exp(-a (h(x) - h(m))) over |x| > m, whose
terms all fall as a grows. The denominator is the sum of exp(a (h(m) - h(x))) over |x| <= m, whose terms never fall. Of
continuous noise the sums are integrals. Offset tails with a stated offset o have h(x) = x² + 2 o x. Whatever the search
finds, its tail is proven to meet the target: the argument says only that no larger parameter does.
"""

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from flint import arb

from service.privacy.accuracy.continuous import ContinuousSum
from service.privacy.accuracy.sums import variance_of_cell
from service.privacy.accuracy.tails import excess_of, is_at_most, smallest, tail
from service.privacy.laws.noise_law import NoiseLaw, offset_law
from service.privacy.numerics.numbers import ball, floor as lower_bound, precision

LARGEST_MARGIN = 2**53  # counts
SMALLEST_CONTINUOUS = Fraction(1, 10**9)
"""The smallest margin of continuous noise."""
SUB_GAUSSIAN = Fraction("0.67448")
"""An offset in sigmas: up to Q^-1(1/4) = 0.674489... the noise is sigma²-sub-Gaussian (Sadeghi and Korki 2022)."""
_TWELVE_DIGITS_DOWN = Context(prec=12, rounding=ROUND_FLOOR)
_LEAST_DIGITS = 10**11
_WIDEST = 10**304  # guess: the secants' steps from it, each of a factor e at most, are doubles
_WIDEST_CONTINUOUS = 10**90  # likewise, of parameters up to 1e100
_SECANTS = 8
_CLOSE = 1e-13  # in a parameter's logarithm: less than a unit of its 12 digits
_PER_DECADE = 9 * _LEAST_DIGITS  # how many numbers of 12 digits share a decimal exponent


def margin_to_scale(margin: int, confidence: Fraction) -> Fraction:
    """Return the largest 12-digit scale b (counts) of geometric noise with P(|X| > margin) <= 1 - confidence.

    Raises:
        ValueError: the margin is not in [0, 2^53], the confidence is out of range (``excess_of``), or it is so near 0
            that the noise is too wide.
    """
    excess = _checked_excess(margin, confidence)
    # As b grows, the tail approaches exp(-(m + 1/2)/b).
    guess = lower_bound(lambda: (margin + arb(0.5)) / -ball(excess).log())
    return _largest_parameter(lambda scale: tail(NoiseLaw(scale=scale), margin), excess, guess)


def margin_to_sigma_squared(margin: int, confidence: Fraction) -> Fraction:
    """Return the largest 12-digit sigma² (counts²) of discrete Gaussian noise with P(|X| > margin) <= 1 - confidence.

    Raises:
        ValueError: the margin is not in [0, 2^53], the confidence is out of range (``excess_of``), or it is so near 0
            that the noise is too wide.
    """
    excess = _checked_excess(margin, confidence)
    # As sigma grows, the tail approaches that of the normal law beyond m + 1/2.
    guess = lower_bound(lambda: ((margin + arb(0.5)) / ball(excess).erfcinv()) ** 2 / 2)
    return _largest_parameter(lambda square: tail(NoiseLaw(sigma_squared=square), margin), excess, guess)


def margin_to_offset_tails(margin: int, confidence: Fraction, offset: Fraction | None = None) -> Fraction:
    """Return the largest 12-digit sigma² (counts²) of integer offset tails with P(|X| > margin) <= 1 - confidence.

    Args:
        margin: counts.
        confidence: of staying within the margin.
        offset: of the tails, in counts; None: ``usual_offset``, with which both coefficients of the law fall as sigma
            grows.

    Raises:
        ValueError: the margin is not in [0, 2^53], the confidence is out of range (``excess_of``), or it is so near 0
            that the noise is too wide.
    """
    excess = _checked_excess(margin, confidence)
    if offset is None:
        guess = lower_bound(lambda: ((margin + arb(0.5)) / ball(excess).erfcinv()) ** 2)
        return _largest_parameter(lambda square: tail(offset_law(square, usual_offset(square)), margin), excess, guess)
    guess = _guess_beside(margin + Fraction(1, 2), excess, offset)
    return _largest_parameter(lambda square: tail(offset_law(square, offset), margin), excess, guess)


def continuous_margin_to_scale(margin: Fraction, confidence: Fraction) -> Fraction:
    """Return the largest 12-digit scale b of Laplace noise with P(|X| > margin) <= 1 - confidence.

    Args:
        margin: in the unit of the noise.
        confidence: of staying within the margin.

    Raises:
        ValueError: the margin is not in [1e-9, 2^53], the confidence is out of range (``excess_of``), or it is so near
            0 that the noise is too wide.
    """
    excess = _checked_continuous(margin, confidence)
    guess = lower_bound(lambda: ball(margin) / -ball(excess).log())
    return _largest_continuous(lambda scale: NoiseLaw(scale=scale), margin, excess, guess)


def continuous_margin_to_sigma_squared(
    margin: Fraction, confidence: Fraction, offset: Fraction | None = Fraction(0)
) -> Fraction:
    """Return the largest 12-digit sigma² of continuous offset tails with P(|X| > margin) <= 1 - confidence.

    Args:
        margin: in the unit of the noise.
        confidence: of staying within the margin.
        offset: of the tails, in the same unit; 0: the noise is Gaussian; None: ``usual_offset``.

    Raises:
        ValueError: as ``continuous_margin_to_scale``.
    """
    excess = _checked_continuous(margin, confidence)
    guess = _guess_beside(margin, excess, offset or Fraction(0))
    return _largest_continuous(
        lambda square: offset_law(square, usual_offset(square) if offset is None else offset), margin, excess, guess
    )


def _guess_beside(reach: Fraction, excess: Fraction, offset: Fraction) -> Fraction:
    """Return about the sigma² of offset tails: at least that of the Gaussian, and of geometric noise of scale v/m."""
    gaussian = lower_bound(lambda: (ball(reach) / ball(excess).erfcinv()) ** 2 / 2)
    return max(gaussian, lower_bound(lambda: ball(offset * reach) / -ball(excess).log())) if offset else gaussian


def _largest_continuous(
    law: Callable[[Fraction], NoiseLaw], margin: Fraction, excess: Fraction, guess: Fraction
) -> Fraction:
    if guess > _WIDEST_CONTINUOUS:
        raise ValueError("expected a confidence further from 0: the noise would be wider than 1e90")
    return _largest_parameter(lambda value: ContinuousSum(law(value), cells=1).tail_probability(margin), excess, guess)


def _checked_continuous(margin: Fraction, confidence: Fraction) -> Fraction:
    if not SMALLEST_CONTINUOUS <= margin <= LARGEST_MARGIN:
        raise ValueError("expected a margin of at least 1e-9 and at most 2^53 for continuous noise")
    return excess_of(confidence)


def variance_to_parameter(law: Callable[[Fraction], NoiseLaw], variance: Fraction, guess: Fraction) -> Fraction:
    """Return the largest 12-digit parameter of a law on the integers whose variance is at most a target.

    Args:
        law: returns the law of a parameter, whose variance grows with it.
        variance: counts squared, above 0.
        guess: a parameter near the result.
    """
    # Narrow noise has the variance 2 exp(-1/(2 sigma²)), or of geometric noise 2 exp(-1/b).
    narrow = Fraction(1 / (2 * math.log(2 / min(float(variance), 1.0))))
    near = rank_of(guess if variance > 1 else narrow)
    return value_of_rank(smallest(lambda rank: variance_of_cell(law(value_of_rank(rank))) > variance, near) - 1)


def usual_offset(sigma_squared: Fraction) -> Fraction:
    """Return the largest offset m of 12 digits whose tails are sigma²-sub-Gaussian: 0.67448 sigma."""
    return value_of_rank(rank_of(SUB_GAUSSIAN * Fraction(math.sqrt(sigma_squared))))


def safetab_scale(margin: int) -> Fraction:
    """Return SafeTab's 95 % scale, b = (margin + 1)/ln 20, rounded down (Haney et al. 2021, eq. 38).

    It only serves to reproduce the paper: it is **unsafe**. Its derivation rounds a margin down that must be rounded up
    (eqs. 35, 36). So the coverage falls short of 95 %: it is 0.9395 at margin 6.

    Raises:
        ValueError: the margin is not in [0, 2^53].
    """
    _check_margin(margin)
    return _round_down(lower_bound(lambda: (margin + 1) / arb(20).log()))


def safetab_sigma_squared(margin: int) -> Fraction:
    """Return SafeTab's sigma² for a 95 % margin of error, rounded down (Haney et al. 2021, eq. 37).

    rho = 1.92/margin² at sensitivity 1, so sigma² = 1/(2 rho) = margin²/3.84. At the paper's margins it is safe but
    wasteful, with less noise than the margin allows: it covers 0.9670 at margin 6. From 2,633 on it falls short of 95
    %, because 1.92 is 1.96²/2 rounded down.

    Raises:
        ValueError: the margin is not in [1, 2^53]; at 0 the formula divides by zero.
    """
    _check_margin(margin)
    if margin == 0:
        raise ValueError("expected a margin of at least 1: rho = 1.92/margin² has no meaning at 0")
    return _round_down(margin * margin / Fraction("3.84"))


def _check_margin(margin: int) -> None:
    if not 0 <= margin <= LARGEST_MARGIN:
        raise ValueError(f"expected a margin of at least 0 and at most 2^53 ({LARGEST_MARGIN}), got {margin}")


def _checked_excess(margin: int, confidence: Fraction) -> Fraction:
    _check_margin(margin)
    return excess_of(confidence)


def _largest_parameter(beyond: Callable[[Fraction], arb], excess: Fraction, guess: Fraction) -> Fraction:
    """Return the largest 12-digit parameter that meets a target, which all smaller ones meet too.

    Args:
        beyond: returns a ball that contains P(|X| > margin) at a parameter.
        excess: the probability that noise may lie beyond the margin.
        guess: a parameter near the result.

    Raises:
        ValueError: the parameter is beyond doubles.
    """
    if guess > _WIDEST:
        raise ValueError("expected a confidence further from 0: the noise would be wider than 1e304")
    near = rank_of(_secant_guess(beyond, excess, guess))

    def is_wider(rank: int) -> bool:
        value = value_of_rank(rank)
        return not is_at_most(lambda: beyond(value), excess)

    return value_of_rank(smallest(is_wider, near) - 1)


def _secant_guess(beyond: Callable[[Fraction], arb], excess: Fraction, guess: Fraction) -> Fraction:
    """Return the parameter at which P(|X| > margin) is about the excess, by the secant method from a guess.

    log(-log P) is nearly a straight line in the parameter's logarithm, of slope -1. So four or five tails give all
    digits, where halving an interval takes forty. The result is only a place to begin; it proves nothing.
    """

    def miss_at(place: float) -> float:
        return float((-beyond(Fraction(math.exp(place))).log()).log().mid()) - target

    with precision(128 + excess.denominator.bit_length()):
        target = float((-ball(excess).log()).log().mid())
        place = math.log(guess)
        miss, slope = miss_at(place), -1.0
        for _ in range(_SECANTS):
            step = min(max(-miss / slope, -1.0), 1.0)
            if not math.isfinite(step) or abs(step) < _CLOSE:
                break
            before, place = miss, place + step
            miss = miss_at(place)
            slope = (miss - before) / step if miss != before else slope
    return Fraction(math.exp(place))


def _round_down(value: Fraction) -> Fraction:
    """Return the largest 12-digit number that is not above a positive ``value``."""
    return value_of_rank(rank_of(value))


def rank_of(value: Fraction) -> int:
    """Return the rank of ``value``, rounded down to 12 digits, among all such numbers ascending; 1 has rank 0.

    Args:
        value: above 0.
    """
    rounded = _TWELVE_DIGITS_DOWN.divide(Decimal(value.numerator), Decimal(value.denominator))
    exponent = rounded.adjusted()
    digits = int(_TWELVE_DIGITS_DOWN.scaleb(rounded, 11 - exponent))
    return exponent * _PER_DECADE + digits - _LEAST_DIGITS


def value_of_rank(rank: int) -> Fraction:
    """Return the number of 12 digits at a rank; see ``rank_of``."""
    exponent, place = divmod(rank, _PER_DECADE)
    return Fraction(f"{_LEAST_DIGITS + place}e{exponent - 11}")
