"""Attacks by a writer of the database who has not the secret: none of it is taken for the servers' own."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.errors import Altered, Conflict, Unavailable
from service.ledger.accounts import accounts, budgets
from service.ledger.accounts.budgets import read_budget, read_price
from service.ledger.descriptions.registry import largest_budget
from service.ledger.draws import partitions, stored_draws
from service.ledger.installation.signing import signer_of
from service.ledger.journal import canonical_json, journal
from service.ledger.journal.chains import BadEntry
from service.ledger.journal.journal import Actor, Head, entry_hash
from service.ledger.journal.replay import replay
from service.ledger.releases import charges, past_releases, settlement
from service.ledger.releases.held_charges import held_totals
from service.ledger.spending.kept_figures import KeptFigures, keep, read_kept
from service.ledger.spending.spending_history import spending_history
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Draw
from service.ledger.verification import exports
from service.ledger.verification.receipts import receipt_of
from service.ledger.verification.recompute import RepricedRelease, recompute
from service.ledger.verification.verify import verify
from service.privacy.accounting.totals import Totals
from tests.ledger.charging import (
    ANN,
    SECRET,
    account_of,
    approve,
    change_account,
    charge,
    commit,
    draw,
    entries_of,
    open_account,
    prepared,
    release_of,
    reserve,
    seal,
    void,
)
from tests.ledger.ledgers import Clock, describe, exported
from tests.ledger.writing import hold_of, put_back, run, unprotected

_PLAN = {"type": "geometric", "epsilon": "0.4", "name": "a"}
_MORE = {"definition": "pure", "epsilon": "5"}
_UNSEALED = "its row, or the last entry of its journal, was not written by the service"


def _first_bad(database: Database, name: str = "people") -> BadEntry | None:
    with database.read() as connection:
        return verify(connection, name).first_bad


def _refused(database: Database) -> None:
    """Check that every read and change of the account is refused."""
    acts: tuple[Callable[[], object], ...] = (
        lambda: account_of(database),
        lambda: charges.dry_run(database, prepared(database, _PLAN)),
        lambda: charge(database, _PLAN),
        lambda: change_account(database, "people", "closed"),
        lambda: recompute(database, "people", apply=True),
        lambda: _exported(database),
    )
    for act in acts:
        with pytest.raises(Unavailable, match="not as the service wrote it") as refused:
            act()
        assert "'people'" in str(refused.value.for_operator)
        assert "people" not in str(refused.value), "whoever may read an account only may be answered this for another"


def _exported(database: Database) -> None:
    with database.read() as connection:
        exports.members(connection)


@pytest.mark.parametrize(
    "change",
    [
        {"totals": budgets.write_totals(Totals())},
        {"budget": json.dumps(_MORE)},
        {"state": "closed"},
        {"approval_above": None},
        {"approval_above": "7"},
        {"next_expiry": "2000-01-01T00:00:00.000000Z"},
        {"next_expiry": "no time at all"},
        {"releases": 0},
        {"partitions_drawn": 9},
        {"partitions_undeclared": 9},
        {"head_hash": "0" * 64},
        {"seal": "0" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_row_that_somebody_changed_is_not_read(database: Database, change: dict[str, object]) -> None:
    open_account(database, approval_above="0.5", **{**_MORE, "epsilon": "1"})
    charge(database, _PLAN)
    columns = ", ".join(f"{column} = :{column}" for column in change)
    run(database, f"UPDATE accounts SET head_seq = head_seq + 1, {columns}", **change)
    _refused(database)
    assert _first_bad(database) is not None


def test_another_accounts_seal_and_row_are_not_taken(database: Database) -> None:
    open_account(database)
    open_account(database, "places")
    charge(database, _PLAN, name="places")
    columns = ("totals", "head_seq", "head_hash", "releases", "seal")
    given = ", ".join(f"{column} = (SELECT {column} FROM accounts WHERE name = 'places')" for column in columns)
    run(database, f"UPDATE accounts SET {given} WHERE name = 'people'")
    _refused(database)
    charge(database, _PLAN, name="places")


def _forge(database: Database, kind: journal.Kind, content: dict[str, object], release: str | None, **row: str) -> None:
    """Append an entry with all that follows from it but the seal."""
    with database.read() as connection:
        found = connection.execute(text("SELECT id, head_seq, head_hash FROM accounts")).one()
    chain = journal.AccountHead(found.id, "people", Head(found.head_seq, found.head_hash))
    actor = Actor("ann", "key-of-ann")
    entry, head = journal.following(chain, kind, content, actor=actor, release_id=release, at=clock.now())
    changed = row | {"head_seq": head.seq, "head_hash": head.hash}
    run(
        database,
        "INSERT INTO journal (account_id, seq, kind, release_id, body, hash)"
        " VALUES (:account_id, :seq, :kind, :release_id, :body, :hash)",
        f"UPDATE accounts SET {', '.join(f'{column} = :{column}' for column in changed)}",
        **entry,
        **changed,
    )


def test_an_entry_that_gives_budget_back_is_not_taken(database: Database) -> None:
    """A greater cap past two persons, a release at nothing by an accountant that nobody knows, totals of nothing."""
    open_account(database, approval_above="0.5", **{**_MORE, "epsilon": "1"})
    (charged,) = charge(database, _PLAN)
    with database.read() as connection:
        price = json.loads(connection.execute(text("SELECT price FROM releases")).scalar_one())
    free = price | {"epsilon": "0", "rho": "0"}
    nothing = budgets.write_totals(Totals())
    _forge(database, "budget_changed", {"budget": _MORE}, None, budget=json.dumps(_MORE))
    assert _first_bad(database) == BadEntry(3, _UNSEALED)
    _refused(database)
    run(database, "UPDATE releases SET price = :price, accountant = '0'", price=json.dumps(free))
    repriced: dict[str, object] = {"was": price, "price": free, "accountant": "0"}
    _forge(database, "repriced", repriced, charged.id, totals=nothing)
    assert _first_bad(database) == BadEntry(4, _UNSEALED)
    _refused(database)
    refused: dict[str, object] = {"name": "x", "plan_digest": "", "account": None, "definition": None}
    _forge(database, "refused", refused | {"cap": None, "requested": None, "remaining": None}, None)
    assert _first_bad(database) == BadEntry(5, _UNSEALED)
    _refused(database)


def test_an_entry_beyond_the_head_proposes_nothing(database: Database) -> None:
    open_account(database, approval_above="0.5", **{**_MORE, "epsilon": "1"})
    body: dict[str, object] = {
        "account": "people",
        "actor": "bob",
        "content": {"budget": _MORE},
        "kind": "change_proposed",
    }
    body |= {"release": None, "seq": 3, "time": clock.now()}
    run(
        database,
        "INSERT INTO journal (account_id, seq, kind, body, hash) VALUES (1, 3, 'change_proposed', :body, '')",
        body=canonical_json.canonical(body),
    )
    change = read_budget(_MORE)
    told = change_account(database, "people", change)
    assert told.waits
    assert told.account.budget.cap == 1
    assert told.account.proposed is not None
    assert told.account.proposed.by.name == "ann"
    assert _first_bad(database) is not None
    with pytest.raises((Altered, Conflict)):
        charge(database, _PLAN)  # its entry has no room


def test_entries_beyond_the_head_change_no_price_and_no_budget_and_are_not_exported(database: Database) -> None:
    """A release that is said to have cost more would be priced again, and the difference be left of the budget."""
    open_account(database, **{**_MORE, "epsilon": "1"})
    charge(database, _PLAN)
    before, entries = account_of(database), entries_of(database)
    said = json.loads(entries[1].body)
    dearer = said["content"] | {"price": said["content"]["price"] | {"epsilon": "0.8"}}
    forged: tuple[tuple[journal.Kind, dict[str, object], str | None], ...] = (
        ("committed", dearer, said["release"]),
        ("repriced", {"was": dearer["price"], "price": dearer["price"], "accountant": "0"}, said["release"]),
        ("budget_changed", {"budget": _MORE}, None),
    )
    for number, (kind, content, release) in enumerate(forged):
        chain = journal.AccountHead(before.id, "people", Head(10**9 + number, "0" * 64))
        row, _ = journal.following(chain, kind, content, actor=Actor("ann"), release_id=release, at=clock.now())
        run(
            database,
            "INSERT INTO journal (account_id, seq, kind, release_id, body, hash)"
            " VALUES (:account_id, :seq, :kind, :release_id, :body, :hash)",
            **row,
        )
    assert recompute(database, "people", apply=True) == RepricedRelease(before, [], [])
    lines = exported(database, signer_of(SECRET)).decode().splitlines()
    with database.read() as connection:
        assert largest_budget(connection, before) == before.budget
        assert journal.entries(connection, before.id, 0, 10, until=before.head.seq) == entries
    assert len(lines) == 1 + len(entries)
    assert _first_bad(database) == BadEntry(3, "the entry is missing")


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE holds SET price = (SELECT price FROM holds WHERE release_id = :other)"],
        ["UPDATE holds SET seal = NULL"],
        ["UPDATE holds SET seal = (SELECT seal FROM holds WHERE release_id = :other)"],
        [
            "DELETE FROM holds WHERE release_id = :release",
            "INSERT INTO holds (release_id, account_id, price, expires_at, seal)"
            " SELECT :release, account_id, price, expires_at, seal FROM holds WHERE release_id = :other",
        ],
        ["DELETE FROM holds WHERE release_id = :release"],
    ],
)
def test_a_hold_that_somebody_changed_gives_nothing_back(database: Database, statements: list[str]) -> None:
    open_account(database, **_MORE)
    release, other = reserve(database, _PLAN, _PLAN | {"epsilon": "4"})
    run(database, *statements, release=release, other=other)
    before = account_of(database)
    with pytest.raises(Unavailable, match="not as the service wrote it") as refused:
        void(database, release)
    assert release in str(refused.value.for_operator)
    assert account_of(database) == before
    assert release_of(database, release).state == "reserved"
    assert _first_bad(database) is not None


def test_a_hold_whose_time_was_changed_does_not_end(database: Database) -> None:
    open_account(database)
    (release,) = reserve(database, _PLAN)
    over = "2000-01-01T00:00:00.000000Z"
    row = f"INSERT INTO holds SELECT release_id, account_id, price, '{over}', seal, caps, periods FROM holds_before"
    run(
        database,
        "CREATE TABLE holds_before AS SELECT * FROM holds",
        "DELETE FROM holds",
        row,
        "DROP TABLE holds_before",
    )
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        settlement.expire(database, 1)
    assert release_of(database, release).state == "reserved"


def test_a_release_that_was_never_charged_is_not_read(database: Database) -> None:
    open_account(database)
    (charged,) = charge(database, _PLAN)
    columns = "account_id, 7, name, plan, tags, delta, 'committed', price, accountant, created_at, NULL, seal, NULL"
    entry = {"account": "people", "release": "new", "content": {"plan": _PLAN, "tags": []}, "kind": "committed"}
    run(
        database,
        f"INSERT INTO releases SELECT 'new', {columns} FROM releases",
        "INSERT INTO journal (account_id, seq, kind, body, hash) VALUES (1, 7, 'committed', :body, '')",
        body=canonical_json.canonical(entry | {"seq": 7}),
    )
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        release_of(database, "new")
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        draw(database, "new", _PLAN)
    assert release_of(database, charged.id).state == "committed"


@pytest.mark.parametrize("state", ["reserved", "committed"])
def test_a_proposal_whose_state_was_changed_is_neither_drawn_nor_settled(database: Database, state: str) -> None:
    open_account(database, approval_above="0.1", **_MORE)
    (proposed,) = reserve(database, _PLAN)
    assert release_of(database, proposed).state == "proposed"
    run(database, f"UPDATE releases SET state = '{state}'")
    before = account_of(database)
    acts: tuple[Callable[[], object], ...] = (
        lambda: draw(database, proposed, _PLAN),
        lambda: commit(database, proposed),
        lambda: void(database, proposed),
        lambda: approve(database, proposed),
        lambda: release_of(database, proposed),
    )
    for act in acts:
        with pytest.raises(Unavailable, match="not as the service wrote it"):
            act()
    assert account_of(database) == before
    assert _first_bad(database) is not None


def test_a_state_of_another_release_is_not_taken(database: Database) -> None:
    open_account(database, **_MORE)
    held, settled = reserve(database, _PLAN, _PLAN)
    commit(database, settled)
    run(
        database,
        "UPDATE releases SET state = 'committed', seal = (SELECT seal FROM releases WHERE id = :settled)"
        " WHERE id = :held",
        held=held,
        settled=settled,
    )
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        draw(database, held, _PLAN)


def test_nobody_approves_what_they_proposed_under_another_name(database: Database) -> None:
    """The database's owner writes another proposer into the entry, for as long as one request takes."""
    open_account(database, approval_above="0.1", **_MORE)
    (proposed,) = reserve(database, _PLAN)
    other = 'UPDATE journal SET body = replace(body, \'"actor":"ann"\', \'"actor":"bob"\') WHERE seq = 2'
    unprotected(database, "journal", other)
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        approve(database, proposed, request=ANN)


