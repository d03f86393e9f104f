"""Reference values of the privacy mathematics to 17 digits, from first principles: sums, quadrature, root finding.

Never through the closed form that the service uses, so that the two can disagree. Losses are in nats, counts are
integers, orders are alpha > 1. ``python -m tests.oracles.oracle > values.json.new`` computes ``values.json`` again.
"""

import json
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import mpmath as mp  # type: ignore[import-untyped]  # it publishes no types

mp.mp.dps = 60

Real = Any  # mpmath's numbers
Exact = str | int | Fraction
Function = Callable[[Real], Real]
Atoms = list[tuple[Real, Real]]
Row = dict[str, Any]

_GOLDEN = (mp.sqrt(5) - 1) / 2


def number(value: Exact | Real) -> Real:
    """An int, float, Fraction or a string such as '1/3' or '0.1' as an mpf, rounded once."""
    if isinstance(value, mp.mpf):
        return value
    fraction = Fraction(value)
    return mp.mpf(fraction.numerator) / mp.mpf(fraction.denominator)


# Noise on the integers: the logarithm of its unnormalised mass


def geometric(scale: Exact) -> Function:
    """Two-sided geometric noise: mass proportional to exp(-|x|/scale)."""
    b = number(scale)
    return lambda x: -abs(x) / b


def discrete_gaussian(sigma_squared: Exact) -> Function:
    """Discrete Gaussian noise: mass proportional to exp(-x²/(2 sigma_squared))."""
    v = number(sigma_squared)
    return lambda x: -(mp.mpf(x) ** 2) / (2 * v)


def discrete_osgt(sigma_squared: Exact, m: Exact) -> Function:
    """Offset symmetric Gaussian tails: mass proportional to exp(-x²/(2 sigma_squared) - |x| m/sigma_squared)."""
    v, offset = number(sigma_squared), number(m)
    return lambda x: -(mp.mpf(x) ** 2) / (2 * v) - abs(x) * offset / v


def support(log_mass: Function, nats: int = 150) -> int:
    """A reach beyond which the mass is below exp(-nats) of that at 0."""
    k = 1
    while log_mass(k) > -nats:
        k *= 2
    return k


def pmf(log_mass: Function, nats: int = 150) -> dict[int, Real]:
    """The probability of each integer within reach."""
    k = support(log_mass, nats)
    weights = {x: mp.exp(log_mass(x)) for x in range(-k, k + 1)}
    total = mp.fsum(weights.values())
    return {x: weight / total for x, weight in weights.items()}


def tail(log_mass: Function, m: int) -> Real:
    """P(|X| > m)."""
    return mp.fsum(p for x, p in pmf(log_mass).items() if abs(x) > m)


def margin_of_error(log_mass: Function, confidence: str) -> int:
    """The smallest integer m with P(|X| <= m) >= confidence."""
    p, m = pmf(log_mass), 0
    covered = p[0]
    while covered < number(confidence):
        m += 1
        covered += p[m] + p[-m]
    return m


def renyi_discrete(log_mass: Function, shift: int, alpha: Exact, nats: int | None = None) -> Real:
    """The Rényi divergence of order alpha between the noise and the noise moved by ``shift``."""
    a = number(alpha)
    k = support(log_mass, nats or 200 + 40 * int(a)) + (int(a) + 1) * abs(shift)
    logs = {x: log_mass(x) for x in range(-k, k + 1)}
    total = mp.log(mp.fsum(mp.exp(value) for value in logs.values()))
    terms = (mp.exp(a * (logs[x] - total) + (1 - a) * (log_mass(x - shift) - total)) for x in logs)
    return mp.log(mp.fsum(terms)) / (a - 1)


def kl_discrete(log_mass: Function, shift: int) -> Real:
    """The Kullback-Leibler divergence between the noise and the noise moved by ``shift``."""
    return mp.fsum(p * (log_mass(x) - log_mass(x - shift)) for x, p in pmf(log_mass, 300).items())


