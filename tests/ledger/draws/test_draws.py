"""Draws in the ledger: stored with their charge or not at all, once along the plan's tree, and true counts nowhere."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from service.errors import AlreadyDrawn, BudgetExceeded, InvalidInput, NotFound, TooLarge
from service.ledger.draws import count_codec, draws, places
from service.ledger.draws.choice_branches import WHOLE
from service.ledger.draws.stored_draws import DrawRecord, Turn, list_draws, read_draw
from service.ledger.storage.database import Database
from service.privacy.plans.notation import read_plan
from tests.ledger.charging import ANN, account_of, charge, entries_of, mechanisms_in, open_account, prepared

_A = {"type": "geometric", "epsilon": "0.01", "name": "a"}
_B = {"type": "geometric", "epsilon": "0.01", "name": "b"}


def _draw(
    database: Database,
    plan: dict[str, Any],
    release: str,
    name: str,
    partition: str = WHOLE,
    repetition: int = 0,
    noisy: Sequence[int] = (1, 2),
) -> DrawRecord:
    value = read_plan(plan)
    mechanism = places.find_mechanism(value, name, "/mechanism")
    turn, values = Turn(partition, repetition), np.array(noisy, np.int64)
    sealed = draws.seal(places.place_of(value, mechanism, turn), values)
    return draws.draw(database, ANN, "people", release, sealed).record


@pytest.mark.parametrize(
    "noisy", [[0], [2**63 - 1, -(2**63)], list(range(-5000, 5000)), [7] * 3], ids=lambda noisy: f"{len(noisy)} counts"
)
def test_what_is_stored_is_read_again(database: Database, noisy: list[int]) -> None:
    open_account(database)
    (registered,) = charge(database, _A)
    drawn = _draw(database, _A, registered.id, "a", "36", noisy=noisy)
    assert (drawn.noisy.tolist(), drawn.turn, drawn.release_id) == (noisy, Turn("36", 0), registered.id)
    account = account_of(database)
    with database.read() as connection:
        mechanisms = mechanisms_in(connection, registered.id)
        for found in (
            read_draw(connection, account, drawn.id, mechanisms),
            *list_draws(connection, account, registered.id, 0, 10, 10**6, mechanisms),
        ):
            assert isinstance(found, DrawRecord)
            assert (found, found.noisy.tolist()) == (drawn, noisy)
        with pytest.raises(NotFound):
            read_draw(connection, replace(account, id=account.id + 1), drawn.id, mechanisms)
    assert account.head == drawn.head


def test_a_page_of_draws_ends_where_it_holds_enough(database: Database) -> None:
    open_account(database)
    plan = {"type": "repeat", "count": 5, "part": _A}
    (registered,) = charge(database, plan)
    drawn = [_draw(database, plan, registered.id, "a", repetition=n, noisy=range(4)) for n in range(5)]
    account = account_of(database)
    with database.read() as connection:
        mechanisms = mechanisms_in(connection, registered.id)
        for counts, size in ((1, 1), (4, 1), (5, 2), (8, 2), (100, 5)):
            assert list_draws(connection, account, registered.id, 0, 10, counts, mechanisms) == drawn[:size]
        assert list_draws(connection, account, registered.id, drawn[1].head.seq, 2, 100, mechanisms) == drawn[2:4]


def test_charge_and_draw_are_one_transaction(database: Database) -> None:
    open_account(database)
    drawn = draws.register_and_draw(database, ANN, prepared(database, _A)[0], np.array([5])).record
    assert [entry.kind for entry in entries_of(database)] == ["account_opened", "committed", "drawn"]
    too_much = {"type": "geometric", "epsilon": "9"}
    with pytest.raises(BudgetExceeded):
        draws.register_and_draw(database, ANN, prepared(database, too_much)[0], np.array([5]))
    with database.read() as connection:
        assert connection.execute(text("SELECT release_id FROM draws")).scalars().all() == [drawn.release_id]
        assert connection.execute(text("SELECT id FROM releases")).scalars().all() == [drawn.release_id]


def test_a_result_that_cannot_be_stored_takes_its_charge_with_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database)
    monkeypatch.setattr(count_codec, "MOST_BYTES", 10)
    with pytest.raises(TooLarge):
        draws.register_and_draw(database, ANN, prepared(database, _A)[0], np.array([5]))
    assert [entry.kind for entry in entries_of(database)] == ["account_opened"]


_TWO_B = {"type": "repeat", "count": 2, "part": _B}
_INNER = {"type": "repeat", "count": 2, "part": {"type": "choice", "parts": [_A, _TWO_B]}}
_NESTED = {"type": "repeat", "count": 2, "part": {"type": "choice", "parts": [_INNER, _A | {"name": "c"}]}}
# Each repetition's branch of the outer choice, the turn of that choice, and the turn of the inner one where it is
# above: written out from the tree, the outermost repeat counting slowest.
_TURNS: dict[str, list[tuple[int, int, int | None]]] = {
    "a": [(0, 0, 0), (0, 0, 1), (0, 1, 2), (0, 1, 3)],
    "b": [(0, 0, 0), (0, 0, 0), (0, 0, 1), (0, 0, 1), (0, 1, 2), (0, 1, 2), (0, 1, 3), (0, 1, 3)],
    "c": [(1, 0, None), (1, 1, None)],
}


def _excluded(one: str, r: int, other: str, s: int) -> bool:
    """Tell whether one draw excludes another: it is equal, or takes another branch at a turn of a choice."""
    if one == other:
        return r == s
    (branch, outer, inner), (branch_2, outer_2, inner_2) = _TURNS[one][r], _TURNS[other][s]
    return outer == outer_2 if branch != branch_2 else inner == inner_2


@pytest.mark.parametrize("first", _TURNS)
def test_branches_are_fixed_turn_by_turn(database: Database, first: str) -> None:
    """Every pair of draws, each pair on a partition of its own."""
    open_account(database)
    (registered,) = charge(database, _NESTED)
    for r in range(len(_TURNS[first])):
        for second, turns in _TURNS.items():
            for s in range(len(turns)):
                partition = f"{r} {second} {s}"
                drawn = _draw(database, _NESTED, registered.id, first, partition, r)
                if not _excluded(first, r, second, s):
                    _draw(database, _NESTED, registered.id, second, partition, s)
                    continue
                with pytest.raises(AlreadyDrawn) as refused:
                    _draw(database, _NESTED, registered.id, second, partition, s)
                assert refused.value.draw == drawn.id


def test_a_refusal_says_what_was_drawn(database: Database) -> None:
    open_account(database)
    for first, second, detail in (
        ("a", "a", "this mechanism, partition and repetition has been drawn"),
        ("", "", "this mechanism, partition and repetition has been drawn"),
        ("", "a", "the whole input has been drawn for this mechanism and repetition, and with it every partition"),
        ("a", "", "a partition has been drawn for this mechanism and repetition, which is a part of the whole input"),
    ):
        (registered,) = charge(database, _A)
        _draw(database, _A, registered.id, "a", first, 0)
        with pytest.raises(AlreadyDrawn, match=f"^{detail}$"):
            _draw(database, _A, registered.id, "a", second, 0)


def test_a_turn_that_the_plan_has_not() -> None:
    plan = read_plan(_NESTED)
    for name, turns in _TURNS.items():
        mechanism = places.find_mechanism(plan, name, "/mechanism")
        places.check_turn(places.place_of(plan, mechanism, Turn("", len(turns) - 1)), "/repetition")
        with pytest.raises(InvalidInput):
            places.check_turn(places.place_of(plan, mechanism, Turn("", len(turns))), "/repetition")
    with pytest.raises(InvalidInput):
        places.find_mechanism(plan, "/part", "/mechanism")


def test_one_of_many_at_once_is_stored(database: Database) -> None:
    open_account(database)
    plan = {"type": "choice", "parts": [_A, _B]}
    (registered,) = charge(database, plan)

    def attempt(number: int) -> str:
        try:
            return _draw(database, plan, registered.id, "ab"[number % 2], noisy=[number]).id
        except AlreadyDrawn as refused:
            return refused.draw

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(attempt, range(16)))) == 1
    assert [entry.kind for entry in entries_of(database)] == ["account_opened", "committed", "drawn"]


def test_a_draw_of_a_release_of_another_account(database: Database) -> None:
    open_account(database)
    open_account(database, "others")
    (registered,) = charge(database, _A, name="others")
    with pytest.raises(NotFound, match="release"):
        _draw(database, _A, registered.id, "a")


def test_the_journal_says_what_was_drawn_and_not_how_much(database: Database) -> None:
    open_account(database)
    (registered,) = charge(database, _A)
    drawn = _draw(database, _A, registered.id, "a", "36", noisy=[8675309])
    content = json.loads(entries_of(database)[-1].body)["content"]
    assert content.keys() == {"draw", "mechanism", "partition", "repetition", "size", "noisy_hash"}
    assert (content["draw"], content["partition"], content["size"]) == (drawn.id, "36", 1)
