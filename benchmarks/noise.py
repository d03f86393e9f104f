"""Exact noise, in values a second of processor time, beside OpenDP, exact noise in Python and numpy's inexact noise."""

import importlib
import time
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from statistics import median

import numpy as np

from benchmarks import exact
from service.noise import Keystream, NoiseLaw, sample, sampler

_ROUNDS = 5
_OURS, _NUMPY, _PYTHON, _OPENDP = 2_000_000, 500_000, 2_000, 10_000  # values a round
_SINGLE = 2_000
_READ = 1 << 22  # bytes
_PIECE = 1 << 17  # bytes: what the sampler asks for at a time
_TARGET = 1000  # times OpenDP, up to a scale of 1e5
_SCALES = [Fraction(1, 2), Fraction(10), Fraction(200), Fraction(1000), Fraction(10**5), Fraction(10**9)]


class _Repeated(Keystream):
    """Bits that cost nothing, and are not random: what is left is our own work."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._at = super().read(_READ), 0

    def read(self, count: int) -> bytes:
        """Some of the same bytes, from a place that moves."""
        self._at = (self._at + 7919 * count) % (_READ - count)
        return self._bytes[self._at : self._at + count]


def run() -> None:
    """Print a line for each law: rates, and the ratio to each peer."""
    bits = Keystream()
    speed = _PIECE / median(_seconds(lambda: bits.read(_PIECE)) for _ in range(_SINGLE)) / 1e9
    print(f"Noise, millions of values a second (target: {_TARGET:,} times OpenDP); the keystream {speed:.2f} GB/s")
    header = f"{'ours':>8}{'bits given':>12}{'OpenDP':>9}{'ratio':>9}"
    header += f"{'CKS, Python':>13}{'ratio':>9}{'numpy, inexact':>16}{'ratio':>7}"
    print(f"  {'':<30}{header}{'tables, ms':>12}{'one, us':>9}")
    generator = np.random.default_rng(1)
    for size in _SCALES:
        _line(
            f"geometric, scale {float(size):g}",
            NoiseLaw(scale=size),
            _two_sided(generator, float(size)),
            _opendp("make_laplace", "l1", float(size)),
        )
    for size in _SCALES:
        name = f"discrete Gaussian, sigma {float(size):g}"
        _line(
            name,
            NoiseLaw(sigma_squared=size * size),
            _rounded(generator, float(size)),
            _opendp("make_gaussian", "l2", float(size)),
        )
    for size in _SCALES[1:]:
        _line(f"discrete OSGT, both {float(size):g}", NoiseLaw(sigma_squared=size * size, scale=size), None, None)


def _two_sided(generator: np.random.Generator, scale: float) -> Callable[[], object]:
    p = -np.expm1(-1 / scale)
    return lambda: generator.geometric(p, _NUMPY) - generator.geometric(p, _NUMPY)


def _rounded(generator: np.random.Generator, sigma: float) -> Callable[[], object]:
    return lambda: np.rint(generator.normal(0.0, sigma, _NUMPY)).astype(np.int64)


def _opendp(maker: str, metric: str, scale: float) -> Callable[[], object] | None:
    """Its noise on a vector of zeros, by its Rust library; None where it is not installed."""
    if find_spec("opendp") is None:
        return None
    dp = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    distance = dp.l1_distance(T="i64") if metric == "l1" else dp.l2_distance(T="f64")
    measurement = getattr(dp.m, maker)(dp.vector_domain(dp.atom_domain(T="i64")), distance, scale=scale)
    zeros = [0] * _OPENDP
    return lambda: measurement(zeros)


def _line(name: str, law: NoiseLaw, inexact: Callable[[], object] | None, opendp: Callable[[], object] | None) -> None:
    sampler._sampler_of.cache_clear()
    built = _seconds(lambda: sampler._sampler_of(law))
    keystream, repeated = Keystream(), _Repeated()
    work: list[tuple[int, Callable[[], object]]] = [
        (_OURS, lambda: sample(law, _OURS, keystream)),
        (_OURS, lambda: sample(law, _OURS, repeated)),
        (_PYTHON, lambda: exact.sample(law, _PYTHON)),
    ]
    work += [(size, other) for size, other in ((_OPENDP, opendp), (_NUMPY, inexact)) if other is not None]
    rounds = [[size / _seconds(one) / 1e6 for size, one in work] for _ in range(_ROUNDS)]
    ours, given, python, *others = (median(rates) for rates in zip(*rounds, strict=True))
    ratios = [median(rates[0] / rates[peer] for rates in rounds) for peer in range(2, len(work))]
    exact_peer = f"{others[0]:9.4f}{ratios[1]:9,.0f}" if opendp else f"{'-':>9}{'-':>9}"
    beside = f"{others[-1]:16.0f}{ratios[-1]:7.1f}" if inexact else " " * 23
    single = median(_seconds(lambda: sample(law, 1, Keystream())) for _ in range(_SINGLE))
    figures = f"{ours:8.0f}{given:12.0f}{exact_peer}{python:13.4f}{ratios[0]:9,.0f}{beside}"
    print(f"  {name:<30}{figures}{built * 1e3:12.1f}{single * 1e6:9.1f}", flush=True)


def _seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


if __name__ == "__main__":
    run()
