"""The checker of histories against an exhaustive search, and on histories that are not linearizable."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.faults.linearizable import NEVER, Read, Refusal, Write, fault, rounded_down

Operation = Write | Read | Refusal

OPENED = Write(0, 1, 1, 1, Fraction(0))


def _write(asked: float, answered: float, first: int, cost: int = 1, entries: int = 1) -> Write:
    return Write(asked, answered, first, first + entries - 1, Fraction(cost))


def _read(asked: float, answered: float, seq: int, total: int) -> Read:
    return Read(asked, answered, seq, Fraction(total))


def _refusal(asked: float, answered: float, cost: int, remaining: float | None = None) -> Refusal:
    return Refusal(asked, answered, Fraction(cost), remaining)


def _fault(history: Sequence[Operation], cap: int = 3) -> str | None:
    writes = [one for one in history if isinstance(one, Write)]
    return fault(Fraction(cap), writes, [one for one in history if not isinstance(one, Write)])


def _has_linearization(history: Sequence[Operation], cap: int) -> bool:
    """By trying every order: the model is run and must give the recorded answers."""
    return any(_runs(order, cap) for order in itertools.permutations(history))


def _runs(order: Sequence[Operation], cap: int) -> bool:
    if any(later.answered < sooner.asked for sooner, later in itertools.combinations(order, 2)):
        return False
    entries, total = 0, Fraction(0)
    for one in order:
        if isinstance(one, Write):
            total += one.cost
            if one.first != entries + 1 or (one.cost > 0 and total > cap):
                return False
            entries = one.last
        elif isinstance(one, Read):
            if (one.seq, one.total) != (entries, total):
                return False
        elif total + one.cost <= cap or one.remaining not in {None, rounded_down(cap - total)}:
            return False
    return True


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([OPENED], id="nothing but its opening"),
        pytest.param([OPENED, _write(2, 5, 3), _write(2, 5, 2)], id="at the same time, in either order"),
        pytest.param([OPENED, _write(2, 3, 2, 3), _refusal(4, 5, 1, 0)], id="full, then refused"),
        pytest.param([OPENED, _write(2, 6, 2, 3), _refusal(3, 4, 1)], id="refused by what was not answered yet"),
        pytest.param([OPENED, _write(2, NEVER, 2, 3), _refusal(4, 5, 1)], id="refused by what was never answered"),
        pytest.param([OPENED, _write(2, 6, 2), _read(3, 4, 1, 0), _read(4.5, 5, 2, 1)], id="read before and after"),
        pytest.param([OPENED, _write(2, 3, 2, 3, 3), _read(4, 5, 4, 3)], id="a batch"),
        pytest.param([OPENED, _write(2, 3, 2, 3), _write(4, 5, 3, -3), _write(6, 7, 4, 2)], id="given back"),
    ],
)
def test_what_a_ledger_may_answer(history: list[Operation]) -> None:
    assert _fault(history) is None
    assert _has_linearization(history, 3)


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([OPENED, _write(2, 3, 3), _write(4, 5, 2)], "before one with a smaller number"),
        ([OPENED, _write(2, 3, 2), _write(4, 5, 4)], "of no operation"),
        ([OPENED, _write(2, 3, 2), _write(2, 3, 2)], "of no operation, or of two"),
        ([_write(2, 3, 2)], "entry 1 is of no operation"),
        ([OPENED, _write(2, 3, 2, 2), _write(2, 3, 3, 2)], "above the cap"),
        ([OPENED, _write(2, 3, 2), _read(4, 5, 1, 0)], "explains Read"),  # stale
        ([OPENED, _write(4, 5, 2), _read(2, 3, 2, 1)], "explains Read"),  # from the future
        ([OPENED, _write(2, 3, 2), _read(4, 5, 2, 2)], "explains Read"),  # a total that never was
        ([OPENED, _write(2, 9, 2), _read(3, 4, 2, 1), _read(5, 6, 1, 0)], "explains Read"),  # back in time
        ([OPENED, _refusal(2, 3, 1)], "explains Refusal"),  # there was room
        ([OPENED, _write(4, 5, 2, 3), _refusal(2, 3, 1)], "explains Refusal"),  # the room was taken later
        ([OPENED, _write(2, 3, 2, 2), _write(4, 9, 3), _refusal(5, 6, 1, 1)], "explains Refusal"),  # a figure that fits
        ([OPENED, _write(2, 9, 2, 3), _refusal(3, 4, 1), _read(5, 6, 1, 0)], "explains Read"),  # refused, then empty
        ([OPENED, _write(2, 3, 2, 3), _write(4, 5, 3, -3), _refusal(6, 7, 1)], "explains Refusal"),  # given back before
    ],
)
def test_what_it_may_not(history: list[Operation], reason: str) -> None:
    assert reason in str(_fault(history))
    assert not _has_linearization(history, 3)


def test_the_same_as_trying_every_order() -> None:
    """On thousands of short histories: true ones, and most of them with one answer changed."""
    random_ = random.Random(7)
    found = []
    for _ in range(4000):
        history = _history(random_)
        if random_.random() < 0.9:
            history = _changed(random_, history)
        expected = _has_linearization(history, 3)
        assert (_fault(history) is None) == expected, history
        found.append(expected)
    assert 500 < sum(found) < 3500  # of both kinds many


def _history(random_: random.Random) -> list[Operation]:
    """Five operations run one after the other, each asked and answered somewhere around its moment."""
    history: list[Operation] = [OPENED]
    entries, total = 1, Fraction(0)
    for moment in range(2, 7):
        asked, answered = moment - 2.5 * random_.random(), moment + 2.5 * random_.random()
        cost = Fraction(random_.choice([-1, 0, 1, 1, 2]))
        if random_.random() < 0.35:
            history.append(Read(asked, answered, entries, total))
        elif total + cost <= 3 or cost <= 0:
            total += cost
            history.append(Write(asked, NEVER if random_.random() < 0.1 else answered, entries + 1, entries + 1, cost))
            entries += 1
        else:
            remaining = rounded_down(3 - total) if random_.random() < 0.5 else None
            history.append(Refusal(asked, answered, cost, remaining))
    return history


def _changed(random_: random.Random, history: list[Operation]) -> list[Operation]:
    number = random_.randrange(1, len(history))
    one = history[number]
    others: list[Operation]
    if isinstance(one, Write):
        others = [replace(one, answered=one.asked), replace(one, asked=min(one.answered, one.asked + 2))]
    elif isinstance(one, Read):
        others = [replace(one, seq=one.seq - 1), replace(one, total=one.total + 1), replace(one, asked=0)]
    else:
        others = [replace(one, cost=one.cost - 1), replace(one, answered=one.asked), replace(one, asked=0)]
    return [*history[:number], random_.choice(others), *history[number + 1 :]]
