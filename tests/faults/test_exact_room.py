"""Four servers on one PostgreSQL, 64 clients, and accounts with room for some: exactly those get in."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.api.calls import open_account
from tests.faults import audit
from tests.faults.conftest import Form
from tests.faults.load import Load, Operation, batch, charge, hold, register_and_draw
from tests.faults.processes import replicas

pytestmark = pytest.mark.faults

_SERVERS, _CLIENTS = 4, 64


def test_exactly_as_many_as_fit(server_url: str, tmp_path: Path, times: Form) -> None:
    """`equal` has room for 200 of 1,000 equal charges, and so has `top` for those of `left` and `right` together.

    In `mixed` the order decides who fits, and some of what is held is given back.
    """
    random_ = random.Random(64)
    with replicas(tmp_path, _SERVERS, database_url=server_url) as servers, servers[0].client() as client:
        for turn in range(times(1, 10)):
            equal, mixed, top, left, right = (f"{name}-{turn}" for name in ("equal", "mixed", "top", "left", "right"))
            for account, cap, parent in (
                (equal, 20, None),
                (mixed, 12, None),
                (top, 20, None),
                (left, 15, top),
                (right, 15, top),
            ):
                open_account(client, account, {"definition": "pure", "epsilon": cap}, parent=parent)
            operations = [
                *(charge(equal, f"{equal}-{number}", "0.1") for number in range(1000)),
                *(_one_of_many(mixed, f"{mixed}-{number}", random_) for number in range(300)),
                *(charge(account, f"{account}-{number}", "0.1") for account in (left, right) for number in range(200)),
            ]
            random_.shuffle(operations)
            with Load(servers, iter(operations), _CLIENTS, gives_up=0, reads=[equal, mixed, top, left, right]) as load:
                load.wait()
            assert set(load.statuses()) == {200, 201, 409}
            assert all(len(operation.attempts) == 1 for operation in load.operations)
            for account in (equal, mixed, left, right):
                audit.check(client, account, load.operations, load.balances)
            found = audit.check(client, top, load.operations, load.balances, under=[left, right])
            audit.check_tables(server_url)
            assert found.total == 20
            admitted = Counter(operation.account for operation in load.operations if operation.succeeded)
            assert admitted[equal] == admitted[left] + admitted[right] == 200
            assert max(admitted[left], admitted[right]) <= 150
            assert 20 < admitted[mixed] < 280


def _one_of_many(account: str, name: str, random_: random.Random) -> Operation:
    epsilon = random_.choice(["0.07", "1/6", "0.5", "0.01"])
    match random_.randrange(6):
        case 0:
            return batch(account, name, epsilon, random_.randint(2, 5))
        case 1:
            return register_and_draw(account, name, epsilon)
        case 2 | 3:
            return hold(account, name, epsilon, random_.choice(["commit", "void", "void", "draw"]))
        case _:
            return charge(account, name, epsilon)
