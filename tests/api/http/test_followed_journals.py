"""Waiting for new entries: one statement for all who wait, and none while nobody does."""

import asyncio
from collections.abc import Sequence

import pytest
from sqlalchemy import Connection

from service.api.http import followed_journals
from service.api.http.followed_journals import FollowedJournals
from service.errors import TooManyRequests, Unavailable
from service.ledger.accounts import accounts
from service.ledger.storage.database import Database

_LONG = 60.0


def _watched(monkeypatch: pytest.MonkeyPatch) -> tuple[list[set[str]], dict[str, int]]:
    """The looks at the heads, by the accounts that each asks for, and the heads that they find."""
    looks: list[set[str]] = []
    heads: dict[str, int] = {}

    def look(connection: Connection, names: Sequence[str]) -> dict[str, int]:
        assert accounts.head_numbers(connection, names) == {}  # the statement itself, on an empty ledger
        looks.append(set(names))
        return dict(heads)

    monkeypatch.setattr(followed_journals, "head_numbers", look)
    return looks, heads


def test_all_who_wait_share_one_look(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, heads = _watched(monkeypatch)
    heads |= {"a": 3, "b": 1}

    async def work() -> None:
        journals = FollowedJournals(database, 1000)
        waits = [journals.wait(name, 0, _LONG) for name in ("a", "b") * 200]
        assert all(await asyncio.gather(*waits))
        assert looks == [{"a", "b"}]
        assert await journals.wait("a", 2, _LONG)
        assert not await journals.wait("a", 3, 0)

    asyncio.run(work())


def test_nobody_looks_where_nobody_waits(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, heads = _watched(monkeypatch)
    monkeypatch.setattr(followed_journals, "_PAUSE", 0)

    async def work() -> None:
        journals = FollowedJournals(database, 1000)
        assert not await journals.wait("a", 0, 0.1)
        await asyncio.sleep(0.1)
        number = len(looks)
        await asyncio.sleep(0.1)
        assert len(looks) == number
        heads["a"] = 1
        assert await journals.wait("a", 0, _LONG)  # a later client is told again

    asyncio.run(work())


def test_the_end_wakes_all_and_admits_none(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    _watched(monkeypatch)

    async def work() -> None:
        journals = FollowedJournals(database, 1000)
        waiting = asyncio.gather(*(journals.wait("a", 0, _LONG) for _ in range(3)))
        await asyncio.sleep(0.05)
        journals.end()
        assert await waiting == [False] * 3
        with pytest.raises(Unavailable, match="shutting down"), journals.stream("somebody"):
            pass

    asyncio.run(work())


def test_places_are_given_back(database: Database) -> None:
    journals = FollowedJournals(database, 1)
    for _ in range(3):
        with (
            journals.stream("a"),
            pytest.raises(TooManyRequests, match="expected at most 1 streams"),
            journals.stream("b"),
        ):
            pass
