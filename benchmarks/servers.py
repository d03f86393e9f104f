"""The servers that are measured, each a process of its own, and the databases under them."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import httpx
import psycopg
from psycopg import sql
from sqlalchemy import make_url

from service.ledger.accounts import account_opening
from service.ledger.accounts.account_opening import NewAccount
from service.ledger.idempotent_write import Operation, idempotent_write
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.idempotency import Answer, Request
from service.ledger.storage.migrate import migrate
from service.ledger.storage.secret import Secret
from service.privacy.accounting.privacy_filter import Budget, Definition
from service.privacy.plans.walking import Neighbouring

KEY = "a-key-of-the-benchmarks-" + uuid4().hex
CALLER = Request("benchmark", None, "", Secret(bytes(32)))
_ROOT = Path(__file__).resolve().parents[1]
_running: dict[str, int] = {}  # addresses of servers, and their processes


@contextmanager
def sqlite_database() -> Iterator[str]:
    """The URL of a migrated database in a file of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        url = f"sqlite:///{directory}/ledger.db"
        migrate(url)
        yield url


@contextmanager
def postgresql_database(server: str) -> Iterator[str]:
    """The URL of a migrated database on a server."""
    name = f"bench_{uuid4().hex}"
    with psycopg.connect(plain(server), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = make_url(server).set(database=name).render_as_string(hide_password=False)
    migrate(url)
    yield url


def carry_out(database: Database, operation: Operation[Any]) -> None:
    """Carry out an operation on the ledger."""
    idempotent_write(database, CALLER, operation, lambda _: Answer(200, ""))


def open_account(database: Database, name: str) -> None:
    """An account with room for all charges of a benchmark."""
    budget = Budget(definition=Definition.ZCDP, cap=Fraction(10**9))
    new = NewAccount(name, "person", Neighbouring.ADD_REMOVE, "", budget)
    carry_out(database, account_opening.open_account(database, CALLER, new))


def open_accounts(url: str, names: Iterable[str]) -> None:
    """Open several accounts in a database that is not open yet."""
    database = opened(url)
    for name in names:
        open_account(database, name)
    database.close()


def opened(url: str) -> Database:
    """Open a database with the secret that the servers here have."""
    database = open_database(url)
    database.secret = CALLER.secret
    return database


@contextmanager
def service_server(url: str) -> Iterator[str]:
    """The address of the service on a database, its log in a file as an operator would have it."""
    with service_servers(url, 1) as (address,):
        yield address


@contextmanager
def service_servers(url: str, number: int) -> Iterator[list[str]]:
    """The addresses of replicas of the service on a database."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        secret = directory / "service.secret"
        secret.write_text(CALLER.secret.key.hex())
        secret.chmod(0o600)
        environment = {
            "SERVICE_DATABASE_URL": url,
            "SERVICE_SECRET_FILE": str(secret),
            "SERVICE_BOOTSTRAP_KEY": KEY,
        }
        yield [
            stack.enter_context(_process(["service", "serve"], environment, directory, "/readyz"))
            for _ in range(number)
        ]


@contextmanager
def bare_server(url: str, library: Literal["driver", "sqlalchemy"]) -> Iterator[str]:
    """The address of the bare endpoint on a database, which it reaches through one of two libraries."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        _process(["benchmarks.bare", url, library], {}, Path(directory), "/ready") as address,
    ):
        yield address


@contextmanager
def _process(module: list[str], environment: dict[str, str], home: Path, ready: str) -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", *module, "--port", str(port)]
    with started(command, environment, home, address, ready):
        yield address


@contextmanager
def started(command: list[str], environment: dict[str, str], home: Path, address: str, ready: str) -> Iterator[None]:
    """A server at an address for as long as the block lasts, from the moment at which it answers ``ready``."""
    port = address.rpartition(":")[2]
    with (home / f"log-{port}").open("wb") as log:
        process = subprocess.Popen(command, cwd=_ROOT, env=os.environ | environment, stdout=log, stderr=log)
        try:
            _wait(process, address + ready, home / f"log-{port}")
            _running[address] = process.pid
            yield
        finally:
            _running.pop(address, None)
            process.terminate()
            process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def peak_memory(address: str) -> float:
    """The most memory that a server has had at once, in mebibytes."""
    status = Path(f"/proc/{_running[address]}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def processor_seconds(address: str) -> float:
    """Return the processor's time that a server has taken so far, without its helper processes."""
    return _time_and_parent(Path(f"/proc/{_running[address]}/stat"))[0]


def processor_seconds_with_helpers(address: str) -> float:
    """Return the processor's time that a server and the processes that it started and that still run have taken."""
    found: dict[int, tuple[float, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            found[int(stat.parent.name)] = _time_and_parent(stat)
    family = {_running[address]}
    while more := {process for process, (_, parent) in found.items() if parent in family} - family:
        family |= more
    return sum(found[process][0] for process in family)


def _time_and_parent(stat: Path) -> tuple[float, int]:
    """Return the processor's time of a process, in seconds, and the number of its parent."""
    fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(fields[1])


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(url, timeout=5, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.05)
    raise RuntimeError(f"a server did not start:\n{log.read_text(encoding='utf-8', errors='replace')}")


def plain(url: str) -> str:
    """The URL as the driver itself reads it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
