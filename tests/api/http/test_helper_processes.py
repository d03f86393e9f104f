"""Helper processes: they answer long requests with the same figures, and end when the client hangs up."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import InvalidOperation
from functools import partial
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient
from starlette.routing import Route
from starlette.types import Message, Scope

from service.api.http import buffered_answer, kept_figures, request_parsing as body
from service.api.http.buffered_answer import BufferedAnswer
from service.api.http.helper_processes import Helpers
from service.api.http.memory_room import ROOM
from service.api.openapi import contract
from service.api.routes.noisy_counts import (
    draws as api_draws,
    histograms as api_histograms,
    tabulations as api_tabulations,
)
from service.api.routes.release_pricing import check_work
from service.api.schemas import draw_responses as drawn, tabulation_responses
from service.api.schemas.guarantees import cost_of
from service.errors import InvalidInput, TooManyRequests, Unavailable
from service.ledger.draws import stored_draws as ledger_drawn
from service.ledger.releases import releases as ledger_releases
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret
from service.privacy.plans import notation
from tests.api.calls import (
    STEWARD,
    Client,
    application,
    bearer,
    charge,
    client_of,
    concentrated,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    release,
)
from tests.api.conftest import serving
from tests.api.streams import batches_of, counts, headers, stream
from tests.ledger.storage.test_newest_heads import put_row, stored_account
from tests.waiting import until

_LARGE = {"type": "sequence", "parts": [concentrated(f"0.00{1000 + k}") for k in range(1200)]}
_MIXED = {
    "type": "sequence",
    "parts": [{"type": "discrete_gaussian", "sigma_squared": f"{40 + k}.5"} for k in range(6)]
    + [{"type": "geometric", "scale": f"{20 + k}.25"} for k in range(12)],
}
_WIDE = {"definition": "zcdp", "rho": 100}
_APPROXIMATE = {"definition": "approximate", "epsilon": 1000, "delta": "1e-6"}


@pytest.fixture
def helper_processes() -> int:
    return 2


def _offset(k: int) -> dict[str, Any]:
    return {"type": "discrete_osgt", "sigma_squared": f"{100 + k}.5", "m": "3"}


def _slow() -> bytes:
    """Return the bytes of a request for a composition that takes a minute."""
    body = json.dumps({"plan": {"type": "sequence", "parts": [_offset(k) for k in range(100)]}}).encode()
    head = f"POST /v1/compositions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_figures_are_the_same_to_the_last_digit_wherever_they_are_found(client: TestClient, alone: TestClient) -> None:
    asked = {"plan": _MIXED, "deltas": ["1e-6", "1e-10"]}
    assert client.post("/v1/compositions", json=asked).text == alone.post("/v1/compositions", json=asked).text
    for name in ("one", "two"):
        open_account(client, name, _APPROXIMATE)
    for caller, name in ((client, "one"), (alone, "two")):
        for plan in (_MIXED, _LARGE, _MIXED):
            release(caller, plan, name)
    bodies = [
        [
            {name: one[name] for name in ("plan", "cost", "remaining")}
            for one in json_of(caller.get(f"/v1/accounts/{of}/releases"))["items"]
        ]
        for caller, of in ((client, "one"), (alone, "two"))
    ]
    assert bodies[0] == bodies[1]
    balances = [json_of(caller.get(f"/v1/accounts/{of}/balance")) for caller, of in ((client, "one"), (alone, "two"))]
    assert balances[0]["spent"] == balances[1]["spent"]
    assert balances[0]["remaining"] == balances[1]["remaining"]
    assert json_of(client.get("/v1/accounts/two/verify"))["valid"]


@pytest.mark.parametrize("path", ["export", "releases"])
def test_a_helper_knows_what_was_committed(client: TestClient, database: Database, path: str) -> None:
    """A thread that asked it writes nothing more where a row was put back to an earlier state."""
    open_account(client)
    release(client, concentrated("0.1"))
    row = stored_account(database)
    release(client, concentrated("0.1"))
    assert client.get(f"/v1/accounts/people/{path}").status_code == 200
    other = open_database(database.url)
    put_row(other, row)
    problem = problem_of(client.get(f"/v1/accounts/people/{path}"), "unavailable")
    assert "the ledger lacks" in problem["detail"]
    assert database.stopped is not None
    problem_of(charge(client, concentrated("0.1")), "unavailable")
    other.close()


def test_too_much_work_is_refused_before_it_begins(embedded: TestClient) -> None:
    orders = [str(2 + k) for k in range(999)]
    body = {"plan": {"type": "sequence", "parts": [_offset(k) for k in range(100)]}, "orders": orders}
    answer = embedded.post("/v1/compositions", json=body)
    assert pointers_of(answer) == ["/plan"]
    (fault,) = answer.json()["errors"]
    assert "expected work of at most 100000 units" in fault["detail"]
    assert "got about" in fault["detail"]


def test_a_charge_that_is_too_much_work_is_refused_and_charges_nothing(database: Database, secret: Secret) -> None:
    with client_of(application(database, secret, max_work=100)) as client:
        open_account(client, budget=_APPROXIMATE)
        assert pointers_of(charge(client, _offset(1))) == ["/plan"]
        assert json_of(client.get("/v1/accounts/people"))["head"]["seq"] == 1
        json_of(charge(client, concentrated("0.1")), 201)


@pytest.mark.parametrize("helpers", [0, 1])
def test_a_draw_leaves_no_figures_that_others_are_answered_with(
    database: Database, secret: Secret, helpers: int
) -> None:
    mechanism = _offset(1000 + helpers)  # each process caches figures
    with client_of(application(database, secret, helper_processes=helpers)) as client:
        for name in ("drawn", "other"):
            open_account(client, name, _APPROXIMATE)
        drawn = {"name": "x", "mechanism": mechanism, "counts": [10] * 6000}  # long enough for a helper
        json_of(client.post("/v1/accounts/drawn/draws", json=drawn), 201)
        asked = {"name": "x", "plan": mechanism}
        dry = json_of(client.post("/v1/accounts/other/releases?dry_run=true", json=asked))
        tags = [f"{number}-{'t' * 190}" for number in range(64)]  # long enough for a helper
        made = release(client, mechanism, "other", tags=tags, partitions=["p" * 150 + str(k) for k in range(30)])
        assert made["cost"] == dry["cost"]
        assert dry["cost"]["approximate"]


def test_what_was_registered_before_a_limit_was_lowered_is_still_settled(database_url: str, secret: Secret) -> None:
    plan = {"type": "sequence", "parts": [_offset(1), _offset(2)]}
    with client_of(application(open_database(database_url), secret)) as client:
        open_account(client, budget=_APPROXIMATE)
        held = release(client, plan, reserve_for="P1D")
    lower = application(open_database(database_url), secret, max_plan_osgt=1, max_work=10)
    with client_of(lower) as client:
        settled = json_of(client.post(f"/v1/accounts/people/releases/{held['id']}/commit"))
        assert settled["cost"] == held["cost"]
        assert pointers_of(charge(client, plan)) == ["/plan"]


def test_work_up_to_the_bound_is_no_fault() -> None:
    check_work(100, 100.0, "/plan")
    with pytest.raises(InvalidInput):
        check_work(100, 100.1, "/plan")


def test_who_hangs_up_ends_the_work_and_others_are_answered(app: FastAPI) -> None:
    helpers = app.state.helpers
    with serving(app) as address, Client(base_url=address, headers=bearer(STEWARD), timeout=60) as client:
        target = urlsplit(address)
        hanging = [socket.create_connection((target.hostname, target.port)) for _ in range(3)]
        for connection in hanging:
            connection.sendall(_slow())
        until(lambda: helpers.queue.busy == 1 and helpers.queue.waiting == 2)  # one at a time of one principal
        other = make_key(client, "auditor")
        json_of(client.post("/v1/compositions", json={"plan": concentrated("0.1")}, headers=other))
        for connection in hanging:
            connection.close()
        until(lambda: helpers.queue.busy == helpers.queue.waiting == 0)
        assert helpers.hung_up == 3
        json_of(client.post("/v1/compositions", json={"plan": concentrated("0.1")}))


def test_requests_of_one_principal_beyond_the_queue_are_429(app: FastAPI) -> None:
    app.state.helpers.queue._most = 2
    with serving(app) as address, Client(base_url=address, headers=bearer(STEWARD), timeout=60) as client:
        target = urlsplit(address)
        waiting = [socket.create_connection((target.hostname, target.port)) for _ in range(3)]
        for connection in waiting:
            connection.sendall(_slow())
        until(lambda: app.state.helpers.queue.waiting == 2)
        answer = client.post("/v1/compositions", json={"plan": concentrated("0.1")})
        problem_of(answer, "too_many_requests")
        assert int(answer.headers["Retry-After"]) > 0
        for connection in waiting:
            connection.close()


def test_a_key_whose_clients_hang_up_over_and_over_is_refused_until_they_stop(app: FastAPI) -> None:
    helpers = app.state.helpers
    with serving(app) as address, Client(base_url=address, headers=bearer(STEWARD), timeout=60) as client:
        target, other = urlsplit(address), make_key(client, "auditor")
        hanging = [socket.create_connection((target.hostname, target.port)) for _ in range(60)]
        for connection in hanging:
            connection.sendall(_slow())
        until(lambda: helpers.queue.busy == 1 and helpers.queue.waiting == 59)
        for connection in hanging:
            connection.close()
        until(lambda: helpers.hung_up == 60)
        refused = client.get("/v1/accounts")
        assert "abandoned before their answers" in problem_of(refused, "too_many_requests")["detail"]
        assert 0 < int(refused.headers["Retry-After"]) <= 60
        json_of(client.get("/v1/accounts", headers=other))


def test_what_takes_too_long_is_503_and_ended(database: Database, secret: Secret) -> None:
    app = application(database, secret, helper_processes=2)
    with client_of(app) as client:
        json_of(client.post("/v1/compositions", json={"plan": concentrated("0.1")}))  # one helper is ready
        app.state.helpers._seconds = 2.0
        plan = {"type": "sequence", "parts": [_offset(k) for k in range(100)]}
        problem_of(client.post("/v1/compositions", json={"plan": plan}), "unavailable")
        assert app.state.helpers.overran == 1
        app.state.helpers._seconds = 600.0
        json_of(client.post("/v1/compositions", json={"plan": concentrated("0.1")}))


def test_a_helper_that_was_ended_is_replaced(app: FastAPI) -> None:
    with client_of(app) as client:
        asked = {"plan": concentrated("0.1")}
        json_of(client.post("/v1/compositions", json=asked))
        ended = app.state.helpers._idle[-1]
        ended.end()
        until(lambda: not ended.is_alive)
        json_of(client.post("/v1/compositions", json=asked))
        assert ended not in app.state.helpers._idle


def _not_answering() -> FastAPI:
    raise Unavailable("the database does not answer")


def test_a_helper_that_cannot_open_the_database_makes_no_internal_error(app: FastAPI) -> None:
    helpers, asked = app.state.helpers, {"plan": concentrated("0.1")}
    opening, helpers._application = helpers._application, _not_answering
    with client_of(app) as client:
        problem_of(client.post("/v1/compositions", json=asked), "unavailable")
        helpers._application = opening
        json_of(client.post("/v1/compositions", json=asked))


def _crashing(make: Callable[[], FastAPI]) -> FastAPI:
    async def crash(_: Request) -> Response:
        raise InvalidOperation

    app = make()
    app.router.routes.insert(0, Route("/v1/compositions", crash, methods=["POST"]))
    return app


def test_an_unforeseen_error_in_a_helper_is_a_whole_answer_and_the_helper_lives_on(app: FastAPI) -> None:
    helpers = app.state.helpers
    helpers._application = partial(_crashing, helpers._application)
    with client_of(app) as client:
        open_account(client)
        json_of(client.get("/v1/accounts/people/journal"))
        (helper,) = helpers._idle
        for _ in range(2):
            answer = client.post("/v1/compositions", json={"plan": concentrated("0.1")})
            problem_of(answer, "internal")
            assert int(answer.headers["Content-Length"]) == len(answer.content)
        json_of(client.get("/v1/accounts/people/journal"))
        assert helpers._idle == [helper]


def test_figures_of_large_plans_are_kept_and_made_up_ones_are_not_taken(client: TestClient, database: Database) -> None:
    open_account(client, budget={"definition": "zcdp", "rho": 100})
    release(client, _LARGE)
    paths = ("releases", "balance")
    first = [json_of(client.get(f"/v1/accounts/people/{path}")) for path in paths]
    until(lambda: len(_known(database)) == 2)
    assert [json_of(client.get(f"/v1/accounts/people/{path}")) for path in paths] == first

    def forge(connection: Any) -> None:
        connection.exec_driver_sql("UPDATE known_costs SET cost = '{}'")

    database.write(forge, is_committed=lambda _, __: False)
    assert [json_of(client.get(f"/v1/accounts/people/{path}")) for path in paths] == first
    release(client, concentrated("0.01"))
    after = json_of(client.get("/v1/accounts/people/balance"))
    assert after["spent"]["zcdp"]["rho"] > first[1]["spent"]["zcdp"]["rho"]


def test_the_cost_of_a_large_plan_is_kept_when_it_is_registered(
    alone: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(alone, budget={"definition": "zcdp", "rho": 100})
    costs = [release(alone, plan)["cost"] for plan in (_LARGE, _LARGE)]
    release(alone, concentrated("0.01"))
    assert len(_known(database)) == 2, "those of the large ones"
    computed = Mock(wraps=cost_of)
    monkeypatch.setattr(kept_figures, "cost_of", computed)
    listed = json_of(alone.get("/v1/accounts/people/releases"))["items"]
    assert [one["cost"] for one in listed[:2]] == costs
    assert computed.call_count == 1, "of the small one"


def test_no_figure_is_kept_of_spending_that_somebody_changed(client: TestClient, database: Database) -> None:
    open_account(client, budget={"definition": "zcdp", "rho": 100})
    release(client, _LARGE)
    kept = _known(database)

    def run(*statements: str) -> None:
        def work(connection: Any) -> None:
            for statement in statements:
                connection.exec_driver_sql(statement)

        database.write(work, is_committed=lambda _, __: False)

    run("CREATE TABLE before AS SELECT * FROM spending", "UPDATE spending SET subplan = replace(subplan, '1', '2')")
    for query in ("", "?delta=1e-7"):
        problem_of(client.get(f"/v1/accounts/people/balance{query}"), "unavailable")
    assert _known(database) == kept, "the cost of the release alone"
    run("DELETE FROM spending", "INSERT INTO spending SELECT * FROM before", "DROP TABLE before")
    balance = json_of(client.get("/v1/accounts/people/balance"))
    assert balance["spent"]["zcdp"]["rho_exact"] == "1.9194"
    until(lambda: len(_known(database)) == len(kept) + 1)


def _known(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.exec_driver_sql("SELECT subject FROM known_costs").scalars())


_NOISE = {"type": "discrete_gaussian", "sigma_squared": "5"}
_CELLS, _SIDE = 10_000, [str(k) for k in range(100)]
_HEAVY: dict[str, dict[str, Any]] = {
    "draws": {"name": "x", "mechanism": _NOISE, "counts": [9] * _CELLS},
    "histograms": {
        "name": "x",
        "mechanism": _NOISE,
        "dimensions": [{"name": "a", "values": _SIDE}, {"name": "b", "values": _SIDE}],
        "counts": [9] * _CELLS,
        "margins": [["a"]],
        "published": [{"margin": [of], "values": [one], "total": 900} for of in "ab" for one in _SIDE],
        "adjust": "rake",
    },
    "few cells": {
        "name": "x",
        "mechanism": _NOISE,
        "dimensions": [{"name": "a", "values": ["0", "1"]}],
        "counts": [9, 9],
        "published": [{"margin": [], "values": [], "total": 18}],
        "adjust": "least_squares",
    },
    "margins": {
        "name": "x",
        "mechanism": _NOISE,
        "dimensions": [{"name": "a", "values": _SIDE}],
        "counts": [9] * len(_SIDE),
        "margins": [["a"]] * 100,
    },
    "of a release": {"mechanism": "m", "counts": [9] * _CELLS},
    "tabulations": {
        "level": "level",
        "groups": [{"group": str(k), "sex_by_age": [[9] * 100, [9] * 100]} for k in range(100)],
    },
}
_LEVEL = {
    "type": "choice",
    "parts": [
        _NOISE | {"name": "level/total"},
        {"type": "sequence", "parts": [_NOISE | {"name": f"level/{step}"} for step in (1, 2)]},
    ],
}


def _heavy_path(client: TestClient, what: str) -> str:
    if what in {"draws", "histograms", "few cells", "margins"}:
        return f"/v1/accounts/people/{'draws' if what == 'draws' else 'histograms'}"
    of = release(client, _LEVEL if what == "tabulations" else _NOISE | {"name": "m"})["id"]
    return f"/v1/accounts/people/releases/{of}/{'tabulations' if what == 'tabulations' else 'draws'}"


def _entries(client: TestClient) -> int:
    return int(json_of(client.get("/v1/accounts/people"))["head"]["seq"])


@pytest.fixture
def elsewhere(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Return a client of a server that leaves drawing, adjusting and long JSON to helpers."""
    open_account(client, budget={"definition": "zcdp", "rho": 100})

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("this is for a helper")

    for module, name in (
        (api_draws, "add_noise"),
        (api_tabulations, "tabulate"),
        (api_histograms, "added_up"),
        (drawn, "json_counts"),
        (tabulation_responses, "ends_of"),
    ):
        monkeypatch.setattr(module, name, refuse)
    return client


