"""The contract of mechanisms: all that the rest of the service may ask of one.

A mechanism is one query. A neighbouring change moves its answer by at most ``sensitivity`` in each of ``cells`` cells.
A vector is accounted as cells of sensitivity s, not as one query of sensitivity cells*s, because only this makes zCDP
tight.

A mechanism with discrete noise draws it on a lattice, the multiples of its ``granularity`` g (counts). Its parameters
here are in units of g. With X integer noise and q the query's answer, a multiple of g, the output q + gX is g times q/g
+ X. Multiplying by g is a publicly known bijection between the integers and the lattice. So in every notion the privacy
loss is that of integer noise with the parameters and the sensitivity divided by g, and no price depends on g. On
another lattice, the same parameters in counts have another price. Hence g belongs to the mechanism that is charged, and
not to a draw of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

from service.errors import InvalidInput
from service.privacy.fields import (
    AT_LEAST,
    CELLS,
    GRANULARITY,
    MOVED_BY,
    MOVES,
    NAME,
    PARTITIONS,
    READS,
    SENSITIVITY,
    TAGS,
    THRESHOLD,
    WHOLE_SENSITIVITY,
)
from service.privacy.grammar import (
    ABOVE_0,
    LARGEST_WHOLE,
    Document,
    ExactNumber,
    Fields,
    PlanElement,
    Scale,
    read_fields,
    write_fields,
)
from service.privacy.laws.loss_laws import LossLaw
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms.moves import Moves, largest_move, read_moves, write_moves
from service.privacy.numerics.arithmetic import BALLS
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.keyed import Keyed
from service.privacy.numerics.loss import ZERO, Loss
from service.privacy.numerics.numbers import ceiling, exact_text
from service.privacy.partitions import Partitions


class RdpBounds(NamedTuple):
    """Upper bounds on tau(alpha), nats, of one cell moved by the sensitivity; all hold, so the least of them does.

    Pure epsilon bounds tau(alpha) too, and is not repeated here.

    Attributes:
        curve: a formula of alpha - 1.
        slope: c of the bound c*alpha.
        attained_at: at orders that are multiples of its inverse, tau is exactly c*alpha, which balls cannot decide.
        line: a and b of the bound a + b*alpha.
        points: (order, tau) pairs by ascending order; between them a chord of (alpha-1) tau(alpha) is a bound.
    """

    curve: Curve | None = None
    slope: Fraction | None = None
    attained_at: int | None = None
    line: tuple[Fraction, Fraction] | None = None
    points: tuple[tuple[Fraction, Fraction], ...] = ()

    @property
    def sole_slope(self) -> Fraction | None:
        """The slope if it is the only bound, or as good as one, so that totals may add it up as one number."""
        return None if self.is_mixed or (self.curve and self.attained_at is None) else self.slope

    @property
    def is_mixed(self) -> bool:
        """True if different bounds are the least at different orders."""
        return bool(self.points) or (self.curve is not None and self.slope is not None and self.attained_at is None)


class WorkEstimate(NamedTuple):
    """Estimates of the work for a mechanism's figures, in about milliseconds of one core.

    Attributes:
        at_order: the work for its RDP at one order, in balls.
        vectorized: whether its RDP is evaluated in arrays with that of others, rather than in balls.
        proof: the work for its rho, done once.
        tight: whether its tight figures have to be computed, rather than follow from its rho.
        linear: whether its RDP is, or nearly is, a multiple of the order.
    """

    at_order: float
    vectorized: bool = True
    proof: float = 0.0
    tight: bool = True
    linear: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism(Keyed, PlanElement, ABC):
    """A mechanism: a frozen value with exact parameters.

    Losses are those of one cell moved by the sensitivity, in nats, and never below the truth.

    Attributes:
        name: unique in a plan; None until the plan is read, which then gives the path.
        tags: the subjects about which the query reveals something (an attribute, a geography).
        cells: the number of cells that one neighbouring change can move, over all partitions of the query; None takes 1
            under ``add_remove`` and 2 under ``replace_one``.
        cells_added: under ``replace_one``, the number of cells that adding or removing one record can move; None takes
            half of ``cells``, rounded up.
        cells_replaced: under ``add_remove``, the number of cells that another value of one record can move, each by at
            most the sensitivity; only caps on tags depend on it (``docs/mathematics/caps.md``).
        moves: alternatives of what adding or removing one record does, each a tuple of distances (as ``sensitivity``)
            with numbers of cells, instead of ``cells``; empty if it moves each cell by the sensitivity, which is the
            largest distance otherwise. ``condense_leaf`` replaces it by mechanisms without moves.
        reads: the promise that it reads nothing on which the account has a cap; no loss depends on it.
        partitions: those for which it may be drawn, as it or a node above declares. No loss depends on them, so
            mechanisms that differ in nothing else are equal.
    """

    BEFORE: ClassVar[Fields] = (TAGS, READS, NAME)
    LABEL: ClassVar[str]
    """Its name in words, for people; TYPE is the one in documents."""
    DRAWN: ClassVar[bool] = False
    """True if its noise is integer, so that it can be drawn exactly; others are only accounted."""
    ADDITIVE: ClassVar[bool] = False
    """True if it adds noise to an answer, and so has a sensitivity, a noise scale and cells."""
    OFFSET: ClassVar[bool] = False
    """True if the noise has an offset beside its variance, as offset Gaussian tails have."""
    PARAMETER: ClassVar[str | None] = None
    """The field that alone determines its noise: ``scale`` or ``sigma_squared``; None if there is no such field."""

    name: str | None = None
    tags: tuple[str, ...] = ()
    cells: int | None = None
    cells_added: int | None = None
    cells_replaced: int | None = None
    moves: Moves = ()
    reads: str | None = None
    partitions: Partitions | None = field(default=None, compare=False)

    @property
    def unit(self) -> Fraction:
        """The unit of its sensitivity and noise, in counts."""
        return Fraction(1)

    @property
    def threshold(self) -> int | None:
        """The least noisy count that is published, in its unit; None if none is suppressed."""
        return None

    @classmethod
    def read(cls, document: Document, at: str, **shared: Any) -> Self:
        """Return the mechanism that a document states.

        Args:
            at: JSON pointer of the document, for faults.
            shared: name, tags, reads and partitions.

        Raises:
            InvalidInput: a field is not valid.
        """
        return cls(**read_fields(cls.FIELDS, document, at), **shared)

    def parameters(self) -> dict[str, Any]:
        """Return its own fields in normal form; ``read`` reads them back."""
        return write_fields(self.FIELDS, self)

    def faults(self, *, replaced: bool, divided: bool) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """Yield fields that are not allowed under a neighbouring relation, each with the accepted values.

        Args:
            replaced: whether the relation is ``replace_one`` and not ``add_remove``.
            divided: whether it is below a ``parallel`` or ``choice``, where a changed record can leave one part and
                enter another.
        """
        if self.cells_added is not None and not replaced:
            yield "cells_added", "expected none under add_remove; cells is what one record moves"
        if self.cells_replaced is not None and replaced:
            yield "cells_replaced", "expected none under replace_one; cells is what another record moves"

    def moved(self, *, replaced: bool, one_side: bool) -> tuple["Mechanism", int]:
        """Return the mechanism for one moved cell, and the number of its cells that a change moves.

        Args:
            replaced: whether the relation is ``replace_one`` and not ``add_remove``.
            one_side: whether the change is the removal or the addition that makes up half of a replacement.

        Raises:
            ValueError: the mechanism has one of ``faults``, or has moves.
        """
        if self.moves:
            raise ValueError("expected a mechanism that moves all cells alike")
        cells = self.cells or (2 if replaced else 1)
        if one_side:
            cells = self.cells_added or (cells + 1) // 2
        if self.cells is None and self.cells_added is None:
            return self, cells
        return replace(self, cells=None, cells_added=None), cells

    @abstractmethod
    def grouped(self, size: int) -> tuple["Mechanism", int]:
        """Return a mechanism and a count: its loss, composed this often, is that of ``size`` records changed together.

        ``docs/mathematics/group-privacy.md`` proves that plans can be composed of these as of any mechanisms.
        """

    def simplest(self) -> "Mechanism":
        """Return the simplest mechanism with the same losses, names and tags."""
        return self

    def scaled(self, multiplier: Fraction) -> Self:  # noqa: ARG002
        """Return the mechanism with its noise scale multiplied, or the mechanism itself if it has none.

        Args:
            multiplier: above 0, of sigma or b, not of the variance.
        """
        return self

    @abstractmethod
    def pure_epsilon(self) -> Loss:
        """Return the largest privacy loss, exactly; infinite if the loss has no bound."""

    def own_loss(self) -> Loss:
        """Return epsilon if it is finite, else rho: the loss in which its noise is usually stated."""
        epsilon = self.pure_epsilon()
        return self.rho() if epsilon.nats is None else epsilon

    def delta(self) -> Loss:
        """Return the probability with which the losses do not hold."""
        return ZERO

    def score_rate(self) -> Fraction | None:
        """Return r if it selects a candidate, with probabilities proportional to exp(r*score); else None."""
        return None

    def rho_curve(self) -> Curve | None:
        """Return the formula of rho; None if rho is rational or infinite, or if the best known bound has no formula."""
        return None

    @abstractmethod
    def rho(self) -> Loss:
        """Return the zCDP loss; an irrational one is rounded up."""

    @abstractmethod
    def rdp(self) -> RdpBounds:
        """Return the known bounds on the Rényi divergences."""

    @abstractmethod
    def loss_law(self) -> LossLaw | None:
        """Return the law of the loss, if the event of probability delta does not happen; None if no law is known.

        A law that only dominates the loss is allowed for a mechanism that stands for all with its guarantee: its tests
        compare the tight profile with that of the dominating mechanism, to a millionth.
        """

    @abstractmethod
    def noise_law(self) -> NoiseLaw | None:
        """Return the law of its noise in units of granularity; None if it adds none.

        It is a mass on the integers if the mechanism is ``DRAWN``, else a density.
        """

    @abstractmethod
    def work(self) -> WorkEstimate:
        """Return estimates of the work for its figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrete(Mechanism):
    """Noise on a lattice, which can be drawn.

    Attributes:
        sensitivity: per cell, in units of granularity.
        granularity: counts.
        threshold: the least noisy count that is published, of keys that the data contain, in units of granularity;
            None: every count is published. Its losses are those of the noise; ``new_keys`` has what it costs beside.
            Only kinds of noise that have the field ``THRESHOLD`` may have one, as the price needs a proof.
    """

    ADDITIVE = DRAWN = True
    BEFORE: ClassVar[Fields] = (TAGS, READS, NAME, *CELLS, MOVES, PARTITIONS, WHOLE_SENSITIVITY, GRANULARITY)

    sensitivity: int = 1
    granularity: Fraction = Fraction(1)
    threshold: int | None = None

    @property
    def unit(self) -> Fraction:
        """Its granularity."""
        return self.granularity

    @classmethod
    def read(cls, document: Document, at: str, **shared: Any) -> Self:
        sensitivity, unit = read_lattice(document, at)
        moves = read_moves(document, at, partial(_lattice_steps, distance=MOVED_BY, unit=unit))
        sensitivity = int(largest_move(moves) or sensitivity)
        own = read_fields(cls.FIELDS, document, at, Scale(sensitivity, unit))
        threshold = read_threshold(document, at, unit) if THRESHOLD in cls.AFTER else None
        lattice: dict[str, Any] = {"sensitivity": sensitivity, "granularity": unit, "threshold": threshold}
        return cls(**own, **lattice, moves=moves, **read_cells(document), **shared)

    def parameters(self) -> dict[str, Any]:
        return write_fields(self.FIELDS, self, Scale(self.sensitivity, self.granularity)) | self.lattice()

    def lattice(self) -> dict[str, Any]:
        """Return the fields of the distances by which a record moves cells, of the granularity and of the threshold."""

        def stated(distance: Fraction | int) -> int | str:
            return int(distance) if self.granularity == 1 else exact_text(distance * self.granularity)

        document = write_moves(self.moves, stated) or {"sensitivity": stated(self.sensitivity)}
        if self.granularity != 1:
            document["granularity"] = exact_text(self.granularity)
        if self.threshold is not None:
            document["threshold"] = {"at_least": stated(self.threshold)}
        return document

    def grouped(self, size: int) -> tuple[Mechanism, int]:
        return replace(self, sensitivity=self.sensitivity * size), 1

    def simplest(self) -> Mechanism:
        """Return the mechanism on the integers, with a granularity of 1."""
        return self if self.granularity == 1 else replace(self, granularity=Fraction(1))

    @abstractmethod
    def noise_law(self) -> NoiseLaw: ...

    @abstractmethod
    def scaled(self, multiplier: Fraction) -> Self: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuous(Mechanism):
    """Noise with a density, which is accounted and never drawn.

    Attributes:
        sensitivity: per cell, counts.
    """

    ADDITIVE = True
    BEFORE = (TAGS, READS, NAME, *CELLS, MOVES)
    AFTER = (SENSITIVITY,)

    sensitivity: Fraction = Fraction(1)

    @classmethod
    def read(cls, document: Document, at: str, **shared: Any) -> Self:
        moves = read_moves(document, at, MOVED_BY.read)
        sensitivity = Fraction(largest_move(moves) or SENSITIVITY.read(document, at))
        own = read_fields(cls.FIELDS, document, at, Scale(sensitivity))
        return cls(**own, sensitivity=sensitivity, moves=moves, **read_cells(document), **shared)

    def parameters(self) -> dict[str, Any]:
        distances = write_moves(self.moves, exact_text) or SENSITIVITY.write(self.sensitivity)
        return write_fields(self.FIELDS, self, Scale(self.sensitivity)) | distances

    def grouped(self, size: int) -> tuple[Mechanism, int]:
        return replace(self, sensitivity=self.sensitivity * size), 1

    @abstractmethod
    def noise_law(self) -> NoiseLaw: ...

    @abstractmethod
    def scaled(self, multiplier: Fraction) -> Self: ...


