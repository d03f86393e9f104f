"""Real databases for every test: a migrated SQLite file, or a migrated database of an embedded PostgreSQL 18.

Both are copied from a template, which is migrated once. A test that takes ``database_url`` or
``database`` runs twice, once on each.
"""

import contextlib
import gc
import os
import shutil
import sqlite3
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Connection, Engine, event, make_url

from service.ledger.installation.signing import Signer, signer_of
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.migrate import migrate
from service.ledger.storage.secret import Secret
from tests.postgres_server import postgres_server, session

_Session = psycopg.Connection[tuple[Any, ...]]

_TEMPLATE = "template_migrated"
_KEYED = Secret(bytes(range(32)))
_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30  # bytes; what a run of all tests has at a time is less than half of it

# The same examples in every run, and none fails for being slow on a busy machine.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")
# Fresh ones, by a seed that `make test-explore` prints.
hypothesis.settings.register_profile(
    "explore", deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)


def pytest_configure() -> None:
    """Have temporary files in memory where there is room, and look for garbage seldom.

    A disk is waited for at every commit to SQLite and at every new database of PostgreSQL: the longest part of most
    tests. The workers, and what tests start, inherit it; a TMPDIR that is set is kept.
    """
    if "TMPDIR" not in os.environ and _MEMORY.is_dir() and _has_room(_MEMORY):
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # pytest's own capturing has asked before
    gc.set_threshold(20_000, 20, 20)  # as the server: what thousands of tests consist of is walked less often


def pytest_collection_finish() -> None:
    """Have what was imported and collected not walked again by each look for garbage; it was a fifth of all work."""
    gc.freeze()


def _has_room(place: Path) -> bool:
    """For files, and for programs: the server's are run from there."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC


@pytest.fixture(scope="session", autouse=True)
def _no_number_is_a_key() -> Iterator[None]:
    """Fail whatever hashes a fraction in the service, whose clients choose which fractions collide (``privacy.keyed``).

    So every test that sends a request is one of that, too.
    """
    plain = Fraction.__hash__

    def guarded(number: Fraction) -> int:
        frame = sys._getframe(1)
        while frame.f_code.co_filename == "<string>" and frame.f_back is not None:  # a dataclass's own hash
            frame = frame.f_back
        module = frame.f_globals.get("__name__", "")
        if module.startswith("service."):
            raise AssertionError(f"{module} hashes a fraction in {frame.f_code.co_name}; keys are keyed.Key or text")
        return plain(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fraction, "__hash__", guarded)
        yield


class _SharedStatements(dict[Any, Any]):
    """Compiled statements of all databases of a kind; SQLAlchemy keys them by the engine's own dialect."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(key[1:], compiled)


@pytest.fixture(scope="session", autouse=True)
def _statements_are_compiled_once() -> Iterator[None]:
    """Have all databases share compiled statements: each test has databases of its own, with the same statements."""
    shared: defaultdict[str, _SharedStatements] = defaultdict(_SharedStatements)

    def share(connection: Connection) -> None:
        connection.engine._compiled_cache = shared[connection.dialect.name]

    event.listen(Engine, "engine_connect", share)
    yield
    event.remove(Engine, "engine_connect", share)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of the server's ``postgres`` database, over a Unix socket."""
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def _postgresql_session(postgresql_server: str) -> Iterator[_Session]:
    """A session that makes and drops databases: another one for each would be another process of the server."""
    with session(postgresql_server) as opened:
        yield opened


@pytest.fixture(scope="session")
def _postgresql_template(postgresql_server: str, _postgresql_session: _Session) -> str:
    _postgresql_session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_TEMPLATE)))
    migrate(make_url(postgresql_server).set(database=_TEMPLATE).render_as_string(hide_password=False))
    return _TEMPLATE


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "ledger.db"
    migrate(f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without any tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    with _new_database(request.getfixturevalue("_postgresql_session"), "template1") as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh, migrated database of the test's own."""
    if request.param == "sqlite":
        path = tmp_path / "ledger.db"
        shutil.copyfile(request.getfixturevalue("_sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    template = request.getfixturevalue("_postgresql_template")
    with _new_database(request.getfixturevalue("_postgresql_session"), template) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Database]]:
    """Makes as many fresh, migrated and open databases as a test asks for, all of one kind."""
    with contextlib.ExitStack() as stack:

        def make() -> Database:
            if request.param == "sqlite":
                path = tmp_path / f"{uuid.uuid4().hex}.db"
                shutil.copyfile(request.getfixturevalue("_sqlite_template"), path)
                url = f"sqlite:///{path}"
            else:
                template = request.getfixturevalue("_postgresql_template")
                url = stack.enter_context(_new_database(request.getfixturevalue("_postgresql_session"), template))
            opened = open_database(url)
            opened.secret = _KEYED
            stack.callback(opened.close)
            return opened

        yield make


@pytest.fixture
def postgresql_url(_postgresql_session: _Session, _postgresql_template: str) -> Iterator[str]:
    """Yield the URL of a fresh PostgreSQL database: for what SQLite has not, such as connections that break."""
    with _new_database(_postgresql_session, _postgresql_template) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Yield the fresh database, opened."""
    opened = open_database(database_url)
    opened.secret = _KEYED
    yield opened
    opened.close()


@pytest.fixture
def secret() -> Secret:
    """Return a secret that is equal in every run, so that tokens and digests are too."""
    return _KEYED


@pytest.fixture
def signer(secret: Secret) -> Signer:
    """Return the signer of that secret."""
    return signer_of(secret)


@contextlib.contextmanager
def _new_database(server: _Session, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    server.execute(
        # Copying files is three times as fast as copying through the log.
        sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
            sql.Identifier(name), sql.Identifier(template)
        )
    )
    try:
        yield f"postgresql+psycopg://postgres@/{name}?host={server.info.host}"
    finally:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
