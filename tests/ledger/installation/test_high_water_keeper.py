"""A server's high-water mark follows what it commits, and an older ledger under it is not written any more."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.errors import Altered, StartupRefused, Unavailable
from service.installation import writing
from service.ledger.accounts import accounts, lines
from service.ledger.installation import installation_journal
from service.ledger.installation.high_water import HighWaterFile, second_version
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.installation.installation_journal import Kind
from service.ledger.installation.mark_check import check_mark
from service.ledger.journal.journal import BEFORE_FIRST, Head, entry_hash
from service.ledger.storage import clock
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.group_commit import NewEntry
from service.ledger.storage.migrate import migrate
from service.ledger.storage.secret import Secret
from service.ledger.storage.transaction import note_entries
from service.settings import Settings
from tests.ledger.charging import account_of, charge, open_account, seal
from tests.ledger.writing import run, unprotected

_ADDED = """INSERT INTO journal (account_id, seq, kind, release_id, body, hash)
VALUES (:id, :seq, 'described', NULL, :body, :hash)"""
PLAN = {"type": "gaussian", "rho": "1/8"}


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test goes by the moments of these."""
    monkeypatch.setattr(clock, "_clock", clock._Clock())


def _marked(file: HighWaterFile) -> dict[str, Head]:
    mark = file.read()
    assert mark is not None
    return dict(mark.heads)


def _made(database: Database) -> NewEntry:
    account = account_of(database)
    return NewEntry(account.id, account.head.seq, account.head.hash, account.name)


def _roll_back(database: Database, seq: int) -> None:
    """Delete the last entries with what they wrote, and have the account's row fit."""
    with database.read() as connection:
        head = connection.execute(text("SELECT hash FROM journal WHERE seq = :seq"), {"seq": seq}).scalar_one()
    for table in ("journal", "releases"):
        unprotected(database, table, f"DELETE FROM {table} WHERE seq > {seq}")
    unprotected(database, "accounts", f"UPDATE accounts SET head_seq = {seq}, head_hash = '{head}', seal = NULL")
    seal(database)  # as it was in the older ledger


def test_it_follows_what_is_committed(database: Database, file: HighWaterFile, keeper: MarkKeeper) -> None:
    assert _marked(file)["people"] == account_of(database).head
    open_account(database, "places")
    charge(database, PLAN)
    assert _marked(file)["people"] != account_of(database).head
    keeper.advance()
    assert _marked(file) == {
        "": Head(0, "00" * 32),
        "people": account_of(database).head,
        "places": account_of(database, "places").head,
    }
    assert not database.has_committed()
    check_mark(database, file, check_file=False)


def test_it_is_written_within_a_second_and_once_more_at_the_end(database: Database, file: HighWaterFile) -> None:
    open_account(database)
    keeper = MarkKeeper(database, file)
    with keeper.keeping():
        charge(database, PLAN)
        deadline = time.monotonic() + 30
        while file.read() is None or _marked(file).get("people") != account_of(database).head:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        charge(database, PLAN)
    assert _marked(file)["people"] == account_of(database).head


def test_what_was_rolled_back_is_not_noted(database: Database) -> None:
    open_account(database)
    assert not database.has_committed(), "without a keeper nothing is remembered"
    database.remembers = True

    def work(connection: Connection) -> None:
        note_entries(connection, [NewEntry(1, 2, "hash")])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.write(work, is_committed=lambda *_: False)
    assert not database.has_committed()
    charge(database, PLAN)
    assert [entry[:4] for entry in database.take_committed()] == [_made(database)[:4]]


def test_what_could_not_be_written_is_written_later(
    database: Database, file: HighWaterFile, keeper: MarkKeeper
) -> None:
    charge(database, PLAN, PLAN)
    content = file.path.read_bytes()
    file.path.write_bytes(b"no database")
    with pytest.raises(StartupRefused):
        keeper.advance()
    committed = database.take_committed()
    assert (len(committed), committed[-1][:4]) == (2, _made(database)[:4])
    database.put_back_committed(committed)
    file.path.write_bytes(content)
    keeper.advance()
    assert _marked(file)["people"] == account_of(database).head