def test_a_receipt_states_the_price_of_the_journal_and_not_that_of_the_row(database: Database) -> None:
    open_account(database, **_MORE)
    (charged,) = charge(database, _PLAN)
    with database.read() as connection:
        before = receipt_of(connection, account_of(database), charged.id, "")["charged"]
    run(
        database,
        "UPDATE releases SET price = :price, accountant = '0'",
        price=json.dumps(before["price"] | {"rho": "0"}),
    )
    with database.read() as connection:
        assert receipt_of(connection, account_of(database), charged.id, "")["charged"] == before


def test_an_overdue_reservation_is_not_left_out_by_a_plan_that_nobody_sealed(database: Database) -> None:
    open_account(database, **_MORE)
    (held,) = reserve(database, _PLAN)
    small = json.dumps({"type": "geometric", "epsilon": "0.1", "name": "a"})
    unprotected(database, "releases", "UPDATE releases SET plan = :plan", plan=small)
    after = "9999-01-01T00:00:00.000000Z"
    with database.read() as connection, pytest.raises(Unavailable, match="not as the service wrote it") as refused:
        settlement.present_account(connection, accounts.read_account(connection, "people"), after)
    assert held in str(refused.value.for_operator)


def test_a_hold_of_a_settled_release_is_not_added_up(database: Database) -> None:
    open_account(database, **_MORE)
    (held,) = reserve(database, _PLAN)
    hold = hold_of(database, held)
    commit(database, held)
    put_back(database, hold)
    with database.read() as connection, pytest.raises(Unavailable, match="not as the service wrote it"):
        held_totals(connection, accounts.read_account(connection, "people"), clock.now())


