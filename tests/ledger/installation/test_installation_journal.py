"""The installation's journal: whoever writes the database can neither add an entry to it nor change one."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from sqlalchemy import inspect, text

from service.errors import Altered, Conflict, Unavailable
from service.ledger.installation import installation_journal
from service.ledger.installation.binding import check_secret
from service.ledger.installation.installation_journal import Kind, append, has_entry, head, read
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import BEFORE_FIRST, Actor, Head
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.group_commit import INSTALLATION
from service.ledger.storage.migrate import downgrade, is_migrated, migrate
from service.ledger.storage.newest_heads import KnownHead, NewestHeads
from service.ledger.storage.secret import Secret
from tests.ledger.writing import never, run

AT = "2026-01-02T00:00:00.000000Z"
ANN = Actor("ann", "key-of-ann")
_TRIGGERS = {
    "sqlite": tuple(f"DROP TRIGGER {{table}}_{name}" for name in ("fixed", "no_delete", "no_replace")),
    "postgresql": ("DROP TRIGGER {table}_stay ON {table}",),
}


def _append(
    database: Database, secret: Secret, kind: Kind = "key_made", actor: Actor | None = ANN, **said: Any
) -> Head:
    return database.write(
        lambda connection: append(connection, secret, kind, said, actor=actor, at=AT), is_committed=never
    )


def _read(database: Database, secret: Secret) -> list[dict[str, Any]]:
    with database.read() as connection:
        return list(read(connection, secret))


def _attack(database: Database, *statements: str) -> None:
    """Somebody with the database's files takes the triggers away first."""
    every = (*_TRIGGERS[database.kind], *statements)
    run(database, *(statement.format(table="installation_journal") for statement in every))


def test_entries_say_what_happened_by_whom_and_when(database: Database, secret: Secret) -> None:
    with database.read() as connection:
        assert head(connection) == BEFORE_FIRST
    heads = [
        _append(database, secret, "key_made", id="a", name="Jürgen"),
        _append(database, secret, "key_rotated", None, id="b"),
        _append(database, secret, "key_revoked", Actor("oidc:bob"), id="c"),
    ]
    made, rotated, revoked = _read(database, secret)
    by_ann = {"actor": "ann", "key": "key-of-ann", "time": AT}
    assert made == {"seq": 1, "kind": "key_made", "content": {"id": "a", "name": "Jürgen"}} | by_ann
    assert rotated == {"seq": 2, "kind": "key_rotated", "content": {"id": "b"}, "actor": None, "time": AT}
    assert revoked == {"seq": 3, "kind": "key_revoked", "content": {"id": "c"}, "actor": "oidc:bob", "time": AT}
    with database.read() as connection:
        assert head(connection) == heads[-1]
        assert all(has_entry(connection, entry) for entry in (BEFORE_FIRST, *heads))
        assert not has_entry(connection, Head(2, heads[0].hash))
        assert not has_entry(connection, Head(4, heads[2].hash))


def test_the_chain_is_that_of_the_accounts_journals(database: Database, secret: Secret) -> None:
    made = [_append(database, secret, number=number) for number in range(3)]
    previous = bytes(32)
    with database.read() as connection:
        for row in connection.execute(text("SELECT seq, body, hash FROM installation_journal ORDER BY seq")):
            previous = hashlib.sha256(previous + row.body.encode()).digest()
            assert Head(row.seq, row.hash) == made[row.seq - 1] == Head(row.seq, previous.hex())


def test_reading_goes_beyond_one_batch(database: Database, secret: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation_journal, "_AT_ONCE", 2)
    for number in range(5):
        _append(database, secret, number=number)
    assert [said["content"]["number"] for said in _read(database, secret)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("statements", "bad", "why"),
    [
        (["UPDATE {table} SET body = replace(body, 'ann', 'bob') WHERE seq = 2"], 2, "the hash is not"),
        (["UPDATE {table} SET kind = 'key_revoked' WHERE seq = 2"], 2, "filed under another"),
        (["UPDATE {table} SET seal = 'é' WHERE seq = 2"], 2, "not written"),
        (
            ["UPDATE {table} SET seal = (SELECT seal FROM {table} WHERE seq = 1) WHERE seq = 2"],
            2,
            "without|not written",
        ),
        (["UPDATE {table} SET seq = 7 WHERE seq = 3"], 3, "missing"),
        (["DELETE FROM {table} WHERE seq = 1"], 1, "missing"),
        (["DELETE FROM {table} WHERE seq = 2"], 2, "missing"),
    ],
)
def test_an_entry_that_was_changed_is_found(
    database: Database, secret: Secret, statements: list[str], bad: int, why: str
) -> None:
    for number in range(3):
        _append(database, secret, number=number)
    _attack(database, *statements)
    with database.read() as connection, pytest.raises(BrokenChain, match=rf"entry {bad}: .*({why})"):
        list(islice(read(connection, secret), 3))