def test_an_older_ledger_is_refused_at_the_start(database: Database, file: HighWaterFile) -> None:
    open_account(database)
    for _ in range(3):
        charge(database, PLAN)
    MarkKeeper(database, file).advance(everything=True)
    _roll_back(database, 2)
    with pytest.raises(StartupRefused, match="the journal of 'people' ends with entry 2 and had 4") as refused:
        check_mark(database, file, check_file=False)
    assert "python -m service acknowledge --reason" in str(refused.value)
    assert "check that this is its address" not in str(refused.value)


def test_the_first_mark_knows_accounts_without_a_seal(database: Database, file: HighWaterFile) -> None:
    """The attack: a seal is taken away before the mark begins, so that later processes would not know the account."""
    open_account(database)
    charge(database, PLAN)
    run(database, "UPDATE accounts SET seal = 'x'")
    check_mark(database, file, check_file=False)
    MarkKeeper(database, file).advance(everything=True)
    assert _marked(file)["people"] == BEFORE_FIRST
    check_mark(database, file, check_file=False)
    with database.read() as connection, pytest.raises(Altered):
        accounts.list_accounts(connection, "", 10, accounts.Wanted())


def test_a_database_without_accounts_is_probably_another(
    database: Database, file: HighWaterFile, tmp_path: Path
) -> None:
    open_account(database)
    MarkKeeper(database, file).advance(everything=True)
    url = f"sqlite:///{tmp_path}/mistyped.db"
    migrate(url)
    other = open_database(url)
    other.secret = database.secret
    with pytest.raises(StartupRefused, match=r"mistyped\.db has no accounts at all: check that this is its address"):
        check_mark(other, file, check_file=False)
    other.close()


def test_an_older_ledger_with_new_entries_is_refused_too(
    database: Database, replica: Database, file: HighWaterFile
) -> None:
    open_account(database)
    for _ in range(3):
        charge(database, PLAN)
    MarkKeeper(database, file).advance(everything=True)
    _roll_back(database, 1)
    for _ in range(4):
        charge(replica, {"type": "gaussian", "rho": "1/16"})
    with pytest.raises(StartupRefused, match="the journal of 'people' does not continue from entry 4 that it had"):
        check_mark(database, file, check_file=False)


def test_a_ledger_that_becomes_older_under_a_server_is_not_written_any_more(
    database: Database, replica: Database, file: HighWaterFile
) -> None:
    open_account(database)
    for _ in range(3):
        charge(database, PLAN)
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    _roll_back(database, 1)
    charge(replica, PLAN)
    keeper.advance(everything=True)
    with pytest.raises(Unavailable, match="the ledger lacks entries"):
        charge(database, PLAN)
    assert _marked(file)["people"].seq == 4


@pytest.mark.parametrize("seq", [0, 1, 2])
def test_a_server_commits_no_number_twice(database: Database, replica: Database, seq: int) -> None:
    """Before anybody looks: a request that is asked again gets no fresh answer."""
    open_account(database)
    for _ in range(3):
        charge(database, PLAN)
    _roll_back(database, seq + 1)
    with pytest.raises(Unavailable, match="the ledger lacks"):
        charge(database, PLAN)
    assert account_of(replica).head.seq == seq + 1
    with pytest.raises(Unavailable, match="the ledger lacks"):
        charge(database, PLAN)


