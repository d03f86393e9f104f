"""The uniform random bits that noise is made of: a keystream under a key that is never used twice."""

import secrets
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

KEY_BYTES, _COUNTER_BYTES = 32, 16


class Keystream:
    """Uniform bits from AES-256 in counter mode (FIPS 197, NIST SP 800-38A) under a secret key.

    Make one for each call that draws: it belongs to one thread, and a copy of it, as a fork would make one, repeats
    its bits. Without the 256-bit key they cannot be told from fair coin tosses, as long as fewer than some 2^60 blocks
    are read.

    Args:
        key: 32 bytes; fresh ones from the operating system, as is the first counter, unless given. A key that is
            given, whose first counter is 0, is from ``attempts`` or for tests: the key reveals the noise.

    Raises:
        ValueError: a key of another length.
    """

    def __init__(self, key: bytes | None = None) -> None:
        counter = bytes(_COUNTER_BYTES) if key is not None else secrets.token_bytes(_COUNTER_BYTES)
        key = secrets.token_bytes(KEY_BYTES) if key is None else key
        if len(key) != KEY_BYTES:
            raise ValueError(f"expected a key of {KEY_BYTES} bytes, got {len(key)}")
        self._encrypt = Cipher(AES256(key), CTR(counter)).encryptor().update

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        return self._encrypt(bytes(count))

    def words(self, count: int, dtype: str) -> NDArray[Any]:
        """Return the next ``count`` integers of a type such as ``<u2``, uniform over all its values; read-only."""
        return np.frombuffer(self.read(count * np.dtype(dtype).itemsize), dtype)
