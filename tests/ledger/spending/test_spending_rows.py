"""The sum of what an account has spent, in its sealed row: right after every entry, and wrong for rows of anybody else.

Nothing of the service's code adds up here: codes and masks are computed anew.
"""

import contextlib
import hashlib
import hmac
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from service.errors import Altered, BudgetExceeded, Unavailable
from service.ledger.accounts import account_rows
from service.ledger.draws import draws
from service.ledger.installation.installation_journal import append, read
from service.ledger.installation.signing import Signer
from service.ledger.journal.chains import BadEntry
from service.ledger.releases import admission, charges, settlement
from service.ledger.spending import spending
from service.ledger.spending.spending_rows import ManySubplans, stored_sum, sum_after, sum_of
from service.ledger.storage import clock
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.migrate import migrate
from service.ledger.storage.secret import Secret
from service.ledger.verification.adoption import adopt
from service.ledger.verification.imports import rebuild
from service.ledger.verification.recompute import recompute
from service.ledger.verification.verify import verify
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
    migrate_unsealed,
    open_account,
    prepared,
    reserve,
    unseal,
    void,
)
from tests.ledger.ledgers import NAMES, OLD_NAMES, Clock, describe, everything, everything_old, exported
from tests.ledger.verification.test_recompute import older
from tests.ledger.writing import run

__all__ = ["older"]  # a fixture

_A: dict[str, Any] = {"type": "gaussian", "rho": "0.001"}
_B: dict[str, Any] = {"type": "geometric", "epsilon": "0.01", "name": "b", "tags": ["été"]}
_BOTH = {"type": "sequence", "parts": [_A, _B, _A]}
_MANY = {"type": "sequence", "parts": [{"type": "gaussian", "rho": f"1/{10**6 + n // 2}"} for n in range(140)]}
_LONG = {"type": "choice", "parts": [{"type": "gaussian", "rho": f"1/{10**6 + n}"} for n in range(50)]}
_WIDE = {"definition": "approximate", "epsilon": "9", "delta": "1e-6"}
_ADOPTED = "its row has no sum of its spending; the first start of a server after an upgrade computes it"


def _hmac(purpose: str, *parts: bytes) -> bytes:
    message = b"".join(len(part).to_bytes(8, "big") + part for part in (purpose.encode(), *parts))
    return hmac.new(SECRET.key, message, hashlib.sha256).digest()


def _number(code: bytes) -> int:
    return int.from_bytes(code, "big")


def _right(database: Database) -> dict[str, str]:
    """The texts that accounts' rows must hold, by the accounts' names, from the rows of spending as they are."""
    with database.read() as connection:
        totals = dict.fromkeys(map(tuple, connection.execute(text("SELECT id, name FROM accounts"))), 0)
        query = "SELECT id, name, subplan, occurrences, reserved FROM spending JOIN accounts ON id = account_id"
        for account_id, name, subplan, occurrences, reserved in connection.execute(text(query)):
            totals[account_id, name] += occurrences * _number(_hmac("spending committed", subplan.encode()))
            totals[account_id, name] += reserved * _number(_hmac("spending reserved", subplan.encode()))
    found = {}
    for (account_id, name), total in totals.items():
        own, number = str(account_id).encode(), total % 2**256
        nonce = _hmac("spending nonce", own, number.to_bytes(32, "big")).hex()[:32]
        masked = (number + _number(_hmac("spending mask", own, nonce.encode()))) % 2**256
        found[name] = nonce + masked.to_bytes(32, "big").hex()
    return found


def _stored(database: Database) -> dict[str, str]:
    with database.read() as connection:
        return {row.name: row.spending_sum for row in connection.execute(text("SELECT * FROM accounts"))}


def _check(database: Database, *names: str) -> None:
    """Hold all sums against the rows, and the rows of the accounts named against their journals."""
    assert _stored(database) == _right(database)
    for name in names:
        entries_of(database, name)