@pytest.mark.parametrize("further", [0, 5])
def test_a_journal_that_is_rewritten_between_two_looks_stops_the_server(
    database: Database, replica: Database, file: HighWaterFile, further: int
) -> None:
    """However far it comes: what was marked of it is gone."""
    open_account(database)
    for _ in range(3):
        charge(database, PLAN)
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    before = _marked(file)
    _roll_back(database, 1)
    for _ in range(3 + further):
        charge(replica, {"type": "gaussian", "rho": "1/32"})
    keeper.advance(everything=True)
    with pytest.raises(Unavailable, match="the ledger lacks entries"):
        charge(database, PLAN)
    assert _marked(file) == before


def test_the_installations_journal_cannot_be_rewritten_either(
    database: Database, replica: Database, file: HighWaterFile, secret: Secret
) -> None:
    def append(server: Database, kind: Kind) -> None:
        at = clock.now()
        server.write(
            lambda connection: installation_journal.append(connection, secret, kind, {}, actor=None, at=at),
            is_committed=lambda *_: False,
        )

    append(database, "key_made")
    append(database, "key_revoked")
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    unprotected(database, "installation_journal", "DELETE FROM installation_journal WHERE seq = 2")
    append(replica, "key_rotated")
    append(replica, "key_made")
    keeper.advance(everything=True)
    assert database.stopped is not None
    with pytest.raises(StartupRefused, match="the installation's journal does not continue from entry 2 that it had"):
        check_mark(database, file, check_file=False)


def test_entries_that_are_taken_back_between_two_looks_stop_the_server(
    database: Database, replica: Database, file: HighWaterFile, keeper: MarkKeeper
) -> None:
    """Others were committed in their place, by another server."""
    charge(database, PLAN)
    _roll_back(database, 1)
    charge(replica, PLAN)
    keeper.advance()
    with pytest.raises(Unavailable, match="the ledger lacks an entry that was just committed"):
        charge(database, PLAN)
    with pytest.raises(StartupRefused, match="the journal of 'people' does not continue from entry 2 that it had"):
        check_mark(database, file, check_file=False)


def test_an_entry_that_is_put_back_between_others_for_a_look_is_not_taken_for_them(
    database: Database, replica: Database, keeper: MarkKeeper
) -> None:
    """Every entry is looked for, and not only the last one of each transaction."""
    charge(database, PLAN, PLAN)
    last = account_of(database).head.hash
    _roll_back(database, 1)
    charge(replica, PLAN, PLAN)
    unprotected(database, "journal", f"UPDATE journal SET hash = '{last}' WHERE seq = 3")
    keeper.advance()
    assert database.stopped is not None


def test_entries_that_are_taken_back_during_a_look_stop_the_server(
    database: Database, file: HighWaterFile, monkeypatch: pytest.MonkeyPatch, keeper: MarkKeeper
) -> None:
    charge(database, PLAN)
    plain = HighWaterFile.marked

    def marked(self: HighWaterFile, journals: list[str]) -> dict[str, Head]:
        _roll_back(database, 1)
        return plain(self, journals)

    monkeypatch.setattr(HighWaterFile, "marked", marked)
    keeper.advance()
    assert database.stopped is not None
    with pytest.raises(StartupRefused, match="the journal of 'people' ends with entry 1 and had 2"):
        check_mark(database, file, check_file=False)


def test_an_account_that_is_gone_stops_the_server(database: Database, file: HighWaterFile) -> None:
    MarkKeeper(database, file).advance(everything=True)
    open_account(database)
    unprotected(database, "journal", "DELETE FROM journal")
    unprotected(database, "accounts", "DELETE FROM accounts")
    MarkKeeper(database, file).advance()
    assert database.stopped is not None
    with pytest.raises(StartupRefused, match="the journal of 'people' ends with entry 0 and had 1"):
        check_mark(database, file, check_file=False)


