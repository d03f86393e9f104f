"""Integer noise that is given by a table of its probabilities."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

from service.errors import InvalidInput
from service.privacy.fields import MOVES
from service.privacy.grammar import (
    ABOVE_0,
    Document,
    DocumentForm,
    ExactNumber,
    Fields,
    InnerList,
    Unit,
    WholeNumber,
)
from service.privacy.laws.loss_laws import OddsLoss, TableLoss
from service.privacy.laws.noise_law import Masses, NoiseLaw
from service.privacy.laws.odds_divergences import LargestDivergence, WeightedLoss, largest_epsilon, largest_rho
from service.privacy.mechanisms.base import Discrete, Mechanism, RdpBounds, WorkEstimate, read_cells, read_lattice
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.loss import INFINITE, Loss
from service.privacy.numerics.numbers import MAX_BITS, exact_text

MOST_VALUES = 512
MOST_ROWS = 100
LARGEST_VALUE = 10**6
MOST_ATOMS = 1 << 10
"""The most pairs of a shift and a value of a row: each takes time at every order."""
_SHORT = 10**9
_VALUE = WholeNumber(
    "value",
    required=True,
    least=-LARGEST_VALUE,
    most=LARGEST_VALUE,
    description="The noise, in units of granularity: in counts, without one.",
)
_MASS = ExactNumber("mass", required=True, unit=Unit.PROBABILITY, bound=ABOVE_0)
_MASS_OF_VALUE = DocumentForm("NoiseMass", "A value of the noise and its probability.", (_VALUE, _MASS))
_MASSES = InnerList(
    "masses",
    form=_MASS_OF_VALUE,
    most=MOST_VALUES,
    description="The values of the noise, each once, with exact probabilities above 0 that add up to 1.",
)
_ROW = DocumentForm("NoiseRow", "The law of the noise of one true count.", (replace(_MASSES, required=True),))
_ROWS = InnerList(
    "rows",
    form=_ROW,
    most=MOST_ROWS,
    description="In place of masses, the law for each true count: the first is for 0, the last for all larger counts"
    " too. Counts below 0 are then refused.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseTable(Discrete):
    """Noise from a table of integers and their probabilities, drawn anew for each cell.

    The table need not be symmetric. It may have a row for each true count, as a matrix of transition probabilities.
    Neighbours are a count c under its row, and c + j under the row of c + j, for j up to the sensitivity and all c.

    Some values are possible under one neighbour only. The largest probability of these, over all pairs of neighbours in
    both directions, is the delta. Beside it, pure, zCDP and Rényi losses are the largest of the two laws, each given
    that its value is possible under both. The tight profile, which has the delta in it, is the largest over pairs and
    directions too. It is exact for one cell. For several, an adversary chooses the pair and the direction of each after
    earlier outputs.

    **Groups.** A cell moves by j only if at least j/sensitivity of the k records move it, and these can together move
    k/ceil(j/sensitivity) such cells. So the loss is the largest, over all j that k records reach, of the loss of j
    times this number (``docs/mathematics/group-privacy.md``). No shape of the table is needed. For profiles it is: if
    there is one row, log-concave without gaps, then the best tests of all shifts are the same, and the whole shift is
    the worst. Otherwise no profile of a group is known.

    Attributes:
        rows: for each true count from 0 on the masses: values in units of granularity, ascending, with their
            probabilities, which add up to 1. The last row is for all larger counts, a single one for all counts.
        records: the number of records that change together, in the form for groups; documents have 1.
    """

    TYPE = "noise_table"
    LABEL = "noise table"
    # Groups of moves need log-concave noise.
    BEFORE: ClassVar[Fields] = tuple(field for field in Discrete.BEFORE if field is not MOVES)
    FIELDS = (_MASSES, _ROWS)

    rows: tuple[Masses, ...]
    records: int = 1

    @classmethod
    def read(cls, document: Document, at: str, **shared: Any) -> Self:
        sensitivity, unit = read_lattice(document, at)
        table = cls(
            rows=_read_rows(document, at), sensitivity=sensitivity, granularity=unit, **read_cells(document), **shared
        )
        if table.size > MOST_ATOMS:
            detail = (
                f"expected at most {MOST_ATOMS} pairs of a shift up to the sensitivity and a value, got {table.size}"
            )
            raise InvalidInput.at(f"{at}/sensitivity", detail)
        return table

    def parameters(self) -> dict[str, Any]:
        rows = [_write_masses(row) for row in self.rows]
        own = {"masses": rows[0]} if len(rows) == 1 else {"rows": [{"masses": row} for row in rows]}
        return own | self.lattice()

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
        return NoiseLaw(rows=self.rows)

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.02 * self.size, vectorized=False, proof=min(10.0 * self.size, 15_000.0))

    @property
    def shifts(self) -> int:
        """The number of shifts to look at: up to the reach, or to the first that moves all values apart."""
        span = max(row[-1][0] for row in self.rows) - min(row[0][0] for row in self.rows)
        return min(self.sensitivity * self.records, span + 1)

    @property
    def size(self) -> int:
        """About the number of pairs of a shift and a value."""
        return self.shifts * sum(map(len, self.rows))

    @property
    def is_log_concave(self) -> bool:
        """True if there is one row, without gaps, and each mass squared is at least the product of its neighbours."""
        values, masses = zip(*self.rows[0], strict=True)
        whole = len(self.rows) == 1 and values[-1] - values[0] == len(values) - 1
        return whole and all(b * b >= a * c for a, b, c in zip(masses, masses[1:], masses[2:], strict=False))

    def neighbours(self, shift: int) -> Iterator[tuple[dict[int, Fraction], dict[int, Fraction]]]:
        """Yield the law of each count's noise, and that of the count moved by a shift, both relative to the first."""
        last = len(self.rows) - 1
        for count, row in enumerate(self.rows):
            yield dict(row), {value + shift: mass for value, mass in self.rows[min(count + shift, last)]}


