"""Partitions in the ledger: counted with each draw, counted again by verification, migrations and imports."""

import io
import json
import math
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, text

from service.errors import Altered, Conflict, Unavailable
from service.ledger.accounts import lines
from service.ledger.accounts.accounts import read_account
from service.ledger.descriptions import registry
from service.ledger.draws import draws, partitions, places, stored_draws as drawn
from service.ledger.draws.choice_branches import ChoiceBound, bounds_above, path_to
from service.ledger.draws.journalled_partitions import journalled_counts
from service.ledger.draws.stored_draws import Turn
from service.ledger.installation.signing import Signer
from service.ledger.releases import past_releases
from service.ledger.releases.releases import read_release
from service.ledger.storage.database import Database
from service.ledger.storage.migrate import downgrade, migrate
from service.ledger.storage.tables import Account, Base, Draw, Entry
from service.ledger.verification.export_reader import BadExport
from service.ledger.verification.imports import rebuild
from service.ledger.verification.verify import verify
from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Plan, Repeat
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import mechanisms_of, parts_of
from tests.ledger.charging import ANN, account_of, open_account, seal, unseal
from tests.ledger.ledgers import LEVEL, draw, exported, register, tabulate
from tests.ledger.statements import statements
from tests.ledger.writing import run, unprotected

_COUNTY: dict[str, Any] = {"type": "geometric", "epsilon": "0.001", "name": "county"}
_LISTED = _COUNTY | {"partitions": ["01", "02", "04"]}
_TWO: dict[str, Any] = {"type": "repeat", "count": 2, "part": _COUNTY}


def _opened(database: Database, name: str = "people") -> None:
    open_account(database, name, definition="pure", epsilon="1000")


def _counters(database: Database) -> dict[tuple[str, int], tuple[int | None, int]]:
    with database.read() as connection:
        rows = connection.execute(text("SELECT mechanism, repetition, most, drawn FROM partitions_drawn")).all()
    return {(row.mechanism, row.repetition): (row.most, row.drawn) for row in rows}


def _totals(database: Database, name: str = "people") -> tuple[int, int]:
    account = account_of(database, name)
    with database.read() as connection:
        assert partitions.own_total(connection, account.id) == (account.partitions_drawn, account.partitions_undeclared)
    return account.partitions_drawn, account.partitions_undeclared


def _reason(database: Database, name: str = "people") -> str | None:
    with database.read() as connection:
        bad = verify(connection, name).first_bad
    return None if bad is None else bad.reason


def test_a_draw_moves_the_counters_of_its_mechanism_and_of_its_account(database: Database) -> None:
    _opened(database)
    of_list, of_level = _LISTED | {"name": "listed"}, LEVEL | {"partitions": 5}
    listed, repeated, level = register(database, "people", of_list, _TWO, of_level)
    for partition in ("01", "04"):
        draw(database, "people", listed, of_list, partition=partition)
    for partition, turn in (("a", 0), ("b", 0), ("a", 1)):
        draw(database, "people", repeated, _TWO, partition=partition, turn=turn)
    tabulate(database, "people", level, ["x", "y", "z"], "011", of_level)
    assert _counters(database) == {
        ("x/t", 0): (5, 1),
        ("x/1", 0): (5, 2),
        ("x/2", 0): (5, 2),
        ("listed", 0): (3, 2),
        ("county", 0): (None, 2),
        ("county", 1): (None, 1),
    }
    assert _totals(database) == (10, 3)
    assert _reason(database) is None


def test_counts_of_the_accounts_under_one_are_added(database: Database) -> None:
    _opened(database, "agency")
    for name in ("one", "two"):
        open_account(database, name, parent="agency", definition="pure", epsilon="1000")
        (of,) = register(database, name, _COUNTY)
        draw(database, name, of, _COUNTY, partition="01")
    (own,) = register(database, "agency", _LISTED)
    draw(database, "agency", own, _LISTED, partition="01")
    with database.read() as connection:
        assert partitions.total(connection, account_of(database, "agency").id) == (3, 2)
        assert partitions.total(connection, account_of(database, "two").id) == (1, 1)


def test_counts_of_an_account_below_that_somebody_changed_are_not_added(database: Database) -> None:
    _opened(database, "agency")
    open_account(database, "one", parent="agency", definition="pure", epsilon="1000")
    (of,) = register(database, "one", _COUNTY)
    draw(database, "one", of, _COUNTY, partition="01")
    run(database, "UPDATE accounts SET head_seq = head_seq + 1, partitions_drawn = 0 WHERE name = 'one'")
    agency = account_of(database, "agency")
    with database.read() as connection, pytest.raises(Unavailable, match="not as the service wrote it") as refused:
        partitions.total(connection, agency.id)
    assert "'one'" in str(refused.value.for_operator)


