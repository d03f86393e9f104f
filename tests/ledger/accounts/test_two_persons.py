"""Two-person control: no person approves what they proposed, however many keys and names they have."""

import json
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.errors import BudgetExceeded, Forbidden, Unavailable
from service.ledger.access import keys
from service.ledger.access.key_events import keys_of, people_behind
from service.ledger.access.key_records import FIRST_PRINCIPAL
from service.ledger.access.keys import revoke_key
from service.ledger.accounts import account_changes
from service.ledger.accounts.budgets import read_budget
from service.ledger.idempotent_write import idempotent_write
from service.ledger.installation.installation_journal import append
from service.ledger.journal import journal
from service.ledger.journal.chains import BadEntry, BrokenChain
from service.ledger.journal.entries import Approved, HoldCommitted, Voided
from service.ledger.journal.journal import Actor
from service.ledger.journal.replay import replay
from service.ledger.releases import reservations
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer, Request
from service.ledger.verification.verify import verify
from tests.ledger.charging import (
    ANN,
    BOB,
    SECRET,
    account_of,
    approve,
    asking,
    change_account,
    charge,
    commit,
    entries_of,
    open_account,
)
from tests.ledger.keys import make_key, rotate
from tests.ledger.writing import never

_AT = "2026-01-02T00:00:00.000000Z"
_PLAN = {"type": "geometric", "epsilon": "0.01", "name": "a"}


def _make(database: Database, name: str, by: Actor | None = None) -> Actor:
    """A steward's key, as the actor of an entry."""
    record, _ = make_key(database, name, "steward", at=_AT, by=by)
    return Actor(record.name, record.id)


def _rotate(database: Database, key: Actor, by: Actor | None) -> Actor:
    assert key.key is not None
    record, _ = rotate(database, key.key, _AT, by=by)
    return Actor(record.name, record.id)


def _as(actor: Actor) -> Request:
    return asking(actor.name, key_id=actor.key)


def _approved(database: Database, proposer: Actor, approver: Actor) -> bool:
    """Tell whether a release that one proposed is approved by the other, in both directions."""
    outcomes = set()
    for first, second in ((proposer, approver), (approver, proposer)):
        proposed = charge(database, _PLAN, request=_as(first))[0].id
        try:
            outcomes.add(approve(database, proposed, request=_as(second)).state == "committed")
        except Forbidden as refused:
            assert "unknown to every principal" in str(refused) or "another principal" in str(refused)  # noqa: PT017
            outcomes.add(False)
    (outcome,) = outcomes
    return outcome


@pytest.fixture
def ledger(database: Database) -> Database:
    """An account of which every release waits for approval."""
    open_account(database, approval_above="0")
    return database


def test_keys_that_the_operator_made_are_two_persons(ledger: Database) -> None:
    ann, bob = _make(ledger, "ann"), _make(ledger, "bob")
    assert _approved(ledger, ann, bob)
    assert not _approved(ledger, ann, _make(ledger, "ann"))


def test_whoever_made_a_key_is_not_the_second_person(ledger: Database) -> None:
    ann, bob = _make(ledger, "ann"), _make(ledger, "bob")
    puppet = _make(ledger, "puppet", by=ann)
    assert not _approved(ledger, ann, puppet)
    assert _approved(ledger, bob, puppet)
    assert not _approved(ledger, ann, _make(ledger, "another", by=puppet))


def test_one_who_made_both_keys_is_one_person(ledger: Database) -> None:
    head = _make(ledger, "head")
    assert not _approved(ledger, _make(ledger, "ann", by=head), _make(ledger, "bob", by=head))


