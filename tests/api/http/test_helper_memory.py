"""The memory of helper processes: a request takes a fixed amount and what it reserves, and little stays behind."""

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient
from starlette.routing import Route

from service.api.http.memory_room import room_of
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from service.settings import Settings
from tests.api.calls import application, client_of, concentrated, json_of, open_account, problem_of, release

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not bound data")

_MIB = 1 << 20
_OWN = Settings().memory_of_helper
_ASKED = {"plan": concentrated("0.1")}
_kept: list[bytearray] = []


def _taking(make: Callable[[], FastAPI], reserved: int, size: int, kept: int) -> FastAPI:
    """Return a helper's application in which a composition reserves memory, takes some, and keeps some."""

    async def take(request: Request) -> Response:
        room_of(request.scope)(reserved)
        bytearray(size)  # counted, although none of its pages is touched
        _kept.append(bytearray(kept))
        return Response(b"{}", media_type="application/json")

    app = make()
    app.router.routes.insert(0, Route("/v1/compositions", take, methods=["POST"]))
    return app


@pytest.fixture
def helper_processes() -> int:
    return 2


@pytest.fixture
def helping(embedded: TestClient) -> Callable[..., None]:
    """Return a function that decides what compositions take in helpers that start from now on."""
    helpers = embedded.app.state.helpers  # type: ignore[attr-defined] # it is the application
    make = helpers._application

    def set_taking(reserved: int = 0, size: int = 0, kept: int = 0) -> None:
        helpers.close()
        helpers._application = partial(_taking, make, reserved, size, kept)

    return set_taking


def test_a_request_that_takes_too_much_is_refused_and_its_helper_ends(
    embedded: TestClient, helping: Callable[..., None]
) -> None:
    open_account(embedded)
    helping(size=_OWN + 64 * _MIB)
    refused = problem_of(embedded.post("/v1/compositions", json=_ASKED), "too_large")
    assert refused["detail"] == "the request needs more memory than a helper process may take"
    assert embedded.app.state.helpers._idle == []  # type: ignore[attr-defined]
    assert len(json_of(embedded.get("/v1/accounts/people/journal"))["items"]) == 1


def test_a_request_takes_what_it_has_reserved_beside_its_own(
    embedded: TestClient, helping: Callable[..., None]
) -> None:
    for reserved, fits in ((128 * _MIB, True), (32 * _MIB, False)):
        helping(reserved=reserved, size=_OWN + 64 * _MIB)
        for _ in range(2):
            answer = embedded.post("/v1/compositions", json=_ASKED)
            assert answer.status_code == (200 if fits else 413)
    bodies = embedded.app.state.metrics.observed.bodies  # type: ignore[attr-defined]
    assert [one.taken for one in bodies.values()] == [0, 0]


def test_the_reservation_of_one_request_is_not_the_next_ones(
    embedded: TestClient, helping: Callable[..., None]
) -> None:
    helping(reserved=128 * _MIB, size=_OWN + 64 * _MIB)
    assert embedded.post("/v1/compositions", json=_ASKED).status_code == 200
    (helper,) = embedded.app.state.helpers._idle  # type: ignore[attr-defined]
    limits = Path(f"/proc/{helper._process.pid}/limits").read_text(encoding="ascii")
    (allowed,) = [line.split()[3] for line in limits.splitlines() if line.startswith("Max data size")]
    assert _OWN < int(allowed) < _OWN + 512 * _MIB


@pytest.mark.parametrize(("kept", "stays"), [(64 * _MIB, True), (320 * _MIB, False)])
def test_a_helper_that_keeps_much_is_replaced(
    embedded: TestClient, helping: Callable[..., None], kept: int, stays: bool
) -> None:
    helping(kept=kept)
    assert embedded.post("/v1/compositions", json=_ASKED).status_code == 200
    assert len(embedded.app.state.helpers._idle) == stays  # type: ignore[attr-defined]
    assert embedded.post("/v1/compositions", json=_ASKED).status_code == 200


@pytest.fixture
def cramped(_sqlite_template: Path, tmp_path: Path, secret: Secret) -> FastAPI:
    """Return an application with little memory for what is read back."""
    path = tmp_path / "cramped.db"
    shutil.copyfile(_sqlite_template, path)
    small = {"max_arrow_bytes": 60_000, "max_arrow_bytes_at_once": 60_000}
    return application(open_database(f"sqlite:///{path}"), secret, helper_processes=1, **small)


def test_a_list_of_large_plans_reserves_its_memory_before_it_is_read(cramped: FastAPI) -> None:
    with client_of(cramped) as client:
        open_account(client, budget={"definition": "zcdp", "rho": 100})
        large = {"type": "sequence", "parts": [concentrated(f"0.00{1000 + k}") for k in range(1200)]}
        registered = release(client, large)
        json_of(client.get("/v1/accounts/people/releases/" + registered["id"]))
        for name in ("releases", "journal"):
            refused = problem_of(client.get(f"/v1/accounts/people/{name}"), "too_large")
            assert refused["detail"] == "expected a request whose content takes at most 60000 bytes of memory"
        assert cramped.state.metrics.observed.bodies["arrow"].taken == 0
