"""Export and import: whatever a ledger has been through, its file rebuilds it, and no other file does."""

import base64
import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import Connection, select, text

from service.errors import Altered, Conflict, NotFound, Unavailable
from service.ledger.accounts import account_order, account_rows, accounts
from service.ledger.draws import count_codec, draws, places as draw_places
from service.ledger.draws.partitions import total
from service.ledger.draws.stored_draws import Turn
from service.ledger.installation.sealing import sealed_rows
from service.ledger.installation.signing import Signer, signer_of
from service.ledger.journal import canonical_json, chains, journal
from service.ledger.journal.journal import Head
from service.ledger.storage import clock
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.migrate import migrate
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, Base
from service.ledger.verification import exports
from service.ledger.verification.adoption import adopt
from service.ledger.verification.export_reader import BadExport, Reader
from service.ledger.verification.imports import rebuild
from service.ledger.verification.verify import verify
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import mechanisms_of
from tests.ledger.charging import ANN, SECRET, account_of, bind_as_before, charge, entries_of, open_account, unseal
from tests.ledger.ledgers import (
    ACTIONS,
    NAMES,
    OLD_NAMES,
    A,
    Clock,
    Step,
    draw_what_is_held,
    everything,
    exported,
    play,
)
from tests.ledger.writing import as_owner, run, unprotected

_SAME = (
    "accounts",
    "releases",
    "holds",
    "release_tags",
    "spending",
    "journal",
    "draws",
    "branches_taken",
    "tabulations",
    "descriptions",
)
_SEALED_AGAIN = ("accounts", "releases", "holds")


def _imported(database: Database, file: bytes, signer: Signer) -> None:
    rebuild(database, lambda: io.BytesIO(file), signer.public_key)