@pytest.mark.parametrize(("column", "value"), [("seal", "é"), ("cost", "2"), ("cost", b"1")])
def test_stored_figures_that_somebody_changed_are_not_used(database: Database, column: str, value: object) -> None:
    if database.kind == "postgresql" and isinstance(value, bytes):
        value = value.hex()  # its columns hold text only
    keep(database, SECRET, [KeptFigures("subject", "state", "1")])
    with database.read() as connection:
        assert read_kept(connection, SECRET, "state", ["subject"]) == {"subject": "1"}
    run(database, f"UPDATE known_costs SET {column} = :value", value=value)
    with database.read() as connection:
        assert read_kept(connection, SECRET, "state", ["subject"]) == {}


@pytest.mark.parametrize(
    "forge",
    [
        'SET body = replace(body, \'"actor":"ann"\', \'"actor":"bob"\') WHERE seq = 2',
        f"SET hash = '{'0' * 64}' WHERE seq = 1",
        "SET hash = 'no hash' WHERE seq = 1",
    ],
)
def test_a_text_that_nobody_hashed_is_not_signed(database: Database, forge: str) -> None:
    open_account(database, **_MORE)
    (charged,) = charge(database, _PLAN)
    unprotected(database, "journal", f"UPDATE journal {forge}")
    with database.read() as connection, pytest.raises(Unavailable, match="not as the service wrote it") as refused:
        receipt_of(connection, account_of(database), charged.id, clock.now())
    assert charged.id in str(refused.value.for_operator)