def _tabulated(database: Database) -> tuple[str, list[int]]:
    """A release of which three tabulations are drawn; the number of the last entry before each, and at the end."""
    _opened(database)
    (level,) = register(database, "people", LEVEL)
    heads = [account_of(database).head.seq]
    for groups, details in ((["x", "y"], "01"), (["z"], "0"), (["u", "v"], "23")):
        tabulate(database, "people", level, groups, details)
        heads.append(account_of(database).head.seq)
    return level, heads


def _drawn_at(database: Database, release: str, seq: int) -> dict[str, int]:
    account = account_of(database)
    with database.read() as connection:
        return {
            one.mechanism: one.drawn
            for one in past_releases.omitted_parts_at(connection, account.id, release, seq).drawn
        }


def test_what_was_drawn_before_is_told_without_layouts_and_plans(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, heads = _tabulated(database)
    for module, name in ((drawn, "inflated"), (drawn, "read_layout"), (drawn, "read_plan"), (zlib, "decompressobj")):
        monkeypatch.setattr(module, name, None)  # whoever calls it fails
    assert [_drawn_at(database, level, seq) for seq in heads] == [
        {},
        {"x/1": 1, "x/2": 1, "x/t": 1},
        {"x/1": 1, "x/2": 1, "x/t": 2},
        {"x/1": 3, "x/2": 3, "x/t": 2},
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE known_costs SET cost = replace(cost, '1', '9')",
        "UPDATE known_costs SET state = 'another'",
        "DELETE FROM known_costs",
        "UPDATE known_costs SET subject = 'tabulation ' || (SELECT id FROM draws WHERE seq = 2)",
    ],
)
def test_numbers_of_tabulations_that_somebody_changed_are_not_counted(database: Database, statement: str) -> None:
    _opened(database)
    (plain, level) = register(database, "people", _COUNTY, LEVEL)
    tabulate(database, "people", level, ["x", "y"], "01")
    draw(database, "people", plain, _COUNTY, partition="01")
    before = account_of(database).head.seq - 2
    assert (_drawn_at(database, plain, before), _drawn_at(database, level, before)) == ({}, {})
    run(database, statement.replace("seq = 2", f"seq = {before + 2}"))
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        _drawn_at(database, level, before)
    if "draws" in statement:
        with pytest.raises(Unavailable, match="not as the service wrote it"):
            _drawn_at(database, plain, before)


def test_accounts_that_somebody_put_under_each_other_hold_up_nobody(database: Database) -> None:
    _opened(database, "agency")
    open_account(database, "people", parent="agency", definition="pure", epsilon="1000")
    ids = [account_of(database, name).id for name in ("agency", "people")]

    def tie(connection: Connection) -> None:
        if database.kind == "sqlite":
            for name in (
                connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
            ):
                connection.execute(text(f"DROP TRIGGER {name}"))
            connection.execute(text("PRAGMA ignore_check_constraints = ON"))
        else:
            connection.execute(text("ALTER TABLE accounts DISABLE TRIGGER ALL"))
            connection.execute(text("ALTER TABLE accounts DROP CONSTRAINT accounts_parent"))
        connection.execute(
            text("UPDATE accounts SET parent_id = :below WHERE id = :id"), {"id": ids[0], "below": ids[1]}
        )
        connection.execute(text("UPDATE accounts SET seal = NULL"))

    database.write(tie, is_committed=lambda *_: False)
    seal(database)
    with database.read() as connection:
        assert partitions.total(connection, ids[0]) == (0, 0)
        assert registry.count_draws(connection, ids[0]) == 0
        with pytest.raises(Conflict, match="has no root"):
            lines.line_above(connection, "people")


def test_draws_of_an_account_that_was_never_opened_count_nowhere(database: Database) -> None:
    """The attack: any role that may add rows could have a registry entry state other numbers of draws."""
    _opened(database)
    (of,) = register(database, "people", _COUNTY)
    draw(database, "people", of, _COUNTY, partition="01")
    database.newest.complete = True
    people = account_of(database).id

    def copied(table: type[Base], **changed: str) -> str:
        names = [column.name for column in table.__table__.columns]
        values = ", ".join(changed.get(name, name) for name in names)
        return f"INSERT INTO {table.__tablename__} ({', '.join(names)}) SELECT {values} FROM {table.__tablename__}"

    run(
        database,
        copied(Account, id="2", name="'zz'", parent_id="id", head_seq="9") + " WHERE id = :id",
        copied(Entry, account_id="2", seq="9") + " WHERE account_id = :id AND kind = 'drawn'",
        copied(Draw, id="'new'", account_id="2", seq="9", partition="'02'"),
        id=people,
    )
    with database.read() as connection:
        assert registry.count_draws(connection, people) == 1


