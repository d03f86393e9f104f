"""Ten thousand distinct mechanisms by RDP and zCDP, certified, beside dp-accounting's RDP accountant."""

import importlib
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from importlib.util import find_spec
from statistics import median
from typing import Any

from service.privacy.guarantee import Guarantee, guarantee
from service.privacy.mechanisms import DiscreteGaussian, Gaussian, Geometric, Laplace, Mechanism, RandomizedResponse
from service.privacy.plan import Neighbouring, Plan, Sequence

_COUNT = 10_000
_ROUNDS = 5
_PEER_ROUNDS = 3
_DELTA = Fraction(1, 10**6)
_TARGET = 10  # times as fast as the peer


def run() -> None:
    """Print times, epsilons and their errors against the exact value; the peer knows only the first plan."""
    print(f"RDP and zCDP of {_COUNT:,} distinct mechanisms, certified (target: {_TARGET} times as fast as dp-accounting)")
    known = [_gaussian(k) if k % 2 else _laplace(k) for k in range(_COUNT)]
    kinds = (_geometric, _laplace, _discrete_gaussian, _gaussian, _response)
    ours = _measure("service, Gaussian and Laplace", known, Neighbouring.ADD_REMOVE)
    _measure("service, five kinds mixed", [kinds[k % 5](k) for k in range(_COUNT)], Neighbouring.REPLACE_ONE)
    if not find_spec("dp_accounting"):
        print("  no peer: dp-accounting is not installed")
        return
    peer = _peer(known)
    found: list[tuple[float, float]] = [_timed(peer) for _ in range(_PEER_ROUNDS)]
    theirs = median(milliseconds for milliseconds, _ in found)
    _line("dp-accounting, Gaussian and Laplace", theirs, found[0][1], _exact(known, 1))
    print(f"  {'dp-accounting / service':<40}{theirs / ours:9.1f}")


def _measure(name: str, mechanisms: list[Mechanism], neighbouring: Neighbouring) -> float:
    """The median time of a whole guarantee: pure, zCDP, a dozen RDP orders, epsilon by every analysis."""
    plan: Plan = Sequence(parts=tuple(mechanisms))
    found: list[tuple[float, Guarantee]] = [
        _timed(lambda: guarantee(plan, neighbouring, deltas=(_DELTA,))) for _ in range(_ROUNDS)
    ]
    milliseconds = median(time for time, _ in found)
    (epsilon,) = (s.epsilon.nats for s in found[0][1].approximate if s.via == "rdp" and s.epsilon.nats is not None)
    cells = 1 if neighbouring is Neighbouring.ADD_REMOVE else 2
    _line(name, milliseconds, float(epsilon), _exact(mechanisms, cells))
    return milliseconds


def _line(name: str, milliseconds: float, epsilon: float, exact: Any) -> None:
    error = float((epsilon - exact) / exact) if exact is not None else float("nan")
    print(f"  {name:<40}{milliseconds:9.1f} ms   epsilon {epsilon:.12g}, relative error {error:+.1e}")


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = work()
    return 1000 * (time.perf_counter() - started), found


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
    """The same as its events, at its own orders."""
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

    def number(value: Fraction | int) -> Any:
        return mp.mpf(value.numerator) / value.denominator

    noise: list[tuple[str, Any]] = []
    rho = mp.mpf(0)
    for one in mechanisms:
        match one:
            case Geometric(scale=scale):
                noise.append(("geometric", 1 / number(scale)))
            case Laplace(scale=scale):
                noise.append(("laplace", 1 / number(scale)))
            case RandomizedResponse(epsilon=epsilon):
                noise.append(("response", number(epsilon)))
            case Gaussian(sigma_squared=variance) | DiscreteGaussian(sigma_squared=variance):
                rho += cells / (2 * number(variance))

    def moment(kind: str, e: Any, a: Any) -> Any:
        z = a - 1
        match kind:
            case "geometric":
                return cells * mp.log(mp.cosh(e * (z + 0.5)) / mp.cosh(e / 2))
            case "laplace":
                return cells * mp.log(a / (2 * a - 1) * mp.exp(z * e) + z / (2 * a - 1) * mp.exp(-a * e))
        return mp.log((mp.exp(a * e) + mp.exp(-z * e) + 1) / (mp.exp(e) + 2))

    def epsilon_at(a: Any) -> Any:
        total = mp.fsum(moment(kind, e, a) for kind, e in noise) / (a - 1) + rho * a
        return total + (mp.log(1 / number(_DELTA)) + (a - 1) * mp.log(1 - 1 / a) - mp.log(a)) / (a - 1)

    low, high = mp.mpf("1.01"), mp.mpf(200)  # in log(alpha-1) what is minimised has one minimum
    low, high = mp.log(low - 1), mp.log(high - 1)
    values = {}
    golden = (mp.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    for t in (left, right):
        values[t] = epsilon_at(1 + mp.exp(t))
    while high - low > mp.mpf(10) ** -8:
        if values[left] < values[right]:
            high, right = right, left
            left = high - golden * (high - low)
            values[left] = epsilon_at(1 + mp.exp(left))
        else:
            low, left = left, right
            right = low + golden * (high - low)
            values[right] = epsilon_at(1 + mp.exp(right))
    return min(values.values())