def test_a_budget_that_nobody_hashed_is_not_stated(database: Database) -> None:
    """A registry entry would bound what was published by a budget that the account never had."""
    open_account(database, **_MORE)
    forged = 'UPDATE journal SET body = replace(body, \'"epsilon":"5"\', \'"epsilon":"7"\') WHERE seq = 1'
    with database.read() as connection:
        assert largest_budget(connection, account_of(database)) == account_of(database).budget
    unprotected(database, "journal", forged)
    with database.read() as connection, pytest.raises(Unavailable, match="not as the service wrote it"):
        largest_budget(connection, account_of(database))


def test_a_release_is_read_and_settled_as_it_was_stated(database: Database) -> None:
    open_account(database, "agency")
    open_account(database, parent="agency")
    plan: dict[str, Any] = {"type": "sequence", "parts": [_PLAN, _PLAN | {"name": "é", "epsilon": "1/3"}]}
    (committed,), (reserved,) = charge(database, plan), reserve(database, plan)
    commit(database, reserved)
    for release in (committed.id, reserved):
        assert release_of(database, release).document == plan
        draw(database, release, plan)
    entries_of(database)
    entries_of(database, "agency")


def test_a_hold_at_an_older_price_gives_back_no_more_than_there_is(database: Database) -> None:
    """Its seal was right once: only ``verify`` and sums below nothing tell that it was priced again since."""
    open_account(database, **_MORE)
    (release,) = reserve(database, _PLAN)
    price = {"epsilon": "7", "rho": "1", "delta": "0", "linear": "0", "quanta": list[str]()}
    dear = json.dumps(budgets.write_price(read_price(price)))
    run(database, "UPDATE holds SET price = :price, seal = NULL", price=dear)
    seal(database)
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        void(database, release)
    assert release_of(database, release).state == "reserved"