def test_an_entry_of_the_installations_journal_that_is_taken_back_stops_the_server(
    database: Database, file: HighWaterFile, secret: Secret
) -> None:
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    database.write(
        lambda connection: installation_journal.append(connection, secret, "key_made", {}, actor=None, at=clock.now()),
        is_committed=lambda *_: False,
    )
    unprotected(database, "installation_journal", "DELETE FROM installation_journal")
    keeper.advance()
    assert database.stopped is not None
    with pytest.raises(StartupRefused, match="the installation's journal ends with entry 0 and had 1"):
        check_mark(database, file, check_file=False)


@pytest.mark.parametrize("seq", [2**63 - 1, 2**53 + 1, 0, -1, 10])
def test_a_head_that_is_no_entry_is_not_marked_and_holds_up_no_other(
    database: Database, file: HighWaterFile, seq: int
) -> None:
    open_account(database)
    open_account(database, "places")
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    before = _marked(file)
    made = _made(database)
    charge(database, PLAN, name="places")
    unprotected(database, "accounts", f"UPDATE accounts SET head_seq = {seq} WHERE name = 'people'")
    database.put_back_committed([made])
    for everything in (False, True):
        keeper.advance(everything=everything)
        assert _marked(file) == before | {"places": account_of(database, "places").head}
    assert database.stopped is None, "what was marked is there"


@pytest.mark.parametrize("further", [1, 10**9])
def test_a_later_head_without_a_seal_is_not_marked_and_stops_only_its_account(
    database: Database, file: HighWaterFile, keeper: MarkKeeper, further: int
) -> None:
    """An attacker can add an entry that is hashed rightly, and a row that ends with it."""
    open_account(database, "places")
    keeper.advance(everything=True)
    before, account = _marked(file), account_of(database)
    seq, body = account.head.seq + further, '{"account":"people"}'
    values = {"id": account.id, "seq": seq, "body": body, "hash": entry_hash(account.head.hash, body)}
    unprotected(database, "journal", _ADDED, **values)
    unprotected(database, "accounts", "UPDATE accounts SET head_seq = :seq, head_hash = :hash WHERE id = :id", **values)
    charge(database, PLAN, name="places")
    for everything in (False, True):
        keeper.advance(everything=everything)
        assert _marked(file) == before | {"places": account_of(database, "places").head}
    assert database.stopped is None
    check_mark(database, file, check_file=False)
    unprotected(database, "journal", "DELETE FROM journal WHERE account_id = :id AND seq = :seq", **values)
    row = {"id": account.id, "seq": account.head.seq, "hash": account.head.hash}
    unprotected(database, "accounts", "UPDATE accounts SET head_seq = :seq, head_hash = :hash WHERE id = :id", **row)
    check_mark(database, file, check_file=False)
    charge(database, PLAN)


def test_a_row_that_shows_an_earlier_head_at_each_look_keeps_no_entry_from_being_marked(
    database: Database, file: HighWaterFile, keeper: MarkKeeper
) -> None:
    """The owner of the database puts it right between the looks, so that charges are answered."""
    earlier, show = _made(database), "UPDATE accounts SET head_seq = {0.seq}, head_hash = '{0.hash}'"
    for everything in (False, True):
        charge(database, PLAN)
        true = _made(database)
        unprotected(database, "accounts", show.format(earlier))
        keeper.advance(everything=everything)
        assert _marked(file)["people"] == Head(true.seq, true.hash)
        assert not database.has_committed()
        unprotected(database, "accounts", show.format(true))
    _roll_back(database, earlier.seq)
    with pytest.raises(StartupRefused, match="'people' ends with entry 1 and had 3"):
        check_mark(database, file, check_file=False)


