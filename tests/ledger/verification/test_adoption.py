"""Adoption: rows that an older version wrote without seals are sealed once; rows added since are not."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import structlog
from sqlalchemy import Connection, text

from service.errors import Altered, Conflict, StartupRefused, Unavailable
from service.ledger import jobs
from service.ledger.access.authentication import authenticate
from service.ledger.access.key_records import KeyRecord, Role
from service.ledger.access.key_rows import read_key, token_of
from service.ledger.access.keys import ensure_first_key
from service.ledger.accounts import accounts
from service.ledger.draws import partitions, stored_draws
from service.ledger.installation.binding import SEALED_ROWS, check_secret, older_tables
from service.ledger.installation.installation_journal import append, read
from service.ledger.journal.chains import BadEntry
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.storage import idempotency
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer
from service.ledger.storage.migrate import downgrade, migrate
from service.ledger.storage.secret import Secret
from service.ledger.verification.adoption import adopt
from service.ledger.verification.verify import verify
from service.ledger.verification.verify_installation import verify_installation
from tests.ledger.charging import (
    SECRET,
    account_of,
    asking,
    bind_as_before,
    carry_out,
    entries_of,
    mechanisms_in,
    migrate_unsealed,
    open_account,
    reserve,
    unseal,
    void,
)
from tests.ledger.keys import make_key, revoke, rotate
from tests.ledger.ledgers import LEVEL, draw, register, tabulate
from tests.ledger.writing import never, run

_AT = "2026-01-02T00:00:00.000000Z"
_LATER = "2026-01-03T00:00:00.000000Z"
_BOOTSTRAP = "b" * 32
_PLAN = {"type": "geometric", "epsilon": "0.001", "name": "a"}
_DERIVED, _LIMITED, _REVOKED, _FIRST, _PLANTED = "derived", "limited", "revoked", "first", "planted"


def _insert(database: Database, table: str, **row: Any) -> None:
    columns = ", ".join(f'"{name}"' for name in row)
    run(database, f"INSERT INTO {table} ({columns}) VALUES ({', '.join(f':{name}' for name in row)})", **row)


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _old_key(database: Database, key_id: str, token: str, **more: Any) -> None:
    row = {"id": key_id, "name": key_id, "role": "steward", "token_hash": _sha256(token), "created_at": _AT}
    _insert(database, "api_keys", **row | more)


@pytest.fixture(autouse=True)
def _bound(database: Database) -> None:
    bind_as_before(database, SECRET)


@pytest.fixture
def old(database: Database) -> Database:
    """A ledger as the version before seals left it, migrated and not yet started."""
    downgrade(database, "0008")
    _old_key(database, _DERIVED, token_of(SECRET, _DERIVED))
    _old_key(
        database,
        _LIMITED,
        token_of(SECRET, _LIMITED),
        role="pipeline",
        accounts='["people"]',
        created_by=_DERIVED,
        expires_at="2036-01-02T00:00:00.000000Z",
        last_used_at=_AT,
    )
    _old_key(database, _REVOKED, token_of(SECRET, _REVOKED), revoked_at=_AT, rotated_from=_LIMITED)
    _old_key(database, _FIRST, _BOOTSTRAP, name="first-steward")
    _old_key(database, _PLANTED, "chosen by whoever wrote the database")
    for number in range(120):
        _insert(
            database,
            "stored_answers",
            principal="ann",
            key=f"k{number:03}",
            request_digest="digest",
            status=201,
            body=f'{{"number":{number}}}',
            created_at=_AT,
        )
    for state, result in (("succeeded", '{"found": 1}'), ("queued", None)):
        _insert(
            database,
            "jobs",
            id=state,
            principal="ann",
            parameters='{"number": 1}',
            state=state,
            permille=0,
            result=result,
            attempts=1,
            created_at=_AT,
        )
    migrate(database)
    return database


def _who(database: Database, token: str) -> str | None:
    found = authenticate(database, SECRET, token, _AT)
    return None if found is None else found.name


def _faults(database: Database) -> list[str]:
    with database.read() as connection:
        return list(verify_installation(connection, SECRET))


def _events(database: Database) -> list[tuple[str, Any]]:
    with database.read() as connection:
        return [(said["kind"], said["content"].get("id")) for said in read(connection, SECRET)]


def _read(database: Database, key_id: str) -> KeyRecord:
    with database.read() as connection:
        return read_key(connection, key_id)


def test_before_it_is_started_nobody_is_known(old: Database) -> None:
    for token in (token_of(SECRET, _DERIVED), _BOOTSTRAP, "chosen by whoever wrote the database"):
        assert _who(old, token) is None


def test_keys_are_adopted_whose_tokens_are_the_services_or_the_operators(old: Database) -> None:
    before = [_read(old, key_id) for key_id in (_DERIVED, _LIMITED, _REVOKED, _FIRST)]
    with structlog.testing.capture_logs() as lines:
        adopt(old, SECRET, _BOOTSTRAP)
    assert _who(old, token_of(SECRET, _DERIVED)) == _DERIVED
    limited = authenticate(old, SECRET, token_of(SECRET, _LIMITED), _AT)
    assert limited is not None
    assert (limited.role, limited.accounts) == ("pipeline", frozenset({"people"}))
    assert _who(old, token_of(SECRET, _REVOKED)) is None
    assert _who(old, _BOOTSTRAP) == "first-steward"
    assert _who(old, "chosen by whoever wrote the database") is None
    for record in before:
        assert _read(old, record.id) == replace(record, sealed=True)
    told = {line["key"]: (line["event"].split(";")[0], line["role"]) for line in lines if "key" in line}
    assert [line["answers"] for line in lines if "key" not in line] == [120]
    left = ("key without a seal", "steward")
    assert told == {
        _DERIVED: ("key adopted", "steward"),
        _LIMITED: ("key adopted", "pipeline"),
        _REVOKED: ("key adopted", "steward"),
        _FIRST: ("key adopted", "steward"),
        _PLANTED: left,
    }
    assert "chosen" not in str(lines)
    assert _BOOTSTRAP not in str(lines)
    kinds = {_PLANTED: "key_left"} | dict.fromkeys((_DERIVED, _LIMITED, _REVOKED, _FIRST), "key_adopted")
    assert {key_id: kind for kind, key_id in _events(old)[:-1]} == kinds
    assert _faults(old) == []
    adopt(old, SECRET, _BOOTSTRAP)
    assert len(_events(old)) == 6


def test_an_adopted_key_is_rotated_and_revoked_like_any(old: Database) -> None:
    adopt(old, SECRET, None)
    _, token = rotate(old, _DERIVED, _AT)
    assert _who(old, token) == _DERIVED
    revoke(old, _LIMITED, _LATER)
    assert _who(old, token_of(SECRET, _LIMITED)) is None
    assert _faults(old) == []


def test_the_operators_key_is_adopted_at_a_later_start(old: Database) -> None:
    adopt(old, SECRET, None)
    assert _who(old, _BOOTSTRAP) is None
    adopt(old, SECRET, _BOOTSTRAP)
    assert _who(old, _BOOTSTRAP) == "first-steward"
    assert ensure_first_key(old, SECRET, _BOOTSTRAP, None) is None
    assert _faults(old) == []


@pytest.mark.parametrize(
    "change",
    [
        "name = 'ann'",
        "role = 'auditor'",
        "created_at = '2026-01-01T00:00:00.000000Z'",
        "created_by = 'ann'",
        "id = 'another'",
    ],
)
def test_the_operators_key_is_adopted_later_only_as_it_was_found(old: Database, change: str) -> None:
    adopt(old, SECRET, None)
    run(old, f"UPDATE api_keys SET {change} WHERE id = :id", id=_FIRST)
    adopt(old, SECRET, _BOOTSTRAP)
    assert _who(old, _BOOTSTRAP) is None
    assert _faults(old) != []


def test_an_operators_key_that_was_revoked_is_not_made_valid_by_its_row(old: Database) -> None:
    run(old, "UPDATE api_keys SET revoked_at = :at WHERE id = :id", at=_AT, id=_FIRST)
    adopt(old, SECRET, None)
    run(old, "UPDATE api_keys SET revoked_at = NULL WHERE id = :id", id=_FIRST)
    adopt(old, SECRET, _BOOTSTRAP)
    assert _who(old, _BOOTSTRAP) is None


def test_after_the_first_start_nothing_else_is_adopted(old: Database) -> None:
    """Else whoever has a token, and writes the database, could make it a steward's without a seal."""
    adopt(old, SECRET, None)
    token = token_of(SECRET, _LIMITED)
    undone = "UPDATE api_keys SET role = 'steward', accounts = NULL, seal = NULL, token_hash = :hash WHERE id = :id"
    run(old, undone, hash=_sha256(token), id=_LIMITED)
    adopt(old, SECRET, None)
    assert _who(old, token) is None
    assert any(_LIMITED in fault for fault in _faults(old))


