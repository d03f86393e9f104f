"""Blocks: both stages of acceptance keep every place with exactly its probability, and together they make the law."""

import random
from typing import Any

import numpy as np
import pytest
from flint import arb

from service.noise.blocks import BlockSampler, _squeeze
from service.noise.table import CHUNK, InverseTable
from service.privacy.laws.noise_law import NoiseLaw
from tests.noise.reference import Scripted, gaussian, geometric, mp, number, osgt, weight

_WORD = 2**64
_CASES = {
    "one by one": (gaussian("2.5"), 0),
    "gaussian": (gaussian(50), 1),
    "geometric": (geometric("6.5"), 2),
    "osgt": (osgt(60, 11), 2),
    "coarse": (gaussian(4), 3),  # exponents far beyond what the polynomial is for
}
_EXACTLY = 0  # the answer to requests for bits beyond the word: U is its lower end


def _kept_with(law: NoiseLaw, x: int, block: int) -> Any:
    return weight(law, x) / weight(law, block)


def _both_sides(block: int, width: int) -> list[int]:
    return [side for y in range(block, block + width) for side in (y, -1 - y)]


def _accepts(blocks: BlockSampler, x: int, word: int, *more: int) -> bool:
    script = Scripted([(word << 8) % _WORD], *([value] for value in more))
    kept = blocks._accepted(np.array([x]), np.array([word >> 56], np.uint8), script)
    return bool(kept[0])


@pytest.mark.parametrize(("law", "shift"), _CASES.values(), ids=_CASES)
def test_the_squeeze_keeps_nothing_that_the_law_would_not(law: NoiseLaw, shift: int) -> None:
    width, limits = 1 << shift, _squeeze(law, 1 << shift)
    assert limits[-1] == 0
    for j, limit in enumerate(limits[:-1]):
        least = min(_kept_with(law, x, j * width) for x in _both_sides(j * width, width))
        assert limit <= 256 * least


@pytest.mark.parametrize(("law", "shift"), _CASES.values(), ids=_CASES)
def test_the_second_stage_keeps_exactly_the_words_below_the_probability(law: NoiseLaw, shift: int) -> None:
    width, blocks = 1 << shift, BlockSampler(law, shift)
    for block in range(0, 24, width):
        for x in _both_sides(block, width):
            p = _kept_with(law, x, block) * _WORD
            if p == _WORD:  # exactly 1: every word is below it
                assert _accepts(blocks, x, _WORD - 1, _EXACTLY)
                continue
            word = int(mp.floor(p))
            second = int(mp.floor((p - word) * _WORD))
            assert word == 0 or _accepts(blocks, x, word - 1)
            assert not _accepts(blocks, x, word + 1)
            assert _accepts(blocks, x, word, second - 1)
            assert not _accepts(blocks, x, word, second + 1)
            # Where the doubles decide, on both sides of the margin and far from it.
            for step in (2**18, 2**20, 2**21, 2**40, 2**60):
                assert word < step or _accepts(blocks, x, word - step)
                assert word + step >= _WORD or not _accepts(blocks, x, word + step)


