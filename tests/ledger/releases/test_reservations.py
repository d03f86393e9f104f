"""Reservations, proposals and what becomes of them: committed, voided, expired; in every budget and in the journal."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from time import thread_time
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event, text

from service.errors import (
    Altered,
    BudgetExceeded,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unavailable,
)
from service.ledger import idempotent_write
from service.ledger.accounts import accounts, budgets
from service.ledger.accounts.budgets import read_budget
from service.ledger.descriptions import descriptions
from service.ledger.draws import count_codec, draws
from service.ledger.releases import expiry_keeper, releases, reservation_rows, reservations, settlement
from service.ledger.releases.expiry_keeper import ExpiryKeeper
from service.ledger.releases.releases import Wanted
from service.ledger.releases.reservation_rows import State
from service.ledger.releases.settlement import (
    Expiry,
    expire,
    has_many_due,
    in_list,
    present_account,
    without_due_reservations,
)
from service.ledger.spending import spending, subplans
from service.ledger.storage import clock
from service.ledger.storage.chain_points import ChainPoints
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer
from service.ledger.verification.verify import verify
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.totals import Totals
from tests.ledger.charging import (
    ANN,
    BOB,
    account_of,
    approve,
    asking,
    carry_out,
    change_account,
    charge,
    commit,
    draw,
    entries_of,
    left,
    of_every_definition,
    open_account,
    prepared,
    release_of,
    reserve,
    seal,
    unseal,
    void,
)
from tests.ledger.statements import statements
from tests.ledger.writing import hold_of, put_back, run, unprotected

_DRAWN = {"type": "geometric", "epsilon": "0.1", "name": "a"}
_DECLARED = {"type": "gaussian", "rho": "0.1"}  # not drawn here
_HOUR = timedelta(hours=1)


class _Clock:
    """The ledger's clock, which stands still until a test moves it."""

    def __init__(self) -> None:
        self.moment = datetime(2030, 1, 1, tzinfo=UTC)

    def now(self) -> str:
        return clock.stamp(self.moment)

    def forward(self, hours: float) -> None:
        self.moment += timedelta(hours=hours)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    still = _Clock()
    monkeypatch.setattr(clock, "now", still.now)
    monkeypatch.setattr(expiry_keeper, "rest_after", lambda _: 0.0)  # whatever an expiry takes on a busy machine
    return still


def _spend(seconds: float) -> None:
    """Use the processor for so long."""
    until = thread_time() + seconds
    while thread_time() < until:
        pass


def _kinds(database: Database, name: str = "people") -> list[str]:
    return [entry.kind for entry in entries_of(database, name)]


def _content(database: Database, name: str = "people") -> Any:
    """Return the content of the last entry."""
    return json.loads(entries_of(database, name)[-1].body)["content"]


def _rows(database: Database, table: str) -> int:
    with database.read() as connection:
        count: int = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
        return count


@of_every_definition
def test_a_void_leaves_what_there_was_before(database: Database, budget: dict[str, str]) -> None:
    opened = open_account(database, **budget)
    (first,) = reserve(database, {"type": "sequence", "parts": [_DRAWN, _DRAWN | {"name": "b"}]})
    between = account_of(database)
    assert between.totals != opened.totals
    (second,) = reserve(database, {"type": "laplace", "epsilon": "1/3"})
    with pytest.raises(InvalidInput) as refused:
        void(database, second)
    assert refused.value.faults[0].pointer == "/attestation"
    assert void(database, second, attestation="nothing left the building").state == "voided"
    assert account_of(database).totals == between.totals
    void(database, first)
    after = account_of(database)
    assert (after.totals, after.releases, after.next_expiry) == (opened.totals, 0, None)
    assert _kinds(database) == ["account_opened", "reserved", "reserved", "voided", "voided"]
    assert _content(database) == {"reason": "why", "attestation": None}
    assert (_rows(database, "spending"), _rows(database, "holds"), _rows(database, "releases")) == (0, 0, 2)


def test_a_reservation_counts_until_it_is_committed_and_then_as_spent(database: Database, time: _Clock) -> None:
    open_account(database, definition="pure", epsilon="1")
    (release,) = reserve(database, _DRAWN)
    found = release_of(database, release)
    assert (found.state, found.expires_at) == ("reserved", "2030-01-01T01:00:00.000000Z")
    account = account_of(database)
    with database.read() as connection:
        committed, held = spending.counts(connection, account)
    assert (committed, sum(held.values()), account.releases) == (Counter(), 1, 1)
    assert left(database) == Fraction(9, 10)
    assert commit(database, release).state == "committed"
    after = account_of(database)
    with database.read() as connection:
        assert spending.counts(connection, after) == (held, Counter())
    assert (after.totals, after.releases, after.next_expiry) == (account.totals, 1, None)
    assert _content(database) == {}
    time.forward(2)
    assert release_of(database, release).state == "committed"
    assert left(database) == Fraction(9, 10)


