"""The real application: in this process over each database, or served through a socket."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.ledger.database import Database, open_database
from service.ledger.secret import Secret
from service.server import configuration
from tests.api.calls import STEWARD, Client, application, bearer, client_of


@pytest.fixture
def helper_processes() -> int:
    """How many helpers a test's application has; modules that are about them say another number."""
    return 0


@pytest.fixture
def app(database: Database, secret: Secret, helper_processes: int) -> FastAPI:
    """The application over a fresh database, once on each kind."""
    return application(database, secret, helper_processes=helper_processes)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    """A steward of it."""
    with client_of(app) as opened:
        yield opened


@pytest.fixture
def alone(database: Database, secret: Secret) -> Iterator[TestClient]:
    """The same without helpers, for tests that change what runs in this process."""
    with client_of(application(database, secret)) as opened:
        yield opened


@pytest.fixture
def embedded(_sqlite_template: Path, tmp_path: Path, secret: Secret, helper_processes: int) -> Iterator[TestClient]:
    """The same on SQLite alone, for what does not depend on which database it is."""
    path = tmp_path / "embedded.db"
    shutil.copyfile(_sqlite_template, path)
    app = application(open_database(f"sqlite:///{path}"), secret, helper_processes=helper_processes)
    with client_of(app) as opened:
        yield opened


@pytest.fixture(scope="module")
def still(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A steward of an application that a module's tests share, for what does not depend on what is stored.

    It has a helper, so that all that these tests ask goes through one.
    """
    path = tmp_path_factory.mktemp("shared") / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    app = application(open_database(f"sqlite:///{path}"), Secret(bytes(range(32))), helper_processes=1)
    with client_of(app) as opened:
        yield opened


@pytest.fixture
def served(app: FastAPI) -> Iterator[Client]:
    """A steward who calls the application through a socket, from as many threads as he likes."""
    with serving(app) as address, Client(base_url=address, headers=bearer(STEWARD), timeout=60) as opened:
        yield opened


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The address of an application that a real server runs in a thread."""
    server = uvicorn.Server(configuration(app.state.settings, app, "127.0.0.1", 0))
    ready = threading.Event()
    main_loop = server.main_loop

    async def announce() -> None:
        ready.set()
        await main_loop()

    server.main_loop = announce  # type: ignore[method-assign] # uvicorn has no hook for having started
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(30), "the server did not start"
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