@pytest.mark.parametrize("charges", [1, 3])
def test_entries_of_another_world_are_not_marked(
    database: Database, replica: Database, file: HighWaterFile, charges: int
) -> None:
    """The ledger goes back between two looks, and a process that knows of no later entry adds to it."""
    open_account(database)
    keeper = MarkKeeper(database, file)
    other = MarkKeeper(replica, file)
    for _ in range(2):
        charge(database, PLAN)
    keeper.advance(everything=True)
    before = _marked(file)
    assert before["people"].seq == 3
    _roll_back(database, 1)
    for _ in range(charges):
        charge(replica, PLAN)
    made = account_of(replica).head
    if charges == 1:  # the marked entry is shown again, with a row that ends there
        kept = before["people"]
        unprotected(replica, "journal", _ENTRY.format(kept))
    other.advance()
    assert replica.stopped is not None
    assert _marked(file) == before | {second_version("people"): made}
    with pytest.raises(StartupRefused, match="the ledger is older than its high-water mark"):
        check_mark(replica, file, check_file=False)


_ENTRY = "INSERT INTO journal VALUES (1, {0.seq}, 'committed', NULL, '{{}}', '{0.hash}')"


def _show_marked(database: Database, kept: Head) -> None:
    """Put a marked entry's row in place of another one of this number."""
    unprotected(database, "journal", f"DELETE FROM journal WHERE seq = {kept.seq}", _ENTRY.format(kept))


def test_a_longer_version_of_a_journal_with_the_marked_entry_in_it_is_not_accepted(
    database: Database, replica: Database, file: HighWaterFile
) -> None:
    """The owner of the database can have such a version from the last moment before a server was killed."""
    open_account(database)
    keeper = MarkKeeper(database, file)
    for _ in range(2):
        charge(database, PLAN)
    keeper.advance(everything=True)
    before = _marked(file)
    _roll_back(database, 1)
    for _ in range(4):
        charge(replica, PLAN)
    _show_marked(replica, before["people"])
    with pytest.raises(StartupRefused, match="'people' does not continue from entry 3 that it had"):
        check_mark(replica, file, check_file=False)
    keeper.advance(everything=True)
    assert database.stopped is not None
    assert _marked(file) == before


@pytest.mark.parametrize("meets_own", [False, True])
def test_of_two_versions_that_two_servers_wrote_neither_is_accepted(
    database: Database, replica: Database, file: HighWaterFile, meets_own: bool
) -> None:
    """The one server's entries are shown beside the other's, for the moment of its look.

    Args:
        meets_own: whether it added to the other's version before that.
    """
    open_account(database)
    first, second = MarkKeeper(database, file), MarkKeeper(replica, file)
    first.advance(everything=True)
    second.advance(everything=True)
    charge(database, PLAN)
    charge(database, PLAN)
    lost = account_of(database).head
    with database.read() as connection:
        rows = connection.execute(text("SELECT * FROM journal WHERE seq > 1 ORDER BY seq")).all()
    _roll_back(database, 1)
    for _ in range(3):
        charge(replica, PLAN)
    second.advance()
    assert _marked(file)["people"].seq == 4
    if meets_own:
        database.newest.went_back = lambda *_: False  # type: ignore[method-assign] # as where no row is read twice
        database.newest.up_to = lambda *_: None  # type: ignore[method-assign]
        database.newest.number = lambda account: 0  # type: ignore[method-assign]
        charge(database, PLAN)
    for row in rows:
        put = _ROW.format(row).replace(":", r"\:")  # of a parameter otherwise
        unprotected(replica, "journal", f"DELETE FROM journal WHERE seq = {row.seq}", put)
    first.advance()
    assert database.stopped is not None
    assert _marked(file)["people"].seq == 4
    assert second_version("people") in _marked(file)
    with pytest.raises(StartupRefused, match="written in two versions"):
        check_mark(replica, file, check_file=False)
    second.advance(everything=True)
    assert replica.stopped is not None
    assert lost.seq == 3


_ROW = "INSERT INTO journal VALUES ({0.account_id}, {0.seq}, '{0.kind}', NULL, '{0.body}', '{0.hash}')"