def _contents(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of the ledger, with what is JSON in them as values: rebuilt, names may come in another order.

    Rows that can change have the seals of their version of the ledger, of which only the number is compared.
    """
    found: dict[str, list[tuple[Any, ...]]] = {}
    assert database.secret is not None
    with database.read() as connection:
        found["sealed"] = [(sealed_rows(connection, database.secret, ()).number,)]
        for table in (Base.metadata.tables[name] for name in _SAME):
            again = table.name in _SEALED_AGAIN
            columns = [column for column in table.columns if not (again and column.name == "seal")]
            rows = connection.execute(select(*columns).order_by(*table.primary_key)).all()
            found[table.name] = [tuple(map(_value, row)) for row in rows]
    return found


def _value(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


_steps = st.lists(st.tuples(st.sampled_from(ACTIONS), *(st.integers(0, 6) for _ in range(3))), min_size=1, max_size=25)


@given(steps=_steps)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
def test_a_random_ledger_is_rebuilt_from_its_export(
    new_database: Callable[[], Database], signer: Signer, steps: list[Step]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        original, copy = new_database(), new_database()
        play(original, Clock(monkeypatch), steps)
        file = exported(original, signer)
        _imported(copy, file, signer)
        assert _contents(copy) == _contents(original)
        for name in OLD_NAMES:
            assert account_of(copy, name) == account_of(original, name)
            assert len(entries_of(copy, name)) == len(entries_of(original, name))
        assert exported(copy, signer) == file


def test_a_ledger_with_everything_in_it_is_rebuilt_from_its_export(
    new_database: Callable[[], Database], signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, copy = new_database(), new_database()
    everything(original, Clock(monkeypatch))
    file = exported(original, signer)
    _imported(copy, file, signer)
    assert _contents(copy) == _contents(original)
    for name in NAMES:
        assert entries_of(copy, name) == entries_of(original, name)


def test_keys_that_reached_a_threshold_are_rebuilt(new_database: Callable[[], Database], signer: Signer) -> None:
    original, copy = new_database(), new_database()
    open_account(original, definition="pure", epsilon="9", delta="0.1")
    plan = {"type": "geometric", "epsilon": "1", "threshold": {"at_least": 9}}
    (charged,) = charge(original, plan)
    (mechanism,) = mechanisms_of(read_plan(plan))
    sealed = draws.seal(draw_places.place_of(mechanism, mechanism, Turn()), np.array([9, 12]), ("é", "a key"))
    draws.draw(original, ANN, "people", charged.id, sealed)
    file = exported(original, signer)
    _imported(copy, file, signer)
    assert _contents(copy) == _contents(original)
    with copy.read() as connection:
        assert verify(connection, "people").valid
    line = next(number for number, one in enumerate(file.splitlines()) if b'"noisy"' in one)
    stored = json.loads(file.splitlines()[line])["noisy"]
    forged = count_codec.pack(np.array([9, 12]), ("é", "another key"))
    with pytest.raises(BadExport):
        _imported(new_database(), file.replace(stored.encode(), base64.b64encode(forged)), signer)


def test_a_family_is_exported_together_and_another_is_not(database: Database, signer: Signer) -> None:
    for name, parent in (("a", None), ("b", None), ("a.1", "a"), ("a.2", "a"), ("a.1.1", "a.1")):
        open_account(database, name, parent=parent)
    with database.read() as connection:
        assert [member.name for member in exports.members(connection, ["a.2"])] == ["a", "a.1", "a.2", "a.1.1"]
        assert [member.name for member in exports.members(connection, ["b", "b"])] == ["b"]
        assert [member.name for member in exports.members(connection)] == ["a", "b", "a.1", "a.2", "a.1.1"]
        assert len(exports.members(connection, ["b", "a"])) == 5
        with pytest.raises(NotFound):
            exports.members(connection, ["b", "c"])
        members = exports.members(connection, ["a.1"])
    lines = [json.loads(line) for line in exports.export(database, signer, members, clock.now())]
    assert {chains.read_body(line["entry"])["account"] for line in lines[1:]} == {"a", "a.1", "a.2", "a.1.1"}


def test_an_export_of_all_accounts_lacks_none(database_url: str, database: Database) -> None:
    """The attack: the row of an account is away for the moment in which the accounts are looked up."""
    open_account(database, "a")
    open_account(database, "b")
    assert entries_of(database, "b")
    with as_owner(database_url) as owner:
        owner.execute(text("DELETE FROM accounts WHERE name = 'b'"))
    with database.read() as connection, pytest.raises(Altered, match="the ledger is not as the service wrote it"):
        exports.members(connection)
    with database.read() as connection:
        assert [member.name for member in exports.members(connection, ["a"])] == ["a"]


_REST = ", ".join(column.name for column in Account.__table__.columns if column.name not in ("id", "name"))
_ROGUE = (
    f"INSERT INTO accounts (id, name, {_REST}) SELECT (SELECT max(id) + 1 FROM accounts), :name, {_REST} FROM accounts"
    " WHERE name = 'a.1'"
)


def _listed(database: Database) -> list[list[str]]:
    """Return the names in lists in several orders, in pages of one and of ten."""
    found = []
    with database.read() as connection:
        with pytest.raises(Altered):
            exports.members(connection)  # whoever imports one that lacks a row would forget its charges
        assert [member.name for member in exports.members(connection, ["b"])] == ["b"]
        for limit in (1, 10):
            page = accounts.list_accounts(connection, "", limit, accounts.Wanted())
            names = [account.name for account in page]
            while page.more and names:
                page = accounts.list_accounts(connection, names[-1], limit, accounts.Wanted())
                names += [account.name for account in page]
            found.append(names)
        orders = get_args(account_order.Order)
        ranked = [account_order.first_ranked(connection, one, None, 10, accounts.Wanted()) for one in orders]
        found += [sorted(rank.name for rank in ranks) for ranks in ranked]
        found.append([account.name for account in accounts.read_accounts(connection, ["a", "b", "m", "zz"])])
        assert total(connection, account_of(database, "a").id) is not None
    return found


def test_accounts_that_were_never_opened_are_left_out(database: Database) -> None:
    """The attack: inserted rows of accounts, each of which refused every list and every export of all accounts."""
    for name, parent in (("a", None), ("a.1", "a"), ("b", None)):
        open_account(database, name, parent=parent)
    database.newest.complete = True
    for name in ("0", "m", "n", "zz"):
        run(database, _ROGUE, name=name)
    *lists, some = _listed(database)
    assert lists == [["a", "a.1", "b"]] * 5
    assert some == ["a", "b"]
    with database.read() as connection, pytest.raises(Altered):
        exports.members(connection, ["m"])


@pytest.mark.parametrize("complete", [True, False])
def test_an_account_that_was_opened_is_never_left_out(database: Database, *, complete: bool) -> None:
    """The attack: the seal of an account is taken away, so that an export lacks it and its import forgets it.

    Where the process may not know all accounts, it cannot tell them from those that were never opened.
    """
    for name in ("a", "a.1"):
        open_account(database, name)
    database.newest.complete = complete
    if complete:
        run(database, "UPDATE accounts SET seal = 'x' WHERE name = 'a'")
    else:
        run(database, _ROGUE, name="m")
    reads: list[Callable[[Connection], object]] = [
        exports.members,
        lambda connection: accounts.list_accounts(connection, "", 10, accounts.Wanted()),
        lambda connection: accounts.read_accounts(connection, ["a", "m"]),
    ]
    for read in reads:
        with database.read() as connection, pytest.raises(Altered):
            read(connection)


def test_an_account_that_was_opened_does_not_vanish_under_another_name(database: Database) -> None:
    """The attack: its row is renamed for a moment, so that it looks like one that was never opened."""
    for name, parent in (("a", None), ("a.1", "a")):
        open_account(database, name, parent=parent)
    database.newest.complete = True
    above = account_of(database, "a").id
    unprotected(database, "accounts", "UPDATE accounts SET name = 'z' WHERE name = 'a.1'")
    reads: list[Callable[[Connection], object]] = [
        lambda connection: accounts.list_accounts(connection, "", 10, accounts.Wanted()),
        lambda connection: accounts.list_accounts(connection, "", 10, accounts.Wanted(parent="a")),
        lambda connection: accounts.read_account(connection, "a.1"),
        lambda connection: total(connection, above),
    ]
    for read in reads:
        with database.read() as connection, pytest.raises(Altered) as refused:
            read(connection)
        assert "account 'a.1'" in str(refused.value.for_operator)
    with database.read() as connection, pytest.raises(NotFound):
        accounts.read_account(connection, "m")


def test_a_layout_beside_a_draw_that_is_no_tabulation_is_not_exported(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: any role that may add rows could make exports that nobody can import."""
    everything(database, Clock(monkeypatch))
    before = exported(database, signer)
    run(
        database,
        "INSERT INTO tabulations (draw_id, layout) SELECT id, (SELECT layout FROM tabulations LIMIT 1) FROM draws"
        " WHERE id NOT IN (SELECT draw_id FROM tabulations)",
    )
    assert exported(database, signer) == before


def test_the_heads_that_are_signed_are_those_whose_seals_were_checked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the database can have two statements find different rows."""
    open_account(database, definition="pure", epsilon="2")
    rows_of_accounts = account_rows.sealed_rows
    with database.read() as connection:
        (before,) = exports.members(connection)
        charge(database, A)

        def checked(_: Connection, ids: Sequence[int]) -> Iterator[Any]:
            with database.read() as other:
                yield from rows_of_accounts(other, ids)

        monkeypatch.setattr(account_rows, "sealed_rows", checked)
        (after,) = exports.members(connection)
    assert (before.head.seq, after.head.seq) == (1, 2)


def test_an_export_ends_at_the_heads_that_it_began_with(new_database: Callable[[], Database], signer: Signer) -> None:
    original, copy = new_database(), new_database()
    open_account(original)
    charge(original, A)
    with original.read() as connection:
        members = exports.members(connection)
    lines = exports.export(original, signer, members, clock.now())
    first = next(lines)
    charge(original, A)
    _imported(copy, (first + "".join(lines)).encode(), signer)
    assert len(entries_of(copy)) == 2


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines of an export of a ledger with everything in it."""
    database = open_database(f"sqlite:///{tmp_path_factory.mktemp('export') / 'ledger.db'}")
    database.secret = SECRET
    migrate(database)
    with pytest.MonkeyPatch.context() as monkeypatch:
        everything(database, Clock(monkeypatch))
    lines = exported(database, signer_of(SECRET)).splitlines(keepends=True)
    database.close()
    return lines


def _read(lines: list[bytes], signer: Signer) -> None:
    for _ in Reader(io.BytesIO(b"".join(lines)), signer.public_key).entries():
        pass


def _refused_at(lines: list[bytes], signer: Signer) -> int:
    with pytest.raises(BadExport) as refused:
        _read(lines, signer)
    return refused.value.line


def test_a_whole_file_is_read_without_a_database(file: list[bytes], signer: Signer) -> None:
    _read(file, signer)


@pytest.mark.parametrize("places", [1, pytest.param(5, marks=pytest.mark.statistics)])
def test_a_file_that_was_changed_in_any_line_is_refused_there(file: list[bytes], signer: Signer, places: int) -> None:
    """In each line at one of five places in turn, or at all of them: each time the file is read up to there."""
    for at, line in enumerate(file):
        every = (1, len(line) // 3, len(line) // 2, len(line) - 20, len(line) - 3) * 2
        for where in every[at % 5 :][:places]:
            changed = line[:where] + bytes([line[where] ^ 1]) + line[where + 1 :]
            found = _refused_at([*file[:at], changed, *file[at + 1 :]], signer)
            assert found == at + 1, (line, changed)


def test_a_name_that_stands_twice_in_a_line_is_refused(file: list[bytes], signer: Signer) -> None:
    """Some readers take the first of two, which nothing covers."""
    for at, line in enumerate(file):
        name = next(iter(json.loads(line)))
        twice = line.replace(b"{", f'{{"{name}":"forged",'.encode(), 1)
        assert _refused_at([*file[:at], twice, *file[at + 1 :]], signer) == at + 1


@pytest.mark.parametrize("ways", [1, pytest.param(3, marks=pytest.mark.statistics)])
def test_a_file_that_was_cut_off_is_refused(file: list[bytes], signer: Signer, ways: int) -> None:
    """After each line in one of three ways in turn, or in all of them."""
    for length, next_line in enumerate(file):
        every: tuple[list[bytes], ...] = ([], [next_line[: len(next_line) // 2]], [next_line[:-1]]) * 2
        for rest in every[length % 3 :][:ways]:
            assert _refused_at([*file[:length], *rest], signer) == length + 1


def test_a_file_with_a_line_less_or_more_is_refused_there_or_later(file: list[bytes], signer: Signer) -> None:
    for at in range(len(file)):
        assert _refused_at(file[:at] + file[at + 1 :], signer) >= at + 1
        assert _refused_at([*file[: at + 1], file[at], *file[at + 1 :]], signer) == at + 2
    assert _refused_at([*file, file[1]], signer) == len(file) + 1


@pytest.mark.parametrize(
    "line",
    [
        b"\n", b"{}\n", b"[]\n", b"null\n", b"1\n", b"\xff\n", b"NaN\n", b"[" * 100_000 + b"\n",
        b'{"entry": 1, "hash": 2}\n',
        b'{"entry": "{}", "hash": ""}\n', b'{"entry": "{\\"account\\":7}", "hash": "00"}\n',
        b'{"entry": "{\\"account\\":\\"agency\\",\\"seq\\":1.5}", "hash": "00"}\n',
        b'{"entry": "{\\"account\\":\\"agency\\"}", "hash": "zz"}\n', b'{"draw": "x", "noisy": ""}\n',
    ],
)  # fmt: skip
def test_what_is_no_entry_is_refused_with_its_line(file: list[bytes], signer: Signer, line: bytes) -> None:
    for at in (0, 1, 2, len(file) - 1):
        assert _refused_at([*file[:at], line, *file[at:]], signer) == at + 1


@pytest.mark.parametrize(
    "content",
    [
        {"unit": None}, {"neighbouring": "both"}, {"budget": {"definition": "zcdp"}}, {"budget": None},
        {"admission": {}},
        {"parent": "nobody"}, {"parent": 7}, {"approval_above": 7}, {"more": "than is known"},
    ],
)  # fmt: skip
def test_an_opening_that_says_something_else_is_refused_although_it_is_signed(
    database: Database, signer: Signer, content: dict[str, Any]
) -> None:
    """The holder of the key can sign anything; what cannot be a ledger is refused all the same."""
    open_account(database)
    said = json.loads(entries_of(database)[0].body)
    said["content"] |= content
    body = canonical_json.canonical(said)
    head = {"account": "people", "seq": 1, "hash": journal.entry_hash(journal.BEFORE_FIRST.hash, body)}
    first = signer.sign("export", {"version": 1, "accounts": [head]})
    lines = [json.dumps(line).encode() + b"\n" for line in (first, {"entry": body, "hash": head["hash"]})]
    assert _refused_at(lines, signer) == 2


def test_noisy_counts_that_unpack_to_more_than_was_drawn_are_refused(file: list[bytes], signer: Signer) -> None:
    (at, *_) = (at for at, line in enumerate(file) if b'"noisy"' in line)
    draw = json.loads(file[at])
    bombs = [
        zlib.compress(bytes(10**8)),
        count_codec.pack(np.zeros(10**8, np.int64)),
        base64.b64decode(draw["noisy"]) + b"1",
    ]
    for noisy in (*(base64.b64encode(bomb).decode() for bomb in bombs), "", "!", None, 7):
        changed = json.dumps(draw | {"noisy": noisy}).encode() + b"\n"
        assert _refused_at([*file[:at], changed, *file[at + 1 :]], signer) == at + 1


def test_an_import_leaves_nothing_to_adopt(new_database: Callable[[], Database], signer: Signer) -> None:
    """Rows added between the import and the first start are refused, whatever secret bound the database before."""
    original, copy = new_database(), new_database()
    open_account(original)
    charge(original, A)
    bind_as_before(copy)
    _imported(copy, exported(original, signer), signer)
    open_account(copy, "forged")
    unseal(copy)
    adopt(copy, SECRET, None)
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        account_of(copy, "forged")


def test_nothing_is_imported_of_a_file_that_is_refused(database: Database, file: list[bytes], signer: Signer) -> None:
    before = _contents(database)
    assert not before["accounts"]
    for lines in (file[:-1], [*file, file[-1]], [*file[:-2], file[-1]]):
        with pytest.raises(BadExport, match="line "):
            _imported(database, b"".join(lines), signer)
        assert _contents(database) == before
    _imported(database, b"".join(file), signer)
    with pytest.raises(Conflict, match="without accounts"):
        _imported(database, b"".join(file), signer)
    with database.read() as connection:
        assert all(verify(connection, name).valid for name in NAMES)


def test_a_file_of_another_installation_is_taken_with_its_key_alone(
    new_database: Callable[[], Database], signer: Signer
) -> None:
    another, database = signer_of(Secret(bytes(32))), new_database()
    open_account(database)
    charge(database, A)
    file = exported(database, another)
    copy = new_database()
    with pytest.raises(BadExport, match="line 1: the statement names another public key"):
        _imported(copy, file, signer)
    _imported(copy, file, another)
    assert account_of(copy) == account_of(database)


def test_charges_that_were_left_out_of_an_ancestors_chain_are_missed(database: Database, signer: Signer) -> None:
    """A signer who is not honest could leave an ancestor's entries out; the sums of a family show it."""
    open_account(database, "agency")
    open_account(database, "product", parent="agency")
    charge(database, A, name="product")
    with database.read() as connection:
        root, child = exports.members(connection)
    first = Head(1, entries_of(database, "agency")[0].hash)
    lines = list(exports.export(database, signer, [replace(root, head=first), child], clock.now()))
    with pytest.raises(BadExport, match="the releases of 'agency' are not those of it and the accounts under it"):
        _read([line.encode() for line in lines], signer)


@pytest.mark.parametrize("voided", [False, True])
def test_a_draw_of_what_was_not_committed_is_not_imported(
    database: Database,
    new_database: Callable[[], Database],
    signer: Signer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    voided: bool,
) -> None:
    draw_what_is_held(database, monkeypatch, voided=voided)
    with pytest.raises(BadExport, match="no committed release" if voided else "before it is committed"):
        _imported(new_database(), exported(database, signer), signer)