def test_a_new_installation_adopts_nothing(database: Database) -> None:
    adopt(database, SECRET, None)
    ensure_first_key(database, SECRET, None, None)
    _old_key(database, _DERIVED, token_of(SECRET, _DERIVED))
    adopt(database, SECRET, None)
    assert _who(database, token_of(SECRET, _DERIVED)) is None
    assert _faults(database) == [f"api_keys: no entry made the key {_DERIVED} of {_DERIVED!r}"]


def test_the_operators_token_gets_no_second_life_where_all_rows_are_gone(database: Database) -> None:
    ensure_first_key(database, SECRET, _BOOTSTRAP, None)
    run(database, "DELETE FROM api_keys")
    assert ensure_first_key(database, SECRET, _BOOTSTRAP, None) is None
    assert _who(database, _BOOTSTRAP) is None
    assert [fault for fault in _faults(database) if "is missing" in fault]


def test_stored_answers_and_results_are_sealed_once(old: Database) -> None:
    adopt(old, SECRET, None)
    with old.read() as connection:
        answer = idempotency.find(connection, asking("ann", "k077", "digest"))
        assert answer is not None
        assert answer.body == '{"number":77}'
        assert jobs.checked(SECRET, jobs.read_job(connection, "succeeded")).result == {"found": 1}
        assert jobs.checked(SECRET, jobs.read_job(connection, "queued")).state == "queued"
        (said,) = (said for said in read(connection, SECRET) if said["kind"] == "rows_sealed")
    none = dict.fromkeys(("spending", "accounts", "releases", "holds", "draws", "partitions"), 0)
    assert said["content"] == {"answers": 120, "jobs": 1} | none

    run(old, "UPDATE stored_answers SET body = 'x', seal = NULL WHERE key = 'k077'")
    run(old, "UPDATE jobs SET result = '1', seal = NULL WHERE state = 'succeeded'")
    adopt(old, SECRET, None)
    assert sum(kind == "rows_sealed" for kind, _ in _events(old)) == 1
    with old.read() as connection:
        with pytest.raises(Conflict, match="was changed and is not repeated"):
            idempotency.find(connection, asking("ann", "k077", "digest"))
        shown = jobs.checked(SECRET, jobs.read_job(connection, "succeeded"))
    assert (shown.state, shown.result) == ("failed", None)


