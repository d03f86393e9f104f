"""Rows of windows: each is sealed, and their sum tells a missing or older one."""

import hashlib
import hmac
from collections.abc import Mapping
from fractions import Fraction
from random import Random

import pytest
from sqlalchemy import Connection

from service.errors import Altered
from service.ledger.accounts import budgets
from service.ledger.spending import window_rows, window_state
from service.ledger.spending.window_rows import EMPTY, Window, Windows
from service.ledger.spending.window_state import WindowState
from service.ledger.storage.database import Database
from service.privacy.accounting.pricing import Price, price
from service.privacy.accounting.privacy_filter import Weights
from service.privacy.accounting.windows import maximum
from service.privacy.mechanisms import Geometric
from service.privacy.periods import ALL, PeriodSet, set_of
from service.privacy.plans.walking import Neighbouring
from tests.ledger.charging import SECRET, open_account
from tests.ledger.writing import run

_PRICES = [price(Geometric(scale=Fraction(1, n)), Neighbouring.ADD_REMOVE, ()) for n in (1, 3, 7)]
_NONE = Weights()


def _write(database: Database, before: Windows, after: Windows) -> int:
    return database.write(
        lambda connection: window_rows.write_windows(connection, 1, before, after), is_committed=lambda *_: False
    )


def _read(database: Database, places: PeriodSet = ALL) -> dict[int, Window]:
    with database.read() as connection:
        return window_rows.read_windows(connection, 1, places)


def _some_windows(random: Random, seq: int) -> dict[int, Window]:
    charges = [(one, random.randrange(1, 4)) for one in _PRICES]
    return {
        random.randrange(-40, 40): EMPTY.changed(
            seq, committed=charges, held=random.choice(([], charges[:1])), releases=3
        )
        for _ in range(12)
    }


def _hmac(*parts: bytes) -> bytes:
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(SECRET.key, framed, hashlib.sha256).digest()


def _codes(windows: Mapping[int, Window]) -> int:
    """The sum of the codes of rows, from the definition."""
    total = 0
    for place, window in windows.items():
        values: list[str | int] = [1, place, budgets.write_totals(window.committed), budgets.write_totals(window.held)]
        parts = [b"'" + value.encode() if isinstance(value, str) else b"%d" % value for value in values]
        parts += [b"%d" % window.releases, b"%d" % window.seq]
        seal = _hmac(b"window", b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hex()
        total += int.from_bytes(_hmac(b"window code", seal.encode()), "big")
    return total


def test_windows_are_read_as_they_were_written(database: Database) -> None:
    open_account(database)
    random, stored = Random(1), dict[int, Window]()
    for seq in range(1, 6):
        after = {**stored, **_some_windows(random, seq)}
        added = _write(database, stored, after)
        assert (added - _codes(after) + _codes(stored)) % 2**256 == 0
        stored = after
        assert _read(database) == stored
        places = set_of((first, first + random.randrange(5)) for first in random.sample(range(-40, 40), 4))
        assert _read(database, places) == {place: stored[place] for place in places.members if place in stored}


@pytest.mark.parametrize("change", ["committed = held", "releases = releases + 1", "seal = 'another'", "seq = seq"])
def test_a_row_that_another_wrote_is_refused(database: Database, change: str) -> None:
    open_account(database)
    _write(database, {}, _some_windows(Random(2), 1))
    run(database, f"UPDATE window_totals SET {change.replace('seq = seq', 'releases = 0')}, seq = seq + 1")
    with pytest.raises(Altered):
        _read(database)


def _state(database: Database, windows: Windows) -> WindowState:
    def work(connection: Connection) -> WindowState:
        state = WindowState(number=len(windows), present=windows)
        return window_state.save_windows(connection, 1, state)

    return database.write(work, is_committed=lambda *_: False)


def test_the_sum_tells_a_row_that_is_missing_or_older(database: Database) -> None:
    open_account(database)
    windows = _some_windows(Random(3), 1)
    state = _state(database, windows)
    fresh = window_state.read_state(window_state.write_state(state))
    assert (fresh.sum, fresh.number, fresh.present) == (state.sum, len(windows), {})
    with database.read() as connection:
        assert window_state.read_at(connection, 1, fresh, ALL).present == windows
    place = min(windows)
    newer = {**windows, place: windows[place].changed(2, committed=[(_PRICES[0], 1)], releases=1)}
    _write(database, windows, newer)  # but the account's row, with its sum, is of the time before
    with database.read() as connection, pytest.raises(Altered):
        window_state.read_at(connection, 1, fresh, ALL)
    with database.read() as connection:  # a charge of some windows does not see it
        assert window_state.read_at(connection, 1, fresh, set_of([(place, place)])).present == {place: newer[place]}


def _charged(
    database: Database, state: WindowState, seq: int, places: PeriodSet, amount: Price, count: int
) -> WindowState:
    """Charge an amount, or take one away, in a transaction that knows of the account's row alone."""

    def work(connection: Connection) -> WindowState:
        stored = window_state.read_state(window_state.write_state(state))
        seen = window_state.read_at(connection, 1, stored, PeriodSet(places.ranges))
        after = seen.charged(_NONE, places, seq, held=[(amount, count)], releases=count)
        if count < 0:
            after = window_state.lowered(connection, 1, _NONE, after, seen.present)
        return window_state.save_windows(connection, 1, after)

    return database.write(work, is_committed=lambda *_: False)


def test_charges_raise_the_maximum_and_what_is_taken_away_lowers_it(database: Database) -> None:
    """Against the windows one by one."""
    open_account(database)
    random = Random(4)
    state, made = _state(database, {}), list[tuple[PeriodSet, Price]]()

    for step in range(40):
        taken = bool(made) and random.random() < 0.4
        places, amount = (
            made.pop(random.randrange(len(made)))
            if taken
            else (
                ALL if random.random() < 0.1 else set_of([(first := random.randrange(9), first + random.randrange(4))]),
                random.choice(_PRICES),
            )
        )
        if not taken:
            made.append((places, amount))
        state = _charged(database, state, step + 1, places, amount, -1 if taken else 1)
        stored = _read(database)
        for place, window in stored.items():
            own = [amount for places, amount in made if not places.everything and place in set(places.members)]
            assert window == EMPTY.changed(window.seq, held=[(one, 1) for one in own], releases=len(own))
        assert state.most == maximum(_NONE, [window.totals for window in stored.values()])
        assert state.number == len(stored)
        assert state.common.releases == sum(places.everything for places, _ in made)
        with database.read() as connection:
            assert window_state.read_at(connection, 1, state, ALL).present == stored
