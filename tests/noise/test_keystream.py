"""The keystream: one function of its key, never the same bits twice, and bits like coin tosses."""

import numpy as np
import pytest

from service.noise import Keystream
from tests.noise.reference import KEY, RARE, chi_square_p


def test_the_same_key_gives_the_same_bytes_and_another_one_others() -> None:
    one, same, other = Keystream(KEY), Keystream(KEY), Keystream(bytes(32))
    first = [one.read(size) for size in (1, 64, 1000)]
    assert [same.read(size) for size in (1, 64, 1000)] == first
    assert other.read(1) + other.read(64) != first[0] + first[1]


def test_it_is_aes_256_in_counter_mode() -> None:
    """Counters 0, 1 and 2 under a key of zeros: H of the GCM specification's test case 13, its tag, and the
    ciphertext of test case 14 (McGrew and Viega 2005, appendix B), however they are read.
    """
    blocks = "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738bcea7403d4d606b6e074ec5d3baf39d18"
    stream = Keystream(bytes(32))
    assert b"".join(stream.read(size) for size in (0, 5, 30, 13)).hex() == blocks


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
