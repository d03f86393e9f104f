"""The least noise that keeps (epsilon, delta), by the exact condition and not by a conversion from zCDP.

Every result is proven by an evaluation, however it was found: by balls if there is a closed form (continuous Gaussian
noise, one cell of continuous offset tails), else by the tight accountant, whose delta is an upper bound. sigma² is a
number of 12 significant digits that keeps the guarantee; the next smaller one does not.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from service.privacy.accounting.conversion import epsilon_to_rho_analytic
from service.privacy.accuracy.calibration import SUB_GAUSSIAN, rank_of, value_of_rank
from service.privacy.accuracy.sums import variance
from service.privacy.accuracy.tails import smallest
from service.privacy.laws.loss_laws import DiscreteGaussianLoss, DiscreteOsgtLoss, GaussianLoss, OsgtLoss
from service.privacy.laws.offset_tails import osgt_tau
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Gaussian, Osgt, is_offset_tails
from service.privacy.numerics.arithmetic import DOUBLES
from service.privacy.numerics.half_gaussian_sums import half_line
from service.privacy.numerics.numbers import ball, precision
from service.privacy.planning.narrow_noise import LARGEST_SENSITIVITY, least_narrow_noise
from service.privacy.planning.one_cell_delta import integer_delta, osgt_delta, rough_osgt_delta
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from service.privacy.tight.gaussian import gaussian_delta, gaussian_rho_at

CalibratedNoise = Gaussian | DiscreteGaussian | Osgt | DiscreteOsgt
CalibratedNoiseType = type[Gaussian] | type[DiscreteGaussian] | type[Osgt] | type[DiscreteOsgt]
EPSILONS = Fraction(1, 100), Fraction(20)
DELTAS = Fraction(1, 10**30), Fraction(1, 10)
SENSITIVITIES = Fraction(1, 10**4), Fraction(10**4)
MOST_CELLS: Mapping[CalibratedNoiseType, int] = {Gaussian: 10**6, DiscreteGaussian: 10**6, Osgt: 20, DiscreteOsgt: 20}

_WIDE = 100  # counts squared: from this variance on, integer noise has the best offset of continuous noise
_LARGEST_OFFSET = 1e3  # in sigmas; beyond it, the variance differs from that of Laplace noise by less than 1e-4 of it
_LARGEST_OF_MANY = 10.0  # in sigmas, for more than one cell
_ORDERS = 1 + np.logspace(-3, 6, 400)
_SECANTS, _BISECTIONS = 20, 60
_CLOSE = 1e-12
_FURTHEST = 30.0  # in log sigma, from where a search begins
_GOLDEN = (math.sqrt(5) - 1) / 2
_NONE = "expected a guarantee that some noise is proven to keep"


class NoSuchNoise(ArithmeticError):
    """No noise is proven to keep the guarantee."""


@dataclass(frozen=True, slots=True)
class Target:
    """(epsilon, delta) for some cells.

    Attributes:
        cells: their number.
        sub_gaussian: whether noise with offset tails must be sub-Gaussian.
    """

    epsilon: Fraction
    delta: Fraction
    cells: int = 1
    sub_gaussian: bool = False

    @property
    def negligible(self) -> Fraction:
        """A delta below which deltas need not be told apart."""
        return self.delta / 2**200

    @property
    def largest_offset(self) -> float:
        """The largest offset in the search, in sigmas."""
        if self.sub_gaussian:
            return float(SUB_GAUSSIAN)
        return _LARGEST_OFFSET if self.cells == 1 else _LARGEST_OF_MANY


def delta_of_cells(
    mechanism: CalibratedNoise, cells: int, epsilon: Fraction, negligible: Fraction = Fraction(0)
) -> Fraction | None:
    """Return an upper bound on delta at epsilon of the mechanism on ``cells`` cells; None if no precision suffices.

    A delta below ``negligible`` may be returned as ``negligible``, because tiny deltas take many digits.

    Args:
        epsilon: nats.
    """
    law = mechanism.simplest().loss_law()
    match law:
        case GaussianLoss(rho=rho):
            return gaussian_delta(cells * rho, epsilon).nats
        case OsgtLoss() if cells == 1:
            return osgt_delta(law, epsilon)
        case DiscreteGaussianLoss() | DiscreteOsgtLoss() if cells == 1:
            return integer_delta(mechanism.noise_law(), law.sensitivity, epsilon, negligible)
    profile = TightProfile.of(replace(mechanism, cells=cells), Neighbouring.ADD_REMOVE)
    bound = None if profile is None else profile.delta(epsilon)
    return None if bound is None else bound.loss.nats


def least_variance(mechanism: CalibratedNoise, target: Target) -> CalibratedNoise:
    """Return the mechanism with the least sigma² that keeps the target, its offset (and all else) as it is.

    The search assumes that delta falls as sigma² grows. That the result keeps the target does not depend on this.

    Raises:
        NoSuchNoise: none is found.
    """
    start = mechanism.sigma_squared
    if not isinstance(mechanism.simplest().loss_law(), GaussianLoss):
        start = _scaled_to_target(mechanism, None, target).sigma_squared
    return _proven_least(mechanism, target, start)


def _proven_least(mechanism: CalibratedNoise, target: Target, start: Fraction) -> CalibratedNoise:
    """Return the mechanism with the least sigma² that keeps the target, searched from one that is about right."""

    def holds(rank: int) -> bool:
        changed = replace(mechanism, sigma_squared=value_of_rank(rank))
        delta = delta_of_cells(changed, target.cells, target.epsilon, target.negligible)
        return delta is not None and delta <= target.delta

    rank = rank_of(start)
    if mechanism.noise_law().offset and target.cells > 1:
        rank = next((rank + 10**k for k in range(12) if holds(rank + 10**k)), -1)  # a test takes tens of milliseconds
        if rank == -1:
            raise NoSuchNoise(_NONE)
    else:
        rank = smallest(holds, rank)
    return replace(mechanism, sigma_squared=value_of_rank(rank))


def least_noise(kind: CalibratedNoiseType, sensitivity: Fraction, target: Target) -> CalibratedNoise:
    """Return the noise of a kind of least variance; for offset tails Gaussian noise if no offset is better.

    Args:
        sensitivity: counts; whole for noise on the integers.

    Raises:
        NoSuchNoise: none is found.
    """
    return (least_gaussian if kind.PARAMETER else least_osgt)(kind, sensitivity, target)


def least_gaussian(kind: CalibratedNoiseType, sensitivity: Fraction, target: Target) -> CalibratedNoise:
    """Return the Gaussian noise of least variance, continuous or on the integers as ``kind`` is.

    Args:
        sensitivity: counts; whole for noise on the integers.

    Raises:
        NoSuchNoise: none is found.
    """
    below = epsilon_to_rho_analytic(target.epsilon, target.delta)
    rho = gaussian_rho_at(target.epsilon, target.delta, below)
    start = target.cells * sensitivity * sensitivity / (2 * rho)
    if not kind.DRAWN:
        return least_variance(Gaussian(sigma_squared=start, sensitivity=sensitivity), target)
    plain = least_variance(DiscreteGaussian(sigma_squared=start, sensitivity=int(sensitivity)), target)
    narrow = _least_narrow_noise(DiscreteGaussian, int(sensitivity), target)
    return plain if narrow is None else min(plain, narrow, key=_variance)


def _least_narrow_noise(kind: CalibratedNoiseType, sensitivity: int, target: Target) -> CalibratedNoise | None:
    """Return the integer noise of least variance among noise hardly wider than one integer; see ``narrow_noise``."""
    if target.cells > 1 or sensitivity > LARGEST_SENSITIVITY:
        return None
    largest = 0.0 if kind.PARAMETER else target.largest_offset
    parameters = least_narrow_noise(sensitivity, float(target.epsilon), float(target.delta), largest)
    if parameters is None:
        return None
    v, m = (Fraction(value) for value in parameters)
    noise: CalibratedNoise = DiscreteGaussian(sigma_squared=v, sensitivity=sensitivity)
    if m and not kind.PARAMETER:
        noise = _with_short_offset(DiscreteOsgt(sigma_squared=v, m=m, sensitivity=sensitivity))
    return _proven_least(noise, target, v)


def least_osgt(kind: CalibratedNoiseType, sensitivity: Fraction, target: Target) -> CalibratedNoise:
    """Return the noise with offset tails of least variance, continuous or on the integers as ``kind`` is.

    The search is over the offset in sigmas, each with the sigma that it needs, in doubles. The offset of narrow integer
    noise is searched by its own deltas, that of all other noise by those of continuous noise.

    Args:
        sensitivity: counts; whole for noise on the integers.

    Returns:
        Gaussian noise if no offset is better.

    Raises:
        NoSuchNoise: none is found.
    """
    gaussian = least_gaussian(Gaussian, sensitivity, target)

    def of_line(r: float) -> CalibratedNoise:
        return _of_offset_ratio(Osgt, r, gaussian.sigma_squared, sensitivity)

    def of_integers(r: float) -> CalibratedNoise:
        # Begin with the sigma of continuous noise: far from the right one, deltas are tiny and take many digits.
        return _of_offset_ratio(DiscreteOsgt, r, _scaled_to_target(of_line(r), r, target).sigma_squared, sensitivity)

    best = on_line = _best_offset(of_line, target)
    if kind.DRAWN:
        if _variance(on_line) < _WIDE:
            best = _best_offset(of_integers, target)
        else:
            v, m = on_line.sigma_squared, on_line.noise_law().offset
            best = DiscreteOsgt(sigma_squared=v, m=m, sensitivity=int(sensitivity))
    searched = least_variance(_with_short_offset(best), target)
    others = [gaussian]
    if kind.DRAWN:
        narrow = _least_narrow_noise(DiscreteOsgt, int(sensitivity), target)
        others = [least_gaussian(DiscreteGaussian, sensitivity, target), *([] if narrow is None else [narrow])]
    return min(searched, *others, key=_variance)


def _with_short_offset(mechanism: CalibratedNoise) -> CalibratedNoise:
    """Return the mechanism with an offset of 12 digits."""
    if is_offset_tails(mechanism) and mechanism.m:
        return replace(mechanism, m=value_of_rank(rank_of(mechanism.m)))
    return mechanism


def _of_offset_ratio(kind: CalibratedNoiseType, r: float, start: Fraction, sensitivity: Fraction) -> CalibratedNoise:
    offset = Fraction(r * math.sqrt(start))
    if not kind.DRAWN:
        return Osgt(sigma_squared=start, m=offset, sensitivity=sensitivity)
    return DiscreteOsgt(sigma_squared=start, m=offset, sensitivity=int(sensitivity))


def _best_offset(start: Callable[[float], CalibratedNoise], target: Target) -> CalibratedNoise:
    """Minimise the variance over r = m/sigma, by t = log(1+r): on a grid, then by golden sections."""
    known: dict[float, tuple[float, CalibratedNoise]] = {}

    def at(t: float) -> float:
        if t not in known:
            try:
                noise = _scaled_to_target(start(math.expm1(t)), math.expm1(t), target)
                known[t] = (_variance(noise), noise)
            except NoSuchNoise:
                known[t] = (math.inf, start(0))
        return known[t][0]

    points, sections = 33, 25
    grid = [float(t) for t in np.linspace(0, math.log1p(target.largest_offset), points)]
    k = min(range(points), key=lambda place: at(grid[place]))
    low, high = grid[max(k - 1, 0)], grid[min(k + 1, points - 1)]
    for _ in range(sections):
        one, two = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, two) if at(one) <= at(two) else (one, high)
    variance, noise = min(known.values(), key=lambda pair: pair[0])
    if variance == math.inf:
        raise NoSuchNoise(_NONE)
    return noise


def _scaled_to_target(mechanism: CalibratedNoise, r: float | None, target: Target) -> CalibratedNoise:
    """Return the mechanism with the sigma that it needs while m/sigma stays r or, without r, while m stays."""

    def noise(sigma: float) -> CalibratedNoise:
        changed = replace(mechanism, sigma_squared=Fraction(sigma * sigma))
        if r is not None and is_offset_tails(changed):
            changed = replace(changed, m=Fraction(r * sigma))
        return changed

    over = _distance_above if r is None or target.cells == 1 else _rough_distance_above
    return noise(_root(lambda sigma: over(noise(sigma), target), math.sqrt(mechanism.sigma_squared)))


def _root(over: Callable[[float], float], start: float) -> float:
    """Return roughly the least sigma with over(sigma) <= 0, by secants in log sigma, in a bracket if there is one.

    Where delta is 1 the steps grow. Where it falls off a cliff, secants hardly move, so bisections follow them.
    """
    x, low, high = math.log(start), -math.inf, math.inf
    before: tuple[float, float] | None = None
    start_at = x
    for number in range(_SECANTS + _BISECTIONS):
        if abs(x - start_at) > _FURTHEST:
            break
        value = over(math.exp(x))
        low, high = (max(low, x), high) if value > 0 else (low, min(high, x))
        if abs(value) < _CLOSE or high - low < _CLOSE:
            break
        step = math.copysign(0.1, value)
        if before is not None:
            last = x - before[0]
            step = min(max(2 * last if before[1] == value else -value * last / (value - before[1]), -2.0), 2.0)
        before = (x, value)
        x += step
        if not low < x < high or (number > _SECANTS and high - low < math.inf):
            x = (low + high) / 2
    if not math.isfinite(high):
        raise NoSuchNoise(_NONE)
    return math.exp(high)


def _distance_above(mechanism: CalibratedNoise, target: Target) -> float:
    """Return the distance of the mechanism from the target, in logarithms; not above 0 if it keeps the target.

    For one cell it compares deltas, for more cells epsilons, which are about a power of sigma.
    """
    law = mechanism.loss_law()
    if isinstance(law, OsgtLoss) and target.cells == 1:
        return rough_osgt_delta(law, float(target.epsilon)) - _log(target.delta)
    if target.cells == 1:
        delta = delta_of_cells(mechanism, 1, target.epsilon, target.negligible)
        if delta is None:
            raise NoSuchNoise(_NONE)
        return _log(delta / target.delta) if delta else -_FURTHEST
    profile = TightProfile.of(replace(mechanism, cells=target.cells), Neighbouring.ADD_REMOVE)
    bound = None if profile is None else profile.epsilon(target.delta)
    if bound is None or bound.loss.nats is None:
        raise NoSuchNoise(_NONE)
    return -1.0 if bound.loss.nats == 0 else max(_log(bound.loss.nats / target.epsilon), -1.0)


def _rough_distance_above(mechanism: CalibratedNoise, target: Target) -> float:
    """Return the distance from the target by Rényi divergences, for the choice of an offset for many cells."""
    z = _ORDERS - 1
    with np.errstate(all="ignore"):
        tau = (
            np.asarray(osgt_tau(mechanism, z, DOUBLES))
            if is_offset_tails(mechanism) and mechanism.m
            else _ORDERS * float(mechanism.sensitivity**2 / (2 * mechanism.sigma_squared))
        )
        conversion = (-_log(target.delta) + z * np.log1p(-1 / _ORDERS) - np.log(_ORDERS)) / z
        return float(np.log(np.nanmin(target.cells * tau + conversion)) - _log(target.epsilon))


def _log(value: Fraction) -> float:
    return math.log(value.numerator) - math.log(value.denominator)


def _variance(mechanism: CalibratedNoise) -> float:
    law = mechanism.noise_law()
    if mechanism.DRAWN:
        with precision(128):
            return float(variance(law).mid())
    if law.scale is None:
        return float(mechanism.sigma_squared)
    with precision(256):
        moments = half_line(ball(law.offset), mechanism.sigma_squared, 3, lattice=False)
        return float((moments[2] / moments[0]).mid())
