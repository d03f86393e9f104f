"""Columns that seals cover only where they have a value: rows that are older than the column keep their seals."""

import hashlib
from collections.abc import Callable
from typing import Any, cast

import pytest
from sqlalchemy import Row

from service.ledger.accounts import account_rows
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.storage.secret import encoded, sealed_values
from tests.ledger.charging import SECRET

_HASH = "ab" * 32
_VALUES: dict[str, Any] = {
    "id": "one",
    "account_id": 7,
    "seq": 3,
    "name": "people",
    "plan": "{}",
    "tags": "[]",
    "delta": "0",
    "created_at": "now",
    "expires_at": None,
    "state": "committed",
}
_HOLD: dict[str, Any] = {"release_id": "one", "account_id": 7, "price": "{}", "expires_at": None}
_ACCOUNT: dict[str, Any] = {name: f"the {name}" for name in account_rows._SEALED}


def _of_account(row: dict[str, Any]) -> str:
    return account_rows.seal_of(SECRET, row)


def _of_release(row: dict[str, Any]) -> str:
    return release_rows.seal_of(SECRET, row, _HASH)


def _of_hold(row: dict[str, Any]) -> str:
    return str(reservation_rows.sealed(SECRET, row)["seal"])


def _release_seal_of_old() -> str:
    """Return the seal of the release as it was before there were optional columns."""
    columns = ("id", "account_id", "seq", "name", "plan", "tags", "delta", "created_at", "expires_at")
    digest = hashlib.sha256(encoded(*(_VALUES[name] for name in columns), _HASH)).hexdigest()
    return digest + SECRET.seal("release", digest, "one", "committed")


_CASES = [
    (account_rows, _of_account, _ACCOUNT, SECRET.seal("account", *_ACCOUNT.values())),
    (release_rows, _of_release, _VALUES, _release_seal_of_old()),
    (reservation_rows, _of_hold, _HOLD, SECRET.seal("hold", "one", 7, "{}", None)),
]


@pytest.mark.parametrize(("module", "seal", "row", "old"), _CASES, ids=["accounts", "releases", "holds"])
def test_a_row_without_a_value_keeps_its_seal_and_each_value_has_one_of_its_own(
    module: Any, seal: Callable[[dict[str, Any]], str], row: dict[str, Any], old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seal({**row, **dict.fromkeys(module._OPTIONAL)}) == old
    monkeypatch.setattr(module, "_OPTIONAL", ("first", "second"))
    changes = [{}, {"first": "x"}, {"second": "x"}, {"first": "x", "second": "x"}, {"first": ""}, {"first": "second"}]
    seals = [seal({**row, "first": None, "second": None, **change}) for change in changes]
    assert seals[0] == old
    assert len(set(seals)) == len(seals)


def test_a_seal_of_0_4_0_does_not_vouch_for_an_optional_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are sealed anew when they get a sum of their spending; none of them has such a value."""
    monkeypatch.setattr(account_rows, "_OPTIONAL", ("caps",))
    asked = list[object]()
    monkeypatch.setattr(account_rows, "read_rows", lambda *given: asked.append(given))
    columns = {name: value for name, value in _ACCOUNT.items() if name != "spending_sum"}
    seal = SECRET.seal("account", *columns.values())
    for caps, known in ((None, True), ("[]", False)):
        row = cast("Row[*tuple[Any, ...]]", _Old({**columns, "spending_sum": None, "caps": caps, "seal": seal}))
        assert account_rows._sealed_old(cast(Any, None), SECRET, row, without_seal=False) is None
        assert bool(asked) == known
        asked.clear()


class _Old:
    """A row as the database gives it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._mapping = values
        self.id, self.seal = values["id"], values["seal"]


def test_no_two_rows_give_equal_values() -> None:
    columns, optional = ("a", "b"), ("c", "d")
    values = (None, "c", "d", "x")
    rows = [{"a": a, "b": "b", "c": c, "d": d} for a in values for c in values for d in values]
    lists = [tuple(sealed_values(row, columns, optional)) for row in rows]
    assert len(set(lists)) == len(rows)
