"""Heads of accounts, kept on disk: with them a client notices that a ledger has lost entries."""

import contextlib
import json
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

from privacy_budget_ledger.errors import HeadNotKept, LedgerRolledBack, UnreadableHead

_TEXT = re.compile(r"([1-9][0-9]{0,14}):([0-9a-f]{64})")


class Head(NamedTuple):
    """The last entry of an account's journal: its number and its hash."""

    seq: int
    hash: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the head of a text ``seq:hash``.

        Raises:
            ValueError: the text is no head.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError("expected seq:hash, a number from 1 and 64 lower-case hexadecimal digits")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


class KeptHeads:
    """The newest known head of each account of one ledger, a small JSON file for each in a directory.

    Several processes may share the directory. A head that is older than the kept one never takes its place, except in a
    race of two processes; then the check is for a moment as strict as the older head allows.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Create the directory, for its owner alone, where it does not exist."""
        self._directory = Path(directory)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def of(self, account: str) -> Head | None:
        """Return the kept head of an account; None where none is kept.

        Raises:
            UnreadableHead: its file is damaged or cannot be read.
        """
        path = self._path(account)
        try:
            return Head.read(json.loads(path.read_text("utf-8"))["head"])
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError):
            message = f"expected a file with a head seq:hash: {path}"
        except OSError as error:
            message = f"expected a file that can be read: {path}: {error.strerror}"
        raise UnreadableHead(message)

    def keep(self, account: str, head: Head) -> None:
        """Keep a head that the service has answered with, unless a newer one is kept.

        Raises:
            LedgerRolledBack: the kept head has the same number and another hash.
            HeadNotKept: the file cannot be written; it is as it was.
        """
        with self._lock:
            kept = self.of(account)
            if kept is not None and kept.seq == head.seq and kept.hash != head.hash:
                raise rolled_back(account, f"the answer's head of {account!r} has the kept one's number, another hash")
            if kept is None or kept.seq < head.seq:
                self._write(self._path(account), json.dumps({"account": account, "head": str(head)}))

    def _path(self, account: str) -> Path:
        return self._directory / f"{quote(account, safe='')}.json"

    def _write(self, path: Path, text: str) -> None:
        """Write a file whole or not at all, for its owner alone."""
        try:
            number, name = tempfile.mkstemp(dir=self._directory, prefix=".head-")
            try:
                with os.fdopen(number, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            raise HeadNotKept(f"the head of the answer cannot be written to {path}: {error.strerror}") from error


def rolled_back(account: str, detail: str) -> LedgerRolledBack:
    """Return the error of an answer that contradicts a kept head, in the form of the service's problem."""
    members = {"type": "/problems/ledger_rolled_back", "title": "The ledger has lost an entry"}
    return LedgerRolledBack(412, members | {"detail": detail, "account": account})
