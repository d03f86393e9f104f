"""The rows of a tabulation's groups: each group is taken at the commit, whenever its row is written."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.errors import AlreadyDrawn, Unavailable
from service.ledger import idempotent_write
from service.ledger.draws import draws, tabulated_groups
from service.ledger.storage.database import Database
from service.ledger.verification.verify import verify
from tests.ledger.charging import open_account
from tests.ledger.ledgers import LEVEL, draw, register, tabulate

_GROUPS = [f"g {number}" for number in range(7)]
_LATER = "2040-01-01T00:00:00.000000Z"


@pytest.fixture
def people(database: Database) -> Database:
    open_account(database, "people", definition="pure", epsilon="100000")
    return database


@pytest.fixture
def cut(people: Database, monkeypatch: pytest.MonkeyPatch) -> str:
    """A release whose tabulation was cut short after the first two rows of its groups."""
    (of,) = register(people, "people", LEVEL)
    take = tabulated_groups._take

    def taken(connection: Connection, *given: Any) -> None:
        if _rows(people) > 0:
            raise Unavailable("the database went away")
        take(connection, *given)

    with monkeypatch.context() as patch:
        patch.setattr(tabulated_groups, "_AT_ONCE", 2)
        patch.setattr(tabulated_groups, "_take", taken)
        tabulate(people, "people", of, _GROUPS, "0101010")
    assert _rows(people) == 2
    return of


def _rows(database: Database) -> int:
    """The number of groups with a row; the tabulation itself has one too, for a partition of its own."""
    return _count(database, "branches_taken WHERE partition LIKE 'g %'")


def _count(database: Database, of: str) -> int:
    with database.read() as connection:
        number: int = connection.execute(text(f"SELECT count(*) FROM {of}")).scalar_one()
    return number


def _is_valid(database: Database) -> bool:
    with database.read() as connection:
        return verify(connection, "people").valid


@pytest.mark.parametrize("recorded", [False, True])
def test_no_group_is_drawn_again_before_its_row_is_written_or_after(people: Database, cut: str, recorded: bool) -> None:
    if recorded:
        assert tabulated_groups.record_left(people, _LATER) == 1
        assert tabulated_groups.record_left(people, _LATER) == 0
    assert (_rows(people), _count(people, "unrecorded_groups")) == ((7, 0) if recorded else (2, 1))
    drawn = _count(people, "draws")
    for group in (*_GROUPS, ""):
        for which in range(3):
            with pytest.raises(AlreadyDrawn, match=r"has been (tabulated|drawn)"):
                draw(people, "people", cut, LEVEL, which=which, partition=group)
        if group:
            with pytest.raises(AlreadyDrawn, match="one of these groups has been drawn"):
                tabulate(people, "people", cut, ["another", group], "00")
    assert _count(people, "draws") == drawn
    assert _is_valid(people)
    tabulate(people, "people", cut, ["another"], "0")
    draw(people, "people", cut, LEVEL, which=0, partition="a third")
    assert _is_valid(people)


def test_a_tabulation_that_still_writes_its_rows_is_left_alone(people: Database, cut: str) -> None:
    with people.read() as connection:
        drawn_at = connection.execute(text("SELECT created_at FROM draws")).scalar_one()
    assert tabulated_groups.record_left(people, drawn_at) == 0
    assert _rows(people) == 2


@pytest.mark.parametrize("what", ["single", "tabulation"])
def test_an_unrecorded_group_is_refused_that_was_tabulated_between_look_and_lock(
    people: Database, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    (of,) = register(people, "people", LEVEL)
    monkeypatch.setattr(tabulated_groups, "record_later", lambda *_: None)
    look = idempotent_write.check_before_lock
    meanwhile: list[Callable[[], object]] = [lambda: tabulate(people, "people", of, ["h", "g"], "01")]

    def looked(*given: Any) -> Any:
        seen = look(*given)
        if meanwhile:
            meanwhile.pop()()
        return seen

    monkeypatch.setattr(draws, "check_before_lock", looked)
    acts: dict[str, Callable[[], object]] = {
        "single": lambda: draw(people, "people", of, LEVEL, which=0, partition="g"),
        "tabulation": lambda: tabulate(people, "people", of, ["f", "g"], "00"),
    }
    with pytest.raises(AlreadyDrawn, match=r"has been tabulated|one of these groups"):
        acts[what]()
    assert not meanwhile
    assert _count(people, "draws") == 1


@pytest.mark.parametrize("column", ["node", "release_id", "draw_id"])
def test_rows_that_no_mark_announces_are_missed(people: Database, cut: str, column: str) -> None:
    """A mark of another place, release or tabulation excuses no missing row."""
    assert _is_valid(people)
    (other,) = register(people, "people", LEVEL)
    tabulate(people, "people", other, ["x"], "0")
    with people.read() as connection:
        of_other = connection.execute(text("SELECT id FROM draws WHERE release_id = :of"), {"of": other}).scalar_one()
    value = {"node": "/part/part", "release_id": other, "draw_id": of_other}[column]
    people.write(
        lambda connection: connection.execute(
            text(f"UPDATE unrecorded_groups SET {column} = :value"), {"value": value}
        ),
        is_committed=lambda *_: False,
    )
    with people.read() as connection:
        found = verify(connection, "people")
    assert found.first_bad is not None
    assert found.first_bad.reason == "the branches that were taken are not those of the draws"
