"""Signed statements of the installation: Ed25519 over RFC 8785 canonical JSON.

An attacker who can write the database can rebuild a hash chain, but not a signature. The key is derived from the
installation's secret, so every replica signs with the same key and none is stored.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeGuard

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from service.errors import ServiceError
from service.ledger.journal.journal import LARGEST_INTEGER, Head, utf_16_units
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
            statement: the kind of statement, so that none can be taken for one of another kind.
        """
        signed = {
            "statement": statement,
            **content,
            "installation": self.installation,
            "public_key": self.public_key,
        }
        return signed | {"signature": self.key.sign(signed_text(signed).encode()).hex()}

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


def check_signature(document: dict[str, Any], statement: str, public_key: str | None = None) -> None:
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
        raise BadSignature("the statement names another public key")
    if document.get("installation") != installation_of(named):
        raise BadSignature("the statement names an installation that has not its public key")
    unsigned = {name: value for name, value in document.items() if name != "signature"}
    try:
        text = signed_text(unsigned).encode()
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(named)).verify(bytes.fromhex(signature), text)
    except (TypeError, ValueError, InvalidSignature):
        raise BadSignature("the signature is not that of the statement") from None


def _is_hex(text: object, size: int) -> TypeGuard[str]:
    return isinstance(text, str) and len(text) == 2 * size and all(digit in "0123456789abcdef" for digit in text)


def signed_text(value: object) -> str:
    """Return RFC 8785 canonical JSON, doubles included, so that signed figures look as they do in answers.

    Raises:
        TypeError, ValueError: the value is not JSON, or not Unicode, or an integer beyond those that doubles tell
            apart.
    """
    match value:
        case None | bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            if abs(value) > LARGEST_INTEGER:
                raise ValueError("expected an integer of at most 2^53 in size")
            return str(value)
        case float():
            return _double(value)
        case list():
            return "[" + ",".join(map(signed_text, value)) + "]"
        case dict():
            if not all(isinstance(name, str) for name in value):
                raise TypeError("expected text as the names of an object")
            ordered = sorted(value, key=utf_16_units)
            members = (f"{signed_text(name)}:{signed_text(value[name])}" for name in ordered)
            return "{" + ",".join(members) + "}"
    raise TypeError(f"expected JSON, got {type(value).__name__}")


def _double(value: float) -> str:
    """Return a double as ECMAScript writes it (RFC 8785 section 3.2.2.3): Python's digits in another format."""
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    _, figures, exponent = Decimal(repr(abs(value))).normalize().as_tuple()
    digits = "".join(map(str, figures))
    point = len(digits) + int(exponent)  # the number of digits before the point
    if len(digits) <= point <= 21:
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{sign}{mantissa}e{point - 1:+d}"
