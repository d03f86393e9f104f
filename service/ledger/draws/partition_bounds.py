"""Checks of the declared numbers of partitions on a journal's draws, in the order of their entries.

The ledger decides by counters, whose rows an attacker could remove for the moment of a draw. Entries stay, so they
reveal a draw beyond the plan's declared number, whatever the counters say.
"""

from collections import Counter, defaultdict

from service.ledger.draws.choice_branches import bounds_above
from service.ledger.draws.partitions import PartitionsPerMechanism
from service.ledger.journal.chains import BrokenChain
from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Plan

_REMEMBERED = 4096  # mechanisms and repetitions, with the choices above them

_Place = tuple[str, str, int]
"""A release, a mechanism and a repetition."""
_Shared = list[tuple[tuple[str, str, int, int], int]]
"""The choices above a mechanism, each with its turn and bound, and the branch that leads to the mechanism."""


class DeclaredNumbers:
    """The numbers of partitions drawn so far, for plans that declare a number."""

    def __init__(self) -> None:
        self._drawn: Counter[_Place] = Counter()
        self._runs = defaultdict[tuple[str, str, int, int], dict[int, int]](dict)  # for each branch of a choice
        self._above: dict[_Place, _Shared] = {}

    def take(self, release: str, plan: Plan, repetition: int, taken: PartitionsPerMechanism) -> None:
        """Count a draw of a release, of so many partitions of each mechanism.

        Args:
            taken: the number of partitions of each mechanism.

        Raises:
            BrokenChain: they are more than the plan declares.
        """
        for mechanism, number in taken:
            declared = mechanism.partitions
            if not number or declared is None or declared.names is not None:  # no listed name is drawn twice
                continue
            place = release, mechanism.name or "", repetition
            self._drawn[place] += number
            if self._drawn[place] > declared.most:
                raise BrokenChain("more partitions are drawn than the plan declares")
            for shared, branch in self._choices(place, plan, mechanism):
                runs = self._runs[shared]  # a branch was run as often as its most often drawn mechanism
                runs[branch] = max(runs.get(branch, 0), self._drawn[place])
                if sum(runs.values()) > declared.most:
                    raise BrokenChain(
                        "more partitions are drawn than the plan declares for all branches of a choice together"
                    )

    def _choices(self, place: _Place, plan: Plan, mechanism: Mechanism) -> _Shared:
        found = self._above.get(place)
        if found is None:
            if len(self._above) >= _REMEMBERED:
                self._above.clear()
            release, name, repetition = place
            found = self._above[place] = [
                ((release, bound.pointer, bound.turn, bound.most), below[0])
                for bound in bounds_above(plan, mechanism, repetition)
                if (below := bound.find(name)) is not None  # it is below each bound
            ]
        return found
