"""The keys that a change makes appear in an answer with a threshold; ``docs/mathematics/thresholds.md`` has the proofs.

Such an answer has only keys that the data contain, and of these only those whose noisy count reaches the threshold. A
key that only the changed records have is published with some probability in one of two neighbouring inputs, and never
in the other.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from service.privacy.laws.loss_laws import LadderLoss
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.laws.noise_tails import upper_tail
from service.privacy.mechanisms.base import Discrete, Mechanism, RdpBounds, WorkEstimate
from service.privacy.numerics.keyed import memoised
from service.privacy.numerics.loss import ZERO, Loss
from service.privacy.numerics.numbers import ceiling

QUANTA = 10**50
"""In a probability: so totals stay exact, however many tails are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeys(Mechanism):
    """The cost of a threshold beside the noise: nothing is lost, except with probability delta for each new key.

    It stands in no document. ``without_threshold`` makes it of a mechanism that has a threshold.

    Attributes:
        noise: the noise on a count.
        sensitivity: the largest count of a key that one record alone has.
        threshold: the least noisy count that is published.
        records: the number of records that change together.
    """

    noise: NoiseLaw
    sensitivity: int
    threshold: int
    records: int = 1

    def moved(self, *, replaced: bool, one_side: bool) -> tuple[Mechanism, int]:  # noqa: ARG002
        """Return the mechanism for one key, and the number of keys that adding or removing one record can touch.

        A replaced record makes as many keys vanish, but no outcome shows both: the same pair of laws, with the larger
        of both numbers of keys, dominates either direction.
        """
        return Mechanism.moved(self, replaced=replaced, one_side=replaced)

    def grouped(self, size: int) -> tuple[Mechanism, int]:
        return replace(self, records=self.records * size), 1

    def pure_epsilon(self) -> Loss:
        return ZERO

    def delta(self) -> Loss:
        """Return g max p(j s)/j over j = 1..g, with p(c) = P(c + X >= T): a key has the counts of 1 to g records.

        p is convex up to T, as the mass of the noise falls on either side of 0. So up to there the largest is that of
        one record or of all. Beyond it, p is at least 1/2, and a group is charged 1.
        """
        most = self.records * self.sensitivity
        if self.records > 1 and most > self.threshold:
            return Loss(Fraction(1), rational=False)
        alone, together = (_chance(self.noise, self.threshold - count) for count in (self.sensitivity, most))
        return Loss(min(max(self.records * alone, together), Fraction(1)), rational=False)

    def rho(self) -> Loss:
        return ZERO

    def rdp(self) -> RdpBounds:
        return RdpBounds(slope=Fraction(0))

    def loss_law(self) -> LadderLoss:
        return LadderLoss(Fraction(0))

    def noise_law(self) -> None:
        return None

    def work(self) -> WorkEstimate:
        return WorkEstimate(at_order=0.0, proof=1.0, linear=True)


def without_threshold(mechanism: Mechanism, size: int) -> tuple[Mechanism, NewKeys | None]:
    """Return a mechanism without its threshold, and what the threshold costs beside it; None if it has no threshold.

    Args:
        size: the number of records that change together, for the threshold.
    """
    if not isinstance(mechanism, Discrete) or mechanism.threshold is None:
        return mechanism, None
    keys = NewKeys(
        cells=mechanism.cells,
        # Half of the cells is only right if every record is in as many, and here all of them could be new.
        cells_added=mechanism.cells if mechanism.cells_added is None else mechanism.cells_added,
        noise=mechanism.noise_law(),
        sensitivity=mechanism.sensitivity,
        threshold=mechanism.threshold,
        records=size,
    )
    return replace(mechanism, threshold=None), keys


@memoised(maxsize=1 << 12)
def _chance(noise: NoiseLaw, first: int) -> Fraction:
    """Return P(X >= first), rounded up to a whole number of quanta; 1 if no precision gives a bound."""
    found = ceiling(lambda: upper_tail(noise, first))
    return Fraction(1) if found is None else min(Fraction(math.ceil(found * QUANTA), QUANTA), Fraction(1))
