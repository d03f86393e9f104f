"""Tables: every word gives the value that mpmath's distribution function gives, also the words that do not decide."""

import random
from bisect import bisect_right
from typing import Any

import numpy as np
import pytest
from flint import arb

from service.noise import table
from service.noise.table import InverseTable
from service.privacy.laws.noise_law import NoiseLaw
from tests.noise.reference import Scripted, distribution, gaussian, geometric, mp, osgt

_WORD = 2**64
_LAWS = {
    "geometric 1/4": geometric("0.25"),
    "geometric 2.336": geometric("2.336"),
    "geometric 17": geometric(17),
    "gaussian 0.3": gaussian("0.3"),
    "gaussian 9.375": gaussian("9.375"),
    "gaussian 1600": gaussian(1600),
    "osgt 40": osgt(40, "40/3"),
    "osgt 1600": osgt(1600, 7),
    "tiny": gaussian("0.001"),
}


def _reach(law: NoiseLaw) -> int:
    """Beyond it lies less than 2^-300."""
    steps = 1
    while law.quadratic * steps * steps + law.linear * steps < 220:
        steps += steps // 8 + 1
    return steps


def _true(law: NoiseLaw, one_sided: bool) -> dict[int, Any]:
    reach = _reach(law)
    return distribution(law, 0 if one_sided else -reach, reach)


def _thresholds(true: dict[int, Any]) -> tuple[list[int], list[int]]:
    """Values k, and floor(2^64 F(k)), wherever that is neither of the two words of the far tails."""
    words = {k: int(mp.floor(f * _WORD)) for k, f in true.items()}
    inside = {k: word for k, word in words.items() if 0 < word < _WORD - 1}
    return list(inside), list(inside.values())


def _draw(drawn: InverseTable, word: int, *more: int) -> int:
    """The value of one word, and of words after it; what the table does not read of them stays unread."""
    out = np.empty(1, np.int64)
    script = Scripted([word >> 48], [(word << 16) % _WORD], *([value] for value in more))
    drawn.draw(out, script)
    return int(out[0])


@pytest.mark.parametrize("one_sided", [False, True], ids=["two-sided", "one-sided"])
@pytest.mark.parametrize("law", _LAWS.values(), ids=_LAWS)
def test_all_buckets_and_all_thresholds(law: NoiseLaw, one_sided: bool) -> None:
    # The value is a non-decreasing function of the word. That all buckets are right where one value has them
    # whole, and the words next to every threshold in the others, is the whole function.
    drawn = InverseTable(law, one_sided=one_sided)
    values, words = _thresholds(_true(law, one_sided))
    lowest = values[0] if values else 0
    buckets = list(range(2**16))
    split = sorted({word >> 48 for word in [0, *words, _WORD - 1]})
    generator = random.Random(3)
    bottoms = [generator.randrange(2**48) for _ in split]
    out = np.empty(2**16, np.int64)
    drawn.draw(out, Scripted(buckets, [bottom << 16 for bottom in bottoms]))
    chosen = {bucket << 48: bucket << 48 for bucket in buckets} | {
        bucket << 48: bucket << 48 | bottom for bucket, bottom in zip(split, bottoms, strict=True)
    }
    assert out.tolist() == [lowest + bisect_right(words, word) for word in chosen.values()]
    for i, word in enumerate(words):
        if word - 1 not in words and word > 1:
            assert _draw(drawn, word - 1) == lowest + bisect_right(words, word - 1)
        if word + 1 not in words and word + 1 < _WORD - 1:
            assert _draw(drawn, word + 1) == values[i] + 1 + (bisect_right(words, word) - i - 1)


