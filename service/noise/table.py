"""Sampler of narrow noise laws: it looks a uniform word up in the inverse distribution function.

A uniform U gives the smallest k with U < F(k), where F(k) = P(X <= k). If the first 64 bits of U are the word w, then U
is in [w, w+1)/2^64. Each F(k) has two words low_k <= high_k: the floors of 2^64 times the ends of a ball that contains
F(k). They are nearly always equal. Then

    w < low_k   gives  2^64 U < w + 1 <= low_k <= 2^64 F(k),        so U < F(k);
    w > high_k  gives  2^64 U >= w >= high_k + 1 > 2^64 F(k),       so not U < F(k).

So w decides, unless low_k <= w <= high_k for some k. In this case further bits of U are compared with F in ball
arithmetic. For all but finitely many k, F(k) is within 2^-64 of 0 or 1. These k share the first and the last word,
which never decide.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, count
from typing import Any

import numpy as np
from flint import arb
from numpy.typing import NDArray

from service.noise.keystream import Keystream
from service.noise.uniform import WORD, Uniform
from service.privacy.accuracy.tails import smallest
from service.privacy.laws.noise_law import Masses, NoiseLaw
from service.privacy.laws.noise_tails import tail
from service.privacy.numerics.numbers import ball, precision

_GUIDE_BITS = 16
_PRECISION = 256  # bits; k terms of the recurrence below lose about 2 log2(k) of them
_FIXED = 96  # bits after the point of F's bounds
_BEYOND = 130  # the sums end where at most 2^-130 is left, which the balls include
_UNDECIDED = -(2**15)  # an entry of the guide table, whose values have 16 bits
_LAST_WORD = 2**WORD - 1
CHUNK = 1 << 16  # values


def chunks(values: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield views of ``values`` that are short enough for the cache of a processor core."""
    for start in range(0, values.size, CHUNK):
        yield values[start : start + CHUNK]


