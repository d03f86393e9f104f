"""Names of a list of approvers without a key for it, and lists that refuse a key."""

from typing import Any

import pytest

from service.ledger.access.key_events import Known, keys_of, people_behind
from service.ledger.accounts import able_approvers
from service.ledger.accounts.able_approvers import ListedIn, NamedKeys, lists_of_approvers, refusing
from service.ledger.accounts.approvers import Approvers, stored_approvers
from service.ledger.journal.journal import Actor
from service.ledger.storage.database import Database
from tests.ledger.charging import SECRET, open_account
from tests.ledger.keys import make_key
from tests.ledger.writing import unprotected

_AT = "2026-01-02T00:00:00.000000Z"
_RULE = Approvers(1, ("ann", "bob", "oidc:zoe"))


def _lack(database: Database, name: str, at: str = _AT, rule: Approvers = _RULE) -> str | None:
    with database.read() as connection:
        return NamedKeys(keys_of(connection, SECRET), at).lack_of(rule, name)


@pytest.mark.parametrize(
    ("name", "role", "lack"),
    [
        ("bob", "approver", None),
        ("bob", "steward", None),
        ("bob", "auditor", "bob has the role auditor, which does not approve"),
        ("cyd", "approver", "no key has the name bob"),
    ],
)
def test_a_key_with_the_role_is_needed(database: Database, name: str, role: Any, lack: str | None) -> None:
    make_key(database, name, role, at=_AT)
    assert _lack(database, "bob") == lack
    assert _lack(database, "oidc:zoe") is None, "nothing is known of an issuer's people"


def test_one_key_that_counts_is_enough(database: Database) -> None:
    mallory, ann = (Actor(name, make_key(database, name, "steward", at=_AT)[0].id) for name in ("mallory", "ann"))
    make_key(database, "bob", "approver", at=_AT, by=mallory)
    assert _lack(database, "bob") == "mallory made or rotated the key of bob, and is not on the list"
    assert _lack(database, "bob", rule=Approvers(1, ("bob", "mallory"))) is None
    make_key(database, "bob", "approver", at=_AT, by=ann)
    assert _lack(database, "bob") is None, "ann is on the list"


def test_lists_refuse_a_key_that_somebody_else_knows(database: Database) -> None:
    for number, rule in enumerate((_RULE, Approvers(1, ("bob", "mallory")), Approvers(2), None)):
        open_account(database, f"a{number}", approval_above="1", approvers=rule)
    mallory = Actor("mallory", make_key(database, "mallory", "steward", at=_AT)[0].id)
    false, sound = (
        make_key(database, "bob", "approver", at=_AT, by=mallory),
        make_key(database, "bob", "approver", at=_AT),
    )
    with database.read() as connection:
        lists, known = lists_of_approvers(connection), keys_of(connection, SECRET)
    assert lists == [ListedIn("a0", frozenset(_RULE.of or ())), ListedIn("a1", frozenset({"bob", "mallory"}))]
    assert refusing(lists, known, false[0]) == ["a0"]
    assert refusing(lists, known, sound[0]) == []


def test_an_altered_list_does_not_keep_the_others_from_being_read(database: Database) -> None:
    for name in ("a", "b"):
        open_account(database, name, approval_above="1", approvers=_RULE)
    unprotected(database, "accounts", "UPDATE accounts SET approvers = '[]' WHERE name = 'a'")
    with database.read() as connection:
        assert [one.account for one in lists_of_approvers(connection)] == ["b"]


def test_only_lists_with_a_name_are_parsed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ('50 % "ann_"', "50 per cent annx", "bob")
    for number, name in enumerate(names):
        open_account(database, f"a{number}", approval_above="1", approvers=Approvers(1, (name, "é\\")))
    parsed: list[str | None] = []

    def parse(text: str | None) -> Approvers | None:
        parsed.append(text)
        return stored_approvers(text)

    monkeypatch.setattr(able_approvers, "stored_approvers", parse)
    with database.read() as connection:
        for number, name in enumerate(names):
            assert [one.account for one in lists_of_approvers(connection, name)] == [f"a{number}"]
        assert len(parsed) == len(names)
        assert len(lists_of_approvers(connection, "é\\")) == len(names)
        assert lists_of_approvers(connection, "bo") == []


def test_the_people_behind_a_key_are_found_once_for_all_lists(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mallory = Actor("mallory", make_key(database, "mallory", "steward", at=_AT)[0].id)
    (key, _) = make_key(database, "bob", "approver", at=_AT, by=mallory)
    with database.read() as connection:
        known = keys_of(connection, SECRET)
    found: list[Actor] = []

    def behind(known: Known, actor: Actor) -> frozenset[str]:
        found.append(actor)
        return people_behind(known, actor)

    monkeypatch.setattr(able_approvers, "people_behind", behind)
    assert len(refusing([ListedIn(f"a{number}", frozenset({"bob"})) for number in range(1000)], known, key)) == 1000
    assert found == [Actor("bob", key.id)]