@pytest.mark.parametrize("one_sided", [False, True], ids=["two-sided", "one-sided"])
@pytest.mark.parametrize("law", [_LAWS["geometric 2.336"], _LAWS["gaussian 9.375"], _LAWS["osgt 40"]], ids=str)
def test_a_word_that_is_a_threshold_is_decided_by_the_bits_after_it(law: NoiseLaw, one_sided: bool) -> None:
    drawn, true = InverseTable(law, one_sided=one_sided), _true(law, one_sided)
    values, words = _thresholds(true)
    for k, word in list(zip(values, words, strict=True))[:: max(1, len(values) // 12)]:
        if words.count(word) > 1:
            continue
        second = int(mp.floor((true[k] * _WORD - word) * _WORD))
        third = int(mp.floor(((true[k] * _WORD - word) * _WORD - second) * _WORD))
        assert _draw(drawn, word, second - 1) == k
        assert _draw(drawn, word, second + 1) == k + 1
        assert _draw(drawn, word, second, third - 1) == k
        assert _draw(drawn, word, second, third + 1) == k + 1


@pytest.mark.parametrize("law", [_LAWS["geometric 2.336"], _LAWS["gaussian 9.375"], _LAWS["osgt 1600"]], ids=str)
def test_the_far_tails_are_drawn_by_further_words(law: NoiseLaw) -> None:
    drawn, true = InverseTable(law), _true(law, False)
    values, levels = list(true), [int(mp.floor(f * _WORD**3)) for f in true.values()]
    found = set()
    for second, third in [(0, 10**6), (0, 2**60), (1, 3), (2**20, 5), (2**40, 5), (2**63, 5), (_WORD - 2, 5)]:
        low = (second << 64) + third
        expected = values[bisect_right(levels, low)]
        assert _draw(drawn, 0, second, third) == expected
        # From the other end the same, but for the last bit: 1 - F(k) is F(-k-1).
        assert _draw(drawn, _WORD - 1, _WORD - 1 - second, _WORD - 1 - third) == -expected
        found.add(expected)
    assert len(found) > 3


@pytest.mark.parametrize("k", [1, 2])
def test_a_threshold_on_the_edge_of_a_bucket_leaves_its_bucket_undecided(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # P(X >= k) of 5 2^-16 exactly, and its complement: thresholds are the first words of two buckets. Of a ball around
    # that number they are the last word of the bucket before and the first of the bucket itself.
    edge = 5 << 80
    slack = k - 1
    monkeypatch.setattr(table, "_upper_tails", lambda law, one_sided: [(edge - slack, edge + slack)])
    monkeypatch.setattr(InverseTable, "_refine", lambda self, word, guess, keystream: 1000 + guess)
    drawn = InverseTable(geometric(1))
    out = np.empty(2**16, np.int64)
    undecided = [0, 4, 5, 65530, 65531, 65535] if slack else [0, 5, 65531, 65535]
    drawn.draw(out, Scripted(range(2**16), [1 << 40] * len(undecided)))
    assert out.tolist() == [-1] * 5 + [0] * (65531 - 5) + [1] * 5
    assert [_draw(drawn, (5 << 48) + step) for step in (-1, 0, 1)] == [999 if slack else -1, 999, 0]
    assert [_draw(drawn, (65531 << 48) + step) for step in (-1, 0, 1)] == [1000 if slack else 0, 1000, 1]


def test_values_that_the_guide_is_too_narrow_for_come_from_the_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    # 0 nearly always, else a value of a hundred buckets that has more than 16 bits.
    monkeypatch.setattr(table, "_upper_tails", lambda law, one_sided: [(100 << 80, 100 << 80)] * 40_000)
    drawn = InverseTable(geometric(1))
    assert [_draw(drawn, bucket << 48) for bucket in (50, 200, 65_535 - 50)] == [-40_000, 0, 40_000]


def test_a_value_beyond_64_bits_is_an_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = InverseTable(geometric(2))
    monkeypatch.setattr(InverseTable, "_distribution", lambda self, k: arb(1 if k >= 2**63 else 0))
    with pytest.raises(OverflowError, match="64 bits"):
        _draw(drawn, 0, 0)
