"""Ten thousand distinct mechanisms by RDP and zCDP, certified, beside dp-accounting's RDP accountant."""

import gc
import importlib
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from importlib.util import find_spec
from statistics import median
from typing import Any

from service.privacy.accounting.guarantee import guarantee
from service.privacy.mechanisms import DiscreteGaussian, Gaussian, Geometric, Laplace, Mechanism, RandomizedResponse
from service.privacy.numerics.numbers import double_up
from service.privacy.plans import Plan, Sequence
from service.privacy.plans.walking import Neighbouring

_COUNT = 10_000
_ROUNDS = 5
_DELTA = Fraction(1, 10**6)
_TARGET = 10  # times as fast as the peer


def run() -> None:
    """Print times, epsilons and their errors against the exact value; the peer knows only the first plan."""
    print(
        f"RDP and zCDP of {_COUNT:,} distinct mechanisms, certified (target: {_TARGET} times as fast as dp-accounting)"
    )
    known = [_gaussian(k) if k % 2 else _laplace(k) for k in range(_COUNT)]
    kinds = (_geometric, _laplace, _discrete_gaussian, _gaussian, _response)
    mixed = [kinds[k % len(kinds)](k) for k in range(_COUNT)]
    peer = _peer(known) if find_spec("dp_accounting") else None
    work: list[Callable[[], float]] = [_ours(known, Neighbouring.ADD_REMOVE), _ours(mixed, Neighbouring.REPLACE_ONE)]
    rounds = [[_timed(one) for one in ([*work, peer] if peer else work)] for _ in range(_ROUNDS)]
    exact = [_exact(known, 1), _exact(mixed, 2), None]
    exact[2] = exact[0]
    names = ("service, Gaussian and Laplace", "service, five kinds mixed", "dp-accounting, Gaussian and Laplace")
    for name, taken, truth in zip(names, zip(*rounds, strict=True), exact, strict=False):
        _line(name, median(milliseconds for milliseconds, _ in taken), taken[0][1], truth)
    if peer is None:
        print("  no peer: dp-accounting is not installed")
        return
    print(f"  {'dp-accounting / service':<40}{median(taken[2][0] / taken[0][0] for taken in rounds):9.1f}")


def _ours(mechanisms: list[Mechanism], neighbouring: Neighbouring) -> Callable[[], float]:
    """All of a guarantee but the tight figure: pure, zCDP, a dozen RDP orders, epsilon, by RDP returned."""
    plan: Plan = Sequence(parts=tuple(mechanisms))

    def price() -> float:
        found = guarantee(plan, neighbouring, deltas=(_DELTA,), tight=False).approximate
        (epsilon,) = (s.epsilon.nats for s in found if s.via == "rdp" and s.epsilon.nats is not None)
        return double_up(epsilon)

    return price


def _line(name: str, milliseconds: float, epsilon: float, exact: Any) -> None:
    error = float((epsilon - exact) / exact) if exact is not None else float("nan")
    print(f"  {name:<40}{milliseconds:9.1f} ms   epsilon {epsilon:.12g}, relative error {error:+.1e}")


def _timed(work: Callable[[], float]) -> tuple[float, float]:
    """Without the garbage collector, as ``timeit`` does."""
    gc.disable()
    started = time.perf_counter()
    found = work()
    taken = time.perf_counter() - started
    gc.enable()
    return 1000 * taken, found


def _geometric(k: int) -> Mechanism:
    return Geometric(scale=Fraction(20_000 + k, 100))


def _laplace(k: int) -> Mechanism:
    return Laplace(scale=Fraction(20_000 + k, 101))


def _discrete_gaussian(k: int) -> Mechanism:
    return DiscreteGaussian(sigma_squared=Fraction(20_000 + k, 10))


def _gaussian(k: int) -> Mechanism:
    return Gaussian(sigma_squared=Fraction(20_000 + k, 11))


def _response(k: int) -> Mechanism:
    return RandomizedResponse(epsilon=Fraction(20_000 + k, 4_000_000), values=3)


def _peer(mechanisms: Iterable[Mechanism]) -> Callable[[], float]:
    """Compute the figures with the peer library, from its events and at its own orders."""
    events = importlib.import_module("dp_accounting")  # it may not be installed
    rdp = importlib.import_module("dp_accounting.rdp")
    listed = [
        events.GaussianDpEvent(float(one.sigma_squared) ** 0.5)
        if isinstance(one, Gaussian)
        else events.LaplaceDpEvent(float(one.scale))
        for one in mechanisms
        if isinstance(one, Gaussian | Laplace)
    ]

    def compose() -> float:
        accountant = rdp.RdpAccountant()
        for event in listed:
            accountant.compose(event)
        return float(accountant.get_epsilon(float(_DELTA)))

    return compose


def _exact(mechanisms: list[Mechanism], cells: int) -> Any:
    """The least epsilon over all orders, by the mechanisms' moments as they are written down, at 50 digits."""
    if not find_spec("mpmath"):
        return None
    mp: Any = importlib.import_module("mpmath").mp
    mp.dps = 50
    rho = mp.fsum(
        cells / (2 * _number(mp, one.sigma_squared))
        for one in mechanisms
        if isinstance(one, Gaussian | DiscreteGaussian)
    )
    moments = [moment for moment in (_moment(mp, one, cells) for one in mechanisms) if moment]
    log_delta = mp.log(_number(mp, _DELTA))

    def epsilon(t: Any) -> Any:
        z = mp.exp(t)
        needed = z * mp.log(z / (z + 1)) - mp.log(z + 1) - log_delta
        return rho * (z + 1) + (mp.fsum(moment(z) for moment in moments) + needed) / z

    return _least(epsilon, mp.mpf(-3), mp.mpf(5))


def _number(mp: Any, value: Fraction) -> Any:
    return mp.mpf(value.numerator) / value.denominator


def _moment(mp: Any, mechanism: Mechanism, cells: int) -> Callable[[Any], Any] | None:
    """log E exp(zL) as a function of z; None for Gaussian noise."""
    match mechanism:
        case Geometric(scale=scale):
            e = 1 / _number(mp, scale)
            return lambda z: cells * mp.log(mp.cosh(e * (z + 0.5)) / mp.cosh(e / 2))
        case Laplace(scale=scale):
            e = 1 / _number(mp, scale)
            return lambda z: cells * mp.log(((z + 1) * mp.exp(z * e) + z * mp.exp(-(z + 1) * e)) / (2 * z + 1))
        case RandomizedResponse(epsilon=epsilon, values=k):
            e = _number(mp, epsilon)
            return lambda z: mp.log((mp.exp((z + 1) * e) + mp.exp(-z * e) + k - 2) / (mp.exp(e) + k - 1))
    return None


def _least(function: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """The least value of a function with one minimum, by golden section."""
    golden = (5**0.5 - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-7:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = low + high - right
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + high - left
            at_right = function(right)
    return min(at_left, at_right)
