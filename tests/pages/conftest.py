"""The application as a browser without a window meets it: with cookies, and requests for HTML."""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI, Response
from fastapi.testclient import TestClient

from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from tests.api.calls import STEWARD, Client, application, bearer, client_of
from tests.api.conftest import embedded, helper_processes, shared_client
from tests.browser.ledger import fill
from tests.pages.visits import sign_in

__all__ = ["embedded", "helper_processes", "shared_client"]


_SECRET = Secret(bytes(range(32)))


@pytest.fixture(scope="session")
def _filled(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with some accounts and releases, filled once and copied for each test."""
    path = tmp_path_factory.mktemp("filled") / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    with client_of(application(open_database(f"sqlite:///{path}"), _SECRET)) as client:
        fill(client)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def pictures() -> None:
    """Have pictures drawn, for tests about them."""


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing of an account's pictures, which takes half of the time of its page."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(
            "service.api.charts.pictures.respond", lambda _, kind, *__: Response("<svg />", media_type=kind)
        )


@pytest.fixture
def app(_filled: Path, tmp_path: Path) -> FastAPI:
    """Return the application over a copy of it."""
    path = tmp_path / "ledger.db"
    shutil.copyfile(_filled, path)
    return application(open_database(f"sqlite:///{path}"), _SECRET)


@pytest.fixture
def visitor(app: FastAPI) -> Iterator[Client]:
    """Return a client that is not signed in."""
    html = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
    with TestClient(app, headers=html, follow_redirects=False, raise_server_exceptions=False) as opened:
        yield opened


@pytest.fixture
def api(app: FastAPI, visitor: Client) -> Client:
    """Return a steward's client of the same application's API."""
    return TestClient(app, headers=bearer(STEWARD))


@pytest.fixture
def steward(visitor: Client) -> Client:
    """Return a client that is signed in with the first steward's key."""
    sign_in(visitor)
    return visitor
