"""The Rényi divergences tau of the mechanisms, each formula once, for every arithmetic.

Everything is symmetric in the two neighbours, so one direction is computed. z is the order alpha less 1, and M(z) is E
exp(zL) for the privacy loss L, so that tau(alpha) = log M(z)/z. Each formula has two forms (``Arithmetic.either``). The
first is log1p of M - 1 as a sum without cancellation, for losses as small as they may be. The second takes the leading
exponential out, for losses as large as they may be.
"""

from collections.abc import Callable

from service.privacy.numerics.arithmetic import Arithmetic, Number


def _two_sided(loss: Number, other: Number, mean: Callable[[], Number], z: Number, at: Arithmetic) -> Number:
    """Return tau where M(z) = (1-r) e^(zS) + r e^(-alpha S) with S = ``loss``, r = ``other``, 0 <= r <= 1/2.

    M - 1 = (1-r) x(zS) + r x(-alpha S) + ``mean`` for x(t) = e^t - 1 - t and mean = (1-r) zS - r alpha S.
    """
    alpha = z + 1

    def small() -> Number:
        second = (1 - other) * at.exp_excess(z * loss) + other * at.exp_excess(-alpha * loss)
        return at.log1p(second + mean()) / z

    def large() -> Number:
        return loss + at.log1p(other * at.expm1(-(alpha + z) * loss)) / z

    return at.either(z * loss, small, large)


def laplace(scale: Number, sensitivity: Number, z: Number, at: Arithmetic) -> Number:
    """Return tau for M = alpha/(2 alpha-1) e^(zS) + z/(2 alpha-1) e^(-alpha S), S = sensitivity/scale.

    Source: Mironov 2017, Prop. 6.

    The terms of first order cancel exactly: alpha zS = z alpha S.

    Args:
        z: the order less 1, above 0.
        at: the arithmetic of all the numbers.

    Returns:
        Nats.
    """
    return _two_sided(sensitivity / scale, z / (2 * z + 1), lambda: 0, z, at)


def geometric(scale: Number, sensitivity: Number, z: Number, at: Arithmetic) -> Number:
    """Return tau of geometric noise: the sum over the integers in closed form.

    Haney et al. 2021, eq. (17), integrates instead, and is below the truth.

    With e = 1/scale, S = s e, w = z + 1/2 and T = tanh(e/2)/tanh(we), the s+1 atoms of the loss, at
    S, S - 2e, ..., -S, sum to M = e^(-S/2) [cosh(wS) + T sinh(wS)]: (1-r) e^(zS) + r e^(-alpha S) for
    r = (1-T)/2 = q (1 - q^(2z))/((1+q) (1 - q^(2w))), q = e^(-e). The terms of first order are
    S (2wT - 1)/2, and 2wT = (1 + C(we))/(1 + C(e/2)) for C(x) = x coth x - 1. For s = 1
    M is cosh(we)/cosh(e/2).

    Args:
        sensitivity: whole, in the unit of ``scale``.
        z: the order less 1, above 0.
        at: the arithmetic of all the numbers.

    Returns:
        Nats.
    """
    rate = 1 / scale
    loss, q, y = sensitivity * rate, at.exp(-rate), 2 * z + 1
    other = q * at.expm1(-2 * z * rate) / ((1 + q) * at.expm1(-y * rate))

    def mean() -> Number:
        half = at.coth_excess(rate / 2)
        return loss / 2 * (at.coth_excess(y * rate / 2) - half) / (1 + half)

    return _two_sided(loss, other, mean, z, at)


def discrete_gaussian(variance: Number, sensitivity: Number, z: Number, at: Arithmetic) -> Number:
    """Return alpha*rho + log[theta(alpha s)/theta(0)]/z, theta(u) the sum over integers of exp(-(x-u)²/(2 sigma²)).

    Completing the square in P^alpha Q^(1-alpha) gives it; theta has period 1 and s is whole, so u is
    z*s taken off centre.

    Args:
        variance: sigma².
        sensitivity: whole.
        z: the order less 1, above 0.
        at: the arithmetic of all the numbers.

    Returns:
        Nats.
    """
    u = at.off_centre(z * sensitivity)
    moved = at.log1p(at.gaussian_side(u, variance)) - at.log1p(at.gaussian_side(0 * u, variance))
    return (z + 1) * sensitivity * sensitivity / (2 * variance) + (moved - u * u / (2 * variance)) / z


def randomized_response(epsilon: Number, values: Number, z: Number, at: Arithmetic) -> Number:
    """Return tau of k-ary randomised response; with two values it dominates every epsilon-DP mechanism.

    The losses are epsilon with probability p = 1/(1 + (k-1) e^-epsilon), -epsilon with p e^-epsilon and 0,
    so that M - 1 = p (e^(z epsilon) - 1) (1 - e^(-alpha epsilon)).

    Args:
        epsilon: nats.
        values: k, at least 2.
        z: the order less 1, above 0.
        at: the arithmetic of all the numbers.

    Returns:
        Nats.
    """
    alpha, lost = z + 1, at.exp(-epsilon)

    def small() -> Number:
        return at.log1p(at.expm1(z * epsilon) * -at.expm1(-alpha * epsilon) / (1 + (values - 1) * lost)) / z

    def large() -> Number:
        others = at.exp(-(alpha + z) * epsilon) + (values - 2) * at.exp(-alpha * epsilon)
        return epsilon + (at.log1p(others) - at.log1p((values - 1) * lost)) / z

    return at.either(z * epsilon, small, large)


def bounded_range(epsilon: Number, z: Number, at: Arithmetic) -> Number:
    """Return the largest tau of all pairs of laws whose privacy loss has a range of epsilon.

    These are the pairs with the losses t and t - epsilon and their mixtures (``docs/mathematics/bounded-range.md``).
    The worst T = e^t at an order is z (E - 1/F)/(alpha (1 - 1/F)) for E = e^epsilon, F = e^(z epsilon). Then t has
    probability p = (E - T)/(E - 1). With x(u) = e^u - 1 - u and the mean z [p x(-t) + (1-p) x(epsilon - t)],

        M - 1 = p [x(zt) + z x(-t)] + (1-p) [x(-z(epsilon - t)) + z x(epsilon - t)],
        alpha (1 - 1/F) (T - 1) = z x(epsilon) + x(-z epsilon),
        alpha (1 - 1/F) (E - T) = E/F [x(z epsilon) + z x(-epsilon)].

    Args:
        epsilon: nats.
        z: the order less 1, above 0.
        at: the arithmetic of all the numbers.

    Returns:
        Nats.
    """
    alpha, lost = z + 1, -at.expm1(-z * epsilon)

    def small() -> Number:
        whole, share = at.expm1(epsilon), alpha * lost
        above_1 = (z * at.exp_excess(epsilon) + at.exp_excess(-z * epsilon)) / share
        below_e = at.exp((1 - z) * epsilon) * (at.exp_excess(z * epsilon) + z * at.exp_excess(-epsilon)) / share
        t, rest = at.log1p(above_1), at.log1p(below_e / (1 + above_1))
        first = at.exp_excess(z * t) + z * at.exp_excess(-t)
        second = at.exp_excess(-z * rest) + z * at.exp_excess(rest)
        return at.log1p(below_e / whole * first + above_1 / whole * second) / z

    def large() -> Number:
        less = at.log1p(-at.exp(-alpha * epsilon))
        rest = less - at.log1p(z) - at.log1p(-at.exp(-epsilon))
        return epsilon + at.log(z / (alpha * lost)) + less + rest / z

    return at.either(alpha * epsilon, small, large)
