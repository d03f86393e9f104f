"""Whole ledgers for the tests of what is done with them: one with everything in it, and random ones."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from service.errors import ServiceError
from service.ledger.accounts import lines, waiting_changes
from service.ledger.accounts.approvers import Approvers
from service.ledger.accounts.budgets import read_budget
from service.ledger.descriptions import descriptions
from service.ledger.draws import draws, places, tabulations
from service.ledger.draws.stored_draws import Turn
from service.ledger.draws.tabulation_layout import Layout
from service.ledger.installation.signing import Signer
from service.ledger.releases import charges, preparation
from service.ledger.releases.preparation import NewRelease
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification import exports
from service.noise.tabulation import SIZES
from service.privacy.planning.levels import find_level
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import mechanisms_of
from tests.ledger.charging import (
    ANN,
    BOB,
    account_of,
    approve,
    asking,
    carry_out,
    change_account,
    commit,
    draw as draw_first,
    open_account,
    reserve,
    void,
)

A = {"type": "geometric", "epsilon": "1/7", "name": "a", "tags": ["state"]}
B = {"type": "discrete_gaussian", "rho": "1/90", "name": "b", "tags": ["hispanic", "état"]}
DECLARED = {"type": "declared", "epsilon": "0.01", "delta": "1e-12", "reference": "elsewhere"}
PLANS: tuple[dict[str, Any], ...] = (
    A,
    {"type": "sequence", "parts": [A, B, B | {"name": "c", "partitions": 2}]},
    {
        "type": "repeat",
        "count": 3,
        "partitions": ["1", "36", "37"],
        "part": {"type": "choice", "parts": [A, {"type": "sequence", "parts": [A | {"name": "c"}]}]},
    },
    {"type": "parallel", "max_degree": 2, "parts": [A, B], "tags": ["split"]},
    {"type": "group", "size": 2, "part": {"type": "laplace", "epsilon": "1/50", "name": "é"}},
    DECLARED,
    {"type": "osgt", "sigma_squared": "400", "m": "3"},
)
LEVEL: dict[str, Any] = {
    "type": "repeat",
    "count": 9,
    "part": {
        "type": "choice",
        "parts": [A | {"name": "x/t"}, {"type": "sequence", "parts": [A | {"name": "x/1"}, A | {"name": "x/2"}]}],
    },
}
OLD_NAMES = ("agency", "programme", "product", "alone")
NAMES = (*OLD_NAMES, "monthly", "division", "clinic", "board")


class Clock:
    """The ledger's clock, which stands still until a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moment = datetime(2030, 1, 1, tzinfo=UTC)
        monkeypatch.setattr(clock, "now", lambda: clock.stamp(self.moment))

    def forward(self, hours: float) -> None:
        self.moment += timedelta(hours=hours)


def open_accounts(database: Database) -> None:
    """A line of three, one definition each, and an account by itself under RDP."""
    approximate = {"definition": "approximate", "epsilon": "9", "delta": "1e-6", "declared_delta": "1e-9"}
    open_account(database, "agency", **approximate)
    open_account(database, "programme", parent="agency", definition="rdp", alpha="7/3", epsilon="4", delta="1e-9")
    zcdp = {"definition": "zcdp", "rho": "1", "delta": "1e-9"}
    open_account(database, "product", parent="programme", approval_above="1/20", **zcdp)
    open_account(database, "alone", definition="pure", epsilon="12", delta="1e-9")


def register(
    database: Database,
    name: str,
    *plans: Any,
    hours: int | None = None,
    tags: Sequence[str] = (),
    periods: object = None,
) -> list[str]:
    """Releases in one transaction, reserved where ``hours`` are given; their ids."""
    reserve_for = None if hours is None else timedelta(hours=hours)
    new = [
        NewRelease(
            f"n°{number}", read_plan(plan), plan, tuple(tags), Fraction(1, 10**10), "/plan", reserve_for, periods
        )
        for number, plan in enumerate(plans)
    ]
    done = carry_out(database, charges.register(ANN, preparation.prepare(database, name, new)))
    return [one.id for one in done]


def draw(
    database: Database, name: str, release: str, plan: Any, *, which: int = 0, partition: str = "", turn: int = 0
) -> None:
    """Noisy counts of one of a plan's mechanisms."""
    value = read_plan(plan)
    mechanism = list(mechanisms_of(value))[which]
    noisy = np.array([turn, -which, 2 ** (62 - 9 * turn)])
    place = places.place_of(value, mechanism, Turn(partition, turn))
    draws.draw(database, ANN, name, release, draws.seal(place, noisy))


