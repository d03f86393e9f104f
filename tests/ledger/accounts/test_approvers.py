"""Approvers of an account: at least so many persons, from a list, approve a release or a change."""

import io
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from service.errors import Altered, Conflict, Forbidden, InvalidInput, ServiceError
from service.ledger.accounts import account_changes
from service.ledger.accounts.approvals import Approval, AskedRule
from service.ledger.accounts.approvers import ANYBODY, Approvers, read_approvers, write_approvers
from service.ledger.accounts.budgets import read_budget
from service.ledger.accounts.waiting_changes import reject_change
from service.ledger.idempotent_write import idempotent_write
from service.ledger.installation.signing import Signer
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.chains import BadEntry
from service.ledger.journal.replay import replay
from service.ledger.releases import admission, reservations
from service.ledger.releases.proposals import approvals_of
from service.ledger.releases.releases import read_release
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.idempotency import Answer, Request
from service.ledger.storage.migrate import migrate
from service.ledger.verification import approval_check
from service.ledger.verification.export_reader import BadExport
from service.ledger.verification.imports import rebuild
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
    commit,
    entries_of,
    open_account,
    release_of,
    rows_of_failed,
    set_caps,
    void,
)
from tests.ledger.keys import make_key
from tests.ledger.ledgers import Clock, exported
from tests.ledger.roles import served_by_role
from tests.ledger.writing import run, unprotected

_PLAN = {"type": "geometric", "epsilon": "0.1", "name": "a"}
_CAROL, _DAN, _EVE = asking("carol"), asking("dan"), asking("eve")
_TWO = Approvers(2, ("bob", "carol", "dan"))
_AT = "2026-01-02T00:00:00.000000Z"


def _open(database: Database, name: str = "people", approvers: Approvers | None = _TWO, **fields: Any) -> None:
    open_account(database, name, approval_above="0", approvers=approvers, **fields)


def _propose(database: Database, name: str = "people", **fields: Any) -> str:
    (proposed,) = charge(database, _PLAN, name=name, **fields)
    assert proposed.state == "proposed"
    return proposed.id


def _approval(database: Database, release: str, name: str = "people") -> Approval:
    account = account_of(database, name)
    with database.read() as connection:
        return approvals_of(connection, account, [read_release(connection, account.id, release)])[release]


def _kinds(database: Database, name: str = "people") -> list[str]:
    return [entry.kind for entry in entries_of(database, name)]


def _raise(database: Database, request: Request, rho: str = "2", name: str = "people") -> bool:
    return change_account(database, name, read_budget({"definition": "zcdp", "rho": rho}), request).waits


def _set(database: Database, approvers: Approvers, request: Request = ANN, name: str = "people") -> bool:
    return change_account(database, name, approvers, request).waits


# The rule


@pytest.mark.parametrize(
    "rule", [Approvers(), Approvers(10), Approvers(1, ("ann",)), _TWO, Approvers(10, tuple(map(chr, range(97, 147))))]
)
def test_a_rule_is_read_as_it_is_written(rule: Approvers) -> None:
    assert read_approvers(rule.document()) == rule
    assert write_approvers(rule) == canonical(rule.document())


