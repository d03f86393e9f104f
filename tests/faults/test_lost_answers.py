"""Lines that break between commit and answer: who asks again with the same key gets the answer, and is charged once."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.api.calls import STEWARD, Client, bearer
from tests.faults.conftest import Form
from tests.faults.load import Operation, batch, charge, draw, register_and_draw, send
from tests.faults.processes import replicas
from tests.faults.scenario import Scenario
from tests.relay import Break, before_http, before_postgresql

pytestmark = pytest.mark.faults

_ACCOUNT = "people"
_KINDS: Sequence[Callable[[str, str], Operation]] = (
    lambda name, _: charge(_ACCOUNT, name, "0.1"),
    lambda name, _: batch(_ACCOUNT, name, "0.1", 10),
    lambda name, _: register_and_draw(_ACCOUNT, name, "0.1"),
    lambda name, release: draw(_ACCOUNT, name, release),
)


def _broken_once(scenario: Scenario) -> Iterator[tuple[Break, Operation]]:
    """An operation of each kind for each way to break its line."""
    for broken in Break:
        for number, kind in enumerate(_KINDS):
            operation = kind(f"{broken.name.lower()}-{number}", scenario.releases[_ACCOUNT])
            scenario.done.append(operation)
            yield broken, operation


def test_answers_that_the_client_never_got(url: str, tmp_path: Path) -> None:
    with replicas(tmp_path, 1, database_url=url) as servers, servers[0].client() as client:
        scenario = Scenario(servers, client, url)
        scenario.open()
        with before_http(servers[0].port) as (relay, port):
            address = f"http://127.0.0.1:{port}"
            for broken, operation in _broken_once(scenario):
                relay.breaks = [broken]
                with Client(base_url=address, headers=bearer(STEWARD), timeout=60) as cut:
                    first, second = (send(cut, operation) for _ in range(2))
                operation.attempts += [first, second]
                assert (first.status, second.status) == (None, 201)
                # What is still at work when the second one comes may come first or last.
                assert broken is Break.DURING or second.replayed == (broken is not Break.BEFORE)
        scenario.check(scenario.done)


def test_confirmations_that_the_service_never_got(server_url: str, tmp_path: Path, times: Form) -> None:
    """It finds out by itself what became of a commit, so that the client notices nothing."""
    with (
        before_postgresql(server_url) as (relay, url),
        replicas(tmp_path, 1, database_url=url) as servers,
        servers[0].client() as client,
    ):
        scenario = Scenario(servers, client, server_url)
        scenario.open()
        for broken, operation in _broken_once(scenario):
            relay.breaks = [broken]
            operation.attempts.append(send(client, operation))
            assert (operation.succeeded, operation.attempts[0].replayed, relay.breaks) == (True, False, [])
        for number, kind in enumerate(_KINDS[: times(1, 4)]):
            operation = kind(f"never-{number}", scenario.releases[_ACCOUNT])
            scenario.done.append(operation)
            relay.breaks = [Break.BEFORE] * 5  # as often as it tries
            operation.attempts += [send(client, operation) for _ in range(2)]
            refused, done = operation.attempts
            assert (refused.status, done.status, done.replayed) == (503, 201, False)
            assert "may or may not have happened" in refused.json()["detail"]
        scenario.check(scenario.done)


def test_lines_that_break_again_and_again_under_load(server_url: str, tmp_path: Path, times: Form) -> None:
    random_ = random.Random(4)
    with (
        before_postgresql(server_url) as (relay, url),
        replicas(tmp_path, times(1, 2), database_url=url) as servers,
        servers[0].client() as client,
    ):
        scenario = Scenario(servers, client, server_url)
        scenario.open()
        with scenario.load(4, clients=16) as load:
            relay.breaks = random_.choices([None, *Break], [6, 1, 1, 1, 1], k=times(100, 3000))
            load.wait_for(lambda: -len(relay.breaks), 0)
            scenario.end(load, {503})
        scenario.check(load.operations[::10])
