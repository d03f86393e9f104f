"""A ZIP archive that is written as a stream, with a signed list of its files at the end."""

import hashlib
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from service.api.publication.sink import Sink
from service.ledger.installation.signing import Signer
from service.ledger.verification.packages import MANIFEST, STATEMENT, manifest_text


class Archive:
    """An archive under construction.

    Args:
        at: the moment that all files get.
    """

    def __init__(self, at: str) -> None:
        self._sink = Sink()
        self._zip = zipfile.ZipFile(self._sink, "w", zipfile.ZIP_DEFLATED)
        self._time = datetime.fromisoformat(at).timetuple()[:6]
        self._files: list[dict[str, Any]] = []

    def add(self, name: str, parts: Iterable[str | bytes]) -> Iterator[bytes]:
        """Write a file, and yield the archive's bytes as they come."""
        digest, size = hashlib.sha256(), 0
        about = zipfile.ZipInfo(name, self._time)
        about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
        with self._zip.open(about, "w", force_zip64=True) as file:
            for part in parts:
                written = part.encode() if isinstance(part, str) else part
                digest.update(written)
                size += len(written)
                file.write(written)
                yield self._sink.taken()
        self._files.append({"name": name, "bytes": size, "sha256": digest.hexdigest()})

    @property
    def names(self) -> list[str]:
        """The names of the files so far."""
        return [file["name"] for file in self._files]

    def sign(self, signer: Signer, facts: dict[str, Any]) -> Iterator[bytes]:
        """Write the signed list of the files, with facts about the whole, and end the archive."""
        manifest = signer.sign(STATEMENT, facts | {"files": self._files})
        self._files = []
        yield from self.add(MANIFEST, [manifest_text(manifest)])
        self._zip.close()
        yield self._sink.taken()
