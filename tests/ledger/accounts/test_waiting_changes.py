"""Changes of accounts that wait: approvers decide on them, and a rejection ends them."""

from datetime import timedelta
from typing import Any

import pytest

from service.errors import Conflict, Forbidden, Unauthenticated
from service.ledger.access.key_records import Role
from service.ledger.access.keys import revoke_key
from service.ledger.accounts import waiting_changes
from service.ledger.accounts.budgets import read_budget
from service.ledger.journal import journal
from service.ledger.journal.chains import BadEntry
from service.ledger.journal.replay import replay
from service.ledger.releases import reservations
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.verification.verify import verify
from tests.ledger.charging import (
    ANN,
    BOB,
    SECRET,
    account_of,
    approve,
    asking,
    carry_out,
    change_account,
    charge,
    entries_of,
    open_account,
    release_of,
)
from tests.ledger.keys import make_key
from tests.ledger.writing import never

_AT = "2026-01-02T00:00:00.000000Z"
_GREATER = {"definition": "zcdp", "rho": "2"}
_PLAN = {"type": "geometric", "epsilon": "0.01", "name": "a"}


@pytest.fixture
def ledger(database: Database) -> Database:
    """An account of which every release and greater budget waits for approval."""
    open_account(database, approval_above="0")
    return database


def _key(database: Database, role: Role, name: str = "board") -> Request:
    """A request by a key that the operator made."""
    record, _ = make_key(database, name, role, at=_AT)
    return asking(name, key_id=record.id)


def _change(database: Database, change: Any, request: Request, role: Role = "steward", name: str = "people") -> bool:
    """Change an account, and return whether the change waits."""
    change = read_budget(change) if isinstance(change, dict) else change
    return change_account(database, name, change, request, role).waits


def _reject(database: Database, proposal: int, request: Request = BOB, name: str = "people") -> None:
    carry_out(database, waiting_changes.reject_change(database, request, name, proposal, "not this year"), request)


def _void(database: Database, release: str, request: Request) -> str:
    act = reservations.void(database, request, "people", release, "not this year", None, "approver")
    return carry_out(database, act, request).release.state


def _kinds(database: Database, name: str = "people") -> list[str]:
    return [entry.kind for entry in entries_of(database, name)]


def _verified(database: Database, name: str = "people") -> BadEntry | None:
    with database.read() as connection:
        return verify(connection, name).first_bad


# Rejection


def test_a_rejected_change_waits_no_more(ledger: Database) -> None:
    _change(ledger, _GREATER, ANN)
    _reject(ledger, 2)
    assert account_of(ledger).proposed is None
    assert account_of(ledger).budget.cap == 1
    assert _kinds(ledger) == ["account_opened", "change_proposed", "change_rejected"]
    assert _change(ledger, _GREATER, BOB)  # a proposal again, and no approval
    assert _verified(ledger) is None
    with ledger.read() as connection:
        for seq, waits in ((2, True), (3, False), (4, True)):
            assert (replay(connection, account_of(ledger), seq).account.proposed is not None) == waits


def test_whoever_proposed_a_change_withdraws_it(ledger: Database) -> None:
    _change(ledger, _GREATER, ANN)
    _reject(ledger, 2, ANN)
    assert account_of(ledger).proposed is None


def test_only_the_change_that_waits_is_rejected(ledger: Database) -> None:
    _change(ledger, _GREATER, ANN)
    _change(ledger, {"definition": "zcdp", "rho": "3"}, ANN)  # in the place of the first
    for proposal in (1, 2, 4):
        with pytest.raises(Conflict, match=f"entry {proposal} proposed does not wait"):
            _reject(ledger, proposal)
    _reject(ledger, 3)
    with pytest.raises(Conflict, match="does not wait"):
        _reject(ledger, 3)
    assert _kinds(ledger) == ["account_opened", "change_proposed", "change_proposed", "change_rejected"]


