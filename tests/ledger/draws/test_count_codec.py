"""Stored counts: every value of 64 bits comes back, in few bytes, and rows of the older form are read."""

import zlib

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from service.errors import TooLarge
from service.ledger.draws import count_codec
from service.ledger.draws.count_codec import digest, is_pack_of, pack, unpack, unpack_keys

_EDGES = [limit for bits in (7, 15, 31, 63) for limit in (2**bits - 1, -(2**bits))]
_COUNT = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.sampled_from(_EDGES))


@given(st.lists(_COUNT, max_size=50))
@example([])
def test_what_is_packed_is_unpacked(counts: list[int]) -> None:
    assert unpack(pack(np.array(counts, np.int64)), len(counts)).tolist() == counts


@pytest.mark.parametrize("bits", [7, 15, 31, 63])
def test_the_first_byte_is_the_least_width_that_holds_all(bits: int) -> None:
    widths = {7: 1, 15: 2, 31: 4, 63: 8}
    for value in (2**bits - 1, -(2**bits)):
        assert pack(np.array([0, value]))[0] == widths[bits]
        if bits < 63:
            wider = value + 1 if value > 0 else value - 1
            assert pack(np.array([0, wider]))[0] == 2 * widths[bits]


def test_counts_of_a_table_take_few_bytes() -> None:
    generator = np.random.default_rng(1)
    counts = np.rint(generator.lognormal(5, 2, 100_000)).astype(np.int64)
    assert len(pack(counts)) < 2.5 * counts.size  # of 8


def test_older_rows_are_read() -> None:
    counts = np.array([1, -2, 2**63 - 1, -(2**63)])
    for level in (1, 9):
        assert unpack(zlib.compress(counts.astype("<i8").tobytes(), level), counts.size).tolist() == counts.tolist()


def test_bytes_of_anything_else_are_refused() -> None:
    counts = np.arange(1000)
    packed, older = pack(counts), zlib.compress(counts.astype("<i8").tobytes())
    for size in (0, 999, 1001, 10**15):
        for stored in (packed, older):
            with pytest.raises(ValueError, match="values"):
                unpack(stored, size)
    for stored in (b"", packed[:1], packed[:-1], packed + b"more", older[:-1], older + b"more", b"\x03" + packed[1:]):
        with pytest.raises(ValueError, match="values"):
            unpack(stored, 1000)


def test_zeros_of_any_number_are_not_taken_for_a_lie() -> None:
    for size in (1, 1 << 17, 10**7):
        assert not unpack(pack(np.zeros(size, np.int64)), size).any()


def test_what_a_database_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(1).integers(-(2**62), 2**62, 1000)
    packed = pack(noise)
    monkeypatch.setattr(count_codec, "MOST_BYTES", len(packed) - 1)
    with pytest.raises(TooLarge):
        pack(noise)


_KEY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(st.dictionaries(_KEY, _COUNT, max_size=20))
@example({})
@example({"a": 1})
def test_keys_are_packed_with_the_values(published: dict[str, int]) -> None:
    keys, values, size = tuple(published), np.array(list(published.values()), np.int64), len(published)
    packed = pack(values, keys)
    assert (unpack(packed, size).tolist(), unpack_keys(packed, size)) == (values.tolist(), keys)
    assert unpack_keys(pack(values), size) is None
    assert is_pack_of(packed, size, digest(values, keys))
    assert not is_pack_of(packed, size, digest(values))
    assert not is_pack_of(pack(values), size, digest(values, keys))
    if size > 1:
        assert not is_pack_of(pack(values, keys[::-1]), size, digest(values, keys))


def test_bytes_of_other_keys_are_refused() -> None:
    values, keys = np.arange(3), ["a", "b", "é" * 200]
    packed = pack(values, keys)
    ahead = packed[: 9 + int.from_bytes(packed[1:9], "little")]
    for stored in (
        *(packed[:end] for end in (1, 5, 9, 12, len(packed) - 1)),
        packed + b"x",
        ahead + zlib.compress(b'["a","b"]'),
        ahead + zlib.compress(b'["a","b",3]'),
        ahead + zlib.compress(b'{"a":1,"b":2,"c":3}'),
        ahead + zlib.compress(b"[" * 10_000),
        ahead + zlib.compress(b" " * 10**8 + b'["a","b","c"]'),
        b"k" + bytes([255] * 8) + packed[9:],
    ):
        assert not is_pack_of(stored, 3, digest(values, keys))
        with pytest.raises(ValueError, match="values"):
            (unpack(stored, 3), unpack_keys(stored, 3))
    for size in (2, 4, 10**6):
        with pytest.raises(ValueError, match="keys"):
            unpack_keys(packed, size)


def test_the_longest_keys_are_read() -> None:
    keys = ['"' * 199 + str(number) for number in range(10)]
    packed = pack(np.arange(10), keys)
    assert unpack_keys(packed, 10) == tuple(keys)
