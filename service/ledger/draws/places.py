"""The place of a mechanism in its plan, with the choices on which a draw of it depends."""

import math
from dataclasses import dataclass

from service.errors import InvalidInput
from service.ledger.draws.choice_branches import (
    WHOLE,
    ChoiceBound,
    ChoicePoint,
    LaterDraw,
    bounds_above,
    choice_points_above,
    path_to,
)
from service.ledger.draws.partitions import PartitionsPerMechanism
from service.ledger.draws.stored_draws import Turn
from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Plan
from service.privacy.plans.walking import mechanisms_of


@dataclass(frozen=True, slots=True)
class Place:
    """A mechanism's place in its plan, with the choices that a draw of it in some turn depends on.

    Attributes:
        repetitions: the number of times that the plan repeats it.
        choice_points, bounds: the choices above it, with their branches and their bounds.
        is_tabulation: whether the draw is of groups, so that its partition is the set of them.
    """

    mechanism: Mechanism
    turn: Turn
    repetitions: int
    choice_points: list[ChoicePoint]
    bounds: list[ChoiceBound]
    is_tabulation: bool = False

    def is_in(self, later: LaterDraw) -> bool:
        """Return whether the place may be in a tabulation whose groups take long to compare: a large one of its level.

        Args:
            later: a draw of the same release.
        """
        of_level = later.is_tabulation and any(point.tabulated == later.mechanism for point in self.choice_points)
        return of_level and not later.is_small


def find_mechanism(plan: Plan, name: str, pointer: str) -> Mechanism:
    """Return the mechanism of a plan by its name.

    Raises:
        InvalidInput: the plan has no such mechanism; the fault is at ``pointer``.
    """
    for mechanism in mechanisms_of(plan):
        if mechanism.name == name:
            return mechanism
    raise no_mechanism(pointer)


def no_mechanism(pointer: str) -> InvalidInput:
    """Return the error for a name that no mechanism has."""
    return InvalidInput.at(pointer, "expected the name, or else the path, of a mechanism of the release's plan")


def place_of(plan: Plan, mechanism: Mechanism, turn: Turn) -> Place:
    """Return the place of a mechanism in its plan."""
    return Place(
        mechanism,
        turn,
        repetitions=math.prod(node.times for node, _ in path_to(plan, mechanism)),
        choice_points=choice_points_above(plan, mechanism, turn.repetition),
        bounds=[] if turn.partition == WHOLE else bounds_above(plan, mechanism, turn.repetition),
    )


def check_turn(place: Place, pointer: str) -> None:
    """Refuse a repetition that the plan does not have."""
    if place.turn.repetition >= place.repetitions:
        detail = f"expected a repetition below {place.repetitions}, the product of the repeats above"
        raise InvalidInput.at(pointer, detail)


def choice_points_of(plan: Plan, name: str, repetition: int) -> list[ChoicePoint]:
    """Return the choices above the mechanism of this name, with the branches that a draw of it takes."""
    return choice_points_above(plan, find_mechanism(plan, name, ""), repetition)


def bounds_of(plan: Plan, taken: PartitionsPerMechanism, repetition: int) -> list[ChoiceBound]:
    """Return the bounds of the choices above all mechanisms that are drawn for partitions, each once."""
    found = [bound for mechanism, number in taken if number for bound in bounds_above(plan, mechanism, repetition)]
    return list({(bound.pointer, bound.turn, bound.most): bound for bound in found}.values())