@pytest.mark.parametrize("begun", [False, True])
def test_accounts_and_holds_of_a_version_without_their_seals_are_sealed_once(database: Database, begun: bool) -> None:
    """The version before sealed what it knew of, and noted that, or there was nothing to note it."""
    names = [f"account {number}" for number in range(120)]
    for name in names:
        open_account(database, name)
    ids = reserve(database, *[_PLAN] * 60, name=names[0])
    marked = BEFORE_FIRST
    if begun:
        said: dict[str, object] = {"answers": 0, "jobs": 0}
        marked = database.write(
            lambda connection: append(connection, SECRET, "rows_sealed", said, actor=None, at=_AT), is_committed=never
        )
    unseal(database)
    migrate_unsealed(database)
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        account_of(database, names[7])
    with database.read() as connection:
        assert verify(connection, names[7]).first_bad == BadEntry(
            1, "its row has no seal; the first start of a server after an upgrade seals old rows"
        )
    adopt(database, SECRET, None, marked=marked)
    for name in names:
        account_of(database, name)
    for name in (names[0], names[7], names[99], names[100], names[-1]):  # a hundred are sealed at a time
        entries_of(database, name)
    assert void(database, ids[7], names[0]).state == "voided"
    with database.read() as connection:
        contents = [said["content"] for said in read(connection, SECRET) if said["kind"] == "rows_sealed"]
    numbers = {"spending": 120, "accounts": 120, "releases": 60, "holds": 60, "draws": 0, "partitions": 0}
    assert contents == ([{"answers": 0, "jobs": 0}, numbers] if begun else [{"answers": 0, "jobs": 0} | numbers])

    unseal(database)
    adopt(database, SECRET, None, marked=marked)
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        account_of(database, names[7])