def test_what_expires_needs_nobody(database: Database, time: _Clock) -> None:
    """A reader sees it at once and writes nothing; the next writer writes it down, and has its room."""
    open_account(database, definition="pure", epsilon="0.25")
    early, late = reserve(database, _DRAWN)[0], reserve(database, _DRAWN, hours=2)[0]
    with pytest.raises(BudgetExceeded):
        charge(database, _DRAWN)
    time.forward(1)  # the very moment
    head = account_of(database).head
    assert (release_of(database, early).state, release_of(database, late).state) == ("expired", "reserved")
    assert left(database) == Fraction(3, 20)
    with database.read() as connection:
        account = account_of(database)
        now = present_account(connection, account, clock.now())
        assert (now.account.releases, sum(now.expired.values())) == (1, 1)
        listed = {
            state: [
                one.id
                for one in releases.list_releases(
                    connection, account.chain, 0, 9, Wanted(state=state), clock.now(), lambda _: None
                )
            ]
            for state in ("reserved", "expired", "voided", "committed", "proposed", None)
        }
    assert listed == {
        "reserved": [late],
        "expired": [early],
        "voided": [],
        "committed": [],
        "proposed": [],
        None: [early, late],
    }
    assert account_of(database).head == head
    charge(database, _DRAWN)
    assert _kinds(database) == ["account_opened", "reserved", "reserved", "refused", "expired", "committed"]
    expired = json.loads(entries_of(database)[4].body)
    assert (expired["release"], expired["actor"], expired["time"]) == (early, None, "2030-01-01T01:00:00.000000Z")
    assert account_of(database).next_expiry == release_of(database, late).expires_at


def _draw(database: Database, release: str) -> None:
    draw(database, release, _DRAWN)


@pytest.mark.parametrize("late", [commit, void, _draw])
def test_whoever_comes_too_late_finds_it_expired(database: Database, time: _Clock, late: Callable[..., object]) -> None:
    opened = open_account(database)
    (release,) = reserve(database, _DRAWN)
    time.forward(1)
    with pytest.raises(Conflict, match="expired"):
        late(database, release)
    assert release_of(database, release).state == "expired"
    assert _kinds(database) == ["account_opened", "reserved", "expired"]
    assert account_of(database).totals == opened.totals


def test_a_budget_goes_down_to_what_is_left_once_holds_have_expired(database: Database, time: _Clock) -> None:
    open_account(database, definition="pure", epsilon="1")
    reserve(database, _DRAWN)

    def lower() -> None:
        budget = read_budget({"definition": "pure", "epsilon": "0.05"})
        change_account(database, "people", budget)

    with pytest.raises(BudgetExceeded):
        lower()
    time.forward(1)
    lower()
    assert _kinds(database)[-2:] == ["expired", "budget_changed"]


def test_what_could_be_published_without_the_service_does_not_expire_by_itself(
    database: Database, time: _Clock
) -> None:
    open_account(database)
    (release,) = reserve(database, {"type": "sequence", "parts": [_DRAWN, _DECLARED]})
    time.forward(1000)
    found = release_of(database, release)
    assert (found.state, found.is_over(clock.now()), account_of(database).next_expiry) == ("reserved", True, None)
    charge(database, _DRAWN)
    assert release_of(database, release).state == "reserved"
    with pytest.raises(InvalidInput):
        void(database, release)
    assert release_of(database, release).state == "reserved"
    assert void(database, release, attestation="the tapes were wiped").state == "voided"
    assert _content(database) == {"reason": "why", "attestation": "the tapes were wiped"}


def test_the_first_draw_commits(database: Database) -> None:
    open_account(database)
    plan = {"type": "repeat", "count": 2, "part": _DRAWN}
    (release,) = reserve(database, plan)
    draw(database, release, plan)
    assert _kinds(database) == ["account_opened", "reserved", "committed", "drawn"]
    assert release_of(database, release).state == "committed"
    with pytest.raises(Conflict, match="committed"):
        void(database, release)
    draw(database, release, plan, 1)
    assert _kinds(database)[-2:] == ["drawn", "drawn"]