def tabulate(
    database: Database, name: str, release: str, groups: Sequence[str], details: str, plan_of: Any = LEVEL
) -> str:
    """Noisy counts of groups of the level of ``LEVEL``; the draw's id."""
    plan = read_plan(plan_of)
    level = find_level(plan, "x")
    assert level is not None
    layout = Layout("x", {"thresholds": [1, 2, 3]}, list(groups), details)
    noisy = np.arange(sum(SIZES[int(detail)] for detail in details))
    return tabulations.tabulate(database, ANN, name, release, plan, level, layout, noisy).record.id


def describe(database: Database, account: str, release: str | None = None, /, **patch: Any) -> None:
    """An edit of what people say of an account, or of one of its releases."""
    if release is None:
        carry_out(database, descriptions.describe_account(database, ANN, account, patch))
    else:
        carry_out(database, descriptions.describe_release(database, ANN, account, release, patch))


def everything(database: Database, time: Clock) -> None:
    """A ledger with entries of every kind and rows in every table."""
    everything_old(database, time)
    change_account(database, "product", read_budget({"definition": "zcdp", "rho": "3", "delta": "1e-9"}), ANN)
    waits = account_of(database, "product").head.seq
    carry_out(database, waiting_changes.reject_change(database, BOB, "product", waits, "not this year"), BOB)
    panel = {"calendar": "month", "participation": {"offsets": [0, 2]}}
    open_account(database, "monthly", periods=panel, definition="pure", epsilon="12", delta="1e-9")
    quarter = {"from": "2026-01", "to": "2026-03"}
    register(database, "monthly", A, periods=quarter)
    register(database, "monthly", A, periods="all")
    register(database, "monthly", A, hours=24, periods={"list": ["2026-03", "2026-07"]})
    (ended,) = register(database, "monthly", A, hours=24, periods=quarter)
    void(database, ended, "monthly", "a mistake")
    open_account(database, "division", parent="alone", funding="allotted", definition="pure", epsilon="1/3")
    open_account(database, "clinic", parent="monthly", funding="allotted", definition="pure", epsilon="1/7")
    register(database, "division", A)
    register(database, "clinic", A, hours=24)
    change_account(database, "division", read_budget({"definition": "pure", "epsilon": "1/2", "delta": "1e-12"}))
    change_account(database, "division", "closed")
    open_account(database, "board", approval_above="1/500", approvers=Approvers(1, ("bob", "carol")))
    for steward in (ANN, BOB):
        change_account(database, "board", Approvers(2, ("bob", "carol", "dan")), steward)
    waiting, whole = register(database, "board", A, hours=24)[0], register(database, "board", A)[0]
    for release, request in ((waiting, BOB), (whole, BOB), (whole, asking("dan"))):
        approve(database, release, "board", request)
    for steward in (ANN, BOB):
        change_account(database, "board", read_budget({"definition": "zcdp", "rho": "2"}), steward)


def everything_old(database: Database, time: Clock) -> None:
    """A ledger with entries of every kind that 0.4.0 knows, but repriced ones, and rows in every table of then."""
    open_accounts(database)
    register(database, "product", PLANS[1], DECLARED, tags=["pl94"])  # more than 1/20 is proposed
    small = {"type": "discrete_gaussian", "rho": "1/100", "name": "small"}
    register(database, "product", small, small, tags=["pl94", "été"])
    ends = register(database, "alone", A, hours=1)
    time.forward(2)
    (kept,) = register(database, "alone", A | {"epsilon": "1/9"}, hours=24)  # whoever charges lets the first expire
    assert releases_in(database, "alone") == {ends[0]: "expired", kept: "reserved"}
    (committed,) = register(database, "alone", PLANS[2], hours=24, tags=["drawn"])
    draw(database, "alone", committed, PLANS[2], which=1, turn=1)
    for partition in ("36", "37"):
        draw(database, "alone", committed, PLANS[2], which=0, partition=partition, turn=2)
    (level,) = register(database, "alone", LEVEL)
    tabulate(database, "alone", level, ["36/été", "36/a", "36/b"], "024")
    tabulate(database, "alone", level, ["37/a"], "1")
    describe(database, "alone", description="populations of 36 groups", data_curators=["Bureau", "Büro"])
    describe(database, "alone", committed, description="the first tables, été")
    describe(database, "alone", description="populations of groups", data_curators=None)
    (voided,) = register(database, "alone", A, hours=24)
    void(database, voided, "alone", "a mistake")
    (proposed,) = register(database, "product", B | {"rho": "1/10"}, hours=3)
    approve(database, proposed, "product")
    commit(database, proposed, "product")
    register(database, "product", B | {"rho": "1/10"}, hours=5)
    register(database, "programme", A, tags=["own"])
    (drawn,) = register(database, "programme", PLANS[1])
    draw(database, "programme", drawn, PLANS[1], which=2, partition="01")
    with suppress(ServiceError):
        register(database, "alone", {"type": "geometric", "epsilon": "100"})  # refused, which the journal keeps
    change_account(database, "alone", read_budget({"definition": "pure", "epsilon": "13", "delta": "1e-9"}))
    change_account(database, "alone", "closed")
    change_account(database, "alone", "open")
    change_account(database, "product", Fraction(1, 50))
    for steward in (ANN, BOB):
        greater = read_budget({"definition": "zcdp", "rho": "2", "delta": "1e-9"})
        change_account(database, "product", greater, steward)


