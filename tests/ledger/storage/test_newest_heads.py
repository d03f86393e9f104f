"""A row that was put back as it once was, with its old seal, is refused by whoever knows what followed it."""

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.errors import StartupRefused, Unavailable
from service.ledger.access import key_events, key_rows
from service.ledger.access.key_records import KeyRecord
from service.ledger.accounts import accounts, lines
from service.ledger.installation import high_water_keeper, installation_journal
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.installation.mark_check import check_mark, remember_marked
from service.ledger.installation.signing import signer_of
from service.ledger.journal import chains, linked_heads
from service.ledger.journal.journal import Head
from service.ledger.releases import charges
from service.ledger.storage import clock, newest_heads
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.group_commit import INSTALLATION, NewEntry
from service.ledger.storage.newest_heads import KnownHead, NewestHeads
from service.ledger.storage.secret import Secret
from service.ledger.verification import exports
from service.ledger.verification.verify import verify
from tests.ledger.charging import SECRET, account_of, charge, open_account, prepared
from tests.ledger.keys import make_key
from tests.ledger.ledgers import exported
from tests.ledger.writing import as_owner, stored, unprotected

PLAN = {"type": "gaussian", "rho": "1/32"}
_BACK = "the ledger lacks"


def _heads(*heads: tuple[str, int, str]) -> list[KnownHead]:
    return list(map(KnownHead._make, heads))


def test_heads_go_forward_only() -> None:
    known = NewestHeads()
    known.add(_heads(("a", 3, "c"), ("a", 2, "b"), ("b", 1, "x")))
    known.add(_heads(("a", 1, "a")))
    assert [known.number(account) for account in ("a", "b", "c")] == [3, 1, 0]
    cases = {(3, "c"): False, (4, "d"): False, (2, "b"): True, (3, "other"): True, (0, ""): True}
    for (seq, digest), back in cases.items():
        assert known.went_back(KnownHead("a", seq, digest), known.moment) is back
        assert known.went_back(KnownHead("a", seq, digest), None) is back
    assert not known.went_back(KnownHead("c", 1, "a"), None), "of others nothing is known"


def test_a_transaction_is_held_against_what_was_known_when_it_began() -> None:
    known = NewestHeads()
    known.add(_heads(("a", 3, "c")))
    with known.transaction() as began:
        known.add(_heads(("a", 4, "d"), ("a", 5, "e")))
    assert not known.went_back(KnownHead("a", 3, "c"), began)
    assert known.went_back(KnownHead("a", 2, "b"), began)
    assert known.went_back(KnownHead("a", 5, "other"), began), "there is one entry of a number, whenever it came"
    assert known.went_back(KnownHead("a", 3, "c"), None), "a locked row is the newest"
    assert known.went_back(KnownHead("a", 3, "c"), known.moment)
    assert known.committed("a", began) == KnownHead("a", 3, "c")
    assert known.committed("a", known.moment) == KnownHead("a", 5, "e")
    assert known.committed("a", 0) is None
    third, fifth = _heads(("a", 3, "c"), ("a", 5, "e"))
    assert [known.up_to("a", seq) for seq in (2, 3, 4, 6)] == [None, third, third, fifth]


def test_heads_are_kept_for_the_oldest_transaction_under_way() -> None:
    known = NewestHeads()
    known.add(_heads(("a", 1, "1")))
    with known.transaction() as oldest:
        for seq in range(2, 100):
            with known.transaction():
                known.add(_heads(("a", seq, str(seq))))
        assert known.committed("a", oldest) == KnownHead("a", 1, "1")
        assert known.went_back(KnownHead("a", 0, "0"), oldest)
        assert not known.went_back(KnownHead("a", 1, "1"), oldest)
        assert known.went_back(KnownHead("a", 60, "other"), oldest)
    known.add(_heads(("a", 100, "100")))
    assert known.up_to("a", 98) is None, "no transaction needs an earlier one any more"


