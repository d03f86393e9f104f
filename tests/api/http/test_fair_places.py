"""Turns: one principal's requests do not delay those of another until all are done."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from fastapi import FastAPI

from service.api.http.fair_places import FairPlaces
from service.errors import TooManyRequests

Worked = list[str]


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _fair(places: int = 2, share: int = 1, alone: int = 2, waiting: int = 10) -> tuple[FairPlaces, _Clock]:
    clock = _Clock()
    return FairPlaces(places, share, alone, waiting, clock), clock


class _Asking:
    """Requests that hold their place until the test ends them."""

    def __init__(self, fair: FairPlaces) -> None:
        self.fair = fair
        self.working: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def ask(self, principal: str, name: str) -> None:
        self.ends[name] = asyncio.Event()

        async def work() -> None:
            async with self.fair.place(principal):
                self.working.append(name)
                await self.ends[name].wait()
                self.working.remove(name)

        self.tasks[name] = asyncio.create_task(work())
        await self.settle()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.settle()

    async def hang_up(self, name: str) -> None:
        self.tasks[name].cancel()
        with suppress(asyncio.CancelledError):
            await self.tasks[name]
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def _run(story: Callable[[_Asking], Coroutine[Any, Any, None]], fair: FairPlaces) -> None:
    asyncio.run(story(_Asking(fair)))
    assert (fair.busy, fair.waiting) == (0, 0)


def test_principals_take_turns_and_each_ones_requests_keep_their_order() -> None:
    fair, _ = _fair(places=1)

    async def story(asking: _Asking) -> None:
        for name in ("a1", "a2", "a3"):
            await asking.ask("ann", name)
        await asking.ask("bob", "b1")
        await asking.ask("cy", "c1")
        assert fair.waiting == 4
        order = []
        for _ in range(5):
            order += asking.working
            await asking.end(asking.working[0])
        assert order == ["a1", "a2", "b1", "c1", "a3"]

    _run(story, fair)


def test_one_has_only_a_share_while_others_are_there_and_more_when_alone() -> None:
    fair, clock = _fair(places=3, share=1, alone=3)

    async def story(asking: _Asking) -> None:
        await asking.ask("ann", "a1")
        await asking.ask("ann", "a2")
        assert asking.working == ["a1", "a2"]  # no other principal is present
        await asking.ask("bob", "b1")
        await asking.end("a1")
        await asking.ask("ann", "a3")
        assert asking.working == ["a2", "b1"]  # although a place is free
        clock.now = 60.0
        await asking.end("b1")
        assert asking.working == ["a2", "a3"]  # bob has been absent for a while
        await asking.end("a2")
        await asking.end("a3")

    _run(story, fair)


def test_who_asks_for_other_places_is_there_too() -> None:
    others, clock = _fair()
    fair = FairPlaces(3, 1, 3, 10, clock, beside=others)

    async def story(asking: _Asking) -> None:
        async with others.place("bob"):
            pass
        await asking.ask("ann", "a1")
        await asking.ask("ann", "a2")
        assert asking.working == ["a1"]
        await asking.end("a1")
        clock.now = 60.0
        await asking.ask("ann", "a3")
        assert asking.working == ["a2", "a3"]  # bob has been absent for a while
        await asking.end("a2")
        await asking.end("a3")

    _run(story, fair)


def test_who_has_begun_is_not_one_too_many() -> None:
    fair, _ = _fair(places=1, waiting=0)

    async def story(asking: _Asking) -> None:
        await asking.ask("ann", "a1")

        async def go_on() -> None:
            async with fair.place("ann", begun=True):
                asking.working.append("more of a2")

        task = asyncio.create_task(go_on())
        await asking.settle()
        assert asking.working == ["a1"]
        await asking.end("a1")
        await task
        assert asking.working == ["more of a2"]

    _run(story, fair)


def test_too_many_that_wait_are_refused_with_a_reason() -> None:
    fair, _ = _fair(places=1, waiting=1)

    async def story(asking: _Asking) -> None:
        await asking.ask("ann", "a1")
        await asking.ask("ann", "a2")
        with pytest.raises(TooManyRequests, match="expected at most 1") as refused:
            async with fair.place("ann"):
                pass
        assert refused.value.retry_after > 0
        await asking.ask("bob", "b1")  # bob has no place yet
        assert fair.waiting == 2
        for name in ("a1", "a2", "b1"):
            await asking.end(name)

    _run(story, fair)
    assert fair.refused == 1


def test_who_hangs_up_leaves_the_queue_and_gives_a_place_back() -> None:
    fair, _ = _fair(places=1)

    async def story(asking: _Asking) -> None:
        await asking.ask("ann", "a1")
        await asking.ask("ann", "a2")
        await asking.ask("bob", "b1")
        await asking.hang_up("a2")
        assert fair.waiting == 1
        await asking.hang_up("a1")
        assert asking.working[-1] == "b1"
        await asking.end("b1")

    _run(story, fair)


def test_who_hangs_up_at_the_moment_of_his_turn_gives_it_on() -> None:
    fair, _ = _fair(places=1)

    async def story(asking: _Asking) -> None:
        await asking.ask("ann", "a1")
        await asking.ask("bob", "b1")
        await asking.ask("cy", "c1")
        asking.ends["a1"].set()
        await asyncio.sleep(0)  # a1 ends and bob gets the place, but his task has not run yet
        asking.tasks["b1"].cancel()
        await asking.settle()
        assert asking.working == ["c1"]
        await asking.end("c1")

    _run(story, fair)


def test_a_principal_alone_leaves_a_server_most_of_its_places(app: FastAPI) -> None:
    async def story(asking: _Asking) -> None:
        for number in range(50):
            await asking.ask("ann", f"a{number}")
        assert len(asking.working) == 8
        for number in range(20):
            await asking.ask(f"principal {number}", f"b{number}")
        assert len(asking.working) == 28
        for name in list(asking.ends):
            await asking.end(name)

    _run(story, app.state.turns)
