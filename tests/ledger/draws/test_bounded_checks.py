"""The checks of a draw: their work under the write lock does not grow with earlier draws, and refusals take no lock."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, text

from service.errors import AlreadyDrawn, Conflict
from service.ledger.draws import branch_rows, choice_branches, draws, partitions, places
from service.ledger.draws.stored_draws import Turn
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import mechanisms_of
from tests.ledger.charging import ANN
from tests.ledger.ledgers import LEVEL, draw, register, tabulate
from tests.ledger.statements import Statement, statements, steps_locked

_A: dict[str, Any] = {"type": "geometric", "epsilon": "0.001", "name": "a"}
_B = _A | {"name": "b"}
_MANY = 300


def _refused(database: Database, release: str, plan: Any, *, which: int, partition: str = "") -> list[Statement]:
    with statements() as found, pytest.raises(AlreadyDrawn):
        draw(database, "people", release, plan, which=which, partition=partition)
    return found


@pytest.mark.parametrize("details", ["0", "1"])
def test_a_refusal_reads_no_more_however_many_groups_are_tabulated(people: Database, details: str) -> None:
    """Each way that a draw of a tabulated level is refused: the total, a step, and one of the groups."""
    few, many = register(people, "people", LEVEL, LEVEL)
    tabulate(people, "people", few, ["g 0"], details)
    for part in range(3):
        tabulate(
            people,
            "people",
            many,
            [f"g {part} {number}" for number in range(_MANY)] + [f"g {part}"],
            details * (_MANY + 1),
        )
    for which in range(3):
        for partition in ("", "g 0"):
            first, second = (_refused(people, of, LEVEL, which=which, partition=partition) for of in (few, many))
            assert not any(one.locked for one in (*first, *second))
            most = sum(one.steps for one in first) + len(second)  # hundreds, counted from anywhere within one
            assert sum(one.steps for one in second) <= most


def test_another_branch_and_an_earlier_draw_are_found_by_their_indexes(people: Database) -> None:
    (of,) = register(people, "people", LEVEL)
    tabulate(people, "people", of, [str(number) for number in range(5000)], "0" * 5000)
    explain = "EXPLAIN " if people.kind == "postgresql" else "EXPLAIN QUERY PLAN "
    given = {"choice": f"{of}/part", "turn": 0, "branch": 1, "param_1": 1}

    def plans(connection: Connection) -> list[str]:
        if people.kind == "postgresql":
            connection.execute(text("ANALYZE branches_taken"))
        asked = (branch_rows._LOWER_BRANCH, branch_rows._HIGHER_BRANCH)
        return [str(connection.execute(text(f"{explain}{query}"), given).all()) for query in asked]

    for plan in people.write(plans, is_committed=lambda *_: False):
        assert "branches_taken_by_branch" in plan


def test_a_draw_of_the_whole_input_looks_at_no_other_turn(people: Database) -> None:
    plan = {"type": "repeat", "count": 10**6, "part": {"type": "choice", "parts": [_A, _B]}}
    (of,) = register(people, "people", plan)
    value = read_plan(plan)
    mechanism = next(mechanisms_of(value))
    work: list[int] = []
    for turn in range(_MANY // 3):
        with statements() as found:
            sealed = draws.seal(places.place_of(value, mechanism, Turn("", turn)), np.array([7]))
            draws.draw(people, ANN, "people", of, sealed)
        work.append(steps_locked(found))
    assert max(work[-10:]) <= max(work[:10]) + 3
    with pytest.raises(AlreadyDrawn, match="another branch"):
        draw(people, "people", of, plan, which=1)


def test_a_draw_below_choices_looks_at_no_other_mechanism_under_the_lock(people: Database) -> None:
    parts: list[Any] = [_A | {"name": f"m{number}"} for number in range(60)]
    plan: dict[str, Any] = {"type": "sequence", "parts": parts}
    for _ in range(5):
        plan = {"type": "repeat", "count": 2, "part": {"type": "choice", "parts": [plan]}}
    plan["partitions"] = 10**9
    (of,) = register(people, "people", plan)
    work: list[tuple[int, int]] = []
    for number in range(60):
        with statements() as found:
            draw(people, "people", of, plan, which=number, partition="p")
        work.append((sum(one.locked for one in found), steps_locked(found)))
    assert len({statements for statements, _ in work[1:]}) == 1
    assert max(steps for _, steps in work[-10:]) <= max(steps for _, steps in work[1:11]) + 3


def test_a_draw_runs_as_many_statements_under_the_lock_however_many_choices_are_above_it(people: Database) -> None:
    numbers = []
    for depth in (2, 12):
        plan = _A
        for number in range(depth):
            other = _B | {"name": f"b{number}"}
            plan = {"type": "repeat", "count": 2, "part": {"type": "choice", "parts": [plan, other]}}
        (of,) = register(people, "people", plan)
        for partition in ("p", "q"):
            with statements() as found:
                draw(people, "people", of, plan, which=0, partition=partition, turn=1)
        numbers.append(sum(one.locked for one in found))
        with pytest.raises(AlreadyDrawn, match="another branch"):
            draw(people, "people", of, plan, which=1, partition="p", turn=1)
    assert numbers[0] == numbers[1]


def test_each_counter_is_checked_once_however_many_choices_are_above_it(
    people: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[Any] = [_A | {"name": f"m{number}"} for number in range(10)]
    plan: dict[str, Any] = {"type": "sequence", "parts": parts}
    for _ in range(8):
        plan = {"type": "repeat", "count": 2, "part": {"type": "choice", "parts": [plan]}}
    plan["partitions"] = 10**9
    (of,) = register(people, "people", plan)
    for number in range(10):
        draw(people, "people", of, plan, which=number, partition="p")
    value, checked = read_plan(plan), list[str]()
    is_sealed = partitions.is_sealed

    def checking(secret: Secret, counter: Any) -> bool:
        checked.append(counter.mechanism)
        return is_sealed(secret, counter)

    monkeypatch.setattr(partitions, "is_sealed", checking)
    bounds = choice_branches.bounds_above(value, next(mechanisms_of(value)), 0)
    with people.read() as connection:
        runs = partitions.branch_runs_of(connection, of, bounds)
    assert runs == [{0: 1}] * 8
    assert sorted(checked) == [f"m{number}" for number in range(10)]


def test_what_was_drawn_between_look_and_lock_counts(people: Database, meanwhile: list[Callable[[], object]]) -> None:
    shared = {"partitions": 2}
    plan = {"type": "choice", "parts": [_A | shared, _B | shared]}
    (of, other) = register(people, "people", plan, LEVEL)
    draw(people, "people", of, plan, which=0, partition="p")
    meanwhile.append(lambda: draw(people, "people", of, plan, which=0, partition="q"))
    with pytest.raises(Conflict, match="2 of 2 declared partitions are drawn, of all branches of a choice together"):
        draw(people, "people", of, plan, which=1, partition="r")
    meanwhile.append(lambda: tabulate(people, "people", other, ["g"], "0"))
    with pytest.raises(AlreadyDrawn, match="has been tabulated"):
        draw(people, "people", other, LEVEL, which=1)


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("taken", ["single", "whole", "tabulation"])
def test_no_group_is_tabulated_that_was_drawn_between_look_and_lock(
    people: Database, meanwhile: list[Callable[[], object]], taken: str, turn: int
) -> None:
    plan = {"type": "repeat", "count": 2, "part": LEVEL}
    (of,) = register(people, "people", plan)
    value = read_plan(plan)
    mechanism = next(mechanisms_of(value))

    def single(partition: str, turn: int) -> None:
        sealed = draws.seal(places.place_of(value, mechanism, Turn(partition, turn)), np.array([7]))
        draws.draw(people, ANN, "people", of, sealed)

    def act() -> None:
        if taken == "tabulation":
            tabulate(people, "people", of, ["h", "g"], "01", plan)
        else:
            single("g" if taken == "single" else "", turn)

    def drawn() -> Any:
        with people.read() as connection:
            return connection.execute(text("SELECT count(*) FROM draws")).scalar_one()

    meanwhile.append(act)
    with pytest.raises(AlreadyDrawn, match="one of these groups has been drawn"):
        tabulate(people, "people", of, ["f", "g"], "00", plan)
    assert drawn() == 1
    if taken != "whole":  # other groups, that were drawn neither before nor meanwhile
        meanwhile.append(lambda: single("k", turn))
        tabulate(people, "people", of, ["f"], "0", plan)
        assert drawn() == 3


def test_a_tabulation_has_no_more_work_under_the_lock_however_many_groups_it_has(people: Database) -> None:
    """The rows of its groups are written later, in transactions of their own, each of them short."""
    few, many = register(people, "people", LEVEL, LEVEL)
    deciding: list[list[Statement]] = []
    for of, number in ((few, choice_branches.SMALL + 1), (many, 4000)):
        with statements() as found:
            tabulate(people, "people", of, [f"g {number}" for number in range(number)], "0" * number)
        first, *pieces, mark = _transactions([one for one in found if one.locked])
        assert not [one.text for one in first if "INTO branches_taken" in one.text and "given" in one.text]
        assert len(pieces) == -(-number // choice_branches.SMALL)
        assert all(sum("INTO branches_taken" in one.text for one in piece) == 1 for piece in pieces)
        assert sum("INTO known_costs" in one.text for one in mark) == 1
        deciding.append(first)
    assert len(deciding[0]) == len(deciding[1])
    assert steps_locked(deciding[1]) <= steps_locked(deciding[0]) + 40  # one look-up of each would be some 600


def test_a_branch_that_somebody_writes_after_the_look_is_refused(
    people: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application's role may insert rows while a draw waits for another lock of its transaction."""
    plan = {"type": "choice", "parts": [_A, _B]}
    (of, other) = register(people, "people", plan, plan)
    draw(people, "people", other, plan, which=0, partition="p")
    take = partitions.take

    def taken(connection: Connection, *given: Any) -> Any:
        of_other = connection.execute(text("SELECT id FROM draws")).scalar_one()
        row = {"of": of, "other": of_other}
        connection.execute(text("INSERT INTO branches_taken VALUES (:of, '', 'p', 0, 1, :other)"), row)
        return take(connection, *given)

    monkeypatch.setattr(partitions, "take", taken)
    with pytest.raises(AlreadyDrawn, match="another branch"):
        draw(people, "people", of, plan, which=0, partition="p")