def test_a_draw_that_is_refused_moves_no_counter(database: Database) -> None:
    _opened(database)
    plan = _COUNTY | {"partitions": 1}
    (of,) = register(database, "people", plan)
    draw(database, "people", of, plan, partition="01")
    with pytest.raises(Conflict, match="1 of 1 declared partitions are drawn"):
        draw(database, "people", of, plan, partition="02")
    assert (_counters(database), _totals(database)) == ({("county", 0): (1, 1)}, (1, 0))


def test_the_table_itself_holds_no_more_than_is_declared(database: Database) -> None:
    _opened(database)
    plan = _COUNTY | {"partitions": 1}
    (of,) = register(database, "people", plan)
    draw(database, "people", of, plan, partition="01")
    with pytest.raises(Altered):
        run(database, "UPDATE partitions_drawn SET drawn = 2")


def _nested(depth: int) -> dict[str, Any]:
    """A repeated mechanism below choices above each other, each of two branches that share 9 partitions."""
    plan: dict[str, Any] = {"type": "repeat", "count": 4, "part": _COUNTY | {"partitions": 9}}
    for number in range(depth):
        other = _COUNTY | {"name": f"other {number}", "partitions": 9}
        plan = {"type": "choice", "parts": [plan, {"type": "repeat", "count": 1 + number, "part": other}]}
    return {"type": "repeat", "count": 3, "part": plan}


def test_a_draw_below_many_choices_looks_up_as_much_as_below_one(database: Database) -> None:
    _opened(database)
    numbers = []
    for depth in (1, 20):
        plan = _nested(depth)
        (of,) = register(database, "people", plan)
        for turn in range(4):
            with statements() as asked:
                _draw_one(database, of, plan, 0, Turn(f"p{turn}", turn))
        counters = [one for one in asked if "partitions_drawn" in one.text and "accounts" not in one.text]
        numbers.append((sum(one.locked for one in counters), sum(not one.locked for one in counters)))
    # Under the lock its counter before and after; before that also the mechanisms that were drawn, and all their turns.
    assert numbers == [(2, 3), (2, 3)]


def test_branches_share_what_is_declared_in_each_turn_of_each_choice(database: Database) -> None:
    """Draws at random, each held against the bound as its definition has it, of all counters together."""
    _opened(database)
    plan, chosen, refused = _nested(2), random.Random(15), 0
    (of,) = register(database, "people", plan)
    value = read_plan(plan)
    mechanisms = list(mechanisms_of(value))
    for number in range(150):
        mechanism = chosen.choice(mechanisms)
        name = mechanism.name or ""
        turn = chosen.randrange(3 * {"county": 4, "other 0": 1, "other 1": 2}[name])
        counters = {at: drawn for at, (_, drawn) in _counters(database).items()}
        after = counters | {(name, turn): counters.get((name, turn), 0) + 1}
        fits = after[name, turn] <= 9 and all(
            sum(_runs(after, bound).values()) <= 9 for bound in bounds_above(value, mechanism, turn)
        )
        try:
            _draw_one(database, of, plan, mechanisms.index(mechanism), Turn(f"p{number}", turn))
        except Conflict:
            assert not fits
            assert _counters(database).keys() == counters.keys()
            refused += 1
        else:
            assert fits
    assert 20 < refused < 130
    assert _reason(database) is None


def _draw_one(database: Database, release: str, plan: Any, which: int, turn: Turn) -> None:
    value = read_plan(plan)
    place = places.place_of(value, list(mechanisms_of(value))[which], turn)
    draws.draw(database, ANN, "people", release, draws.seal(place, np.array([7])))


def test_bounds_find_each_mechanism_as_the_tree_says() -> None:
    """Held against the definition, choice by choice, in random plans of two declared numbers."""
    chosen, compared = random.Random(28), 0
    for _ in range(60):
        names = (f"{chosen.randrange(10**9)} {number}" for number in range(10**6))
        plan = read_plan(_random_plan(chosen, names, 6))
        for mechanism in mechanisms_of(plan):
            for repetition in {0, chosen.randrange(30)}:
                for bound in bounds_above(plan, mechanism, repetition):
                    truth = _of_definition(plan, bound, mechanism)
                    assert {one.name: bound.find(one.name or "") for one in mechanisms_of(plan)} == truth
                    assert repetition in (truth[mechanism.name] or (0, range(0)))[1]
                    assert bound.find("") is None
                    compared += 1
    assert compared > 500


