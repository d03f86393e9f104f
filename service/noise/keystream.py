"""The uniform random bits from which noise is made: a keystream under a secret key."""

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

    Make one for each call that draws. It belongs to one thread. A copy of it, for example in a forked process, repeats
    its bits. Without the 256-bit key the bits cannot be told from fair coin tosses, as long as fewer than some 2^60
    blocks are read.

    Args:
        key: 32 bytes; the first counter is then 0. Give only a key from ``attempts``, or any key in tests, because the
            key reveals the noise. If it is None, the key and the first counter are fresh bytes from the operating
            system.

    Raises:
        ValueError: the key has another length.
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