def test_an_account_that_was_opened_again_does_not_take_over_the_mark(
    database: Database, replica: Database, file: HighWaterFile
) -> None:
    open_account(database)
    keeper = MarkKeeper(database, file)
    charge(database, PLAN)
    keeper.advance(everything=True)
    before = _marked(file)["people"]
    charge(database, PLAN)  # an entry that follows the marked one
    unprotected(database, "accounts", "UPDATE accounts SET name = 'other' WHERE name = 'people'")
    lines.line_of.cache_clear()
    replica.remembers = True
    open_account(replica)
    for _ in range(4):
        charge(replica, PLAN)
    database.put_back_committed(replica.take_committed())
    keeper.advance()
    assert database.stopped is not None
    assert _marked(file)["people"] == before


def test_a_head_that_another_process_moved_is_looked_at_again(
    database: Database, replica: Database, file: HighWaterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database)
    first, second = MarkKeeper(database, file), MarkKeeper(replica, file)
    first.advance(everything=True)
    charge(replica, PLAN)
    charge(database, PLAN)
    marked = HighWaterFile.marked

    def beside(self: HighWaterFile, journals: Any) -> dict[str, Head]:
        found = marked(self, journals)
        monkeypatch.setattr(HighWaterFile, "marked", marked)
        second.advance()
        return found

    monkeypatch.setattr(HighWaterFile, "marked", beside)
    first.advance()
    assert _marked(file)["people"] == account_of(database).head
    assert database.stopped is None


def test_nothing_is_committed_after_the_last_mark(database: Database, file: HighWaterFile) -> None:
    open_account(database)
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    inside, going_on = threading.Event(), threading.Event()

    def late(connection: Connection) -> None:
        inside.set()
        assert going_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        with keeper.keeping():
            charge(database, PLAN)
            writing_late = pool.submit(database.write, late, is_committed=lambda *_: False)
            assert inside.wait(60)
        going_on.set()
        with pytest.raises(Unavailable, match="the server stops"):
            writing_late.result(60)
    assert _marked(file)["people"] == account_of(database).head


def test_processes_that_add_in_turn_are_of_one_chain(
    database: Database, replica: Database, file: HighWaterFile
) -> None:
    open_account(database)
    first, second = MarkKeeper(database, file), MarkKeeper(replica, file)
    first.advance(everything=True)
    for number in range(6):
        charge(database if number % 2 else replica, PLAN)
    for keeper in (first, second):
        keeper.advance()
    assert _marked(file)["people"] == account_of(database).head
    assert database.refused() is None
    assert replica.refused() is None


def test_an_entry_is_marked_under_the_name_that_it_states(database: Database, file: HighWaterFile) -> None:
    """The owner of the database can exchange two names for a look; the longer journal would hide the shorter one's."""
    open_account(database)
    open_account(database, "places")
    keeper = MarkKeeper(database, file)
    for _ in range(3):
        charge(database, PLAN, name="places")
    keeper.advance(everything=True)
    places = account_of(database, "places").head
    charge(database, PLAN)
    true = account_of(database).head
    assert true.seq < places.seq
    for old, new in (("people", "?"), ("places", "people"), ("?", "places")):
        unprotected(database, "accounts", f"UPDATE accounts SET name = '{new}' WHERE name = '{old}'")
    keeper.advance()
    assert _marked(file)["people"] == true
    assert _marked(file)["places"] == places
    assert database.stopped is not None, "the accounts of these names lack the marked entries"


def test_an_entry_of_the_installations_journal_without_a_seal_is_not_marked(
    database: Database, file: HighWaterFile
) -> None:
    open_account(database)
    keeper = MarkKeeper(database, file)
    forged = "INSERT INTO installation_journal VALUES (4611686018427387904, 'key_made', '{}', 'zz', 'zz')"
    unprotected(database, "installation_journal", forged)
    keeper.advance(everything=True)
    assert _marked(file) == {"people": account_of(database).head}
    assert database.stopped is None