def test_a_linked_head_is_recorded_only_over_the_one_that_it_follows() -> None:
    known = NewestHeads()
    first, left, right = _heads(("a", 1, "1"), ("a", 2, "left"), ("a", 3, "right"))
    known.add_linked(first, None)
    known.add_linked(left, first)
    known.add_linked(right, first)
    known.add_linked(right, None)
    assert known.up_to("a", 9) == left


def test_the_heads_that_moved_last_are_kept_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_heads, "_JOURNALS", 3)
    monkeypatch.setattr(newest_heads, "_TOLD", 2)
    known = NewestHeads()
    for account in "abcad":
        known.add(_heads((account, known.moment + 1, "x")))
    assert [known.number(account) for account in "abcd"] == [4, 0, 3, 5]
    assert known.after(0) == (5, _heads(("d", 5, "x"), ("a", 4, "x")))
    assert known.after(4) == (5, _heads(("d", 5, "x")))
    assert known.after(5) == (5, [])


def test_the_head_of_the_installations_journal_is_always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_heads, "_JOURNALS", 2)
    known = NewestHeads()
    known.add(_heads(("", 1, "x"), ("a", 2, "a"), ("b", 3, "b")))
    known.add(_heads(("c", 1, "c")))
    assert [known.number(account) for account in ("", "a", "b", "c")] == [1, 0, 0, 1]


@pytest.fixture
def old(database: Database, replica: Database) -> Callable[[], None]:
    """Puts the account's row back, as somebody does who writes the database, after two charges that followed it."""
    open_account(database)
    charge(database, PLAN)
    row = stored_account(database)
    for _ in range(2):
        charge(database, PLAN)
    return lambda: put_row(replica, row)


def stored_account(database: Database) -> dict[str, Any]:
    """The row of the only account."""
    with database.read() as connection:
        return dict(connection.execute(text("SELECT * FROM accounts")).mappings().one())


def put_row(database: Database, row: dict[str, Any]) -> None:
    """Put an account's row back as it was."""
    columns = ", ".join(f"{name} = :{name}" for name in row if name != "id")
    with as_owner(database.url) as connection:
        connection.execute(text(f"UPDATE accounts SET {columns} WHERE id = :id"), row)


_READS: dict[str, Callable[[Database], object]] = {
    "balance": account_of,
    "head": lambda database: signer_of(SECRET).sign_head("people", account_of(database).head),
    "list": lambda database: _read(database, lambda found: accounts.list_accounts(found, "", 10, accounts.Wanted())),
    "line": lambda database: _read(database, lambda found: lines.line_above(found, "people")),
    "export": lambda database: exported(database, signer_of(SECRET)),
    "dry run": lambda database: charges.dry_run(database, prepared(database, PLAN)),
    "charge": lambda database: charge(database, PLAN),
}


def _read(database: Database, read: Callable[[Connection], object]) -> object:
    with database.read() as connection:
        return read(connection)


@pytest.mark.parametrize("read", _READS)
def test_an_older_row_is_refused_and_stops_the_server(
    database: Database, replica: Database, old: Callable[[], None], read: str
) -> None:
    open_account(database, "places")
    old()
    with pytest.raises(Unavailable, match=_BACK):
        _READS[read](database)
    with pytest.raises(Unavailable, match=_BACK):
        charge(database, PLAN, name="places")
    assert account_of(replica).head.seq == 2, "to a server that saw nothing else it is sound"


@pytest.fixture
def longer(database: Database, replica: Database) -> Callable[[], None]:
    """Puts in place a version of the journal that was given up and is longer than the one that ``database`` wrote."""
    open_account(database)
    first = stored_account(database)
    for _ in range(3):
        charge(replica, PLAN)
    given_up = stored_account(replica)
    with replica.read() as connection:
        entries = [stored(row) for row in connection.execute(text("SELECT * FROM journal WHERE seq > 1"))]
    put_row(database, first)
    for table in ("journal", "releases"):
        unprotected(database, table, f"DELETE FROM {table} WHERE seq > 1")
    charge(database, PLAN)

    def put() -> None:
        unprotected(replica, "journal", "DELETE FROM journal WHERE seq > 1")
        for entry in entries:
            values = ", ".join(f":{name}" for name in entry)
            unprotected(replica, "journal", f"INSERT INTO journal VALUES ({values})", **{**entry, "release_id": None})
        put_row(replica, given_up)

    return put