def read_lattice(document: Document, at: str) -> tuple[int, Fraction]:
    """Return the sensitivity of integer noise, in units of granularity, and the granularity.

    Raises:
        InvalidInput: the sensitivity is not a multiple of the granularity, or is more than 2^53 times it.
    """
    if document.get("granularity") is None:
        sensitivity = document.get("sensitivity", 1)
        if not isinstance(sensitivity, int):
            detail = "expected an integer of at most 2^53; other numbers need a granularity"
            raise InvalidInput.at(f"{at}/sensitivity", detail)
        if sensitivity < 1:
            raise InvalidInput.at(f"{at}/sensitivity", ABOVE_0.expected)
        return sensitivity, Fraction(1)
    unit = GRANULARITY.read(document, at)
    if document.get("moves"):
        return 1, unit
    return _lattice_steps(document, at, WHOLE_SENSITIVITY, unit), unit


def _lattice_steps(document: Document, at: str, distance: ExactNumber, unit: Fraction) -> int:
    """Return a distance in units of granularity."""
    steps = distance.read(document, at) / unit
    if steps.denominator != 1 or steps > LARGEST_WHOLE:
        detail = "expected a multiple of granularity, at most 2^53 times it; without one it is 1"
        raise InvalidInput.at(f"{at}/{distance.name}", detail)
    return int(steps)