def test_the_first_key_is_the_operators_as_long_as_nobody_else_knows_it(
    ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _make(ledger, FIRST_PRINCIPAL)
    ann, second = _make(ledger, "ann", by=first), _rotate(ledger, first, by=first)
    bob = _make(ledger, "bob", by=second)
    assert _approved(ledger, ann, bob)
    assert not _approved(ledger, ann, _make(ledger, "puppet", by=ann))
    with pytest.raises(Forbidden, match="only the operator and first-steward itself"):
        _make(ledger, FIRST_PRINCIPAL, by=ann)
    with pytest.raises(Forbidden, match="only the operator and first-steward itself"):
        _rotate(ledger, second, by=ann)
    assert _approved(ledger, ann, bob)
    with monkeypatch.context() as earlier:
        earlier.setattr(keys, "FIRST_PRINCIPAL", "")  # earlier versions let each steward make such a key
        _make(ledger, FIRST_PRINCIPAL, by=ann)
    assert not _approved(ledger, ann, bob)


def test_whoever_has_another_key_of_the_one_who_made_a_key_could_have_been_shown_it(ledger: Database) -> None:
    """A repeated request shows the token again, to any key of its principal."""
    ann, bob, carol = _make(ledger, "ann"), _make(ledger, "bob"), _make(ledger, "carol")
    _make(ledger, "bob", by=ann)
    made = _make(ledger, "made", by=bob)
    assert not _approved(ledger, ann, made)
    assert _approved(ledger, ann, bob)
    assert _approved(ledger, carol, made)


def test_a_person_of_an_issuer_is_not_the_second_person_by_a_key_that_they_made(ledger: Database) -> None:
    ann, bob = Actor("oidc:ann"), Actor("oidc:bob")
    puppet = _make(ledger, "puppet", by=ann)
    assert not _approved(ledger, ann, puppet)
    assert _approved(ledger, bob, puppet)
    assert _approved(ledger, ann, bob)


def test_whoever_rotates_a_key_knows_it(ledger: Database) -> None:
    ann, bob = _make(ledger, "ann"), _make(ledger, "bob")
    assert not _approved(ledger, ann, _rotate(ledger, bob, by=ann))


def test_rotating_a_key_oneself_does_not_hide_who_made_it(ledger: Database) -> None:
    """The maker of a key could have rotated it as its principal."""
    ann = _make(ledger, "ann")
    bob = _make(ledger, "bob", by=ann)
    assert not _approved(ledger, ann, _rotate(ledger, bob, by=bob))


def test_a_key_that_the_operator_rotated_is_known_to_its_holder_alone(ledger: Database) -> None:
    ann = _make(ledger, "ann")
    bob = _make(ledger, "bob", by=ann)
    assert _approved(ledger, ann, _rotate(ledger, bob, by=None))


def test_a_revoked_key_tells_still_who_made_another(ledger: Database) -> None:
    ann = _make(ledger, "ann")
    between = _make(ledger, "between", by=ann)
    puppet = _make(ledger, "puppet", by=between)
    key_id = between.key or ""
    ledger.write(lambda connection: revoke_key(connection, SECRET, key_id, at=_AT, by=ann), is_committed=never)
    assert not _approved(ledger, ann, puppet)


def test_rows_that_were_changed_hide_nothing(ledger: Database) -> None:
    """The journal says which principal made which key, and not the table."""
    ann = _make(ledger, "ann")
    puppet = _make(ledger, "puppet", by=ann)
    ledger.write(
        lambda connection: connection.execute(text("UPDATE api_keys SET created_by = NULL")), is_committed=never
    )
    assert not _approved(ledger, ann, puppet)
    ledger.write(lambda connection: connection.execute(text("DELETE FROM api_keys")), is_committed=never)
    assert not _approved(ledger, ann, puppet)


def test_where_an_entry_names_no_key_all_of_its_principal_count(ledger: Database) -> None:
    ann = _make(ledger, "ann")
    bob = _make(ledger, "bob", by=ann)
    carol = _make(ledger, "carol")
    with ledger.read() as connection:
        known = keys_of(connection, SECRET)
    assert people_behind(known, Actor("bob")) == {"ann", "bob"} == people_behind(known, bob)
    assert people_behind(known, Actor("bob", "of another installation")) == {"ann", "bob"}
    assert people_behind(known, Actor("nobody")) == {"nobody"}
    assert not _approved(ledger, Actor("bob"), ann)
    assert _approved(ledger, Actor("bob"), carol)


def test_nothing_is_approved_while_the_journal_of_the_keys_is_not_sound(ledger: Database) -> None:
    ann, bob = _make(ledger, "ann"), _make(ledger, "bob")
    proposed = charge(ledger, _PLAN, request=_as(ann))[0].id

    def attack(connection: Connection) -> None:
        for trigger in ("fixed", "no_delete") if ledger.kind == "sqlite" else ("stay",):
            on = "" if ledger.kind == "sqlite" else " ON installation_journal"
            connection.execute(text(f"DROP TRIGGER installation_journal_{trigger}{on}"))
        connection.execute(text("DELETE FROM installation_journal WHERE seq = 1"))

    ledger.write(attack, is_committed=never)
    with pytest.raises(Unavailable) as refused:
        approve(ledger, proposed, request=_as(bob))
    assert "entry 1: the entry is missing" in str(refused.value.for_operator)


# Changes after which more can be spent


def _change(database: Database, request: Request, change: Any, name: str = "people") -> bool:
    """Change an account, and return whether the change waits."""
    change = read_budget({"definition": "zcdp"} | change) if isinstance(change, dict) else change
    return change_account(database, name, change, request).waits


def _kinds(database: Database, name: str = "people") -> list[str]:
    return [entry.kind for entry in entries_of(database, name)]


_GREATER: list[dict[str, str]] = [{"rho": "2"}, {"rho": "1", "delta": "1e-9"}, {"rho": "1/2", "delta": "1e-9"}]


@pytest.mark.parametrize("change", _GREATER)
def test_a_greater_budget_waits_for_a_second_steward(ledger: Database, change: dict[str, str]) -> None:
    before = account_of(ledger).budget
    assert _change(ledger, ANN, change)
    assert account_of(ledger).budget == before
    proposed = account_of(ledger).proposed
    assert proposed is not None
    assert (proposed.by, proposed.seq) == (ANN.actor, 2)
    assert _change(ledger, ANN, change)  # said twice it waits still
    assert _kinds(ledger) == ["account_opened", "change_proposed"]
    assert not _change(ledger, BOB, change)
    assert account_of(ledger).budget == read_budget({"definition": "zcdp"} | change)
    assert account_of(ledger).proposed is None
    assert _kinds(ledger) == ["account_opened", "change_proposed", "budget_changed"]


def test_a_closed_account_is_opened_again_by_two(ledger: Database) -> None:
    assert not _change(ledger, ANN, "closed")
    assert _change(ledger, ANN, "open")
    assert account_of(ledger).state == "closed"
    assert not _change(ledger, BOB, "open")
    assert account_of(ledger).state == "open"
    assert _kinds(ledger)[-2:] == ["change_proposed", "account_reopened"]


def test_an_account_under_one_that_asks_for_approval_does_too(ledger: Database) -> None:
    open_account(ledger, "child", parent="people")
    assert _change(ledger, ANN, {"rho": "2"}, "child")
    assert not _change(ledger, BOB, {"rho": "2"}, "child")


def test_what_frees_nothing_needs_one_steward(ledger: Database) -> None:
    assert not _change(ledger, ANN, {"rho": "1/2"})
    assert not _change(ledger, ANN, "closed")
    open_account(ledger, "free")
    for change in ({"rho": "2"}, "closed", "open", Fraction(1)):
        assert not _change(ledger, ANN, change, "free")
    assert _change(ledger, ANN, {"rho": "3"}, "free")


def test_the_second_steward_says_the_same(ledger: Database) -> None:
    _change(ledger, ANN, {"rho": "2"})
    assert _change(ledger, BOB, {"rho": "3"})  # another proposal, in the place of the first
    assert _change(ledger, BOB, {"rho": "2"})
    assert _change(ledger, BOB, {"rho": "2"})
    assert account_of(ledger).budget.cap == 1
    assert not _change(ledger, ANN, {"rho": "2"})


def test_a_change_takes_a_proposals_place(ledger: Database) -> None:
    _change(ledger, ANN, {"rho": "2"})
    _change(ledger, BOB, {"rho": "1/2"})
    assert account_of(ledger).proposed is None
    assert _change(ledger, BOB, {"rho": "2"})


def test_the_second_steward_of_a_change_is_another_person(ledger: Database) -> None:
    ann = _make(ledger, "ann")
    puppet = _make(ledger, "puppet", by=ann)
    _change(ledger, _as(ann), {"rho": "2"})
    with pytest.raises(Forbidden, match="unknown to every principal"):
        _change(ledger, _as(puppet), {"rho": "2"})
    assert account_of(ledger).budget.cap == 1
    assert not _change(ledger, _as(_make(ledger, "bob")), {"rho": "2"})


def test_a_proposal_must_fit_as_a_change_must(ledger: Database) -> None:
    charge(ledger, {"type": "gaussian", "rho": "0.9"})
    with pytest.raises(BudgetExceeded):
        _change(ledger, ANN, {"rho": "1/2", "delta": "1e-9"})
    assert account_of(ledger).proposed is None


def test_an_answer_says_whether_it_waited_the_second_time_too(ledger: Database) -> None:
    request = asking("ann", "k", "digest")
    change = read_budget({"definition": "zcdp", "rho": "2"})

    def ask() -> Answer:
        changing = account_changes.change_account(ledger, request, "people", change, "/budget", lambda _: True)
        return idempotent_write(ledger, request, changing, lambda changed: Answer(202 if changed.waits else 200)).answer

    assert ask() == Answer(202)
    _change(ledger, BOB, {"rho": "2"})
    assert ask() == Answer(202, replayed=True)


def test_the_past_knows_what_waited(ledger: Database) -> None:
    _change(ledger, ANN, {"rho": "2"})
    _change(ledger, BOB, {"rho": "2"})
    account = account_of(ledger)
    with ledger.read() as connection:
        waited = replay(connection, account, 2).account
        assert waited.proposed is not None
        assert waited.budget.cap == 1
        assert waited.proposed.by == ANN.actor
        assert replay(connection, account, 3).account == account


@pytest.mark.parametrize(
    ("actor", "rho", "reason"),
    [
        ("ann", "2", "the change was proposed and approved by one principal"),
        ("bob", "3", "the change is not the one that was proposed"),
    ],
)
def test_verification_finds_a_second_steward_who_was_none(
    ledger: Database, actor: str, rho: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forged chain has to name the approver."""
    _change(ledger, ANN, {"rho": "2"})
    monkeypatch.setattr(account_changes, "require_other_person", lambda *_: None)
    real: Any = journal.append

    def forge(*args: Any, **named: Any) -> Any:
        content = json.loads(args[3].text) | {"budget": {"definition": "zcdp", "rho": rho}}
        return real(*args[:3], content, **named | {"actor": Actor(actor)})

    monkeypatch.setattr(journal, "append", forge)
    _change(ledger, BOB, {"rho": "2"})
    with ledger.read() as connection:
        assert verify(connection, "people").first_bad == BadEntry(3, reason)


_UNAPPROVED = "the release was proposed, and is committed without an approval"
_NOT_PROPOSED = "the approved release was not proposed, or its new state is not one that an approval leads to"
_BY_ONE = "the release was proposed and approved by one principal"


@pytest.mark.parametrize(
    ("epsilon", "step", "reason"),
    [
        ("0.9", HoldCommitted(), _UNAPPROVED),
        ("0.9", Approved("committed"), _BY_ONE),
        ("0.9", Approved("voided"), _NOT_PROPOSED),
        ("0.1", Approved("committed"), _NOT_PROPOSED),
        ("0.9", Voided(attestation=None, reason=""), None),
        ("0.1", HoldCommitted(), None),
    ],
)
def test_verification_finds_a_release_that_nobody_else_approved(
    database: Database, epsilon: str, step: Any, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that somebody who changes the rows for a moment has the service write, in the whole line."""
    open_account(database, "agency")
    open_account(database, parent="agency", approval_above="0.5", definition="pure", epsilon="9")
    (held,) = charge(database, _PLAN | {"epsilon": epsilon}, reserve_for=timedelta(hours=1))
    assert held.state == ("proposed" if epsilon == "0.9" else "reserved")
    monkeypatch.setattr(reservations, "_commitment", lambda _: step)
    commit(database, held.id)
    with database.read() as connection:
        for name in ("people", "agency"):
            found = verify(connection, name).first_bad
            assert found == (None if reason is None else BadEntry(3, reason))


def test_key_events_that_say_nothing_are_found(database: Database) -> None:
    database.write(
        lambda connection: append(connection, SECRET, "key_made", {}, actor=None, at=_AT), is_committed=never
    )
    with database.read() as connection, pytest.raises(BrokenChain, match="entry 1: its content is not valid"):
        keys_of(connection, SECRET)