@pytest.mark.parametrize(
    "wrong",
    [
        {}, [], None, 2, {"at_least": 0}, {"at_least": -1}, {"at_least": 11}, {"at_least": "2"}, {"at_least": 2.0},
        {"at_least": True}, {"at_least": None}, {"at_least": 2, "of": ["a"]}, {"at_least": 1, "of": []},
        {"at_least": 1, "of": None}, {"at_least": 1, "of": ["b", "a"]}, {"at_least": 1, "of": ["a", "a"]},
        {"at_least": 1, "of": "ab"}, {"at_least": 1, "of": [1]}, {"at_least": 1, "more": 1}, {"of": ["a"]},
        {"at_least": 1, "of": [f"n{number:02}" for number in range(51)]},
    ],
)  # fmt: skip
def test_a_rule_that_the_service_does_not_write_is_refused(wrong: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        read_approvers(wrong)


def test_each_name_counts_once_and_only_if_it_is_listed() -> None:
    assert [_TWO.missing(names) for names in ([], ["bob"], ["bob", "bob"], ["eve", "ann"], ["bob", "dan"])] == [
        2, 1, 1, 2, 0
    ]  # fmt: skip
    assert [Approvers(2).missing(names) for names in ([], ["x"], ["x", "y", "z"])] == [2, 1, 0]
    assert Approvers(1, None) == ANYBODY


# Releases


def test_a_release_waits_until_so_many_have_approved_it(database: Database) -> None:
    _open(database)
    release = _propose(database)
    assert _approval(database, release).may_approve == ["bob", "carol", "dan"]
    assert approve(database, release, request=BOB).state == "proposed"
    found = _approval(database, release)
    assert (found.proposer.name, found.names, found.may_approve) == ("ann", ["bob"], ["carol", "dan"])
    assert [found.missing(rule) for rule in found.rules] == [1]
    with pytest.raises(Conflict, match="others must approve it first"):
        commit(database, release)
    assert approve(database, release, request=_DAN).state == "committed"
    assert _kinds(database) == ["account_opened", "proposed", "approved", "approved"]
    assert approve(database, release, request=_CAROL).state == "committed"  # it has no further effect
    assert len(_kinds(database)) == 4


def test_a_reservation_is_reserved_by_the_last_approval(database: Database) -> None:
    _open(database)
    release = _propose(database, reserve_for=timedelta(hours=1))
    assert approve(database, release, request=BOB).state == "proposed"
    assert approve(database, release, request=_CAROL).state == "reserved"
    assert commit(database, release).state == "committed"
    assert release_of(database, release).state == "committed"
    assert _kinds(database)[-3:] == ["approved", "approved", "committed"]


def test_repeating_an_approval_counts_nothing(database: Database) -> None:
    _open(database)
    release = _propose(database)
    for _ in range(3):
        assert approve(database, release, request=BOB).state == "proposed"
    assert _kinds(database) == ["account_opened", "proposed", "approved"]
    assert _approval(database, release).names == ["bob"]


def test_only_those_on_the_list_approve(database: Database) -> None:
    _open(database)
    release = _propose(database)
    with pytest.raises(Forbidden, match=r"expected one of the principals .* people still asks for: bob, carol, dan"):
        approve(database, release, request=_EVE)
    approve(database, release, request=BOB)
    with pytest.raises(Forbidden, match="still asks for: carol, dan"):
        approve(database, release, request=_EVE)
    assert _kinds(database) == ["account_opened", "proposed", "approved"]


def test_the_proposer_is_never_among_the_approvers(database: Database) -> None:
    _open(database, approvers=Approvers(1, ("ann",)))
    release = _propose(database)
    assert _approval(database, release).may_approve == []
    with pytest.raises(Forbidden, match="another principal than the one that proposed the release"):
        approve(database, release, request=ANN)
    with pytest.raises(Forbidden, match="none of them may approve, as they proposed it"):
        approve(database, release, request=BOB)
    assert void(database, release).state == "voided"


def test_without_a_list_anybody_else_approves(database: Database) -> None:
    _open(database, approvers=Approvers(3))
    release = _propose(database)
    assert _approval(database, release).may_approve is None
    states = [approve(database, release, request=one).state for one in (BOB, BOB, _CAROL, _EVE)]
    assert states == ["proposed", "proposed", "proposed", "committed"]


def test_the_rules_of_all_accounts_that_ask_are_met(database: Database) -> None:
    """A person may be on several lists; one whose account is satisfied is not needed any more."""
    open_account(database, "agency", approval_above="0", approvers=Approvers(1, ("carol", "dan")))
    _open(database, approvers=Approvers(1, ("bob", "carol", "eve")), parent="agency")
    release = _propose(database)
    assert approve(database, release, request=BOB).state == "proposed"
    found = _approval(database, release)
    assert {rule.account: found.missing(rule) for rule in found.rules} == {"agency": 1, "people": 0}
    with pytest.raises(Forbidden, match="agency still asks for: carol, dan"):
        approve(database, release, request=_EVE)
    assert approve(database, release, request=_DAN).state == "committed"
    assert approve(database, _propose(database), request=_CAROL).state == "committed"
    assert _kinds(database, "agency")[1:] == ["proposed", "approved", "approved", "proposed", "approved"]


def test_an_account_whose_threshold_is_not_exceeded_does_not_ask(database: Database) -> None:
    open_account(database, "agency", approval_above="0.9", approvers=Approvers(2, ("x", "y")))
    _open(database, approvers=None, parent="agency")
    release = _propose(database)
    assert [rule.account for rule in _approval(database, release).rules] == ["people"]
    assert approve(database, release, request=_EVE).state == "committed"
    assert _kinds(database, "agency") == ["account_opened", "proposed", "approved"]


def test_a_proposal_of_an_older_version_asks_all_accounts_that_require_approvals(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, "agency", approval_above="0.9")
    _open(database, approvers=None, parent="agency")
    with monkeypatch.context() as older:
        older.setattr(admission, "asking_accounts", lambda *_: None)
        older.setattr(admission, "first_state", lambda *_: "proposed")
        release = _propose(database)
    assert '"approval_of"' not in entries_of(database)[-1].body
    _set(database, Approvers(1, ("carol",)), name="agency")
    assert [rule.account for rule in _approval(database, release).rules] == ["agency", "people"]
    assert approve(database, release, request=BOB).state == "proposed"
    assert approve(database, release, request=_CAROL).state == "committed"
    assert len(_kinds(database, "agency")) == 5


def test_an_allotted_account_asks_and_those_above_it_do_not(database: Database) -> None:
    open_account(database, "year", approval_above="0.9", approvers=Approvers(2, ("x", "y")))
    _open(database, parent="year", funding="allotted", definition="zcdp", rho="0.4")
    release = _propose(database)
    assert [rule.account for rule in _approval(database, release).rules] == ["people"]
    assert [approve(database, release, request=one).state for one in (BOB, _DAN)] == ["proposed", "committed"]
    assert _raise(database, ANN, "0.5")  # for which the accounts above are charged, and asked
    for one, waits in ((BOB, True), (_CAROL, True), (asking("x"), True), (asking("y"), False)):
        assert _raise(database, one, "0.5") == waits


# Persons


def _make(database: Database, name: str, by: Request | None = None) -> Request:
    """A steward's key, as a request with it."""
    record, _ = make_key(database, name, "steward", at=_AT, by=None if by is None else by.actor)
    return asking(record.name, key_id=record.id)


@pytest.mark.parametrize("change", [False, True])
def test_a_key_with_a_listed_name_counts_if_only_listed_persons_could_have_used_it(
    database: Database, change: bool
) -> None:
    """The attack: a steward makes a key with the name of an approver."""
    _open(database, approvers=Approvers(1, ("bob", "carol")))
    ann, bob, mallory = (_make(database, name) for name in ("ann", "bob", "mallory"))
    false, true = _make(database, "carol", by=mallory), _make(database, "carol", by=bob)
    release = "" if change else _propose(database, request=ann)

    def decide(request: Request) -> None:
        _raise(database, request) if change else approve(database, release, request=request)

    if change:
        decide(ann)
    with pytest.raises(Forbidden, match="a key that only the approvers of people could have used"):
        decide(false)
    with pytest.raises(Forbidden, match="expected one of the principals"):
        decide(mallory)
    decide(true)
    assert (account_of(database).budget.cap == 2) if change else (release_of(database, release).state == "committed")


def test_an_approval_from_before_a_list_counts_if_only_listed_persons_could_have_given_it(database: Database) -> None:
    _open(database, approvers=Approvers(2))
    ann, bob, dan, mallory = (_make(database, name) for name in ("ann", "bob", "dan", "mallory"))
    release = _propose(database, request=ann)
    assert approve(database, release, request=_make(database, "carol", by=mallory)).state == "proposed"
    for one in (ann, bob, dan):
        _set(database, Approvers(2, ("bob", "carol")), one)
    assert approve(database, release, request=bob).state == "proposed"
    assert approve(database, release, request=_make(database, "carol")).state == "committed"
    with database.read() as connection:
        assert verify(connection, "people").first_bad is None


@pytest.mark.parametrize("change", [False, True])
def test_no_two_approvers_are_of_one_person(database: Database, change: bool) -> None:
    _open(database)
    ann, bob, dan = (_make(database, name) for name in ("ann", "bob", "dan"))
    carol = _make(database, "carol", by=bob)
    release = "" if change else _propose(database, request=ann)

    def act(request: Request) -> bool:
        return _raise(database, request) if change else approve(database, release, request=request).state == "proposed"

    if change:
        assert act(ann)
    assert act(bob)
    with pytest.raises(Forbidden, match="could have approved the"):
        act(carol)
    assert not act(dan)
    entries_of(database)


def test_the_proposer_cannot_approve_with_the_key_of_another(database: Database) -> None:
    _open(database)
    ann, bob = _make(database, "ann"), _make(database, "bob")
    release = _propose(database, request=ann)
    assert approve(database, release, request=bob).state == "proposed"
    with pytest.raises(Forbidden, match="could have proposed the release"):
        approve(database, release, request=_make(database, "carol", by=ann))


# Changes


def test_a_change_waits_until_so_many_have_stated_it(database: Database) -> None:
    _open(database)
    assert _raise(database, ANN)
    with pytest.raises(Forbidden, match="approval of the change people still asks for: bob, carol, dan"):
        _raise(database, _EVE)
    assert _raise(database, BOB)
    assert _raise(database, BOB)  # again, without effect
    assert _raise(database, ANN)
    waits = account_of(database).proposed
    assert waits is not None
    assert (waits.seq, waits.by, [one.name for one in waits.approved]) == (2, ANN.actor, ["bob"])
    assert account_of(database).budget.cap == 1
    assert not _raise(database, _CAROL)
    assert account_of(database).budget.cap == 2
    assert account_of(database).proposed is None
    assert _kinds(database) == ["account_opened", "change_proposed", "change_approved", "budget_changed"]


def test_another_proposal_begins_again(database: Database) -> None:
    _open(database)
    _raise(database, ANN)
    _raise(database, BOB)
    assert _raise(database, _EVE, "3")
    waits = account_of(database).proposed
    assert waits is not None
    assert (waits.by.name, waits.approved) == ("eve", ())
    assert _raise(database, BOB, "3")
    assert _raise(database, ANN)  # in the place of the other
    assert _raise(database, _CAROL)
    assert not _raise(database, _DAN)


@pytest.mark.parametrize("end", ["reject", "close", "lower"])
def test_whatever_ends_a_proposal_ends_its_approvals(database: Database, end: str) -> None:
    _open(database)
    _raise(database, ANN)
    _raise(database, BOB)
    if end == "reject":
        carry_out(database, reject_change(database, _CAROL, "people", 2, "why"), _CAROL)
    elif end == "close":
        change_account(database, "people", "closed")
    else:
        _raise(database, ANN, "1/2")
    assert account_of(database).proposed is None
    assert _raise(database, ANN, "9")
    assert _raise(database, _CAROL, "9")
    assert not _raise(database, _DAN, "9")
    entries_of(database)


def test_opening_again_and_greater_caps_take_the_rule(database: Database) -> None:
    _open(database)
    change_account(database, "people", "closed")
    states = [change_account(database, "people", "open", one).waits for one in (ANN, BOB, _CAROL)]
    assert states == [True, True, False]
    small, great = ({"t": {"definition": "zcdp", "rho": rho}} for rho in ("1", "2"))
    assert not set_caps(database, small).waits
    assert [set_caps(database, great, request=one).waits for one in (ANN, BOB, _DAN)] == [True, True, False]
    assert _kinds(database)[-4:] == ["caps_changed", "change_proposed", "change_approved", "caps_changed"]


def test_the_rules_above_an_account_hold_for_its_changes(database: Database) -> None:
    open_account(database, "agency", approval_above="9", approvers=Approvers(1, ("dan",)))
    _open(database, approvers=Approvers(1, ("bob",)), parent="agency")
    assert _raise(database, ANN)
    assert _raise(database, BOB)
    with pytest.raises(Forbidden, match="agency still asks for: dan"):
        _raise(database, _CAROL)
    assert not _raise(database, _DAN)


def test_a_past_account_has_the_approvals_of_its_time(database: Database) -> None:
    _open(database)
    _raise(database, ANN)
    _raise(database, BOB)
    _raise(database, _DAN)
    with database.read() as connection:
        waits = [replay(connection, account_of(database), seq).account.proposed for seq in (1, 2, 3, 4)]
    assert [None if one is None else [by.name for by in one.approved] for one in waits] == [None, [], ["bob"], None]


# Changes of the rule


def test_one_steward_sets_the_first_approvers_and_they_decide_on_others(database: Database) -> None:
    _open(database, approvers=None)
    assert not _set(database, _TWO)
    assert account_of(database).approvers == _TWO
    assert not _set(database, _TWO, _EVE)  # which changes nothing
    alone = Approvers(1, ("eve",))
    assert _set(database, alone)
    assert _set(database, alone, BOB)
    assert account_of(database).approvers == _TWO
    assert not _set(database, alone, _CAROL)
    assert account_of(database).approvers == alone
    assert _set(database, Approvers())
    assert not _set(database, Approvers(), _EVE)
    kinds = ["approvers_changed", "change_proposed", "change_approved", "approvers_changed", "change_proposed"]
    assert _kinds(database) == ["account_opened", *kinds, "approvers_changed"]


def test_an_account_without_a_threshold_has_no_approvers(database: Database) -> None:
    with pytest.raises(InvalidInput) as refused:
        open_account(database, approvers=_TWO)
    assert [fault.pointer for fault in refused.value.faults] == ["/approvers"]
    open_account(database)
    with pytest.raises(Conflict, match="no approval_above"):
        _set(database, _TWO)
    assert _kinds(database) == ["account_opened"]
    change_account(database, "people", Fraction(1))
    assert not _set(database, _TWO)


def test_an_approver_proposes_no_rule(database: Database) -> None:
    _open(database, approvers=None)
    with pytest.raises(Forbidden, match="approvers propose none"):
        change_account(database, "people", _TWO, BOB, "approver")


def test_the_rule_at_the_last_approval_counts(database: Database) -> None:
    """A stricter rule holds at once; approvals of those whom it admits stay."""
    _open(database, approvers=None)
    release = _propose(database)
    _set(database, Approvers(3, ("bob", "carol", "dan", "eve")))
    assert [approve(database, release, request=one).state for one in (BOB, _CAROL)] == ["proposed", "proposed"]
    others = Approvers(2, ("carol", "dan", "eve"))
    for one in (ANN, BOB, _DAN, _EVE):
        waits = _set(database, others, one)
    assert not waits
    found = _approval(database, release)
    assert (found.names, found.may_approve) == (["bob", "carol"], ["dan", "eve"])
    with pytest.raises(Forbidden, match="still asks for: dan, eve"):
        approve(database, release, request=BOB)
    assert approve(database, release, request=_EVE).state == "committed"
    entries_of(database)


def test_a_laxer_rule_still_takes_an_approval_after_it(database: Database) -> None:
    _open(database)
    release = _propose(database)
    approve(database, release, request=BOB)
    for one in (ANN, BOB, _CAROL):
        _set(database, Approvers(1, ("bob",)), one)
    assert release_of(database, release).state == "proposed"
    assert _approval(database, release).may_approve == ["bob"]
    assert approve(database, release, request=BOB).state == "committed"  # who approves it for the second time
    assert _kinds(database)[-2:] == ["approvers_changed", "approved"]


# Races, repetitions and time


def test_two_approvals_at_the_same_moment_are_two(database: Database) -> None:
    _open(database)
    for _ in range(4):
        release, start = _propose(database, name="people"), threading.Barrier(2)

        def act(request: Request, release: str = release, start: threading.Barrier = start) -> str:
            start.wait()
            return approve(database, release, request=request).state

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(act, (BOB, _CAROL))) == ["committed", "proposed"]
    assert _kinds(database)[1:] == ["proposed", "approved", "approved"] * 4


