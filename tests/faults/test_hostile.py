"""One principal of any role who asks for as much as he can: others are answered meanwhile, and soon."""

import contextlib
import threading
import time
from collections.abc import Iterator
from statistics import quantiles
from typing import Any

import httpx2
import pytest

from tests.api.calls import Client, charge, concentrated, json_of, make_key, open_account
from tests.faults.conftest import Form
from tests.processes import Served, service

pytestmark = pytest.mark.faults

_CLIENTS = 20
_WIDE = 10  # times as long as in quiet, where that is more than what nobody minds: other things run on the machine too
_SOON = 0.5  # seconds
_OFFSET = [{"type": "discrete_osgt", "sigma_squared": f"{100 + k}.5", "m": "3"} for k in range(80)]
_NOISE = {"type": "discrete_gaussian", "sigma_squared": "500"}
_LOSSES = {"residuals": [number % 31 - 15 for number in range(100_000)], "bootstrap": 200}
_ATTACKS: dict[str, tuple[str, str, str, Any]] = {
    "compositions": ("auditor", "POST", "/v1/compositions", {"plan": {"type": "sequence", "parts": _OFFSET}}),
    "walks": ("auditor", "GET", "/v1/accounts/long/verify", None),
    "lists": ("auditor", "GET", "/v1/accounts/long/releases?limit=1000", None),
    "draws": (
        "pipeline",
        "POST",
        "/v1/accounts/drawn/draws",
        {"name": "x", "mechanism": _NOISE, "counts": [9] * 200_000},
    ),
    "refusals": (
        "pipeline",
        "POST",
        "/v1/accounts/drawn/releases/{release}/draws",
        {"mechanism": "level/total", "counts": [9]},
    ),
    "losses": ("steward", "POST", "/v1/empirical/loss", _LOSSES),
    "keys": ("steward", "POST", "/v1/keys", {"name": "another", "role": "auditor"}),
}
_STEPS = {"type": "sequence", "parts": [_NOISE | {"name": "level/1"}, _NOISE | {"name": "level/2"}]}
_LEVEL = {"type": "choice", "parts": [_NOISE | {"name": "level/total"}, _STEPS]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a service with accounts, of which one has a long journal."""
    with service(tmp_path_factory.mktemp("hostile"), helper_processes="2") as started:
        for account in ("people", "long", "drawn"):
            open_account(started.client, account, budget={"definition": "zcdp", "rho": 10**6})
        batch = {"releases": [{"name": "x", "plan": concentrated("0.001")}] * 1000}
        for _ in range(10):
            json_of(started.client.post("/v1/accounts/long/releases/batch", json=batch), 201)
        yield started


@pytest.mark.parametrize("attack", _ATTACKS)
def test_others_are_answered_while_one_asks_for_as_much_as_he_can(attack: str, served: Served, times: Form) -> None:
    """He may have any role: whatever it allows, others are answered within bounded time."""
    role, method, path, asked = _ATTACKS[attack]
    if "{release}" in path:
        preparing = make_key(served.client, "pipeline", "preparing")  # the steward rests after writing long batches
        with Client(base_url=served.address, headers=preparing, timeout=60) as client:
            path = path.format(release=_tabulated(client))
    other = make_key(served.client, "pipeline", "other")
    hostile = make_key(served.client, role, f"hostile {attack}")
    with Client(base_url=served.address, headers=other, timeout=60) as client:
        _asked(client, 20)
        quiet = _asked(client, times(40, 1000))
        ending = threading.Event()
        threads = [
            threading.Thread(target=_attack, args=(served.address, hostile, (method, path, asked), ending))
            for _ in range(_CLIENTS)
        ]
        for thread in threads:
            thread.start()
        try:
            time.sleep(1)
            during = _asked(client, times(60, 1000))
        finally:
            ending.set()
            for thread in threads:
                thread.join()
        after = _asked(client, times(40, 1000))
    for of in quiet:
        usual = max(_almost_all(quiet[of]), _almost_all(after[of]))  # what else runs on the machine may begin meanwhile
        assert _almost_all(during[of]) < max(_SOON, _WIDE * usual), of


def _tabulated(client: Client) -> str:
    """A release of which so many groups are tabulated that reading them all would take long; its id."""
    path = "/v1/accounts/drawn/releases"
    release = str(json_of(client.post(path, json={"name": "x", "plan": _LEVEL}), 201)["id"])
    groups = [{"group": str(number), "total_only": True, "total": 5} for number in range(100_000)]
    json_of(client.post(f"{path}/{release}/tabulations", json={"level": "level", "groups": groups}), 201)
    return release


def _asked(client: Client, number: int) -> dict[str, list[float]]:
    """Seconds that charges, balances and probes take."""
    found: dict[str, list[float]] = {"charge": [], "balance": [], "readyz": []}
    for _ in range(number):
        started = time.perf_counter()
        json_of(charge(client, concentrated("0.001")), 201)
        charged = time.perf_counter()
        json_of(client.get("/v1/accounts/people/balance"))
        read = time.perf_counter()
        json_of(client.get("/readyz"))
        for of, seconds in zip(found, (charged - started, read - charged, time.perf_counter() - read), strict=True):
            found[of].append(seconds)
    return found


def _almost_all(seconds: list[float]) -> float:
    return quantiles(seconds, n=20)[18]


def _attack(address: str, key: dict[str, str], asked: tuple[str, str, Any], ending: threading.Event) -> None:
    method, path, body = asked
    while not ending.is_set():
        with (
            contextlib.suppress(httpx2.TransportError),  # he waits no longer
            Client(base_url=address, headers=key, timeout=2) as client,
        ):
            client.request(method, path, json=body)