def test_verification_finds_a_rejection_of_what_did_not_wait(ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    _change(ledger, _GREATER, ANN)
    real: Any = journal.append

    def forge(*args: Any, **named: Any) -> Any:
        return real(*args[:3], {"proposal": 1, "reason": "r"}, *args[4:], **named)

    monkeypatch.setattr(journal, "append", forge)
    _reject(ledger, 2)
    assert _verified(ledger) == BadEntry(3, "the rejected change does not wait")


# Approvers


@pytest.mark.parametrize("change", [_GREATER, "open"])
def test_an_approver_approves_what_a_steward_proposed(ledger: Database, change: Any) -> None:
    if change == "open":
        _change(ledger, "closed", ANN)
    _change(ledger, change, _key(ledger, "steward", "ann"))
    assert not _change(ledger, change, _key(ledger, "approver"), "approver")
    assert account_of(ledger).proposed is None
    assert _verified(ledger) is None


@pytest.mark.parametrize("change", [_GREATER, {"definition": "zcdp", "rho": "0.5"}, "closed"])
def test_an_approver_changes_nothing_alone(ledger: Database, change: Any) -> None:
    board = _key(ledger, "approver")
    with pytest.raises(Forbidden, match="approvers propose none"):
        _change(ledger, change, board, "approver")
    _change(ledger, {"definition": "zcdp", "rho": "3"}, ANN)
    with pytest.raises(Forbidden, match="approvers propose none"):
        _change(ledger, change, board, "approver")
    assert _kinds(ledger) == ["account_opened", "change_proposed"]


def test_an_approver_approves_a_greater_allotment(database: Database) -> None:
    open_account(database, approval_above="0.1")
    open_account(database, "year", parent="people", funding="allotted", definition="zcdp", rho="0.1")
    greater = {"definition": "zcdp", "rho": "0.5"}
    assert _change(database, greater, _key(database, "steward", "ann"), name="year")
    assert not _change(database, greater, _key(database, "approver"), "approver", "year")
    assert _kinds(database)[-1] == "allotted"
    assert (_verified(database), _verified(database, "year")) == (None, None)


def test_an_approver_decides_on_releases_that_wait(ledger: Database) -> None:
    board, steward = _key(ledger, "approver"), _key(ledger, "steward", "ann")
    first, second = (charge(ledger, _PLAN, request=steward)[0].id for _ in range(2))
    assert approve(ledger, first, request=board).state == "committed"
    assert _void(ledger, second, board) == "voided"
    assert _verified(ledger) is None


def test_an_approver_voids_no_reservation(database: Database) -> None:
    open_account(database)
    held = charge(database, _PLAN, reserve_for=timedelta(hours=1))[0].id
    with pytest.raises(Forbidden, match="approvers void proposals only"):
        _void(database, held, _key(database, "approver"))
    assert release_of(database, held).state == "reserved"


def test_a_revoked_key_of_an_approver_decides_nothing(ledger: Database) -> None:
    board = _key(ledger, "approver")
    _change(ledger, _GREATER, ANN)
    assert board.actor.key is not None
    key = board.actor.key
    ledger.write(lambda connection: revoke_key(connection, SECRET, key, at=_AT, by=None), is_committed=never)
    for decide in (
        lambda: _reject(ledger, 2, board),
        lambda: _change(ledger, _GREATER, board, "approver"),
    ):
        with pytest.raises(Unauthenticated):
            decide()
    assert _kinds(ledger) == ["account_opened", "change_proposed"]


@pytest.mark.parametrize("role", ["auditor", "pipeline"])
def test_verification_finds_a_decision_by_another_role(
    ledger: Database, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    _change(ledger, _GREATER, ANN)
    monkeypatch.setattr(waiting_changes, "require_valid", lambda *_: None)
    _reject(ledger, 2, _key(ledger, role, "somebody"))
    found = _verified(ledger)
    assert found is not None
    assert "has not the role approver" in found.reason