# Continuous noise: its density, and a width to step by


def laplace_density(scale: Exact) -> tuple[Function, Real]:
    b = number(scale)
    return lambda y: mp.exp(-abs(y) / b) / (2 * b), b


def gaussian_density(sigma_squared: Exact) -> tuple[Function, Real]:
    v = number(sigma_squared)
    return lambda y: mp.exp(-y * y / (2 * v)) / mp.sqrt(2 * mp.pi * v), mp.sqrt(v)


def osgt_density(sigma_squared: Exact, m: Exact) -> tuple[Function, Real]:
    v, offset = number(sigma_squared), number(m)
    sigma = mp.sqrt(v)
    normal = mp.sqrt(2 * mp.pi * v) * mp.erfc(offset / sigma / mp.sqrt(2))
    return lambda y: mp.exp(-((abs(y) + offset) ** 2) / (2 * v)) / normal, sigma


def osgt_variance(sigma_squared: Exact, m: Exact) -> Real:
    density, sigma = osgt_density(sigma_squared, m)
    return 2 * mp.quad(lambda y: y * y * density(y), mp.linspace(0, 40 * sigma, 41))


def renyi_continuous(density: Function, spread: Real, shift: Exact, alpha: Exact) -> Real:
    """The Rényi divergence of order alpha between the noise and the noise moved by ``shift``."""
    a, s = number(alpha), number(shift)
    centre = a * s
    steps = {centre + k * spread for k in range(-40, 41, 4)}
    points = sorted({-40 * spread, 0, s, centre, centre + 40 * spread} | steps)
    integral = mp.quad(lambda y: density(y) ** a * density(y - s) ** (1 - a), points)
    return mp.log(integral) / (a - 1)


def hockey_stick(density: Function, spread: Real, shift: Exact, epsilon: Exact, crossing: Real) -> Real:
    """delta(epsilon): the integral of (f(y) - e^epsilon f(y - shift))_+, which is positive left of ``crossing``."""
    e, s, size = number(epsilon), number(shift), density(crossing)
    steps = [crossing - k * spread for k in (60, *range(40, 0, -4))]
    points = [*sorted({*steps, *(kink for kink in (0, s) if kink < crossing)}), crossing]
    # In units of the density where they cross: the quadrature ends at an absolute error, and far in a tail the whole
    # integral is below that. Without this, 1.0914e-125 came out as 1.0966e-125.
    return size * mp.quad(lambda y: (density(y) - mp.exp(e) * density(y - s)) / size, points)


def osgt_delta(sigma_squared: Exact, m: Exact, epsilon: Exact, shift: Exact) -> Real:
    v, offset, e, s = (number(value) for value in (sigma_squared, m, epsilon, shift))
    density, sigma = osgt_density(sigma_squared, m)
    crossing = offset + s / 2 - v * e / s  # where it is not above 0
    if crossing > 0:  # between the two kinks the loss is linear in y
        crossing = (s * s / 2 + s * offset - v * e) / (s + 2 * offset)
    return hockey_stick(density, sigma, shift, epsilon, crossing)


# Conversions


def epsilon_from_curve(tau: Function, delta: Exact) -> Real:
    """inf over alpha > 1 of tau(alpha) + [log(1/delta) + (alpha-1) log(1-1/alpha) - log(alpha)]/(alpha-1)."""
    d = number(delta)

    def bound(t: Real) -> Real:
        a = 1 + mp.exp(t)
        return tau(a) + (mp.log(1 / d) + (a - 1) * mp.log(1 - 1 / a) - mp.log(a)) / (a - 1)

    best = min((mp.mpf(k) / 4 for k in range(-60, 90)), key=bound)
    low, high = best - mp.mpf(1) / 4, best + mp.mpf(1) / 4
    for _ in range(120):
        x, y = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if bound(x) < bound(y):
            high = y
        else:
            low = x
    return max(bound((low + high) / 2), mp.mpf(0))