@pytest.mark.parametrize(("law", "shift"), _CASES.values(), ids=_CASES)
def test_all_first_bytes_together_are_the_law(law: NoiseLaw, shift: int) -> None:
    # Words kept of 2^64, by the two stages, for each x of the first blocks: a byte below the squeeze keeps all of its
    # words, any other those below p. With the block's weight they are proportional to the masses, to 2^-64.
    width, blocks, limits = 1 << shift, BlockSampler(law, shift), _squeeze(law, 1 << shift)
    for block in (0, width, 3 * width):
        for x in _both_sides(block, width):
            limit, kept = int(limits[min(block // width, len(limits) - 1)]), 0
            for byte in range(256):
                first, last = byte << 56, (byte + 1 << 56) - 1
                if byte < limit or _accepts(blocks, x, last, _EXACTLY):
                    kept += 2**56
                elif _accepts(blocks, x, first, _EXACTLY):
                    low, high = first, last  # kept, not kept
                    while high - low > 1:
                        middle = (low + high) // 2
                        low, high = (middle, high) if _accepts(blocks, x, middle, _EXACTLY) else (low, middle)
                    kept += high - first
            mass = weight(law, block) * kept / _WORD
            assert abs(mass - weight(law, x)) <= weight(law, block) / _WORD


def _fixed(blocks: BlockSampler, *draws: list[int]) -> None:
    """Let the block law give these blocks, in this order."""
    left = list(draws)

    class Chosen:
        def draw(self, out: Any, keystream: Any) -> None:
            out[:] = left.pop(0)

    blocks._table = Chosen()  # type: ignore[assignment]


def test_places_sides_and_a_place_that_is_drawn_anew() -> None:
    blocks = BlockSampler(gaussian(10**4), 2)
    _fixed(blocks, [0, 3, 3, 7, 20], [9])
    script = Scripted(
        [0, 0, 0, 0, 255],  # first bytes: all but the last are kept unseen
        [0b01111101, 0b00000010, -128 + 2, -128, 3],  # the top bit is the side, the low two are the place
        [_WORD - 1],  # the last one's other bits: not kept
        [0],
        [-1],
    )
    out = np.empty(5, np.int64)
    blocks.draw(out, script)
    assert out.tolist() == [1, 14, -15, -29, -1 - (9 * 4 + 3)]
    assert script.script == []


def test_only_bytes_below_the_squeeze_are_kept_unseen() -> None:
    blocks = BlockSampler(gaussian(10**4), 2)
    limit = int(blocks._squeeze[20])
    assert 0 < limit < 255
    for byte, seen in [(limit - 1, 0), (limit, 1), (255, 1)]:
        _fixed(blocks, [20], [0])
        script = Scripted([byte], [3], *[[0]] * seen, [0], [0])
        blocks.draw(np.empty(1, np.int64), script)
        assert len(script.script) == (0 if byte == 255 else 2)  # only the last is not kept, and drawn anew


def test_a_rejected_value_is_drawn_anew_in_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    drops = [[3, 7], [], [0, 7], [1, 2], []]  # of three chunks, of the four values drawn anew, of the last two
    calls: list[int] = []

    def chunk(self: BlockSampler, out: Any, keystream: Any) -> Any:
        out[:] = 10 * len(calls) + np.arange(out.size)
        calls.append(out.size)
        return np.array(drops[len(calls) - 1], np.int64)

    monkeypatch.setattr(BlockSampler, "_draw_chunk", chunk)
    out = np.empty(2 * CHUNK + 8, np.int64)
    BlockSampler(gaussian(10**4), 2).draw(out, Scripted())
    assert calls == [CHUNK, CHUNK, 8, 4, 2]
    expected = np.concatenate([np.arange(CHUNK), 10 + np.arange(CHUNK), 20 + np.arange(8)])
    expected[[3, 7, 2 * CHUNK, 2 * CHUNK + 7]] = [30, 40, 41, 33]
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("shift", [6, 7, 14, 15, 30, 31, 44])
def test_places_of_all_sizes_reach_both_ends_of_their_block(shift: int) -> None:
    width = 1 << shift
    bits = next(bits for bits in (8, 16, 32, 64) if bits > shift)
    for place, side in [(0, 0), (width - 1, 0), (0, 1), (width - 1, 1)]:
        blocks = BlockSampler(gaussian((40 * width) ** 2), shift)
        _fixed(blocks, [5])
        out = np.empty(1, np.int64)
        blocks.draw(out, Scripted([0], [place - (side << (bits - 1))]))
        y = 5 * width + place
        assert int(out[0]) == (-1 - y if side else y)


@pytest.mark.parametrize("law", [gaussian(2**90), geometric(2**46), osgt(2**95, 2**44)], ids=str)
def test_acceptance_in_doubles_agrees_with_mpmath_for_wide_laws(law: NoiseLaw) -> None:
    shift, generator = 40, random.Random(5)
    blocks = BlockSampler(law, shift)
    for _ in range(300):
        block = generator.randrange(200) << shift
        x = block + generator.randrange(1 << shift)
        x = generator.choice([x, -1 - x])
        t = number(law.quadratic) * (x * x - block * block) + number(law.linear) * (abs(x) - block)
        word = int(mp.floor(mp.exp(-t) * _WORD))
        for step in (1, 2**10, 2**11 + 1, 2**12 + 1, 2**13, 2**19, 2**20 + 1, 2**21, 2**30):
            assert _accepts(blocks, x, word - step)
            assert word + step >= _WORD or not _accepts(blocks, x, word + step)


@pytest.mark.parametrize("block", [2**28 - 1, 2**28])
def test_a_block_beyond_64_bits_is_an_overflow(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, out = BlockSampler(gaussian(2**80), 35), np.empty(1, np.int64)
    monkeypatch.setattr(InverseTable, "_distribution", lambda self, k: arb(1 if k >= block else 0))
    # The last of all words is left to the distribution; then a first byte of 0, the last place, and U = 2^-128.
    script = Scripted([2**16 - 1], [_WORD - 1], [0], [2**35 - 1], [0], [1])
    if block == 2**28:
        with pytest.raises(OverflowError, match="64 bits"):
            blocks.draw(out, script)
        return
    monkeypatch.setattr(BlockSampler, "_exactly_accepted", lambda self, value, block, word, keystream: True)
    blocks.draw(out, script)
    assert out.tolist() == [2**63 - 1]
