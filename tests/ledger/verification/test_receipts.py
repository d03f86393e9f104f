"""A receipt states a release's present price, state and draws, whatever the rows and their filing say for a moment."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text

from service.errors import Altered
from service.ledger.accounts.accounts import read_account
from service.ledger.releases import charges, preparation
from service.ledger.releases.settlement import expire
from service.ledger.storage import clock
from service.ledger.storage.chain_points import ChainPoints
from service.ledger.storage.database import Database
from service.ledger.storage.newest_heads import NewestHeads
from service.ledger.storage.walked_journals import WalkedJournals
from service.ledger.verification.receipts import receipt_of
from service.ledger.verification.recompute import recompute
from tests.ledger.charging import (
    account_of,
    approve,
    charge,
    commit,
    draw,
    half_price,
    open_account,
    release_of,
    reserve,
    rows_of_failed_draw,
    void,
)
from tests.ledger.ledgers import LEVEL, Clock, register, tabulate
from tests.ledger.writing import run, stored, unprotected

_A: dict[str, Any] = {"type": "geometric", "name": "a", "epsilon": "1/10", "partitions": 3}
_SMALL = _A | {"epsilon": "1/1000"}
_TWO: dict[str, Any] = {"type": "sequence", "parts": [_A | {"epsilon": "1/100"}, _SMALL | {"name": "b"}]}
_ANOTHER = "release_id = (SELECT id FROM releases WHERE id <> release_id LIMIT 1)"
_ALTERED = "not as the service wrote it"


def _receipt(database: Database, release: str) -> dict[str, Any]:
    with database.read() as connection:
        return receipt_of(connection, read_account(connection, "people"), release, clock.now())


@contextmanager
def _written(database: Database, table: str, statement: str, undone: str, **values: object) -> Iterator[None]:
    """Keep something written past the triggers until the block ends."""
    unprotected(database, table, statement, **values)
    yield
    unprotected(database, table, undone, **values)


@contextmanager
def _put_back(database: Database, table: str, where: str, earlier: dict[str, Any]) -> Iterator[None]:
    """Show a row as it was earlier, with its seal, until the block ends."""
    present = _row(database, table, where)
    said = ", ".join(f'"{name}" = :{name}' for name in earlier)
    unprotected(database, table, f"UPDATE {table} SET {said} WHERE {where}", **earlier)
    yield
    unprotected(database, table, f"UPDATE {table} SET {said} WHERE {where}", **present)


def _row(database: Database, table: str, where: str) -> dict[str, Any]:
    with database.read() as connection:
        return stored(connection.execute(text(f"SELECT * FROM {table} WHERE {where}")).one())


@pytest.fixture
def repriced(database: Database, monkeypatch: pytest.MonkeyPatch) -> str:
    """A release that was charged half of its price, and priced again."""
    open_account(database)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "price", half_price)
        patch.setattr(charges, "ACCOUNTANT", "0")
        (release,) = charge(database, _A)
    charge(database, _A)
    recompute(database, "people", apply=True)
    charge(database, _A)
    return release.id


def test_a_receipt_states_the_last_price(database: Database, repriced: str) -> None:
    (other,) = charge(database, _A)
    assert _receipt(database, repriced)["charged"] == _receipt(database, other.id)["charged"]


@pytest.mark.parametrize("filed", ["kind = 'described'", _ANOTHER, "release_id = NULL"])
@pytest.mark.parametrize("known", [True, False], ids=["after an earlier receipt", "first"])
def test_a_price_that_is_filed_elsewhere_gets_no_receipt(
    database: Database, repriced: str, filed: str, known: bool
) -> None:
    before = _receipt(database, repriced) if known else None
    as_it_was = f"UPDATE journal SET kind = 'repriced', release_id = '{repriced}' WHERE seq = :seq"
    found = _row(database, "journal", "kind = 'repriced'")["seq"]
    shown = _written(database, "journal", f"UPDATE journal SET {filed} WHERE seq = :seq", as_it_was, seq=found)
    with shown, pytest.raises(Altered, match=_ALTERED):
        _receipt(database, repriced)
    after = _receipt(database, repriced)
    assert before is None or after == before | {"issued_at": after["issued_at"]}


@pytest.mark.parametrize("step", [commit, void])
def test_an_earlier_state_gets_no_receipt(database: Database, step: Any) -> None:
    open_account(database)
    (release,) = reserve(database, _A)
    earlier = _row(database, "releases", f"id = '{release}'")
    assert _receipt(database, release)["release"]["state"] == "reserved"
    step(database, release)
    state = _receipt(database, release)["release"]["state"]
    with _put_back(database, "releases", f"id = '{release}'", earlier), pytest.raises(Altered, match=_ALTERED):
        _receipt(database, release)
    assert _receipt(database, release)["release"]["state"] == state != "reserved"


def test_an_approval_that_a_commitment_followed_is_not_the_last_state(database: Database) -> None:
    open_account(database, approval_above="0.001")
    (proposed,) = charge(database, _A)
    assert _receipt(database, proposed.id)["release"]["state"] == "proposed"
    approve(database, proposed.id)
    assert _receipt(database, proposed.id)["release"]["state"] == "committed"


def test_a_counter_put_back_gets_no_receipt(database: Database) -> None:
    open_account(database)
    (release,) = charge(database, _A)
    draw(database, release.id, _A, partition="01")
    where = f"release_id = '{release.id}'"
    earlier = _row(database, "partitions_drawn", where)
    draw(database, release.id, _A, partition="02")
    assert [counter["drawn"] for counter in _receipt(database, release.id)["partitions"]] == [2]
    with _put_back(database, "partitions_drawn", where, earlier), pytest.raises(Altered, match=_ALTERED):
        _receipt(database, release.id)


def test_a_counter_of_a_draw_that_failed_gets_no_receipt(database: Database) -> None:
    open_account(database)
    (release,) = charge(database, _TWO)
    draw(database, release.id, _TWO, partition="01")
    rows = rows_of_failed_draw(database, release.id, _TWO, "a", "02")
    (counter,) = rows["partitions_drawn"]
    where = f"release_id = '{release.id}'"
    with _put_back(database, "partitions_drawn", where, counter), pytest.raises(Altered, match=_ALTERED):
        _receipt(database, release.id)
    assert [counter["drawn"] for counter in _receipt(database, release.id)["partitions"]] == [1]


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "walked before"])
def test_a_draw_that_failed_in_the_place_of_another_changes_no_receipt(database: Database, fresh: bool) -> None:
    open_account(database)
    (release,) = charge(database, _TWO)
    draw(database, release.id, _TWO, partition="01")
    where = f"release_id = '{release.id}'"
    earlier = _row(database, "partitions_drawn", where)
    rows = rows_of_failed_draw(database, release.id, _TWO, "b", "")
    draw(database, release.id, _TWO, partition="02")
    present = _row(database, "draws", "partition = '02'")
    (shown,) = (row for row in rows["draws"] if row["seq"] == present["seq"])
    (entry,) = (row for row in rows["journal"] if row["seq"] == present["seq"])
    before = _receipt(database, release.id)
    if fresh:
        database.points, database.walked, database.newest = ChainPoints(), WalkedJournals(), NewestHeads()
    statement, said = (
        "UPDATE journal SET hash = :hash WHERE seq = :seq",
        _row(database, "journal", f"seq = {entry['seq']}"),
    )
    with _put_back(database, "draws", f"seq = {present['seq']}", shown):
        unprotected(database, "journal", statement, hash=entry["hash"], seq=entry["seq"])
        with _put_back(database, "partitions_drawn", where, earlier), pytest.raises(Altered, match=_ALTERED):
            _receipt(database, release.id)
        unprotected(database, "journal", statement, hash=said["hash"], seq=entry["seq"])
    assert _receipt(database, release.id)["partitions"] == before["partitions"]


def test_a_draw_whose_entry_is_moved_away_gets_no_receipt(database: Database) -> None:
    open_account(database)
    (release,) = charge(database, _A)
    draw(database, release.id, _A, partition="01")
    where = f"release_id = '{release.id}'"
    earlier = _row(database, "partitions_drawn", where)
    charge(database, *[_SMALL] * 40)
    draw(database, release.id, _A, partition="02")
    charge(database, *[_SMALL] * 40)
    before = _receipt(database, release.id)
    seq = _row(database, "draws", "partition = '02'")["seq"]
    moved, back = (f"UPDATE journal SET seq = {to} WHERE seq = {at}" for at, to in ((seq, 10**6), (10**6, seq)))
    shown = _written(database, "journal", moved, back)
    with _put_back(database, "partitions_drawn", where, earlier), shown, pytest.raises(Altered, match=_ALTERED):
        _receipt(database, release.id)
    after = _receipt(database, release.id)
    assert after == before | {"issued_at": after["issued_at"]}


def test_a_tabulation_is_counted_by_its_layout_where_its_numbers_are_not_stored(database: Database) -> None:
    open_account(database)
    (release,) = register(database, "people", LEVEL)
    tabulate(database, "people", release, ["x", "y", "z"], "011", LEVEL)
    before = _receipt(database, release)["partitions"]
    assert [counter["drawn"] for counter in before] == [2, 2, 1]
    run(database, "DELETE FROM known_costs")  # as after an import
    assert _receipt(database, release)["partitions"] == before
    unprotected(database, "tabulations", "UPDATE tabulations SET layout = :layout", layout=b"no layout")
    with pytest.raises(Altered, match=_ALTERED):
        _receipt(database, release)


def test_a_removed_draw_is_counted_all_the_same(database: Database) -> None:
    open_account(database)
    (release,) = charge(database, _A)
    draw(database, release.id, _A, partition="01")
    before = _receipt(database, release.id)["partitions"]
    unprotected(database, "draws", "DELETE FROM draws")
    assert _receipt(database, release.id)["partitions"] == before
    unprotected(database, "partitions_drawn", "DELETE FROM partitions_drawn")
    with pytest.raises(Altered, match=_ALTERED):
        _receipt(database, release.id)


def test_a_reservation_that_is_over_is_reserved_until_its_expiry_is_recorded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commitment that began before the end may still be recorded."""
    time = Clock(monkeypatch)
    open_account(database)
    (release,) = reserve(database, _A)
    time.forward(2)
    assert release_of(database, release).state == "expired"
    assert _receipt(database, release)["release"]["state"] == "reserved"
    assert expire(database, account_of(database).id)
    assert _receipt(database, release)["release"]["state"] == "expired"
