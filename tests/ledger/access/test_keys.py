"""The life of an API key, from the first one to its revocation."""

import re
from collections.abc import Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from service.errors import Conflict, Forbidden, InvalidInput, NotFound, StartupRefused, Unauthenticated, Unavailable
from service.ledger.access import keys
from service.ledger.access.authentication import Principal, authenticate
from service.ledger.access.key_events import keys_of
from service.ledger.access.key_records import ROLES, KeyRecord, Role
from service.ledger.access.key_rows import read_key, seal_key, token_of
from service.ledger.access.keys import (
    add_bootstrap_key,
    create_key,
    ensure_first_key,
    list_keys,
    revoke_key,
    rotate_key,
)
from service.ledger.installation.binding import check_secret
from service.ledger.journal.journal import Actor
from service.ledger.storage import clock
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret
from service.ledger.verification.verify_installation import verify_installation
from tests.ledger.charging import SECRET
from tests.ledger.keys import make_key, revoke, rotate
from tests.ledger.writing import never, run, unprotected

AT = "2026-01-02T00:00:00.000000Z"
LATER = "2026-01-02T00:00:00.000001Z"
BOOTSTRAP = "b" * 32


HOUR = timedelta(hours=1)
_create = partial(make_key, name="ann", at=AT)
_rotate = partial(rotate, overlap=HOUR, by=Actor("bob"))


def _authenticate(database: Database, token: str, at: str = AT) -> Principal | None:
    return authenticate(database, SECRET, token, at)


def _listed(database: Database) -> list[KeyRecord]:
    with database.read() as connection:
        return list_keys(connection, SECRET, None, 100, known=keys_of(connection, SECRET))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("accounts", [None, [], ["a", "b"]])
def test_a_new_key_is_known_by_its_token(
    database: Database, secret: Secret, role: Role, accounts: list[str] | None
) -> None:
    record, token = _create(database, role=role, accounts=accounts)
    reach = None if accounts is None else frozenset(accounts)
    assert _authenticate(database, token) == Principal(record.id, "ann", role, reach)
    assert _listed(database) == [record]


def test_the_token_can_be_derived_again_and_is_nowhere_in_the_database(database: Database, secret: Secret) -> None:
    record, token = _create(database)
    assert re.fullmatch(r"pbl_[A-Za-z0-9_-]{43}", token)
    assert token_of(secret, record.id) == token
    assert token_of(Secret(bytes(32)), record.id) != token
    with database.read() as connection:
        row = connection.execute(text("SELECT * FROM api_keys")).one()
    assert not any(token in str(value) or token[4:] in str(value) for value in row)


@pytest.mark.parametrize("token", ["", "pbl_", "pbl_" + "A" * 43, "é", "' OR 1=1 --"])
def test_other_tokens_are_unknown(database: Database, secret: Secret, token: str) -> None:
    _create(database)
    assert _authenticate(database, token) is None


def test_a_key_expires_at_its_moment(database: Database, secret: Secret) -> None:
    _, token = _create(database, expires_at=LATER)
    assert _authenticate(database, token, AT) is not None
    assert _authenticate(database, token, LATER) is None


@pytest.mark.parametrize("expires_at", ["2026-01-02", "2026-01-02T00:00:00Z", "2026-01-02T00:00:00.000000+00:00", ""])
def test_an_expiry_that_would_compare_wrongly_is_refused(database: Database, secret: Secret, expires_at: str) -> None:
    with pytest.raises(ValueError, match="six decimals"):
        _create(database, expires_at=expires_at)
    assert _listed(database) == []


def test_a_revoked_key_is_useless_from_then_on(database: Database, secret: Secret) -> None:
    record, token = _create(database)
    _, other = _create(database)
    revoked = revoke(database, record.id, AT)
    assert revoked.revoked_at == AT
    assert _authenticate(database, token) is None
    assert _authenticate(database, other) is not None
    again = revoke(database, record.id, LATER)
    assert again == revoked
    with database.read() as connection:
        assert read_key(connection, record.id) == revoked