class InverseTable:
    """The inverse distribution function of a law, or of its restriction to 0, 1, 2, ....

    16 random bits choose one of 65,536 buckets of 2^48 words. If every word of a bucket decides for the same value, the
    guide table has this value. Otherwise 48 more bits complete the word.

    Args:
        law: its width (the smaller of sigma and scale) should be at most some hundreds, because building takes
            microseconds for each value that has a word of its own.
        one_sided: restrict the law to the integers from 0 on.
        largest: values above this, or below -1 - largest, are an overflow. It must be far beyond all values that have
            words of their own.
    """

    def __init__(self, law: NoiseLaw, *, one_sided: bool = False, largest: int = 2**63 - 1) -> None:
        self._law, self._one_sided, self._largest = law, one_sided, largest
        upper = _upper_tails(law, one_sided=one_sided)  # of k = 1, 2, ...
        self._first = 0 if one_sided else -len(upper)
        # F(-k) = P(X >= k) by symmetry, F(k - 1) = 1 - P(X >= k).
        bounds = [] if one_sided else upper[::-1]
        self._build(bounds + [((1 << _FIXED) - high, (1 << _FIXED) - low) for low, high in upper])

    def _build(self, bounds: Sequence[tuple[int, int]]) -> None:
        """Make the guide table from bounds of 2^96 F(k), k from ``_first`` on, which are integers."""
        down = _FIXED - WORD
        low = np.array([0, *(max(low, 0) >> down for low, _ in bounds), _LAST_WORD], np.uint64)
        high = np.array([0, *(min(high >> down, _LAST_WORD) for _, high in bounds), _LAST_WORD], np.uint64)
        # They increase as F does. If the width of a ball ever broke the order, this makes the bands wider.
        self._low, self._high = np.minimum.accumulate(low[::-1])[::-1], np.maximum.accumulate(high)
        buckets = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(WORD - _GUIDE_BITS)
        values, decided = self._look_up(buckets, buckets + np.uint64(2 ** (WORD - _GUIDE_BITS) - 1))
        decided &= abs(values) < -_UNDECIDED
        self._guide = np.where(decided, values, _UNDECIDED).astype(np.int16)

    def draw(self, out: NDArray[np.int64], keystream: Keystream) -> None:
        """Fill ``out`` with independent values.

        Raises:
            OverflowError: a value does not fit 64 bits.
        """
        for part in chunks(out):
            self._draw_chunk(part, keystream)

    def _draw_chunk(self, out: NDArray[np.int64], keystream: Keystream) -> None:
        top = keystream.words(out.size, "<u2")
        values = self._guide.take(top, mode="wrap")  # no index is out of range, and this mode checks least
        out[:] = values
        rest = np.flatnonzero(values == _UNDECIDED)
        if not rest.size:
            return
        bottom = keystream.words(rest.size, "<u8") >> np.uint64(_GUIDE_BITS)
        words = top[rest].astype(np.uint64) << np.uint64(WORD - _GUIDE_BITS) | bottom
        looked_up, decided = self._look_up(words, words)
        for i in np.flatnonzero(~decided):
            looked_up[i] = self._refine(int(words[i]), int(looked_up[i]), keystream)
        out[rest] = looked_up

    def _look_up(self, first: NDArray[Any], last: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the value for the words from ``first`` to ``last``, and whether all of them decide for it.

        F(k) is at or below U for every k with high_k < first, and above U for every k with low_k > last. If there is no
        other k, the value follows from the number of the former. The first word of ``_high`` is always among these, and
        alone it gives ``_first``.
        """
        passed = np.searchsorted(self._high, first, side="left")
        possible = np.searchsorted(self._low, last, side="right")
        return self._first - 1 + passed, passed == possible

    def _refine(self, word: int, guess: int, keystream: Keystream) -> int:
        uniform = Uniform(word, keystream)
        value = smallest(lambda k: uniform.below(lambda: self._distribution(k)), guess)
        if not -1 - self._largest <= value <= self._largest:
            raise OverflowError("a value of the noise does not fit 64 bits")
        return value

    def _distribution(self, k: int) -> arb:
        """Return F(k). The restricted law is divided by its mass from 0 on, which is (1 + P(X = 0))/2."""
        if self._one_sided:
            return 1 - tail(self._law, k) / (2 - tail(self._law, 0)) if k >= 0 else arb(0)
        return 1 - tail(self._law, k) / 2 if k >= 0 else tail(self._law, -k - 1) / 2


class MassTable(InverseTable):
    """The inverse distribution function of a law that is given by its masses: it draws a place in the table.

    The distribution function is rational, so its bounds are the nearest integers, and refinements compare exactly.
    """

    def __init__(self, masses: Masses) -> None:
        self._values = np.array([value for value, _ in masses], np.int64)
        self._sums = list(accumulate(mass for _, mass in masses))
        self._first, self._largest = 0, len(self._sums)
        scaled = [one * (1 << _FIXED) for one in self._sums[:-1]]
        self._build([(math.floor(one), math.ceil(one)) for one in scaled])

    def draw(self, out: NDArray[np.int64], keystream: Keystream) -> None:
        super().draw(out, keystream)
        out[:] = self._values[out]

    def _distribution(self, k: int) -> arb:
        return ball(self._sums[min(k, len(self._sums) - 1)]) if k >= 0 else arb(0)


def _upper_tails(law: NoiseLaw, *, one_sided: bool) -> list[tuple[int, int]]:
    """Return bounds of 2^96 P(X >= k) for k = 1, 2, ..., as long as P(X >= k) may be 2^-64 or more.

    The weights exp(-g(k)), with g(k) = quadratic k² + linear k, have the ratios exp(-quadratic (2k+1) - linear). Each
    ratio is exp(-2 quadratic) times the one before. So the sum of the weights from k on is at most weight/(1 - ratio)
    at k.

    Returns:
        Pairs of a lower and an upper bound, which are integers.
    """
    with precision(_PRECISION):
        weight, ratio = arb(1), (-ball(law.quadratic + law.linear)).exp()
        shrink = (-2 * ball(law.quadratic)).exp()
        weights: list[arb] = []
        for _ in count():
            weight, ratio = weight * ratio, ratio * shrink
            if weight < arb(2) ** -_BEYOND * (1 - ratio):
                break
            weights.append(weight)
        total = arb(0).union(weight / (1 - ratio))
        sums: list[arb] = []
        for weight in reversed(weights):
            total += weight
            sums.append(total)
        unit = arb(2) ** _FIXED / (1 + total if one_sided else 1 + 2 * total)
        bounds: list[tuple[int, int]] = []
        for mass in reversed(sums):
            scaled = mass * unit
            low, high = int(scaled.lower().floor().fmpz()), int(scaled.upper().ceil().fmpz())
            if high < 1 << (_FIXED - WORD):
                break
            bounds.append((low, high))
    return bounds
