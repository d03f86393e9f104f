"""A charge that touches twelve windows beside a plain one, on the ledger without HTTP, in processor seconds."""

import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from statistics import median
from typing import Any

from service.ledger.accounts import account_changes
from service.ledger.accounts.account_changes import NewAccount
from service.ledger.accounts.budgets import read_budget
from service.ledger.idempotent_write import idempotent_write
from service.ledger.installation.binding import check_secret
from service.ledger.releases import charges, preparation
from service.ledger.releases.preparation import NewRelease
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.idempotency import Answer, Request
from service.ledger.storage.migrate import migrate
from service.ledger.storage.secret import Secret
from service.privacy.periods import read_account_periods
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring

_ROUNDS, _CHARGES = 9, 60
_BUDGETS = {
    "zcdp": {"definition": "zcdp", "rho": "1000000"},
    "(epsilon, delta)": {"definition": "approximate", "epsilon": "1000000", "delta": "1e-6"},
}
_YEAR = {"calendar": "month", "participation": {"offsets": list(range(12))}}
_SECRET = Secret(bytes(range(32)))
_REQUEST = Request("bench", None, "", _SECRET, None, None)
_TARGET = 2


def run() -> None:
    """Print the processor time of both, in turns, and the one as a multiple of the other."""
    print(f"Charges to an account and to twelve windows of one, on SQLite (target: at most {_TARGET} times)")
    with tempfile.TemporaryDirectory() as directory:
        database = open_database(f"sqlite:///{directory}/ledger.db")
        migrate(database)
        check_secret(database, _SECRET)
        for kind, budget in _BUDGETS.items():
            _compare(database, kind, budget)
        database.close()


def _compare(database: Database, kind: str, budget: dict[str, str]) -> None:
    for name, stated in (("plain", None), ("by month", read_account_periods(_YEAR, ""))):
        new = NewAccount(f"{kind} {name}", "person", Neighbouring.ADD_REMOVE, "", read_budget(budget), periods=stated)
        opening = account_changes.open_account(database, _REQUEST, new)
        idempotent_write(database, _REQUEST, opening, lambda _: Answer(201, "{}"))
    for noise, plan_of in (("equal", lambda _: "100"), ("never the same", lambda number: str(100 + number))):
        times: dict[str, list[float]] = {"plain": [], "by month": []}
        for turn in range(_ROUNDS):
            for name, found in times.items():
                read = None if name == "plain" else {"list": [f"{2026 + turn // 12}-{turn % 12 + 1:02d}"]}
                found.append(_time(database, f"{kind} {name}", plan_of, read, turn))
        plain, windows = (median(found) for found in times.values())
        print(f"  {kind}, {noise} noise: {1e3 * plain:.2f} ms, {1e3 * windows:.2f} ms, {windows / plain:.2f} times")


def _time(database: Database, name: str, plan_of: Callable[[int], str], periods: Any, turn: int) -> float:
    """Return the processor seconds of one charge."""
    began = time.process_time()
    for number in range(_CHARGES):
        plan = {"type": "discrete_gaussian", "sigma_squared": plan_of(turn * _CHARGES + number)}
        new = NewRelease("n", read_plan(plan), plan, (), Fraction(1, 10**10), "/plan", None, periods)
        operation = charges.register(_REQUEST, preparation.prepare(database, name, [new]))
        idempotent_write(database, _REQUEST, operation, lambda _: Answer(201, "{}"))
    return (time.process_time() - began) / _CHARGES
