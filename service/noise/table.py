"""Narrow laws: a uniform word is looked up in the distribution function.

The value of a uniform U is the smallest k with U < F(k), F(k) = P(X <= k). With U's first 64 bits, the word w,
known, U is in [w, w+1)/2^64. Each F(k) has two words low_k <= high_k, the floors of 2^64 times the ends of a ball
that contains it, nearly always the same one:

    w < low_k   gives  2^64 U < w + 1 <= low_k <= 2^64 F(k),        so U < F(k);
    w > high_k  gives  2^64 U >= w >= high_k + 1 > 2^64 F(k),       so not U < F(k).

So w decides unless low_k <= w <= high_k for some k, and then more bits do, against F in ball arithmetic. F(k) of all
but finitely many k lies within 2^-64 of 0 or 1: those share the first and the last word, which never decide.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
from flint import arb
from numpy.typing import NDArray

from service.noise.keystream import Keystream
from service.noise.uniform import WORD, Uniform
from service.privacy.accuracy.tails import smallest, tail
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.numerics.numbers import ball, precision

_GUIDE_BITS = 16
_PRECISION = 256  # bits; k terms of the recurrence below lose about 2 log2(k) of them
_FIXED = 96  # bits after the point of F's bounds
_BEYOND = 130  # the sums are cut where 2^-130 is left, and that is in the balls
_UNDECIDED = -(2**15)  # in the guide table, whose values are 16 bits long
_LAST_WORD = 2**WORD - 1
CHUNK = 1 << 16  # values


def chunks(values: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield views of ``values`` so short that the work on one stays in a core's cache."""
    for start in range(0, values.size, CHUNK):
        yield values[start : start + CHUNK]


class InverseTable:
    """The inverse distribution function of a law, or of its restriction to 0, 1, 2, ....

    16 random bits choose one of 65,536 buckets of 2^48 words. Where every word of a bucket decides, and for the same
    value, the guide table has it; else 48 more bits make the word.

    Args:
        law: its width (the smaller of sigma and scale) should be at most some hundreds: building takes
            microseconds for each value that has a word of its own.
        one_sided: whether the law is restricted to the integers from 0 on.
        largest: values above this, or below -1 - largest, are an overflow. It must be far beyond all that have words
            of their own.
    """

    def __init__(self, law: NoiseLaw, *, one_sided: bool = False, largest: int = 2**63 - 1) -> None:
        self._law, self._one_sided, self._largest = law, one_sided, largest
        upper = _upper_tails(law, one_sided=one_sided)  # of k = 1, 2, ...
        self._first = 0 if one_sided else -len(upper)
        # F(-k) = P(X >= k) by symmetry, F(k - 1) = 1 - P(X >= k).
        bounds = [] if one_sided else upper[::-1]
        bounds = bounds + [((1 << _FIXED) - high, (1 << _FIXED) - low) for low, high in upper]
        down = _FIXED - WORD
        low = np.array([0, *(max(low, 0) >> down for low, _ in bounds), _LAST_WORD], np.uint64)
        high = np.array([0, *(min(high >> down, _LAST_WORD) for _, high in bounds), _LAST_WORD], np.uint64)
        # They increase as F does; if a ball's width ever broke that, wider bands mend it.
        self._low, self._high = np.minimum.accumulate(low[::-1])[::-1], np.maximum.accumulate(high)
        buckets = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(WORD - _GUIDE_BITS)
        values, decided = self._look_up(buckets, buckets + np.uint64(2 ** (WORD - _GUIDE_BITS) - 1))
        decided &= abs(values) < -_UNDECIDED
        self._guide = np.where(decided, values, _UNDECIDED).astype(np.int16)

    def draw(self, out: NDArray[np.int64], keystream: Keystream) -> None:
        """Fill ``out`` with independent values.

        Raises:
            OverflowError: a value that has more than 64 bits.
        """
        for part in chunks(out):
            self._draw_chunk(part, keystream)

    def _draw_chunk(self, out: NDArray[np.int64], keystream: Keystream) -> None:
        top = keystream.words(out.size, "<u2")
        values = self._guide.take(top, mode="wrap")  # no index is outside: this mode is the one that checks least
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
        """Return, for words from ``first`` to ``last``, a value, and whether it is that of all of them.

        F(k) is at or below U for every k with high_k < first, above U for every k with low_k > last. Where none lies
        between, the value is the number of the former, counted from that with only the first word below it.
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
        """Return F(k). With S(k) the mass from k on, the restricted law has all of S(0) = (1 + P(X = 0))/2."""
        if self._one_sided:
            return 1 - tail(self._law, k) / (2 - tail(self._law, 0)) if k >= 0 else arb(0)
        return 1 - tail(self._law, k) / 2 if k >= 0 else tail(self._law, -k - 1) / 2


def _upper_tails(law: NoiseLaw, *, one_sided: bool) -> list[tuple[int, int]]:
    """Return bounds of 2^96 P(X >= k) for k = 1, 2, ..., as long as P(X >= k) may be 2^-64 or more.

    Weights exp(-g(k)), g(k) = quadratic k² + linear k, have ratios exp(-quadratic (2k+1) - linear), which fall by
    exp(-2 quadratic) from one to the next. So what lies from k on is below weight/(1 - ratio) there.
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