def test_a_refused_first_draw_leaves_the_reservation(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(database)
    (release,) = reserve(database, _DRAWN)
    monkeypatch.setattr(count_codec, "MOST_BYTES", 10)
    with pytest.raises(TooLarge):
        draw(database, release, _DRAWN)
    assert (release_of(database, release).state, _kinds(database)[-1]) == ("reserved", "reserved")


def _release_in(database: Database, state: State) -> str:
    """An account with a release in this state; what costs 0.5 or less needs no approval."""
    open_account(database, definition="pure", epsilon="1", approval_above="0.5" if state == "proposed" else "1")
    plan = {"type": "geometric", "epsilon": "0.6", "name": "a"}
    if state == "committed":
        return charge(database, plan)[0].id
    (release,) = reserve(database, plan)
    if state == "voided":
        void(database, release)
    return release


@pytest.mark.parametrize(
    ("state", "refused"),
    [
        ("proposed", [commit, _draw]),
        ("reserved", [approve]),
        ("committed", [void, approve]),
        ("voided", [commit, _draw, approve]),
    ],
)
def test_what_cannot_become_of_a_state(
    database: Database, state: State, refused: list[Callable[[Database, str], object]]
) -> None:
    release = _release_in(database, state)
    before = _kinds(database)
    for act in refused:
        with pytest.raises(Conflict):
            act(database, release)
    assert _kinds(database) == before
    assert release_of(database, release).state == state


@pytest.mark.parametrize("act", [commit, void])
def test_said_twice_is_the_same(database: Database, act: Callable[[Database, str], Any]) -> None:
    open_account(database)
    (release,) = reserve(database, _DRAWN)
    assert act(database, release) == act(database, release)
    assert len(entries_of(database)) == 3


def test_a_release_that_is_not_there(database: Database) -> None:
    open_account(database)
    open_account(database, "other")
    (release,) = reserve(database, _DRAWN)
    for act in (commit, void, approve):
        with pytest.raises(NotFound):
            act(database, release, "other")
        with pytest.raises(NotFound):
            act(database, "nobody's")


# Approval


@pytest.mark.parametrize(
    ("budget", "plan", "size"),
    [
        ({"definition": "pure", "epsilon": "9"}, {"type": "geometric", "epsilon": "1/3"}, Fraction(1, 3)),
        ({"definition": "zcdp", "rho": "9"}, {"type": "gaussian", "rho": "1/3"}, Fraction(1, 3)),
        ({"definition": "rdp", "alpha": "3", "epsilon": "9"}, {"type": "gaussian", "rho": "1/9"}, Fraction(1, 3)),
        (
            {"definition": "approximate", "epsilon": "9", "delta": "1e-6"},
            {"type": "geometric", "epsilon": "1/3"},
            Fraction(1, 3),  # by the pure sum, far below what the orders give at such a delta
        ),
    ],
    ids=lambda value: value.get("definition", "") if isinstance(value, dict) else "",
)
def test_a_release_above_the_threshold_is_proposed(
    database: Database, budget: dict[str, str], plan: dict[str, Any], size: Fraction
) -> None:
    open_account(database, approval_above=str(size), **budget)
    assert charge(database, plan)[0].state == "committed"  # at it, not above
    lowered = size - Fraction(1, 10**12)
    change_account(database, "people", lowered)
    assert _content(database) == {"approval_above": str(lowered)}
    (proposed,) = charge(database, plan)
    assert (proposed.state, release_of(database, proposed.id).state) == ("proposed", "proposed")
    assert _kinds(database)[-1] == "proposed"


def test_an_infinite_loss_is_above_every_threshold(database: Database) -> None:
    open_account(database, approval_above="1000")
    parent = open_account(database, "pure", definition="pure", epsilon="1", approval_above="1000")
    assert charge(database, _DECLARED)[0].state == "committed"
    assert parent.approval_above == 1000
    with pytest.raises(BudgetExceeded):  # an infinite epsilon
        charge(database, _DECLARED, name="pure")


@pytest.mark.parametrize(("hours", "state"), [(None, "committed"), (1, "reserved")])
def test_another_principal_approves(database: Database, time: _Clock, hours: int | None, state: str) -> None:
    open_account(database, definition="pure", epsilon="1", approval_above="0")
    (proposed,) = charge(database, _DRAWN, reserve_for=None if hours is None else _HOUR)
    assert left(database) == Fraction(9, 10)
    with pytest.raises(Forbidden):
        approve(database, proposed.id, request=ANN)
    with pytest.raises(Conflict, match="proposed"):
        commit(database, proposed.id)
    assert approve(database, proposed.id).state == state
    assert _content(database) == {"to": state}
    assert approve(database, proposed.id) == release_of(database, proposed.id)
    with pytest.raises(Forbidden):
        approve(database, proposed.id, request=ANN)
    assert _kinds(database) == ["account_opened", "proposed", "approved"]
    assert left(database) == Fraction(9, 10)
    time.forward(1)
    assert release_of(database, proposed.id).state == ("expired" if hours else "committed")
    assert left(database) == (1 if hours else Fraction(9, 10))


def test_a_proposal_expires_like_a_reservation(database: Database, time: _Clock) -> None:
    open_account(database, definition="pure", epsilon="1", approval_above="0")
    (proposed,) = reserve(database, _DRAWN)
    (waiting,) = charge(database, _DRAWN)
    time.forward(1)
    with pytest.raises(Conflict, match="expired"):
        approve(database, proposed)
    assert approve(database, waiting.id).state == "committed"


def test_what_was_not_proposed_needs_no_approval(database: Database) -> None:
    open_account(database)
    for release in (charge(database, _DRAWN)[0].id, *reserve(database, _DRAWN)):
        with pytest.raises(Conflict, match="not proposed"):
            approve(database, release)


def test_one_steward_alone_cannot_ask_for_less_approval(database: Database) -> None:
    open_account(database)
    for wanted, fits in (("0.5", True), ("0.5", True), ("0.6", False), ("0.4", True)):
        try:
            change_account(database, "people", Fraction(wanted))
        except Conflict:
            assert not fits
        else:
            assert fits
    assert account_of(database).approval_above == Fraction(2, 5)
    assert _kinds(database) == ["account_opened", "metadata_changed", "metadata_changed"]


def test_what_needs_approval_is_not_registered_and_drawn_at_once(database: Database) -> None:
    open_account(database, approval_above="0")
    (ready,) = prepared(database, _DRAWN)
    with pytest.raises(Conflict, match="needs approval by others"):
        draws.register_and_draw(database, ANN, ready, np.array([5]))
    assert (_kinds(database), _rows(database, "releases")) == (["account_opened"], 0)


# Many, and together


def test_holds_of_many_accounts_expire_for_the_one_above_them(database: Database, time: _Clock) -> None:
    open_account(database, "agency", definition="pure", epsilon="2")
    for name in ("census", "survey"):
        open_account(database, name, parent="agency", definition="pure", epsilon="2")
        reserve(database, *[_DRAWN] * 9, name=name)
    reserve(database, _DRAWN, name="agency", hours=2)
    time.forward(1)
    assert left(database, "agency") == Fraction(19, 10)
    charge(database, *[_DRAWN] * 19, name="agency")
    assert Counter(_kinds(database, "agency")) == {
        "account_opened": 1,
        "reserved": 19,
        "expired": 18,
        "committed": 19,
    }
    assert _kinds(database, "census").count("expired") == 9
    assert account_of(database, "census").totals == Totals()
    assert account_of(database, "agency").next_expiry == "2030-01-01T02:00:00.000000Z"


def test_more_holds_than_expire_in_one_transaction(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.ledger.releases.settlement._AT_ONCE", 3)
    monkeypatch.setattr("service.ledger.releases.settlement._PAGE", 3)
    monkeypatch.setattr(idempotent_write, "_SECONDS", 60)
    open_account(database, definition="pure", epsilon="1")
    reserve(database, *[_DRAWN] * 10)
    time.forward(1)
    assert left(database) == 1
    charge(database, {"type": "geometric", "epsilon": "1"})
    assert Counter(_kinds(database))["expired"] == 10


@pytest.mark.parametrize(("seconds", "at_once"), [(60, 12), (0, 3)])
def test_a_charge_that_does_not_fit_lets_some_holds_expire_and_is_told_to_come_again(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch, seconds: int, at_once: int
) -> None:
    monkeypatch.setattr("service.ledger.releases.settlement._AT_ONCE", 3)
    monkeypatch.setattr(idempotent_write, "_SECONDS", seconds)
    for name, parent in (("agency", None), ("census", "agency"), ("survey", "agency")):
        open_account(database, name, parent=parent, definition="pure", epsilon="4")
    reserve(database, *[_DRAWN] * 40, name="census")
    time.forward(1)
    for times in (1, 2):
        database.holds_due.clear()
        with pytest.raises(Unavailable, match="does not fit beside reservations that have expired") as refused:
            charge(database, {"type": "geometric", "epsilon": "4"}, name="survey")
        assert (refused.value.retry_after, database.holds_due.is_set()) == (5, True)
        assert Counter(_kinds(database, "agency"))["expired"] == times * at_once
    _expire_in_background(database)
    charge(database, {"type": "geometric", "epsilon": "4"}, name="survey")
    assert Counter(_kinds(database, "agency")) == {"account_opened": 1, "reserved": 40, "expired": 40, "committed": 1}
    assert Counter(_kinds(database, "survey")) == {"account_opened": 1, "committed": 1}


def test_prices_that_are_alike_are_read_once_however_many_holds_are_due(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is some hundred numbers where an account counts at the RDP orders, and every reader pays for what is due."""
    read: list[object] = []

    def counted(document: Mapping[str, Any]) -> Price:
        read.append(document)
        return read_price(document)

    read_price = budgets.read_price
    open_account(database, definition="approximate", epsilon="10", delta="1e-6")
    opened = account_of(database).totals
    reserve(database, *[_DRAWN] * 5, _DRAWN | {"epsilon": "0.2"})
    time.forward(1)
    monkeypatch.setattr(budgets, "read_price", counted)
    with database.read() as connection:
        shown = present_account(connection, accounts.read_account(connection, "people"), clock.now()).account
    assert (shown.totals, shown.releases, len(read)) == (opened, 0, 2)
    assert expire(database, shown.id)
    assert len(read) == 4
    assert (account_of(database).totals, account_of(database).releases) == (opened, 0)


def test_a_reservation_that_was_put_back_expires_once(database: Database, time: _Clock) -> None:
    """The owner of the database has the old rows of a release and its hold, with their seals."""
    open_account(database, definition="pure", epsilon="10")
    charge(database, _DRAWN)
    (first,) = reserve(database, _DRAWN)
    (other,) = reserve(database, _DRAWN | {"epsilon": "0.2"}, hours=3)
    hold = hold_of(database, first)
    with database.read() as connection:
        seal = connection.execute(text("SELECT seal FROM releases WHERE id = :id"), {"id": first}).scalar_one()
    time.forward(1)
    _expire_in_background(database)
    after = account_of(database)
    unprotected(
        database, "releases", "UPDATE releases SET state = 'reserved', seal = :s WHERE id = :i", s=seal, i=first
    )
    put_back(database, hold)
    with pytest.raises(Altered, match="not as the service wrote it"):
        expire(database, after.id, first)
    with database.read() as connection:
        assert accounts.read_account(connection, "people").totals == after.totals
    assert release_of(database, other).state == "reserved"


def _expire_in_background(database: Database) -> None:
    expiry_keeper.ExpiryKeeper(database).expire_all(threading.Event())


def test_whoever_meets_many_holds_that_are_due_writes_none_of_them_down(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One principal's reservations end together: a charge below the same account fits beside them, and waits for none.

    A charge that does not fit beside them has them expire, where they are not too many, and then fits or does not.
    """
    for name, parent in (("agency", None), ("census", "agency"), ("survey", "agency")):
        open_account(database, name, parent=parent, definition="pure", epsilon="4")
    reserve(database, *[_DRAWN] * 30, name="census")
    time.forward(1)
    expired: list[object] = []
    settle = settlement.settle

    def counted(connection: Any, line: Any, settled: Any, *more: Any) -> Any:
        expired.append(len(settled))
        return settle(connection, line, settled, *more)

    monkeypatch.setattr(settlement, "settle", counted)
    monkeypatch.setattr(idempotent_write, "_SECONDS", 60)
    charge(database, _DRAWN, name="survey")
    assert (expired, database.holds_due.is_set()) == ([], True)
    assert left(database, "agency") == Fraction(39, 10)
    assert _kinds(database, "agency")[-2:] == ["reserved", "committed"]
    _expire_in_background(database)
    assert expired == [25, 5]
    assert Counter(_kinds(database, "agency"))["expired"] == Counter(_kinds(database, "census"))["expired"] == 30
    reserve(database, *[_DRAWN] * 30, name="census")
    time.forward(1)
    charge(database, {"type": "geometric", "epsilon": "3"}, name="survey")
    assert expired == [25, 5, 25, 5]
    with pytest.raises(BudgetExceeded):
        charge(database, {"type": "geometric", "epsilon": "1"}, name="survey")
    assert left(database, "agency") == Fraction(9, 10)
    for name in ("agency", "census", "survey"):
        with database.read() as connection:
            assert verify(connection, name).first_bad is None


def test_nobody_reads_the_long_plans_of_others_that_are_due(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, "agency")
    open_account(database, "census", parent="agency")
    open_account(database, "survey", parent="agency")
    plan = {"type": "sequence", "parts": [{"type": "geometric", "scale": str(1000 + k)} for k in range(500)]}
    reserve(database, plan, plan, plan, name="census")
    time.forward(1)
    monkeypatch.setattr(settlement, "held_of", None)
    charge(database, _DRAWN, name="survey")
    assert _kinds(database, "agency")[-1] == "committed"
    monkeypatch.undo()
    monkeypatch.setattr(clock, "now", time.now)
    monkeypatch.setattr(expiry_keeper, "rest_after", lambda _: 0.0)
    _expire_in_background(database)
    assert _kinds(database, "agency")[-3:] == ["expired"] * 3
    assert (_rows(database, "holds"), account_of(database, "agency").next_expiry) == (0, None)


@pytest.mark.parametrize(
    ("periods", "stated", "kinds"),
    [
        ({"calendar": "index", "participation": {"offsets": [0]}}, {"from": 0, "to": 199}, ["expired", "committed"]),
        ({"calendar": "index", "participation": {"offsets": [0]}}, {"from": 0, "to": 200}, ["committed"]),
        ({"calendar": "index", "participation": {"any": 2}}, {"list": [0]}, ["expired", "committed"]),
    ],
)
def test_nobody_settles_the_many_windows_of_others_that_are_due(
    database: Database, time: _Clock, periods: Any, stated: Any, kinds: list[str]
) -> None:
    open_account(database, periods=periods)
    reserve(database, _DRAWN, periods=stated)
    time.forward(1)
    charge(database, _DRAWN, periods={"list": [0]})
    assert _kinds(database)[2:] == kinds
    _expire_in_background(database)
    assert Counter(_kinds(database)) == {"account_opened": 1, "reserved": 1, "committed": 1, "expired": 1}


def test_nobody_finds_the_leading_ones_of_many_windows_for_others(database: Database, time: _Clock) -> None:
    open_account(database, periods={"calendar": "index", "participation": {"any": 2}})
    charge(database, _DRAWN, periods={"from": 1, "to": 201})
    reserve(database, _DRAWN, periods={"list": [0]})
    time.forward(1)
    charge(database, _DRAWN, periods={"list": [0]})
    assert _kinds(database)[-1] == "committed"
    assert "expired" not in _kinds(database)


@pytest.mark.parametrize("late", [commit, void, _draw])
def test_an_expiry_that_takes_long_is_left_to_the_server(
    database: Database, time: _Clock, late: Callable[..., object]
) -> None:
    """A principal that comes too late to many of them would otherwise hold the lock for all of them."""
    open_account(database, periods={"calendar": "index", "participation": {"offsets": [0]}})
    (release,) = reserve(database, _DRAWN, periods={"from": 0, "to": 200})
    time.forward(1)
    for _ in range(2):
        with pytest.raises(Conflict, match="expired"):
            late(database, release)
    assert _kinds(database) == ["account_opened", "reserved"]
    assert database.holds_due.is_set()
    _expire_in_background(database)
    with pytest.raises(Conflict, match="expired"):
        late(database, release)
    assert _kinds(database) == ["account_opened", "reserved", "expired"]


def test_a_principal_with_many_reservations_that_are_due_reserves_no_more(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of the line go through all of them; other principals, and charges without a reservation, go on."""
    monkeypatch.setattr(settlement, "_MOST_DUE", 12)
    open_account(database)
    open_account(database, "part", parent="people")
    reserve(database, *[_DRAWN] * 13, name="part")
    reserve(database, _DRAWN, name="part")  # none is due yet
    time.forward(1)
    with pytest.raises(TooManyRequests, match="more than 12 reservations"):
        reserve(database, _DRAWN, name="part")
    assert len(_kinds(database, "part")) == 15
    reserve(database, _DRAWN)  # in another account
    charge(database, _DRAWN, name="part")
    charge(database, _DRAWN, name="part", request=BOB, reserve_for=_HOUR)
    _expire_in_background(database)
    reserve(database, _DRAWN, name="part")


def test_holds_of_several_pages_are_left_out_once(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many end at one moment, so that a page ends between equal moments."""
    monkeypatch.setattr(settlement, "_PAGE", 3)
    monkeypatch.setattr(settlement, "_MANY", 10)
    opened = open_account(database)
    reserve(database, *[_DRAWN] * 7)
    time.forward(0.5)
    reserve(database, *[_DRAWN] * 4)
    for hours, due, many in ((0, 0, False), (0.5, 7, False), (0.5, 11, True)):
        time.forward(hours)
        with database.read() as connection:
            account = account_of(database)
            present = without_due_reservations(connection, account, clock.now())
            assert has_many_due(connection, [account], clock.now()) is many
        assert present.releases == 11 - due
    assert present.totals == opened.totals


@pytest.mark.parametrize(("last", "many"), [(600, False), (1200, True)])
def test_holds_of_many_windows_are_many(database: Database, time: _Clock, last: int, many: bool) -> None:
    open_account(database, periods={"calendar": "index", "participation": {"offsets": [0]}})
    reserve(database, _DRAWN, periods={"from": 0, "to": last})
    time.forward(1)
    with database.read() as connection:
        assert has_many_due(connection, [account_of(database)], clock.now()) is many


def test_a_server_rests_as_long_as_an_expiry_held_its_locks(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading before the locks delays nobody."""
    open_account(database)
    rested: list[float] = []

    def rest(seconds: float) -> float:
        rested.append(seconds)
        return 0.0

    monkeypatch.setattr(expiry_keeper, "rest_after", rest)
    monkeypatch.setattr(settlement, "require_recorded", lambda *_: _spend(0.3))
    reserve(database, _DRAWN)
    time.forward(1)
    _expire_in_background(database)
    assert len(rested) == 1
    assert 0 < rested[0] < 0.3


def test_a_charge_that_does_not_fit_waits_for_no_expiry_that_reads_many_windows(
    database: Database, time: _Clock
) -> None:
    open_account(database, definition="pure", epsilon="1", periods={"calendar": "index", "participation": {"any": 2}})
    charge(database, {"type": "geometric", "epsilon": "1/1000"}, periods={"from": 1, "to": 201})
    reserve(database, {"type": "geometric", "epsilon": "0.6"}, periods={"list": [0]})
    time.forward(1)
    asked = {"type": "geometric", "epsilon": "0.7"}
    with pytest.raises(Unavailable, match="still recording"):
        charge(database, asked, periods={"list": [0]})
    assert database.holds_due.is_set()
    _expire_in_background(database)
    charge(database, asked, periods={"list": [0]})


def test_accounts_of_one_line_rest_together_after_an_expiry_that_took_long(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, "agency")
    open_account(database, "census", parent="agency")
    keeper = ExpiryKeeper(database)
    monkeypatch.setattr(expiry_keeper, "rest_after", lambda _: 1000.0)
    for _ in range(2):
        reserve(database, _DRAWN, name="census")
        time.forward(1)
        keeper.expire_all(threading.Event())
    assert Counter(_kinds(database, "agency"))["expired"] == 1


def test_nobody_follows_the_long_journal_after_the_reservation_of_another(database: Database, time: _Clock) -> None:
    open_account(database)
    reserve(database, _DRAWN)
    charge(database, *[_DRAWN | {"epsilon": "1/10000"}] * 70)
    time.forward(1)
    known, database.points = database.points, ChainPoints()  # as if another process had added these entries
    charge(database, _DRAWN)
    assert "expired" not in _kinds(database)
    database.points = known  # those of its own commits
    charge(database, _DRAWN)
    assert _kinds(database)[-2:] == ["expired", "committed"]


def test_totals_without_what_is_due_are_found_without_reading_a_plan(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database)
    charge(database, _DRAWN)
    reserve(database, *[_DRAWN] * 3)
    (lasting,) = reserve(database, _DRAWN, hours=5)
    time.forward(1)
    with database.read() as connection:
        shown = present_account(connection, accounts.read_account(connection, "people"), clock.now()).account
        assert shown.releases == 2
        monkeypatch.setattr(subplans, "subplans_of", None)
        assert without_due_reservations(connection, accounts.read_account(connection, "people"), clock.now()) == shown
    changed = text("UPDATE holds SET price = '{}' WHERE release_id <> :lasting")
    database.write(lambda connection: connection.execute(changed, {"lasting": lasting}), is_committed=lambda *_: False)
    with database.read() as connection, pytest.raises(Unavailable, match="not as the service wrote it"):
        without_due_reservations(connection, accounts.read_account(connection, "people"), clock.now())


@pytest.mark.parametrize("due", [3, 30])
def test_a_description_reads_no_more_of_what_is_due_than_a_charge(database: Database, time: _Clock, due: int) -> None:
    """A few expire first; more count as held in the answer, as in that of a charge, and their prices are not read."""
    open_account(database)
    (published,) = charge(database, _DRAWN)
    reserve(database, *[_DRAWN] * due)
    time.forward(1)
    request = asking("ann", "k", "digest")
    with statements() as found:
        describing = descriptions.describe_release(database, request, "people", published.id, {"notes": "n"})
        told = carry_out(database, describing, request).account
    assert told.releases == (1 if due == 3 else 1 + due)
    if due > 3:
        assert not any("holds.price" in one.text for one in found if one.locked)


def test_others_charge_an_account_while_the_plan_of_a_first_draw_is_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database)
    (release,) = reserve(database, {"type": "sequence", "parts": [_DRAWN, _DRAWN | {"name": "b"}]})
    held_of = settlement.held_of

    def slowly(found: releases.ReleaseRecord) -> settlement.Held:
        charge(database, _DRAWN)
        return held_of(found)

    monkeypatch.setattr(reservations, "held_of", slowly)
    draw(database, release, _DRAWN)
    draw(database, release, _DRAWN | {"name": "b"})
    assert _kinds(database)[2:] == ["committed", "committed", "drawn", "drawn"]


def test_nobody_waits_until_the_plans_of_another_account_that_are_due_are_read(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        open_account(database, name)
        reserve(database, _DRAWN, name=name)
    time.forward(1)
    read: list[str] = []
    held_of = settlement.held_of

    def slowly(found: releases.ReleaseRecord) -> settlement.Held:
        read.append(found.id)
        if len(read) == 1:
            charge(database, _DRAWN, name="two")
        return held_of(found)

    monkeypatch.setattr(settlement, "held_of", slowly)
    charge(database, _DRAWN, name="one")
    for name in ("one", "two"):
        assert _kinds(database, name) == ["account_opened", "reserved", "expired", "committed"]
    assert (len(read), len(database.expiring)) == (2, 0)


@pytest.mark.parametrize("late", [commit, void, _draw])
def test_whoever_comes_too_late_among_many_finds_it_expired(
    database: Database, time: _Clock, late: Callable[..., object]
) -> None:
    open_account(database, definition="pure", epsilon="9")
    releases_due = reserve(database, *[_DRAWN] * 20)
    time.forward(1)
    with pytest.raises(Conflict, match="expired"):
        late(database, releases_due[7])
    assert _kinds(database)[-1] == "expired"
    assert Counter(_kinds(database))["expired"] == 1
    assert release_of(database, releases_due[7]).state == "expired"


def test_one_account_whose_hold_was_changed_does_not_keep_the_others(database: Database, time: _Clock) -> None:
    for name in ("one", "two"):
        open_account(database, name)
        reserve(database, _DRAWN, name=name)
    changed = text("UPDATE holds SET price = '{}' WHERE account_id = 1")
    database.write(lambda connection: connection.execute(changed), is_committed=lambda *_: False)
    time.forward(1)
    _expire_in_background(database)
    with database.read() as connection:
        states = connection.execute(text("SELECT state FROM releases ORDER BY account_id")).scalars().all()
    assert states == ["reserved", "expired"]


def test_accounts_take_turns_at_their_expiries(
    database: Database, time: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account whose holds expire one after the other for ever keeps no other waiting."""
    names = ("many", "few", "later")
    for name in names:
        open_account(database, name)
    for name, number in (("many", 5), ("few", 1)):
        reserve(database, *[_DRAWN] * number, name=name)
    time.forward(1)
    ids = {account_of(database, name).id: name for name in names}
    monkeypatch.setattr("service.ledger.releases.settlement._AT_ONCE", 1)
    monkeypatch.setattr(expiry_keeper, "rest_after", lambda _: 0.01)
    expired: list[str] = []

    def counted(of: Database, account_id: int) -> Expiry:
        found = expire(of, account_id)
        if found:
            expired.append(ids[account_id])
        if len(expired) == 2:  # meanwhile the holds of another one are due
            reserve(database, _DRAWN, name="later")
            time.forward(1)
        return found

    monkeypatch.setattr(expiry_keeper, "expire", counted)
    _expire_in_background(database)
    assert Counter(expired) == {"many": 5, "few": 1, "later": 1}
    assert {"few", "later"} <= set(expired[:4])


def test_a_server_lets_holds_expire_that_a_charge_left(database: Database) -> None:
    open_account(database, definition="pure", epsilon="9")
    now = datetime.now(UTC)
    charge(database, *[_DRAWN] * 20, reserve_for=timedelta(microseconds=1))
    charge(database, _DRAWN)
    with expiry_keeper.ExpiryKeeper(database).keeping():
        while Counter(_kinds(database))["expired"] < 20:
            assert datetime.now(UTC) - now < timedelta(minutes=1)
    assert _rows(database, "holds") == 0


def test_threads_that_find_the_same_holds_due(database: Database, time: _Clock) -> None:
    open_account(database, definition="pure", epsilon="1")
    reserve(database, *[_DRAWN] * 10)
    time.forward(1)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: charge(database, _DRAWN), range(10)))
    assert Counter(_kinds(database)) == {"account_opened": 1, "reserved": 10, "expired": 10, "committed": 10}
    assert left(database) == 0


@pytest.mark.parametrize("forged", ["2000-01-01T00:00:00.000000Z", "", "2000-13-99"])
def test_an_account_that_is_wrong_about_its_holds_keeps_nobody_for_ever(database: Database, forged: str) -> None:
    open_account(database, name="above")
    open_account(database, parent="above")
    wrong = text("UPDATE accounts SET next_expiry = :forged, seal = NULL WHERE name = 'above'")
    unseal(database)
    database.write(lambda connection: connection.execute(wrong, {"forged": forged}), is_committed=lambda *_: False)
    seal(database)
    with pytest.raises(Unavailable, match="states an expiry of a reservation that it does not have"):
        charge(database, _DRAWN)


def test_a_reservation_is_settled_once_by_threads_that_disagree(database: Database) -> None:
    open_account(database)
    ids = reserve(database, *[_DRAWN] * 8)

    def settle(number: int) -> str:
        act = (commit, void)[number % 2]
        try:
            return act(database, ids[number // 4]).state
        except Conflict:
            return "refused"

    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(settle, range(32)))
    for number, release in enumerate(ids):
        state = release_of(database, release).state
        assert Counter(outcomes[4 * number : 4 * number + 4]) == {state: 2, "refused": 2}
    assert len(entries_of(database)) == 1 + 8 + 8


def test_a_request_with_a_key_is_answered_as_the_first_time(database: Database) -> None:
    open_account(database)
    (release,) = reserve(database, _DRAWN)
    request = asking("ann", "k", "digest")
    committing = reservations.commit(database, request, "people", release)

    def answer(body: str) -> Answer:
        return idempotent_write.idempotent_write(database, request, committing, lambda _: Answer(200, body)).answer

    assert answer("first") == Answer(200, "first")
    assert answer("second") == Answer(200, "first", replayed=True)


@pytest.mark.parametrize("account", ["kid", "sibling"])
def test_a_hold_that_is_missing_in_one_account_of_a_line_stops_no_thread(
    database: Database, time: _Clock, account: str
) -> None:
    """The account above says that a reservation is due, and nothing expires: each request once waited for ever."""
    open_account(database, "top")
    for name in ("kid", "sibling"):
        open_account(database, name, parent="top")
    (release,) = reserve(database, _DRAWN, name="kid")
    kid = account_of(database, "kid").id
    run(database, "DELETE FROM holds WHERE release_id = :release AND account_id = :kid", release=release, kid=kid)
    time.forward(2)
    with pytest.raises(Unavailable, match="the ledger was changed"):
        charge(database, _DRAWN, name=account)
    assert not expire(database, account_of(database, "top").id)
    ExpiryKeeper(database).expire_all(threading.Event())


_LONG = {
    "type": "sequence",
    "parts": [_DRAWN | {"epsilon": "0.001", "name": f"{number:04}" + "x" * 60} for number in range(250)],
}


@pytest.mark.parametrize("plan", [_DRAWN, _LONG], ids=["short", "long"])
def test_the_time_of_a_hold_that_was_changed_is_not_believed(
    database: Database, time: _Clock, plan: dict[str, Any]
) -> None:
    open_account(database)
    (release,) = reserve(database, plan, hours=24)
    run(database, "UPDATE holds SET expires_at = :at", at="2020-01-01T00:00:00.000000Z")
    for act in (commit, void):
        with pytest.raises(Unavailable, match="not as the service wrote it"):
            act(database, release)


@pytest.mark.parametrize("reserve_for", [None, timedelta(hours=24)])
def test_a_hold_that_was_changed_hides_no_proposal(
    database: Database, time: _Clock, reserve_for: timedelta | None
) -> None:
    open_account(database, approval_above="0.001")
    proposed = charge(database, _DRAWN, reserve_for=reserve_for)[0].id
    run(database, "UPDATE holds SET expires_at = :at", at="2020-01-01T00:00:00.000000Z")

    def listed(state: State) -> list[str]:
        account = account_of(database).chain
        with database.read() as connection:
            page = releases.list_releases(connection, account, 0, 9, Wanted(state=state), clock.now(), lambda _: None)
            return [one.id for one in page]

    with database.read() as connection:
        page = releases.list_proposals(connection, (0, 0), 9, None, clock.now(), lambda _: None)
    assert [one.release.id for one in page] == listed("proposed") == [proposed]
    assert listed("expired") == []


@pytest.mark.parametrize(("plan", "is_read"), [(_DRAWN, True), (_LONG, False)], ids=["short", "long"])
@pytest.mark.parametrize("reserve_for", [None, timedelta(hours=24)], ids=["charged", "reserved"])
def test_a_proposal_that_is_approved_before_the_lock_is_not_lost(
    database: Database, plan: dict[str, Any], is_read: bool, reserve_for: timedelta | None
) -> None:
    open_account(database, approval_above="0")
    proposed = charge(database, plan, reserve_for=reserve_for)[0].id
    with pytest.raises(Conflict, match="proposed; others must approve it first"):
        commit(database, proposed)
    commitment = reservations.commit(database, ANN, "people", proposed)
    approve(database, proposed)
    if reserve_for and not is_read:
        with pytest.raises(Conflict, match="approved at the same moment; repeat the request"):
            carry_out(database, commitment)
        assert release_of(database, proposed).state == "reserved"
        commitment = reservations.commit(database, ANN, "people", proposed)
    assert carry_out(database, commitment).release.state == "committed"
    with database.read() as connection:
        assert verify(connection, "people").first_bad is None


def _show_as_due(database: Database, release: str) -> None:
    """Show the hold of a release with an end, which only whoever owns the database can for a moment."""

    def work(connection: Any) -> None:
        statement = "UPDATE holds SET expires_at = '2020-01-01T00:00:00.000000Z' WHERE release_id = :id"
        connection.execute(text(statement), {"id": release})

    database.write(work, is_committed=lambda *_: False)


def test_a_hold_that_never_ends_does_not_expire_whatever_the_database_shows(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seals are checked when a hold is read; what is due was found by a query before, which an index can mislead."""
    open_account(database)
    (release,) = reserve(database, {"type": "gaussian", "rho": "0.5"})
    _show_as_due(database, release)
    monkeypatch.setattr(reservation_rows, "require_seal", lambda *_: None)
    with pytest.raises(Altered):
        expire(database, account_of(database).id)
    assert account_of(database).totals.rho.finite == Fraction(1, 2)


def test_an_expiry_of_what_had_not_ended_is_found(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(database)
    (release,) = reserve(database, {"type": "gaussian", "rho": "0.5"})
    _show_as_due(database, release)
    monkeypatch.setattr(reservation_rows, "require_seal", lambda *_: None)
    monkeypatch.setattr(settlement.Held, "is_over", lambda *_: True)
    assert expire(database, account_of(database).id)
    monkeypatch.undo()
    with database.read() as connection:
        fault = verify(connection, "people").first_bad
    assert fault is not None
    assert fault.reason == "the reservation had not ended"


@pytest.mark.parametrize("read", [present_account, in_list, without_due_reservations])
def test_no_reader_counts_a_hold_as_ended_because_an_index_finds_it(
    database: Database, time: _Clock, read: Callable[..., object]
) -> None:
    """The attack: an index of the database's owner finds a hold as due, whose sealed row is not."""
    open_account(database)
    reserve(database, _DRAWN)
    reserve(database, _DRAWN, hours=5)
    time.forward(1)

    def misled(*given: Any) -> tuple[str, Any]:
        return given[2].replace("holds.expires_at <= ", "'' <= "), given[3]

    with database.read() as connection:
        account = accounts.read_account(connection, "people")
        read(connection, account, clock.now())
        event.listen(database.pools.reader, "before_cursor_execute", misled, retval=True)
        with pytest.raises(Altered):
            read(connection, account, clock.now())
