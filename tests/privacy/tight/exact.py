"""Privacy profiles by enumeration in mpmath: what the tight figures are compared with."""

from typing import Any

from tests.privacy.reference import mp, oracle

Atoms = dict[Any, Any]
"""Loss to probability."""


def noise(log_mass: Any, shift: int, nats: int = 400) -> Atoms:
    """The loss of integer noise against the same moved by ``shift``, by its definition."""
    mass = oracle.pmf(log_mass, nats)
    found: Atoms = {}
    for x, p in mass.items():
        loss = log_mass(x) - log_mass(x - shift)
        found[loss] = found.get(loss, mp.mpf(0)) + p
    return found


def response(epsilon: str, values: int) -> Atoms:
    """k-ary randomised response."""
    e = oracle.number(epsilon)
    total = mp.exp(e) + values - 1
    found = {e: mp.exp(e) / total, -e: 1 / total}
    return found | {mp.mpf(0): (values - 2) / total} if values > 2 else found


def composed(parts: list[Atoms]) -> Atoms:
    """The sum of independent losses, equal ones (to 40 digits) once."""
    whole = {"0": (mp.mpf(0), mp.mpf(1))}
    for atoms in parts:
        step: dict[str, tuple[Any, Any]] = {}
        for loss, p in whole.values():
            for more, q in atoms.items():
                if p * q > mp.mpf(10) ** -160:
                    key = mp.nstr(loss + more, 40)
                    step[key] = (loss + more, step[key][1] + p * q if key in step else p * q)
        whole = step
    return dict(whole.values())


def delta(atoms: Atoms, epsilon: Any) -> Any:
    """The profile of a law given by its atoms."""
    e = mp.mpf(epsilon)
    return mp.fsum(p * (1 - mp.exp(e - loss)) for loss, p in atoms.items() if loss > e)


def epsilon(atoms: Atoms, target: Any) -> Any:
    """Its inverse, by bisection."""
    return inverse(lambda e: delta(atoms, e), target, max(atoms))


def inverse(profile: Any, target: Any, high: Any) -> Any:
    """The least epsilon at which a profile is at most ``target``."""
    low, high = mp.mpf(0), mp.mpf(high)
    if profile(low) <= target:
        return low
    for _ in range(110):
        middle = (low + high) / 2
        low, high = (middle, high) if profile(middle) > target else (low, middle)
    return high


def beside_gaussian(atoms: Atoms, rho: Any, epsilon: Any) -> Any:
    """delta of atoms composed with a continuous Gaussian mechanism, in closed form."""
    mu = mp.sqrt(2 * mp.mpf(rho))

    def gaussian(e: Any) -> Any:
        return (mp.erfc((e / mu - mu / 2) / mp.sqrt(2)) - mp.exp(e) * mp.erfc((e / mu + mu / 2) / mp.sqrt(2))) / 2

    return mp.fsum(p * gaussian(mp.mpf(epsilon) - loss) for loss, p in atoms.items())


def laplace_pair(one: str, two: str, epsilon: Any) -> Any:
    """delta of two continuous Laplace mechanisms of losses at most ``one`` and ``two``, by quadrature."""
    a, b, e = oracle.number(one), oracle.number(two), mp.mpf(epsilon)

    def single(x: Any, largest: Any) -> Any:
        if x >= largest:
            return mp.mpf(0)
        return 1 - mp.exp(x) if x <= -largest else 1 - mp.exp((x - largest) / 2)

    inside = sorted({-b, b, *(kink for kink in (e - a, e + a) if -b < kink < b)})
    density = mp.quad(lambda x: mp.exp((x - b) / 2) / 4 * single(e - x, a), inside)
    return single(e - b, a) / 2 + mp.exp(-b) / 2 * single(e + b, a) + density
