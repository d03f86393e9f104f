"""Four servers on one PostgreSQL, 64 clients, accounts with room for some: exactly those get in, in an order that is one."""

import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from tests.api.calls import open_account
from tests.faults import audit
from tests.faults.conftest import Form
from tests.faults.load import Load, Operation, batch, charge, register_and_draw
from tests.faults.processes import replicas
from tests.postgres_server import Cluster

pytestmark = pytest.mark.faults

_SERVERS, _CLIENTS = 4, 64


def test_exactly_as_many_as_fit(cluster: Cluster, tmp_path: Path, times: Form) -> None:
    """On `equal-` accounts room for 200 of 1,000 equal charges; on `mixed-` ones the order decides who fits."""
    random_ = random.Random(64)
    accounts = {f"{kind}-{turn}": cap for turn in range(times(1, 10)) for kind, cap in (("equal", 20), ("mixed", 12))}
    attempts = {account: _attempts(account, random_) for account in accounts}
    with replicas(tmp_path, _SERVERS, database_url=cluster.url) as servers, servers[0].client() as client:
        for account, cap in accounts.items():
            open_account(client, account, {"definition": "pure", "epsilon": cap})
        everything = [operation for operations in attempts.values() for operation in operations]
        random_.shuffle(everything)
        with Load(servers, iter(everything), _CLIENTS, gives_up=0) as load:
            load.wait()
        assert set(load.statuses()) == {201, 409}
        assert all(len(operation.attempts) == 1 for operation in load.operations)
        for account, cap in accounts.items():
            found = audit.check(client, cluster.url, account, load.operations, load.balances)
            answered = Counter(operation.succeeded for operation in attempts[account])
            if account.startswith("equal"):
                assert answered == {True: 200, False: 800}
                assert found.spent == cap
            else:
                smallest = min(operation.cost for operation in attempts[account] if not operation.succeeded)
                assert cap - smallest < found.spent <= cap
                assert min(answered.values()) > 20


def _attempts(account: str, random_: random.Random) -> list[Operation]:
    names = [f"{account}-{number}" for number in range(1000 if account.startswith("equal") else 300)]
    if account.startswith("equal"):
        return [charge(account, name, "0.1") for name in names]
    return [_one_of_many(account, name, random_) for name in names]


def _one_of_many(account: str, name: str, random_: random.Random) -> Operation:
    epsilon = random_.choice(["0.07", "1/6", "0.5", "0.01"])
    match random_.randrange(4):
        case 0:
            return batch(account, name, epsilon, random_.randint(2, 5))
        case 1:
            return register_and_draw(account, name, epsilon)
        case _:
            return charge(account, name, str(Fraction(epsilon)))
