"""The installation's secret, a file outside the data directory, and the codes that only its holder can compute."""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from service.errors import StartupRefused

SECRET_BYTES = 32
_HEX = re.compile(rf"[0-9a-fA-F]{{{2 * SECRET_BYTES}}}")
_BASE64 = re.compile(r"[0-9a-zA-Z+/_-]{43}=?")  # 32 bytes, either alphabet of RFC 4648


@dataclass(frozen=True)
class Secret:
    """The installation's 256-bit key, which never appears in a repr.

    Attributes:
        version: of the ledger: the name that the last acknowledgement gave to what followed; empty before any. Seals of
            rows that change depend on it, so that rows of a version that an operator gave up are refused.
    """

    key: bytes = field(repr=False)
    version: str = ""

    def hmac(self, purpose: str, *parts: bytes | bytearray) -> bytes:
        """Return the HMAC-SHA-256 of the parts for one purpose.

        The purpose is the first part, and each part is preceded by its length. So no two lists of parts give one
        message, and a value made for one purpose is useless for another.
        """
        code = _begun(self.key, purpose).copy()
        for part in parts:
            code.update(len(part).to_bytes(8, "big"))
            code.update(part)
        return code.digest()

    def seal(self, purpose: str, *values: object) -> str:
        """Return a code of a row's values for one purpose, which only the secret's holder can compute."""
        return self.hmac(purpose, encoded(*values)).hex()

    def is_seal(self, given: object, purpose: str, *values: object) -> bool:
        """Return whether ``given`` is the code of these values."""
        return self.is_text(given, self.seal(purpose, *values))

    def row_seal(self, purpose: str, *values: object) -> str:
        """Return the seal of a row that may change, in the present version of the ledger."""
        return self.in_version(self.seal(purpose, *values))

    def in_version(self, code: str) -> str:
        """Return the seal that a row with this code has in the present version of the ledger."""
        return self.seal("ledger-version", self.version, code) if self.version else code

    def number(self, purpose: str, text: str) -> int:
        """Return a number below 2^256 for a text, which only the secret's holder can compute."""
        return int.from_bytes(self.hmac(purpose, text.encode()), "big")

    @staticmethod
    def is_text(given: object, right: str) -> bool:
        """Return whether a value is this text, in a time that does not depend on where they differ."""
        return isinstance(given, str) and hmac.compare_digest(right.encode(), given.encode())

    def fingerprint(self) -> str:
        """Return a text that tells secrets apart and reveals nothing about them."""
        return self.hmac("fingerprint").hex()


@lru_cache(maxsize=64)
def _begun(key: bytes, purpose: str) -> hmac.HMAC:
    """Return an HMAC that has read its purpose alone, to be copied: beginning takes as long as a short message."""
    code, part = hmac.new(key, digestmod=hashlib.sha256), purpose.encode()
    code.update(len(part).to_bytes(8, "big") + part)
    return code


def sealed_values(row: Mapping[Any, object], columns: Sequence[str], optional: Sequence[str]) -> list[object]:
    """Return the values of a row that its seal covers.

    An optional column without a value adds nothing. So rows that are older than the column keep their seals, and a
    value that is set or removed without the secret breaks the seal.

    Args:
        columns: those that every seal of the table covers.
        optional: columns that were added later, and that are null where they say nothing.

    Returns:
        The value of each column, then name and value of each optional one that is not null; no two rows give equal
        lists.
    """
    stated = [part for name in optional if row[name] is not None for part in (name, row[name])]
    return [*(row[name] for name in columns), *stated]


def encoded(*values: object) -> bytes:
    """Return values as bytes, such that no two lists of values give equal bytes."""
    return b"".join(map(_part, values))


def _part(value: object) -> bytes:
    """Return a value's length and text, marked so that no other value gives the same bytes."""
    part = b"'" + value.encode() if isinstance(value, str) else repr(value).encode()
    return len(part).to_bytes(8, "big") + part


def load_secret(path: Path, *, make: bool) -> Secret:
    """Read the secret, or create it where there is none; processes that start together get the same one.

    Raises:
        StartupRefused: the file does not hold 32 bytes in hexadecimal or base64, is readable by every user, or cannot
            be read or created; or it is missing and must not be created. The message never quotes the file.
    """
    try:
        if not path.exists():
            if not make:
                raise StartupRefused(
                    f"the secret file {path} is missing: restore the one this database was set up with"
                )
            _make_secret(path)
        readable_by_all = path.stat().st_mode & stat.S_IROTH
        text = path.read_bytes()
    except OSError as error:
        raise StartupRefused(f"the secret file {path} cannot be read or made: {error.strerror}") from error
    if readable_by_all:
        raise StartupRefused(f"the secret file {path} can be read by every user of this machine: run chmod o-r {path}")
    return Secret(_decoded(text, path))


def _make_secret(path: Path) -> None:
    """Create the secret's file; the first process to link it wins, and no process ever sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(SECRET_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    # If a power cut removed the secret but not the database, the database could never be opened again.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _decoded(text: bytes, path: Path) -> bytes:
    stripped = text.decode("latin-1").strip()
    if _HEX.fullmatch(stripped):
        return bytes.fromhex(stripped)
    with suppress(binascii.Error):
        if _BASE64.fullmatch(stripped):
            usual = stripped.rstrip("=").replace("-", "+").replace("_", "/") + "="
            return base64.b64decode(usual, validate=True)
    raise StartupRefused(f"the secret file {path} must hold {SECRET_BYTES} bytes in hexadecimal or base64")
