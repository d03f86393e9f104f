"""Prometheus metrics: figures that agree with the ledger, and no name or count that they must not have."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from service.api.http.problems import KINDS
from service.app import create_app
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret
from service.settings import Settings
from tests.api.calls import Client, application, charge, client_of, json_of, open_account, problem_of, pure, release
from tests.api.streams import counts, noisy_of, register

_COUNT = 8675309021  # a count that cannot occur here otherwise
_WIDE = {"type": "geometric", "scale": 10**9}


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all figures of an exposition by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figure(client: Client, name: str, **labels: str) -> float:
    """Return one figure; 0 where it is absent."""
    return samples(client.get("/metrics").text).get((name, frozenset(labels.items())), 0.0)


def _by(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, label: str) -> dict[str, float]:
    return {dict(of)[label]: value for (given, of), value in found.items() if given == name and value}


@pytest.fixture
def shown(_sqlite_template: Path, tmp_path: Path, secret: Secret) -> Iterator[TestClient]:
    """Return a steward's client of a service that shows two budgets, one of an account that does not exist."""
    path = tmp_path / "shown.db"
    shutil.copyfile(_sqlite_template, path)
    app = application(open_database(f"sqlite:///{path}"), secret, metrics_accounts="people,nobody")
    with client_of(app) as opened:
        yield opened


def test_requests_are_counted_by_template_and_status(embedded: Client) -> None:
    for name in ("a", "b"):
        open_account(embedded, name)
        json_of(embedded.get(f"/v1/accounts/{name}"))
    problem_of(embedded.get("/v1/accounts/nobody"), "not_found")
    problem_of(embedded.get("/v1/nothing"), "not_found")
    problem_of(embedded.request("BREW", "/v1/accounts/a"), "method_not_allowed")
    problem_of(embedded.get("/v1/accounts", headers={"Authorization": "Bearer wrong"}), "unauthenticated")
    embedded.get("/static/page.css")
    text = embedded.get("/metrics").text
    counted = {
        (labels["method"], labels["route"], labels["status"]): value
        for (name, of), value in samples(text).items()
        if name == "ledger_http_request_duration_seconds_count"
        for labels in [dict(of)]
    }
    assert counted == {
        ("POST", "/v1/accounts", "201"): 2,
        ("GET", "/v1/accounts/{account}", "200"): 2,
        ("GET", "/v1/accounts/{account}", "404"): 1,
        ("GET", "none", "404"): 1,
        ("other", "/v1/accounts/{account}", "405"): 1,
        ("GET", "none", "401"): 1,
        ("GET", "/static", "200"): 1,
    }
    refused = _by(samples(text), "ledger_refusals_total", "kind")
    assert refused == {"not_found": 2, "method_not_allowed": 1, "unauthenticated": 1}


def test_what_the_ledger_does_is_counted(client: Client) -> None:
    """A replay and a dry run count nothing; a refusal is a journal entry; a batch is many releases."""
    open_account(client, "above", budget={"definition": "pure", "epsilon": 100})
    open_account(client, budget={"definition": "pure", "epsilon": 10}, parent="above")
    release(client, pure(1))
    body = {"name": "x", "plan": pure(1)}
    for _ in range(3):
        json_of(client.post("/v1/accounts/people/releases", json=body, headers={"Idempotency-Key": "k"}), 201)
    json_of(client.post("/v1/accounts/people/releases?dry_run=true", json=body))
    json_of(client.post("/v1/accounts/people/releases/batch", json={"releases": [body] * 3}), 201)
    held = release(client, pure(1), reserve_for="P1D")
    json_of(client.post(f"/v1/accounts/people/releases/{held['id']}/void", json={"reason": "r"}))
    problem_of(charge(client, pure(50)), "budget_exceeded")
    drawing = {"name": "x", "mechanism": pure("1e-3"), "counts": [1, 2, 3]}
    json_of(client.post("/v1/accounts/people/draws", json=drawing), 201)
    noisy_of(register(client, counts([1] * 1000), mechanism=pure("1e-3")))

    found = samples(client.get("/metrics").text)

    assert _by(found, "ledger_releases_total", "state") == {"committed": 7, "reserved": 1}
    assert _by(found, "ledger_journal_entries_total", "kind") == {
        "account_opened": 2,
        "committed": 14,  # in both journals
        "reserved": 2,
        "voided": 2,
        "refused": 1,
        "drawn": 2,
    }
    assert found["ledger_draws_total", frozenset()] == 2
    assert found["ledger_draw_values_total", frozenset()] == 1003


def test_what_may_be_alarming_is_told_before_it_happens(embedded: Client) -> None:
    """Prometheus sees the first increase of a counter only where it has seen its zero."""
    found = samples(embedded.get("/metrics").text)
    for kind in KINDS:
        assert found["ledger_refusals_total", frozenset({("kind", kind)})] == 0
    for kind in ("refused", "repriced", "drawn"):
        assert found["ledger_journal_entries_total", frozenset({("kind", kind)})] == 0


