"""The address that is served at."""

import asyncio
import resource
import socket

import pytest

from service.errors import StartupRefused
from service.server import allow_files, bound_socket, require_random_hashes
from service.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_small_answers_are_sent_at_once(host: str) -> None:
    """Otherwise each waits for the client's delayed acknowledgement, some 40 ms."""

    async def nodelay() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        bound = bound_socket(host, 0)
        async with await asyncio.start_server(note, sock=bound):
            _, client = await asyncio.open_connection(*bound.getsockname()[:2])
            try:
                return await asyncio.wait_for(accepted, 60)
            finally:
                client.close()

    assert asyncio.run(nodelay()) == 1


def test_an_address_that_is_taken_is_refused() -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(StartupRefused, match=r"cannot listen at 127\.0\.0\.1, port \d+: "):
            bound_socket("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(StartupRefused, match="cannot listen at no such host"):
        bound_socket("no such host", 0)


def test_more_connections_than_open_files_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    with pytest.raises(StartupRefused, match=r"need 1484 open files, .* allows 1024: raise .* \(nofile\)"):
        allow_files(Settings(max_connections=1000))


def test_the_limit_on_open_files_is_raised_as_far_as_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = list[object]()
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    for limits, expected in (((256, 4096), [(1484, 4096)]), ((2048, 4096), []), ((resource.RLIM_INFINITY,) * 2, [])):
        raised.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        allow_files(Settings(max_connections=1000))
        assert raised == expected


@pytest.mark.parametrize("seed", ["0", "1", "4294967295", " "])
def test_hashes_that_can_be_foreseen_are_refused(seed: str) -> None:
    with pytest.raises(StartupRefused, match="expected PYTHONHASHSEED unset or random"):
        require_random_hashes({"PYTHONHASHSEED": seed})


@pytest.mark.parametrize("environment", [{}, {"PYTHONHASHSEED": ""}, {"PYTHONHASHSEED": "random"}])
def test_hashes_under_a_key_of_the_process_are_not(environment: dict[str, str]) -> None:
    require_random_hashes(environment)
