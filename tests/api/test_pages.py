"""What is open without a key: health, and documentation that needs no other host."""

import re

from fastapi.testclient import TestClient
from sqlalchemy import text

from service.app import create_app
from service.ledger.database import Database, open_database
from service.ledger.installation import Secret
from service.settings import Settings
from tests.api.calls import Client, json_of, problem_of


def test_the_documentation_names_no_other_host(still: Client) -> None:
    page = still.get("/docs")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) >= 4
    for address in named:
        assert address.startswith("/")
        assert not address.startswith("//")
        assert still.get(address).status_code == 200
    assert "://" not in page.text
    assert "<script>" not in page.text  # the policy would refuse it
    assert "://" not in still.get("/static/docs.js").text


def test_the_start_leads_to_the_documentation(still: Client) -> None:
    answer = still.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (307, "/docs")


def test_health(client: Client) -> None:
    assert json_of(client.get("/healthz")) == {"status": "alive"}
    assert json_of(client.get("/readyz")) == {"status": "ready"}


def test_a_service_is_not_ready_before_its_database_is(empty_database_url: str, secret: Secret) -> None:
    with TestClient(create_app(Settings(), open_database(empty_database_url), secret)) as client:
        json_of(client.get("/healthz"))
        answer = client.get("/readyz")
        problem_of(answer, "unavailable")
        assert "migrate" in answer.json()["detail"]
        assert int(answer.headers["Retry-After"]) > 0


def test_a_service_is_not_ready_once_its_tables_are_gone(database: Database, secret: Secret) -> None:
    with TestClient(create_app(Settings(), database, secret)) as client:
        json_of(client.get("/readyz"))
        database.write(
            lambda connection: connection.execute(text("DROP TABLE alembic_version")), landed=lambda *_: False
        )
        problem_of(client.get("/readyz"), "unavailable")
