"""The tight epsilon of a thousand mixed mechanisms, beside dp-accounting's PLD accountant, and the error of both."""

import importlib
import math
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from random import Random
from statistics import median

from flint import acb, arb, ctx

from service.privacy.accounting.guarantee import USUAL_DELTA
from service.privacy.mechanisms import DiscreteGaussian, Gaussian, Geometric, Laplace, Mechanism
from service.privacy.plans import Repeat, Sequence
from service.privacy.plans.condensed import Condensed
from service.privacy.plans.walking import Neighbouring, condense
from service.privacy.tight import TightProfile

_ROUNDS = 15
_INTERVAL = 1e-4  # of the peer's grid of losses
_TARGET = 100  # times as fast
_COUNTS = {Laplace: 400, Gaussian: 300, Geometric: 300}
_DIGITS = 60  # of the exact value
_INSIDE, _STEP, _POINTS = 40, 0.7, 600
"""Of its line, as multiples of 1/epsilon: near the saddle point, several times as fine and as long as is needed."""


def run() -> None:
    """Print times, epsilons and errors."""
    print(
        f"Tight epsilon at delta = {float(USUAL_DELTA):g}: 400 Laplace, 300 Gaussian, 300 geometric mechanisms"
        f" (target: {_TARGET} times as fast, 3 more digits)"
    )
    for name, distinct in (("of 30 kinds", 10), ("all distinct", 0)):
        mechanisms = _mixed(distinct)
        plan = condense(Sequence(parts=tuple(mechanisms)))
        ours, found = _timed(partial(_epsilon, plan), _ROUNDS)
        exact = _exact(mechanisms, found)
        print(f"  {name + ', the exact value':<47}{exact:18.15f}")
        _show("service", ours, found, exact)
        if not find_spec("dp_accounting"):
            print("    no peer: dp-accounting is not installed (pip install dp-accounting)")
            continue
        theirs, other = _timed(partial(_peer, mechanisms), 1)
        _show("dp-accounting, interval 1e-4", theirs, other, exact)
        digits = math.log10(abs(other / exact - 1) / max(abs(found / exact - 1), 1e-16))
        print(f"    {'dp-accounting / service':<32}{theirs / ours:8.0f}      {digits:.1f} more digits")
    print("  1,000 distinct mechanisms, each 1,000 times")
    for name, plan in (("mixed", _repeated(_mixed(0))), ("discrete Gaussian", _repeated(_gaussians()))):
        ours, found = _timed(partial(_epsilon, plan), 5)
        print(f"    {name:<32}{ours * 1e3:8.1f} ms {found:18.15f}")


def _show(who: str, seconds: float, found: float, exact: float) -> None:
    print(f"    {who:<32}{seconds * 1e3:8.1f} ms {found:18.15f}   error {abs(found / exact - 1):.1e}")


def _epsilon(plan: Condensed) -> float:
    tight = TightProfile.of(plan, Neighbouring.ADD_REMOVE)
    bound = None if tight is None else tight.epsilon(USUAL_DELTA)
    return math.nan if bound is None or bound.loss.nats is None else float(bound.loss.nats)


def _mixed(distinct: int) -> list[Mechanism]:
    """Mechanisms of each kind, with ``distinct`` noise scales a kind, or all different."""
    random = Random(1)

    def scale(k: int, low: int, high: int) -> Fraction:
        return Fraction(
            low + (high - low) * (k % distinct) // distinct if distinct else random.randint(low, high), 1000
        )

    laplace = [Laplace(scale=scale(k, 20_000, 90_000)) for k in range(400)]
    gaussian = [Gaussian(sigma_squared=scale(k, 400_000, 9_000_000)) for k in range(300)]
    geometric = [Geometric(scale=scale(k, 20_000, 90_000)) for k in range(300)]
    return [*laplace, *gaussian, *geometric]


def _gaussians() -> list[Mechanism]:
    random = Random(2)
    return [DiscreteGaussian(sigma_squared=Fraction(random.randint(10**9, 10**11), 1000)) for _ in range(1000)]


def _repeated(mechanisms: list[Mechanism]) -> Condensed:
    return condense(Sequence(parts=tuple(Repeat(part=one, count=1000) for one in mechanisms)))


def _peer(mechanisms: list[Mechanism]) -> float:
    events = importlib.import_module("dp_accounting.dp_event")  # it may not be installed
    pld = importlib.import_module("dp_accounting.pld")
    relation = importlib.import_module("dp_accounting").NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = pld.PLDAccountant(relation, value_discretization_interval=_INTERVAL)
    for one, count in Counter(mechanisms).items():
        match one:
            case Laplace():
                accountant.compose(events.LaplaceDpEvent(float(one.scale)), count)
            case Gaussian():
                accountant.compose(events.GaussianDpEvent(math.sqrt(one.sigma_squared)), count)
            case Geometric():
                accountant.compose(events.DiscreteLaplaceDpEvent(float(1 / one.scale), 1), count)
    return float(accountant.get_epsilon(float(USUAL_DELTA)))


def _exact(mechanisms: list[Mechanism], near: float) -> float:
    """The true epsilon to far more digits than a double has: the same integral, in ball arithmetic, step halved.

    Newton's steps from ``near``, on the integral of the transform of each loss by its law.
    """
    with ctx.workprec(4 * _DIGITS):
        c, h = acb(_INSIDE / near), arb(_STEP / near)
        points = [c + acb(0, 1) * h * k for k in range(_POINTS)]
        transforms = [_transform(mechanisms, z) for z in points]
        epsilon = arb(near)
        target = arb(USUAL_DELTA.numerator) / arb(USUAL_DELTA.denominator)
        for _ in range(4):
            turned = [(m - z * epsilon).exp() / (z + 1) for m, z in zip(transforms, points, strict=True)]
            value, slope = _sum([x / z for x, z in zip(turned, points, strict=True)], h), -_sum(turned, h)
            epsilon = (epsilon - value * (value / target).log() / slope).mid()
        return float(epsilon)


def _sum(terms: list[acb], h: arb) -> arb:
    return (terms[0].real / 2 + sum((term.real for term in terms[1:]), arb(0))) * h / arb.pi()


def _transform(mechanisms: list[Mechanism], z: acb) -> acb:
    """log E exp(zL), from the law of each loss."""
    total = acb(0)
    for one in mechanisms:
        match one:
            case Gaussian():
                total += z * (z + 1) / (2 * _ball(one.sigma_squared))
            case Geometric():  # losses of e and -e
                e = 1 / _ball(one.scale)
                total += (((z * e).exp() + (-(z + 1) * e).exp()) / (1 + (-e).exp())).log()
            case Laplace():  # half its mass at e, exp(-e)/2 at -e, and a density of exp((x-e)/2)/4 between
                e, w = 1 / _ball(one.scale), z + acb(0.5)
                density = (-e / 2).exp() * ((w * e).exp() - (-w * e).exp()) / (4 * w)
                total += (((z * e).exp() + (-(z + 1) * e).exp()) / 2 + density).log()
    return total


def _ball(value: Fraction) -> arb:
    return arb(value.numerator) / arb(value.denominator)


def _timed(work: Callable[[], float], rounds: int) -> tuple[float, float]:
    """The median time of a call, seconds, and its result."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - started)
    return median(times), found
