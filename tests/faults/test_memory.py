"""The most memory of a server and its helpers, under the worst requests of every kind, all at once."""

import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from service.settings import Settings
from tests.api.calls import STEWARD, Client, bearer, json_of, make_key, open_account, pure, release
from tests.faults.conftest import Form
from tests.faults.processes import Replica, replicas
from tests.faults.worst_requests import LARGEST, MIB, prepared, tagged_plan, worst_requests

pytestmark = pytest.mark.faults

_LIMITS = {
    "max_json_bytes": LARGEST,
    "max_json_bytes_at_once": 512 * MIB,
    "max_arrow_bytes": 256 * MIB,
    "max_arrow_bytes_at_once": 1024 * MIB,
    "max_connections": 64,
}
_GIVEN = {name: str(value) for name, value in _LIMITS.items()} | {"helper_processes": "2"}
_SETTINGS = Settings(**_LIMITS)  # type: ignore[arg-type] # all are numbers
_CALLERS = 16
_LOOK = 0.05  # seconds between two looks at the memory of all processes


def _peak(server: Replica) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


class _Watch:
    """The most resident memory so far: of the helpers together with the process that they are forked from, and of all.

    Pages that processes share are counted in each of them.
    """

    def __init__(self, server: Replica) -> None:
        self._server, self.helpers, self.all = server, 0, 0

    @contextmanager
    def watching(self) -> Iterator["_Watch"]:
        """Look again and again, until the end of the block."""
        ending = threading.Event()

        def look() -> None:
            while not ending.wait(_LOOK):
                own, *others = map(_resident, _tree(self._server.pid or 0))
                self.helpers, self.all = max(self.helpers, sum(others)), max(self.all, own + sum(others))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield self
        finally:
            ending.set()
            thread.join()


def _tree(root: int) -> list[int]:
    """Return a process and all that it started, and they."""
    begun: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parent = int(path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1])
            begun.setdefault(parent, []).append(int(path.parent.name))
    found = [root]
    for one in found:
        found += begun.get(one, [])
    return found


def _resident(process: int) -> int:
    with suppress(OSError):
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


def test_no_mix_of_requests_takes_more_than_is_stated(tmp_path: Path, times: Form) -> None:
    with (
        replicas(tmp_path, 1, database_url=f"sqlite:///{tmp_path / 'ledger.db'}", log=None, **_GIVEN) as (server,),
        server.client() as client,
    ):
        mix = worst_requests(prepared(client)) * times(1, 6)
        keys = [bearer(STEWARD), make_key(client, "pipeline", "one"), make_key(client, "steward", "two")]
        bystander = make_key(client, "pipeline", "bystander")

        def send(number: int) -> int:
            with Client(base_url=server.address, headers=keys[number % len(keys)], timeout=300) as caller:
                return mix[number](caller)

        with _Watch(server).watching() as most, ThreadPoolExecutor(_CALLERS) as callers:
            statuses = Counter(callers.map(send, range(len(mix))))
        with Client(base_url=server.address, headers=bystander, timeout=300) as caller:
            release(caller, pure("0.1"))  # the callers of the mix may rest for a minute
        stated, of_helpers = _SETTINGS.most_memory, _SETTINGS.most_memory_of_helpers
        print(
            f"\n{statuses}: {_peak(server) / MIB:.0f} MiB of {stated / MIB:.0f}; helpers {most.helpers / MIB:.0f} of"
            f" {of_helpers / MIB:.0f}; together {most.all / MIB:.0f}"
        )
        assert {200, 201, 413, 422} <= statuses.keys() <= {200, 201, 403, 404, 409, 413, 422, 429, 503}, statuses
        assert _peak(server) < stated
        assert most.helpers < of_helpers + _SETTINGS.resolved_json_bytes_at_once
        assert most.all < stated + of_helpers


def test_answers_that_nobody_takes_take_no_more_than_is_stated(tmp_path: Path, times: Form) -> None:
    """A few hundred bytes ask for a plan of 15 MB, and what comes is left where it is.

    One request of a principal runs at a time, since each that reads a plan takes as much for a moment.
    """
    given = {"database_url": f"sqlite:///{tmp_path / 'ledger.db'}", "writer_threads": "2"} | _GIVEN
    with (
        replicas(tmp_path, 1, log=None, **given) as (server,),
        server.client() as client,
        ExitStack() as open_ones,
    ):
        open_account(client)
        plan = tagged_plan(320)
        body = json.dumps({"name": "x", "plan": plan}, ensure_ascii=False).encode()
        as_json = {"Content-Type": "application/json"}
        registered = json_of(client.post("/v1/accounts/people/releases", content=body, headers=as_json), 201)
        at = f"/v1/accounts/people/releases/{registered['id']}"
        assert len(json_of(client.post(f"{at}/commit"))["plan"]["parts"]) == len(plan["parts"])  # and its cost is known
        before = _peak(server)
        target, unread = urlsplit(server.address), list[socket.socket]()
        asked = f"POST {at}/commit HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\nContent-Length: 0\r\n\r\n"
        for _ in range(times(60, 60)):
            one = open_ones.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect((target.hostname, target.port))
            one.sendall(asked.encode())
            unread.append(one)
        assert all(one.recv(9) == b"HTTP/1.1 " for one in unread)  # each has begun to come
        release(client, pure("0.1"))
        held, more = len(unread) * len(body), _peak(server) - before
        print(f"\n{before / MIB:.0f} MiB and {more / MIB:.0f}, for answers of {held / MIB:.0f}")
        assert _peak(server) < _SETTINGS.most_memory
        assert more < held / 2
