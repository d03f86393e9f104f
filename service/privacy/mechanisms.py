"""The mechanisms: frozen values with exact parameters.

A mechanism here is one query whose answer moves, in each of ``cells`` cells, by at most
``sensitivity``. Accounting a vector as cells of sensitivity s, not as one query of sensitivity
cells*s, is what makes zCDP tight (seed 004, D.1.1). What a mechanism costs stands in ``pure.py``,
``zcdp.py`` and ``rdp.py``, one notion of privacy loss in each.

A mechanism with discrete noise draws it on a lattice, the multiples of its ``granularity`` g (counts), and its
parameters here are in units of g: with X integer noise and q the query's answer, a multiple of g, the output q + gX
is g times q/g + X. Multiplying by g is a bijection between the integers and the lattice, known to everybody, so the
privacy loss is that of integer noise with the parameters and the sensitivity divided by g, in every notion: no
price looks at g. On another lattice the same parameters in counts cost something else, which is why g belongs to
the mechanism that is charged, and not to a draw of it.
"""

from dataclasses import dataclass, fields, replace
from fractions import Fraction

from service.privacy.keyed import Keyed


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism(Keyed):
    """What all mechanisms share.

    Attributes:
        name: unique in a plan; None until the plan is read, which then gives the path.
        tags: what the query reveals something about (an attribute, a geography).
        cells: how many cells one neighbouring change can move, over all partitions of the query;
            None takes 1 under ``add_remove`` and 2 under ``replace_one``.
        cells_added: under ``replace_one``, how many cells adding or removing one record can move;
            None takes half of ``cells``, rounded up.
    """

    name: str | None = None
    tags: tuple[str, ...] = ()
    cells: int | None = None
    cells_added: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometric(Mechanism):
    """Discrete Laplace noise: mass proportional to exp(-|x|/scale) on the integers."""

    scale: Fraction  # units of granularity
    sensitivity: int = 1  # likewise, per cell
    granularity: Fraction = Fraction(1)  # counts


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussian(Mechanism):
    """Discrete Gaussian noise: mass proportional to exp(-x²/(2 sigma_squared)) on the integers."""

    sigma_squared: Fraction  # units of granularity, squared; the variance is a little less
    sensitivity: int = 1  # units of granularity, per cell
    granularity: Fraction = Fraction(1)  # counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace(Mechanism):
    """Continuous Laplace noise of the given scale; accounted, never drawn."""

    scale: Fraction
    sensitivity: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Mechanism):
    """Continuous Gaussian noise of variance ``sigma_squared``; accounted, never drawn."""

    sigma_squared: Fraction
    sensitivity: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Osgt(Mechanism):
    """Offset symmetric Gaussian tails (seed 002): density proportional to exp(-y²/(2 sigma²) - |y| m/sigma²).

    Accounted, never drawn. At m = 0 it is the Gaussian.
    """

    sigma_squared: Fraction  # counts squared; the variance is less
    m: Fraction  # counts, at least 0
    sensitivity: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteOsgt(Mechanism):
    """The same shape on the integers: mass proportional to exp(-x²/(2 sigma²) - |x| m/sigma²).

    Its two ends are the discrete Gaussian (m = 0) and the geometric (both growing, scale sigma_squared/m).
    """

    sigma_squared: Fraction  # units of granularity, squared; the variance is less
    m: Fraction  # units of granularity, at least 0
    sensitivity: int = 1  # likewise, per cell
    granularity: Fraction = Fraction(1)  # counts


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse(Mechanism):
    """k-ary randomised response: the true value with odds exp(epsilon) against each other one."""

    epsilon: Fraction  # nats
    values: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(Keyed):
    """A guarantee that someone else proved: any of pure, zCDP and RDP, each beside ``delta``.

    Attributes:
        epsilon: pure loss (nats), or None.
        delta: probability that the other figures do not hold.
        rho: zCDP loss (nats), or None.
        rdp: (order, loss in nats) pairs by ascending order, or empty.
    """

    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)
    rho: Fraction | None = None
    rdp: tuple[tuple[Fraction, Fraction], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared(Mechanism):
    """A mechanism known only by its guarantee; ``reference`` says why it holds.

    ``add_remove`` is its guarantee when a record is only added or only removed, needed below
    ``parallel`` and ``choice`` under ``replace_one``.
    """

    guarantee: Declaration
    reference: str
    add_remove: Declaration | None = None


Discrete = Geometric | DiscreteGaussian | DiscreteOsgt
"""The mechanisms whose noise is on a lattice: those that can be drawn."""

Additive = Discrete | Laplace | Gaussian | Osgt
"""The mechanisms that add noise: those with a sensitivity and cells."""


def simplest(mechanism: Mechanism) -> Mechanism:
    """The same loss by its simplest mechanism: on the integers; offset tails without an offset are Gaussian."""
    if isinstance(mechanism, Discrete) and mechanism.granularity != 1:
        mechanism = replace(mechanism, granularity=Fraction(1))
    match mechanism:
        case Osgt(m=Fraction(numerator=0)):
            kind: type[Gaussian | DiscreteGaussian] = Gaussian
        case DiscreteOsgt(m=Fraction(numerator=0)):
            kind = DiscreteGaussian
        case _:
            return mechanism
    shared = {field.name: getattr(mechanism, field.name) for field in fields(kind)}
    return kind(**shared)