@pytest.mark.parametrize("helpers", [0, 1])
def test_a_long_plan_is_read_by_a_helper_and_never_in_a_transaction(
    database: Database, secret: Secret, helpers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [_NOISE | {"name": f"m{k}"} for k in range(500)]
    within, read = threading.local(), notation.read_plan

    @contextmanager
    def around(_: str) -> Iterator[None]:
        within.depth = getattr(within, "depth", 0) + 1
        try:
            yield
        finally:
            within.depth -= 1

    def read_outside(document: Any) -> Any:
        assert not helpers, "this is for a helper"
        assert not getattr(within, "depth", 0), "this is for after the transaction"
        return read(document)

    with client_of(application(database, secret, helper_processes=helpers)) as client:
        open_account(client, budget={"definition": "zcdp", "rho": 1000})
        released = release(client, {"type": "choice", "parts": parts})
        at = f"/v1/accounts/people/releases/{released['id']}"
        for module in (ledger_releases, ledger_drawn):
            monkeypatch.setattr(module, "read_plan", read_outside)
        database.around = around
        key = {"Idempotency-Key": "k"}
        asked = {"mechanism": "m3", "partition": "a", "counts": [5]}
        first = client.post(f"{at}/draws", json=asked, headers=key)
        drawn_body = json_of(first, 201)
        assert client.post(f"{at}/draws", json=asked, headers=key).text == first.text
        streamed = {"mechanism": "m3", "partition": "b"}
        stream = client.post(f"{at}/draws", params=streamed, content=counts([7]), headers=headers())
        assert stream.status_code == 201
        assert pointers_of(client.post(f"{at}/draws", json=asked | {"mechanism": "m"})) == ["/mechanism"]
        refused = client.post(f"{at}/draws", params={"mechanism": "m"}, content=counts([7]), headers=headers())
        assert pointers_of(refused) == ["/query/mechanism"]
        assert pointers_of(client.post(f"{at}/draws", json=asked | {"repetition": 1})) == ["/repetition"]
        problem_of(client.post(f"{at}/draws", json=asked | {"mechanism": "m4"}), "already_drawn")
        assert json_of(client.get(f"{at}/draws"))["items"][0] == drawn_body
        assert len(json_of(client.get(f"{at}/draws?noisy=false"))["items"]) == 2
        assert json_of(client.get(f"/v1/accounts/people/draws/{drawn_body['draw']}")) == drawn_body
        for _ in range(2):
            assert json_of(client.post(f"{at}/commit"))["cost"] == released["cost"]
        assert json_of(client.patch(at, json={"metadata": {"notes": "x"}}))["cost"] == released["cost"]


def test_as_many_large_releases_of_one_principal_are_settled_at_once_as_he_likes(app: FastAPI) -> None:
    with serving(app) as address, Client(base_url=address, headers=bearer(STEWARD), timeout=60) as client:
        open_account(client, budget=_WIDE)
        paths = [f"/v1/accounts/people/releases/{release(client, _LARGE, name=str(k))['id']}" for k in range(12)]

        def ask(path: str) -> int:
            return client.post(f"{path}/commit").status_code

        with ThreadPoolExecutor(12) as threads:
            assert set(threads.map(ask, paths)) == {200}


@pytest.mark.parametrize("what", _HEAVY)
def test_large_draws_are_computed_by_a_helper_and_stored_once(elsewhere: TestClient, what: str) -> None:
    path, key = _heavy_path(elsewhere, what), {"Idempotency-Key": "k"}
    before = _entries(elsewhere)
    first = elsewhere.post(path, json=_HEAVY[what], headers=key)
    json_of(first, 201)
    written = _entries(elsewhere) - before
    assert written == (1 if "releases" in path else 2)
    again = elsewhere.post(path, json=_HEAVY[what], headers=key)
    assert (again.status_code, again.text) == (201, first.text)
    assert again.headers["Idempotent-Replay"] == "true"
    spaced = json.dumps(_HEAVY[what]) + " "
    json_type = {"Content-Type": "application/json"}
    problem_of(elsewhere.post(path, content=spaced, headers=key | json_type), "idempotency_conflict")
    if "releases" in path:
        problem_of(elsewhere.post(path, json=_HEAVY[what]), "already_drawn")
    assert _entries(elsewhere) - before == written
    assert json_of(elsewhere.get("/v1/accounts/people/verify"))["valid"]


def test_groups_of_a_large_stream_are_tabulated_by_a_helper_and_stored_once(elsewhere: TestClient) -> None:
    path = _heavy_path(elsewhere, "tabulations") + "?level=level"
    before = _entries(elsewhere)
    content = stream({"group": [f"{k:0100}" for k in range(200)], "total_only": [True] * 200, "total": [5] * 200})
    first, again = (elsewhere.post(path, content=content, headers=headers("k")) for _ in range(2))
    assert (first.status_code, again.status_code, again.content) == (201, 201, first.content)
    assert again.headers["Idempotent-Replay"] == "true"
    assert len(batches_of(first.content)[0].batch) == 200
    problem_of(elsewhere.post(path, content=content, headers=headers()), "already_drawn")
    refused = elsewhere.post(path, content=content[:-1000], headers=headers())
    assert refused.status_code == 422
    assert _entries(elsewhere) == before + 1
    assert json_of(elsewhere.get("/v1/accounts/people/verify"))["valid"]


def test_a_stream_for_which_a_helper_has_no_memory_stays_in_the_serving_process(
    elsewhere: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _heavy_path(elsewhere, "tabulations") + "?level=level"
    content = stream({"group": [f"{k:0100}" for k in range(200)], "total_only": [True] * 200, "total": [5] * 200})
    monkeypatch.setattr(
        app.state, "settings", app.state.settings.model_copy(update={"max_json_bytes": len(content) - 1})
    )
    problem_of(elsewhere.post(path, content=content, headers=headers()), "internal")  # as the fixture refuses to do it


def test_what_is_refused_when_it_is_written_leaves_the_helper_and_charges_nothing(
    elsewhere: TestClient, app: FastAPI
) -> None:
    path = _heavy_path(elsewhere, "draws")
    json_of(elsewhere.post(path, json=_HEAVY["draws"]), 201)
    helper, before = app.state.helpers._idle[-1], _entries(elsewhere)
    refused = elsewhere.post(path, json=_HEAVY["draws"] | {"mechanism": _NOISE | {"sigma_squared": "1/2000"}})
    assert problem_of(refused, "budget_exceeded")["requested"] == 1000
    refused = elsewhere.post(path, json=_HEAVY["draws"], headers={"Idempotency-Key": "k" * 256})
    assert pointers_of(refused) == ["/header/Idempotency-Key"]
    assert _entries(elsewhere) == before + 1  # the refusal
    json_of(elsewhere.post(path, json=_HEAVY["draws"]), 201)
    assert app.state.helpers._idle == [helper]


def test_a_draw_whose_helper_was_ended_charges_nothing(
    elsewhere: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = _heavy_path(elsewhere, "draws"), {"Idempotency-Key": "k"}
    json_of(elsewhere.post(path, json=_HEAVY["draws"]), 201)
    before = _entries(elsewhere)
    with monkeypatch.context() as patched:
        helper = app.state.helpers._idle.pop()
        patched.setattr(app.state.helpers, "_take_idle", lambda: helper)  # it ends after it was chosen
        helper.end()
        problem_of(elsewhere.post(path, json=_HEAVY["draws"], headers=key), "unavailable")
    assert _entries(elsewhere) == before
    assert "Idempotent-Replay" not in elsewhere.post(path, json=_HEAVY["draws"], headers=key).headers


def test_many_counts_are_read_back_by_a_helper(elsewhere: TestClient) -> None:
    drawn_body = json_of(elsewhere.post(_heavy_path(elsewhere, "draws"), json=_HEAVY["draws"]), 201)
    path = f"/v1/accounts/people/draws/{drawn_body['draw']}"
    assert json_of(elsewhere.get(path)) == drawn_body
    page = json_of(elsewhere.get(f"/v1/accounts/people/releases/{drawn_body['release']}/draws"))
    assert page["items"] == [drawn_body]


def test_who_reads_slowly_keeps_no_helper(elsewhere: TestClient, app: FastAPI) -> None:
    body = json_of(elsewhere.post(_heavy_path(elsewhere, "draws"), json=_HEAVY["draws"]), 201)
    path = f"/v1/accounts/people/draws/{body['draw']}"
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {STEWARD}".encode())],
    }
    parts: list[bytes] = []

    async def read() -> None:
        asked = False

        async def receive() -> Message:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            assert app.state.helpers.queue.busy == 0  # even from the first one, whose answer may never be read
            parts.append(message.get("body", b""))

        await app(scope, receive, send)

    assert elsewhere.portal is not None
    elsewhere.portal.call(read)
    assert json.loads(b"".join(parts)) == body


def test_an_answer_for_which_there_is_no_room_is_passed_on() -> None:
    """An export may be larger than the memory of the machine."""
    sent: list[bytes] = []

    def take(size: int) -> None:
        if size > 2:
            raise Unavailable("there is no room")

    async def send(message: Message) -> None:
        sent.append(message["body"])

    async def answer() -> None:
        kept = BufferedAnswer(Request({"type": "http", "state": {ROOM: take}}), send)
        for number, passed in enumerate((0, 0, 3, 4)):
            await kept.send({"type": "http.response.body", "body": b"%d" % number})
            assert len(sent) == passed
        await kept.pass_on()

    asyncio.run(answer())
    assert sent == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(("seconds", "read", "slow"), [(9.0, 0, False), (11.0, 1 << 20, True), (11.0, 12 << 20, False)])
def test_a_client_that_holds_a_helper_is_slow_below_a_least_rate(
    monkeypatch: pytest.MonkeyPatch, seconds: float, read: int, *, slow: bool
) -> None:
    monkeypatch.setattr(buffered_answer, "_MOST_KEPT", 2)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    async def send(_: Message) -> None:
        now[0] = 100.0 + seconds

    async def answer() -> bool:
        kept = BufferedAnswer(Request({"type": "http", "state": {}}), send)
        await kept.send({"type": "http.response.body", "body": b"12"})
        assert not kept.is_slow, "it is kept, and holds nothing"
        await kept.send({"type": "http.response.body", "body": bytes(read) or b"3"})
        return kept.is_slow

    assert asyncio.run(answer()) == slow


def test_a_slow_reader_gives_up_its_helper_when_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: one reader of a long export holds the only helper for as long as it likes."""
    monkeypatch.setattr("service.api.http.helper_processes._LOOK", 0.01)
    helpers = Helpers(1, FastAPI, "service.app", 1.0, 1)

    async def look() -> None:
        async with helpers.queue.place("slow"):
            ended = asyncio.ensure_future(helpers._wait_for_slow(Mock(is_slow=True)))
            await asyncio.sleep(0.1)
            assert not ended.done(), "nobody waits"
            other = asyncio.ensure_future(helpers.queue.enter("other"))
            await asyncio.wait_for(ended, 5)
        await other

    asyncio.run(look())


def test_long_work_of_many_is_answered_in_the_end(served: Client) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: served.post("/v1/compositions", json={"plan": _MIXED}), range(16)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1


def test_the_contract_is_rendered_once_and_not_sent_to_who_has_it(
    embedded: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered, describe = list[FastAPI](), contract.describe

    def counted(app: FastAPI) -> dict[str, Any]:
        rendered.append(app)
        return describe(app)

    monkeypatch.setattr(contract, "describe", counted)
    with ThreadPoolExecutor(8) as threads:  # none has been rendered yet when the first ones ask
        first, *others = threads.map(lambda _: embedded.get("/openapi.json"), range(24))
    assert json_of(first)["openapi"].startswith("3.")
    assert {other.content for other in others} == {first.content}
    again = embedded.get("/openapi.json", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    assert len(rendered) == 1


def _listed(number: int) -> dict[str, Any]:
    return {"releases": [{"name": str(k), "plan": concentrated("0.00001")} for k in range(number)]}


def test_a_long_plan_is_read_by_a_helper_and_charged_as_if_it_had_been_read_here(
    client: TestClient, alone: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The serving process holds its interpreter for none of it; the registered plan is equal to the last digit."""
    for name in ("one", "two"):
        open_account(client, name, _WIDE)
    asked = {"name": "large", "plan": _LARGE, "tags": ["t"], "reserve_for": "P1D"}
    in_this_process = json_of(alone.post("/v1/accounts/two/releases", json=asked), 201)
    batch_here = json_of(alone.post("/v1/accounts/two/releases/batch", json=_listed(400)), 201)
    with monkeypatch.context() as patched:
        patched.setattr(body, "_model_of", None)  # reading in this process fails
        keyed = {"Idempotency-Key": "k"}
        answers = [client.post("/v1/accounts/one/releases", json=asked, headers=keyed) for _ in range(2)]
        batch = json_of(client.post("/v1/accounts/one/releases/batch", json=_listed(400)), 201)
    in_a_helper = json_of(answers[0], 201)
    assert answers[1].text == answers[0].text
    assert answers[1].headers["Idempotent-Replay"] == "true"
    unlike = {"id", "account", "head", "created_at", "expires_at"}
    pairs = zip([in_a_helper, *batch["releases"]], [in_this_process, *batch_here["releases"]], strict=True)
    for there, here in pairs:
        assert {name: there[name] for name in there.keys() - unlike} == {n: here[n] for n in here.keys() - unlike}
        assert there["head"]["seq"] == here["head"]["seq"]
    for name in ("one", "two"):
        assert json_of(client.get(f"/v1/accounts/{name}/verify"))["valid"]
    balances = [json_of(client.get(f"/v1/accounts/{name}/balance?tag=t")) for name in ("one", "two")]
    assert balances[0]["spent"] == balances[1]["spent"]


def test_what_a_helper_refuses_in_a_long_plan_is_the_same_problem(client: TestClient, alone: TestClient) -> None:
    open_account(client)
    auditor = make_key(client, "auditor")
    wrong = {"type": "sequence", "parts": [*_LARGE["parts"], concentrated("-1")]}
    too_much = {"type": "sequence", "parts": [*_LARGE["parts"], concentrated("1000")]}
    for caller in (client, alone):
        assert pointers_of(charge(caller, wrong)) == ["/plan/parts/1200/rho"]
        problem_of(charge(caller, _LARGE, "nowhere"), "not_found")
        problem_of(charge(caller, too_much), "budget_exceeded")
        rehearsal = {"name": "x", "plan": too_much}
        problem_of(caller.post("/v1/accounts/people/releases?dry_run=true", json=rehearsal), "budget_exceeded")
        asked = {"name": "x", "plan": _LARGE}
        refused = caller.post("/v1/accounts/people/releases", json=asked, headers=auditor)
        problem_of(refused, "forbidden")
        malformed = caller.post("/v1/accounts/people/releases", json=asked, headers={"Idempotency-Key": "x" * 256})
        assert pointers_of(malformed) == ["/header/Idempotency-Key"]
    kinds = [one["entry"]["kind"] for one in json_of(client.get("/v1/accounts/people/journal"))["items"]]
    assert kinds == ["account_opened", "refused", "refused"]  # a dry run that does not fit is no refusal


def test_a_rehearsal_takes_no_writers_place(client: TestClient, alone: TestClient, database: Database) -> None:
    """It does not end expired reservations either, as a write does: it counts them as ended."""
    open_account(client, budget=_WIDE)
    release(client, _LARGE)

    def rehearse(connection: Any) -> list[Any]:
        if database.kind == "postgresql":  # on SQLite there is only one writer at a time
            connection.exec_driver_sql("SELECT id FROM accounts FOR UPDATE")
        return [
            json_of(caller.post("/v1/accounts/people/releases?dry_run=true", json={"name": "x", "plan": plan}))
            for caller in (client, alone)
            for plan in (_LARGE, concentrated("0.1"))
        ]

    bodies = database.write(rehearse, is_committed=lambda _, __: False)
    assert bodies[:2] == bodies[2:]
    assert {one["head"]["seq"] for one in bodies} == {2}


def test_one_principal_waits_for_prices_in_half_of_the_places() -> None:
    helpers = Helpers(1, FastAPI, __name__, 0.01, asking=4)
    for name in ("ann", "ann", "bob"):
        helpers._begin_asking(name)
    with pytest.raises(TooManyRequests, match="one principal"):
        helpers._begin_asking("ann")
    helpers._begin_asking("bob")
    with pytest.raises(Unavailable, match="too many releases wait"):
        helpers._begin_asking("eve")
