"""Noise laws from first principles (mpmath at 80 digits, scipy for wide ones), and keystreams with chosen words."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]  # it publishes no types
import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, log_ndtr  # type: ignore[import-untyped]

from service.noise import Keystream, NoiseLaw

mp: Any = mpmath.MPContext()  # a context of our own: precision is not shared with other tests
mp.dps = 80

KEY = bytes(range(32))
RARE = 1e-4  # keys are fixed, and there are some hundred such tests: a right sampler hardly ever fails one


def geometric(scale: Fraction | int | str) -> NoiseLaw:
    return NoiseLaw(scale=Fraction(scale))


def gaussian(sigma_squared: Fraction | int | str) -> NoiseLaw:
    return NoiseLaw(sigma_squared=Fraction(sigma_squared))


def osgt(sigma_squared: Fraction | int | str, scale: Fraction | int | str) -> NoiseLaw:
    return NoiseLaw(sigma_squared=Fraction(sigma_squared), scale=Fraction(scale))


def number(value: Fraction) -> Any:
    return mp.mpf(value.numerator) / value.denominator


def weight(law: NoiseLaw, x: int) -> Any:
    slope = 0 if law.scale is None else abs(x) / number(law.scale)
    square = 0 if law.sigma_squared is None else mp.mpf(x) ** 2 / (2 * number(law.sigma_squared))
    return mp.exp(-slope - square)


def distribution(law: NoiseLaw, first: int, last: int) -> dict[int, Any]:
    """P(X <= k | first <= X <= last) for first <= k <= last: of the law itself where these are far out."""
    total, sums = mp.mpf(0), {}
    for k in range(first, last + 1):
        total += weight(law, k)
        sums[k] = total
    return {k: value / total for k, value in sums.items()}


def upper_tail(law: NoiseLaw, x: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """P(X >= x) for half-integers x > 0, in doubles, from the density: off by about 1/width² of itself."""
    if law.sigma_squared is None:
        return np.asarray(np.exp(-x * float(law.linear)) / 2)
    sigma, offset = float(law.sigma_squared) ** 0.5, float(law.sigma_squared * law.linear)
    return np.asarray(np.exp(log_ndtr(-(x + offset) / sigma) - log_ndtr(-offset / sigma)) / 2)


def chi_square_p(observed: Sequence[float] | NDArray[Any], expected: Sequence[float] | NDArray[Any]) -> float:
    """The probability that right frequencies stray at least as far."""
    o, e = np.asarray(observed, float), np.asarray(expected, float)
    return float(chdtrc(len(o) - 1, np.sum((o - e) ** 2 / e)))


class Scripted(Keystream):
    """A keystream of chosen words: each request for some takes the next entry, which must have that many."""

    def __init__(self, *script: Iterable[int]) -> None:
        super().__init__(KEY)
        self.script = [list(words) for words in script]

    def read(self, count: int) -> bytes:
        (word,) = self.script.pop(0)
        return word.to_bytes(count, "little")

    def words(self, count: int, dtype: str) -> NDArray[Any]:
        words = self.script.pop(0)
        assert len(words) == count
        return np.array(words, dtype)
