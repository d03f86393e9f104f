"""The rows of a tabulation's groups: each group is taken at the commit, whenever its row is written."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.errors import AlreadyDrawn, Unavailable
from service.ledger.draws import choice_branches, tabulated_groups
from service.ledger.draws.tabulation_layout import Layout
from service.ledger.spending import kept_figures
from service.ledger.storage.database import Database
from service.ledger.storage.transaction import secret_of
from service.ledger.verification.verify import verify
from service.privacy.planning.levels import find_level
from service.privacy.plans.notation import read_plan
from tests.ledger.ledgers import LEVEL, draw, register, tabulate
from tests.ledger.writing import as_owner, run

_MANY = choice_branches.SMALL + 100
_GROUPS = [f"g {number:03}" for number in range(_MANY)]
_DETAILS = "01" * (_MANY // 2)
_GOING = threading.Event()  # no server stops
_LATER = "2040-01-01T00:00:00.000000Z"


@pytest.fixture
def cut(people: Database, monkeypatch: pytest.MonkeyPatch) -> str:
    """A release whose tabulation was cut short after the rows of its groups that have only a total."""
    (of,) = register(people, "people", LEVEL)
    take = tabulated_groups._take

    def taken(connection: Connection, **given: Any) -> None:
        if _rows(people) > 0:
            raise Unavailable("the database went away")
        take(connection, **given)

    with monkeypatch.context() as patch:
        patch.setattr(tabulated_groups, "_take", taken)
        tabulate(people, "people", of, _GROUPS, _DETAILS)
    assert _rows(people) == _MANY // 2
    return of


def _rows(database: Database) -> int:
    """The number of groups with a row; the tabulation itself has one too, for a partition of its own."""
    return _count(database, "branches_taken WHERE partition LIKE 'g %'")


def _marks(database: Database) -> int:
    return _count(database, "known_costs WHERE subject LIKE 'recorded %'")


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
        assert tabulated_groups.record_left(people, _LATER, _GOING) == 1
        assert tabulated_groups.record_left(people, _LATER, _GOING) == 0
    assert (_rows(people), _marks(people)) == ((_MANY, 1) if recorded else (_MANY // 2, 0))
    drawn = _count(people, "draws")
    for group in (*_GROUPS[:4], ""):
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


def test_a_tabulation_whose_rows_cannot_be_written_now_holds_up_no_other(
    people: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tabulated_groups, "record", lambda *_, **__: None)
        for of in register(people, "people", LEVEL, LEVEL):
            tabulate(people, "people", of, _GROUPS, _DETAILS)
    take, first = tabulated_groups._take, set[str]()

    def taken(connection: Connection, **given: Any) -> None:
        first.update([] if first else [given["draw_id"]])
        if given["draw_id"] in first:
            raise Unavailable("busy")
        take(connection, **given)

    with monkeypatch.context() as patch:
        patch.setattr(tabulated_groups, "_take", taken)
        assert tabulated_groups.record_left(people, _LATER, _GOING) == 1
    assert (_rows(people), _marks(people)) == (_MANY, 1)
    assert tabulated_groups.record_left(people, _LATER, _GOING) == 1
    assert (_rows(people), _marks(people)) == (2 * _MANY, 2)


@pytest.mark.parametrize("drawn", ["a", 'q\u0301 "\\"', "\U0001f600", "\uac01'"])
def test_a_drawn_group_is_found_in_each_piece_of_a_look_up(
    people: Database, monkeypatch: pytest.MonkeyPatch, drawn: str
) -> None:
    monkeypatch.setattr(tabulated_groups, "_AT_ONCE", 3)
    (of,) = register(people, "people", LEVEL)
    draw(people, "people", of, LEVEL, which=0, partition=drawn)
    others = [f"{name} {number}" for number in range(4) for name in ("\U0001f600", "q\u0301")]
    for place in range(len(others) + 1):
        with pytest.raises(AlreadyDrawn, match="one of these groups"):
            tabulate(people, "people", of, [*others[:place], drawn, *others[place:]], "0" * 9)
    tabulate(people, "people", of, others, "0" * 8)


def test_the_whole_input_is_found_behind_all_pieces_of_a_look_up(
    people: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabulated_groups, "_AT_ONCE", 3)
    (of,) = register(people, "people", LEVEL)
    draw(people, "people", of, LEVEL, which=0)
    for number in (1, 2, 3, 4, 6):
        with pytest.raises(AlreadyDrawn, match="one of these groups"):
            tabulate(people, "people", of, _GROUPS[:number], "0" * number)


def test_the_rows_of_groups_are_written_in_the_order_of_their_key(people: Database) -> None:
    numbers = list(range(3 * tabulated_groups._AT_ONCE))
    random.Random(5).shuffle(numbers)
    names = [f"g {number:05}" for number in numbers]
    layout = Layout("x", {}, names, "".join("01"[number % 2] for number in numbers))
    level = find_level(read_plan(LEVEL), "x")
    assert level is not None
    pieces = list(tabulated_groups._pieces(level, layout))
    assert max(len(groups) for _, groups in pieces) == choice_branches.SMALL
    for branch, parity in zip(level.branches, (0, 1), strict=True):
        written = [group for of, groups in pieces if of == branch for group in groups]
        assert written == [f"g {number:05}" for number in sorted(numbers) if number % 2 == parity]


def test_a_tabulation_that_still_writes_its_rows_is_left_alone(people: Database, cut: str) -> None:
    with people.read() as connection:
        drawn_at = connection.execute(text("SELECT created_at FROM draws")).scalar_one()
    assert tabulated_groups.record_left(people, drawn_at, _GOING) == 0
    assert _rows(people) == _MANY // 2


@pytest.mark.parametrize("what", ["single", "tabulation"])
def test_an_unrecorded_group_is_refused_that_was_tabulated_between_look_and_lock(
    people: Database, monkeypatch: pytest.MonkeyPatch, meanwhile: list[Callable[[], object]], what: str
) -> None:
    (of,) = register(people, "people", LEVEL)
    monkeypatch.setattr(tabulated_groups, "record", lambda *_, **__: None)
    meanwhile.append(lambda: tabulate(people, "people", of, [*_GROUPS, "g"], _DETAILS + "0"))
    acts: dict[str, Callable[[], object]] = {
        "single": lambda: draw(people, "people", of, LEVEL, which=0, partition="g"),
        "tabulation": lambda: tabulate(people, "people", of, ["f", "g"], "00"),
    }
    with pytest.raises(AlreadyDrawn, match=r"has been tabulated|one of these groups"):
        acts[what]()
    assert not meanwhile
    assert _count(people, "draws") == 1


_FORGED = "INSERT INTO known_costs (subject, state, cost, seal) VALUES ('recorded ' || :draw, '', '', :seal)"


def test_a_mark_without_the_secret_counts_for_nothing(people: Database, cut: str) -> None:
    """Neither one that is made up nor that of another tabulation."""
    (other,) = register(people, "people", LEVEL)
    tabulate(people, "people", other, _GROUPS, _DETAILS)
    with people.read() as connection:
        of_release = text("SELECT id FROM draws WHERE release_id = :of")
        draw_id = connection.execute(of_release, {"of": cut}).scalar_one()
        seal = connection.execute(text("SELECT seal FROM known_costs WHERE subject LIKE 'recorded %'")).scalar_one()
    run(people, _FORGED, draw=draw_id, seal=seal)
    for group in _GROUPS[:4]:
        with pytest.raises(AlreadyDrawn, match="tabulated"):
            draw(people, "people", cut, LEVEL, which=0, partition=group)
    assert tabulated_groups.record_left(people, _LATER, _GOING) == 1
    assert (_rows(people), _marks(people)) == (2 * _MANY, 2)
    assert _is_valid(people)


def test_a_mark_holds_for_its_version_of_the_ledger(people: Database, cut: str) -> None:
    """The attack: groups whose rows were given up by a restore would be drawn again by the mark that was kept."""
    assert tabulated_groups.record_left(people, _LATER, _GOING) == 1
    with people.read() as connection:
        draw_id = connection.execute(text("SELECT id FROM draws WHERE release_id = :of"), {"of": cut}).scalar_one()
        seal = connection.execute(text("SELECT seal FROM known_costs WHERE subject LIKE 'recorded %'")).scalar_one()
        present = secret_of(connection)
    for version, holds in (("", True), ("after a restore", False)):
        secret = replace(present, version=version)
        assert kept_figures.is_kept(secret, tabulated_groups._mark_of(secret, draw_id), seal) is holds


def test_a_mark_that_is_taken_away_lets_no_group_be_drawn_again(people: Database) -> None:
    (of,) = register(people, "people", LEVEL)
    tabulate(people, "people", of, _GROUPS, _DETAILS)
    run(people, "DELETE FROM known_costs WHERE subject LIKE 'recorded %'")
    with as_owner(people.url) as connection:
        connection.execute(text("DELETE FROM branches_taken"))
    with pytest.raises(AlreadyDrawn, match="tabulated"):
        draw(people, "people", of, LEVEL, which=0, partition=_GROUPS[0])
    with pytest.raises(AlreadyDrawn, match="one of these groups"):
        tabulate(people, "people", of, ["another", _GROUPS[1]], "00")


def test_rows_that_are_missing_behind_a_mark_are_found(people: Database) -> None:
    (of,) = register(people, "people", LEVEL)
    tabulate(people, "people", of, _GROUPS, _DETAILS)
    assert _is_valid(people)
    with as_owner(people.url) as connection:
        connection.execute(text("DELETE FROM branches_taken WHERE partition = 'g 000'"))
    with people.read() as connection:
        found = verify(connection, "people")
    assert found.first_bad is not None
    assert found.first_bad.reason == "the branches that were taken are not those of the draws"


@pytest.mark.parametrize("what", ["draw_id", "branch"])
def test_a_row_that_somebody_wrote_before_leaves_the_tabulation_without_a_mark(
    people: Database, cut: str, what: str
) -> None:
    """The application's role may insert rows, so that those of the tabulation find their places taken."""
    (other,) = register(people, "people", LEVEL)
    draw(people, "people", other, LEVEL, which=0, partition="p")
    with people.read() as connection:
        of_release = text("SELECT id FROM draws WHERE release_id = :of")
        own_draw, other_draw = (connection.execute(of_release, {"of": of}).scalar_one() for of in (cut, other))
    group = _GROUPS[1]
    row = {"of": cut, "node": "/part", "group": group, "branch": 1, "draw": own_draw}
    row |= {"draw": other_draw} if what == "draw_id" else {"branch": 0}
    run(people, "INSERT INTO branches_taken VALUES (:of, :node, :group, 0, :branch, :draw)", **row)
    assert tabulated_groups.record_left(people, _LATER, _GOING) == 0
    assert _marks(people) == 0
    with pytest.raises(AlreadyDrawn, match=r"tabulated|another branch"):
        draw(people, "people", cut, LEVEL, which=0, partition=group)
    assert not _is_valid(people)