def test_draws_of_a_version_without_their_seals_are_sealed_once_as_their_entries_say(database: Database) -> None:
    open_account(database)
    plan = {"type": "choice", "parts": [_PLAN | {"partitions": 9}]}
    (release,), (level,) = register(database, "people", plan), register(database, "people", LEVEL)
    for partition in ("p", "q"):
        draw(database, "people", release, plan, partition=partition)
    tabulate(database, "people", level, ["1", "2"], "12")
    unseal(database)
    migrate_unsealed(database)

    def read_all() -> list[str]:
        with database.read() as connection:
            account = accounts.read_account(connection, "people")
            pages = ((of, mechanisms_in(connection, of)) for of in (release, level))
            found = [stored_draws.list_draws(connection, account, of, 0, 10, 10**6, named) for of, named in pages]
            partitions.drawn_for(connection, [release, level])
        return [one.turn.partition for page in found for one in page]

    with pytest.raises(Unavailable, match="not as the service wrote it"):
        read_all()
    columns = "release_id, mechanism, 'r', repetition, account_id, seq, size, noisy, noisy_hash, created_at"
    run(
        database,
        "INSERT INTO draws (id, release_id, mechanism, partition, repetition, account_id, seq, size, noisy, noisy_hash,"
        f" created_at) SELECT 'another', {columns} FROM draws WHERE partition = 'p'",
    )
    adopt(database, SECRET, None)
    with database.read() as connection:
        account = accounts.read_account(connection, "people")
        with pytest.raises(Unavailable, match="not as the service wrote it"):
            stored_draws.read_draw(connection, account, "another", {})
        assert connection.execute(text("SELECT count(*) FROM draws WHERE seal IS NULL")).scalar_one() == 1
    drop = {"sqlite": "DROP TRIGGER draws_no_delete", "postgresql": "DROP TRIGGER draws_stay ON draws"}
    run(database, drop[database.kind])
    run(database, "DELETE FROM draws WHERE id = 'another'")
    assert read_all()[:2] == ["p", "q"]
    draw(database, "people", release, plan, partition="r")
    entries_of(database)

    unseal(database)
    adopt(database, SECRET, None)
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        read_all()


def _attack(database: Database, statement: str) -> None:
    """Somebody with the database's files takes the triggers away first."""
    for trigger in ("fixed", "no_delete") if database.kind == "sqlite" else ("stay",):
        on = "" if database.kind == "sqlite" else " ON installation_journal"
        run(database, f"DROP TRIGGER installation_journal_{trigger}{on}")
    run(database, statement)


_HIDDEN = (
    "UPDATE installation_journal SET kind = 'x' WHERE kind = 'rows_sealed'",
    "UPDATE installation_journal SET body = '{}' WHERE kind = 'rows_sealed'",
    "UPDATE installation_journal SET seal = 'é' WHERE kind = 'rows_sealed'",
    "DELETE FROM installation_journal WHERE seq = 1",
)


@pytest.mark.parametrize("hide", _HIDDEN)
def test_nothing_is_sealed_again_where_the_entry_that_tells_of_it_was_changed(old: Database, hide: str) -> None:
    adopt(old, SECRET, None)
    run(old, "UPDATE stored_answers SET body = 'x', seal = NULL WHERE key = 'k077'")
    run(old, "UPDATE jobs SET result = '1', seal = NULL WHERE state = 'succeeded'")
    _attack(old, hide)
    with pytest.raises(StartupRefused, match="restore the newest sound copy"):
        adopt(old, SECRET, None)
    with old.read() as connection:
        assert _altered_answers(connection) == ["ann"]
        assert list(jobs.altered(connection, SECRET)) == ["succeeded"]


def test_an_entry_that_somebody_wrote_hides_nothing(old: Database) -> None:
    """Else a first start could be kept from sealing."""
    _insert(old, "installation_journal", seq=1, kind="rows_sealed", body="{}", hash="00" * 32, seal="00" * 32)
    with pytest.raises(StartupRefused, match="entry 1"):
        adopt(old, SECRET, None)


