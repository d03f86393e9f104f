"""The largest delta that an adversary reaches who picks each step after the losses so far: by trying everything.

Losses are whole multiples of a unit and nothing is rounded to a grid: at each epsilon, every sum of losses is followed
to its end. What comes of it is the truth up to doubles' digits.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Loss = tuple[tuple[int, float], ...]
"""Losses in units, each with its probability."""
Left = Any
"""What is left to do: any hashable value."""
Moves = Callable[[Left], Iterable[tuple[Loss, Left]]]


def noise(log_mass: Callable[[int], float], shift: int, unit: float, reach: int = 60) -> Loss:
    """The losses of integer noise against the same moved by ``shift``."""
    places = range(-reach, reach + 1)
    total = math.fsum(math.exp(log_mass(x)) for x in places)
    found = []
    for x in places:
        loss = (log_mass(x) - log_mass(x - shift)) / unit
        assert abs(loss - round(loss)) < 1e-9
        found.append((round(loss), math.exp(log_mass(x)) / total))
    return tuple(found)


def gaussian(variance: float, unit: float, shift: int = 1) -> Loss:
    """Discrete Gaussian noise."""
    return noise(lambda x: -x * x / (2 * variance), shift, unit, math.ceil(9 * math.sqrt(variance)))


def two_valued(loss: int, unit: float) -> Loss:
    """Two-valued randomised response."""
    p = 1 / (1 + math.exp(-loss * unit))
    return (loss, p), (-loss, 1 - p)


def in_sequence(*losses: Loss) -> Loss:
    """The sum of independent losses."""
    whole = {0: 1.0}
    for one in losses:
        step: dict[int, float] = {}
        for x, p in whole.items():
            for y, q in one:
                step[x + y] = step.get(x + y, 0.0) + p * q
        whole = step
    return tuple(whole.items())


def delta(moves: Moves, start: Left, epsilon: float, unit: float) -> float:
    """The largest delta at an epsilon of all ways to go on from ``start``."""
    known: dict[tuple[Left, int], float] = {}

    def reached(left: Left, so_far: int) -> float:
        if (left, so_far) not in known:
            ends = [
                math.fsum(p * reached(after, so_far + x) for x, p in loss if p > 1e-18) for loss, after in moves(left)
            ]
            known[left, so_far] = max(ends) if ends else max(0.0, -math.expm1(epsilon - so_far * unit))
        return known[left, so_far]

    return reached(start, 0)


def turns(branches: Sequence[Loss]) -> Moves:
    """One of the branches in each of so many turns."""
    return lambda left: [(loss, left - 1) for loss in branches] if left else []


def least_epsilon(profile: Callable[[float], float], target: float, low: float, high: float, rounds: int = 30) -> float:
    """The epsilon between two others at which a profile reaches ``target``."""
    assert profile(low) > target >= profile(high)
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if profile(middle) > target else (low, middle)
    return high
