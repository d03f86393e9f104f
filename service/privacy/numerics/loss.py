"""A privacy loss in nats as an exact upper bound, and the two ways in which losses are combined."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from service.privacy.numerics.numbers import round_up

_MANAGEABLE_BITS = 4096  # of a denominator; the sum of thousands of unlike fractions would have millions


@dataclass(frozen=True, slots=True)
class Loss:
    """An upper bound on a loss (nats) or, where deltas are added, on a probability.

    Attributes:
        nats: the bound, never negative; None is infinite.
        rational: true if the loss is exactly this rational; false if a figure was rounded up on the way, so that the
            loss must not be shown as exact.
    """

    nats: Fraction | None
    rational: bool = True

    def __lt__(self, other: "Loss") -> bool:
        return self.nats is not None and (other.nats is None or self.nats < other.nats)


ZERO = Loss(Fraction(0))
INFINITE = Loss(None)


def total_loss(weighted: Iterable[tuple[Loss, int]]) -> Loss:
    """Return the sum of losses, each taken ``count`` times: composition is additive in every notion.

    Returns:
        An upper bound, exact while its denominator has at most 4096 bits, then rounded up.
    """
    top, bottom, rational = 0, 1, True  # not reduced: most denominators differ, and reducing takes longest
    for loss, count in weighted:
        if loss is ZERO:  # such as the deltas of thousands of mechanisms
            continue
        if loss.nats is None:
            return INFINITE
        part, of = loss.nats.numerator * count, loss.nats.denominator
        top, bottom = (top + part, bottom) if of == bottom else (top * of + part * bottom, bottom * of)
        rational = rational and loss.rational
        if bottom.bit_length() > _MANAGEABLE_BITS:
            nats = Fraction(top, bottom)
            if nats.denominator.bit_length() > _MANAGEABLE_BITS:
                nats, rational = round_up(nats), False
            top, bottom = nats.numerator, nats.denominator
    return Loss(Fraction(top, bottom), rational)


def largest_losses(weighted: Iterable[tuple[Loss, int]], how_many: int) -> Loss:
    """Return the sum of the ``how_many`` largest of losses, each present ``count`` times.

    Args:
        how_many: if there are fewer losses, all are added.

    Returns:
        An upper bound, as ``total_loss`` rounds it.
    """
    chosen: list[tuple[Loss, int]] = []
    remaining = how_many
    for loss, count in sorted(weighted, key=lambda pair: pair[0], reverse=True):
        chosen.append((loss, min(count, remaining)))
        remaining -= chosen[-1][1]
        if remaining == 0:
            break
    return total_loss(chosen)


def least_loss(losses: Iterable[Loss]) -> Loss:
    """Return the smallest of several bounds on one loss; infinite if there is none."""
    return min(losses, default=INFINITE)
