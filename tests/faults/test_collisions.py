"""Numbers that Python hashes alike take no longer than others of their length, wherever a client may state many.

In processor time, the least of some rounds; no round has numbers of another one, so that nothing is remembered.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from service.privacy.accounting.leading_windows import leading
from service.privacy.accounting.privacy_filter import Budget, Definition, open_weights
from service.privacy.accounting.totals import LossSum, Totals
from tests.api.calls import application, client_of, json_of, open_account
from tests.faults.conftest import Form

pytestmark = pytest.mark.faults

PRIME = 2**61 - 1
"""Python hashes numbers modulo it."""
MOST = 1.5
"""How much longer colliding numbers may take: noise of the machine, and no more."""

Number = Callable[[int, str], str]
"""The k-th number about a figure."""


def _numbers(first: int, *, collide: bool) -> Number:
    def number(k: int, about: str) -> str:
        bottom = 10**30 + first + k
        top = int(Fraction(about) * 10**30)
        top += (7 * bottom - top) % PRIME if collide else (first + k) ** 3 * 1234567890123456789 % PRIME
        return f"{top}/{bottom}"

    return number


def _plan(node: str, make: Callable[[int], dict[str, Any]], many: int) -> dict[str, Any]:
    more = {"max_degree": 2} if node == "parallel" else {}
    return {"type": node, "parts": [make(k) for k in range(many)]} | more


def _mixed(of: Number) -> Callable[[int], dict[str, Any]]:
    kinds = (("geometric", "scale", "200"), ("gaussian", "sigma_squared", "20000"), ("laplace", "epsilon", "1/300"))

    def make(k: int) -> dict[str, Any]:
        kind, name, about = kinds[k % 3]
        return {"type": kind, name: of(k, about)}

    return make


def _nested(of: Number) -> dict[str, Any]:
    plan = _plan("choice", lambda k: {"type": "laplace", "scale": of(k, "200")}, 600)
    for k in range(14):
        plan = _plan("sequence", lambda _, plan=plan, k=k: plan if _ else {"type": "laplace", "scale": f"{k + 1}"}, 2)  # type: ignore[misc]
        plan = {"type": "choice", "parts": [plan, {"type": "geometric", "scale": "3"}]}
    return plan


def _curve(of: Number, many: int) -> list[dict[str, str]]:
    return [{"alpha": of(k, "2"), "epsilon": of(k, "1/2")} for k in range(many)]


_COMPOSED = "/v1/compositions"
REQUESTS: dict[str, tuple[str, Callable[[Number], dict[str, Any]]]] = {
    "sequence": (_COMPOSED, lambda of: {"plan": _plan("sequence", _mixed(of), 1000)}),
    "parallel": (_COMPOSED, lambda of: {"plan": _plan("parallel", _mixed(of), 1000)}),
    "choice": (_COMPOSED, lambda of: {"plan": _plan("choice", lambda k: _mixed(of)(3 * k), 1000)}),
    "nested": (_COMPOSED, lambda of: {"plan": _nested(of)}),
    "sensitivities": (
        _COMPOSED,
        lambda of: {
            "plan": _plan(
                "sequence", lambda k: {"type": "laplace", "epsilon": "1/900", "sensitivity": of(k, "3")}, 2000
            )
        },
    ),
    "cells": (
        _COMPOSED,
        lambda of: {
            "plan": _plan("choice", lambda k: {"type": "geometric", "scale": of(k, "90"), "cells": 2**53 - k}, 1000)
        },
    ),
    "repetitions": (
        _COMPOSED,
        lambda of: {
            "plan": _plan(
                "choice",
                lambda k: {
                    "type": "repeat",
                    "count": 10**12 - k,
                    "part": {"type": "gaussian", "sigma_squared": of(k, "20000")},
                },
                1000,
            )
        },
    ),
    "orders": (
        _COMPOSED,
        lambda of: {"plan": {"type": "geometric", "scale": "3"}, "orders": [of(k, "3") for k in range(1000)]},
    ),
    "curve": ("/v1/conversions", lambda of: {"rdp": _curve(of, 1000), "delta": "1e-6"}),
    "margins": (
        "/v1/calibrations/allocation",
        lambda of: {
            "mechanism": "laplace",
            "queries": [{"name": f"{k}", "moe": of(k, "40"), "sensitivity": of(k, "3")} for k in range(100)],
        },
    ),
}


@pytest.fixture(scope="module")
def client(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path = tmp_path_factory.mktemp("collisions") / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    with client_of(application(open_database(f"sqlite:///{path}"), Secret(bytes(range(32))))) as opened:
        yield opened


def _least(act: Callable[[Number], object], rounds: int) -> dict[bool, float]:
    """Seconds of the processor, whether the numbers collide or not."""
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds):
        collide = number % 2 == 1
        of = _numbers(10_000 * (number + 1), collide=collide)
        start = time.process_time()
        act(of)
        took[collide].append(time.process_time() - start)
    return {collide: min(found) for collide, found in took.items()}


@pytest.mark.parametrize("what", REQUESTS)
def test_colliding_numbers_take_no_longer(client: TestClient, times: Form, what: str) -> None:
    path, body = REQUESTS[what]
    took = _least(lambda of: json_of(client.post(path, json=body(of))), times(4, 12))
    assert took[True] <= MOST * took[False]


def test_a_balance_of_colliding_numbers_takes_no_longer(client: TestClient, times: Form) -> None:
    accounts: list[str] = []

    def charged(of: Number) -> None:
        name = f"balance-{len(accounts)}"
        accounts.append(name)
        open_account(client, name, {"definition": "zcdp", "rho": "100"})
        for first in (0, 1000):
            plan = _plan("sequence", lambda k, first=first: _mixed(of)(first + k), 500)  # type: ignore[misc]
            json_of(client.post(f"/v1/accounts/{name}/releases", json={"name": "r", "plan": plan}), 201)

    took = _least(charged, times(2, 6))
    assert took[True] <= MOST * took[False]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number, name in enumerate(accounts):
        start = time.process_time()
        json_of(client.get(f"/v1/accounts/{name}/balance"))
        seconds[number % 2 == 1].append(time.process_time() - start)
    assert min(seconds[True]) <= MOST * min(seconds[False])


def test_leading_windows_with_colliding_denominators_take_no_longer(times: Form) -> None:
    weights = open_weights(Budget(definition=Definition.ZCDP, cap=Fraction(10)))
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(times(6, 20)):
        collide = number % 2 == 1
        step = PRIME if collide else PRIME + 2
        losses = (Fraction(1, 10**6 + number + window * step) for window in range(4000))
        windows = {window: Totals(rho=LossSum(loss), linear=loss) for window, loss in enumerate(losses)}
        start = time.process_time()
        leading(weights, windows, 3)
        took[collide].append(time.process_time() - start)
    assert min(took[True]) <= MOST * min(took[False])