def test_the_groups_of_other_tabulations_are_not_read_under_the_lock(
    people: Database, meanwhile: list[Callable[[], object]]
) -> None:
    (of,) = register(people, "people", LEVEL)
    groups = [f"g {number}" for number in range(choice_branches.SMALL + 1)]
    meanwhile.append(lambda: tabulate(people, "people", of, groups, "0" * len(groups)))
    with statements() as found:
        tabulate(people, "people", of, ["f"], "0")
    read = [one for one in found if "tabulations.layout" in one.text]
    assert read
    assert not any(one.locked for one in read)
    begun = sum(one.text.startswith("BEGIN") and one.locked for one in found)
    assert begun == 6  # theirs, with two pieces and a mark, one in vain, and its own


def _transactions(found: list[Statement]) -> list[list[Statement]]:
    starts = [number for number, one in enumerate(found) if one.text.startswith("BEGIN")]
    return [found[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_groups_are_written_in_the_order_of_their_key(people: Database) -> None:
    (of,) = register(people, "people", LEVEL)
    names = [f"{number * 7919 % 1009:04}" for number in range(500)]
    tabulate(people, "people", of, names, "0" * 500)
    stored = "ORDER BY ctid" if people.kind == "postgresql" else "NOT INDEXED"
    with people.read() as connection:
        found = connection.execute(text(f"SELECT partition FROM branches_taken {stored}")).scalars().all()
    assert [name for name in found if name in names] == sorted(names) != names
