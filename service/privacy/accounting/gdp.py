"""Gaussian differential privacy of a plan: the least mu for which it is certified to be mu-GDP.

A plan is mu-GDP if no test tells two neighbours apart better than it tells N(0, 1) from N(mu, 1). It is exactly if
delta(epsilon) <= delta_mu(epsilon) for every epsilon >= 0, delta being the larger of both directions and delta_mu that
of Gaussian noise of variance 1 on an answer that moves by mu (Dong, Roth and Su 2022, Corollary 1).

Chords. delta is convex in exp(epsilon), so it is below every chord A - B exp(epsilon) between two upper bounds on it.
That line is below delta_mu everywhere if and only if Phi^-1(A) - Phi^-1(B) <= mu, because delta_mu is the largest of
the lines with A = Phi(x) and B = Phi(x - mu). So the largest of these differences, over chords from 0 on, bounds mu up
to the last point; for losses that are few, or on a lattice, with no point between two of them, it is mu itself.

Tails. Beyond the last point Y there are three bounds, each of which only has to be compared with delta_mu at Y:

- Nothing: no loss is larger.
- rho-zCDP: delta(epsilon) <= 2 rho/(e (epsilon - rho)) exp(-(epsilon - rho)²/(4 rho)), which is ``rdp_to_delta`` at
  alpha = (epsilon + rho)/(2 rho), with (1 - 1/alpha)^alpha <= 1/e.
- Gaussian and discrete Gaussian noise: for every r > 0, delta(epsilon) <= (1 + eta) delta_m(epsilon), m² = 2 rho (1 +
  r). One more Gaussian mechanism for each, of r times its rho, lowers no delta. The sum of a discrete Gaussian loss
  and this Gaussian one has a density, at most theta(w) times that of a Gaussian loss, w = sigma² r/(1 + r), theta(w)
  the sum of exp(-2 pi² w j²) over all integers j: completing the square leaves a sum of exp(-(x - a)²/(2w)) over the
  integers x, which is largest at a = 0, and Poisson's summation gives both this and the noise's own. So 1 + eta is
  the product of theta(w) over the mechanisms.

delta_mu(epsilon) is the integral of phi(epsilon/t - t/2) over t from 0 to mu, whose integrand grows the faster with
epsilon the larger t is. So delta_mu/delta_m grows in epsilon for m < mu, and the third bound holds from Y on if it
holds at Y. For the second bound see ``_Tails``.

The gap. Chords are refined to 5e-7 of mu where the work allows it. The rest is due to tails: 4e-5 for one discrete
Gaussian mechanism of a variance near 1e4, 4e-4 for a thousand of variance 400, and some 2e-3 for compositions of unlike
ones that share no lattice, or beside other unbounded noise. Doubles have no digits for 1 - delta where delta is near 1,
so there is often no mu above about 15.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
from flint import arb
from scipy.special import erfcx, ndtri, ndtri_exp  # type: ignore[import-untyped]  # it publishes no types

from service.privacy.accounting.guarantee import PlanProfile
from service.privacy.accounting.tradeoff import FIGURES
from service.privacy.laws.loss_laws import DiscreteGaussianLoss, GaussianLoss
from service.privacy.numerics.arithmetic import Doubles
from service.privacy.numerics.numbers import ball, ceiling, double_up, floor
from service.privacy.plans.walking import Neighbouring, Priced
from service.privacy.tight.gaussian import delta_of_mu
from service.privacy.tight.laws import total_rho
from service.privacy.tight.many_deltas import ManyDeltas
from service.privacy.tight.work_budget import NotTight, work_limit

MOST_WORK = 1 << 23
"""The work for deltas, as ``work_budget`` counts it: lines of noise without a lattice take several times as long."""
TOLERANCE = 5e-7
"""To which chords are refined, of mu, where the work allows it."""
_ROUGHLY = 2e-3  # to which they are refined by shorter lines first
_REACHES = (15.0, 30.0, 60.0, 120.0, 240.0)  # standard deviations of a Gaussian loss up to which there are chords
_LEAST_MU, _LARGEST_MU = 1e-12, 64.0  # of searches in doubles
_LEAST_RHO, _LARGEST_RHO = Fraction(1, 10**24), Fraction(10**4)
_SHARES = np.exp2(-np.arange(1.0, 40.0, 0.5))  # r of the third bound
Chord = tuple[float, float, float, float]
"""Two epsilons, each followed by the log of its delta."""


def least_mu(plan: Priced, neighbouring: Neighbouring) -> Fraction | None:
    """Return the least mu for which a plan is certified mu-GDP, rounded up; None if there is none.

    There is none with a declared delta, nor where rho is infinite, because mu-GDP implies mu²/2-zCDP. Where rho is
    below 1e-24 or above 10,000 there is only what follows from a pure loss.

    The work is at most that of one share of a trade-off.

    Raises:
        ValueError: a mechanism has no loss under this relation (``Mechanism.moved``).
    """
    profile = PlanProfile.of(plan, neighbouring, FIGURES)
    rho, pure, tight = profile.losses.rho.nats, profile.losses.epsilon.nats, profile.tight
    if profile.losses.delta > 0 or rho is None:
        return None
    if rho == 0:
        return Fraction(0)
    if tight is not None and tight.analysis is None and tight.log_finite == 0:
        return ceiling(lambda: (2 * ball(rho)).sqrt())
    found = list[Fraction | None]()
    if _LEAST_RHO <= rho <= _LARGEST_RHO:  # doubles can search
        with np.errstate(all="ignore"), work_limit(MOST_WORK):
            found.append(_searched(profile, _Tails.of(profile, rho)))
    if pure is not None:  # two-valued response dominates: its only chord has A = 1 - B = e^pure/(1 + e^pure)
        found.append(ceiling(lambda: 2 * arb(2).sqrt() * (2 / (1 + ball(pure).exp())).erfcinv()))
    return min((one for one in found if one is not None), default=None)


def _searched(profile: PlanProfile, tails: "_Tails") -> Fraction | None:
    deltas: ManyDeltas | _OtherDeltas = _OtherDeltas(profile)
    if profile.tight is not None:
        with suppress(NotTight, OverflowError):
            deltas = ManyDeltas.of(profile.tight, tails.unit, tails.largest)
    search = _Search(deltas, tails)
    with suppress(NotTight, OverflowError):  # what was found until then stays
        search.look()
    return search.certified()


class _OtherDeltas:
    """Deltas by other analyses than the tight one, for plans without it."""

    most = 60  # which may take long

    def __init__(self, profile: PlanProfile) -> None:
        self._profile = profile

    def log_deltas(self, epsilons: Doubles, *, rough: bool) -> Doubles:  # noqa: ARG002
        """Return upper bounds on log delta, as ``ManyDeltas.log_deltas``."""
        deltas = np.array([double_up(self._profile.other_delta(Fraction(epsilon))) for epsilon in epsilons.tolist()])
        return np.asarray(np.where(deltas > 0, np.nextafter(np.log(deltas), np.inf), -np.inf))

    def bend(self, low: float, high: float) -> float | None:
        """Return a place between two epsilons, as ``ManyDeltas.bend``."""
        middle = (low + high) / 2
        return middle if low < middle < high else None


@dataclass(frozen=True, slots=True, eq=False)
class _Tails:
    """Bounds on delta from one epsilon on, each stated as the mu of Gaussian noise with no smaller deltas there.

    Attributes:
        rho: of the plan.
        largest: a bound on its losses, nats; infinite if there is none.
        noise: if all laws are Gaussian, the rho of all, and sigma² of the discrete ones with their numbers; else None.
        log_etas: if all laws are Gaussian, log(1 + eta) for each r of ``_SHARES``, by doubles; else None.
    """

    rho: Fraction
    largest: float
    noise: tuple[Fraction, Sequence[tuple[Fraction, int]]] | None
    log_etas: Doubles | None

    @classmethod
    def of(cls, profile: PlanProfile, rho: Fraction) -> "_Tails":
        """Return the tails of a plan."""
        pure, laws = profile.losses.epsilon.nats, {} if profile.tight is None else profile.tight.laws
        largest = math.inf if pure is None else double_up(pure)
        discrete = [(law, count) for law, count in laws.items() if isinstance(law, DiscreteGaussianLoss)]
        if not laws or len(discrete) < sum(not isinstance(law, GaussianLoss) for law in laws):
            return cls(rho, largest, None, None)
        rhos = [count * Fraction(law.sensitivity**2) / (2 * law.sigma_squared) for law, count in discrete]
        log_etas = np.zeros(len(_SHARES))
        for law, count in discrete:
            q = np.exp(-2 * math.pi**2 * float(law.sigma_squared) * _SHARES / (1 + _SHARES))
            log_etas += count * np.log1p(2 * q / (1 - q**3))
        noise = [(law.sigma_squared, count) for law, count in discrete]
        return cls(rho, largest, (total_rho(laws) + sum(rhos), noise), log_etas)

    @property
    def unit(self) -> float:
        """The mu of Gaussian noise of this rho, which is the standard deviation of its loss."""
        return math.sqrt(2 * self.rho)

    def mu(self, at: float, log_delta: float) -> float:
        """Return about the least mu of the tails.

        Args:
            at: where they begin, nats.
            log_delta: log of delta there.
        """
        return 0.0 if self._ended(at, log_delta) else min(self._by_zcdp(at), self._smoothed(at)[0])

    def certified(self, at: float, log_delta: float) -> Fraction | None:
        """Return an upper bound just above ``mu``; None if there is none."""
        if self._ended(at, log_delta):
            return Fraction(0)
        by_zcdp, (smoothed, share) = self._by_zcdp(at), self._smoothed(at)
        if min(by_zcdp, smoothed) < _LARGEST_MU:
            for margin in (10, 8, 6):
                mu = Fraction(min(by_zcdp, smoothed)) * (1 + Fraction(1, 10**margin))
                if (
                    self._zcdp_holds(Fraction(at), mu)
                    if by_zcdp <= smoothed
                    else self._smoothing_holds(Fraction(at), mu, Fraction(share))
                ):
                    return mu
        return None

    def _ended(self, at: float, log_delta: float) -> bool:
        return at >= self.largest and log_delta == -math.inf

    def _by_zcdp(self, at: float) -> float:
        """Return about the least mu for which ``_zcdp_holds``."""
        rho, high = float(self.rho), math.sqrt(1 + 2 * at) - 1
        if at <= rho or at**2 <= 2 * rho or high <= (low := 1 / math.sqrt(1 / (2 * rho) - 1 / at**2)):
            return math.inf
        log_bound = math.log(2 * rho / (at - rho)) - 1 - (at - rho) ** 2 / (4 * rho)

        def holds(mu: float) -> bool:
            z = at / mu - mu / 2
            return math.log(mu / math.sqrt(2 * math.pi) / ((at / mu) ** 2 + 3)) - z * z / 2 >= log_bound

        if not holds(high):
            return math.inf
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high

    def _zcdp_holds(self, at: Fraction, mu: Fraction) -> bool:
        """Tell whether the second bound shows delta <= delta_mu from an epsilon on.

        With z = epsilon/mu - mu/2 >= 1, Mills' ratio R and f(t) = 1/(t² + 3), delta_mu(epsilon)/phi(z) is R(z) - R(z +
        mu), the integral of 1 - t R(t) >= f(t) over [z, z + mu] (R(t) < (t² + 2)/(t³ + 3t)); f is convex there, so it
        is at least mu f(epsilon/mu). The log of the quotient of this and of the second bound has a derivative of at
        least epsilon (1/(2 rho) - 1/mu²) - 2/epsilon + 1/(epsilon - rho), so it grows once epsilon² (1/(2 rho) - 1/mu²)
        >= 1.
        """
        rho = self.rho

        def margin() -> arb:
            z, scaled = ball(at / mu - mu / 2), mu / ((at / mu) ** 2 + 3)
            log_least = (ball(scaled) / (2 * arb.pi()).sqrt()).log() - z * z / 2
            return log_least - ball(2 * rho / (at - rho)).log() + 1 + ball((at - rho) ** 2 / (4 * rho))

        return at > rho and at >= mu + mu**2 / 2 and at**2 * (1 / (2 * rho) - 1 / mu**2) >= 1 and floor(margin) >= 0

    def _smoothed(self, at: float) -> tuple[float, float]:
        """Return about the least mu for which ``_smoothing_holds``, and its r."""
        if self.noise is None or self.log_etas is None:
            return math.inf, 0.0
        smooth = np.sqrt(2 * float(self.noise[0]) * (1 + _SHARES))
        mus = _mus_at(np.full(len(smooth), at), self.log_etas + _log_gaussian_delta(smooth, np.full(len(smooth), at)))
        best = int(np.argmin(mus))
        return float(mus[best]), float(_SHARES[best])

    def _smoothing_holds(self, at: Fraction, mu: Fraction, share: Fraction) -> bool:
        """Tell whether the third bound shows delta <= delta_mu from an epsilon on, for one r."""
        if self.noise is None:
            return False
        rho, laws = self.noise

        def margin() -> arb:
            known = delta_of_mu((2 * ball(rho * (1 + share))).sqrt(), ball(at)).log()
            for variance, count in laws:
                q = (-2 * arb.pi() ** 2 * ball(variance * share / (1 + share))).exp()
                known += count * (2 * q / (1 - q**3)).log1p()  # j² >= 3j - 2
            return delta_of_mu(ball(mu), ball(at)).log() - known

        return mu**2 >= 2 * rho * (1 + share) and floor(margin) >= 0


@dataclass(slots=True)
class _Search:
    """The points between which there are chords. Doubles choose them; ``certified`` holds whatever they are.

    Attributes:
        deltas: upper bounds on delta; rough ones are quicker and further above.
        tails: of the plan.
        points: logs of deltas, by epsilon.
        mus: that of Gaussian noise with this delta, by doubles, by epsilon.
        sharp: the epsilons at which the bound is not a rough one.
    """

    deltas: ManyDeltas | _OtherDeltas
    tails: _Tails
    points: dict[float, float] = field(default_factory=dict)
    mus: dict[float, float] = field(default_factory=dict)
    sharp: set[float] = field(default_factory=set)

    def look(self) -> None:
        """Choose points, further and further out, until the tail beyond the last one matters no more."""
        unit, end = self.tails.unit, 0.0
        if self.tails.mu(end, 0.0) <= unit * (1 + TOLERANCE):
            return
        for reach in _REACHES:
            start, end = end, min(unit * (reach + unit / 2), self.tails.largest)
            self._add(np.linspace(start, end, max(2, math.ceil((end - start) / unit)) + 1).tolist(), rough=True)
            self._refine(_ROUGHLY, rough=True)
            if end == self.tails.largest or self.tails.mu(end, 0.0) <= max(self.mus.values()):
                break
        self._refine(TOLERANCE, rough=False)

    def certified(self) -> Fraction | None:
        """Return an upper bound on the least mu; None if the points give none."""
        chords = _hull(sorted(self.points.items()))
        chords = chords[: self._cut(chords, np.append(0.0, _mus_of(chords)))[0]]
        end = chords[-1][2:] if chords else (0.0, 0.0)
        found = [self.tails.certified(*end), *(ceiling(partial(_mu_of_chord, *chord)) for chord in chords)]
        known = [one for one in found if one is not None]
        return max(known) if len(known) == len(found) else None

    def _add(self, epsilons: list[float], *, rough: bool) -> bool:
        """Ask for deltas, the first that there is room for; tell whether there were new ones.

        Args:
            epsilons: ascending.
            rough: whether quick bounds are enough.
        """
        known = self.points if rough else self.sharp
        new = [epsilon for epsilon in epsilons if epsilon not in known]
        fresh = [epsilon for epsilon in new if epsilon not in self.points]
        room = max(self.deltas.most - len(self.points), 0)
        if len(fresh) > room:
            new = [epsilon for epsilon in new if epsilon < fresh[room]]
        if not new:
            return False
        places = np.array(new)
        logs = np.minimum(self.deltas.log_deltas(places, rough=rough), [self.points.get(one, 0.0) for one in new])
        self.points |= zip(new, logs.tolist(), strict=True)
        self.mus |= zip(new, _mus_at(places, logs).tolist(), strict=True)
        if not rough:
            self.sharp.update(new)
        return True

    def _refine(self, tolerance: float, *, rough: bool) -> None:
        """Add points, or sharpen them, where a chord's mu is above the tail's and the points' own by too much."""
        going = True
        while going:
            chords = _hull(sorted(self.points.items()))
            own = [0.0, *(self.mus[one[2]] if rough or one[2] in self.sharp else 0.0 for one in chords)]
            count, least = self._cut(chords, own)
            above = [
                one
                for one, mu in zip(chords[:count], _mus_of(chords[:count]), strict=True)
                if not mu <= least * (1 + tolerance) and one[3] < one[1]
            ]
            wanted = {end for one in above for end in (one[0], one[2]) if not rough and end not in self.sharp}
            bends = () if wanted else (self.deltas.bend(one[0], one[2]) for one in above)
            going = self._add(sorted(wanted) or [bend for bend in bends if bend is not None], rough=rough)

    def _cut(self, chords: Sequence[Chord], mus: Sequence[float] | Doubles) -> tuple[int, float]:
        """Return how many chords to take before a tail, and the largest mu then.

        Args:
            chords: all of them.
            mus: 0, and one for each chord.
        """
        worst = np.maximum.accumulate(mus)  # of so many chords: it grows, while the tails' mu falls

        def largest(count: int) -> float:
            return max(float(worst[count]), self._tail(chords, count))

        first = bisect_left(range(len(chords)), True, key=lambda count: bool(worst[count] >= self._tail(chords, count)))
        best = min({max(first - 1, 0), first}, key=largest)
        return best, largest(best)

    def _tail(self, chords: Sequence[Chord], count: int) -> float:
        return self.tails.mu(*(chords[count - 1][2:] if count else (0.0, 0.0)))


