"""The uniform random bits that noise is made of: a keystream under a key that is never used twice."""

import hashlib
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEY_BYTES = 32


class Keystream:
    """Uniform bits from SHAKE-256 (FIPS 202) of a secret key and the number of the read.

    Make one for each call that draws: it belongs to one thread, and a copy of it, as a fork would make one, repeats
    its bits. To who does not know the 256-bit key they cannot be told from fair coin tosses.

    Args:
        key: 32 bytes; fresh ones from the operating system unless given. A fixed key is for tests alone: who
            knows it knows the noise.

    Raises:
        ValueError: a key of another length.
    """

    def __init__(self, key: bytes | None = None) -> None:
        key = secrets.token_bytes(_KEY_BYTES) if key is None else key
        if len(key) != _KEY_BYTES:
            raise ValueError(f"expected a key of {_KEY_BYTES} bytes, got {len(key)}")
        self._absorbed = hashlib.shake_256(key)
        self._reads = 0

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        block = self._absorbed.copy()
        block.update(self._reads.to_bytes(16, "little"))  # of fixed length, as the key: no two reads absorb the same
        self._reads += 1
        return block.digest(count)

    def words(self, count: int, dtype: str) -> NDArray[Any]:
        """The next ``count`` integers of an integer type such as ``<u2``, uniform over all its values; read-only."""
        return np.frombuffer(self.read(count * np.dtype(dtype).itemsize), dtype)
