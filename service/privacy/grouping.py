"""Group privacy: what a mechanism costs when k records change together.

A ``group`` is pushed down to the mechanisms, and every composition above them is then folded as for one
record. That is sound, which needs an argument, because k records can be in up to k*z parts of a
``parallel`` of degree z, and move up to k*c cells where one moves c.

Let C(t) be what one cell moved by t costs in a notion. Additive noise here has mass exp(-V), V convex, so
that exp(-alpha V(x) + (alpha-1) V(x-t)) is log-convex in t at every x; sums of log-convex functions are
log-convex (Hoelder), so (alpha-1) tau(alpha) is convex in t, and tau, its supremum rho = sup tau/alpha and
its limit, pure epsilon, are too. With C(0) = 0 hence (*) C(n s) <= n/k C(k s) for n <= k.

Take a pair of inputs between which n records are changed and o added or removed, n + o <= k; write P for
the fold over the mechanisms of sensitivity k*s, and P1 for the same with one-sided changes. Claim: every
node costs at most (n P + o P1)/k.
  A mechanism: cell j is moved by at most n_j s, n_j <= k, the n_j add up to at most n c + o c1 (c cells for a
    changed record, c1 for one added or removed); by (*) the cells together cost (n c + o c1)/k C(k s).
  Sequence, repeat: the bounds add up.
  Parallel of degree z: by the claim for the parts, each record adds P_i/k for a part it is changed in and
    P1_i/k for one it enters or leaves. A record that is changed has z places before and z after, so its
    weights (1 for staying, 1/2 for entering or leaving) add up to at most z, each is at most 1, and it adds
    at most the z largest of max(P_i, 2 P1_i); one that is added or removed the z largest of P1_i: which
    is what ``outline.fold`` takes.
  Choice: a parallel of degree 1 over the partitions, each of the dearest branch.
With n = k, or under add_remove o = k, the claim is the fold.

Declared figures satisfy (*) too: k epsilon, k² rho, and the delta below, all convex in k.
"""

from dataclasses import replace
from fractions import Fraction

from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    DiscreteOsgt,
    Gaussian,
    Geometric,
    Laplace,
    Mechanism,
    Osgt,
    RandomizedResponse,
)
from service.privacy.numbers import ball, ceiling


def grouped(mechanism: Mechanism, size: int) -> tuple[Mechanism, int]:
    """A mechanism whose cost, taken so many times, is that of ``mechanism`` when ``size`` records change together."""
    if size == 1:
        return mechanism, 1
    match mechanism:
        case Geometric() | DiscreteGaussian() | DiscreteOsgt():
            return replace(mechanism, sensitivity=mechanism.sensitivity * size), 1
        case Laplace() | Gaussian() | Osgt():
            return replace(mechanism, sensitivity=mechanism.sensitivity * size), 1
        case RandomizedResponse():
            # A record moves one answer; ``size`` records move so many, randomised independently.
            return mechanism, size
        case Declared(guarantee=guarantee, add_remove=one_sided):
            one_sided = None if one_sided is None else _declaration(one_sided, size)
            return replace(mechanism, guarantee=_declaration(guarantee, size), add_remove=one_sided), 1
        case _:
            raise TypeError(f"no group privacy for {type(mechanism).__name__}")


def _declaration(one: Declaration, size: int) -> Declaration:
    """What a guarantee for one record says for ``size`` of them.

    Pure: size*epsilon. zCDP: size² rho (Bun and Steinke 2016, Prop. 1.9), where there is no delta: for rho
    beside a delta, and for Rényi orders, nothing is known and the loss is infinite. Where not even epsilon
    bounds what a change makes of the event of probability delta, only delta = 1 is certain.
    """
    epsilon = None if one.epsilon is None else one.epsilon * size
    if one.delta == 0:
        return Declaration(epsilon=epsilon, rho=None if one.rho is None else one.rho * size**2)
    delta = Fraction(1) if one.epsilon is None else min(one.delta * _chained(one.epsilon, size), Fraction(1))
    return Declaration(epsilon=epsilon, delta=delta)


def _chained(epsilon: Fraction, size: int) -> Fraction:
    """1 + e^epsilon + ... + e^((size-1) epsilon), rounded up: what ``size`` changes in a row make of delta.

    (e^(size epsilon) - 1)/(e^epsilon - 1), and size at epsilon = 0 (the sum in the proof of Vadhan 2017,
    Lemma 2.2). Where it is too large to write out, 2^9999, any delta that can be declared has long passed 1.
    """
    if epsilon == 0:
        return Fraction(size)
    factor = ceiling(lambda: ball(epsilon * size).expm1() / ball(epsilon).expm1())
    return Fraction(2**9999) if factor is None else factor
