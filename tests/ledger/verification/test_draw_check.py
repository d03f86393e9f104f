"""Draws that were made beside others whose rows were away for a moment: each by itself is as its entry says."""

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sqlalchemy import Connection, text

from service.errors import AlreadyDrawn, Conflict, Unavailable
from service.ledger.accounts import accounts
from service.ledger.draws import count_codec, draws, places, stored_draws
from service.ledger.draws.stored_draws import DrawRecord, Turn
from service.ledger.draws.tabulation_layout import Layout, seal_layout
from service.ledger.installation.signing import Signer
from service.ledger.journal import journal
from service.ledger.journal.chains import BadEntry
from service.ledger.journal.entries import Drawn
from service.ledger.journal.ordered_rows import BadRow
from service.ledger.storage.database import Database
from service.ledger.verification import draw_check
from service.ledger.verification.draw_check import DrawOverlaps
from service.ledger.verification.export_reader import BadExport, Reader
from service.ledger.verification.imports import rebuild
from service.ledger.verification.verify import Verdict, verify
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import mechanisms_of
from tests.ledger.charging import account_of, asking, mechanisms_in, open_account
from tests.ledger.ledgers import LEVEL, A, draw, exported, register, tabulate
from tests.ledger.writing import as_owner, stored

_TWO_B = {"type": "sequence", "parts": [A | {"name": "b"}, A | {"name": "c"}]}
_CHOICE: dict[str, Any] = {"type": "repeat", "count": 2, "part": {"type": "choice", "parts": [A, _TWO_B]}}

_DRAWN = "the draw repeats that of entry 3, wholly or in part"
_OTHER = "another branch of a choice above the draw had been drawn from"
_TABULATED = "the groups that are drawn had been drawn at this level"
_BEYOND = "more partitions are drawn than the plan declares"
_ALL_BEYOND = f"{_BEYOND} for all branches of a choice together"


def _away(database_url: str, act: Callable[[], object], *tables: str) -> None:
    """Do something while the rows of tables are away; they come back beside what it wrote."""
    rows: dict[str, list[dict[str, Any]]] = {}
    with as_owner(database_url) as connection:
        for table in tables:
            rows[table] = [stored(row) for row in connection.execute(text(f"SELECT * FROM {table}"))]
            connection.execute(text(f"DELETE FROM {table}"))
    act()
    with as_owner(database_url) as connection:
        for table, kept in rows.items():
            for row in kept:
                columns = ", ".join(f'"{column}"' for column in row)
                values = ", ".join(f":{column}" for column in row)
                statement = f"INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"
                connection.execute(text(statement), row)


def _verdict(database: Database) -> Verdict:
    with database.read() as connection:
        return verify(connection, "people")


def _check_file(database: Database, copy: Database, signer: Signer, found: str) -> None:
    """The reader of the ledger's export, with no table beside it, and its import say the same as verification."""
    file = exported(database, signer)
    with pytest.raises(BadExport, match=found):
        list(Reader(io.BytesIO(file), None).entries())
    with pytest.raises(BadExport, match=f"{found}|the tables cannot hold"):
        _imported(copy, file, signer)


def _imported(copy: Database, file: bytes, signer: Signer) -> None:
    rebuild(copy, lambda: io.BytesIO(file), signer.public_key)


def _released(database: Database, plan: Any) -> str:
    open_account(database, definition="pure", epsilon="100", delta="1e-9")
    return register(database, "people", plan)[0]


@pytest.mark.parametrize(("first", "second"), [("", "p"), ("p", "")])
def test_the_whole_input_beside_a_partition_is_found(
    database_url: str,
    database: Database,
    new_database: Callable[[], Database],
    signer: Signer,
    first: str,
    second: str,
) -> None:
    release = _released(database, A)
    draw(database, "people", release, A, partition=first)
    with pytest.raises(AlreadyDrawn):
        draw(database, "people", release, A, partition=second)
    _away(database_url, lambda: draw(database, "people", release, A, partition=second), "draws")
    assert _verdict(database) == Verdict(3, BadEntry(4, _DRAWN))
    _check_file(database, new_database(), signer, f"entry 4: {_DRAWN}")