def test_nothing_is_sealed_where_the_high_water_mark_knows_an_entry(old: Database) -> None:
    """A copy from before the upgrade, which an operator accepted."""
    said: dict[str, object] = {"reason": "restored"}
    marked = old.write(
        lambda connection: append(connection, SECRET, "mark_acknowledged", said, actor=None, at=_AT),
        is_committed=never,
    )
    with pytest.raises(StartupRefused, match="entry 2: the entry is missing"):
        adopt(old, SECRET, None, marked=Head(2, "00" * 32))
    adopt(old, SECRET, None, marked=marked)
    assert _who(old, token_of(SECRET, _DERIVED)) is None
    with old.read() as connection:
        assert len(_altered_answers(connection)) == 120
        assert list(jobs.altered(connection, SECRET)) == ["succeeded"]
    assert {kind for kind, _ in _events(old)} == {"key_left", "mark_acknowledged", "rows_sealed"}
    adopt(old, SECRET, _BOOTSTRAP, marked=marked)
    assert _who(old, token_of(SECRET, _DERIVED)) is None
    assert _who(old, _BOOTSTRAP) == "first-steward", "the operator's own, which the journal has as it is"


@pytest.mark.parametrize("marked", [False, True])
def test_nothing_is_adopted_that_came_after_the_migration(database: Database, marked: bool) -> None:
    """The attack: rows are put into a new database, bound to the secret, before its first start."""
    open_account(database)
    reserve(database, _PLAN)
    unseal(database)
    for key, token in ((_DERIVED, token_of(SECRET, _DERIVED)), (_FIRST, _BOOTSTRAP)):
        _old_key(database, key, token, name="first-steward")
    said: dict[str, object] = {"reason": "begun anew"}
    head = BEFORE_FIRST
    if marked:
        head = database.write(
            lambda connection: append(connection, SECRET, "mark_acknowledged", said, actor=None, at=_AT),
            is_committed=never,
        )
    for _ in range(2):
        adopt(database, SECRET, _BOOTSTRAP, marked=head)
        assert (_who(database, token_of(SECRET, _DERIVED)), _who(database, _BOOTSTRAP)) == (None, None)
        with pytest.raises(Unavailable, match="not as the service wrote it"):
            account_of(database)
    assert [kind for kind, _ in _events(database)] == ["mark_acknowledged"] * marked + ["rows_sealed"]
    with database.read() as connection:
        (sealed,) = (said["content"] for said in read(connection, SECRET) if said["kind"] == "rows_sealed")
    assert sealed == dict.fromkeys(SEALED_ROWS, 0)


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO older_rows VALUES ('draws')",
        "INSERT INTO older_rows VALUES ('accounts')",
        "UPDATE older_rows SET table_name = 'draws' WHERE table_name = 'jobs'",
        "DELETE FROM older_rows",
    ],
)
def test_what_the_migration_found_is_neither_changed_nor_added_to(old: Database, change: str) -> None:
    with old.read() as connection:
        before = older_tables(connection)
    assert before == {"api_keys", "jobs", "stored_answers"}
    for statement in (change, change.replace("INSERT", "INSERT OR REPLACE") if old.kind == "sqlite" else change):
        with pytest.raises(Altered):
            run(old, statement)
    with old.read() as connection:
        assert older_tables(connection) == before


def test_a_restored_copy_of_an_older_version_is_adopted_where_the_operator_says_so(old: Database) -> None:
    said: dict[str, object] = {"reason": "restored", "adopt": True}
    marked = old.write(
        lambda connection: append(connection, SECRET, "mark_acknowledged", said, actor=None, at=_AT),
        is_committed=never,
    )
    adopt(old, SECRET, None, marked=marked)
    assert _who(old, token_of(SECRET, _DERIVED)) == _DERIVED
    with old.read() as connection:
        assert _altered_answers(connection) == []
    run(old, "UPDATE stored_answers SET body = 'x', seal = NULL WHERE key = 'k077'")
    adopt(old, SECRET, None, marked=marked)
    with old.read() as connection:
        assert _altered_answers(connection) == ["ann"], "once"


def _altered_answers(connection: Connection) -> list[str]:
    """Return the principal of each stored answer that is not as the service wrote it."""
    return [principal for principal, answer in idempotency.stored_answers(connection, SECRET) if answer is None]