def _hull(points: Sequence[tuple[float, float]]) -> list[Chord]:
    """Return the chords of the lower convex hull over exp(epsilon), for points by ascending epsilon."""
    corners, slopes = list[tuple[float, float]](), list[float]()
    least = 0.0
    for epsilon, log_delta in points:
        least = min(least, log_delta)  # delta never grows
        while slopes and _log_slope(*corners[-1], epsilon, least) >= slopes[-1]:
            corners.pop()
            slopes.pop()
        if corners:
            slopes.append(_log_slope(*corners[-1], epsilon, least))
        corners.append((epsilon, least))
    return [(*one, *two) for one, two in pairwise(corners)]


def _log_slope(a: float, log_a: float, b: float, log_b: float) -> float:
    """Return log B of a chord."""
    fall = -math.expm1(log_b - log_a) if log_a > -math.inf else 0.0
    return log_a + math.log(fall) - b - math.log(-math.expm1(a - b)) if fall > 0 else -math.inf


def _mus_of(chords: Sequence[Chord]) -> Doubles:
    """Return about the mu of each chord."""
    a, log_a, b, log_b = np.array(chords).reshape(-1, 4).T
    log_slope = log_a + np.log(-np.expm1(log_b - log_a)) - b - np.log(-np.expm1(a - b))
    return np.asarray(_quantiles(np.logaddexp(log_a, log_slope + a)) - _quantiles(log_slope))


