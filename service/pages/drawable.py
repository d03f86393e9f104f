"""The parts of a release that may be drawn from a page. The module has no side effects."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from service.ledger.access.key_records import Role
from service.ledger.draws.choice_branches import WHOLE
from service.pages.shell.layout import may
from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.numbers import exact_text
from service.privacy.planning.levels import levels_of
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import runs_of

MOST_NODES = 2_000
"""Parts of a plan that a page reads to list what may be drawn."""
_Turn = tuple[int, str]  # a repetition, and a partition
_HELD = {"proposed": "It waits for approval: nothing of it may be drawn before."}
_OVER = "The release is {state}: nothing of it may be drawn."
_TOO_LONG = "The plan is too long for a page. A pipeline draws its mechanisms with POST {path}."
_TABULATED = "Its levels are drawn as tabulations, with POST {path}, and not from a page."
_ACCOUNTED = (
    "Nothing is drawn here: the noise is continuous or declared, and only accounted, or it has a threshold, and is"
    " drawn over HTTP with the keys of the counts."
)
_ALL_DRAWN = "All that this service draws of the plan was drawn; nothing is drawn twice."
_ROLE = "Your key may not draw: that takes the role pipeline or steward. A pipeline draws with POST {path}."


class Drawable(NamedTuple):
    """A mechanism that may be drawn.

    Attributes:
        kind: its type.
        repetitions: the number of times that the plan repeats it.
        declared: the number of partitions that the plan declares; None where it declares none.
        partitions: the declared names that are not drawn in every repetition; empty where none are listed.
        whole: whether the whole input may be drawn in some repetition.
        granularity: of its counts; empty for whole numbers.
    """

    name: str
    kind: str
    repetitions: int
    declared: int | None
    partitions: Sequence[str]
    whole: bool
    granularity: str


class Offer(NamedTuple):
    """The mechanisms that a page offers to draw.

    Attributes:
        obstacle: the sentence that says why there are none, or none for this key; empty if there are some.
        tabulated: the levels that are drawn as tabulations.
    """

    mechanisms: Sequence[Drawable] = ()
    obstacle: str = ""
    tabulated: Sequence[str] = ()

    def find(self, name: str) -> Drawable | None:
        """Return the mechanism of this name, or the only one if there is no other choice."""
        named = next((one for one in self.mechanisms if one.name == name), None)
        return self.mechanisms[0] if named is None and len(self.mechanisms) == 1 and not name else named


def offer_of(release: Mapping[str, Any], draws: Sequence[Mapping[str, Any]], role: Role) -> Offer:
    """Return the mechanisms of a release that a person may draw from its page.

    Args:
        release: as ``/v1`` states it, with its plan unless that is too long.
        draws: its draws, without their counts.
        role: of the person.
    """
    path = f"/v1/accounts/{release['account']}/releases/{release['id']}"
    if release["state"] not in ("reserved", "committed"):
        return Offer(obstacle=_HELD.get(release["state"], _OVER).format(state=release["state"]))
    plan = release.get("plan")
    if plan is None or _number(plan) > MOST_NODES:
        return Offer(obstacle=_TOO_LONG.format(path=f"{path}/draws"))
    value = read_plan(plan)
    levels = list(levels_of(value))
    in_levels = {one.name for level in levels for one in (level.total, level.step_1, level.step_2)}
    tabulated = [level.name for level in levels]
    drawn = [
        (one, times)
        for one, times in runs_of(value)
        if one.DRAWN and one.threshold is None and one.name not in in_levels
    ]
    if not drawn:
        return Offer(obstacle=_TABULATED.format(path=f"{path}/tabulations") if levels else _ACCOUNTED)
    turns = defaultdict[str, set[_Turn]](set)
    for one in draws:
        turns[one["mechanism"]["name"]].add((one["repetition"], one["partition"] or WHOLE))
    left = [found for one, times in drawn if (found := _left(one, times, turns[one.name or ""])) is not None]
    if not left:
        return Offer(obstacle=_ALL_DRAWN, tabulated=tabulated)
    if not may(role, "pipeline"):
        return Offer(obstacle=_ROLE.format(path=f"{path}/draws"), tabulated=tabulated)
    return Offer(left, tabulated=tabulated)


def _number(plan: Mapping[str, Any]) -> int:
    """Return the number of a plan's nodes."""
    number, waiting = 0, [plan]
    while waiting:
        node = waiting.pop()
        number += 1
        waiting += node.get("parts") or ([node["part"]] if "part" in node else [])
    return number


def _left(mechanism: Mechanism, times: int, turns: Collection[_Turn]) -> Drawable | None:
    """Return what may still be drawn of a mechanism; None if nothing may.

    Args:
        times: the number of its repetitions.
        turns: those that were drawn.
    """
    stated = mechanism.partitions
    begun, often = (Counter(turn[place] for turn in turns) for place in (0, 1))
    full = [
        repetition
        for repetition, number in begun.items()
        if (repetition, WHOLE) in turns or (stated is not None and number >= stated.most)
    ]
    if len(full) == times:
        return None
    return Drawable(
        name=mechanism.name or "",
        kind=mechanism.LABEL,
        repetitions=times,
        declared=None if stated is None else stated.most,
        partitions=[] if stated is None else [one for one in sorted(stated.names or ()) if often[one] < times],
        whole=len(begun) < times,
        granularity="" if mechanism.unit == 1 else exact_text(mechanism.unit),
    )
