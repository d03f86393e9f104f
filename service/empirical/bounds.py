"""Certified lower bounds on privacy loss: a claim below one is refuted, at the stated confidence.

If noise X makes a count epsilon-DP against a shift by s, then P(X in E) <= exp(epsilon) P(X in E + s) for every event
E. One event is chosen on a part of the sample and tested on the rest, so that the choice costs no confidence (Ding et
al. 2018). Its probabilities are bounded by Clopper and Pearson's exact interval (1934). If E + s lies inside E, or is
disjoint from it, only the values in E or E + s matter. Their division between the two is binomial, so one interval with
the full confidence suffices. All bounds are rounded down, which is the safe side.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special  # type: ignore[import-untyped]  # it publishes no types

from service.empirical.residuals import Counts, Floats

_CHOOSING = 3  # one third of the sample chooses the event
_CANDIDATES = 512  # places where an event may begin
_SLACK = 1e-6  # share of the shift: ties that rounding hides count against the bound
_ROUNDING = 1e-7  # relative: scipy's inverses are off by up to 1e-9 where one of 10^8 succeeds

EventKind = Literal["at_least", "at_most", "between"]
SamplePair = tuple[Floats, Floats]


@dataclass(frozen=True, slots=True)
class Event:
    """An event and the event that it is compared with.

    Attributes:
        kind: the values at least at ``start``; at most at ``start``; between ``start`` and ``stop``.
        compared: the start of the other event, which is of the same kind: a shift away, or at the same place in the
            other sample.
        on_neighbour: whether the event is likelier in the second of two samples.
        likely: the number of tested values in the event.
        unlikely: the number of tested values in the other event.
    """

    kind: EventKind
    start: float
    stop: float | None
    compared: float
    on_neighbour: bool
    likely: int
    unlikely: int


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A lower bound and the event that proves it.

    Attributes:
        value: the bound on epsilon (nats) or on delta; at least 0.
        event: None if no event was promising.
        tested: the number of values that tested the event, in both samples if there are two.
    """

    value: float
    event: Event | None
    tested: int


@dataclass(frozen=True)
class _Events:
    """Candidate events as half-open intervals [low, high) of the values or, if ``mirrored``, of their negatives."""

    kind: Literal["tail", "between"]
    mirrored: bool
    swapped: bool
    shift: float  # the distance of the other interval; 0 if it is the same interval in another sample
    likely: SamplePair
    unlikely: SamplePair

    def counts_of(self, samples: SamplePair) -> tuple[Counts, Counts]:
        """Count the values of two sorted samples in each event, and in the event that it is compared with."""
        first, second = samples[::-1] if self.swapped else samples
        if self.mirrored:
            first, second = -first[::-1], -second[::-1]
        return _count_inside(first, self.likely), _count_inside(second, self.unlikely)

    def sizes(self, samples: SamplePair) -> tuple[int, int]:
        """Return the sizes of the two samples, in the order of ``counts_of``."""
        first, second = samples[::-1] if self.swapped else samples
        return first.size, second.size

    def event_at(self, index: int, likely: int, unlikely: int) -> Event:
        """Return one of the events, in terms of the original values."""
        sign = -1.0 if self.mirrored else 1.0
        start = float(self.likely[0][index])
        compared = sign * (start + self.shift) + 0.0  # a zero without a sign
        if self.kind == "tail":
            kind: EventKind = "at_most" if self.mirrored else "at_least"
            return Event(kind, sign * start + 0.0, None, compared, self.swapped, likely, unlikely)
        stop = start + self.shift if self.shift else float(self.likely[1][index])
        return Event("between", sign * start + 0.0, sign * stop + 0.0, compared, self.swapped, likely, unlikely)


BoundMethod = Callable[[_Events, Counts, Counts, tuple[int, int], float], Floats]
"""A function that returns a lower bound for each candidate event, from the numbers of likely and unlikely cases, the
sizes of the samples, and the risk, which is one minus the confidence."""


def proportion_above(successes: Counts, trials: Counts, risk: float) -> Floats:
    """Return an upper bound on the probability of success, rounded up.

    The probability exceeds the bound in at most the share ``risk`` of all samples.

    Args:
        successes, trials: arrays, used element by element.
    """
    bound: Floats = special.betainccinv(successes + 1.0, np.maximum(trials - successes, 1.0), risk)
    return np.where(successes >= trials, 1.0, np.minimum(bound * (1 + _ROUNDING), 1.0))


def proportion_below(successes: Counts, trials: Counts, risk: float) -> Floats:
    """Return a lower bound on the probability of success, rounded down.

    The probability is below the bound in at most the share ``risk`` of all samples.

    Args:
        successes, trials: arrays, used element by element.
    """
    bound: Floats = special.betaincinv(np.maximum(successes, 1.0), trials - successes + 1.0, risk)
    return np.where(successes <= 0, 0.0, bound * (1 - _ROUNDING))


def epsilon_at_least(delta: float = 0.0) -> BoundMethod:
    """Return a function that bounds epsilon (nats) at ``delta`` from below."""

    def bounded(_: _Events, likely: Counts, unlikely: Counts, sizes: tuple[int, int], risk: float) -> Floats:
        # Two intervals, each of half the risk, whether or not the counts depend on each other (Bonferroni).
        low = proportion_below(likely, np.array(sizes[0]), risk / 2) - delta
        high = proportion_above(unlikely, np.array(sizes[1]), risk / 2)
        return _log_down(np.maximum(low, 0.0) / high)

    return bounded