def _quantiles(logs: Doubles) -> Doubles:
    """Return about Phi^-1 of probabilities, from their logs."""
    return np.asarray(
        np.where(logs < -0.6, ndtri_exp(np.minimum(logs, -0.6)), -ndtri(np.maximum(-np.expm1(logs), 0.0)))
    )


def _mu_of_chord(a: float, log_a: float, b: float, log_b: float) -> arb:
    """Return Phi^-1(A) - Phi^-1(B) of a chord."""
    low, high, delta = ball(Fraction(a)), ball(Fraction(b)), ball(Fraction(log_a)).exp()
    fall = -ball(Fraction(log_b) - Fraction(log_a)).expm1() if log_b > -math.inf else arb(1)
    slope = delta * fall * (-high).exp() / -(low - high).expm1()
    return _quantile(delta + slope * low.exp()) - _quantile(slope)


def _quantile(p: arb) -> arb:
    """Return Phi^-1."""
    return arb(2).sqrt() * ((2 - 2 * p).erfcinv() if p > arb(1) / 2 else -(2 * p).erfcinv())


def _mus_at(epsilons: Doubles, logs: Doubles) -> Doubles:
    """Return about the mu at which Gaussian noise has these deltas, by their logs."""
    low, high = np.full(len(logs), math.log(_LEAST_MU)), np.full(len(logs), math.log(_LARGEST_MU))
    for _ in range(60):
        middle = (low + high) / 2
        enough = _log_gaussian_delta(np.exp(middle), epsilons) >= logs
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(np.exp(high))


def _log_gaussian_delta(mu: Doubles, epsilons: Doubles) -> Doubles:
    """Return about log delta_mu."""
    z, middle = epsilons / mu - mu / 2, epsilons / mu
    near = mu * (1 - middle * _mills(middle))  # of a narrow interval, at its middle
    fall = np.where(mu < 1e-4, near, _mills(z) - _mills(z + mu))
    return np.asarray(np.log(fall) - z * z / 2 - math.log(2 * math.pi) / 2)


def _mills(t: Doubles) -> Doubles:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2)))
