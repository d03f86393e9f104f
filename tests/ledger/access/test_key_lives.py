"""Verification holds entries of accounts against the keys that they name, and finds no fault where none is certain."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from service.ledger.access.key_lives import KeyLives
from service.ledger.access.key_records import Role
from service.ledger.accounts import account_changes
from service.ledger.accounts.budgets import read_budget
from service.ledger.descriptions import descriptions
from service.ledger.installation import installation_journal
from service.ledger.journal.chains import BadEntry
from service.ledger.journal.journal import Actor, entry_hash
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification.verify import verify
from tests.ledger.charging import SECRET, approve, asking, carry_out, change_account, charge, open_account
from tests.ledger.keys import make_key, revoke, rotate
from tests.ledger.ledgers import Clock
from tests.ledger.writing import never, unprotected

_PLAN = {"type": "gaussian", "rho": "1/64", "name": "m"}
_HOUR = timedelta(hours=1)


def _make(
    database: Database,
    name: str = "eve",
    role: Role = "pipeline",
    accounts: list[str] | None = None,
    by: Actor | None = None,
    hours: int | None = None,
) -> str:
    end = None if hours is None else clock.later(clock.now(), hours * _HOUR)
    return make_key(database, name, role, accounts, expires_at=end, by=by)[0].id


def _acknowledge(database: Database, written_at: str) -> None:
    content: dict[str, object] = {"reason": "the clock was ahead", "mark": {"written_at": written_at, "entries": 1}}
    database.write(
        lambda connection: installation_journal.append(
            connection, SECRET, "mark_acknowledged", content, actor=None, at=clock.now()
        ),
        is_committed=never,
    )


def _found(database: Database, name: str = "people") -> BadEntry | None:
    with database.read() as connection:
        return verify(connection, name).first_bad


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("reserve_for", [None, _HOUR])
@pytest.mark.parametrize(("end", "said"), [("revoke", "was revoked"), ("rotate", "had expired"), ("", "had expired")])
def test_what_was_done_with_a_key_after_its_end_is_found(
    database: Database, time: Clock, end: str, said: str, reserve_for: timedelta | None
) -> None:
    """The attack: the row of a key is put back, the key is used, and the row is put away again."""
    open_account(database)
    key = _make(database, hours=1)
    charge(database, _PLAN, request=asking("eve", key_id=key), reserve_for=reserve_for)
    if end == "revoke":
        revoke(database, key)
    elif end == "rotate":
        rotate(database, key)
    time.forward(2)
    assert _found(database) is None
    database._ends.clear()  # a server that has not read of it
    charge(database, _PLAN, request=asking("eve", key_id=key), reserve_for=reserve_for)
    assert _found(database) == BadEntry(3, f"the key {key} of 'eve', which the entry names, {said} by then")


@pytest.mark.parametrize(
    ("made", "principal", "reason"),
    [
        ({"role": "auditor"}, "eve", "has not the role pipeline"),
        ({"accounts": ["others"]}, "eve", "is limited to other accounts"),
        ({}, "bob", "is another principal's"),
    ],
)
@pytest.mark.parametrize("reserve_for", [None, _HOUR])
def test_what_a_key_may_not_do_is_found(
    database: Database,
    time: Clock,
    made: dict[str, Any],
    principal: str,
    reason: str,
    reserve_for: timedelta | None,
) -> None:
    open_account(database)
    key = _make(database, **made)
    charge(database, _PLAN, request=asking(principal, key_id=key), reserve_for=reserve_for)
    bad = _found(database)
    assert bad is not None
    assert (bad.seq, reason in bad.reason) == (2, True)


def test_what_was_done_before_a_key_was_made_is_found(database: Database, time: Clock) -> None:
    open_account(database)
    time.forward(2)
    key = _make(database)
    time.forward(-1)
    charge(database, _PLAN, request=asking("eve", key_id=key))
    bad = _found(database)
    assert bad is not None
    assert bad.reason.endswith("was not made by then")


@pytest.mark.parametrize(("release", "role"), [(False, "steward"), (True, "pipeline")])
def test_what_only_stewards_do_is_found_where_another_key_did_it(
    database: Database, time: Clock, release: bool, role: Role
) -> None:
    open_account(database)
    (charged,) = charge(database, _PLAN)
    steward, pipeline = _make(database, role="steward"), _make(database)

    def describe(key: str) -> None:
        request, patch = asking("eve", key_id=key), dict[str, Any](sources=[key])
        if release:
            carry_out(database, descriptions.describe_release(database, request, "people", charged.id, patch), request)
        else:
            carry_out(database, descriptions.describe_account(database, request, "people", patch), request)

    describe(steward)
    assert _found(database) is None
    describe(pipeline)
    bad = _found(database)
    assert (bad is None) == (role == "pipeline")
    assert bad is None or "has not the role steward" in bad.reason


def test_what_keys_could_do_is_no_fault(database: Database, time: Clock) -> None:
    """Of no key, of another installation's, of an issuer's person; below an account; as a key ends; and before."""
    open_account(database, "agency")
    open_account(database, parent="agency", approval_above="1/60")
    limited, ending, rotated = _make(database, accounts=["people"]), _make(database), _make(database)
    steward, second = (_make(database, name, "steward") for name in ("ann", "zoe"))
    charge(database, _PLAN, request=asking("eve"))  # as versions wrote it whose entries name no key
    charge(database, _PLAN, request=asking("eve", key_id="of another installation"))
    charge(database, _PLAN, request=asking("oidc:eve"))
    charge(database, _PLAN, request=asking("eve", key_id=limited))
    (proposed,) = charge(database, _PLAN | {"rho": "1/50"}, request=asking("ann", key_id=steward), reserve_for=_HOUR)
    approve(database, proposed.id, request=asking("zoe", key_id=second))
    revoke(database, ending)
    rotate(database, rotated)
    database._ends.clear()
    time.forward(59 / 3600)  # committed on another server, whose clock differs
    for key in (ending, rotated):
        charge(database, _PLAN, request=asking("eve", key_id=key))
    revoke(database, steward)
    time.forward(5)
    charge(database, _PLAN)
    for name in ("people", "agency"):
        assert _found(database, name) is None


@pytest.mark.parametrize("ahead", [5, -5])
def test_time_that_was_set_back_and_acknowledged_is_no_fault(database: Database, time: Clock, ahead: int) -> None:
    """A clock that was ahead, or is behind now: keys that were used before or after are revoked by another time."""
    open_account(database)
    key = _make(database)
    time.forward(5)
    other = _make(database)
    charge(database, _PLAN, request=asking("eve", key_id=key))
    written = clock.now()
    time.forward(-10)
    _acknowledge(database, written)
    charge(database, _PLAN, request=asking("eve", key_id=other))
    revoke(database, key)
    time.forward(ahead)
    assert _found(database) is None


def test_keys_of_an_older_version_may_have_acted_before_they_were_adopted() -> None:
    def said(seq: int, kind: str, time: str, **content: Any) -> dict[str, Any]:
        made = {"name": "eve", "role": "pipeline", "accounts": None, "expires_at": None, "revoked_at": None}
        made |= {"created_by": None, "rotated_from": None} | content
        return {"seq": seq, "kind": kind, "time": time, "actor": None, "content": made}

    first, second, third = (f"2026-01-0{day}T00:00:00.000000Z" for day in (1, 2, 3))
    lives = KeyLives(
        iter(
            [
                said(1, "key_adopted", second, id="a", created_at=first),
                said(2, "key_adopted", second, id="b", created_at="no moment"),
                said(3, "key_left", second, id="c", created_at=first),
                said(4, "key_adopted", second, id="d", created_at=first, revoked_at=second),
            ]
        )
    )
    acted = {(key, at): lives.fault_of(key, "eve", at, "x", "pipeline") for key in "abcd" for at in (first, third)}
    assert [place for place, fault in acted.items() if fault is not None] == [("d", third)]


# Two persons


def _propose(database: Database, actor: Actor) -> None:
    request = asking(actor.name, key_id=actor.key)
    budget = read_budget({"definition": "zcdp", "rho": "2"})
    change_account(database, "people", budget, request)


@pytest.mark.parametrize("hashed", [False, True])
def test_a_proposal_that_names_somebody_else_for_a_moment_is_refused_or_found(
    database: Database, time: Clock, hashed: bool
) -> None:
    """The attack: one steward with two keys is two persons where the text of the proposal is another meanwhile."""
    open_account(database, approval_above="0")
    one = Actor("one", _make(database, "one", "steward"))
    two = Actor("two", _make(database, "two", "steward", by=one))
    _make(database, "zoe", "steward")
    _propose(database, one)
    with database.read() as connection:
        body, stored = connection.execute(text("SELECT body, hash FROM journal WHERE seq = 2")).one()
        before = connection.execute(text("SELECT hash FROM journal WHERE seq = 1")).scalar_one()
    forged = body.replace('"actor":"one"', '"actor":"zoe"').replace(f',"key":"{one.key}"', "")
    digest = entry_hash(before, forged) if hashed else stored
    change = "UPDATE journal SET body = :body, hash = :hash WHERE seq = 2"
    unprotected(database, "journal", change, body=forged, hash=digest)
    with pytest.raises(Exception, match="is not as the service wrote it"):
        _propose(database, two)
    unprotected(database, "journal", change, body=body, hash=stored)
    assert _found(database) is None


@pytest.mark.parametrize("person", [lambda make: make("two"), lambda _: Actor("oidc:zoe")])
def test_verification_finds_a_second_steward_who_could_know_both_keys(
    database: Database, time: Clock, monkeypatch: pytest.MonkeyPatch, person: Callable[[Any], Actor]
) -> None:
    open_account(database, approval_above="0")
    one = Actor("one", _make(database, "one", "steward", by=Actor("oidc:zoe")))
    second = person(lambda name: Actor(name, _make(database, name, "steward", by=one)))
    monkeypatch.setattr(account_changes, "require_other_person", lambda *_: None)
    _propose(database, one)
    _propose(database, second)
    assert _found(database) == BadEntry(
        3, "the change was proposed and approved with keys that one principal could know"
    )


def test_keys_that_were_made_after_an_approval_make_nobody_behind_it(database: Database, time: Clock) -> None:
    open_account(database, approval_above="0")
    head = Actor("head", _make(database, "head", "steward"))
    one = Actor("one", _make(database, "one", "steward", by=head))
    two = Actor("two", _make(database, "two", "steward"))
    _propose(database, one)
    _propose(database, two)
    time.forward(1)
    _make(database, "head", "steward", by=two)
    assert _found(database) is None
