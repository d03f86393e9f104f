"""PostgreSQL is killed and started again under load: requests wait or are told to come back, and nothing is damaged."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.faults.conftest import Form
from tests.faults.processes import replicas, tried_to_start
from tests.faults.scenario import Scenario
from tests.postgres_server import Cluster
from tests.waiting import until

pytestmark = pytest.mark.faults


def _stopped_at_once(cluster: Cluster) -> None:
    cluster.stop("immediate")


def _killed(cluster: Cluster) -> None:
    """The first process gets SIGKILL; the others notice and end by themselves."""
    os.kill(cluster.pid, signal.SIGKILL)


def _one_backend_killed(cluster: Cluster) -> None:
    """The server then ends all sessions and recovers by itself."""
    with psycopg.connect(cluster.url.replace("+psycopg", "")) as session:
        found = session.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " ORDER BY xact_start NULLS LAST LIMIT 1"
        ).fetchone()
    assert found is not None
    os.kill(found[0], signal.SIGKILL)


@pytest.mark.parametrize("break_it", [_stopped_at_once, _killed])
def test_a_database_that_went_away_and_came_back(
    cluster: Cluster, server_url: str, tmp_path: Path, times: Form, break_it: Callable[[Cluster], None]
) -> None:
    with replicas(tmp_path, times(1, 2), database_url=server_url) as servers, servers[0].client() as client:
        scenario = Scenario(servers, client, server_url)
        scenario.open()
        for turn in range(times(1, 15)):
            with scenario.load(turn) as load:
                load.wait_for(load.final, 30 + 7 * turn % 50)
                break_it(cluster)
                until(lambda: servers[0].ready() == 503, "the probe says that the service is not ready")
                until(lambda: tried_to_start(cluster), "the database is back")
                until(lambda: servers[0].ready() == 200, "the probe says that the service is ready")
                scenario.end(load, {503})
            scenario.check(load.operations[::10])
        assert scenario.interrupted()


def test_a_database_that_recovers_by_itself(cluster: Cluster, server_url: str, tmp_path: Path, times: Form) -> None:
    with replicas(tmp_path, 1, database_url=server_url) as servers, servers[0].client() as client:
        scenario = Scenario(servers, client, server_url)
        scenario.open()
        for turn in range(times(1, 15)):
            with scenario.load(turn) as load:
                load.wait_for(load.final, 30 + 7 * turn % 50)
                _one_backend_killed(cluster)
                load.wait_for(load.final, load.final() + 50)
                scenario.end(load, {503})
            scenario.check()