def _below_one(database: Database, seq: int, kind: journal.Kind, content: dict[str, object]) -> None:
    """Write an entry with such a number, where the trigger that refuses it is away."""
    drop = {"sqlite": "DROP TRIGGER {}_numbered", "postgresql": "DROP TRIGGER {0}_numbered ON {0}"}[database.kind]
    body = {"account": "people", "actor": "bob", "content": content, "kind": kind, "release": None, "seq": seq}
    run(
        database,
        *(drop.format(table).replace("TRIGGER", "TRIGGER IF EXISTS") for table in ("journal", "descriptions", "draws")),
        "INSERT INTO journal (account_id, seq, kind, body, hash) VALUES (1, :seq, :kind, :body, :hash)",
        seq=seq,
        kind=kind,
        body=canonical_json.canonical(body | {"time": "2026-11-22T10:00:00.000000Z"}),
        hash="0" * 64,
    )


def test_entries_below_number_one_count_for_nothing(database: Database) -> None:
    """Nobody vouches for them: they raise no budget, propose nothing, describe nothing and are of no draw."""
    open_account(database, approval_above="0.5", **{**_MORE, "epsilon": "1"})
    (charged,) = charge(database, _PLAN)
    draw(database, charged.id, _PLAN)
    before, entries = account_of(database), entries_of(database)
    _below_one(database, 0, "change_proposed", {"budget": _MORE})
    _below_one(database, -1, "budget_changed", {"budget": _MORE})
    _below_one(database, -2, "described", {"metadata": {"notes": "nobody said this"}})
    for seq in (-3, -4):
        _below_one(database, seq, "drawn", {"draw": "another"})
    row = "release_id, mechanism, 'p', repetition, account_id, -3, size, noisy, noisy_hash, created_at"
    run(
        database,
        'INSERT INTO descriptions VALUES (1, -2, NULL, \'{"notes":"nobody said this"}\')',
        "INSERT INTO draws (id, release_id, mechanism, partition, repetition, account_id, seq, size, noisy, noisy_hash,"
        f" created_at, seal) SELECT 'another', {row}, seal FROM draws",
    )
    assert account_of(database) == before
    with database.read() as connection:
        assert largest_budget(connection, before) == before.budget
        assert journal.entries(connection, before.id, -9, 10, until=before.head.seq) == entries
        assert journal.hash_before(connection, before.id, 1) == "00" * 32
        assert replay(connection, before, before.head.seq).account == before
        assert len(spending_history(connection, before, 10).steps) == 2
        with pytest.raises(Unavailable, match="not as the service wrote it"):
            stored_draws.read_draw(connection, before, "another", {})
    describe(database, "people", name="what somebody said")
    assert account_of(database).metadata == {"name": "what somebody said"}
    assert _first_bad(database) == BadEntry(1, "the entry is missing")


