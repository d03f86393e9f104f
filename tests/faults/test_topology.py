"""The topology of ``compose.yaml`` in real processes: a proxy before three replicas on one PostgreSQL.

One replica is killed and one drained while clients charge and draw through the proxy; what a request that broke did
is found out as a client would, by asking again with the same Idempotency-Key.
"""

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.calls import open_account
from tests.faults.conftest import Form
from tests.faults.processes import Replica, free_ports, replicas
from tests.faults.proxy import Proxy
from tests.faults.scenario import Scenario
from tests.waiting import until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="the proxy, Debian's haproxy, is not installed"),
]

FILLER = 987_654_321  # a true count that is searched for


@contextlib.contextmanager
def topology(home: Path, url: str) -> Iterator[tuple[Proxy, list[Replica]]]:
    """Three replicas and the proxy before them."""
    (port,) = free_ports(1)
    with replicas(home, 3, database_url=url) as servers:
        proxy = Proxy(home, {}, port, behind=[*servers])
        try:
            proxy.start()
            yield proxy, [*servers]
        finally:
            proxy.kill()


def test_a_replica_is_killed_and_one_drained_under_load(server_url: str, tmp_path: Path, times: Form) -> None:
    random_ = random.Random(8)
    with topology(tmp_path, server_url) as (proxy, servers), proxy.client() as client:
        scenario = Scenario([proxy], client, server_url)
        scenario.open()
        for turn in range(times(1, 20)):
            killed, drained = random_.sample(servers, 2)
            with scenario.load(turn) as load:
                load.wait_for(load.final, random_.randint(20, 60))
                killed.kill()
                load.wait_for(load.final, load.final() + 40)  # two are left
                killed.start()
                load.wait_for(load.final, load.final() + 20)
                assert drained.stop() == 0
                load.wait_for(load.final, load.final() + 40)
                drained.start()
                scenario.end(load, {None, 502, 503, 504})
            scenario.check(random_.sample(load.operations, 10))
        assert scenario.interrupted()
        logged = [line for line in proxy.log_lines() if line["method"] == "POST"]
        assert len(logged) >= len(scenario.done)
        assert {str(line["server"]) for line in logged} >= {"service-1", "service-2", "service-3"}
        statuses = {attempt.status for operation in scenario.done for attempt in operation.attempts}
        print(f"{len(scenario.done)} operations, {len(scenario.interrupted())} asked again; statuses {statuses}")


def test_no_count_is_left_with_the_proxy(server_url: str, tmp_path: Path) -> None:
    """Neither in its log nor in a file; and the query string, which names mechanisms, is not logged either."""
    home = tmp_path / "home"
    home.mkdir()
    with topology(home, server_url) as (proxy, servers), proxy.client() as client:
        open_account(client, "people", {"definition": "pure", "epsilon": 10})
        body = {"name": "n", "mechanism": {"type": "geometric", "epsilon": 1}, "counts": [FILLER] * 200_000}
        opened = _open_files(proxy)
        answer = client.post("/v1/accounts/people/draws?unknown=name-in-a-query", json=body)
        assert answer.status_code == 422
        answer = client.post("/v1/accounts/people/draws", json=body, headers={"X-Request-Id": "asked-once"})
        assert answer.status_code == 201
        assert answer.headers["X-Request-Id"] == "asked-once"
        assert _open_files(proxy) == opened
        until(lambda: any(line["request_id"] == "asked-once" for line in proxy.log_lines()), "the request is logged")
        said = "".join(proxy.said)
        assert "name-in-a-query" not in said
        said += "".join(line for server in servers for line in server.said)
        assert str(FILLER) not in said
    written = [path for path in home.rglob("*") if path.is_file() and str(FILLER).encode() in path.read_bytes()]
    assert written == []


def _open_files(proxy: Proxy) -> set[str]:
    """The files, other than sockets and the like, that the proxy holds open."""
    assert proxy.pid is not None
    targets = {str(link.readlink()) for link in Path(f"/proc/{proxy.pid}/fd").iterdir()}
    return {name for name in targets if name.startswith("/") and not name.startswith(("/dev/null", "/dev/pts"))}


def test_what_the_proxy_answers_itself(server_url: str, tmp_path: Path) -> None:
    """No replica: a problem with a time to wait. The metrics of one replica are not those of the service."""
    with topology(tmp_path, server_url) as (proxy, servers), proxy.client() as client:
        metrics = client.get("/metrics")
        assert (metrics.status_code, metrics.headers["Content-Type"]) == (404, "application/problem+json")
        for server in servers:
            server.stop()
        until(lambda: client.get("/readyz").status_code == 503, "the proxy has noticed")
        answer = client.get("/v1/accounts")
        assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/problem+json")
        assert answer.json()["type"] == "/problems/unavailable"
        assert answer.json()["status"] == 503
        assert answer.headers["Retry-After"] == "1"
