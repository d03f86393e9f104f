"""Values in cookies: encrypted and authenticated under a key that HMAC derives from the installation's secret."""

import base64
import binascii
import json
import secrets
from collections.abc import Sequence
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fastapi import Request

from service.ledger.storage.secret import Secret

_NONCE_BYTES = 12


def seal(secret: Secret, purpose: str, version: bytes, values: Sequence[Any]) -> str:
    """Return values as the text of a cookie, by AES-256-GCM.

    Args:
        secret: the installation's secret.
        purpose: the name of the derived key; a text sealed for one purpose opens for no other.
        version: the meaning of the values, which is authenticated with them.
        values: JSON.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return text_of_bytes(nonce + _cipher(secret, purpose).encrypt(nonce, json.dumps(values).encode(), version))


def unseal(secret: Secret, purpose: str, version: bytes, sealed: str) -> list[Any] | None:
    """Return sealed values; None if the text was not sealed with this secret, for this purpose and in this version."""
    try:
        decoded = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
        plain = _cipher(secret, purpose).decrypt(decoded[:_NONCE_BYTES], decoded[_NONCE_BYTES:], version)
    except (ValueError, binascii.Error, InvalidTag):  # ValueError: too short to hold a nonce, or not ASCII
        return None
    values: list[Any] = json.loads(plain)
    return values


def is_secure(request: Request) -> bool:
    """Return whether the browser reaches the service by HTTPS."""
    return request.url.scheme == "https"


def name_of(request: Request, plain: str) -> str:
    """Return the full name of a cookie: over HTTPS browsers accept it only from this host, and only with TLS."""
    return f"__Host-{plain}" if is_secure(request) else plain


def text_of_bytes(value: bytes) -> str:
    """Return bytes as base64url without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _cipher(secret: Secret, purpose: str) -> AESGCM:
    return AESGCM(secret.hmac(purpose))