def test_the_thread_outlives_whatever_goes_wrong(
    database: Database, file: HighWaterFile, monkeypatch: pytest.MonkeyPatch, keeper: MarkKeeper
) -> None:
    plain, failed = HighWaterFile.advance, threading.Event()

    def fail_once(self: HighWaterFile, *given: Any, **named: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise OverflowError
        plain(self, *given, **named)

    monkeypatch.setattr(HighWaterFile, "advance", fail_once)
    with keeper.keeping():
        charge(database, PLAN)
        assert failed.wait(30)
        deadline = time.monotonic() + 30
        while _marked(file)["people"] != account_of(database).head:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_another_process_that_was_faster_is_no_rollback(
    database: Database, file: HighWaterFile, keeper: MarkKeeper
) -> None:
    charge(database, PLAN)
    slow = account_of(database).head
    charge(database, PLAN)
    keeper.advance()
    file.advance({"people": slow}, {}, clock.now())
    database.put_back_committed([_made(database)])
    keeper.advance()
    assert database.stopped is None
    assert _marked(file)["people"] == account_of(database).head


def test_a_clock_behind_the_mark_is_refused_or_made_up_for(database: Database, file: HighWaterFile) -> None:
    soon, late = (clock.later(clock.now(), timedelta(seconds=seconds)) for seconds in (30, 3600))
    file.advance({}, {}, soon)
    check_mark(database, file, check_file=False)
    assert clock.now() >= soon
    assert 25 < clock.seconds_behind() <= 30
    file.advance({}, {}, late)
    with pytest.raises(StartupRefused, match="this machine's clock says"):
        check_mark(database, file, check_file=False)


def test_a_command_marks_what_it_wrote_before_it_ends(
    database: Database, file: HighWaterFile, secret: Secret, tmp_path: Path
) -> None:
    """It says nothing of whether a server is at work."""
    kept = tmp_path / "service.secret"
    kept.write_text(bytes(range(32)).hex())
    kept.chmod(0o600)
    settings = Settings(
        data_dir=tmp_path / "data", database_url=database.url, secret_file=kept, high_water_file=file.path
    )

    def command(*, fails: bool = False) -> int:
        with contextlib.suppress(ZeroDivisionError), writing(settings) as (opened, _):
            head = opened.write(
                lambda connection: installation_journal.append(
                    connection, secret, "mark_acknowledged", {}, actor=None, at=clock.now()
                ),
                is_committed=lambda *_: False,
            )
            assert 1 // (not fails)
        return head.seq

    command()
    assert file.read() is None, "the first server begins the mark"
    MarkKeeper(database, file).advance(everything=True)
    for fails in (False, True):
        last = command(fails=fails)
        mark = file.read()
        assert mark is not None
        assert (mark.heads[""].seq, mark.in_use) == (last, True)
    unprotected(database, "installation_journal", f"DELETE FROM installation_journal WHERE seq = {last}")
    with pytest.raises(StartupRefused, match=f"ends with entry {last - 1} and had {last}"):
        check_mark(database, file, check_file=False)


@pytest.mark.parametrize(
    ("place", "content"),
    [(20, b"\x20"), (32, bytes(7) + b"\x03"), (52, bytes(3) + b"\x07")],
    ids=["room", "free", "auto"],
)
def test_a_header_that_was_damaged_after_a_good_end_is_refused(
    keeper: MarkKeeper, file: HighWaterFile, database: Database, place: int, content: bytes
) -> None:
    """Such a ledger could be read, and every write to it was refused."""
    if database.kind == "postgresql":
        return
    keeper.advance(last=True)
    with contextlib.closing(database):
        check_mark(database, file, check_file=True)
    with Path(str(database.pools.writer.url.database)).open("r+b") as opened:
        opened.seek(place)
        opened.write(content)
    with contextlib.closing(open_database(database.url)) as other:
        other.secret = database.secret
        with pytest.raises(StartupRefused, match="the ledger's file is damaged"):
            check_mark(other, file, check_file=True)