class _Figures(NamedTuple):
    """The losses of a table over all pairs of neighbours.

    Attributes:
        losses: of the two laws, given that the value is possible under both; empty if some have no value in common, so
            that all is lost.
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
    factors: dict[OddsLoss, Fraction] = {}
    delta, directions = Fraction(0), frozenset[OddsLoss]()
    for shift in range(1, table.shifts + 1):
        factor = Fraction(table.records, -(-shift // table.sensitivity))
        found = frozenset(
            _loss_between(*pair) for one, other in table.neighbours(shift) for pair in ((one, other), (other, one))
        )
        delta = max(delta, *(factor * (1 - one.finite) for one in found))
        if not all(one.atoms for one in found):
            return _all_lost(delta)
        directions = found if table.is_log_concave else directions | found
        for one in found:
            conditioned = one.conditioned()
            factors[conditioned] = max(factor, factors.get(conditioned, factor))
    losses = tuple(WeightedLoss(law, factor) for law, factor in factors.items())
    law = TableLoss(directions) if table.records == 1 or table.is_log_concave else None
    return _Figures(Loss(delta), largest_epsilon(losses), losses, law)


def _all_lost(delta: Fraction) -> _Figures:
    return _Figures(Loss(delta), INFINITE, (), TableLoss(frozenset((OddsLoss(()),))))


def _loss_between(one: dict[int, Fraction], other: dict[int, Fraction]) -> OddsLoss:
    return OddsLoss.between((mass, other.get(value, Fraction(0))) for value, mass in one.items())


def _write_masses(masses: Masses) -> list[dict[str, Any]]:
    return [{"value": value, "mass": exact_text(mass)} for value, mass in masses]


def _read_rows(document: Document, at: str) -> tuple[Masses, ...]:
    """Return the rows of a table; masses alone are a single one.

    Raises:
        InvalidInput: not exactly one of masses and rows is stated, or a row is not valid.
    """
    masses, rows = document.get("masses"), document.get("rows")
    if (masses is None) is (rows is None):
        raise InvalidInput.at(
            at, f"expected exactly one of masses and rows, got {'neither' if rows is None else 'both'}"
        )
    if masses is not None:
        return (_read_masses(masses, f"{at}/masses"),)
    return tuple(_read_masses(row["masses"], f"{at}/rows/{number}/masses") for number, row in enumerate(rows or ()))


def _read_masses(rows: Sequence[Document], at: str) -> Masses:
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
