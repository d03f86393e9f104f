"""The levels of a SafeTab plan, and their places in its tree (Haney et al. 2021, Algorithms 1 and 2)."""

from collections.abc import Iterator
from dataclasses import dataclass

from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Choice, Parallel, Plan, Sequence
from service.privacy.plans.walking import children_with_pointers


@dataclass(frozen=True, slots=True)
class Level:
    """A population group level: a choice, for each group, between its total and the two steps.

    Attributes:
        name: the common part of its mechanisms' names, before their last ``/``.
        pointer: the choice's JSON pointer in the plan.
        total, step_1, step_2: its mechanisms.
        branches: the numbers of the choice's branches with the total and with the steps.
        count: the number of times that the choice is repeated. The plan's price holds if a record is in at most this
            many groups of the level, each with a choice of its own, and in one cell of a table. More cells are not
            allowed, because the tight figure of a choice is that of one choice for all of them.
    """

    name: str
    pointer: str
    total: Mechanism
    step_1: Mechanism
    step_2: Mechanism
    branches: tuple[int, int]
    count: int


def find_level(plan: Plan, name: str) -> Level | None:
    """Return the level of this name; None if the plan has none, or more than one."""
    levels = [level for level in levels_of(plan) if level.name == name]
    return levels[0] if len(levels) == 1 else None


def levels_of(plan: Plan, pointer: str = "", count: int = 1) -> Iterator[Level]:
    """Yield the levels from left to right; none under another ``choice``, which a tabulation would have to follow.

    Args:
        pointer: the JSON pointer of ``plan`` itself.
        count: the number of times that ``plan`` itself is repeated.
    """
    if isinstance(plan, Choice):
        level = _level(plan, pointer, count)
        if level is not None:
            yield level
        return
    if isinstance(plan, Mechanism):
        return
    for step, part in children_with_pointers(plan):
        yield from levels_of(part, pointer + step, count * plan.times)


def _level(choice: Choice, pointer: str, count: int) -> Level | None:
    for branches in ((0, 1), (1, 0)):
        if len(choice.parts) != len(branches):
            return None
        total, steps = (choice.parts[branch] for branch in branches)
        if not isinstance(total, Mechanism) or not isinstance(steps, Sequence) or len(steps.parts) != len(branches):
            continue
        step_1, step_2 = map(_sole_mechanism, steps.parts)
        if step_1 is None or step_2 is None:
            continue
        names = {(mechanism.name or "").rpartition("/")[0] for mechanism in (total, step_1, step_2)}
        if len(names) == 1:
            return Level(names.pop(), pointer, total, step_1, step_2, branches, count)
    return None


def _sole_mechanism(part: Plan) -> Mechanism | None:
    """Return a mechanism, also from a ``parallel`` with no other part, which says that its cells are disjoint."""
    if isinstance(part, Parallel) and len(part.parts) == 1:
        (part,) = part.parts
    return part if isinstance(part, Mechanism) else None


def laws_of(level: Level) -> tuple[NoiseLaw, NoiseLaw, NoiseLaw] | None:
    """Return the noise of a level's total, step 1 and step 2, in this order; None unless all are drawn as integers."""
    mechanisms = (level.total, level.step_1, level.step_2)
    whole = all(one.DRAWN and one.unit == 1 and one.threshold is None for one in mechanisms)
    total, step_1, step_2 = (one.noise_law() if whole else None for one in mechanisms)
    return None if total is None or step_1 is None or step_2 is None else (total, step_1, step_2)
