"""The cells that one record moves, where it moves them by different distances."""

from collections.abc import Callable
from fractions import Fraction
from itertools import groupby
from operator import itemgetter
from typing import Any

from service.errors import InvalidInput
from service.privacy.fields import CELLS
from service.privacy.grammar import LARGEST_WHOLE, Document

Moves = tuple[tuple[tuple[Fraction | int, int], ...], ...]
"""Alternatives of what adding or removing a record does: distances, the largest first, with numbers of cells."""


def read_moves(document: Document, at: str, distance: Callable[[Document, str], Fraction | int]) -> Moves:
    """Return the alternatives that a mechanism's document states, each once; none if it states a sensitivity.

    Args:
        at: JSON pointer of the document, for faults.
        distance: reads the distance of a document of moved cells with a pointer.

    Raises:
        InvalidInput: a distance is not valid, or sensitivity or cells are stated too.
    """
    alternatives = document.get("moves") or ()
    for name in ("sensitivity", *(cells.name for cells in CELLS)) if alternatives else ():
        if document.get(name) is not None:
            raise InvalidInput.at(f"{at}/{name}", "expected none beside moves, which state each distance")
    listed: list[tuple[tuple[Fraction | int, int], ...]] = []
    for number, alternative in enumerate(alternatives):
        moved = [
            (distance(cells, f"{at}/moves/{number}/{place}"), cells.get("cells", 1))
            for place, cells in enumerate(alternative)
        ]
        by_distance = groupby(sorted(moved, reverse=True), itemgetter(0))  # not hashed: a caller chooses the numbers
        listed.append(tuple((by, sum(cells for _, cells in alike)) for by, alike in by_distance))
        if any(cells > LARGEST_WHOLE for _, cells in listed[-1]):
            raise InvalidInput.at(f"{at}/moves/{number}", "expected at most 2^53 cells of each distance")
    return tuple(alternative for alternative, _ in groupby(sorted(listed, reverse=True)))


def largest_move(moves: Moves) -> Fraction | int | None:
    """Return the largest distance; None if there are no moves."""
    return max((by for alternative in moves for by, _ in alternative), default=None)


def write_moves(moves: Moves, stated: Callable[[Any], int | str]) -> dict[str, Any]:
    """Return the field of a document that states moves; none if there are none.

    Args:
        stated: returns a distance as documents state it.
    """
    listed = [[{"by": stated(by), "cells": cells} for by, cells in alternative] for alternative in moves]
    return {"moves": listed} if listed else {}
