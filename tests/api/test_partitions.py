"""A cluster's workers over one service: eight processes draw the 64 partitions of one mechanism, each once."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.api.calls import STEWARD, Answer, Client, bearer, json_of, open_account, problem_of, release
from tests.api.streams import NEARLY_NONE, counts, draw, noisy_of
from tests.processes import service

_WORKERS, _PARTITIONS, _ROWS = 8, 64, 50


class _Drawn(NamedTuple):
    """A worker's answers for one partition."""

    partition: int
    draw: str
    noisy: list[int] | None  # None: another worker's draw was first
    replayed: bool
    content: bytes


def _counts_of(partition: int) -> list[int]:
    return list(range(partition * _ROWS, (partition + 1) * _ROWS))


@contextmanager
def _worker(address: str) -> Iterator[Client]:
    with Client(base_url=address, headers=bearer(STEWARD), timeout=60) as client:
        yield client


def _ask(client: Client, of: dict[str, Any], name: str, partition: int, key: str) -> _Drawn:
    answer: Answer = draw(client, of, counts(_counts_of(partition)), key, mechanism=name, partition=str(partition))
    if answer.status_code == 409:
        return _Drawn(partition, problem_of(answer, "already_drawn")["draw"], None, False, b"")
    replayed = "Idempotent-Replay" in answer.headers
    return _Drawn(partition, answer.headers["X-Draw"], noisy_of(answer), replayed, answer.content)


def _draw_own(address: str, of: dict[str, Any], worker: int) -> list[tuple[_Drawn, _Drawn]]:
    """Draw a worker's own partitions, each twice."""
    with _worker(address) as client:
        return [
            (_ask(client, of, "county", number, f"p{number}"), _ask(client, of, "county", number, f"p{number}"))
            for number in range(worker, _PARTITIONS, _WORKERS)
        ]


def _race(address: str, of: dict[str, Any], worker: int) -> list[_Drawn]:
    """Draw the same few partitions as every other worker, with separate keys."""
    with _worker(address) as client:
        return [_ask(client, of, "raced", number, f"w{worker} p{number}") for number in range(_WORKERS)]


def test_many_workers_draw_each_partition_once(tmp_path: Path, empty_database_url: str) -> None:
    parts = [NEARLY_NONE | {"name": "county"}, NEARLY_NONE | {"name": "raced"}]
    with service(tmp_path, database_url=empty_database_url) as running:
        open_account(running.client, budget={"definition": "pure", "epsilon": 10**6})
        of = release(running.client, {"type": "sequence", "parts": parts})
        everybody = [(running.address, of, worker) for worker in range(_WORKERS)]
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__])  # so that the eight processes need not import it each
        with processes.Pool(_WORKERS) as pool:
            own = [pair for found in pool.starmap(_draw_own, everybody, chunksize=1) for pair in found]
            raced = [one for found in pool.starmap(_race, everybody, chunksize=1) for one in found]
        path = f"/v1/accounts/people/releases/{of['id']}/draws"
        listed = json_of(running.client.get(path, params={"limit": 1000}))["items"]

    stored = {item["draw"]: item for item in listed}
    assert len(stored) == _PARTITIONS + _WORKERS
    assert {first.partition for first, _ in own} == set(range(_PARTITIONS))
    for first, again in own:
        assert (first.noisy, first.replayed) == (_counts_of(first.partition), False)
        assert again == first._replace(replayed=True)
        assert (stored[first.draw]["partition"], stored[first.draw]["noisy"]) == (str(first.partition), first.noisy)
    won = [one for one in raced if one.noisy is not None]
    assert sorted(one.partition for one in won) == list(range(_WORKERS))
    assert {(one.partition, one.draw) for one in raced} == {(one.partition, one.draw) for one in won}