def epsilon_zcdp(rho: Exact, delta: Exact) -> Real:
    r = number(rho)
    return epsilon_from_curve(lambda a: r * a, delta)


def epsilon_zcdp_analytic(rho: Exact, delta: Exact) -> Real:
    r, d = number(rho), number(delta)
    return r + mp.sqrt(4 * r * mp.log(1 / d))


def delta_gaussian(rho: Exact, epsilon: Exact | Real) -> Real:
    """The exact delta of a composition of Gaussian mechanisms that costs rho in all."""
    mu, e = mp.sqrt(2 * number(rho)), number(epsilon)

    def cdf(z: Real) -> Real:
        return mp.erfc(-z / mp.sqrt(2)) / 2

    return cdf(mu / 2 - e / mu) - mp.exp(e) * cdf(-mu / 2 - e / mu)


def epsilon_gaussian(rho: Exact, delta: Exact) -> Real:
    high = mp.mpf(1)
    while delta_gaussian(rho, high) > number(delta):
        high *= 2
    return _least(lambda e: delta_gaussian(rho, e), delta, high)


def _least(delta_at: Function, delta: Exact, high: Real) -> Real:
    """The least epsilon below ``high`` at which a falling delta is no more than this one."""
    d, low = number(delta), mp.mpf(0)
    for _ in range(180):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > d else (low, middle)
    return high


def geometric_atoms(epsilon: Exact) -> Atoms:
    """The privacy losses of the geometric mechanism of sensitivity 1, ±epsilon, with their probabilities."""
    e = number(epsilon)
    return [(e, 1 / (1 + mp.exp(-e))), (-e, 1 / (1 + mp.exp(e)))]


def tight_epsilon(losses: list[Atoms], delta: Exact) -> Real:
    """The exact epsilon of independent mechanisms, of each its privacy losses with their probabilities."""
    total = {mp.mpf(0): mp.mpf(1)}
    for atoms in losses:
        step: dict[str, Real] = {}
        for before, p in total.items():
            for loss, q in atoms:
                key = mp.nstr(before + loss, 40)  # sums that are equal but for rounding are one
                step[key] = step.get(key, mp.mpf(0)) + p * q
        total = {mp.mpf(key): p for key, p in step.items()}
    highest = mp.fsum(max(loss for loss, _ in atoms) for atoms in losses)
    return _least(
        lambda e: mp.fsum(p * (1 - mp.exp(e - loss)) for loss, p in total.items() if loss > e), delta, highest
    )


# The table of reference values

_ORDERS = ["1.01", "1.5", "2", "5", "20"]
_EPSILONS = ["0.05", "0.2", "0.5", "0.94"]
_CONFIDENCES = ["0.9", "0.95", "0.99", "0.999999"]
_ZCDP = [
    ("0.1", "1e-6"),
    ("1.407062038567493", "1e-10"),
    ("293764/114921", "1e-10"),
    ("1e-6", "1e-9"),
    ("50", "1e-12"),
]
_MARGINS: list[tuple[Callable[..., Function], tuple[str, ...]]] = [
    (geometric, ("2.336",)),
    (geometric, ("17",)),
    (discrete_gaussian, ("9.375",)),
    (discrete_gaussian, ("0.3",)),
    (discrete_osgt, ("40", "3")),
]
_COMPOSITIONS = [([("0.1", 60)], "1e-6"), ([("0.5", 18), ("0.25", 18)], "1e-10")]