def test_partitions_and_turns_beside_each_other_are_sound(
    database: Database, new_database: Callable[[], Database], signer: Signer
) -> None:
    release = _released(database, _CHOICE)
    for which, partition, turn in ((1, "p", 0), (2, "p", 0), (0, "q", 0), (0, "p", 1), (0, "q", 1)):
        draw(database, "people", release, _CHOICE, which=which, partition=partition, turn=turn)
    (level,) = register(database, "people", LEVEL)
    tabulate(database, "people", level, ["1", "2"], "01")
    tabulate(database, "people", level, ["3"], "4")
    for which, turn in ((0, 0), (1, 8)):
        draw(database, "people", level, LEVEL, which=which, partition="4", turn=turn)
    assert _verdict(database).valid
    _imported(new_database(), exported(database, signer), signer)


_PLACES = st.tuples(st.sampled_from("rs"), st.sampled_from("mn"), st.integers(0, 1), st.sampled_from(["", *"pqo"]))


@given(places=st.lists(_PLACES, max_size=9), remembered=st.integers(1, 3))
def test_the_first_repeated_draw_is_found_as_by_comparing_all_pairs(
    places: list[tuple[str, str, int, str]], remembered: int
) -> None:
    overlaps = DrawOverlaps()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(draw_check, "_REMEMBERED", remembered)
        for seq, (release, mechanism, repetition, partition) in enumerate(places, 2):
            said = Drawn(
                draw="d", mechanism=mechanism, partition=partition, repetition=repetition, noisy_hash="", size=1
            )
            overlaps.take(seq, release, said)
    repeats = [
        later
        for later, (*place, partition) in enumerate(places)
        if any(place == other and (name == partition or "" in (name, partition)) for *other, name in places[:later])
    ]
    if not repeats:
        overlaps.check_repeats()
        return
    with pytest.raises(BadRow, match="repeats that of entry") as found:
        overlaps.check_repeats()
    earlier = places[int(str(found.value).split("entry ")[1].split(",")[0]) - 2]
    assert found.value.seq == repeats[0] + 2
    assert earlier[:3] == places[repeats[0]][:3]
    assert earlier[3] == places[repeats[0]][3] or "" in (earlier[3], places[repeats[0]][3])


def _with_a_second_row(database_url: str, row: dict[str, Any]) -> None:
    """Put a row of draws back beside its like: behind an index that is away meanwhile."""
    columns = ", ".join(f'"{column}"' for column in row)
    statement = text(f"INSERT INTO draws ({columns}) VALUES ({', '.join(f':{column}' for column in row)})")
    if not database_url.startswith("sqlite"):
        with as_owner(database_url) as connection:
            name = connection.execute(
                text("SELECT conname FROM pg_constraint WHERE conrelid = 'draws'::regclass AND contype = 'u'")
            ).scalar_one()
            connection.execute(text(f"ALTER TABLE draws DROP CONSTRAINT {name}"))
            connection.execute(statement, row)
        return
    with as_owner(database_url) as connection:
        table = connection.execute(text("SELECT sql FROM sqlite_master WHERE name = 'draws'")).scalar_one()
        index = connection.execute(
            text("SELECT type, name, tbl_name, rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_draws_2'")
        ).one()
        loose = re.sub(r",\s*(CONSTRAINT \w+ )?UNIQUE \(release_id[^)]*\)", "", table)
        assert loose != table
        _set_schema(connection, loose)
        connection.execute(text("DELETE FROM sqlite_master WHERE name = 'sqlite_autoindex_draws_2'"))
    with as_owner(database_url) as connection:
        connection.execute(statement, row)
        _set_schema(connection, table)
        connection.execute(
            text("INSERT INTO sqlite_master (type, name, tbl_name, rootpage) VALUES (:type, :name, :tbl_name, :root)"),
            {"type": index.type, "name": index.name, "tbl_name": index.tbl_name, "root": index.rootpage},
        )


