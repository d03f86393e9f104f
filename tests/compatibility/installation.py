"""An installation in a directory of its own, used as operators and clients use it: by commands and over HTTP.

What these tests need of the service is its command line, its HTTP interface and its noise: code may be moved and
renamed behind them.
"""

import contextlib
import io
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.__main__ import main
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from tests.api.calls import Client, application, client_of, json_of
from tests.processes import environment

SECRET = bytes(range(32))  # its public key signed the fixtures


def fix_keystreams(patch: pytest.MonkeyPatch) -> None:
    """Have every keystream begin with the same bits: the noise of a draw is that of the one before."""
    patch.setattr(secrets, "token_bytes", lambda count=32: bytes(range(count)))


@dataclass(frozen=True)
class Installation:
    """An installation with the secret of the fixtures, on a database that is migrated.

    Attributes:
        home: where its secret and its high-water mark are.
        url: of its database.
    """

    home: Path
    url: str

    def __post_init__(self) -> None:
        """Write the secret."""
        secret = self.home / "service.secret"
        secret.write_text(SECRET.hex() + "\n")
        secret.chmod(0o600)

    def run(self, *arguments: str) -> str:
        """Run a command in this process; return what it prints. It must succeed."""
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            for name, value in environment(self.home, database_url=self.url).items():
                if name.startswith("SERVICE_"):
                    patch.setenv(name, value)
            patch.setattr(sys, "argv", ["service", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code, printed.getvalue()
        return printed.getvalue()

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """A steward of the installation, served in this process."""
        database, secret = open_database(self.url), Secret(SECRET)
        with contextlib.closing(database), client_of(application(database, secret)) as client:
            yield client

    @property
    def public_key(self) -> str:
        """The key by which others check what the installation signed."""
        with self.client() as client:
            return str(json_of(client.get("/v1/installation"))["public_key"])


def reports(installation: Installation, file: Path) -> str:
    """Return the output of the commands that verify a ledger, its export and the prices in it."""
    return "".join(
        [
            installation.run("verify"),
            installation.run("verify", str(file), "--public-key", installation.public_key),
            installation.run("recompute"),
        ]
    )
