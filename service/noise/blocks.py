"""Sampler of wide noise laws, which draws a block of integers, then a value in the block, and accepts or rejects it.

With g(x) = quadratic x² + linear |x|, the law is proportional to exp(-g(x)). Block j = 0, 1, ... of width B = 2^k has
the places y = jB, ..., jB + B - 1. Each place stands for the two values y and -1 - y, so the blocks contain every
integer once. As |x| >= jB for all values x of a block, exp(-g(jB)) is their largest possible mass. The sampler draws

    j with probability proportional to exp(-g(jB)), then y and the sign uniformly,

and accepts the value x with probability exp(-(g(x) - g(jB))). So x has a probability proportional to exp(-g(jB))
exp(-(g(x) - g(jB))) = exp(-g(x)), which is the law. Rejected values are drawn again. j itself has a narrow law of the
same family: one-sided, with sigma/B and scale/B.
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
_LARGEST_EXPONENT = 0.5  # the polynomial is used for exponents t up to this
_MARGIN = 2.0**-44
_LONGEST_SQUEEZE = 1024  # blocks: 16 times the width of the widest block law
_INVERSE_FACTORIALS = [1.0]
for _n in range(1, 18):
    _INVERSE_FACTORIALS.append(_INVERSE_FACTORIALS[-1] / _n)


class BlockSampler:
    """Sampler of a wide law by blocks of 2^shift integers.

    Args:
        law: the law of the values.
        shift: 0 to 45. A block should be a 32nd to a 64th of sigma or scale, whichever is smaller: with wider blocks
            few values are accepted, with narrower ones the table is long.
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
        self._place_bits = next(bits for bits in (8, 16, 32, 64) if bits > shift)  # the place and a bit for the sign
        self._squeeze = _squeeze(law, width)
        # Rounded to the nearest double. If that is subnormal, its term in t is below 2^-890.
        self._quadratic, self._linear = float(law.quadratic), float(law.linear)

    def draw(self, out: NDArray[np.int64], keystream: Keystream) -> None:
        """Fill ``out`` with independent values.

        Raises:
            OverflowError: a value does not fit 64 bits.
        """
        dropped = [number * CHUNK + self._draw_chunk(part, keystream) for number, part in enumerate(chunks(out))]
        places = np.concatenate(dropped) if dropped else np.empty(0, np.int64)
        if places.size:
            redrawn = np.empty(places.size, np.int64)
            self.draw(redrawn, keystream)
            out[places] = redrawn

    def _draw_chunk(self, out: NDArray[np.int64], keystream: Keystream) -> NDArray[np.int64]:
        """Fill ``out``, and return the indices of the rejected values."""
        self._table.draw(out, keystream)
        uniform = keystream.words(out.size, "u1")
        # If the law is geometric, T is the same in every block, so one limit serves all of them.
        limits = self._squeeze[0] if self._law.sigma_squared is None else self._squeeze.take(out, mode="clip")
        doubtful = np.flatnonzero(uniform >= limits)
        out <<= self._shift
        place = keystream.words(out.size, f"<i{self._place_bits // 8}")
        out |= place & ((1 << self._shift) - 1)
        out ^= place >> (self._place_bits - 1)  # -1 - y if the bit for the sign is 1
        if not doubtful.size:
            return doubtful
        return doubtful[~self._accepted(out[doubtful], uniform[doubtful], keystream)]

    def _accepted(self, values: NDArray[np.int64], top: NDArray[Any], keystream: Keystream) -> NDArray[np.bool_]:
        """Tell whether a uniform U with the first byte ``top`` is below p = exp(-t), where t = g(x) - g(jB).

        ``top`` is the byte that was compared with the squeeze limit: a fresh U would change the law. With r = |x| - jB,
        0 <= r <= B,

            t = quadratic r (2jB + r) + linear r,

        which is a sum of products of non-negative numbers. The rounding error in doubles, with u = 2^-53: the
        coefficients and the conversions of r and jB each have a relative error of u, as has each operation. So t has a
        relative error below 9 u and, for t up to 1/2, an absolute error below 5 u, which is no larger in exp(-t).
        Horner's scheme for the 18 terms of exp(-t) has an error of at most (2*17 + 17) u, for the operations and for
        the coefficients, which are quotients, times exp(t) < 1.7 (Higham, "Accuracy and Stability of Numerical
        Algorithms", 2nd ed., 5.1). This is less than 90 u; the omitted terms are below 2^-70. The word as a double has
        an error of u, and so has the difference. The sum is below 100 u < 2^-46. If U's 64 bits leave U and p closer
        than 2^-44, or if t is above 1/2, ball arithmetic decides.
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
        accepted: NDArray[np.bool_] = difference < 0
        for i in np.flatnonzero(~(abs(difference) > _MARGIN) | (t > _LARGEST_EXPONENT)):
            accepted[i] = self._exactly_accepted(int(values[i]), int(block[i]), int(words[i]), keystream)
        return accepted

    def _exactly_accepted(self, value: int, block: int, word: int, keystream: Keystream) -> bool:
        t = _exponent(self._law, abs(value)) - _exponent(self._law, block)
        return Uniform(word, keystream).below(lambda: (-ball(t)).exp())


def _exponent(law: NoiseLaw, size: int) -> Fraction:
    return law.quadratic * size * size + law.linear * size


def _squeeze(law: NoiseLaw, width: int) -> NDArray[np.uint8]:
    """Return, for each block, the limit below which the first byte of U accepts every value; the last one is 0.

    The last limit is for all further blocks. Within a block, t is at most its value T at the far end, where |x| = jB +
    B. A first byte below floor(2^8 (1 - T)) means U < 1 - T <= exp(-T) <= exp(-t). T grows with j, and the table ends
    where the limit is 0.
    """
    limits: list[int] = []
    step, growth = _exponent(law, width), 2 * law.quadratic * width**2  # T of block 0, and its growth per block
    for _ in range(_LONGEST_SQUEEZE):
        limit = int((1 - step) * (1 << _SQUEEZE_BITS)) if step < 1 else 0
        if not limit:
            break
        limits.append(limit)
        step += growth
    return np.array([*limits, 0], np.uint8)
