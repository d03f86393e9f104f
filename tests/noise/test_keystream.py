"""The keystream: one function of its key, never the same bits twice, and bits like coin tosses."""

import hashlib

import numpy as np
import pytest

from service.noise import Keystream
from tests.noise.reference import KEY, RARE, chi_square_p


def test_the_same_key_gives_the_same_bytes_and_another_one_others() -> None:
    one, same, other = Keystream(KEY), Keystream(KEY), Keystream(bytes(32))
    first = [one.read(size) for size in (1, 64, 1000)]
    assert [same.read(size) for size in (1, 64, 1000)] == first
    assert other.read(1) + other.read(64) != first[0] + first[1]


def test_each_read_is_the_hash_of_key_and_number() -> None:
    stream = Keystream(KEY)
    for number in range(3):
        assert stream.read(40) == hashlib.shake_256(KEY + number.to_bytes(16, "little")).digest(40)


def test_reads_share_nothing() -> None:
    stream = Keystream(KEY)
    assert len({stream.read(16) for _ in range(10_000)}) == 10_000


def test_keys_come_from_the_operating_system() -> None:
    assert len({Keystream().read(32) for _ in range(1000)}) == 1000


@pytest.mark.parametrize("size", [0, 16, 33])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"32 bytes, got {size}"):
        Keystream(bytes(size))


def test_words_are_the_bytes_and_read_only() -> None:
    words = Keystream(KEY).words(1000, "<i2")
    assert words.tobytes() == Keystream(KEY).read(2000)
    assert not words.flags.writeable


def test_bytes_and_pairs_of_bits_are_uniform() -> None:
    found = Keystream(KEY).words(1_000_000, "u1")
    assert chi_square_p(np.bincount(found, minlength=256), [1_000_000 / 256] * 256) > RARE
    neighbours = found[:-1].astype(int) // 16 * 16 + found[1:] // 16
    assert chi_square_p(np.bincount(neighbours, minlength=256), [999_999 / 256] * 256) > RARE
