"""Exact samples of integer noise: Canonne, Kamath, Steinke, "The Discrete Gaussian for
Differential Privacy", 2020 (arXiv:2004.00010), Algorithms 1 to 3.

Given uniform bits the law is the stated one to the last bit: everything here is an integer or a
ratio of integers, because noise formed in floating point leaks the count that it should hide
(Mironov 2012). How long a draw takes depends on the value drawn, so whoever can time single draws
learns something about the noise; do not let a caller draw one value at a time against a clock.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from service.privacy.law import Law

Entropy = Callable[[int], int]
"""Called with k >= 1 it gives k uniform random bits as an integer in [0, 2^k). In production these
come from the operating system: ``secrets.randbits``."""

# At these limits |X| > 2^63 - 1 has probability below exp(-8190): int64 never overflows in practice.
MAX_SCALE = 2**50
MAX_SIGMA_SQUARED = 2**100

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def sample(law: Law, size: int, entropy: Entropy) -> list[int]:
    """``size`` independent values of ``law``, exact.

    Raises:
        ValueError: a negative size, or a law too wide for 64-bit results.
    """
    if size < 0:
        raise ValueError(f"expected a size of at least 0, got {size}")
    if law.sigma_squared is None:
        if 1 / law.linear > MAX_SCALE:
            raise ValueError("expected a scale of at most 2^50 (1125899906842624), so that results fit 64 bits")
        rate = law.linear
        return [_geometric(rate.denominator, rate.numerator, entropy) for _ in range(size)]
    if law.sigma_squared > MAX_SIGMA_SQUARED:
        raise ValueError(
            "expected a sigma_squared of at most 2^100 (1267650600228229401496703205376), so that results fit 64 bits"
        )
    return _gaussian_tails(law.sigma_squared, law.linear, size, entropy)


def add_noise(counts: Sequence[int], law: Law, entropy: Entropy) -> list[int]:
    """Each count plus an independent value of ``law``, clamped to the limits of a 64-bit integer.

    The sum is formed without wrap-around. Clamping it is post-processing of the noisy count, so it
    costs no privacy, and it happens in practice only to counts that lie at the limits themselves.

    Raises:
        ValueError: a count that is itself not a 64-bit integer, or a law too wide.
    """
    if not all(INT64_MIN <= count <= INT64_MAX for count in counts):
        raise ValueError("expected every count to be a 64-bit integer")  # says which to nobody: counts are secret
    noise = sample(law, len(counts), entropy)
    return [min(max(count + value, INT64_MIN), INT64_MAX) for count, value in zip(counts, noise, strict=True)]


def _below(n: int, entropy: Entropy) -> int:
    """A uniform integer in [0, n), by rejection: a remainder would favour small values."""
    bits = (n - 1).bit_length()
    if bits == 0:
        return 0
    while (value := entropy(bits)) >= n:
        pass
    return value


def _bernoulli_exp_within_one(numerator: int, denominator: int, entropy: Entropy) -> bool:
    """True with probability exp(-g), where g = numerator/denominator is in [0, 1]. CKS 2020, Algorithm 1.

    The run of successes of Bernoulli(g/k), k = 1, 2, ..., is longer than j with probability
    g^j/j!, so it is of even length with probability 1 - g + g²/2! - ... = exp(-g).
    """
    k = 1
    while _below(denominator * k, entropy) < numerator:
        k += 1
    return k % 2 == 1


def bernoulli_exp(numerator: int, denominator: int, entropy: Entropy) -> bool:
    """True with probability exp(-g) for any g >= 0: exp(-1) once for each whole unit of g, then the rest."""
    whole, rest = divmod(numerator, denominator)
    for _ in range(whole):
        if not _bernoulli_exp_within_one(1, 1, entropy):
            return False
    return _bernoulli_exp_within_one(rest, denominator, entropy)


def _geometric(t: int, s: int, entropy: Entropy) -> int:
    """A value of mass proportional to exp(-|y| s/t), scale t/s. CKS 2020, Algorithm 2.

    x = u + t v has mass proportional to exp(-x/t): u, uniform below t and kept with probability
    exp(-u/t), is its remainder, v its quotient. Then x // s has mass proportional to exp(-y s/t).
    """
    while True:
        u = _below(t, entropy)
        if not _bernoulli_exp_within_one(u, t, entropy):
            continue
        v = 0
        while _bernoulli_exp_within_one(1, 1, entropy):
            v += 1
        y = (u + t * v) // s
        negative = entropy(1)
        if negative and y == 0:
            continue  # 0 has only one sign: keeping minus zero would give it twice its mass
        return -y if negative else y


def _gaussian_tails(sigma_squared: Fraction, linear: Fraction, size: int, entropy: Entropy) -> list[int]:
    """Values of mass proportional to exp(-y²/(2 sigma²) - |y| linear). CKS 2020, Algorithm 3, at linear = 0.

    A geometric y of rate 1/t + linear, t a whole number near sigma, is kept with probability exp(-g), where
    g = (|y| - sigma²/t)²/(2 sigma²), which is y²/(2 sigma²) - |y|/t up to a constant. With sigma² = p/q
    that is (|y| q t - p)²/(2 p q t²). As t is above sigma, g is below 1/2 for all y up to 2 sigma²/t: the linear
    part, which makes y smaller, does not make it rarer that one is kept.
    """
    p, q = sigma_squared.numerator, sigma_squared.denominator
    t = math.isqrt(p // q) + 1
    rate = Fraction(1, t) + linear
    step, denominator = q * t, 2 * p * q * t * t
    values: list[int] = []
    while len(values) < size:
        y = _geometric(rate.denominator, rate.numerator, entropy)
        if bernoulli_exp((abs(y) * step - p) ** 2, denominator, entropy):
            values.append(y)
    return values
