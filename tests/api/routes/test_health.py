"""Liveness and readiness probes."""

import time
from contextlib import ExitStack

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from service.api.routes import health
from service.app import create_app
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret
from service.settings import Settings
from tests.api.calls import Client, application, client_of, json_of, problem_of


def test_health(client: Client) -> None:
    assert json_of(client.get("/healthz")) == {"status": "alive"}
    assert json_of(client.get("/readyz")) == {"status": "ready"}


def test_a_probe_waits_for_nobody_who_reads_or_writes(database: Database, secret: Secret) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(client_of(application(database, secret)))
        for _ in range(16):
            stack.enter_context(database.read())
        for _ in range(16 if database.kind == "postgresql" else 1):
            stack.enter_context(database.writers.place(time.monotonic() + 60))
        assert json_of(client.get("/readyz")) == {"status": "ready"}


# On PostgreSQL a probe waits for the network, in a thread of its own.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_probe_on_sqlite_waits_for_no_thread(
    database: Database, secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(health, "to_thread")
    with client_of(application(database, secret)) as client:
        assert json_of(client.get("/readyz")) == {"status": "ready"}


def test_a_service_is_not_ready_before_its_database_is(empty_database_url: str, secret: Secret) -> None:
    with TestClient(create_app(Settings(), open_database(empty_database_url), secret, None)) as client:
        json_of(client.get("/healthz"))
        answer = client.get("/readyz")
        problem_of(answer, "unavailable")
        assert "migrate" in answer.json()["detail"]
        assert int(answer.headers["Retry-After"]) > 0


def test_a_service_is_not_ready_once_its_tables_are_gone(database: Database, secret: Secret) -> None:
    with TestClient(create_app(Settings(), database, secret, None)) as client:
        json_of(client.get("/readyz"))
        database.write(
            lambda connection: connection.execute(text("DROP TABLE alembic_version")), is_committed=lambda *_: False
        )
        problem_of(client.get("/readyz"), "unavailable")
