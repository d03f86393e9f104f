"""An account to draw from, and acts between a draw's look and its lock."""

from collections.abc import Callable
from typing import Any

import pytest

from service.ledger import idempotent_write
from service.ledger.draws import draws
from service.ledger.storage.database import Database
from tests.ledger.charging import open_account


@pytest.fixture
def people(database: Database) -> Database:
    open_account(database, "people", definition="pure", epsilon="100000")
    return database


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Acts of which each is done, last first, when a draw has looked and has no lock yet."""
    meanwhile: list[Callable[[], object]] = []
    look = idempotent_write.check_before_lock

    def looked(*given: Any) -> Any:
        seen = look(*given)
        if meanwhile:
            meanwhile.pop()()
        return seen

    monkeypatch.setattr(draws, "check_before_lock", looked)
    return meanwhile