def read_threshold(document: Document, at: str, unit: Fraction) -> int | None:
    """Return the threshold of integer noise, in units of granularity; None if there is none.

    Raises:
        InvalidInput: it is not a multiple of the granularity above 0, is more than 2^53 times it, or is beside moves.
    """
    stated = document.get("threshold")
    if stated is None:
        return None
    if document.get("moves"):
        raise InvalidInput.at(f"{at}/threshold", "expected none beside moves: state sensitivity and cells")
    return _lattice_steps(stated, f"{at}/threshold", AT_LEAST, unit)


def read_cells(document: Document) -> dict[str, Any]:
    """Return the numbers of cells that a document states."""
    return {name: document[name] for name in _CELLS if document.get(name) is not None}


_CELLS = tuple(cells.name for cells in CELLS)


def rounded_rho(curve: Curve, epsilon: Fraction) -> Loss:
    """Return a formula's rho rounded up, or a looser rational bound if that is smaller.

    epsilon²/2 bounds the rho of every epsilon-DP mechanism (Bun and Steinke 2016, Prop. 3.3). It is the smaller one
    only where cancellation exhausts the precision, at epsilon below about 1e-600.

    Args:
        curve: the formula of rho, without an order.
        epsilon: the mechanism's pure epsilon, nats.
    """
    rounded, otherwise = ceiling(lambda: curve.at(BALLS)), epsilon * epsilon / 2
    return Loss(otherwise if rounded is None else min(rounded, otherwise), rational=False)
