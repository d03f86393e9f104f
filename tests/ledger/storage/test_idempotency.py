"""The first answer comes again, and only to the same request of the same principal."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
from sqlalchemy import Connection

from service.errors import Conflict, IdempotencyConflict
from service.ledger.access.keys import create_key
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import (
    ANSWERS_TOO,
    Answer,
    Request,
    find,
    request_digest,
    store,
    stored_answers,
)
from service.ledger.storage.secret import Secret
from tests.ledger.charging import asking
from tests.ledger.writing import never

AT = "2026-01-02T03:04:05.678901Z"
REQUEST = asking("ann", "key-1", "digest-1")


def _store(database: Database, request: Request, body: str = '{"a":1}') -> None:
    database.write(lambda connection: store(connection, request, Answer(201, body), AT), is_committed=never)


def _find(database: Database, request: Request) -> Answer | None:
    with database.read() as connection:
        return find(connection, request)


def test_a_request_that_never_came_has_no_answer(database: Database) -> None:
    assert _find(database, REQUEST) is None


def test_the_first_answer_is_found_again(database: Database) -> None:
    _store(database, REQUEST)
    assert _find(database, REQUEST) == Answer(201, '{"a":1}', replayed=True)


def test_the_same_key_with_another_request_is_a_conflict(database: Database) -> None:
    _store(database, REQUEST)
    with pytest.raises(IdempotencyConflict):
        _find(database, asking("ann", "key-1", "digest-2"))


@pytest.mark.parametrize("other", [asking("bob", "key-1", "digest-2"), asking("ann", "key-2", "digest-2")])
def test_keys_belong_to_a_principal(database: Database, other: Request) -> None:
    _store(database, REQUEST)
    assert _find(database, other) is None


def test_without_a_key_nothing_is_stored_or_found(database: Database) -> None:
    for body in ("1", "2"):
        _store(database, asking("ann", None, "digest-1"), body)
    assert _find(database, asking("ann", None, "digest-1")) is None


def test_an_answer_may_refer_to_what_it_is_rendered_from(database: Database, secret: Secret) -> None:
    def work(connection: Connection) -> str:
        record, _ = create_key(connection, secret, name="ann", role="auditor", accounts=None, expires_at=None, at=AT)
        store(connection, REQUEST, Answer(201, api_key_id=record.id), AT)
        return record.id

    key_id = database.write(work, is_committed=never)
    assert _find(database, REQUEST) == Answer(201, api_key_id=key_id, replayed=True)


@pytest.mark.parametrize(
    ("version", "now", "found"),
    [
        ("", "", True),
        ("", "7", True),  # begun by a program that sealed no answers again
        ("7", "7", True),
        ("", ANSWERS_TOO + "8", False),
        ("7", ANSWERS_TOO + "8", False),
        (ANSWERS_TOO + "8", ANSWERS_TOO + "8", True),
        (ANSWERS_TOO + "8", ANSWERS_TOO + "9", False),
    ],
)
def test_an_answer_belongs_to_its_version_of_the_ledger(
    database: Database, version: str, now: str, found: bool
) -> None:
    def of(version: str) -> Request:
        return replace(REQUEST, secret=replace(REQUEST.secret, version=version))

    _store(database, of(version))
    with nullcontext() if found else pytest.raises(Conflict, match="was changed and is not repeated"):
        assert _find(database, of(now)) is not None
    with database.read() as connection:
        assert [answer is not None for _, answer in stored_answers(connection, of(now).secret)] == [found]


def test_of_many_requests_with_one_key_at_once_one_is_answered_and_the_others_repeat_it(database: Database) -> None:
    def ask(number: int) -> str | None:
        def run(connection: Connection) -> str | None:
            found = find(connection, REQUEST)
            if found is not None:
                return found.body
            store(connection, REQUEST, Answer(201, str(number)), AT)
            return str(number)

        return database.write(run, is_committed=never)

    with ThreadPoolExecutor(12) as threads:
        answers = set(threads.map(ask, range(12)))
    stored = _find(database, REQUEST)
    assert stored is not None
    assert answers == {stored.body}


def test_the_digest_depends_on_everything_that_was_asked(secret: Secret) -> None:
    asked = [
        request_digest(secret, "POST", "/v1/a", b"{}"),
        request_digest(secret, "PATCH", "/v1/a", b"{}"),
        request_digest(secret, "POST", "/v1/a?dry_run=true", b"{}"),
        request_digest(secret, "POST", "/v1/a", b"{ }"),
        request_digest(secret, "POST", "/v1/a{", b"}"),
        request_digest(secret, "POST/v1/a", "", b"{}"),
        request_digest(Secret(bytes(32)), "POST", "/v1/a", b"{}"),
    ]
    assert len(set(asked)) == len(asked)
    assert request_digest(secret, "POST", "/v1/a", b"{}") == asked[0]