def delta_at_least(epsilon: float) -> BoundMethod:
    """Return a function that bounds delta at ``epsilon`` from below: P(E) less exp(epsilon) P(the other event)."""

    def bounded(_: _Events, likely: Counts, unlikely: Counts, sizes: tuple[int, int], risk: float) -> Floats:
        low = proportion_below(likely, np.array(sizes[0]), risk / 2)
        with np.errstate(over="ignore"):
            high = proportion_above(unlikely, np.array(sizes[1]), risk / 2) * np.exp(epsilon) * (1 + _ROUNDING)
        excess: Floats = np.maximum(low - high, 0.0) * (1 - _ROUNDING)
        return excess

    return bounded


def pure_epsilon_of_shift(events: _Events, likely: Counts, unlikely: Counts, _: tuple[int, int], risk: float) -> Floats:
    """Return lower bounds on pure epsilon from residuals; the other event is inside the event, or disjoint from it."""
    if events.kind == "tail":  # a case in the event is in the other with probability exp(-epsilon) or more
        return _log_down(1 / proportion_above(unlikely, likely, risk))
    share = proportion_above(unlikely, likely + unlikely, risk)  # at least 1/(1 + exp(epsilon))
    return _log_down((1 - share) / share)


def bound_from_residuals(
    residuals: Floats, shift: int, question: BoundMethod, risk: float, generator: np.random.Generator
) -> LowerBound:
    """Return a lower bound from independent, identically distributed residuals, against a shift by a whole number.

    Each call divides the residuals at random into those that choose the event and those that test it. One call is one
    test: the largest of several bounds does not have the stated confidence.

    Args:
        shift: counts, at least 1.
        risk: one minus the confidence.
    """
    mixed = generator.permutation(residuals)
    choosing, testing = _split(mixed)
    families = [events for mirrored in (False, True) for events in _shifted_events(choosing, float(shift), mirrored)]
    return _certify((choosing, choosing), (testing, testing), families, question, risk, testing.size)


def bound_from_outputs(
    outputs: Floats, neighbouring: Floats, question: BoundMethod, risk: float, generator: np.random.Generator
) -> LowerBound:
    """Return a lower bound from outputs of independent runs of any mechanism, on an input and on a neighbouring one.

    Args:
        risk: one minus the confidence.
    """
    (first, tested), (second, also_tested) = (_split(generator.permutation(part)) for part in (outputs, neighbouring))
    families = [
        events
        for mirrored in (False, True)
        for swapped in (False, True)
        for events in _common_events(np.concatenate([first, second]), mirrored, swapped)
    ]
    return _certify((first, second), (tested, also_tested), families, question, risk, tested.size + also_tested.size)


def _split(mixed: Floats) -> SamplePair:
    part = mixed.size // _CHOOSING
    return np.sort(mixed[:part]), np.sort(mixed[part:])


def _starts(values: Floats, mirrored: bool) -> Floats:
    """Return the places where an event may begin: all values, or at most ``_CANDIDATES`` quantiles."""
    ordered = np.unique(-values if mirrored else values)
    if ordered.size > _CANDIDATES:
        ordered = np.unique(np.sort(-values if mirrored else values)[:: max(1, values.size // _CANDIDATES)])
    return ordered


def _shifted_events(values: Floats, shift: float, mirrored: bool) -> list[_Events]:
    """Return tails and intervals of the shift's length, each compared with itself moved outward."""
    start = _starts(values, mirrored)
    slack = _SLACK * shift + 4 * np.spacing(np.abs(start) + 2 * shift)
    moved, beyond = start + shift - slack, np.full(start.size, np.inf)
    tails = _Events("tail", mirrored, False, shift, (start, beyond), (moved, beyond))
    # The event is a little shorter than the shift: moved, it stays inside what it is compared with and clear of itself.
    between = _Events("between", mirrored, False, shift, (start, moved - slack), (moved, start + 2 * shift - 2 * slack))
    return [tails, between]


def _common_events(values: Floats, mirrored: bool, swapped: bool) -> list[_Events]:
    """Return the events that two samples have in common: tails, and intervals from each place to the next."""
    start = _starts(values, mirrored)
    ends = start, np.full(start.size, np.inf)
    tails = _Events("tail", mirrored, swapped, 0.0, ends, ends)
    if mirrored:
        return [tails]
    gaps = start, np.append(start[1:], np.inf)
    return [tails, _Events("between", mirrored, swapped, 0.0, gaps, gaps)]


def _certify(
    choosing: SamplePair, testing: SamplePair, families: list[_Events], question: BoundMethod, risk: float, tested: int
) -> LowerBound:
    """Choose the most promising event by one part of the sample, and bound the loss by the other part.

    The most promising event has the largest bound at the risk that would be left for each event if all were tested. By
    any other measure, the few cases of a far tail, which vary most, would look best.
    """
    shared = risk / max(1, sum(events.likely[0].size for events in families))
    best, chosen = 0.0, None
    for events in families:
        promise = question(events, *events.counts_of(choosing), events.sizes(choosing), shared)
        if promise.size and promise.max() > best:
            best, chosen = float(promise.max()), (events, int(promise.argmax()))
    if chosen is None:
        return LowerBound(0.0, None, tested)
    events, index = chosen
    likely, unlikely = events.counts_of(testing)
    value = float(question(events, likely, unlikely, events.sizes(testing), risk)[index])
    return LowerBound(value, events.event_at(index, int(likely[index]), int(unlikely[index])), tested)


def _count_inside(ordered: Floats, ends: SamplePair) -> Counts:
    inside: Counts = np.searchsorted(ordered, ends[1]) - np.searchsorted(ordered, ends[0])
    return inside


def _log_down(ratios: Floats) -> Floats:
    """Return logarithms, rounded down, and at least 0."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(ratios * (1 - _ROUNDING)), 0.0)
