"""The application as a browser without a window meets it: with cookies, and asking for HTML."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.ledger.database import open_database
from service.ledger.installation import Secret
from tests.api.calls import STEWARD, Client, application, bearer
from tests.api.conftest import still
from tests.browser.ledger import fill
from tests.pages.visits import sign_in

__all__ = ["still"]


@pytest.fixture
def app(_sqlite_template: Path, tmp_path: Path, secret: Secret) -> FastAPI:
    """The application over a database of the test's own, with some accounts and releases."""
    path = tmp_path / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    return application(open_database(f"sqlite:///{path}"), secret)


@pytest.fixture
def visitor(app: FastAPI) -> Iterator[Client]:
    """Somebody who is not signed in."""
    html = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
    with TestClient(app, headers=html, follow_redirects=False, raise_server_exceptions=False) as opened:
        yield opened


@pytest.fixture
def api(app: FastAPI, visitor: Client) -> Client:
    """A steward's program, of the same application."""
    client = TestClient(app, headers=bearer(STEWARD))
    fill(client)
    return client


@pytest.fixture
def steward(api: Client, visitor: Client) -> Client:
    """Somebody who has signed in with the first steward's key."""
    sign_in(visitor)
    return visitor