def _set_schema(connection: Connection, table: str) -> None:
    connection.execute(text("PRAGMA writable_schema = ON"))
    connection.execute(
        text("UPDATE sqlite_master SET sql = :sql WHERE name = 'draws' AND type = 'table'"), {"sql": table}
    )
    version = connection.execute(text("PRAGMA schema_version")).scalar_one()
    connection.execute(text(f"PRAGMA schema_version = {version + 1}"))


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws as of a version that did not compare the counters with the journal before each of them."""
    monkeypatch.setattr(draws, "journalled_counts", lambda *_: {})


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("partition", ["", "p"])
def test_one_mechanism_that_was_drawn_twice_is_found_although_an_index_says_once(
    database_url: str,
    database: Database,
    new_database: Callable[[], Database],
    signer: Signer,
    partition: str,
) -> None:
    plan = A | {"partitions": ["p"]} if partition else A
    release = _released(database, plan)
    draw(database, "people", release, plan, partition=partition)
    with as_owner(database_url) as connection:
        (row,) = connection.execute(text("SELECT * FROM draws"))
        connection.execute(text("DELETE FROM draws"))
        connection.execute(text("DELETE FROM partitions_drawn"))
    draw(database, "people", release, plan, partition=partition)
    database.close()
    _with_a_second_row(database_url, stored(row))
    assert _verdict(database) == Verdict(3, BadEntry(4, _DRAWN))
    _check_file(database, new_database(), signer, f"entry 4: {_DRAWN}")


@pytest.mark.parametrize(("first", "second"), [("", ""), ("p", "p"), ("", "p"), ("p", "")])
def test_both_branches_of_a_choice_are_found(
    database_url: str,
    database: Database,
    new_database: Callable[[], Database],
    signer: Signer,
    first: str,
    second: str,
) -> None:
    release = _released(database, _CHOICE)
    draw(database, "people", release, _CHOICE, which=0, partition=first)
    with pytest.raises(AlreadyDrawn):
        draw(database, "people", release, _CHOICE, which=2, partition=second)
    _away(
        database_url,
        lambda: draw(database, "people", release, _CHOICE, which=2, partition=second),
        "branches_taken",
    )
    assert _verdict(database) == Verdict(3, BadEntry(4, _OTHER))
    _check_file(database, new_database(), signer, f"entry 4: {_OTHER}")


def _drawn_or_tabulated(database: Database, release: str) -> list[Callable[[], object]]:
    """Return draws that exclude each other: tabulations of a group, draws of it or of the whole input at any turn."""
    return [
        lambda: tabulate(database, "people", release, ["1", "2"], "12"),
        lambda: tabulate(database, "people", release, ["2"], "0"),
        lambda: draw(database, "people", release, LEVEL, which=2, partition="2"),
        lambda: draw(database, "people", release, LEVEL, which=1, turn=3),
    ]


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0), (3, 1), (1, 3)])
def test_groups_that_were_drawn_twice_are_found(
    database_url: str,
    database: Database,
    new_database: Callable[[], Database],
    signer: Signer,
    first: int,
    second: int,
) -> None:
    release, whole = _released(database, LEVEL), 3
    acts = _drawn_or_tabulated(database, release)
    acts[first]()
    with pytest.raises(AlreadyDrawn):
        acts[second]()
    _away(database_url, acts[second], "branches_taken", *(["tabulations"] if second == whole else []))
    found = _verdict(database)
    assert found.entries == 3
    assert found.first_bad in {BadEntry(4, _TABULATED), BadEntry(4, _OTHER)}
    _check_file(database, new_database(), signer, f"entry 4: {found.first_bad.reason}")


_ONE = A | {"partitions": 1}
_ONE_EACH = _CHOICE | {"partitions": 1}
_TWO_GROUPS = LEVEL | {"partitions": 2}


def _one_of(plan: Any, which: int, partition: str, turn: int = 0) -> Callable[[Database, str], object]:
    return lambda database, release: draw(
        database, "people", release, plan, which=which, partition=partition, turn=turn
    )


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(
    ("plan", "first", "second", "found"),
    [
        (_ONE, _one_of(_ONE, 0, "p"), _one_of(_ONE, 0, "q"), _BEYOND),
        (_ONE_EACH, _one_of(_ONE_EACH, 0, "p"), _one_of(_ONE_EACH, 1, "q"), _ALL_BEYOND),
        (_ONE_EACH, _one_of(_ONE_EACH, 2, "p", 1), _one_of(_ONE_EACH, 0, "q", 1), _ALL_BEYOND),
        (
            _TWO_GROUPS,
            lambda database, release: tabulate(database, "people", release, ["1", "2"], "01", _TWO_GROUPS),
            lambda database, release: tabulate(database, "people", release, ["3"], "4", _TWO_GROUPS),
            _ALL_BEYOND,
        ),
        (
            _TWO_GROUPS,
            lambda database, release: tabulate(database, "people", release, ["1", "2"], "11", _TWO_GROUPS),
            lambda database, release: tabulate(database, "people", release, ["3"], "4", _TWO_GROUPS),
            _BEYOND,
        ),
    ],
)
def test_more_partitions_than_declared_are_found_whatever_was_counted(
    database_url: str,
    database: Database,
    new_database: Callable[[], Database],
    signer: Signer,
    plan: Any,
    first: Callable[[Database, str], object],
    second: Callable[[Database, str], object],
    found: str,
) -> None:
    release = _released(database, plan)
    first(database, release)
    with pytest.raises(Conflict, match="declared partitions are drawn"):
        second(database, release)
    assert _verdict(database).valid
    sound = exported(database, signer)
    _away(database_url, lambda: second(database, release), "partitions_drawn")
    assert _verdict(database) == Verdict(3, BadEntry(4, found))
    copy, file = new_database(), exported(database, signer)
    for read in (lambda: list(Reader(io.BytesIO(file), None).entries()), lambda: _imported(copy, file, signer)):
        with pytest.raises(BadExport, match=found):
            read()
    _imported(copy, sound, signer)


def test_numbers_that_are_kept_to_are_sound(database: Database) -> None:
    """Each turn has its own number, and each branch counts as the mechanism of it that was drawn for most."""
    plan = _CHOICE | {"partitions": 2}
    release = _released(database, plan)
    for which, partition, turn in ((1, "p", 0), (2, "p", 0), (1, "q", 0), (2, "r", 0), (0, "p", 1), (1, "q", 1)):
        draw(database, "people", release, plan, which=which, partition=partition, turn=turn)
    assert _verdict(database).valid
    for which, turn in ((0, 0), (0, 1), (2, 0)):
        with pytest.raises(Conflict, match="2 of 2 declared"):
            draw(database, "people", release, plan, which=which, partition="s", turn=turn)


def test_a_draw_whose_entry_was_changed_along_with_it_is_neither_read_nor_replayed(
    database_url: str, database: Database
) -> None:
    """The text of the entry, and its hash, are changed to say what the row says; and put back unseen."""
    release = _released(database, A)
    plan, noisy, request = read_plan(A), np.array([5, 6, 7]), asking("ann", "key", "digest")
    (mechanism,) = mechanisms_of(plan)

    def drawn_again() -> list[int]:
        sealed = draws.seal(places.place_of(plan, mechanism, Turn()), noisy)
        found = draws.draw(database, request, "people", release, sealed)
        return list(map(int, found.record.noisy))

    def listed() -> list[list[int]]:
        with database.read() as connection:
            account, mechanisms = accounts.read_account(connection, "people"), mechanisms_in(connection, release)
            page = stored_draws.list_draws(connection, account, release, 0, 10, 10**6, mechanisms)
        return [one.noisy.tolist() for one in page if isinstance(one, DrawRecord)]

    assert drawn_again() == drawn_again() == [5, 6, 7]
    forged = np.array([1, 1, 1], np.int64)
    with as_owner(database_url) as connection:
        row = dict(connection.execute(text("SELECT noisy, noisy_hash, seal FROM draws")).one()._mapping)
        entry = dict(connection.execute(text("SELECT body, hash FROM journal WHERE seq = 3")).one()._mapping)
        previous = connection.execute(text("SELECT hash FROM journal WHERE seq = 2")).scalar_one()
    body = entry["body"].replace(row["noisy_hash"], count_codec.digest(forged))
    changes: list[dict[str, object]] = [{"body": body}, {"body": body, "hash": journal.entry_hash(previous, body)}]
    for change in changes:
        for seal in (row["seal"], None):
            changed = row | {"noisy": count_codec.pack(forged), "noisy_hash": count_codec.digest(forged), "seal": seal}
            _put(database_url, changed, entry | change)
            for read in (drawn_again, listed):
                with pytest.raises(Unavailable, match="is not as the service wrote it"):
                    read()
    _put(database_url, row, entry)
    assert (listed(), drawn_again()) == ([[5, 6, 7]], [5, 6, 7])


def _put(database_url: str, row: dict[str, Any], entry: dict[str, Any]) -> None:
    with as_owner(database_url) as connection:
        connection.execute(text("UPDATE draws SET noisy = :noisy, noisy_hash = :noisy_hash, seal = :seal"), row)
        connection.execute(text("UPDATE journal SET body = :body, hash = :hash WHERE seq = 3"), entry)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seal", None),
        ("seal", "0" * 64),
        ("noisy", count_codec.pack(np.array([424242, 0, 0], np.int64))),
        ("noisy", b"no frame"),
        ("noisy_hash", count_codec.digest(np.array([424242, 0, 0], np.int64))),
        ("id", "another"),
        ("mechanism", "no mechanism"),
        ("partition", "37"),
        ("repetition", 1),
        ("size", 2),
        ("created_at", "2031-01-01T00:00:00.000000Z"),
        ("seq", 2),
        ("seq", 9),
    ],
)
def test_a_draw_that_is_not_as_its_entry_says_is_not_read(
    database_url: str, database: Database, column: str, value: object
) -> None:
    release = _released(database, A)
    draw(database, "people", release, A)
    account = account_of(database)
    with as_owner(database_url) as connection:
        beyond = "SELECT account_id, 9, kind, release_id, body, hash FROM journal WHERE seq = 3"
        connection.execute(text(f"INSERT INTO journal (account_id, seq, kind, release_id, body, hash) {beyond}"))
        connection.execute(text(f'UPDATE draws SET "{column}" = :value'), {"value": value})
    with database.read() as connection:
        (name,) = connection.execute(text("SELECT id FROM draws")).scalars()
        for read in (
            lambda: stored_draws.read_draw(connection, account, name, mechanisms_in(connection, release)),
            lambda: stored_draws.list_draws(
                connection, account, release, 0, 10, 10**6, mechanisms_in(connection, release)
            ),
        ):
            with pytest.raises(Unavailable, match="not as the service wrote it") as refused:
                read()
            assert repr(name) in str(refused.value.for_operator)
        if column != "noisy":
            with pytest.raises(Unavailable):
                stored_draws.list_outlines(connection, release, 0, 10, 10**6, mechanisms_in(connection, release))


def test_groups_that_are_not_as_the_entry_says_are_not_read(database_url: str, database: Database) -> None:
    release = _released(database, LEVEL)
    name = tabulate(database, "people", release, ["1", "2"], "12")
    account = account_of(database)
    for layout in (seal_layout(Layout("x", {}, ["2", "1"], "12")).packed, b"none", None):
        change = "DELETE FROM tabulations" if layout is None else "UPDATE tabulations SET layout = :layout"
        with as_owner(database_url) as connection:
            connection.execute(text(change), {"layout": layout} if layout else {})
        with database.read() as connection, pytest.raises(Unavailable):
            stored_draws.read_draw(connection, account, name, mechanisms_in(connection, release))