def releases_in(database: Database, name: str) -> dict[str, str]:
    """The states of an account's releases by their ids, as they are stored."""
    query = "SELECT r.id, r.state FROM releases r JOIN accounts a ON a.id = r.account_id WHERE a.name = :name"
    with database.read() as connection:
        return {row.id: row.state for row in connection.execute(text(query), {"name": name})}


Step = tuple[str, int, int, int]


def play(database: Database, time: Clock, steps: Sequence[Step]) -> None:
    """Play steps on a ledger; a step that it refuses changes nothing, or leaves a refusal in the journal."""
    open_accounts(database)
    known: list[tuple[str, str, Any]] = []
    for action, first, second, third in steps:
        with suppress(ServiceError):
            _act(database, time, known, action, OLD_NAMES[first % len(OLD_NAMES)], second, third)


def _act(
    database: Database, time: Clock, known: list[tuple[str, str, Any]], action: str, name: str, second: int, third: int
) -> None:
    if action in ("commit", "approve", "void", "draw", "describe"):
        account, release, plan = known[second % len(known)] if known else (name, "nothing", A)
    match action:
        case "charge" | "reserve":
            plans = [PLANS[second % len(PLANS)], PLANS[third % len(PLANS)]][: 1 + third % 2]
            hours = None if action == "charge" else 1 + third
            ids = register(database, name, *plans, hours=hours, tags=["x"] * (second % 2))
            known += zip([name] * len(ids), ids, plans, strict=True)
        case "commit":
            commit(database, release, account)
        case "approve":
            approve(database, release, account)
        case "void":
            void(database, release, account, attestation="nothing left" if third % 2 else None)
        case "draw":
            which = third % len(list(mechanisms_of(read_plan(plan))))
            draw(database, account, release, plan, which=which, partition=str(third % 2 or ""), turn=third % 3)
        case "describe":
            describe(database, account, release if third % 2 else None, sources=str(third) if second % 2 else None)
        case "wait":
            time.forward(second)
        case "budget":
            budget = {"definition": "rdp", "alpha": "7/3", "epsilon": str(1 + second), "delta": "1e-9"}
            change_account(database, "programme", read_budget(budget))
        case "state":
            change_account(database, name, "closed" if third % 3 == 0 else "open")
        case "threshold":
            change_account(database, name, Fraction(1, 1 + second))


ACTIONS = (
    "charge", "reserve", "commit", "approve", "void", "draw", "describe", "wait", "budget", "state", "threshold"
)  # fmt: skip


def exported(database: Database, signer: Signer) -> bytes:
    """The export of all accounts."""
    with database.read() as connection:
        members = exports.members(connection)
    return "".join(exports.export(database, signer, members, clock.now())).encode()


def draw_what_is_held(database: Database, monkeypatch: pytest.MonkeyPatch, *, voided: bool) -> None:
    """Write what only a faulty server would: a draw that does not commit its release, which is held or was voided."""
    monkeypatch.setattr(draws, "lock_for_draw", lambda connection, line, *_: lines.lock_account(connection, line))
    open_account(database)
    (release,) = reserve(database, A)
    if voided:
        void(database, release)
    draw_first(database, release, A)
