"""The real application: in this process over each database, or behind a socket."""

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from psycopg import sql
from sqlalchemy import make_url

from service.ledger.access.keys import ensure_first_key
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret
from service.server import configuration
from tests.api.calls import STEWARD, Client, application, bearer, client_of
from tests.postgres_server import session


@pytest.fixture(scope="session")
def _sqlite_template(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database that was started once: it has its secret and its first key."""
    path = tmp_path_factory.mktemp("started") / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    _start(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def _postgresql_template(postgresql_server: str, _postgresql_template: str) -> str:
    name = "template_started"
    with session(postgresql_server) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(_postgresql_template))
        )
    _start(make_url(postgresql_server).set(database=name).render_as_string(hide_password=False))
    return name


def _start(url: str) -> None:
    with contextlib.closing(open_database(url)) as database:
        ensure_first_key(database, Secret(bytes(range(32))), STEWARD, None)


@pytest.fixture
def helper_processes() -> int:
    """Return the number of helpers of a test's application; modules about helpers override it."""
    return 0


@pytest.fixture
def app(database: Database, secret: Secret, helper_processes: int) -> FastAPI:
    """Return the application over a fresh database, once for each kind of database."""
    return application(database, secret, helper_processes=helper_processes)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    """Return a steward's client of the application."""
    with client_of(app) as opened:
        yield opened


@pytest.fixture
def alone(database: Database, secret: Secret) -> Iterator[TestClient]:
    """Return a steward's client without helpers, for tests that patch code in this process."""
    with client_of(application(database, secret)) as opened:
        yield opened


@pytest.fixture
def embedded(_sqlite_template: Path, tmp_path: Path, secret: Secret, helper_processes: int) -> Iterator[TestClient]:
    """Return a steward's client on SQLite alone, for behaviour that does not depend on the kind of database."""
    path = tmp_path / "embedded.db"
    shutil.copyfile(_sqlite_template, path)
    app = application(open_database(f"sqlite:///{path}"), secret, helper_processes=helper_processes)
    with client_of(app) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_client(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Return a client that a module's tests share, for behaviour that does not depend on stored data.

    It has a helper, so that all requests of these tests go through one.
    """
    path = tmp_path_factory.mktemp("shared") / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    app = application(open_database(f"sqlite:///{path}"), Secret(bytes(range(32))), helper_processes=1)
    with client_of(app) as opened:
        yield opened


@pytest.fixture
def served(app: FastAPI) -> Iterator[Client]:
    """Return a steward's client over a socket, for use from many threads."""
    with serving(app) as address, Client(base_url=address, headers=bearer(STEWARD), timeout=60) as opened:
        yield opened


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Return the address of an application that a real server runs in a thread."""
    server = uvicorn.Server(configuration(app.state.settings, app, "127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0)) as listening:  # connections wait in its queue until the server is ready
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
