"""Integer noise that is given by a table of its probabilities."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, Self

from service.errors import InvalidInput
from service.privacy.grammar import (
    ABOVE_0,
    Document,
    DocumentForm,
    ExactNumber,
    InnerList,
    Unit,
    WholeNumber,
)
from service.privacy.laws.loss_laws import OddsLoss, TableLoss
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.laws.odds_divergences import LargestDivergence, WeightedLoss, largest_epsilon, largest_rho
from service.privacy.mechanisms.base import Discrete, Mechanism, RdpBounds, WorkEstimate, read_cells, read_lattice
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.loss import INFINITE, Loss
from service.privacy.numerics.numbers import MAX_BITS, exact_text

MOST_VALUES = 512
LARGEST_VALUE = 10**6
MOST_ATOMS = 1 << 12
"""The most pairs of a shift and of a value that is possible with it and without it: each takes time at every order."""
_SHORT = 10**9
_VALUE = WholeNumber(
    "value",
    required=True,
    least=-LARGEST_VALUE,
    most=LARGEST_VALUE,
    description="The noise, in units of granularity: in counts, without one.",
)
_MASS = ExactNumber("mass", required=True, unit=Unit.PROBABILITY, bound=ABOVE_0)
_ROW = DocumentForm("NoiseMass", "A value of the noise and its probability.", (_VALUE, _MASS))
_MASSES = InnerList(
    "masses",
    required=True,
    form=_ROW,
    most=MOST_VALUES,
    description="The values of the noise, each once, with exact probabilities above 0 that add up to 1.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseTable(Discrete):
    """Noise from a table of integers and their probabilities, drawn anew for each cell.

    The table need not be symmetric. A shift by j makes its extreme values possible under one neighbour only. The
    largest probability of these over all shifts up to the sensitivity, in both directions, is its delta. Beside it,
    pure, zCDP and Rényi losses are the largest of the laws with and without the shift, each given that its value is
    possible under both. Without an event of infinite loss, the tight profile is the largest over shifts and directions
    too, exactly for one cell; for several, an adversary chooses shift and direction of each after earlier outputs.

    **Groups.** A cell moves by j only if at least j/sensitivity of the k records move it, and these can together move
    a k/ceil(j/sensitivity) of such cells. So with c(j) the loss of shift j, C(n) = the largest c(j) that n records
    reach is at most n/k times the largest c(j) k/ceil(j/sensitivity) that k records reach: inequality (1) of
    ``docs/mathematics/group-privacy.md``, whose left side is the loss of n records here. No shape of the table is
    needed. For profiles it is: if the table is log-concave without gaps, the best tests of all shifts are the same, and
    the whole shift is the worst. Otherwise nothing is stated.

    Attributes:
        masses: the values, ascending, in units of granularity, with their probabilities, which add up to 1.
        records: the number of records that change together, in the form for groups; documents have 1.
    """

    TYPE = "noise_table"
    LABEL = "noise table"
    FIELDS = (_MASSES,)

    masses: tuple[tuple[int, Fraction], ...]
    records: int = 1

    @classmethod
    def read(cls, document: Document, at: str, **shared: Any) -> Self:
        sensitivity, unit = read_lattice(document, at)
        masses = _read_masses(document["masses"], f"{at}/masses")
        table = cls(masses=masses, sensitivity=sensitivity, granularity=unit, **read_cells(document), **shared)
        if table.size > MOST_ATOMS:
            detail = f"expected at most {MOST_ATOMS} pairs of values that are at most the sensitivity apart"
            raise InvalidInput.at(f"{at}/sensitivity", detail)
        return table

    def parameters(self) -> dict[str, Any]:
        return Discrete.parameters(self) | {
            "masses": [{"value": value, "mass": exact_text(mass)} for value, mass in self.masses]
        }

    def grouped(self, size: int) -> tuple[Mechanism, int]:
        return replace(self, records=size), 1

    def scaled(self, multiplier: Fraction) -> Self:  # noqa: ARG002
        """Return the table itself: it has no noise scale."""
        return self

    def pure_epsilon(self) -> Loss:
        return _figures(self).epsilon

    def delta(self) -> Loss:
        return _figures(self).delta

    def rho(self) -> Loss:
        losses = _figures(self).losses
        return largest_rho(losses) if losses else INFINITE

    def rdp(self) -> RdpBounds:
        losses = _figures(self).losses
        return RdpBounds(curve=Curve(LargestDivergence(losses), (), vectorized=False) if losses else None)

    def loss_law(self) -> TableLoss | None:
        return _figures(self).law

    def noise_law(self) -> NoiseLaw:
        return NoiseLaw(masses=self.masses)

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.02 * self.size, vectorized=False, proof=2.0 * self.size)

    @property
    def reach(self) -> int:
        """The largest shift, in units of granularity."""
        return self.sensitivity * self.records

    @property
    def size(self) -> int:
        """The number of pairs of its values that are at most ``reach`` apart."""
        values = [value for value, _ in self.masses]
        return sum(place - bisect_left(values, one - self.reach) for place, one in enumerate(values))

    @property
    def is_log_concave(self) -> bool:
        """True if its values have no gaps and each mass squared is at least the product of its neighbours."""
        masses = [mass for _, mass in self.masses]
        whole = all(one + 1 == other for (one, _), (other, _) in pairwise(self.masses))
        return whole and all(b * b >= a * c for a, b, c in zip(masses, masses[1:], masses[2:], strict=False))


class _Figures(NamedTuple):
    """The losses of a table over all shifts that it reaches.

    Attributes:
        losses: of the laws with and without each shift, given that the value is possible under both; empty if they have
            no value in common for some shift, so that all is lost.
        law: for profiles; None if none is known.
    """

    delta: Loss
    epsilon: Loss
    losses: tuple[WeightedLoss, ...]
    law: TableLoss | None


@lru_cache(maxsize=32)  # of up to 10 MB each
def _figures(table: NoiseTable) -> _Figures:
    if table.size > MOST_ATOMS:
        return _all_lost(Fraction(table.records))
    masses = dict(table.masses)
    span = table.masses[-1][0] - table.masses[0][0]
    factors: dict[OddsLoss, Fraction] = {}
    delta, directions = Fraction(0), frozenset[OddsLoss]()
    for shift in range(1, min(table.reach, span + 1) + 1):
        factor = Fraction(table.records, -(-shift // table.sensitivity))
        both = frozenset(_loss_of_shift(masses, by) for by in (shift, -shift))
        delta = max(delta, *(factor * (1 - one.finite) for one in both))
        if not all(one.atoms for one in both):
            return _all_lost(delta)
        directions = both if table.is_log_concave else directions | both
        for one in both:
            conditioned = one.conditioned()
            factors[conditioned] = max(factor, factors.get(conditioned, factor))
    losses = tuple(WeightedLoss(law, factor) for law, factor in factors.items())
    law = TableLoss(directions) if table.records == 1 or table.is_log_concave else None
    return _Figures(Loss(delta), largest_epsilon(losses), losses, law)


def _all_lost(delta: Fraction) -> _Figures:
    return _Figures(Loss(delta), INFINITE, (), TableLoss(frozenset((OddsLoss(()),))))


def _loss_of_shift(masses: Mapping[int, Fraction], by: int) -> OddsLoss:
    """Return the loss from the noise to the noise moved by a shift."""
    return OddsLoss.between((mass, masses.get(value - by, Fraction(0))) for value, mass in masses.items())


def _read_masses(rows: Sequence[Document], at: str) -> tuple[tuple[int, Fraction], ...]:
    """Return the masses of a table by ascending values.

    Raises:
        InvalidInput: a mass is not valid, a value occurs twice, or the masses do not add up to 1.
    """
    masses: dict[int, Fraction] = {}
    for number, row in enumerate(rows):
        value = row["value"]
        if value in masses:
            raise InvalidInput.at(f"{at}/{number}/value", f"expected each value once, got {value} again")
        masses[value] = _MASS.read(row, f"{at}/{number}")
    common = math.lcm(*(mass.denominator for mass in masses.values()))
    if common.bit_length() > MAX_BITS:
        raise InvalidInput.at(at, f"expected masses with a common denominator of at most {MAX_BITS} bits")
    total = sum(masses.values(), Fraction(0))
    if total != 1:
        raise InvalidInput.at(at, f"expected masses that add up to 1, got {_in_digits(total)}")
    return tuple(sorted(masses.items()))


def _in_digits(total: Fraction) -> str:
    """Return a sum as an exact number if that is short, else by its distance from 1."""
    if total.denominator < _SHORT:
        return exact_text(total)
    return f"about 1 {'-' if total < 1 else '+'} {abs(float(total - 1)):.3g}"
