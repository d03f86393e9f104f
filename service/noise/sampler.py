"""Exact samples of integer noise, many at a time, and noisy counts.

Given uniform bits, the values have exactly the stated law. Decisions by integers and doubles are proven where they are
made, and ball arithmetic makes all others. Noise that is computed in floating point leaks the count that it should hide
(Mironov 2012). Table look-ups and rejections do not take the same time for every value, so do not let a caller measure
the time of single values.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from service.noise.blocks import BlockSampler
from service.noise.keystream import Keystream
from service.noise.table import CHUNK, InverseTable, MassTable, chunks
from service.privacy.laws.noise_law import NoiseLaw

# Up to these limits, |X| > 2^63 - 1 has a probability below exp(-8190).
MAX_SCALE = 2**50
MAX_SIGMA_SQUARED = 2**100

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Bits of the width: from 2^7 and 2^8 on, the block sampler is at least as fast as the table, and is built sooner.
_NARROW_GEOMETRIC, _NARROW = 7, 8
_BLOCK_LAW = 5  # bits: the block law's width is 2^5 to 2^6
_KEPT_LAWS = 64  # samplers of 0.2 to 0.5 MB each


def sample(law: NoiseLaw, size: int, keystream: Keystream) -> NDArray[np.int64]:
    """Return ``size`` independent values whose law is exactly ``law``, given uniform bits.

    Raises:
        ValueError: the size is negative, or the law is too wide for 64-bit results.
        OverflowError: a value does not fit 64 bits. For an accepted law the probability is below exp(-8190).
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
    """Add an independent value of ``law`` to each count, and clamp the sums to 64 bits.

    A sum beyond 64 bits becomes the limit on its side and does not wrap around. Clamping is post-processing of the
    noisy count, so it costs no privacy. In practice it happens only to counts at the limits themselves.

    Args:
        counts: one-dimensional, in the unit of the law.
        out: an array of as many values, which is filled and returned; by default a new one.

    Raises:
        ValueError: a count is not a 64-bit integer, or is negative where the law has rows; the law is too wide; or
            ``out`` has another size.
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
    _draw_noise(law, true, noisy, keystream)
    for number, part in enumerate(chunks(noisy)):  # intermediate results stay in the processor's cache
        _add(part, true[number * CHUNK : number * CHUNK + part.size])
    return noisy


def _draw_noise(law: NoiseLaw, true: NDArray[np.int64], noise: NDArray[np.int64], keystream: Keystream) -> None:
    """Fill ``noise`` with independent values; those of a table with rows have the law for their counts."""
    if len(law.rows) < 2:
        _sampler_of(law).draw(noise, keystream)
        return
    if true.size and true.min() < 0:
        raise ValueError("expected every count to be at least 0: the rows of the table are for counts from 0 on")
    rows = np.minimum(true, len(law.rows) - 1)
    for number, row in enumerate(law.rows):
        places = np.flatnonzero(rows == number)
        noise[places] = sample(NoiseLaw(rows=(row,)), places.size, keystream)


def _add(noise: NDArray[np.int64], true: NDArray[np.int64]) -> None:
    """Add the counts to the noise, in place."""
    noisy = true + noise
    # A sum has wrapped around if both of its parts have the other sign. It is then set to the limit on their side.
    wrapped = ((true ^ noisy) & (noise ^ noisy)) < 0
    if wrapped.any():
        noisy[wrapped] = np.where(true[wrapped] < 0, INT64_MIN, INT64_MAX)
    noise[:] = noisy


@lru_cache(maxsize=_KEPT_LAWS)
def _sampler_of(law: NoiseLaw) -> InverseTable | BlockSampler:
    """Return the sampler of a law. It never changes, so threads share it."""
    if len(law.rows) > 1:
        raise ValueError("expected counts: the noise of a table with rows depends on them")
    if law.rows:
        return MassTable(law.rows[0])
    scale_fits = law.scale is not None and law.scale <= MAX_SCALE
    sigma_fits = law.sigma_squared is not None and law.sigma_squared <= MAX_SIGMA_SQUARED
    if not (scale_fits or sigma_fits):  # if a law has both parts, the narrower one bounds the values
        if law.sigma_squared is None:
            raise ValueError("expected a scale of at most 2^50 (1125899906842624), so that results fit 64 bits")
        raise ValueError(
            "expected a sigma_squared of at most 2^100 (1267650600228229401496703205376), so that results fit 64 bits"
        )
    bits = _width_bits(law)
    narrow = _NARROW_GEOMETRIC if law.sigma_squared is None else _NARROW
    return InverseTable(law) if bits < narrow else BlockSampler(law, bits - _BLOCK_LAW)


def _width_bits(law: NoiseLaw) -> int:
    """Return floor(log2) of the smaller of sigma and scale; -1 if that is below 1."""
    squares = [law.sigma_squared, None if law.scale is None else law.scale**2]
    square = min(value for value in squares if value is not None)
    whole = int(square)
    return (whole.bit_length() - 1) // 2 if whole else -1
