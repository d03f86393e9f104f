"""Signed statements of the installation: Ed25519 over RFC 8785 canonical JSON.

An attacker who can write the database can rebuild a hash chain, but not a signature. The key is derived from the
installation's secret, so every replica signs with the same key and none is stored.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeGuard

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from service.errors import ServiceError
from service.ledger.journal.canonical_json import LARGEST_INTEGER
from service.ledger.journal.journal import Head
from service.ledger.storage.secret import Secret

ALGORITHM = "Ed25519"
PURPOSE = "signing-key"  # of the HMAC that derives the private key; another purpose would give another key
_KEY_BYTES = 32


class BadSignature(ServiceError):
    """A statement that its expected key did not sign; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The installation's signing key and its public parts.

    Attributes:
        public_key: 32 bytes in hexadecimal.
        installation: a name for the installation that any reader can check against the public key.
    """

    key: Ed25519PrivateKey = field(repr=False)
    public_key: str
    installation: str

    def sign(self, statement: str, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content with the signer's name and the signature.

        Args:
            statement: the kind of statement, so that none can be mistaken for another kind.
        """
        signed = {
            "statement": statement,
            **content,
            "installation": self.installation,
            "public_key": self.public_key,
        }
        return signed | {"signature": self.key.sign(signed_bytes(signed)).hex()}

    def sign_head(self, account: str, head: Head) -> dict[str, Any]:
        """Return the signed head of an account's journal."""
        return self.sign("head", {"account": account, "seq": head.seq, "hash": head.hash})


@lru_cache(maxsize=8)
def signer_of(secret: Secret) -> Signer:
    """Return the installation's signer: the Ed25519 seed is HMAC-SHA-256 of the secret for this one purpose."""
    key = Ed25519PrivateKey.from_private_bytes(secret.hmac(PURPOSE))
    public = key.public_key().public_bytes_raw()
    return Signer(key, public.hex(), installation_of(public.hex()))


def installation_of(public_key: str) -> str:
    """Return the name of the installation that has this public key: half of its SHA-256."""
    return hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:32]


def check_signature(document: dict[str, Any], statement: str, public_key: str | None) -> None:
    """Refuse a statement that is incomplete, of another kind, or not signed.

    Without ``public_key`` the statement is checked against the key that it names itself. That only shows that it was
    not changed since it was signed.

    Raises:
        BadSignature: the text says what is wrong.
    """
    if document.get("statement") != statement:
        raise BadSignature(f"expected a statement of the kind {statement!r}")
    named, signature = document.get("public_key"), document.get("signature")
    if not (_is_hex(named, _KEY_BYTES) and _is_hex(signature, 2 * _KEY_BYTES)):
        raise BadSignature("expected public_key and signature, in hexadecimal")
    if public_key is not None and named != public_key.lower():
        raise BadSignature("the statement names another public key than the expected one, which --public-key states")
    if document.get("installation") != installation_of(named):
        raise BadSignature("the statement names an installation with another public key")
    unsigned = {name: value for name, value in document.items() if name != "signature"}
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(named))
        key.verify(bytes.fromhex(signature), signed_bytes(unsigned))
    except (ValueError, InvalidSignature):
        raise BadSignature("the signature is not that of the statement") from None


def _is_hex(text: object, size: int) -> TypeGuard[str]:
    return isinstance(text, str) and len(text) == 2 * size and all(digit in "0123456789abcdef" for digit in text)


def signed_bytes(value: object) -> bytes:
    """Return RFC 8785 canonical JSON, doubles included, so that signed figures look as they do in answers.

    Raises:
        ValueError: the value is not JSON, or not Unicode, or an integer beyond 2^53 in size.
    """
    return rfc8785.dumps(_with_largest_as_double(value))


def _with_largest_as_double(value: Any) -> Any:
    """Return the value with the integers ±2^53 as doubles, whose digits are the same.

    The library refuses these two, and plans have them since the first version.
    """
    match value:
        case dict():
            return {name: _with_largest_as_double(item) for name, item in value.items()}
        case list():
            return [_with_largest_as_double(item) for item in value]
        case int() if abs(value) == LARGEST_INTEGER:
            return float(value)
    return value
