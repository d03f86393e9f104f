"""Formulas with their parameters, evaluated one by one in balls or by the thousand in arrays."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.privacy.numerics.arithmetic import DOUBLES, Arithmetic, Doubles, Number, Rational, double
from service.privacy.numerics.intervals import INTERVALS, Interval

_CACHED = 1 << 14  # numbers of a block: a few arrays of them stay in the processor's cache


class Curve(NamedTuple):
    """A formula, called with the parameters, the orders (where it has any) and the arithmetic.

    Attributes:
        vectorized: whether it takes whole columns of parameters, in doubles and in intervals.
    """

    formula: Callable[..., Number]
    parameters: tuple[Rational, ...]
    vectorized: bool = True

    def at(self, arithmetic: Arithmetic, *orders: Number) -> Number:
        """Return the curve's value for one mechanism.

        Args:
            orders: alpha - 1, in this arithmetic, where the formula has an order.
        """
        return self.prepared(arithmetic)(*orders)

    def prepared(self, arithmetic: Arithmetic) -> Callable[..., Number]:
        """Return the formula with its parameters, as a function of the orders.

        Returns:
            A function of alpha - 1, or of nothing where the formula has no order.
        """
        parameters = tuple(map(arithmetic.number, self.parameters))
        return lambda *orders: self.formula(*parameters, *orders, arithmetic)


@dataclass(frozen=True, slots=True)
class _Block:
    """Curves of one formula: their rows in the table, and for each parameter a column of its nearest doubles."""

    places: NDArray[np.intp]
    formula: Callable[..., Number]
    columns: tuple[Doubles, ...]


class CurveTable:
    """Many curves side by side: a row each, a column for each order.

    Args:
        curves: all of them ``vectorized``.
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        groups: dict[Any, list[int]] = defaultdict(list)
        for place, curve in enumerate(curves):
            groups[curve.formula].append(place)
        self._rows = len(curves)
        self._blocks: list[_Block] = []
        for formula, places in groups.items():
            nearest = [[double(value) for value in curves[place].parameters] for place in places]
            columns = np.array(nearest).T[:, :, None]
            self._blocks.append(_Block(np.array(places), formula, tuple(columns)))

    def rough(self, *orders: Doubles) -> Doubles:
        """Return the values in doubles, to search with.

        Args:
            orders: an array of alpha - 1; none where the formulas have no order.

        Returns:
            A row for each curve, a column for each order; one column without orders.
        """
        values = np.empty((self._rows, _width(orders)))
        with np.errstate(all="ignore"):
            for block, part in self._parts(values.shape[1]):
                columns = (column[part] for column in block.columns)
                values[block.places[part]] = block.formula(*columns, *orders, DOUBLES)
        return values

    def bounds(self, *orders: Interval) -> Interval:
        """Return bounds of the values; they are NaN, or not narrow, where doubles are too coarse.

        Args:
            orders: as in ``rough``.

        Returns:
            Ends of the shape that ``rough`` returns.
        """
        low, high = np.empty((2, self._rows, _width([order.high for order in orders])))
        with np.errstate(all="ignore"):
            for block, part in self._parts(low.shape[1]):
                columns = (INTERVALS.nearest(column[part]) for column in block.columns)
                interval = block.formula(*columns, *orders, INTERVALS)
                low[block.places[part]], high[block.places[part]] = interval.low, interval.high
        return Interval(low, high)

    def _parts(self, width: int) -> Iterator[tuple[_Block, slice]]:
        rows = max(_CACHED // max(width, 1), 1)
        for block in self._blocks:
            for start in range(0, len(block.places), rows):
                yield block, slice(start, start + rows)


def _width(orders: Sequence[Doubles]) -> int:
    return len(orders[0]) if orders else 1
