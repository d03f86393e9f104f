"""Exact selection of a candidate, with probabilities proportional to exp(rate * score).

A uniform U gives the first candidate k with U < F(k), where F(k) is the sum of the weights up to k, divided by that of
all. Balls decide this, and further bits of U where they are too wide. So nothing is rejected and repeated. The work
depends on the number of candidates and the lengths of the scores, and hardly on what is selected; yet exponentials of
long numbers do not all take the same time, so do not let a caller measure the time of single selections.
"""

from collections.abc import Sequence
from fractions import Fraction

from flint import arb, ctx

from service.noise.keystream import Keystream
from service.noise.uniform import WORD, Uniform
from service.privacy.numerics.numbers import ball


def select(scores: Sequence[Fraction | int], rate: Fraction, keystream: Keystream) -> int:
    """Return the place of a candidate whose probability is proportional to exp(rate * score), given uniform bits.

    Args:
        scores: at least one.
        rate: above 0.
    """
    top, sums = max(scores), dict[int, list[arb]]()

    def share(k: int) -> arb:
        """Return F(k) at the precision in force."""
        found = sums.get(ctx.prec)
        if found is None:
            total, found = arb(0), []
            for score in scores:
                total += (ball(score - top) * ball(rate)).exp()
                found.append(total)
            sums[ctx.prec] = found
        return found[k] / found[-1]

    uniform = Uniform(int.from_bytes(keystream.read(WORD // 8), "little"), keystream)
    low, high = 0, len(scores) - 1
    while low < high:
        middle = (low + high) // 2
        if uniform.below(lambda k=middle: share(k)):  # type: ignore[misc]  # bound as a default
            high = middle
        else:
            low = middle + 1
    return low