@pytest.mark.parametrize("mechanism", ["a", "another"])
def test_partitions_that_were_never_drawn_are_neither_shown_nor_signed(database: Database, mechanism: str) -> None:
    open_account(database, **_MORE)
    (charged,) = charge(database, _PLAN | {"partitions": 5})
    columns = "release_id, mechanism, repetition, most, drawn"
    counter = f"INSERT INTO partitions_drawn ({columns}) VALUES (:release, :mechanism, 0, 4000, 3143)"
    run(database, counter, release=charged.id, mechanism=mechanism)
    with database.read() as connection:
        for read in (
            lambda: receipt_of(connection, account_of(database), charged.id, clock.now()),
            lambda: partitions.drawn_for(connection, [charged.id]),
        ):
            with pytest.raises(Unavailable, match="not as the service wrote it") as refused:
                read()
            assert charged.id in str(refused.value.for_operator)
    if mechanism == "a":
        with pytest.raises(Unavailable, match="not as the service wrote it"):
            draw(database, charged.id, _PLAN | {"partitions": 5}, partition="p")
    assert _first_bad(database) is not None


@pytest.mark.parametrize("forged", ["counter", "draw"])
def test_an_answer_that_is_given_again_states_no_partitions_that_somebody_else_wrote(
    database: Database, forged: str
) -> None:
    open_account(database, **_MORE)
    (charged,) = charge(database, _PLAN | {"partitions": 5})
    for partition in ("p", "q"):
        draw(database, charged.id, _PLAN | {"partitions": 5}, partition=partition)

    def before(last: int) -> list[partitions.DrawnFor]:
        with database.read() as connection:
            account = accounts.read_account(connection, "people")
            return past_releases.omitted_parts_at(connection, account.id, charged.id, account.head.seq - last).drawn

    assert [before(last) for last in (0, 1, 2)] == [[("a", 5, 2)], [("a", 5, 1)], []]
    if forged == "counter":
        columns, values = "release_id, mechanism, repetition, most, drawn, seal", ":release, 'a', 7, 4000, 3143, seal"
        run(
            database,
            f"INSERT INTO partitions_drawn ({columns}) SELECT {values} FROM partitions_drawn",
            release=charged.id,
        )
    else:
        names = [column.name for column in Draw.__table__.columns]
        values = ", ".join({"id": "'new'", "partition": "'r'"}.get(name, name) for name in names)
        run(
            database,
            f"INSERT INTO draws ({', '.join(names)}) SELECT {values} FROM draws WHERE partition = 'q'",
        )
    with pytest.raises(Unavailable, match="not as the service wrote it") as refused:
        before(1)
    assert (charged.id if forged == "counter" else "new") in str(refused.value.for_operator)


def test_metadata_that_nobody_stated_are_neither_shown_nor_journalled(database: Database) -> None:
    open_account(database, **_MORE)
    (charged,) = charge(database, _PLAN)
    describe(database, "people", name="people")
    describe(database, "people", charged.id, name="a release")
    for release in (None, charged.id):
        run(
            database,
            'INSERT INTO descriptions VALUES (1, :seq, :release, \'{"notes":"nobody said this"}\')',
            seq=2 if release is None else 9,
            release=release,
        )
    assert account_of(database).metadata == {"name": "people"}
    assert release_of(database, charged.id).metadata == {"name": "a release"}
    describe(database, "people", description="an edit")
    describe(database, "people", charged.id, description="an edit")
    assert account_of(database).metadata == {"name": "people", "description": "an edit"}
    assert release_of(database, charged.id).metadata == {"name": "a release", "description": "an edit"}
    assert _first_bad(database) is not None


def test_metadata_whose_entry_was_changed_are_not_shown(database: Database) -> None:
    open_account(database, **_MORE)
    (charged,) = charge(database, _PLAN)
    describe(database, "people", name="people")
    describe(database, "people", charged.id, name="people")
    other = 'UPDATE journal SET body = replace(body, \'"name":"people"\', \'"name":"others"\') WHERE seq > 2'
    unprotected(database, "journal", other)
    for read in (lambda: account_of(database), lambda: release_of(database, charged.id)):
        with pytest.raises(Unavailable, match="not as the service wrote it"):
            read()