def test_keys_are_adopted_after_a_command_made_one(old: Database) -> None:
    """Commands adopt nothing, so that one may come between the upgrade and the first start."""
    _make(old)
    adopt(old, SECRET, None)
    assert _who(old, token_of(SECRET, _DERIVED)) == _DERIVED
    assert _faults(old) == []


def test_no_first_key_is_made_where_the_journal_is_not_sound(database: Database) -> None:
    ensure_first_key(database, SECRET, _BOOTSTRAP, None)
    run(database, "DELETE FROM api_keys")
    _attack(database, "UPDATE installation_journal SET kind = 'x'")
    with pytest.raises(StartupRefused, match="not as this service wrote it"):
        ensure_first_key(database, SECRET, _BOOTSTRAP, None)
    assert _who(database, _BOOTSTRAP) is None


# What somebody with the database's files does to an installation that has seals


def _make(database: Database, name: str = "ann", role: Role = "auditor") -> tuple[KeyRecord, str]:
    return make_key(database, name, role, ["people"], expires_at=_LATER, at=_AT)


def _code(token: str, secret: Secret) -> str:
    return secret.hmac("api-key-token", token.encode()).hex()


_FORGED = Secret(bytes(32))
_MINTED: dict[str, Callable[[str], dict[str, Any]]] = {
    "the SHA-256 of a token": lambda token: {"token_hash": _sha256(token)},
    "a code under another secret": lambda token: {"token_hash": _code(token, _FORGED), "seal": "00" * 32},
    "the right code, which nobody without the secret knows": lambda token: {"token_hash": _code(token, SECRET)},
    "the right code and a seal": lambda token: {"token_hash": _code(token, SECRET), "seal": "ab" * 32},
}


@pytest.mark.parametrize("how", _MINTED)
def test_a_row_that_somebody_inserted_is_nobody(database: Database, how: str) -> None:
    _make(database)
    token = "chosen by whoever writes the database"
    _insert(database, "api_keys", id="minted", name="m", role="steward", created_at=_AT, **_MINTED[how](token))
    assert _who(database, token) is None
    assert _faults(database) == ["api_keys: no entry made the key minted of 'm'"]


@pytest.mark.parametrize(
    "change",
    [
        "role = 'steward'",
        "name = 'bob'",
        "accounts = NULL",
        "accounts = '[]'",
        "accounts = 'x'",
        "expires_at = NULL",
        "expires_at = '2036-01-01T00:00:00.000000Z'",
        "created_by = 'bob'",
        "created_at = '2025-01-01T00:00:00.000000Z'",
        "rotated_from = id",
        "seal = NULL",
        "seal = ''",
        "seal = 'é'",
        "id = 'another'",
    ],
)
def test_a_row_that_somebody_changed_is_nobody(database: Database, change: str) -> None:
    record, token = _make(database)
    assert _who(database, token) == "ann"
    run(database, f"UPDATE api_keys SET {change}")
    with structlog.testing.capture_logs() as lines:
        assert _who(database, token) is None
    assert [line["event"] for line in lines] == ["the row of a key is not as this service wrote it"]
    assert token not in str(lines)
    assert any(record.id in fault for fault in _faults(database))


def test_a_token_is_not_moved_to_another_row(database: Database) -> None:
    _, mine = _make(database)
    steward, theirs = _make(database, "steward", "steward")
    run(database, "UPDATE api_keys SET token_hash = 'x' WHERE role = 'auditor'")
    run(database, "UPDATE api_keys SET token_hash = :code WHERE id = :id", code=_code(mine, SECRET), id=steward.id)
    assert _who(database, mine) is None
    assert _who(database, theirs) is None


def test_a_changed_row_is_not_made_right_by_what_is_done_with_it(database: Database) -> None:
    record, token = _make(database)
    run(database, "UPDATE api_keys SET role = 'steward'")
    with pytest.raises(Conflict, match="not as this service wrote it"):
        rotate(database, record.id, _AT)
    revoke(database, record.id, _AT)
    run(database, "UPDATE api_keys SET revoked_at = NULL")
    assert _who(database, token) is None