@pytest.mark.parametrize("forger", [None, Secret(bytes(32))])
def test_an_entry_of_somebody_without_the_secret_is_found_although_its_hash_is_right(
    database: Database, secret: Secret, forger: Secret | None
) -> None:
    """Without one they copy a seal; with one of their own they make the whole entry as the service does."""
    first = _append(database, secret)
    if forger is None:
        _append(database, secret)
        body = '{"actor":null,"content":{},"kind":"key_made","seq":2,"time":"2027"}'
        right = hashlib.sha256(bytes.fromhex(first.hash) + body.encode()).hexdigest()
        quoted = body.replace("{", "{{").replace("}", "}}")
        _attack(database, f"UPDATE {{table}} SET body = '{quoted}', hash = '{right}' WHERE seq = 2".replace(":", "\\:"))
    else:
        body = '{"actor":null,"content":{},"kind":"key_made","seq":2,"time":"2027"}'
        right = hashlib.sha256(bytes.fromhex(first.hash) + body.encode()).hexdigest()
        row = {"body": body, "hash": right, "seal": forger.seal("installation-journal", 2, right)}
        add = text("INSERT INTO installation_journal VALUES (2, 'key_made', :body, :hash, :seal)")
        database.write(lambda connection: connection.execute(add, row), is_committed=never)
    with database.read() as connection, pytest.raises(BrokenChain, match="entry 2: the entry was not written with"):
        list(read(connection, secret))


def test_a_longer_version_without_the_known_entry_stops_a_start(database: Database, secret: Secret) -> None:
    """It is sealed throughout: a server that was killed wrote it."""
    for _ in range(3):
        _append(database, secret, id="a")
    database.newest = NewestHeads()
    database.newest.add([KnownHead(INSTALLATION, 2, "0" * 64)])
    with pytest.raises(Unavailable, match="the ledger lacks an entry that was committed"):
        installation_journal.follow(database, secret)
    assert database.stopped is not None


def test_two_replicas_that_append_at_once_write_one_chain(database_url: str, secret: Secret) -> None:
    replicas = [open_database(database_url) for _ in range(4)]
    check_secret(replicas[0], secret)

    def write(replica: Database) -> list[Head]:
        return [_append(replica, secret, number=number) for number in range(10)]

    with ThreadPoolExecutor(len(replicas)) as threads:
        heads = [head for found in threads.map(write, replicas) for head in found]
    assert sorted(head.seq for head in heads) == list(range(2, 42))  # after what the binding wrote
    assert len(_read(replicas[0], secret)) == 41
    for replica in replicas:
        replica.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE installation_journal SET kind = kind",
        "UPDATE installation_journal SET seal = ''",
        "DELETE FROM installation_journal",
        "{replace}",
    ],
)
def test_the_database_itself_refuses_changes(database: Database, secret: Secret, statement: str) -> None:
    _append(database, secret)
    before = _read(database, secret)
    replace = {
        "sqlite": "INSERT OR REPLACE INTO installation_journal SELECT * FROM installation_journal",
        "postgresql": "TRUNCATE installation_journal",
    }[database.kind]
    with pytest.raises(Altered):
        database.write(
            lambda connection: connection.execute(text(statement.format(replace=replace))), is_committed=never
        )
    assert _read(database, secret) == before


def test_a_journal_with_entries_is_not_taken_back(database: Database, secret: Secret) -> None:
    downgrade(database, "0008")
    with database.read() as connection:
        assert not inspect(connection).has_table("installation_journal")
    migrate(database)
    _append(database, secret)
    with pytest.raises(Conflict, match="installation's journal"):
        downgrade(database, "0008")
    assert is_migrated(database)
    assert len(_read(database, secret)) == 1