def test_states_are_told(client: Client) -> None:
    found = samples(client.get("/metrics").text)
    assert found["ledger_database_up", frozenset()] == 1
    assert found["ledger_http_requests_in_progress", frozenset()] == 1  # this request
    for pool in ("writers", "readers", "askers"):
        for state in ("in_use", "idle"):
            assert found["ledger_database_connections", frozenset({("pool", pool), ("state", state)})] >= 0
    for queue in ("writer_threads", "writers", "readers", "turns", "helpers"):
        assert found["ledger_waiting", frozenset({("queue", queue)})] == 0
    for state in ("queued", "running"):
        assert found["ledger_jobs", frozenset({("state", state)})] == 0
    assert found["ledger_body_bytes_limit", frozenset({("media", "arrow")})] == Settings().resolved_arrow_bytes_at_once
    assert found["process_resident_memory_bytes", frozenset()] > 10**7
    (build,) = [of for name, of in found if name == "ledger_build"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", dict(build)["version"])


def test_budgets_are_shown_of_the_accounts_that_are_named(shown: Client) -> None:
    open_account(shown, budget={"definition": "pure", "epsilon": "0.3"})
    open_account(shown, "secret", budget={"definition": "pure", "epsilon": "0.3"})
    release(shown, pure("0.1"))
    release(shown, pure("0.1"), account="secret")
    labels = {"account": "people", "definition": "pure"}
    assert figure(shown, "ledger_budget", **labels) <= 0.3
    left = figure(shown, "ledger_budget_remaining", **labels)
    assert left == pytest.approx(0.2)
    assert left <= 0.2
    text = shown.get("/metrics").text
    assert "secret" not in text
    assert "nobody" not in text


def test_without_being_named_none_is(embedded: Client) -> None:
    open_account(embedded)
    release(embedded, pure("0.1"))
    assert "people" not in embedded.get("/metrics").text


def test_neither_counts_nor_names_are_told(shown: Client) -> None:
    open_account(shown, budget={"definition": "pure", "epsilon": 1})
    body = {"name": f"x{_COUNT}", "mechanism": _WIDE, "counts": [_COUNT, -_COUNT]}
    json_of(shown.post("/v1/accounts/people/draws", json=body), 201)
    noisy_of(register(shown, counts([_COUNT] * 3), mechanism=_WIDE))
    shown.post("/v1/accounts/people/draws", json=body | {"counts": [f"{_COUNT}"]})
    shown.get(f"/v1/accounts/{_COUNT}?x={_COUNT}")
    shown.request(f"X{_COUNT}", f"/v1/{_COUNT}", headers={"X-Request-Id": str(_COUNT)})
    text = shown.get("/metrics").text
    assert str(_COUNT) not in text.replace(".", "")  # also as 8.67e+09
    assert "first-steward" not in text


def test_labels_do_not_grow_with_what_is_asked(embedded: Client) -> None:
    def ask(number: int) -> int:
        embedded.get(f"/v1/accounts/a{number}", headers={"X-Request-Id": f"r{number}"})
        embedded.get(f"/v1/x{number}")
        embedded.request(f"M{number}", f"/problems/p{number}")
        embedded.get(f"/static/s{number}")
        return len(samples(embedded.get("/metrics").text))

    ask(0)
    first = ask(1)
    assert [ask(number) for number in range(2, 30)] == [first] * 28


def test_odd_methods_share_one_label(embedded: Client) -> None:
    for method in ("BREW", "TRACE", "PROPFIND", "X" * 200):
        for path in ("/v1/accounts", "/v1/none", "/static/page.css", "/", "/metrics"):
            embedded.request(method, path)
    methods = {dict(of).get("method") for _, of in samples(embedded.get("/metrics").text)} - {None}
    assert {"other"} <= methods <= {"other", "GET", "POST"}


def test_it_is_open_and_in_the_format_that_is_asked_for(shared_client: Client) -> None:
    plain = shared_client.get("/metrics", headers={"Authorization": ""})
    assert plain.headers["Content-Type"].startswith("text/plain; version=")
    newer = shared_client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert newer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = read_openmetrics(newer.text)  # type: ignore[no-untyped-call]
    assert {family.name for family in families} >= {"ledger_refusals", "ledger_draws"}
    problem_of(shared_client.post("/metrics"), "method_not_allowed")


def test_applications_do_not_share_figures(embedded: Client, shown: Client) -> None:
    open_account(embedded)
    assert figure(embedded, "ledger_journal_entries_total", kind="account_opened") == 1
    assert figure(shown, "ledger_journal_entries_total", kind="account_opened") == 0


def test_a_database_that_does_not_answer_is_told(secret: Secret, tmp_path: Path) -> None:
    app = create_app(Settings(), open_database(f"sqlite:///{tmp_path}/without-tables.db"), secret, None)
    with client_of(app) as client:
        found = samples(client.get("/metrics").text)
    assert found["ledger_database_up", frozenset()] == 0
    assert ("ledger_jobs", frozenset({("state", "queued")})) not in found


def test_a_database_of_another_version_is_told(database: Database, secret: Secret) -> None:
    """The readiness probe does too, so that an alert explains why a proxy avoids a replica."""
    with client_of(create_app(Settings(), database, secret, None)) as client:
        assert figure(client, "ledger_database_up") == 1
        database.write(
            lambda connection: connection.execute(text("UPDATE alembic_version SET version_num = '0001'")),
            is_committed=lambda *_: False,
        )
        assert figure(client, "ledger_database_up") == 0