@pytest.mark.parametrize("read", _READS)
def test_a_longer_version_of_a_journal_is_refused_and_stops_the_server(
    database: Database, longer: Callable[[], None], read: str
) -> None:
    longer()
    with pytest.raises(Unavailable, match=_BACK):
        _READS[read](database)
    assert database.stopped is not None


def test_entries_of_another_server_are_linked_once(
    database: Database, replica: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database)
    for _ in range(3):
        charge(replica, PLAN)
    asked = list[int]()
    link = linked_heads.is_linked

    def counted(connection: Connection, account_id: int, lower: Head, higher: Head) -> bool:
        asked.append(lower.seq)
        return link(connection, account_id, lower, higher)

    monkeypatch.setattr(linked_heads, "is_linked", counted)
    for _ in range(3):
        assert account_of(database).head.seq == 4
    assert asked == [1], "from the entry that this server wrote"
    charge(replica, PLAN)
    charge(database, PLAN)
    charge(database, PLAN)
    assert asked == [1, 4]


def test_a_journal_of_another_server_is_known_from_its_first_reading(database: Database, replica: Database) -> None:
    open_account(replica)
    row = stored_account(replica)
    charge(replica, PLAN)
    assert account_of(database).head.seq == 2
    put_row(replica, row)
    with pytest.raises(Unavailable, match=_BACK):
        account_of(database)


def test_a_journal_of_another_server_is_known_once_it_is_marked(
    database: Database, replica: Database, file: HighWaterFile, longer: Callable[[], None]
) -> None:
    """A version that was given up, whose first entry this server saw, and the one that was marked instead."""
    own, other = open_database(database.url), MarkKeeper(database, file)
    own.secret = SECRET
    with closing(own):
        keeper = MarkKeeper(own, file)
        keeper._remember_marked()
        other.advance(everything=True)
        keeper._remember_marked()
        longer()
        with pytest.raises(Unavailable, match=_BACK):
            account_of(own)


def test_a_helper_knows_what_is_marked_before_it_is_told_anything(
    database: Database, replica: Database, file: HighWaterFile, old: Callable[[], None]
) -> None:
    MarkKeeper(database, file).advance(everything=True)
    remember_marked(replica, file, complete=True)
    old()
    with pytest.raises(Unavailable, match=_BACK):
        account_of(replica)


@pytest.mark.parametrize("longer", [True, False])
def test_a_server_stops_when_another_version_is_marked_than_the_one_that_it_read(
    database: Database, replica: Database, file: HighWaterFile, longer: bool
) -> None:
    open_account(database)
    keeper = MarkKeeper(replica, file)
    keeper._remember_marked()
    first = stored_account(database)
    for _ in range(2):
        charge(database, PLAN)
    assert account_of(replica).head.seq == 3
    put_row(database, first)
    for table in ("journal", "releases"):
        unprotected(database, table, f"DELETE FROM {table} WHERE seq > 1")
    with closing(open_database(database.url)) as restarted:
        restarted.secret = SECRET
        other = MarkKeeper(restarted, file)
        for _ in range(3 if longer else 1):
            charge(restarted, PLAN)
        other.advance(everything=True)
    assert replica.stopped is None
    keeper._remember_marked()
    assert replica.stopped is not None


