"""Wide laws: a block of integers by its largest mass, a place in it, and a test whether to keep that.

With g(x) = quadratic x² + linear |x| the law is exp(-g(x)) but for its constant. Block j = 0, 1, ... of width B = 2^k
has y = jB, ..., jB + B - 1, each standing for the two values y and -1 - y: together every integer, once.
As |x| >= jB for all of them, exp(-g(jB)) is their largest possible mass, and

    j with probability proportional to exp(-g(jB)), y and the side uniform, kept with probability exp(-(g(x) - g(jB)))

gives x with probability proportional to exp(-g(jB)) exp(-(g(x) - g(jB))) = exp(-g(x)): the law. What is not kept is
drawn anew. j itself has a law of the same family, one-sided, with sigma/B and scale/B: a narrow one.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.noise.keystream import Keystream
from service.noise.table import CHUNK, InverseTable, chunks
from service.noise.uniform import WORD, Uniform
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.numerics.numbers import ball

_SQUEEZE_BITS = 8
_LARGEST = 0.5  # of the exponents that the polynomial is for
_MARGIN = 2.0**-44
_LONGEST_SQUEEZE = 1024  # blocks: 16 times the width of the widest block law
_INVERSE_FACTORIALS = [1.0]
for _n in range(1, 18):
    _INVERSE_FACTORIALS.append(_INVERSE_FACTORIALS[-1] / _n)


class BlockSampler:
    """Values of a wide law by blocks of 2^shift integers.

    Args:
        law: the law of the values.
        shift: 0 to 45; a block should be a 32nd to a 64th of sigma or scale, whichever is smaller: of wider ones few
            places are kept, of narrower ones the table is long.
    """

    def __init__(self, law: NoiseLaw, shift: int) -> None:
        self._law, self._shift = law, shift
        width = 1 << shift
        self._table = InverseTable(
            NoiseLaw(
                sigma_squared=None if law.sigma_squared is None else law.sigma_squared / width**2,
                scale=None if law.scale is None else law.scale / width,
            ),
            one_sided=True,
            largest=2 ** (63 - shift) - 1,
        )
        self._place_bits = next(bits for bits in (8, 16, 32, 64) if bits > shift)  # one more than the place: the side
        self._squeeze = _squeeze(law, width)
        # Rounded to the nearest double; where that is subnormal the term that it stands in is below 2^-890.
        self._quadratic, self._linear = float(law.quadratic), float(law.linear)

    def draw(self, out: NDArray[np.int64], keystream: Keystream) -> None:
        """Fill ``out`` with independent values.

        Raises:
            OverflowError: a value that has more than 64 bits.
        """
        dropped = [number * CHUNK + self._draw_chunk(part, keystream) for number, part in enumerate(chunks(out))]
        places = np.concatenate(dropped) if dropped else np.empty(0, np.int64)
        if places.size:
            redrawn = np.empty(places.size, np.int64)
            self.draw(redrawn, keystream)
            out[places] = redrawn

    def _draw_chunk(self, out: NDArray[np.int64], keystream: Keystream) -> NDArray[np.int64]:
        """Fill ``out``, and return the places of it that were rejected."""
        self._table.draw(out, keystream)
        uniform = keystream.words(out.size, "u1")
        # T is the same in every block where the law is geometric: one limit for all, and nothing to look up.
        limits = self._squeeze[0] if self._law.sigma_squared is None else self._squeeze.take(out, mode="clip")
        doubtful = np.flatnonzero(uniform >= limits)
        out <<= self._shift
        place = keystream.words(out.size, f"<i{self._place_bits // 8}")
        out |= place & ((1 << self._shift) - 1)
        out ^= place >> (self._place_bits - 1)  # -1 - y where the side is 1
        if not doubtful.size:
            return doubtful
        return doubtful[~self._kept(out[doubtful], uniform[doubtful], keystream)]

    def _kept(self, values: NDArray[np.int64], top: NDArray[Any], keystream: Keystream) -> NDArray[np.bool_]:
        """Tell whether a uniform U of first byte ``top`` is below p = exp(-t), t = g(x) - g(jB).

        The byte that the squeeze saw is U's first: a fresh U would change the law. With r = |x| - jB, 0 <= r <= B,

            t = quadratic r (2jB + r) + linear r,

        a sum of products of positive numbers. In doubles, u = 2^-53: the coefficients and the conversions of r
        and jB are off by one u each, as is each of the operations, so t by less than 9 u of itself, for t up to
        1/2 less than 5 u, and exp(-t) by no more. Horner's scheme for the 18 terms of exp(-t) is off by at
        most (2*17 + 17) u, for the operations and the quotients that the coefficients are, times exp(t) < 1.7 (Higham,
        "Accuracy and Stability of Numerical Algorithms", 2nd ed., 5.1), less than 90 u; the terms left out are
        below 2^-70. The word as a double is off by u, and so is the difference: all in all below 100 u < 2^-46.
        Where U's 64 bits leave U and p closer than 2^-44, or t is above 1/2, balls decide.
        """
        bottom = keystream.words(values.size, "<u8") >> np.uint64(_SQUEEZE_BITS)
        words = top.astype(np.uint64) << np.uint64(WORD - _SQUEEZE_BITS) | bottom
        block = (values ^ values >> 63) >> self._shift << self._shift
        r = (np.where(values < 0, ~values - block + 1, values - block)).astype(np.float64)
        t = self._quadratic * r * (2.0 * block.astype(np.float64) + r) + self._linear * r
        p = np.full(t.shape, _INVERSE_FACTORIALS[-1])
        for factor in reversed(_INVERSE_FACTORIALS[:-1]):
            p = factor - t * p
        difference = words.astype(np.float64) * 2.0**-WORD - p
        kept: NDArray[np.bool_] = difference < 0
        for i in np.flatnonzero(~(abs(difference) > _MARGIN) | (t > _LARGEST)):
            kept[i] = self._exactly_kept(int(values[i]), int(block[i]), int(words[i]), keystream)
        return kept

    def _exactly_kept(self, value: int, block: int, word: int, keystream: Keystream) -> bool:
        t = _exponent(self._law, abs(value)) - _exponent(self._law, block)
        return Uniform(word, keystream).below(lambda: (-ball(t)).exp())


def _exponent(law: NoiseLaw, size: int) -> Fraction:
    return law.quadratic * size * size + law.linear * size


def _squeeze(law: NoiseLaw, width: int) -> NDArray[np.uint8]:
    """Return, for each block, the byte below which every place is kept; 0 for all blocks after the last.

    Within a block t is at most its value T at the far end |x| = jB + B. Below floor(2^8 (1 - T)) a first byte means
    U < 1 - T <= exp(-T) <= exp(-t). T grows with j: the table ends where 1 - T falls below a byte's worth.
    """
    limits: list[int] = []
    step, growth = _exponent(law, width), 2 * law.quadratic * width**2  # T at 0, and from a block to the next
    for _ in range(_LONGEST_SQUEEZE):
        limit = int((1 - step) * (1 << _SQUEEZE_BITS)) if step < 1 else 0
        if not limit:
            break
        limits.append(limit)
        step += growth
    return np.array([*limits, 0], np.uint8)