def test_one_person_at_the_same_moment_is_one(database: Database) -> None:
    _open(database)
    release, start = _propose(database), threading.Barrier(3)

    def act(_: int) -> str:
        start.wait()
        return approve(database, release, request=BOB).state

    with ThreadPoolExecutor(3) as threads:
        assert set(threads.map(act, range(3))) == {"proposed"}
    assert _kinds(database) == ["account_opened", "proposed", "approved"]


def test_a_repeated_request_has_its_first_answer(database: Database) -> None:
    _open(database)
    release = _propose(database)
    request = asking("bob", "k", "digest")

    def ask() -> Answer:
        operation = reservations.approve(database, request, "people", release)
        return idempotent_write(database, request, operation, lambda done: Answer(200, done.release.state)).answer

    assert ask() == Answer(200, "proposed")
    assert ask() == Answer(200, "proposed", replayed=True)
    approve(database, release, request=_CAROL)
    assert ask() == Answer(200, "proposed", replayed=True)
    assert len(_kinds(database)) == 4


def test_a_proposal_that_ends_between_two_approvals_is_expired(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Clock(monkeypatch)
    _open(database)
    release = _propose(database, reserve_for=timedelta(hours=2))
    assert approve(database, release, request=BOB).state == "proposed"
    time.forward(3)
    with pytest.raises(Conflict, match="expired"):
        approve(database, release, request=_CAROL)
    assert release_of(database, release).state == "expired"
    assert account_of(database).totals.rho.finite == 0
    assert _kinds(database)[-2:] == ["approved", "expired"]


def test_one_person_rejects(database: Database) -> None:
    _open(database)
    release = _propose(database)
    approve(database, release, request=BOB)
    rejecting = reservations.void(database, _CAROL, "people", release, "no", None, "approver")
    assert carry_out(database, rejecting, _CAROL).release.state == "voided"
    with pytest.raises(Conflict, match="voided"):
        approve(database, release, request=_DAN)


# Whoever writes the database


_OTHER_RULE = write_approvers(Approvers(1, ("bob", "carol", "dan")))


@pytest.mark.parametrize("stored", [None, _OTHER_RULE])
def test_a_row_with_another_rule_is_refused(database: Database, stored: str | None) -> None:
    _open(database)
    release = _propose(database)
    unprotected(database, "accounts", "UPDATE accounts SET approvers = :rule", rule=stored)
    for act in (lambda: approve(database, release), lambda: _raise(database, ANN), lambda: account_of(database)):
        with pytest.raises(Altered):
            act()
    with database.read() as connection:
        assert "approvers" in str(verify(connection, "people").first_bad)


def test_a_rule_is_written_with_a_later_entry_only(database: Database) -> None:
    _open(database)
    with pytest.raises(Altered):
        run(database, "UPDATE accounts SET approvers = NULL, seal = 'x'")


_FORGED: dict[str, Callable[[Database, str, str], None]] = {
    "an approval of another release": lambda database, release, other: unprotected(
        database, "journal", "UPDATE journal SET release_id = :other WHERE kind = 'approved'", other=other
    ),
    "an approval by another person": lambda database, release, other: unprotected(
        database,
        "journal",
        'UPDATE journal SET body = replace(body, \'"actor":"bob"\', \'"actor":"dan"\') WHERE kind = \'approved\'',
    ),
    "a proposal that asks nobody": lambda database, release, other: unprotected(
        database,
        "journal",
        "UPDATE journal SET body = replace(body, '\"approval_of\":[\"people\"],', '') WHERE kind = 'proposed'",
    ),
}


@pytest.mark.parametrize("forged", _FORGED)
def test_approvals_are_counted_from_the_linked_texts(database: Database, forged: str) -> None:
    """Nobody becomes the second one by changed rows; at worst an approval that is not found is asked for again."""
    _open(database)
    other, release = _propose(database), _propose(database)
    assert approve(database, release, request=BOB).state == "proposed"
    _FORGED[forged](database, release, other)
    for target in (other, release):
        try:
            assert approve(database, target, request=_CAROL).state == "proposed"
        except ServiceError as refused:
            assert isinstance(refused, Altered)  # noqa: PT017
        assert release_of(database, target).state == "proposed"
    with database.read() as connection:
        assert not verify(connection, "people").valid


def test_an_approval_that_was_not_committed_does_not_count(database: Database) -> None:
    """Its text is put in the place of a later entry, with its own hash, as the owner of the database can."""
    _open(database)
    release = _propose(database)
    kept = rows_of_failed(database, reservations.approve(database, BOB, "people", release), "journal", request=BOB)
    row = max(kept["journal"], key=lambda one: one["seq"])
    for _ in range(3):
        charge(database, {"type": "geometric", "epsilon": "0.00001"})
    values = ", ".join(f"{name} = :{name}" for name in ("kind", "release_id", "body", "hash"))
    unprotected(
        database, "journal", f"UPDATE journal SET {values} WHERE account_id = :account_id AND seq = :seq", **row
    )
    with pytest.raises(Altered):
        approve(database, release, request=_CAROL)
    assert release_of(database, release).state == "proposed"


def _import(file: bytes, signer: Signer, path: Path) -> None:
    with closing(open_database(f"sqlite:///{path}/imported.db")) as other:
        migrate(other)
        other.secret = SECRET
        rebuild(other, lambda: io.BytesIO(file), signer.public_key)


_TOO_FEW = "fewer persons approved than the account asks for"


def test_verification_and_imports_find_a_release_with_too_few_approvals(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Steps that somebody who changes the code has the service write, in the whole line."""
    open_account(database, "agency", approval_above="0", approvers=Approvers(1, ("carol",)))
    _open(database, parent="agency")
    release = _propose(database)
    with monkeypatch.context() as forged:
        forged.setattr(Approval, "is_met_with", lambda *_: True)
        assert approve(database, release, request=BOB).state == "committed"
    with database.read() as connection:
        for name in ("agency", "people"):
            assert verify(connection, name).first_bad == BadEntry(3, _TOO_FEW)
    file = exported(database, signer)
    with closing(open_database(f"sqlite:///{tmp_path}/other.db")) as other:
        migrate(other)
        other.secret = SECRET
        with pytest.raises(BadExport, match=_TOO_FEW):
            rebuild(other, lambda: io.BytesIO(file), signer.public_key)


@pytest.mark.parametrize("proposed", [False, True])
def test_verification_finds_a_change_with_too_few_approvals(
    database: Database, monkeypatch: pytest.MonkeyPatch, proposed: bool
) -> None:
    _open(database)
    with monkeypatch.context() as forged:
        if proposed:
            forged.setattr(Approval, "is_met_with", lambda *_: True)
            _raise(database, ANN)
            _raise(database, BOB)
        else:
            forged.setattr(account_changes, "rules_above", lambda *_: ())
            _raise(database, ANN)
    assert account_of(database).budget.cap == 2
    reason = _TOO_FEW if proposed else "the account asks for approvals, and this has none"
    with database.read() as connection:
        assert verify(connection, "people").first_bad == BadEntry(3 if proposed else 2, reason)


@pytest.mark.parametrize("alone", [False, True])
def test_verification_and_imports_find_a_change_that_an_account_above_did_not_approve(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, alone: bool
) -> None:
    """As where the account above was shown in an earlier state for the moment of the change."""
    open_account(database, "agency", approval_above="9", approvers=Approvers(1, ("dan",)))
    open_account(database, "programme", parent="agency")
    open_account(database, parent="programme")
    with monkeypatch.context() as shown:
        earlier = () if alone else (AskedRule("agency", ANYBODY, is_stated=False),)
        shown.setattr(account_changes, "rules_above", lambda *_: earlier)
        _raise(database, ANN)
        _raise(database, BOB)
    assert account_of(database).budget.cap == 2
    reason = "fewer persons approved the change than an account above it asks for"
    with database.read() as connection:
        assert verify(connection, "people").first_bad == BadEntry(2 if alone else 3, reason)
        assert verify(connection, "agency").valid
    with pytest.raises(BadExport, match=reason):
        _import(exported(database, signer), signer, tmp_path)
    first = entries_of(database, "agency")[0].body
    for changed, unknown in (
        (first.replace('"dan"', '"bob"'), True),
        (first.replace('"agency"', '"agenci"'), True),
        (first, False),
    ):
        unprotected(
            database, "journal", "UPDATE journal SET body = :body WHERE account_id = 1 AND seq = 1", body=changed
        )
        with database.read() as connection:
            found = verify(connection, "people").first_bad
        assert found is not None
        assert found.reason == (approval_check.UNKNOWN if unknown else reason)


def test_a_change_may_have_met_an_earlier_rule_within_the_difference_of_clocks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Clock(monkeypatch)
    open_account(database, "agency", approval_above="9", approvers=Approvers(1, ("dan",)))
    open_account(database, parent="agency")
    _raise(database, ANN)
    _raise(database, _DAN)
    for hours, valid in ((1 / 120, True), (1, True)):
        time.forward(hours)
        for one in (ANN, _DAN):
            _set(database, Approvers(1, ("eve",)) if valid else _TWO, one, "agency")
        with database.read() as connection:
            assert verify(connection, "people").valid
    time.forward(-2)  # the clock of the server that raises it is wrong, beyond the difference
    for one in (ANN, _EVE):
        _raise(database, one, "3")
    with database.read() as connection:
        assert verify(connection, "people").first_bad is not None


@pytest.mark.parametrize("state", ["committed", "reserved", "proposed"])
def test_verification_finds_a_release_that_asks_nobody(
    database: Database, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    _open(database)
    with monkeypatch.context() as forged:
        forged.setattr(admission, "first_state", lambda *_: state)
        forged.setattr(admission, "asking_accounts", lambda *_: ("another",))
        charge(database, _PLAN, reserve_for=None if state == "committed" else timedelta(hours=1))
    with database.read() as connection:
        found = verify(connection, "people").first_bad
        assert found == BadEntry(2, "the account asks for approvals, and this has none")


def test_verification_finds_two_approvals_of_one_person(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    _open(database)
    ann, bob = _make(database, "ann"), _make(database, "bob")
    carol = _make(database, "carol", by=bob)
    release = _propose(database, request=ann)
    approve(database, release, request=bob)
    monkeypatch.setattr(reservations, "require_other_person", lambda *_: {})
    approve(database, release, request=carol)
    with database.read() as connection:
        reason = "the release was approved twice, with keys that one principal could know"
        assert verify(connection, "people").first_bad == BadEntry(4, reason)


def test_the_account_above_must_have_each_approval(database: Database) -> None:
    open_account(database, "agency")
    _open(database, parent="agency")
    release = _propose(database)
    approve(database, release, request=BOB)
    approve(database, release, request=_CAROL)
    unprotected(database, "journal", "DELETE FROM journal WHERE kind = 'approved' AND seq = 4 AND account_id = 1")
    with database.read() as connection:
        found = verify(connection, "people").first_bad
    assert found is not None
    assert "the account above it lacks an entry about a release" in found.reason


# Approvals that a writer of the database hides


def _compare(one: str, other: str) -> int:
    return (one > other) - (one < other)


def _one_person(database: Database) -> tuple[Request, Request]:
    """Return two principals of which the first made the second's key."""
    bob = _make(database, "bob")
    return bob, _make(database, "carol", by=bob)


@pytest.mark.parametrize(
    "hidden", ["kind = 'hidden'", "release_id = NULL", "release_id = (SELECT max(id) FROM others)"]
)
def test_an_approval_that_is_filed_elsewhere_is_not_forgotten(database: Database, hidden: str) -> None:
    """Entries are found by their texts, and not by the columns that state their kind and release."""
    _open(database, approvers=Approvers(3))
    bob, carol = _one_person(database)
    release = _propose(database, request=_make(database, "ann"))
    _propose(database)
    approve(database, release, request=bob)
    with pytest.raises(Forbidden, match="could have approved"):
        approve(database, release, request=carol)
    where = f"WHERE release_id = '{release}' AND kind = 'approved'"
    hide = hidden.replace("others", f"releases WHERE id <> '{release}'")
    unprotected(database, "journal", f"UPDATE journal SET {hide} {where}")
    with pytest.raises(Altered):
        approve(database, release, request=carol)
    assert release_of(database, release).state == "proposed"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_index_without_an_approval_hides_nothing(database: Database) -> None:
    """SQLite builds an index by the collating function of the connection, which can be anybody's."""
    _open(database, approvers=Approvers(3))
    bob, carol = _one_person(database)
    release = _propose(database, request=_make(database, "ann"))
    approve(database, release, request=bob)
    with closing(sqlite3.connect(str(make_url(database.url).database), isolation_level=None)) as attacker:
        attacker.create_collation(
            "BINARY", lambda one, other: 1 if "approved" in (one, other) else _compare(one, other)
        )
        attacker.execute("REINDEX journal_approvals")
    assert _approval(database, release).names == ["bob"]
    with pytest.raises(Forbidden, match="could have approved"):
        approve(database, release, request=carol)


def test_earlier_approvals_of_one_person_permit_no_later_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version could be kept from comparing them."""
    _open(database, approvers=Approvers(3))
    bob, carol = _one_person(database)
    release = _propose(database, request=_make(database, "ann"))
    approve(database, release, request=bob)
    with monkeypatch.context() as older:
        older.setattr(reservations, "require_other_person", lambda *_: {})
        approve(database, release, request=carol)
    with pytest.raises(Forbidden, match="got those of bob and carol"):
        approve(database, release, request=_make(database, "dan"))
    assert release_of(database, release).state == "proposed"
    assert void(database, release).state == "voided"


# The rest of the ledger


def test_an_exported_ledger_is_imported_with_its_rules_and_approvals(
    database: Database, signer: Signer, tmp_path: Path
) -> None:
    _open(database)
    release, change = _propose(database), _propose(database)
    approve(database, release, request=BOB)
    approve(database, change, request=BOB)
    approve(database, change, request=_CAROL)
    _raise(database, ANN)
    _raise(database, BOB)
    file = exported(database, signer)
    with closing(open_database(f"sqlite:///{tmp_path}/other.db")) as other:
        migrate(other)
        other.secret = SECRET
        rebuild(other, lambda: io.BytesIO(file), signer.public_key)
        assert account_of(other).approvers == _TWO
        assert account_of(other).proposed == account_of(database).proposed
        assert _approval(other, release).names == ["bob"]
        assert approve(other, release, request=_DAN).state == "committed"
        assert not _raise(other, _DAN)
        entries_of(other)


def test_the_applications_role_suffices(postgresql_url: str) -> None:
    with served_by_role(postgresql_url, SECRET) as served:
        _open(served, "strict")
        release = _propose(served, "strict")
        assert [approve(served, release, "strict", one).state for one in (BOB, _DAN)] == ["proposed", "committed"]
        alone = Approvers(1, ("eve",))
        assert [_set(served, alone, one, "strict") for one in (ANN, BOB, _CAROL)] == [True, True, False]
        with pytest.raises(Altered):
            run(served, "UPDATE accounts SET approvers = NULL")


def test_a_query_for_approvals_uses_its_index(database: Database) -> None:
    _open(database)
    release = _propose(database)
    approve(database, release, request=BOB)
    explain = "EXPLAIN QUERY PLAN" if database.kind == "sqlite" else "EXPLAIN"
    query = "SELECT seq FROM journal WHERE kind = 'approved' AND release_id = :release AND account_id = 1"
    with database.read() as connection:
        if database.kind == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        plan = str(connection.execute(text(f"{explain} {query}"), {"release": release}).all())
    assert "journal_approvals" in plan
