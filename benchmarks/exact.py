"""The peer of the noise benchmark: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", 2020
(arXiv:2004.00010), Algorithms 1 to 3 in plain Python. Exact, one value at a time, from the operating system's bits.
"""

import math
import secrets
from fractions import Fraction

from service.noise import NoiseLaw


def sample(law: NoiseLaw, size: int) -> list[int]:
    """``size`` independent values of ``law``, exact."""
    if law.sigma_squared is None:
        return [_geometric(law.linear.denominator, law.linear.numerator) for _ in range(size)]
    return _gaussian_tails(law.sigma_squared, law.linear, size)


def _bernoulli_exp_within_one(numerator: int, denominator: int) -> bool:
    """True with probability exp(-g), g = numerator/denominator in [0, 1]: Algorithm 1."""
    k = 1
    while secrets.randbelow(denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def _bernoulli_exp(numerator: int, denominator: int) -> bool:
    whole, rest = divmod(numerator, denominator)
    return all(_bernoulli_exp_within_one(1, 1) for _ in range(whole)) and _bernoulli_exp_within_one(rest, denominator)


def _geometric(t: int, s: int) -> int:
    """A value of mass proportional to exp(-|y| s/t): Algorithm 2."""
    while True:
        u = secrets.randbelow(t)
        if not _bernoulli_exp_within_one(u, t):
            continue
        v = 0
        while _bernoulli_exp_within_one(1, 1):
            v += 1
        y = (u + t * v) // s
        negative = secrets.randbits(1)
        if y or not negative:
            return -y if negative else y


def _gaussian_tails(sigma_squared: Fraction, linear: Fraction, size: int) -> list[int]:
    """Values of mass proportional to exp(-y²/(2 sigma²) - |y| linear): Algorithm 3, at linear = 0."""
    p, q = sigma_squared.numerator, sigma_squared.denominator
    t = math.isqrt(p // q) + 1
    rate = Fraction(1, t) + linear
    values: list[int] = []
    while len(values) < size:
        y = _geometric(rate.denominator, rate.numerator)
        if _bernoulli_exp((abs(y) * q * t - p) ** 2, 2 * p * q * t * t):
            values.append(y)
    return values