def rows() -> Iterator[Row]:
    """The rows of ``values.json``, in order."""
    yield from _discrete_costs()
    yield from _continuous_costs()
    for rho, delta in _ZCDP:
        yield {
            "kind": "conversion",
            "rho": rho,
            "delta": delta,
            "epsilon": _shown(epsilon_zcdp(rho, delta)),
            "epsilon_analytic": _shown(epsilon_zcdp_analytic(rho, delta)),
            "epsilon_gaussian": _shown(epsilon_gaussian(rho, delta)),
        }
    for noise, parameters in _MARGINS:
        log_mass = noise(*parameters)
        yield {
            "kind": "margin_of_error",
            "mechanism": noise.__name__,
            "parameters": list(parameters),
            "margin": {confidence: margin_of_error(log_mass, confidence) for confidence in _CONFIDENCES},
            "tail_beyond_10": _shown(tail(log_mass, 10)),
        }
    for parts, delta in _COMPOSITIONS:
        losses = [geometric_atoms(epsilon) for epsilon, count in parts for _ in range(count)]
        listed = [{"epsilon": epsilon, "count": count} for epsilon, count in parts]
        epsilon = _shown(tight_epsilon(losses, delta))
        yield {"kind": "tight_geometric_composition", "parts": listed, "delta": delta, "epsilon": epsilon}


def _discrete_costs() -> Iterator[Row]:
    def renyi(log_mass: Function, shift: int) -> dict[str, str]:
        return {order: _shown(renyi_discrete(log_mass, shift, order)) for order in _ORDERS}

    for scale, shift in [("1", 1), ("2.5", 1), ("2.5", 3), ("20", 1), ("0.25", 2)]:
        log_mass = geometric(scale)
        yield {
            "kind": "cost",
            "mechanism": "geometric",
            "scale": scale,
            "sensitivity": shift,
            "epsilon": _shown(shift / number(scale)),
            "rho": _shown(kl_discrete(log_mass, shift)),
            "renyi": renyi(log_mass, shift),
        }
    for v, shift in [("9.375", 1), ("0.5", 1), ("25", 3)]:
        yield {
            "kind": "cost",
            "mechanism": "discrete_gaussian",
            "sigma_squared": v,
            "sensitivity": shift,
            "epsilon": None,
            "rho": _shown(mp.mpf(shift) ** 2 / (2 * number(v))),
            "renyi": renyi(discrete_gaussian(v), shift),
        }
    for v, m, shift in [("40", "3", 1), ("4", "0.5", 1), ("40", "3", 4)]:
        yield {
            "kind": "cost",
            "mechanism": "discrete_osgt",
            "sigma_squared": v,
            "m": m,
            "sensitivity": shift,
            "epsilon": None,
            "renyi": renyi(discrete_osgt(v, m), shift),
        }


def _continuous_costs() -> Iterator[Row]:
    def renyi(density: Function, spread: Real, shift: str) -> dict[str, str]:
        return {order: _shown(renyi_continuous(density, spread, shift, order)) for order in _ORDERS}

    for scale, shift in [("1", "1"), ("4", "1"), ("2", "2.5")]:
        e = number(shift) / number(scale)
        yield {
            "kind": "cost",
            "mechanism": "laplace",
            "scale": scale,
            "sensitivity": shift,
            "epsilon": _shown(e),
            "rho": _shown(e - 1 + mp.exp(-e)),
            "renyi": renyi(*laplace_density(scale), shift),
        }
    for v, m, shift in [("40", "3", "1"), ("630", "15", "1")]:
        yield {
            "kind": "cost",
            "mechanism": "osgt",
            "sigma_squared": v,
            "m": m,
            "sensitivity": shift,
            "variance": _shown(osgt_variance(v, m)),
            "renyi": renyi(*osgt_density(v, m), shift),
            "delta": {epsilon: _shown(osgt_delta(v, m, epsilon, shift)) for epsilon in _EPSILONS},
        }


def _shown(value: Real) -> str:
    return str(mp.nstr(value, 17))


def table() -> str:
    """Return the content of ``values.json``."""
    head = {"units": "nats; counts are integers", "precision_decimal_digits": mp.mp.dps}
    return json.dumps({**head, "values": list(rows())}, indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