def test_a_revoked_key_whose_row_is_restored_is_found(database: Database) -> None:
    """The old row has its old seal; only the journal knows better."""
    record, _ = _make(database)
    with database.read() as connection:
        old = dict(connection.execute(text("SELECT * FROM api_keys")).one()._mapping)
    revoke(database, record.id, _AT)
    assert _faults(database) == []
    run(database, "DELETE FROM api_keys")
    _insert(database, "api_keys", **old)
    assert _faults(database) == [f"api_keys: revoked_at of {record.id} of 'ann' does not follow from the journal"]
    run(database, "DELETE FROM api_keys")
    assert _faults(database) == [f"api_keys: the key {record.id} of 'ann' is missing"]


def test_a_minted_row_that_is_revoked_leaves_the_journal_sound(database: Database) -> None:
    _insert(database, "api_keys", id="minted", name="m", role="steward", created_at=_AT, token_hash="x")
    revoke(database, "minted", _AT)
    assert _faults(database) == ["api_keys: no entry made the key minted of 'm'"]


@pytest.mark.parametrize(
    "change",
    [
        "body = '{}'",
        "status = 200",
        "request_digest = 'another'",
        "request_digest = 'é'",
        "principal = 'bob'",
        "key = 'another'",
        "seal = NULL",
        "created_at = ''",
    ],
)
def test_an_answer_that_somebody_changed_is_not_given_again(database: Database, change: str) -> None:
    asked = asking("ann", "k", "digest")
    database.write(
        lambda connection: idempotency.store(connection, asked, Answer(201, '{"a":1}'), _AT), is_committed=never
    )
    run(database, f"UPDATE stored_answers SET {change}")
    moved = {"principal": asking("bob", "k", "digest"), "key": asking("ann", "another", "digest")}
    again = moved.get(change.split(maxsplit=1)[0], asked)
    if change.startswith("request_digest"):
        again = asking("ann", "k", "another")
    with database.read() as connection, pytest.raises(Conflict, match="was changed and is not repeated"):
        idempotency.find(connection, again)
    assert _faults(database) == [f"stored_answers: 1 of {again.principal!r} not as stored"]


@pytest.mark.parametrize(
    "change", ["""result = '{"a": 2}'""", "parameters = '{}'", "principal = 'bob'", "seal = NULL", "result = NULL"]
)
def test_a_result_that_somebody_changed_is_no_result(database: Database, change: str) -> None:
    job_id = carry_out(database, jobs.submit(asking("ann"), {"number": 1})).id
    job = jobs.take(database, "w")
    assert job is not None
    assert jobs.finish(database, SECRET, job, "w", {"a": 1.5})
    assert _faults(database) == []
    run(database, f"UPDATE jobs SET {change}")
    with database.read() as connection:
        shown = jobs.checked(SECRET, jobs.read_job(connection, job_id))
    assert (shown.state, shown.result) == ("failed", None)
    assert _faults(database) == [f"jobs: job {job_id} is not as the service wrote it"]


def test_another_installation_is_found(database: Database) -> None:
    assert _faults(database) == []
    run(database, "INSERT INTO installation SELECT 2, secret_fingerprint, created_at FROM installation")
    assert _faults(database) == ["installation: expected one row, of id 1, with the fingerprint of the secret"]


def test_keys_with_seals_are_not_taken_back(database: Database) -> None:
    _make(database)
    with pytest.raises(Conflict, match="sealed with the secret"):
        downgrade(database, "0009")


def test_rows_without_seals_in_a_new_ledger_are_nobodys(database: Database) -> None:
    """No older version was there: what somebody put in before the first server started is not adopted."""
    run(database, "DELETE FROM installation")
    check_secret(database, SECRET)
    open_account(database)
    unseal(database)
    job = {"id": "j", "principal": "eve", "parameters": "{}", "state": "succeeded", "result": "{}", "created_at": _AT}
    _insert(database, "jobs", permille=1000, attempts=1, **job)
    adopt(database, SECRET, None)
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        account_of(database)
    with database.read() as connection:
        assert list(jobs.altered(connection, SECRET)) == ["j"]


def test_rows_that_were_sealed_twice_are_named(old: Database) -> None:
    adopt(old, SECRET, None)
    again: dict[str, object] = {"accounts": 1}
    old.write(
        lambda connection: append(connection, SECRET, "rows_sealed", again, actor=None, at=_LATER), is_committed=never
    )
    assert _faults(old)[:1] == [
        f"installation_journal: entry {len(_events(old))} sealed rows that had been sealed before"
    ]