def test_a_key_that_does_not_exist_cannot_be_read_or_revoked(database: Database) -> None:
    with pytest.raises(NotFound), database.read() as connection:
        read_key(connection, "nothing")
    with pytest.raises(NotFound):
        revoke(database, "nothing", AT)


def test_keys_are_listed_oldest_first_in_pages(database: Database, secret: Secret) -> None:
    made = [_create(database, at=at)[0] for at in (LATER, AT, AT, LATER, AT)]
    expected = sorted(made, key=lambda record: (record.created_at, record.id))
    found: list[KeyRecord] = []
    with database.read() as connection:
        known = keys_of(connection, SECRET)
        while page := list_keys(connection, SECRET, found[-1].id if found else None, 2, known=known):
            assert len(page) <= 2
            found += page
        assert found == expected
        with pytest.raises(InvalidInput):
            list_keys(connection, SECRET, "nothing", 2, known=known)


def _told(told: list[MutableMapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [(line["event"], line["number"]) for line in told]


def test_a_row_that_nobody_sealed_is_listed_as_no_key_and_no_successor(database: Database, secret: Secret) -> None:
    bob, _ = _create(database, name="bob")
    columns = "id, name, role, token_hash, created_at, created_by, rotated_from"
    values = "'i', 'alice', 'steward', 'h', :at, 'first-steward', :bob"
    run(database, f"INSERT INTO api_keys ({columns}) VALUES ({values})", at=AT, bob=bob.id)
    with capture_logs() as told:
        assert _listed(database) == [bob]
    assert _told(told) == [("rows of keys that this service did not write are left out; run verify", 1)]


@pytest.mark.parametrize("change", ["UPDATE api_keys SET role = 'auditor', accounts = '[]'", "DELETE FROM api_keys"])
def test_a_key_whose_row_somebody_changed_is_listed_as_it_was_made(
    database: Database, secret: Secret, change: str
) -> None:
    made, _ = _create(database, role="steward", accounts=["a", "b"])
    other, _ = _create(database, at=LATER, accounts=["c"])
    unprotected(database, "api_keys", f"{change} WHERE id = :id", id=made.id)
    with capture_logs() as told:
        assert _listed(database) == [replace(made, sealed=False), other]
    assert _told(told) == [("rows of keys are not as this service wrote them", 1)]


def test_a_role_may_do_what_the_roles_below_it_may() -> None:
    may = {role: [other for other in ROLES if Principal("", "ann", role, None).may_act_as(other)] for role in ROLES}
    assert may == {
        "auditor": ["auditor"],
        "pipeline": ["auditor", "pipeline"],
        "approver": ["auditor", "approver"],
        "steward": ["auditor", "pipeline", "approver", "steward"],
    }


def test_a_key_reaches_the_accounts_that_it_names() -> None:
    assert Principal("", "ann", "auditor", None).may_use("a")
    assert Principal("", "ann", "auditor", frozenset({"a"})).may_use("a")
    assert not Principal("", "ann", "auditor", frozenset({"a"})).may_use("b")
    assert not Principal("", "ann", "auditor", frozenset()).may_use("a")


# Rotation: moments of one day, made at midnight.

MIDNIGHT, ONE, TWO, THREE, FOUR = (f"2026-01-02T0{hour}:00:00.000000Z" for hour in range(5))


def test_a_rotated_key_gives_way_to_one_of_the_same_principal_after_the_overlap(
    database: Database, secret: Secret
) -> None:
    old, old_token = _create(database, role="steward", accounts=["a"], at=MIDNIGHT)
    new, token = _rotate(database, old.id, ONE)
    assert (new.name, new.role, new.accounts, new.created_at, new.expires_at) == ("ann", "steward", ("a",), ONE, None)
    assert (new.created_by, new.rotated_from) == ("bob", old.id)
    assert _authenticate(database, token, THREE) == Principal(new.id, "ann", "steward", frozenset("a"))
    just_before = "2026-01-02T01:59:59.999999Z"
    assert _authenticate(database, old_token, just_before) == Principal(old.id, "ann", "steward", frozenset("a"))
    assert _authenticate(database, old_token, TWO) is None
    assert _listed(database) == [replace(old, expires_at=TWO, rotated_to=new.id), new]


def test_rotation_prolongs_no_key_and_gives_the_new_one_the_lifetime_of_the_old(
    database: Database, secret: Secret
) -> None:
    old, old_token = _create(database, at=MIDNIGHT, expires_at=THREE)
    new, _ = _rotate(database, old.id, ONE, overlap=5 * HOUR)
    assert new.expires_at == FOUR
    assert _authenticate(database, old_token, THREE) is None
    third, _ = _rotate(database, new.id, TWO)
    assert third.expires_at == "2026-01-02T05:00:00.000000Z", "three hours again, not what the overlap left"


def test_a_lifetime_beyond_the_calendar_ends_with_it(database: Database, secret: Secret) -> None:
    old, _ = _create(database, at=MIDNIGHT, expires_at="9999-12-31T23:59:59.000000Z")
    new, _ = _rotate(database, old.id, ONE)
    assert new.expires_at == "9999-12-31T23:59:59.999999Z"


@pytest.mark.parametrize("end", ["revoked", "expired", "rotated"])
def test_what_is_no_valid_key_is_not_rotated(database: Database, secret: Secret, end: str) -> None:
    old, _ = _create(database, at=MIDNIGHT, expires_at=TWO)
    if end == "revoked":
        revoke(database, old.id, MIDNIGHT)
    if end == "rotated":
        _rotate(database, old.id, MIDNIGHT, overlap=24 * HOUR)
    before = _listed(database)
    with pytest.raises(Conflict, match="rotated before" if end == "rotated" else "revoked or expired"):
        _rotate(database, old.id, TWO if end == "expired" else ONE)
    assert _listed(database) == before
    with pytest.raises(NotFound):
        _rotate(database, "nothing", ONE)


def test_of_many_who_rotate_a_key_at_once_one_succeeds(database: Database, secret: Secret) -> None:
    old, _ = _create(database, at=MIDNIGHT)

    def rotate(_: int) -> bool:
        try:
            _rotate(database, old.id, ONE)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(rotate, range(6))) == [False] * 5 + [True]
    assert len(_listed(database)) == 2


@pytest.mark.parametrize(
    "name",
    [
        *(" ann", "ann ", "a  nn", "a\u00a0nn", "a\u200bnn", "\u202eann", "ann\u2028", "a\x85nn"),
        *("\uff41nn", "e\u0301ve", "\u212bke"),  # as ann, éve and Åke are not written
    ],
)
def test_a_name_that_could_be_taken_for_another_is_nobodys(database: Database, secret: Secret, name: str) -> None:
    """A second steward must not look like the first, nor be somebody who only seems to be another."""
    with pytest.raises(InvalidInput, match="/name"):
        _create(database, name=name)


@pytest.mark.parametrize("name", ["ann", "Ann-Marie O'Neil (stats)", "\u00e9ve", "\u00c5ke", "統計局"])
def test_names_of_any_script_are_names(database: Database, secret: Secret, name: str) -> None:
    assert _create(database, name=name)[0].name == name


def test_a_key_that_is_older_than_the_rule_is_rotated(database: Database, secret: Secret) -> None:
    old, _ = _create(database)

    def rotate(connection: Connection) -> tuple[KeyRecord, str]:
        connection.execute(text("UPDATE api_keys SET name = ' ann '"))
        seal_key(connection, secret, old.id, token_of(secret, old.id))
        return rotate_key(connection, secret, old.id, overlap=timedelta(0), at=AT, by=None)

    assert database.write(rotate, is_committed=never)[0].name == " ann "


@pytest.mark.parametrize("name", ["oidc:ann", "oidc:"])
def test_no_key_has_the_name_of_an_issuers_principal(database: Database, secret: Secret, name: str) -> None:
    with pytest.raises(InvalidInput, match="oidc:"):
        _create(database, name=name)
    statement = "INSERT INTO api_keys (id, name, role, token_hash, created_at) VALUES ('i', :name, 'auditor', 'h', 'n')"

    def slip_in(connection: Connection) -> None:
        with pytest.raises(IntegrityError):
            connection.execute(text(statement), {"name": name})
        raise Conflict("rolled back")

    with pytest.raises(Conflict):
        database.write(slip_in, is_committed=never)
    assert _create(database, name="oidc")[0].name == "oidc"


def test_the_bootstrap_key_is_added_only_while_there_is_none(database: Database, secret: Secret) -> None:
    first = database.write(lambda connection: add_bootstrap_key(connection, SECRET, BOOTSTRAP, AT), is_committed=never)
    assert first is not None
    assert first.role == "steward"
    second = database.write(lambda connection: add_bootstrap_key(connection, SECRET, "c" * 32, AT), is_committed=never)
    assert second is None
    assert _listed(database) == [first]
    known = _authenticate(database, BOOTSTRAP)
    assert known == Principal(first.id, first.name, "steward", None)
    assert _authenticate(database, "c" * 32) is None


def test_the_first_key_is_made_and_shown_once(database: Database, secret: Secret) -> None:
    token = ensure_first_key(database, secret, None, None)
    assert token is not None
    known = _authenticate(database, token)
    assert known is not None
    assert (known.role, known.accounts) == ("steward", None)
    assert ensure_first_key(database, secret, None, None) is None
    assert ensure_first_key(database, secret, BOOTSTRAP, None) is None
    assert len(_listed(database)) == 1


def test_a_first_key_ends_where_it_is_told_to(database: Database, secret: Secret) -> None:
    token = ensure_first_key(database, secret, None, timedelta(hours=24))
    assert token is not None
    (made,) = _listed(database)
    assert made.expires_at == clock.later(made.created_at, timedelta(hours=24))
    assert _authenticate(database, token) is not None
    assert authenticate(database, secret, token, made.expires_at) is None
    assert ensure_first_key(database, secret, None, timedelta(hours=24)) is None


def test_the_operators_first_key_is_not_shown(database: Database, secret: Secret) -> None:
    assert ensure_first_key(database, secret, BOOTSTRAP, None) is None
    known = _authenticate(database, BOOTSTRAP)
    assert known is not None
    assert known.role == "steward"


def test_a_database_whose_only_key_is_revoked_gets_no_new_one(database: Database, secret: Secret) -> None:
    """Else whoever can restart the service and set its environment could take it over."""
    record, _ = _create(database)
    revoke(database, record.id, AT)
    assert ensure_first_key(database, secret, BOOTSTRAP, None) is None
    assert _authenticate(database, BOOTSTRAP) is None


def test_a_short_bootstrap_key_is_refused_and_not_quoted(database: Database, secret: Secret) -> None:
    with pytest.raises(StartupRefused) as refused:
        ensure_first_key(database, secret, "q" * 31, None)
    assert "qq" not in str(refused.value)
    assert _listed(database) == []


def test_another_installations_secret_makes_no_first_key(database: Database, secret: Secret) -> None:
    ensure_first_key(database, secret, None, None)
    with pytest.raises(StartupRefused):
        ensure_first_key(database, Secret(bytes(32)), None, None)


def test_replicas_that_start_together_make_one_first_key(database_url: str, secret: Secret) -> None:
    def start(_: int) -> str | None:
        database = open_database(database_url)
        try:
            return ensure_first_key(database, secret, None, None)
        finally:
            database.close()

    with ThreadPoolExecutor(6) as threads:
        tokens = [token for token in threads.map(start, range(6)) if token is not None]
    assert len(tokens) == 1
    database = open_database(database_url)
    try:
        assert len(_listed(database)) == 1
    finally:
        database.close()


def _steward(database: Database, role: Role = "steward", expires_at: str | None = None) -> Actor:
    record, _ = _create(database, name="eve", role=role, expires_at=expires_at)
    return Actor(record.name, record.id)


def _act(database: Database, by: Actor, at: str) -> KeyRecord:
    """Make a key; the row of the acting one is not asked."""
    return database.write(
        lambda connection: create_key(
            connection, SECRET, name="bob", role="auditor", accounts=None, expires_at=None, at=at, by=by
        ),
        is_committed=never,
    )[0]


def test_keys_that_the_journal_knows_as_valid_make_others(database: Database) -> None:
    eve = _steward(database, expires_at=LATER)
    assert _act(database, eve, AT).created_by == "eve"
    assert _act(database, Actor("oidc:ann"), AT).created_by == "oidc:ann"


@pytest.mark.parametrize("end", ["unknown", "revoked", "expired", "another's", "auditor"])
def test_what_the_journal_knows_as_no_valid_key_makes_ends_and_rotates_none(database: Database, end: str) -> None:
    other, _ = _create(database)
    eve = _steward(database, "auditor" if end == "auditor" else "steward", LATER if end == "expired" else None)
    if end == "unknown":
        eve = Actor("eve", "of another installation")
    if end == "another's":
        eve = Actor("bob", eve.key)
    if end == "revoked" and eve.key is not None:
        revoke(database, eve.key, AT)
    before = _listed(database)
    acts: list[Callable[[Connection], object]] = [
        lambda connection: create_key(
            connection, SECRET, name="bob", role="auditor", accounts=None, expires_at=None, at=LATER, by=eve
        ),
        lambda connection: rotate_key(connection, SECRET, other.id, overlap=HOUR, at=LATER, by=eve),
        lambda connection: revoke_key(connection, SECRET, other.id, at=LATER, by=eve),
    ]
    for act in acts:
        with pytest.raises(Forbidden if end == "auditor" else Unauthenticated):
            database.write(act, is_committed=never)
    assert _listed(database) == before


def test_no_key_is_made_with_another_while_the_journal_is_not_sound(database: Database) -> None:
    eve = _steward(database)
    forged = text(
        "INSERT INTO installation_journal (seq, kind, body, hash, seal) SELECT seq + 1, kind, body, hash, seal"
        " FROM installation_journal"
    )
    database.write(lambda connection: connection.execute(forged), is_committed=never)
    with pytest.raises(Unavailable) as refused:
        _act(database, eve, AT)
    assert "the installation's journal is not sound: entry 2" in str(refused.value.for_operator)


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_verification_finds_what_was_done_with_a_key_after_its_end(
    database: Database, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """As an earlier version wrote it, which asked the row alone."""
    check_secret(database, SECRET)
    eve = _steward(database, expires_at=LATER if end == "expired" else None)
    if end == "revoked" and eve.key is not None:
        revoke(database, eve.key, AT)
    monkeypatch.setattr(keys, "require_valid", lambda *_: None)
    _act(database, eve, LATER)
    ended = "was revoked" if end == "revoked" else "had expired"
    with database.read() as connection:
        assert list(verify_installation(connection, SECRET)) == [
            f"installation_journal: entry {4 if end == 'revoked' else 3}: key_made by the key {eve.key} of 'eve', which"
            f" {ended} by then"
        ]


def test_a_key_that_ends_itself_was_valid_then(database: Database) -> None:
    check_secret(database, SECRET)
    eve, bob = _steward(database), _steward(database)
    database.write(lambda connection: revoke_key(connection, SECRET, eve.key or "", at=AT, by=eve), is_committed=never)
    database.write(
        lambda connection: rotate_key(connection, SECRET, bob.key or "", overlap=timedelta(), at=AT, by=bob),
        is_committed=never,
    )
    with database.read() as connection:
        assert list(verify_installation(connection, SECRET)) == []