def test_a_row_under_another_id_at_the_start_hides_no_rollback(
    database: Database, replica: Database, file: HighWaterFile, old: Callable[[], None]
) -> None:
    MarkKeeper(database, file).advance(everything=True)
    account_id = stored_account(database)["id"]
    free = ["PRAGMA defer_foreign_keys = on"]
    for table in ("journal", "releases"):
        unprotected(replica, table)

    def move(to: int) -> None:
        moves = [f"UPDATE {table} SET account_id = {to}" for table in ("journal", "releases", "spending")]
        moves = [*(free if replica.kind == "sqlite" else ()), f"UPDATE accounts SET id = {to}", *moves]
        unprotected(replica, "accounts", *moves)

    move(77)
    with closing(open_database(database.url)) as other:
        other.secret = SECRET
        check_mark(other, file, check_file=False)
        move(account_id)
        old()
        with pytest.raises(Unavailable, match=_BACK):
            account_of(other)


def test_verification_misses_the_entries_that_an_older_row_leaves_out(
    database: Database, replica: Database, old: Callable[[], None]
) -> None:
    old()
    unprotected(replica, "journal", "DELETE FROM journal WHERE seq > 2")
    with database.read() as connection:
        bad = verify(connection, "people").first_bad
    assert bad == chains.BadEntry(3, chains.MISSING)


def test_a_row_without_its_seal_stops_its_account_alone(database: Database, old: Callable[[], None]) -> None:
    open_account(database, "places")
    old()
    unprotected(database, "accounts", "UPDATE accounts SET description = 'else' WHERE name = 'people'")
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        account_of(database)
    charge(database, PLAN, name="places")


def test_a_read_that_began_earlier_sees_what_was_then(database: Database) -> None:
    open_account(database)
    charge(database, PLAN)
    before = account_of(database).head
    with database.read() as connection:
        connection.execute(text("SELECT 1 FROM accounts")).all()  # the moment that it sees begins here
        for _ in range(3):
            charge(database, PLAN)
            assert accounts.read_account(connection, "people").head == before
    assert database.stopped is None


def test_a_read_that_began_earlier_is_held_against_what_was_known_then(
    database: Database, old: Callable[[], None]
) -> None:
    old()
    with database.read() as connection:
        database.newest.add([KnownHead("people", 5, "x")])
        with pytest.raises(Unavailable, match=_BACK):
            accounts.read_account(connection, "people")


def test_charges_and_reads_at_once_are_no_rollback(database: Database) -> None:
    open_account(database, rho="100", definition="zcdp")
    ended = threading.Event()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            while not ended.is_set():
                account_of(database)
                with database.read() as connection:
                    assert verify(connection, "people").valid
        except BaseException as error:  # noqa: BLE001 - it is told below
            failures.append(error)

    def charge_some() -> None:
        try:
            for _ in range(12):
                charge(database, PLAN)
        except BaseException as error:  # noqa: BLE001 - likewise
            failures.append(error)

    readers, writers = ([threading.Thread(target=work) for _ in range(3)] for work in (ask, charge_some))
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    for thread in readers:
        thread.join()
    assert failures == []
    assert account_of(database).head.seq == 37


@pytest.fixture
def held(replica: Database) -> Callable[[], None]:
    """Has the account's row stay as it is, by a trigger, whatever is charged, until it is called again."""
    columns = (
        "totals",
        "head_seq",
        "head_hash",
        "releases",
        "partitions_drawn",
        "partitions_undeclared",
        "spending_sum",
        "seal",
    )
    kept = ", ".join(f"{name} = old.{name}" for name in columns)
    on, off = {
        "sqlite": (
            [
                "CREATE TRIGGER zzz AFTER UPDATE ON accounts WHEN new.head_seq > old.head_seq"
                f" BEGIN UPDATE accounts SET {kept} WHERE id = old.id; END"
            ],
            ["DROP TRIGGER zzz"],
        ),
        "postgresql": (
            [
                "CREATE FUNCTION zzz() RETURNS trigger LANGUAGE plpgsql AS 'begin return old; end'",
                "CREATE TRIGGER zzz BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION zzz()",
            ],
            ["DROP TRIGGER zzz ON accounts", "DROP FUNCTION zzz"],
        ),
    }[replica.kind]
    statements = iter((on, off))
    return lambda: unprotected(replica, "accounts", *next(statements))


