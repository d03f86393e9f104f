"""Databases of their own for each test, and how long the tests take: a minute in all, or as long as is convincing."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.postgres_server import Cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="inject faults many times and not just a few")


@dataclass(frozen=True)
class Form:
    """How many of something: ``few`` in the short form, ``many`` in the long one."""

    long: bool

    def __call__(self, few: int, many: int) -> int:
        return many if self.long else few


@pytest.fixture
def times(request: pytest.FixtureRequest) -> Form:
    return Form(bool(request.config.getoption("--long", default=False)))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL with its usual durability, started, for one test to kill."""
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        made = Cluster(Path(directory), durable=True)
        made.start()
        yield made
        made.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    made: Cluster = request.getfixturevalue("cluster")
    return made.url