def test_the_sum_moves_with_every_entry_of_a_line(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    open_account(database, "agency", **_WIDE)
    open_account(database, "programme", parent="agency", **_WIDE)
    open_account(database, parent="programme", approval_above="0.01")
    names = ("agency", "programme", "people")
    _check(database, *names)
    steps: list[Callable[[], object]] = [
        lambda: charge(database, _BOTH),
        lambda: charge(database, _A, name="programme"),
        lambda: charge(database, _A, _BOTH, _A, _LONG),
        lambda: charge(database, _MANY, _A, _MANY, name="programme"),
        lambda: reserve(database, _MANY, _BOTH, name="agency"),
        lambda: commit(database, reserve(database, _MANY, name="programme")[0], "programme"),
        lambda: void(database, reserve(database, _MANY, name="programme")[0], "programme", attestation="none"),
        lambda: commit(database, reserve(database, _BOTH, _B)[0]),
        lambda: void(database, reserve(database, _B, _LONG)[0]),
        lambda: approve(database, charge(database, _B | {"epsilon": "0.3"})[0].id),
        lambda: approve(database, reserve(database, _B | {"epsilon": "0.3"})[0]),
        lambda: charge(database, _B | {"epsilon": "0.31"}),
        lambda: draw(database, charge(database, _B)[0].id, _B),
        lambda: draw(database, reserve(database, _B)[0], _B),
        lambda: draws.register_and_draw(database, ANN, prepared(database, _B)[0], np.array([1])),
        lambda: describe(database, "people", description="people of a country"),
        lambda: change_account(database, "agency", "closed"),
        lambda: change_account(database, "agency", "open"),
    ]
    for step in steps:
        step()
        _check(database)
    with pytest.raises(BudgetExceeded):
        charge(database, _B | {"epsilon": "100"})
    _check(database, *names)
    time.forward(2)
    for account_id in (3, 2, 1):
        while settlement.expire(database, account_id):
            _check(database)
    charge(database, _A)
    _check(database, *names)


def test_sums_of_a_ledger_with_everything_in_it_and_of_its_import(
    new_database: Callable[[], Database], signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, copy = new_database(), new_database()
    everything(original, Clock(monkeypatch))
    _check(original, *NAMES)
    file = exported(original, signer)
    rebuild(copy, lambda: io.BytesIO(file), signer.public_key)
    _check(copy, *NAMES)
    charge(copy, _A, name="agency")
    _check(copy, *NAMES)


def test_a_ledger_that_is_priced_again_keeps_its_sums(database: Database, older: pytest.MonkeyPatch) -> None:
    open_account(database, **_WIDE)
    charge(database, _B)
    (held,) = reserve(database, _B)
    older.undo()
    before = _stored(database)
    assert len(recompute(database, "people", apply=True).prices) == 2
    assert _stored(database) == before
    void(database, held)
    _check(database, "people")


def test_a_mask_is_of_its_account_and_its_sum() -> None:
    once, none = Counter({"a": 3, "b": 1}), Counter[str]()
    total = sum_of(SECRET, once, none)
    found = stored_sum(SECRET, 7, total)
    assert sum_after(SECRET, 7, sum_after(SECRET, 7, None, total - 5), 5) == found
    assert (
        sum_after(SECRET, 7, sum_after(SECRET, 7, found, sum_of(SECRET, none, once)), -sum_of(SECRET, none, once))
        == found
    )
    others = {
        stored_sum(SECRET, 8, total),
        stored_sum(SECRET, 7, total + 1),
        stored_sum(SECRET, 7, sum_of(SECRET, none, once)),
        stored_sum(Secret(bytes(32)), 7, total),
    }
    assert len({other[:32] for other in others | {found}}) == 5, "no two have a nonce in common"
    masks = {(int(stored_sum(SECRET, 7, n)[32:], 16) - n) % 2**256 for n in range(100)}
    assert len(masks) == 100


def test_many_subplans_add_what_few_at_a_time_do() -> None:
    subplans, none = Counter({f"subplan {n}": 1 + n for n in range(100)}), Counter[str]()
    many = ManySubplans.of(SECRET, subplans)
    assert many is not None
    assert (many.committed, many.held) == (sum_of(SECRET, subplans, none), sum_of(SECRET, none, subplans))
    assert ManySubplans.of(SECRET, Counter(dict.fromkeys(map(str, range(64)), 1))) is None


# What somebody does who writes the database and has not the secret

_PEOPLE = "account_id = (SELECT id FROM accounts WHERE name = 'people')"
_EDITS = {
    "a row is gone": f"DELETE FROM spending WHERE {_PEOPLE} AND occurrences = 2",
    "all rows are gone": f"DELETE FROM spending WHERE {_PEOPLE}",
    "a row is added": "INSERT INTO spending SELECT account_id, 'new', replace(subplan, '0', '1'), 1, 0 FROM spending"
    f" WHERE {_PEOPLE} AND occurrences = 2",
    "a row is added twice": "INSERT INTO spending SELECT account_id, 'new', subplan, 2, 0 FROM spending"
    f" WHERE {_PEOPLE} AND occurrences = 2",
    "a row is split": "INSERT INTO spending SELECT account_id, 'new', subplan || ' ', 1, 0 FROM spending"
    f" WHERE {_PEOPLE} AND occurrences = 2; UPDATE spending SET occurrences = 1 WHERE occurrences = 2",
    "fewer occurrences": f"UPDATE spending SET occurrences = 1 WHERE {_PEOPLE} AND occurrences = 2",
    "more occurrences": f"UPDATE spending SET occurrences = {2**63 - 1} WHERE {_PEOPLE} AND occurrences = 2",
    "less reserved": f"UPDATE spending SET reserved = 1 WHERE {_PEOPLE} AND reserved = 3",
    "committed that was reserved": "UPDATE spending SET occurrences = occurrences + reserved, reserved = 0"
    f" WHERE {_PEOPLE}",
    "reserved that was committed": "UPDATE spending SET reserved = occurrences + reserved, occurrences = 0"
    f" WHERE {_PEOPLE}",
    "another plan": f"UPDATE spending SET subplan = replace(subplan, '0', '1') WHERE {_PEOPLE} AND occurrences = 2",
    "plans exchanged": "UPDATE spending SET subplan = (SELECT subplan FROM spending other WHERE"
    " other.account_id = spending.account_id AND other.digest <> spending.digest)"
    f" WHERE {_PEOPLE}",
    "the rows of another account": f"DELETE FROM spending WHERE {_PEOPLE}; INSERT INTO spending SELECT"
    " (SELECT id FROM accounts WHERE name = 'people'), digest, subplan, occurrences, reserved FROM spending WHERE"
    " account_id = (SELECT id FROM accounts WHERE name = 'places')",
}


def _ledger(database: Database) -> None:
    """Two accounts; the one that is changed has committed a plan twice and another once, which it holds thrice too."""
    for name in ("people", "places"):
        open_account(database, name, **_WIDE)
    charge(database, _BOTH)
    reserve(database, _B, _B, _B)
    charge(database, _A, name="places")


def _refused(database: Database, name: str = "people") -> None:
    """Check that all that is computed from spending is refused; charges do not rest on it."""
    for reading in (spending.counts, spending.small_spending):
        with database.read() as connection, pytest.raises(Altered, match="not as the service wrote it") as refused:
            reading(connection, account_of(database, name))
        assert f"'{name}'" in str(refused.value.for_operator)
        assert name not in str(refused.value)
    with database.read() as connection:
        assert verify(connection, name).first_bad is not None


@pytest.mark.parametrize("edit", _EDITS)
def test_rows_that_somebody_changed_are_not_read(database: Database, edit: str) -> None:
    _ledger(database)
    run(database, *_EDITS[edit].split("; "))
    _refused(database)
    entries_of(database, "places")
    charge(database, _B)
    _refused(database)


def _copied(database: Database) -> None:
    columns = ("account_id", "digest", "subplan", "occurrences", "reserved")
    run(database, f"CREATE TABLE before AS SELECT {', '.join(columns)} FROM spending")


def test_rows_that_are_put_back_as_they_were_are_not_read(database: Database) -> None:
    _ledger(database)
    _copied(database)
    charge(database, _A)
    run(database, "DELETE FROM spending", "INSERT INTO spending SELECT * FROM before", "DROP TABLE before")
    _refused(database)
    entries_of(database, "places")


def test_rows_that_are_put_back_as_they_are_are_read(database: Database) -> None:
    """An operator repairs them so."""
    _ledger(database)
    _copied(database)
    run(database, "DELETE FROM spending")
    _refused(database)
    run(database, "INSERT INTO spending SELECT * FROM before", "DROP TABLE before")
    _check(database, "people", "places")


@pytest.mark.parametrize(
    "change", ["occurrences = 1.5", "reserved = 1.5", "reserved = -1", "subplan = CAST(subplan AS BLOB)"]
)
def test_what_is_of_another_type_is_not_read(tmp_path: Path, change: str) -> None:
    """SQLite takes any type in any column."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    with contextlib.closing(open_database(url)) as database:
        database.secret = SECRET
        _ledger(database)
        run(database, "PRAGMA ignore_check_constraints = ON", f"UPDATE spending SET {change} WHERE {_PEOPLE}")
        _refused(database)


def test_the_sum_of_another_account_is_not_taken(database: Database) -> None:
    _ledger(database)
    other = "(SELECT spending_sum FROM accounts WHERE name = 'places')"
    run(database, f"UPDATE accounts SET head_seq = head_seq + 1, spending_sum = {other} WHERE name = 'people'")
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        account_of(database)


def test_a_sum_of_other_rows_under_the_right_seal_is_named(database: Database) -> None:
    """The sum was adopted with rows that had been changed, and that were put right afterwards."""
    _ledger(database)
    _copied(database)
    run(database, f"UPDATE spending SET occurrences = 9 WHERE {_PEOPLE}")
    unseal(database)
    migrate_unsealed(database)
    adopt(database, SECRET, None)
    with database.read() as connection:
        assert spending.counts(connection, account_of(database))[0].most_common(1)[0][1] == 9
        assert verify(connection, "people").first_bad == BadEntry(
            5, "a row of spending does not follow from the journal"
        )
    run(database, "DELETE FROM spending", "INSERT INTO spending SELECT * FROM before", "DROP TABLE before")
    _refused(database)
    with database.read() as connection:
        reason = "the account's sum of its spending does not follow from the journal"
        assert verify(connection, "people").first_bad == BadEntry(5, reason)


# What 0.4.0 wrote

_OLD_COLUMNS = (
    *("id", "name", "unit", "neighbouring", "description", "budget", "admission", "totals", "state", "created_at"),
    *("head_seq", "head_hash", "parent", "approval_above", "next_expiry", "releases", "partitions_drawn"),
    "partitions_undeclared",
)


def _without_trigger(database: Database, *statements: str, **values: object) -> None:
    """Run statements on accounts as somebody who owns the database."""
    with database.read() as connection:
        query = "SELECT name, sql FROM sqlite_master WHERE name = 'accounts_by_entry'"
        found = connection.execute(text(query)).one() if database.kind == "sqlite" else None
    if found is None:
        run(database, "SET LOCAL session_replication_role = replica", *statements, **values)
    else:
        run(database, f"DROP TRIGGER {found.name}", *statements, found.sql, **values)


def _as_before(database: Database, *, said: bool = True) -> None:
    """Leave accounts as 0.4.0 sealed them: over all that its rows had, and noted in the installation's journal."""
    with database.read() as connection:
        query = "SELECT accounts.*, (SELECT name FROM accounts above WHERE above.id = accounts.parent_id) AS parent"
        rows = connection.execute(text(f"{query} FROM accounts")).mappings().all()
    for row in rows:
        seal = SECRET.seal("account", *(row[column] for column in _OLD_COLUMNS))
        edit = "UPDATE accounts SET spending_sum = NULL, seal = :seal WHERE id = :id"
        _without_trigger(database, edit, seal=seal, id=row["id"])
    migrate_unsealed(database)
    if said:
        numbers: dict[str, object] = dict.fromkeys(("answers", "jobs", "accounts", "releases", "holds"), 0)
        database.write(
            lambda connection: append(connection, SECRET, "rows_sealed", numbers, actor=None, at=clock.now()),
            is_committed=lambda *_: False,
        )


def _said(database: Database) -> list[Any]:
    with database.read() as connection:
        return [said["content"] for said in read(connection, SECRET) if said["kind"] == "rows_sealed"]


@pytest.mark.parametrize("said", [True, False])
def test_a_ledger_of_0_4_0_is_added_up_once(database: Database, monkeypatch: pytest.MonkeyPatch, said: bool) -> None:
    stated = SimpleNamespace(**vars(admission) | {"asking_accounts": lambda *_: None})
    monkeypatch.setattr(charges, "admission", stated)  # no proposal of that version states who is asked
    everything_old(database, Clock(monkeypatch))
    right = _stored(database)
    _as_before(database, said=said)
    for name in OLD_NAMES:
        with pytest.raises(Unavailable, match="not as the service wrote it") as refused:
            account_of(database, name)
        assert _ADOPTED in str(refused.value.for_operator)
        with database.read() as connection:
            bad = verify(connection, name).first_bad
        assert bad is not None
        assert bad.reason == _ADOPTED
    adopt(database, SECRET, None)
    assert _said(database)[-1]["spending"] == len(OLD_NAMES)
    assert _stored(database) == right
    _check(database, *OLD_NAMES)
    charge(database, _A, name="agency")
    _check(database, *OLD_NAMES)

    numbers = _said(database)
    _as_before(database, said=False)
    adopt(database, SECRET, None)
    assert _said(database) == numbers, "once"
    with pytest.raises(Unavailable, match="not as the service wrote it"):
        account_of(database, "agency")


def test_a_row_of_0_4_0_that_somebody_changed_is_not_adopted(database: Database) -> None:
    """Nor one without a seal where 0.4.0 sealed all; the accounts around them are."""
    names = [f"account {number}" for number in range(7)]
    for name in names:
        open_account(database, name, **_WIDE)
    charge(database, _BOTH, name=names[0])
    _as_before(database)
    wrong = dict(zip(names[1:4], ("state = 'closed'", "seal = NULL", f"seal = '{'0' * 64}'"), strict=True))
    for name, edit in wrong.items():
        _without_trigger(database, f"UPDATE accounts SET {edit} WHERE name = '{name}'")
    adopt(database, SECRET, None)
    assert _said(database)[-1] == {"spending": 4, "draws": 0, "partitions": 0}
    for name in names:
        if name in wrong:
            with pytest.raises(Unavailable, match="not as the service wrote it"):
                account_of(database, name)
        else:
            entries_of(database, name)


def test_a_start_goes_on_with_what_an_interrupted_one_began(database: Database) -> None:
    """It ended between the rows and the entry that tells of them."""
    _ledger(database)
    right = _stored(database)
    _as_before(database)
    database.write(lambda connection: account_rows.seal_old(connection, SECRET, 0, 1), is_committed=lambda *_: False)
    entries_of(database)
    adopt(database, SECRET, None)
    assert _stored(database) == right
    assert _said(database)[-1] == {"spending": 1, "draws": 0, "partitions": 0}
    _check(database, "people", "places")