def _random_plan(chosen: random.Random, names: Iterator[str], depth: int) -> dict[str, Any]:
    kind = chosen.choice(["sequence", "parallel", "choice", "choice", "repeat", "repeat"]) if depth else ""
    if not kind:
        return _COUNTY | {"name": next(names), "partitions": chosen.choice([7, 7, 9])}
    below = [_random_plan(chosen, names, depth - chosen.choice([1, 1, 2, depth])) for _ in range(3) if depth > 1]
    below = below or [_random_plan(chosen, names, 0)]
    if kind == "repeat":
        return {"type": kind, "count": chosen.randrange(1, 5), "part": below[0]}
    return {"type": kind, "parts": below} | ({"max_degree": 1} if kind == "parallel" else {})


def _of_definition(plan: Plan, bound: ChoiceBound, of: Mechanism) -> dict[str | None, tuple[int, range] | None]:
    found: dict[str | None, tuple[int, range] | None] = {one.name: None for one in mechanisms_of(plan)}
    for step in bound.pointer.split("/")[1:]:
        if step != "parts":
            plan = parts_of(plan)[0 if step == "part" else int(step)]
    for branch, part in enumerate(parts_of(plan)):
        for one in mechanisms_of(part):
            if one.partitions == of.partitions:
                times = math.prod(node.count for node, _ in path_to(part, one) if isinstance(node, Repeat))
                found[one.name] = branch, range(bound.turn * times, (bound.turn + 1) * times)
    return found


def _runs(counters: Mapping[tuple[str, int], int], bound: ChoiceBound) -> dict[int, int]:
    runs: dict[int, int] = {}
    for (name, repetition), number in counters.items():
        branch, repetitions = bound.find(name) or (0, range(0))
        if repetition in repetitions:
            runs[branch] = max(runs.get(branch, 0), number)
    return runs


# Verification


def test_a_stored_draw_outside_its_declaration_is_found(database: Database) -> None:
    """The ledger is told why a draw is to be refused; a faulty server says nothing."""
    _opened(database)
    (of,) = register(database, "people", _LISTED)
    for partition in ("01", "99"):
        draw(database, "people", of, _LISTED, partition=partition)
    assert _reason(database) == "the draw is of a partition that the plan does not declare"


def test_draws_that_were_counted_without_their_declaration_are_found(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _opened(database)
    plan = _COUNTY | {"partitions": 1}
    (of,) = register(database, "people", plan)
    count: Callable[..., object] = partitions.count
    monkeypatch.setattr(partitions, "count", lambda *given: count(*given[:-1], None))
    monkeypatch.setattr(partitions, "counts_after", lambda *_: {})
    for partition in ("01", "02"):
        draw(database, "people", of, plan, partition=partition)
    assert _reason(database) == "the partitions of the mechanism are not counted as its plan declares them"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE partitions_drawn SET drawn = drawn - 1",
        "UPDATE partitions_drawn SET most = 1000",
        "UPDATE partitions_drawn SET most = NULL",
        "UPDATE partitions_drawn SET repetition = 7",
        "UPDATE partitions_drawn SET mechanism = 'other'",
        "DELETE FROM partitions_drawn",
    ],
)
def test_a_counter_that_was_changed_is_found(database: Database, statement: str) -> None:
    _opened(database)
    (of,) = register(database, "people", _LISTED)
    for partition in ("01", "02"):
        draw(database, "people", of, _LISTED, partition=partition)
    assert _reason(database) is None
    for trigger in ("forward", "no_delete" if database.kind == "sqlite" else "stay"):
        of = "" if database.kind == "sqlite" else " ON partitions_drawn"
        run(database, f"DROP TRIGGER partitions_drawn_{trigger}{of}")
    run(database, statement)
    assert "count" in (_reason(database) or "")


def _counter(database: Database) -> dict[str, Any]:
    with database.read() as connection:
        return dict(connection.execute(text("SELECT drawn, seal FROM partitions_drawn")).one()._mapping)