def test_a_row_that_a_trigger_holds_back_is_charged_once(database: Database, held: Callable[[], None]) -> None:
    """Before anybody looks."""
    open_account(database)
    held()
    charge(database, PLAN)
    with pytest.raises(Unavailable, match=_BACK):
        charge(database, PLAN)
    held()
    with pytest.raises(Unavailable, match=_BACK):
        charge(database, PLAN)


def test_a_row_that_a_trigger_holds_back_stops_the_server_at_its_next_look(
    database: Database, replica: Database, file: HighWaterFile, held: Callable[[], None], keeper: MarkKeeper
) -> None:
    """The entry is there, and nothing but the account's row says that it is not; nor does the next server start."""
    held()
    charge(database, PLAN)
    keeper.advance()
    assert database.stopped is not None
    with pytest.raises(StartupRefused, match="the journal of 'people' ends with entry 1 and had 2"):
        check_mark(replica, file, check_file=False)
    unprotected(replica, "journal", "DELETE FROM journal WHERE seq > 1")
    with pytest.raises(StartupRefused, match="the journal of 'people' ends with entry 1 and had 2"):
        check_mark(replica, file, check_file=False)


def test_an_entry_is_marked_although_a_row_without_its_seal_ends_before_it(
    database: Database, replica: Database, file: HighWaterFile, keeper: MarkKeeper
) -> None:
    charge(database, PLAN)
    unprotected(replica, "accounts", "UPDATE accounts SET head_seq = 1, seal = 'x'")
    keeper.advance()
    assert not database.has_committed()
    assert database.refused() is None
    unprotected(replica, "journal", "DELETE FROM journal WHERE seq > 1")
    keeper.advance(everything=True)
    assert database.refused() is not None
    with pytest.raises(StartupRefused, match="the journal of 'people' ends with entry 1 and had 2"):
        check_mark(replica, file, check_file=False)


def test_a_server_that_starts_knows_what_is_marked(
    database: Database, replica: Database, file: HighWaterFile, old: Callable[[], None]
) -> None:
    MarkKeeper(database, file).advance(everything=True)
    other = open_database(database.url)
    other.secret = SECRET
    check_mark(other, file, check_file=False)
    old()
    for server in (database, other):
        with pytest.raises(Unavailable, match=_BACK):
            account_of(server)
    with pytest.raises(StartupRefused, match="the journal of 'people' ends with entry 2 and had 4"):
        check_mark(replica, file, check_file=False)
    other.close()


def test_the_installations_journal_ends_no_earlier_than_it_did(
    database: Database, replica: Database, secret: Secret
) -> None:
    """Whose last entry may be the revocation of a steward's key."""
    for kind in ("key_made", "rows_sealed"):
        _append(database, secret, kind)
    with database.read() as connection:
        assert len(list(installation_journal.read(connection, secret))) == 2
    unprotected(replica, "installation_journal", "DELETE FROM installation_journal WHERE seq = 2")
    with database.read() as connection, pytest.raises(Unavailable, match=_BACK):
        key_events.sound_keys(connection, secret)
    assert database.stopped is not None


def _append(database: Database, secret: Secret, kind: Any) -> None:
    content: dict[str, object] = {}
    if kind == "key_made":
        record = KeyRecord("k", "ann", "steward", None, clock.now(), None)
        content = key_rows.journalled_values(record)
    database.write(
        lambda connection: installation_journal.append(connection, secret, kind, content, actor=None, at=clock.now()),
        is_committed=lambda *_: False,
    )


def test_an_export_is_refused_before_its_first_line(database: Database, old: Callable[[], None]) -> None:
    old()
    with database.read() as connection, pytest.raises(Unavailable, match=_BACK):
        exports.members(connection)


