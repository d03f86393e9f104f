"""A disk that fills up under load: 503, no damage, and with room again everything goes on."""

import contextlib
import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from tests.faults.conftest import Form
from tests.faults.processes import replicas, tried_to_start
from tests.faults.scenario import Scenario
from tests.postgres_server import Cluster
from tests.waiting import until

pytestmark = pytest.mark.faults

_SIZE = 96 << 20  # bytes of the small disk
_LEFT = 96 << 10  # bytes that are left on it when the load begins


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small file system in memory, which every user may reach."""
    place = Path(tempfile.mkdtemp(prefix="disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        place.rmdir()
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
        place.rmdir()


@contextlib.contextmanager
def _full(disk: Path) -> Iterator[None]:
    """All but a little of the disk is taken, until the block ends."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        until(lambda: _taken(file.fileno(), disk), "the disk is taken")
    yield
    ballast.unlink()


def _taken(ballast: int, disk: Path) -> bool:
    """Tell whether all free space could be taken: the service may have written meanwhile."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    try:
        os.posix_fallocate(ballast, 0, max(1, free - _LEFT))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def _fill_and_free(scenario: Scenario, disk: Path, turns: int) -> None:
    scenario.open()
    for turn in range(turns):
        with scenario.load(turn, gives_up=0.3) as load:
            with _full(disk):
                load.wait_for(load.refused, 20)
            load.wait_for(load.final, load.final() + 50)
            scenario.end(load, {503})
        assert any(b"no space left" in attempt.body for operation in load.operations for attempt in operation.attempts)
        scenario.check(load.operations[::10])
        assert scenario.servers[0].ready() == 200


def test_the_disk_of_an_embedded_database(disk: Path, tmp_path: Path, times: Form) -> None:
    url = f"sqlite:///{disk / 'ledger.db'}"
    with replicas(tmp_path, 1, database_url=url) as servers, servers[0].client() as client:
        _fill_and_free(Scenario(servers, client, url), disk, times(1, 10))


def test_the_disk_of_postgresql_s_tables(cluster: Cluster, disk: Path, tmp_path: Path, times: Form) -> None:
    """The log is elsewhere, so the server only fails the transactions that need more room."""
    disk.chmod(0o755)
    space = disk / "space"
    space.mkdir()
    cluster.give(space)
    with psycopg.connect(cluster.url.replace("+psycopg", ""), autocommit=True) as session:
        session.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
    url = cluster.new_database("TABLESPACE small")
    with replicas(tmp_path, 1, database_url=url) as servers, servers[0].client() as client:
        _fill_and_free(Scenario(servers, client, url), disk, times(1, 10))
    with psycopg.connect(cluster.url.replace("+psycopg", ""), autocommit=True) as session:
        session.execute(sql.SQL("DROP DATABASE {} (FORCE)").format(sql.Identifier(str(make_url(url).database))))
        session.execute("DROP TABLESPACE small")


def test_the_disk_of_all_of_postgresql(disk: Path, tmp_path: Path, times: Form) -> None:
    """Its log is on the disk too, so that the server stops in a panic; with room again an operator starts it."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pg-")))
        options = "-c min_wal_size=2MB -c max_wal_size=4MB -c restart_after_crash=off"
        cluster = Cluster(home, durable=True, directory=disk / "cluster", segment=1, options=options)
        cluster.start()
        stack.callback(cluster.stop)
        with replicas(tmp_path, 1, database_url=cluster.url) as servers, servers[0].client() as client:
            scenario = Scenario(servers, client, cluster.url)
            scenario.open()
            for turn in range(times(1, 5)):
                with scenario.load(turn, gives_up=0.3) as load:
                    with _full(disk):
                        load.wait_for(load.refused, 5)
                        _write_log(cluster)
                        until(lambda: servers[0].ready() == 503, "the probe says that the service is not ready")
                    until(lambda: tried_to_start(cluster), "the database is back")
                    scenario.end(load, {503})
                scenario.check(load.operations[::10])
        assert "PANIC" in (home / "log").read_text()


def _write_log(cluster: Cluster) -> None:
    """Begin new files of the log until there is no room for one."""
    with contextlib.suppress(psycopg.Error), psycopg.connect(cluster.url.replace("+psycopg", "")) as session:
        session.autocommit = True
        while True:
            session.execute("SELECT pg_switch_wal(), pg_logical_emit_message(false, '', repeat('x', 100000))")


def test_the_disk_of_the_log(tmp_path: Path) -> None:
    """Requests that cannot be logged are charged and answered all the same."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with (
        Path("/dev/full").open("w") as log,
        replicas(tmp_path, 1, log=log, database_url=url) as servers,
        servers[0].client() as client,
    ):
        scenario = Scenario(servers, client, url)
        scenario.open()
        with scenario.load(1) as load:
            load.wait_for(load.final, 50)
            scenario.end(load, set())
        scenario.check(load.operations[::5])


def test_files_that_may_not_grow(tmp_path: Path, times: Form) -> None:
    """A limit on file sizes stands for a full disk where no file system can be mounted; SQLite meets another error."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with replicas(tmp_path, 1, database_url=url) as servers, servers[0].client() as client:
        scenario = Scenario(servers, client, url)
        scenario.open()
        for turn in range(times(1, 10)):
            with scenario.load(turn, gives_up=0.3) as load:
                size = max(file.stat().st_size for file in tmp_path.glob("ledger.db*"))
                servers[0].limit_files(size + _LEFT)
                load.wait_for(load.refused, 20)
                servers[0].limit_files(None)
                load.wait_for(load.final, load.final() + 50)
                scenario.end(load, {503})
            scenario.check(load.operations[::10])