def test_a_hold_that_nobody_wrote_leaves_no_time_behind(database: Database) -> None:
    """A row of another release's, and the row of one that was settled: neither is the next to expire."""
    open_account(database, **_MORE)
    (charged,) = charge(database, _PLAN)
    (settled,) = reserve(database, _PLAN)
    kept = hold_of(database, settled)
    commit(database, settled)
    first, next_one = reserve(database, _PLAN)[0], reserve(database, _PLAN, hours=2)[0]
    forged = kept | {"release_id": charged.id, "expires_at": "2001-01-01T00:00:00.000000Z"}
    for row in (forged, kept):
        put_back(database, row)
    commit(database, first)
    assert account_of(database).next_expiry == release_of(database, next_one).expires_at
    run(database, "DELETE FROM holds WHERE release_id <> :release", release=next_one)
    charge(database, _PLAN)
    entries_of(database)


def test_a_hold_that_was_put_back_is_told_of(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not left out: an account beside which somebody writes is for an operator to look at."""
    time = Clock(monkeypatch)
    open_account(database, **_MORE)
    (expired,) = reserve(database, _PLAN)
    kept = hold_of(database, expired)
    reserve(database, _PLAN, hours=5)
    time.forward(2)
    charge(database, _PLAN)
    assert release_of(database, expired).state == "expired"
    put_back(database, kept)
    time.forward(4)
    before = account_of(database)
    with database.read() as connection:
        for act in (
            lambda: charge(database, _PLAN),
            lambda: settlement.present_account(connection, before, clock.now()),
        ):
            with pytest.raises(Unavailable, match="not as the service wrote it") as refused:
                act()
            assert expired in str(refused.value.for_operator)
    run(database, "DELETE FROM holds WHERE release_id = :release", release=expired)
    charge(database, _PLAN)
    entries_of(database)


def _retold(database: Database, seq: int, old: str, new: str) -> None:
    """Change an entry's text, and with it the hash beside it, as somebody who has no secret can; others stay."""
    with database.read() as connection:
        query = text("SELECT body FROM journal WHERE account_id = 1 AND seq = :seq")
        body = connection.execute(query, {"seq": seq}).scalar_one()
        previous = journal.hash_before(connection, 1, seq)
    assert old in body
    changed = body.replace(old, new)
    edit = "UPDATE journal SET body = :body, hash = :hash WHERE account_id = 1 AND seq = :seq"
    unprotected(database, "journal", edit, body=changed, hash=entry_hash(previous, changed), seq=seq)


def test_a_past_that_somebody_retold_is_not_told(database: Database) -> None:
    open_account(database, **_MORE)
    charge(database, _PLAN)
    charge(database, _PLAN)
    _retold(database, 2, '"epsilon":"2/5"', '"epsilon":"1/5"')
    account = account_of(database)
    tellers: tuple[Callable[[Connection], object], ...] = (
        lambda connection: replay(connection, account, 2),
        lambda connection: replay(connection, account, 3),
        lambda connection: spending_history(connection, account, 10),
    )
    for tell in tellers:
        with database.read() as connection, pytest.raises(Unavailable, match="not as the service wrote it") as refused:
            tell(connection)
        assert "entry 3 of account 1" in str(refused.value.for_operator)


@pytest.mark.parametrize("of_release", [False, True])
def test_words_that_somebody_retold_are_not_journalled_again(database: Database, of_release: bool) -> None:
    open_account(database, **_MORE)
    (charged,) = charge(database, _PLAN)
    release = charged.id if of_release else None
    describe(database, "people", release, name="people")
    charge(database, _PLAN)
    _retold(database, 3, '"name":"people"', '"name":"others"')
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        describe(database, "people", release, description="an edit")
    assert _head_of(database) == 4


def _head_of(database: Database) -> int:
    """The number of the account's last entry, whatever can be read of it."""
    with database.read() as connection:
        return int(connection.execute(text("SELECT head_seq FROM accounts WHERE id = 1")).scalar_one())


def test_a_proposal_that_somebody_retold_is_not_approved_by_who_proposed_it(database: Database) -> None:
    open_account(database, approval_above="0.5", **{**_MORE, "epsilon": "1"})
    change = read_budget(_MORE)

    def ask() -> bool:
        return change_account(database, "people", change).waits

    assert ask()
    charge(database, _PLAN)
    _retold(database, 2, '"actor":"ann"', '"actor":"eve"')
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        ask()
    assert _head_of(database) == 3
