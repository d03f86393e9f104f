"""Exact samples of integer noise, many at a time, and noisy counts.

Given uniform bits the law is the stated one to the last bit: what integers and doubles decide is proven there, and
what they cannot decide is left to ball arithmetic. Noise formed in floating point leaks the count that it should
hide (Mironov 2012). Table look-ups and rejections do not take the same time for every value: do not let a
caller draw one value at a time against a clock.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from service.noise.blocks import BlockSampler
from service.noise.keystream import Keystream
from service.noise.table import CHUNK, InverseTable, chunks
from service.privacy.laws.noise_law import NoiseLaw

# At these limits |X| > 2^63 - 1 has probability below exp(-8190).
MAX_SCALE = 2**50
MAX_SIGMA_SQUARED = 2**100

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Bits: from widths of 2^7 and 2^8 on blocks are as fast as the table, or faster, and sooner built.
_NARROW_GEOMETRIC, _NARROW = 7, 8
_BLOCK_LAW = 5  # bits: the block law's width is 2^5 to 2^6
_KEPT_LAWS = 64  # with 0.2 to 0.5 MB each


def sample(law: NoiseLaw, size: int, keystream: Keystream) -> NDArray[np.int64]:
    """Return ``size`` independent values of ``law``: its distribution is exact, given uniform bits.

    Raises:
        ValueError: a negative size, or a law too wide for 64-bit results.
        OverflowError: a value beyond 64 bits; of the laws that are not refused it has probability below exp(-8190).
    """
    if size < 0:
        raise ValueError(f"expected a size of at least 0, got {size}")
    values = np.empty(size, np.int64)
    _sampler_of(law).draw(values, keystream)
    return values


def add_noise(
    counts: Sequence[int] | NDArray[np.int64],
    law: NoiseLaw,
    keystream: Keystream,
    out: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Add an independent value of ``law`` to each count, clamped to 64 bits; the result is in ``out`` if given.

    The sum is formed without wrap-around. Clamping it is post-processing of the noisy count, so it
    costs no privacy, and it happens in practice only to counts that lie at the limits themselves.

    Args:
        counts: one-dimensional, in the unit of the law.
        out: of as many values; it is filled and returned.

    Raises:
        ValueError: a count that is itself not a 64-bit integer, a law too wide, or an ``out`` of another size.
        OverflowError: as ``sample``.
    """
    try:
        true = np.asarray(counts, np.int64)
    except OverflowError:
        # The message does not say which count it is: counts are secret.
        raise ValueError("expected every count to be a 64-bit integer") from None
    noisy = np.empty(true.size, np.int64) if out is None else out
    if noisy.shape != true.shape:
        raise ValueError("expected a result of as many values as there are counts")
    _sampler_of(law).draw(noisy, keystream)
    for number, part in enumerate(chunks(noisy)):  # what is computed on the way stays in the processor's cache
        _add(part, true[number * CHUNK : number * CHUNK + part.size])
    return noisy


def _add(noise: NDArray[np.int64], true: NDArray[np.int64]) -> None:
    """Add the counts to the noise in its place."""
    noisy = true + noise
    # A sum wrapped around where both parts have the sign that it has not: then it belongs at the limit on their side.
    wrapped = ((true ^ noisy) & (noise ^ noisy)) < 0
    if wrapped.any():
        noisy[wrapped] = np.where(true[wrapped] < 0, INT64_MIN, INT64_MAX)
    noise[:] = noisy


@lru_cache(maxsize=_KEPT_LAWS)
def _sampler_of(law: NoiseLaw) -> InverseTable | BlockSampler:
    """Return the sampler of a law. It never changes, so threads share it."""
    scale_fits = law.scale is not None and law.scale <= MAX_SCALE
    sigma_fits = law.sigma_squared is not None and law.sigma_squared <= MAX_SIGMA_SQUARED
    if not (scale_fits or sigma_fits):  # where both parts are there the narrower one bounds the values
        if law.sigma_squared is None:
            raise ValueError("expected a scale of at most 2^50 (1125899906842624), so that results fit 64 bits")
        raise ValueError(
            "expected a sigma_squared of at most 2^100 (1267650600228229401496703205376), so that results fit 64 bits"
        )
    bits = _width_bits(law)
    narrow = _NARROW_GEOMETRIC if law.sigma_squared is None else _NARROW
    return InverseTable(law) if bits < narrow else BlockSampler(law, bits - _BLOCK_LAW)


def _width_bits(law: NoiseLaw) -> int:
    """Return floor(log2) of the smaller of sigma and scale, -1 where that is below 1."""
    squares = [law.sigma_squared, None if law.scale is None else law.scale**2]
    square = min(value for value in squares if value is not None)
    whole = int(square)
    return (whole.bit_length() - 1) // 2 if whole else -1