def test_servers_count_each_others_draws(database: Database, replica: Database) -> None:
    _opened(database)
    plan = _COUNTY | {"partitions": 9}
    (of,) = register(database, "people", plan)
    for number, server in enumerate([database, replica, replica, database, database, replica]):
        draw(server, "people", of, plan, partition=str(number))
        register(server, "people", _COUNTY)
    for server in (database, replica):
        with server.read() as connection:
            account = read_account(connection, "people")
            release = read_release(connection, account.id, of)
            for _ in range(2):
                assert journalled_counts(connection, account, release, [("county", 0)]) == {("county", 0): 6}


@pytest.mark.parametrize("anew", [False, True])
def test_a_counter_that_is_put_back_permits_no_draw(database: Database, replica: Database, *, anew: bool) -> None:
    """Neither to the process that drew nor to another one: the journal's texts state each draw."""
    _opened(database)
    plan = _COUNTY | {"partitions": 3}
    (release,) = register(database, "people", plan)
    draw(database, "people", release, plan, partition="a")
    earlier = _counter(database)
    draw(database, "people", release, plan, partition="b")
    latest = _counter(database)
    put = "UPDATE partitions_drawn SET drawn = :drawn, seal = :seal"
    server = replica if anew else database
    unprotected(database, "partitions_drawn", put, **earlier)
    for _ in range(2):
        with pytest.raises(Altered, match="partitions drawn"):
            draw(server, "people", release, plan, partition="c")
    unprotected(database, "partitions_drawn", put, **latest)
    register(database, "people", plan)
    draw(server, "people", release, plan, partition="c")
    assert _counter(database)["drawn"] == 3
    with pytest.raises(Conflict, match="3 of 3"):
        draw(database, "people", release, plan, partition="d")


# Migrations


def test_an_older_ledger_gets_the_counters_that_it_would_have(database: Database) -> None:
    _opened(database)
    (repeated,), (level,) = register(database, "people", _TWO), register(database, "people", LEVEL)
    unnamed = {"type": "sequence", "parts": [{"type": "geometric", "epsilon": "0.1"}, LEVEL]}
    (nested,) = register(database, "people", unnamed)
    for partition, turn in (("a", 0), ("b", 0), ("a", 1)):
        draw(database, "people", repeated, _TWO, partition=partition, turn=turn)
    draw(database, "people", nested, unnamed, partition="37")
    tabulate(database, "people", level, ["x", "y", "z"], "011")
    tabulate(database, "people", level, ["u"], "2")
    counters, totals = _counters(database), _totals(database)
    assert totals == (3 + 1 + 1 + 3 + 3, 3 + 1 + 1 + 3 + 3)
    unseal(database)
    downgrade(database, "0010")
    migrate(database)
    seal(database)
    assert (_counters(database), _totals(database)) == (counters, totals)
    assert _reason(database) is None
    draw(database, "people", repeated, _TWO, partition="c", turn=1)
    assert _counters(database)[("county", 1)] == (None, 2)


def test_a_ledger_with_declarations_is_not_taken_back(database: Database) -> None:
    _opened(database)
    register(database, "people", _COUNTY | {"name": '"partitions": 3'})
    unseal(database)
    downgrade(database, "0010")
    migrate(database)
    seal(database)
    register(database, "people", _LISTED)
    unseal(database)
    with pytest.raises(Conflict, match="partitions"):
        downgrade(database, "0010")


# Exports


def _imported(copy: Database, file: bytes, signer: Signer) -> None:
    rebuild(copy, lambda: io.BytesIO(file), signer.public_key)


def test_an_import_counts_partitions_and_refuses_what_is_not_declared(
    new_database: Callable[[], Database], signer: Signer
) -> None:
    ledger, copy = new_database(), new_database()
    _opened(ledger)
    (of,) = register(ledger, "people", _LISTED)
    draw(ledger, "people", of, _LISTED, partition="01")
    _imported(copy, exported(ledger, signer), signer)
    assert (_counters(copy), _totals(copy)) == ({("county", 0): (3, 1)}, (1, 0))
    draw(ledger, "people", of, _LISTED, partition="99")  # as a faulty server would
    with pytest.raises(BadExport, match="the plan does not declare"):
        _imported(new_database(), exported(ledger, signer), signer)


def test_a_plan_is_stored_as_it_declares(database: Database) -> None:
    _opened(database)
    (of,) = register(database, "people", _LISTED)
    with database.read() as connection:
        plan = json.loads(connection.execute(text("SELECT plan FROM releases WHERE id = :id"), {"id": of}).scalar_one())
        (subplan,) = connection.execute(text("SELECT subplan FROM spending")).scalars()
    assert plan == _LISTED
    assert "partitions" not in subplan
    (mechanism,) = mechanisms_of(read_plan(plan))
    assert mechanism.partitions is not None