def test_another_process_is_told_all_heads_since_the_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that came while it was idle; only at its start it reads the marked ones itself."""
    monkeypatch.setattr(newest_heads, "_TOLD", 2)
    monkeypatch.setattr(newest_heads, "_JOURNALS", 5)
    known = NewestHeads()
    known.add(_heads((INSTALLATION, 1, "i")))
    moment, told = known.after(newest_heads.AT_START)
    assert told == _heads((INSTALLATION, 1, "i"))
    for number in range(6):
        known.add(_heads((f"a{number}", 1, "h")))
    later, told = known.after(moment)
    assert told == _heads(*((f"a{number}", 1, "h") for number in (5, 4, 3, 2))), "all that are known"
    assert known.last(INSTALLATION) is not None
    known.add(_heads(("b", 1, "h")))
    assert known.after(later)[1] == _heads(("b", 1, "h")), "the installation's journal hides none"
    assert len(known.after(newest_heads.AT_START)[1]) == 2


def test_a_head_that_was_read_is_marked(database: Database, replica: Database, file: HighWaterFile) -> None:
    """Otherwise what was answered from it could be taken back unnoticed, if the process that made it was killed."""
    open_account(database)
    MarkKeeper(database, file).advance(everything=True)
    keeper = MarkKeeper(replica, file)
    assert account_of(replica).head.seq == 1
    keeper.advance()
    charge(database, PLAN)
    assert not replica.has_committed()
    head = account_of(replica).head
    assert replica.has_committed()
    keeper.advance()
    assert file.marked(["people"]) == {"people": head}
    account_of(replica)
    assert not replica.has_committed(), "what is known is not read anew"


def test_a_head_that_a_helper_read_is_marked(database: Database, replica: Database, file: HighWaterFile) -> None:
    open_account(database)
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    with closing(open_database(database.url)) as helper:
        helper.secret, helper.remembers = SECRET, True
        charge(replica, PLAN)
        head = account_of(helper).head
        database.learn(helper.take_committed())
    keeper.advance()
    assert file.marked(["people"]) == {"people": head}


def test_a_key_that_another_process_ended_is_marked(database: Database, replica: Database, file: HighWaterFile) -> None:
    keeper = MarkKeeper(replica, file)
    keeper.advance(everything=True)
    installation_journal.follow(replica, SECRET)
    make_key(database)
    last = installation_journal.follow(replica, SECRET)
    keeper.advance()
    assert file.marked([INSTALLATION])[INSTALLATION].seq == last > 0


def test_many_marked_heads_are_linked_over_several_looks(
    database: Database, replica: Database, file: HighWaterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that marks thousands of journals at once keeps no server from looking at the schema."""
    open_account(database)
    MarkKeeper(database, file).advance(everything=True)
    keeper = MarkKeeper(replica, file)
    keeper._remember_marked()
    charge(database, PLAN)
    MarkKeeper(database, file).advance(everything=True)
    monkeypatch.setattr(high_water_keeper, "_LINKING", 0)
    keeper._remember_marked()
    assert [one[0] for one in keeper._to_link] == ["people"]
    assert replica.newest.number("people") == 2, "it is known at once"
    monkeypatch.undo()
    keeper._remember_marked()
    assert not keeper._to_link
    assert replica.stopped is None


def test_a_head_of_a_helper_that_differs_from_the_known_one_stops_writing(database: Database) -> None:
    open_account(database)
    head = account_of(database).head
    database.learn([NewEntry(1, head.seq, head.hash, "people")])
    with pytest.raises(Unavailable, match=_BACK):
        database.learn([NewEntry(1, head.seq, "0" * 64, "people")])
    assert database.stopped is not None


def test_a_head_is_compared_with_one_that_was_committed_while_its_texts_were_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database)
    charge(database, PLAN)
    known = account_of(database).head
    charge(database, PLAN)
    present = account_of(database).head
    database.newest = NewestHeads()
    database.newest.add([KnownHead("people", known.seq, known.hash)])
    linked = linked_heads.is_linked

    def slow(*asked: Any) -> bool:  # meanwhile this server commits another entry of this number
        found = linked(*asked)
        database.newest.add([KnownHead("people", present.seq, "0" * 64)])
        return found

    monkeypatch.setattr(linked_heads, "is_linked", slow)
    with pytest.raises(Unavailable, match=_BACK):
        account_of(database)
    assert database.stopped is not None
