"""One request, one effect, one answer: replays, conflicts, races."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from service.errors import BudgetExceeded, Conflict, IdempotencyConflict, LedgerRolledBack
from service.ledger.access.key_events import keys_of
from service.ledger.access.key_records import KeyRecord
from service.ledger.access.keys import create_key, list_keys
from service.ledger.idempotent_write import Operation, Outcome, idempotent_write
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.journal.journal import ExpectedHead, Head, has_entry
from service.ledger.releases import charges
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer, Request
from service.ledger.storage.secret import Secret
from tests.ledger.charging import SECRET, account_of, asking, charge, entries_of, open_account, prepared
from tests.ledger.writing import never

_REQUEST = asking("ann", "k", "digest")
_HALF = {"type": "gaussian", "rho": "0.5"}
Work = Callable[[Connection, str], KeyRecord]


@pytest.fixture
def work(secret: Secret) -> Work:
    """An effect that nothing but ``idempotent_write`` keeps from happening twice."""

    def make_key(connection: Connection, at: str) -> KeyRecord:
        made = create_key(connection, secret, name="bob", role="auditor", accounts=None, expires_at=None, at=at)
        return made[0]

    return make_key


def _once(database: Database, request: Request, work: Work) -> Answer:
    done = idempotent_write(database, request, Operation(work, never), lambda record: Answer(201, f'"{record.id}"'))
    return done.answer


def _made(database: Database) -> list[str]:
    with database.read() as connection:
        records = list_keys(connection, SECRET, None, 100, known=keys_of(connection, SECRET))
        return [f'"{record.id}"' for record in records]


def test_an_effect_happens_once_for_its_key(database: Database, work: Work) -> None:
    first = _once(database, _REQUEST, work)
    assert first == Answer(201, _made(database)[0], replayed=False)
    assert _once(database, _REQUEST, work) == Answer(201, first.body, replayed=True)
    assert _made(database) == [first.body]


def test_without_a_key_it_happens_every_time(database: Database, work: Work) -> None:
    answers = [_once(database, asking("ann", None, "digest"), work) for _ in range(3)]
    assert [answer.body for answer in answers] == _made(database)
    assert not any(answer.replayed for answer in answers)


def test_another_request_with_the_same_key_does_nothing(database: Database, work: Work) -> None:
    _once(database, _REQUEST, work)
    with pytest.raises(IdempotencyConflict):
        _once(database, asking("ann", "k", "other digest"), work)
    assert len(_made(database)) == 1


def test_a_refusal_undoes_the_effect_and_is_forgotten(database: Database, work: Work) -> None:
    def refuse(connection: Connection, at: str) -> KeyRecord:
        work(connection, at)
        raise Conflict("not now")

    for _ in range(2):
        with pytest.raises(Conflict):
            _once(database, _REQUEST, refuse)
    assert _made(database) == []
    assert not _once(database, _REQUEST, work).replayed


def test_an_answer_without_a_body_refers_to_its_result(database: Database, work: Work) -> None:
    operation = Operation(work, never)

    def answer(record: KeyRecord) -> Answer:
        return Answer(201, api_key_id=record.id)

    first, again = (idempotent_write(database, _REQUEST, operation, answer) for _ in range(2))
    assert first.result is not None
    assert first.answer == answer(first.result)
    assert again == Outcome(replace(first.answer, replayed=True), None)
    assert _made(database) == [f'"{first.result.id}"']
    with database.read() as connection:
        assert connection.execute(text("SELECT body FROM stored_answers")).scalar_one() is None


def test_of_two_at_one_moment_one_runs_and_the_other_is_told_its_answer(database: Database, work: Work) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: _once(database, _REQUEST, work), range(8)))
    assert len({answer.body for answer in answers}) == 1
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 7
    assert len(_made(database)) == 1


def test_who_is_refused_by_what_the_first_one_did_is_told_its_success(database: Database) -> None:
    """Both found no answer and room for one; the second waits for the first one's lock, and finds no room."""
    open_account(database)
    charge(database, _HALF)
    request = asking("ann", "k", "digest")
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda _: charge(database, _HALF, request=request), range(8)))
    assert sum(bool(registered) for registered in outcomes) == 1  # only who ran has something to render
    assert len(entries_of(database)) == 3
    with pytest.raises(BudgetExceeded):
        charge(database, _HALF, request=asking("ann", "l", "digest"))


def test_an_entry_is_known_by_its_number_and_hash(database: Database) -> None:
    account = open_account(database)
    other = open_account(database, "others")
    assert clock.is_stamp(account.created_at)
    with database.read() as connection:
        assert has_entry(connection, account.id, account.head)
        assert not has_entry(connection, account.id, other.head)
        assert not has_entry(connection, other.id, account.head)
    charge(database, _HALF)
    with database.read() as connection:
        assert has_entry(connection, account.id, account.head)
        assert not has_entry(connection, other.id, account_of(database).head)


def test_a_ledger_without_an_entry_that_was_seen_is_not_written(database: Database) -> None:
    """The look before the transaction may have asked another server, before a failover."""
    head = open_account(database).head
    seen, gone = (asking("ann", None, "", ExpectedHead("people", Head(seq, head.hash))) for seq in (1, 2))
    with pytest.raises(LedgerRolledBack) as refused:
        charge(database, _HALF, request=gone)
    assert refused.value.account == "people"
    assert len(entries_of(database)) == 1, "not even the refusal is noted"
    charge(database, _HALF, request=seen)
    assert len(entries_of(database)) == 2


def test_what_is_answered_again_is_marked(database: Database, replica: Database, tmp_path: Path) -> None:
    """The process that committed it was killed, or never learnt that it did; the repeated answer must not be lost."""
    open_account(database)
    file = HighWaterFile(tmp_path / "mark", SECRET)
    keeper = MarkKeeper(replica, file)
    keeper.advance(everything=True)
    request = replace(asking("ann", "k", "digest"), account="people")
    act = charges.register(request, prepared(database, _HALF))
    first = idempotent_write(database, request, act, lambda _: Answer(201, "1")).answer
    again = idempotent_write(replica, request, act, lambda _: Answer(201, "2")).answer
    assert again == replace(first, replayed=True)
    keeper.advance()
    assert file.marked(["people"]) == {"people": account_of(database).head}
