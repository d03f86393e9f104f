"""Many callers at once, over a socket, on both databases: no overspending, no failures, and no waiting readers."""

import json
import select
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI
from sqlalchemy import make_url

from service.ledger.accounts.accounts import read_account
from service.ledger.journal.replay import replay
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret
from service.ledger.verification.verify import verify
from tests.api.calls import (
    Answer,
    Client,
    application,
    bearer,
    charge,
    client_of,
    concentrated,
    json_of,
    make_key,
    open_account,
    problem_of,
    pure,
    release,
)
from tests.postgres_server import libpq_url
from tests.waiting import until

_THREADS = 32


@pytest.fixture
def helper_processes() -> int:
    return 2


def _at_once(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Return the answers to calls that many threads make at once."""
    start = threading.Barrier(min(_THREADS, len(calls)))

    def run(number: int) -> list[Answer]:
        start.wait(30)
        return [call() for call in calls[number::_THREADS]]

    with ThreadPoolExecutor(start.parties) as threads:
        return [answer for found in threads.map(run, range(start.parties)) for answer in found]


def _statuses(answers: list[Answer]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


def _sound(database: Database, name: str = "people") -> bool:
    """Check the chain, and that its prices add up to the stored totals, bit for bit."""
    with database.read() as connection:
        account = read_account(connection, name)
        assert verify(connection, name).valid
        return replay(connection, account, account.head.seq).account == account


def test_with_room_for_a_hundred_charges_a_hundred_succeed(served: Client, database: Database) -> None:
    open_account(served, budget={"definition": "pure", "epsilon": 10})
    answers = _at_once([lambda: charge(served, pure("0.1"))] * 160)
    assert _statuses(answers) == {201: 100, 409: 60}
    assert {problem_of(answer, "budget_exceeded")["remaining"] for answer in answers if answer.status_code == 409} == {
        0
    }
    assert sorted(answer.json()["head"]["seq"] for answer in answers if answer.status_code == 201) == [*range(2, 102)]
    balance = json_of(served.get("/v1/accounts/people/balance"))
    assert (balance["releases"], balance["spent"]["pure"]["epsilon_exact"]) == (100, "10")
    assert _sound(database)


def test_charges_batches_draws_and_changes_together_stay_sound(served: Client, database: Database) -> None:
    open_account(served, budget={"definition": "approximate", "epsilon": 2, "delta": "1e-6"})
    batch = {"releases": [{"name": str(number), "plan": concentrated("0.001")} for number in range(3)]}
    drawn = {"name": "d", "mechanism": pure("0.05"), "counts": [1, 2]}
    budgets = [{"budget": {"definition": "approximate", "epsilon": e, "delta": "1e-6"}} for e in (2, "2.5")]
    calls: list[Callable[[], Answer]] = [
        lambda: charge(served, pure("0.05")),
        lambda: served.post("/v1/accounts/people/releases/batch", json=batch),
        lambda: served.post("/v1/accounts/people/draws", json=drawn),
        lambda: served.patch("/v1/accounts/people", json=budgets[0]),
        lambda: served.patch("/v1/accounts/people", json=budgets[1]),
        lambda: served.patch("/v1/accounts/people", json={"state": "closed"}),
        lambda: served.patch("/v1/accounts/people", json={"state": "open"}),
        lambda: served.get("/v1/accounts/people/balance"),
        lambda: served.get("/v1/accounts/people/journal"),
    ]
    answers = _at_once(calls * 16)
    assert set(_statuses(answers)) <= {200, 201, 409}
    assert _sound(database)


def test_charges_to_several_accounts_do_not_mix(served: Client, database: Database) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        open_account(served, name)
    calls = [partial(charge, served, concentrated("0.125"), name) for name in names]
    assert _statuses(_at_once(calls * 12)) == {201: 32, 409: 16}
    for name in names:
        assert json_of(served.get(f"/v1/accounts/{name}/balance"))["spent"]["zcdp"]["rho_exact"] == "1"
        assert _sound(database, name)


def test_one_mechanism_is_drawn_once_however_many_ask(served: Client) -> None:
    open_account(served)
    done = release(served, {"type": "choice", "parts": [pure("0.1", name="a"), pure("0.1", name="b")]})
    path = f"/v1/accounts/people/releases/{done['id']}/draws"
    bodies: list[Any] = [
        {"mechanism": mechanism, "counts": [1], **({"partition": partition} if partition else {})}
        for mechanism in ("a", "b")
        for partition in ("", "1", "2")
    ]
    calls = [partial(served.post, path, json=body) for body in bodies]
    answers = _at_once(calls * 8)
    assert set(_statuses(answers)) == {201, 409}
    drawn = [answer.json() for answer in answers if answer.status_code == 201]
    partitions = sorted(str(draw["partition"]) for draw in drawn)
    assert partitions in (["None"], ["1", "2"])  # the whole input, or each partition, once and with one branch


@contextmanager
def _account_locked(url: str) -> Iterator[None]:
    """Hold the lock of an account in another process."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(str(make_url(url).database), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        return
    with psycopg.connect(libpq_url(url)) as session:
        session.execute("SELECT * FROM accounts FOR UPDATE")
        yield
        session.rollback()


def test_readers_and_probes_answer_while_writers_wait(served: Client, database: Database, database_url: str) -> None:
    """More requests of one principal wait than there are writers' threads; all are served once the lock is free."""
    open_account(served)
    other = make_key(served, "steward", "other")
    with ThreadPoolExecutor(_THREADS) as threads:
        with _account_locked(database_url):
            waiting = [threads.submit(charge, served, concentrated("0.01")) for _ in range(_THREADS)]
            for path in ("/readyz", "/healthz", "/v1/accounts/people/balance", "/v1/accounts/people/releases"):
                json_of(served.get(path, headers=other, timeout=10))
            asked = {"plan": pure(1)}
            json_of(served.post("/v1/compositions", json=asked, headers=other, timeout=10))
            problem_of(served.get("/v1/accounts", headers=bearer("nobody's"), timeout=10), "unauthenticated")
            assert not any(answer.done() for answer in waiting)
        assert {answer.result().status_code for answer in waiting} == {201}


@pytest.mark.parametrize("path", ["verify", "history", "balance?as_of=1"])
def test_nobody_waits_while_journals_are_followed(served: Client, app: FastAPI, path: str) -> None:
    """More histories are requested than there are readers of any kind, behind a computation of a minute."""
    open_account(served)
    helpers = app.state.helpers.queue
    parts = [{"type": "discrete_osgt", "sigma_squared": f"{100 + k}.5", "m": "3"} for k in range(100)]
    plan = {"plan": {"type": "sequence", "parts": parts}, "orders": [str(2 + k) for k in range(300)]}
    with ThreadPoolExecutor(_THREADS) as threads:
        slow = HTTPConnection(served.base_url.host, served.base_url.port)
        slow.request(
            "POST", "/v1/compositions", json.dumps(plan), {**served.headers, "Content-Type": "application/json"}
        )
        until(lambda: helpers.busy == 1)
        asked = [threads.submit(served.get, f"/v1/accounts/people/{path}") for _ in range(_THREADS)]
        until(lambda: helpers.waiting == _THREADS)
        for quick in ("/readyz", "/v1/accounts/people", "/v1/accounts/people/balance"):
            json_of(served.get(quick, timeout=10))
        json_of(charge(served, concentrated("0.01")), 201)
        assert not any(answer.done() for answer in asked)
        assert not select.select([slow.sock], [], [], 0)[0], "the computation has not ended"
        slow.close()  # its client hangs up
        assert {answer.result().status_code for answer in asked} == {200}


@pytest.mark.parametrize("path", ["releases", "draws"])
def test_a_lock_held_for_too_long_is_a_503(database_url: str, secret: Secret, path: str) -> None:
    database = open_database(database_url, lock_timeout=0.3)
    bodies = {
        "releases": {"name": "x", "plan": pure("0.1")},
        "draws": {"name": "x", "mechanism": pure("0.1"), "counts": [1]},
    }
    body = bodies[path]
    with client_of(application(database, secret)) as client:
        open_account(client)
        with _account_locked(database_url):
            answer = client.post(f"/v1/accounts/people/{path}", json=body)
            problem_of(answer, "unavailable")
            assert int(answer.headers["Retry-After"]) > 0
            json_of(client.get("/readyz"))
        json_of(client.post(f"/v1/accounts/people/{path}", json=body), 201)
        assert json_of(client.get("/v1/accounts/people/balance"))["releases"] == 1
