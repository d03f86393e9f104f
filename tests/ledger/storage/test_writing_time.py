"""Bounds of what a draw or a tabulation writes, and plans, which are not read while others wait."""

import json
import sys
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, text

from service.errors import InvalidInput
from service.ledger.access import keys
from service.ledger.access.key_events import SeenKeys, see_keys
from service.ledger.draws import tabulated_groups
from service.ledger.journal.journal import Actor
from service.ledger.releases import settlement
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.writing_time import require_few_counts
from service.privacy.plans import notation
from tests.ledger import ledgers
from tests.ledger.charging import BOB, SECRET, approve, charge, commit, draw, mechanisms_in, open_account, reserve, void
from tests.ledger.statements import Statement, statements, steps_locked

T = TypeVar("T")
_DRAWN = {"type": "geometric", "epsilon": "0.01", "name": "a"}


@pytest.mark.parametrize(("kind", "most"), [("sqlite", 41_666_666), ("postgresql", 10_604_824)])
def test_the_most_counts_of_a_draw(kind: str, most: int) -> None:
    require_few_counts(kind, most, "/counts")
    with pytest.raises(InvalidInput, match=f"number of noisy counts {most + 1}, their bytes {8 * (most + 1)}") as found:
        require_few_counts(kind, most + 1, "/counts")
    assert [fault.pointer for fault in found.value.faults] == ["/counts"]


def test_each_group_is_looked_up_by_its_key_whatever_the_statistics_say(database: Database) -> None:
    """PostgreSQL joined by the level alone where its statistics were older than the groups: each with all of them."""
    explain = "EXPLAIN " if database.kind == "postgresql" else "EXPLAIN QUERY PLAN "
    given = {"release": "r", "node": "", "groups": json.dumps(["a", "b"])}

    def plan(connection: Any) -> str:
        if database.kind == "postgresql":
            connection.execute(text("ANALYZE branches_taken"))
            connection.execute(text("SET LOCAL enable_seqscan = off"))  # of an empty table it is the cheapest
        statement = str(tabulated_groups._statement(connection, tabulated_groups._DRAWN))
        return "\n".join(str(row) for row in connection.execute(text(explain + statement), given))

    found = database.write(plan, is_committed=lambda *_: False)
    assert "partition = given.value" in found.replace('"', "") or "node=? AND partition=?" in found
    assert "branches_taken_by_branch" not in found  # in which all groups of the level are equal
    assert "Join" not in found
    assert "Nested" not in found


def keys_made(database: Database, number: int, by: Actor | None = None, seen: SeenKeys | None = None) -> Actor:
    """Make keys of stewards; return the last one's."""

    def add(connection: Connection) -> Actor:
        given: dict[str, Any] = {"role": "steward", "accounts": None, "expires_at": None, "at": clock.now()}
        name = str(uuid.uuid4())
        record, _ = keys.create_key(connection, SECRET, name=name, by=by, seen=seen, **given)
        return Actor(name, record.id)

    return [database.write(add, is_committed=lambda *_: False) for _ in range(number)][-1]


def test_an_approval_reads_no_more_under_the_lock_however_many_keys_there_are(database: Database) -> None:
    """Nor does it read the entry of the proposal, which holds its plan; earlier approvals are few and short."""
    open_account(database, approval_above="0.05", definition="pure", epsilon="9")

    found: list[list[Statement]] = []
    for number in (1, 100):
        keys_made(database, number)
        large = charge(database, _DRAWN | {"epsilon": "0.5"})[0]
        with statements() as run:
            approve(database, large.id, request=BOB)
        found.append([one for one in run if one.locked])
    assert len(found[0]) == len(found[1])
    assert steps_locked(found[1]) <= steps_locked(found[0]) + 3
    bodies = [one.text for one in found[1] if "journal.body" in one.text and "installation" not in one.text]
    assert not [text for text in bodies if "kind = 'approved'" not in text]


def test_a_key_is_made_with_no_more_work_under_the_lock_however_many_there_are(database: Database) -> None:
    steward = keys_made(database, 1)
    found: list[list[Statement]] = []
    for number in (1, 100):
        keys_made(database, number)
        seen = see_keys(database, SECRET)
        with statements() as run:
            keys_made(database, 1, by=steward, seen=seen)
        found.append([one for one in run if one.locked])
    assert len(found[0]) == len(found[1])
    assert steps_locked(found[1]) <= steps_locked(found[0]) + 3


def test_no_plan_is_read_while_a_write_transaction_is_open(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    read = _watch(monkeypatch)
    time = ledgers.Clock(monkeypatch)
    open_account(database, "agency", definition="pure", epsilon="9")
    open_account(database, parent="agency", approval_above="0.05", definition="pure", epsilon="9")
    drawn, committed, voided, expiring = reserve(database, *[_DRAWN] * 4, hours=1)
    draw(database, drawn, _DRAWN)
    commit(database, committed)
    void(database, voided)
    (undrawn,) = reserve(database, {"type": "laplace", "epsilon": "0.01"})
    with pytest.raises(InvalidInput, match="expected a statement that nothing was published"):
        void(database, undrawn)
    large = charge(database, _DRAWN | {"epsilon": "0.5"})[0]
    approve(database, large.id, request=BOB)
    ledgers.describe(database, "people", committed, notes="n")
    time.forward(2)
    with database.read() as connection:
        account = connection.execute(text("SELECT id FROM accounts WHERE name = 'people'")).scalar_one()
    while settlement.expire(database, account):
        pass
    with database.read() as connection:
        state = connection.execute(text("SELECT state FROM releases WHERE id = :id"), {"id": expiring}).scalar_one()
        assert len(list(mechanisms_in(connection, drawn))) == 1
    assert state == "expired"
    assert False in read
    assert True not in read


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note of each plan that is read if a write transaction of this thread is open."""
    read: list[bool] = []
    writing: list[bool] = []
    read_plan, write = notation.read_plan, Database.write

    def noting(*arguments: Any, **named: Any) -> Any:
        read.append(bool(writing))
        return read_plan(*arguments, **named)

    def watched(self: Database, work: Callable[[Any], T], *arguments: Any, **named: Any) -> T:
        def inside(connection: Any) -> T:
            writing.append(True)
            try:
                return work(connection)
            finally:
                writing.pop()

        done: T = write(self, inside, *arguments, **named)
        return done

    for name, module in list(sys.modules.items()):
        if name.startswith("service.") and getattr(module, "read_plan", None) is read_plan:
            monkeypatch.setattr(module, "read_plan", noting)
    monkeypatch.setattr(Database, "write", watched)
    return read
