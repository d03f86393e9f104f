"""Databases of their own for each test, and how long the tests take: two minutes, or as long as is convincing."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.processes import tried_to_start
from tests.postgres_server import Cluster
from tests.waiting import until


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="inject faults many times and not just a few")


@dataclass(frozen=True)
class Form:
    """A choice of sizes: ``few`` in the short form, ``many`` in the long one."""

    long: bool

    def __call__(self, few: int, many: int) -> int:
        return many if self.long else few


@pytest.fixture
def times(request: pytest.FixtureRequest) -> Form:
    return Form(bool(request.config.getoption("--long", default=False)))


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        made = Cluster(Path(directory), durable=True)
        made.start()
        yield made
        made.stop()


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """A PostgreSQL with its usual durability, which a test may kill and starts again; it is the same for all."""
    yield _cluster
    if not _cluster.answers():  # the test failed
        until(lambda: tried_to_start(_cluster), "the database is back")


@pytest.fixture
def server_url(cluster: Cluster) -> str:
    """An empty database there."""
    return cluster.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return str(request.getfixturevalue("server_url"))
