"""Times of last use of keys: written at most once an hour for each key, and never moved back."""

import pytest
from sqlalchemy import Connection, Engine, event

from service.errors import Unavailable
from service.ledger.access.key_rows import read_key
from service.ledger.access.key_usage import KeyUsage
from service.ledger.access.keys import create_key
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from tests.ledger.writing import run


def _at(minutes: int) -> str:
    return f"2026-01-02T{minutes // 60:02}:{minutes % 60:02}:00.000000Z"


@pytest.fixture
def keys(database: Database, secret: Secret) -> list[str]:
    def make(connection: Connection) -> list[str]:
        new = {"role": "auditor", "accounts": None, "expires_at": None, "at": _at(0)}
        return [create_key(connection, secret, name=name, **new)[0].id for name in "ab"]  # type: ignore[arg-type]

    return database.write(make, is_committed=lambda *_: False)


def _last(database: Database, key: str) -> str | None:
    with database.read() as connection:
        return read_key(connection, key).last_used_at


def _updates(uses: KeyUsage) -> int:
    """Count the writing transactions that reading the notes takes."""
    seen: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        uses.write()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    return sum(statement.startswith("UPDATE") for statement in seen)


def test_a_use_is_written_once_an_hour(database: Database, keys: list[str]) -> None:
    uses, (key, other) = KeyUsage(database), keys
    assert _updates(uses) == 0
    uses.note(key, _at(1))
    uses.note(key, _at(2))
    assert _last(database, key) is None, "a request writes nothing"
    assert _updates(uses) == 1
    assert (_last(database, key), _last(database, other)) == (_at(2), None)
    uses.note(key, _at(61))
    assert _updates(uses) == 0, "it takes no lock where nothing is due"
    uses.note(other, _at(61))
    assert uses.write() == 1
    assert (_last(database, key), _last(database, other)) == (_at(2), _at(61))
    uses.note(key, _at(62))
    assert uses.write() == 1
    assert _last(database, key) == _at(62)


def test_two_servers_write_of_one_key_as_often_as_one(database: Database, keys: list[str]) -> None:
    one, two, key = KeyUsage(database), KeyUsage(database), keys[0]
    one.note(key, _at(90))
    two.note(key, _at(5))
    for server in (one, two):
        server.write()
    assert _last(database, key) == _at(90), "an earlier use does not put it back"
    two.note(key, _at(149))
    assert two.write() == 0
    two.note(key, _at(150))
    assert two.write() == 1
    assert _last(database, key) == _at(150)


def test_what_could_not_be_written_is_written_the_next_time(
    database: Database, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uses, key = KeyUsage(database), keys[0]

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("no disk")

    with monkeypatch.context() as broken:
        broken.setattr(database, "write", refuse)
        with uses.written():  # its end does not fail for that
            uses.note(key, _at(1))
        with pytest.raises(Unavailable):
            uses.write()
    with uses.written():
        pass
    assert _last(database, key) == _at(1)


def test_a_last_use_that_is_no_moment_keeps_none_of_another_key_from_being_written(
    database: Database, keys: list[str]
) -> None:
    uses, (key, other) = KeyUsage(database), keys
    run(database, "UPDATE api_keys SET last_used_at = 'never' WHERE id = :key", key=key)
    for one in keys:
        uses.note(one, _at(1))
    assert uses.write() == 2
    assert _last(database, other) == _at(1)


def test_what_is_known_to_be_written_is_not_read_again(database: Database, keys: list[str]) -> None:
    uses, key = KeyUsage(database), keys[0]
    uses.note(key, _at(1))
    assert uses.write() == 1
    uses.note(key, _at(2))
    database.close()
    assert uses.write() == 0, "nothing was due, so nothing was asked"
