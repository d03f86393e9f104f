"""Charges to twelve windows, and to twelve of any periods, beside plain ones: without HTTP, in processor seconds."""

import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from statistics import median
from typing import Any

from service.ledger.accounts import account_opening
from service.ledger.accounts.account_opening import NewAccount
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
_MONTHS_BEFORE = 12
_BUDGETS = {
    "zcdp": {"definition": "zcdp", "rho": "1000000"},
    "(epsilon, delta)": {"definition": "approximate", "epsilon": "1000000", "delta": "1e-6"},
}
_ACCOUNTS = {
    "plain": None,
    "windows": {"calendar": "month", "participation": {"offsets": list(range(12))}},
    "any": {"calendar": "month", "participation": {"any": 12}},
}
_MONTHS = {"windows": 1, "any": 12}  # that a release reads: twelve totals in both
_NOISE: dict[str, Callable[[int], dict[str, str]]] = {
    "equal noise": lambda _: {"type": "discrete_gaussian", "sigma_squared": "100"},
    "noise never the same": lambda number: {"type": "discrete_gaussian", "sigma_squared": str(100 + number)},
    "equal geometric noise": lambda _: {"type": "geometric", "epsilon": "1/100"},
}
_SECRET = Secret(bytes(range(32)))
_REQUEST = Request("bench", None, "", _SECRET, None, None)
_TARGETS = {"windows": 2, "any": 2.5}


def run() -> None:
    """Print the processor time of each, in turns, and as a multiple of that of plain charges."""
    print(
        f"Charges to an account, to twelve windows, and to twelve of any periods, on SQLite (targets: {_TARGETS} times)"
    )
    with tempfile.TemporaryDirectory() as directory:
        database = open_database(f"sqlite:///{directory}/ledger.db")
        migrate(database)
        check_secret(database, _SECRET)
        for kind, budget in _BUDGETS.items():
            _compare(database, kind, budget)
        database.close()


def _compare(database: Database, kind: str, budget: dict[str, str]) -> None:
    for name, periods in _ACCOUNTS.items():
        stated = None if periods is None else read_account_periods(periods, "")
        new = NewAccount(f"{kind} {name}", "person", Neighbouring.ADD_REMOVE, "", read_budget(budget), periods=stated)
        opening = account_opening.open_account(database, _REQUEST, new)
        idempotent_write(database, _REQUEST, opening, lambda _: Answer(201, "{}"))
    for turn, name in product(range(_MONTHS_BEFORE), _ACCOUNTS):  # after them no two windows of a year are equal
        _time(database, f"{kind} {name}", [_NOISE["equal noise"](turn)], _read(name, turn))
    for noise, plan_of in _NOISE.items():
        times: dict[str, list[float]] = {name: [] for name in _ACCOUNTS}
        for turn in range(_ROUNDS):
            plans = [plan_of(turn * _CHARGES + number) for number in range(_CHARGES)]
            for name, found in times.items():
                found.append(_time(database, f"{kind} {name}", plans, _read(name, _MONTHS_BEFORE + turn)))
        plain, *others = (median(found) for found in times.values())
        shown = ", ".join(f"{1e3 * one:.2f} ms ({one / plain:.2f} times)" for one in others)
        print(f"  {kind}, {noise}: {1e3 * plain:.2f} ms, {shown}")


def _read(name: str, turn: int) -> dict[str, list[str]] | None:
    """Return the periods of the releases of a turn; None in the account without periods."""
    return {"list": [_month(turn + number) for number in range(_MONTHS[name])]} if name in _MONTHS else None


def _month(number: int) -> str:
    return f"{2026 + number // 12}-{number % 12 + 1:02d}"


def _time(database: Database, name: str, plans: Sequence[dict[str, str]], periods: Any) -> float:
    """Return the processor seconds of one charge."""
    began = time.process_time()
    for plan in plans:
        new = NewRelease("n", read_plan(plan), plan, (), Fraction(1, 10**10), "/plan", None, periods)
        operation = charges.register(_REQUEST, preparation.prepare(database, name, [new]))
        idempotent_write(database, _REQUEST, operation, lambda _: Answer(201, "{}"))
    return (time.process_time() - began) / len(plans)
