"""Accounts with caps on tags and periods: both in one account, or in two of one line."""

import io
import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from service.errors import BudgetExceeded
from service.ledger.accounts import accounts
from service.ledger.accounts.budgets import read_budget
from service.ledger.installation.signing import Signer
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import PriceChanged, read_text
from service.ledger.journal.entries.committed_texts import registered
from service.ledger.releases.settlement import in_list, present_account
from service.ledger.spending import window_rows
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification.chain_check import Audit
from service.ledger.verification.imports import rebuild
from service.ledger.verification.recompute import recompute
from service.privacy.accounting.privacy_filter import spent_of_cap
from service.privacy.periods import ALL
from tests.ledger.charging import (
    account_of,
    change_account,
    charge,
    commit,
    entries_of,
    left,
    open_account,
    reserve,
    set_caps,
    void,
)
from tests.ledger.ledgers import Clock, exported
from tests.ledger.verification.test_recompute import older

__all__ = ["older"]  # a fixture

_CAPS = {"hispanic": {"definition": "zcdp", "rho": "3"}}
_PANEL = {"calendar": "month", "participation": {"offsets": [0, 1]}}
_MONTH = {"from": "2026-03", "to": "2026-03"}
_TAGGED = {"type": "discrete_gaussian", "rho": "1/10", "tags": ["hispanic"]}
_UNTAGGED = {"type": "discrete_gaussian", "rho": "1/20", "reads": "nothing capped"}


def _opened(database: Database, above: dict[str, Any], below: dict[str, Any]) -> Any:
    """Open a line, and fill it with committed, held and voided releases; return their periods."""
    open_account(database, "agency", **above)
    open_account(database, "people", parent="agency", **below)
    periods = _MONTH if "periods" in below else None
    charge(database, _TAGGED, _UNTAGGED, periods=periods)
    committed, voided, _ = reserve(database, _TAGGED, _TAGGED, _TAGGED, periods=periods)
    commit(database, committed)
    void(database, voided)
    return periods


def _counted(database: Database, name: str) -> Fraction | None:
    (cap,) = account_of(database, name).caps
    return spent_of_cap(cap.budget, cap.weights, cap.totals)


def _optional(database: Database, name: str) -> list[dict[str, Any]]:
    """The optional members of an account's registrations; each is read without parsing as parsing reads it."""
    found = []
    for entry in entries_of(database, name):
        content = json.loads(entry.body)["content"]
        if "plan" in content:
            found.append({member: content[member] for member in ("caps", "periods") if member in content})
            stated: Any = read_text(entry.body).content
            assert registered(entry.body) == (stated.charge if entry.kind == "committed" else None)
    return found


_LINES = pytest.mark.parametrize(
    ("above", "below"),
    [
        ({"periods": _PANEL}, {"caps": _CAPS}),
        ({"caps": _CAPS}, {"periods": _PANEL}),
        ({}, {"caps": _CAPS, "periods": _PANEL}),
        ({"caps": _CAPS, "periods": _PANEL}, {}),
        ({"periods": _PANEL}, {"caps": _CAPS, "periods": _PANEL}),
    ],
    ids=["caps below periods", "periods below caps", "both below", "both above", "a wave below periods"],
)


def _owner(member: str, below: dict[str, Any]) -> str:
    """The account of the line that has caps, or periods."""
    return "people" if member in below else "agency"


@_LINES
def test_each_account_counts_by_its_own_limits(database: Database, above: Any, below: Any) -> None:
    _opened(database, above, below)
    capped, counting = _owner("caps", below), _owner("periods", below)
    # Three of four tagged releases stand, each 1/10 for one record, and four times that for another value of the tag.
    assert _counted(database, capped) == 3 * Fraction(4, 10)
    assert left(database, "people") == left(database, "agency") == 1 - Fraction(3, 10) - Fraction(1, 20)
    account = account_of(database, counting)
    with database.read() as connection:
        windows = window_rows.read_windows(connection, account.id, ALL)
    assert account.windows is not None
    spent = {account.windows.common.totals.rho.finite, *(window.totals.rho.finite for window in windows.values())}
    # Releases of an account without periods are charged to all; others to the windows that begin in February and March.
    assert (len(windows), spent) == ((0, {Fraction(7, 20)}) if counting == "agency" else (2, {0, Fraction(7, 20)}))
    text = "all" if counting == "agency" else _MONTH
    with_tag, without = [one.keys() - {"periods"} for one in _optional(database, capped)][:2]
    assert (with_tag, without) == ({"caps"}, set())
    assert [one["periods"] for one in _optional(database, counting)] == [text] * 5
    assert set(_optional(database, counting)[0]) == ({"caps", "periods"} if capped == counting else {"periods"})


@_LINES
def test_verification_and_import_agree(
    new_database: Callable[[], Database], signer: Signer, above: Any, below: Any
) -> None:
    old, new = new_database(), new_database()
    periods = _opened(old, above, below)
    set_caps(old, _CAPS | {"race": _CAPS["hispanic"]}, _owner("caps", below))
    file = exported(old, signer)
    rebuild(new, lambda: io.BytesIO(file), signer.public_key)
    for name in ("agency", "people"):
        assert account_of(new, name) == account_of(old, name)
    charge(new, _TAGGED | {"tags": ["hispanic", "race"]}, periods=periods)
    assert [len(entries_of(new, name)) for name in ("agency", "people")] == [
        len(entries_of(old, name)) + 1 for name in ("agency", "people")
    ]


@_LINES
def test_pricing_again_corrects_caps_and_windows(
    database: Database, older: pytest.MonkeyPatch, above: Any, below: Any
) -> None:
    _opened(database, above, below)
    older.undo()
    for name in ("agency", "people"):
        recompute(database, name, apply=True)
        assert recompute(database, name, apply=True).prices == []
        assert left(database, name) == 1 - Fraction(3, 10) - Fraction(1, 20)
        entries_of(database, name)
    assert _counted(database, _owner("caps", below)) == 3 * Fraction(4, 10)


def test_a_cap_counts_all_windows_together(database: Database) -> None:
    """Statement T-5: releases of different periods share a cap, although no unit may be in both."""
    open_account(database, caps={"hispanic": {"definition": "zcdp", "rho": "1"}}, periods=_PANEL)
    first, held = {"list": ["2026-01"]}, {"list": ["2027-01"]}
    charge(database, _TAGGED, periods=first)
    (reserved,) = reserve(database, _TAGGED, periods=held)
    assert _counted(database, "people") == Fraction(8, 10)
    assert left(database, "people") == 1 - Fraction(1, 10), "the budget counts each window by itself"
    for periods in (first, {"list": ["2030-06"]}, "all"):
        before = account_of(database)
        with pytest.raises(BudgetExceeded) as refused:
            charge(database, _UNTAGGED, _TAGGED, periods=periods)
        (failure,) = refused.value.failures
        assert (failure.tag, failure.window, str(failure.remaining)) == ("hispanic", None, "1/5")
        multiplier = refused.value.noise_multiplier()
        assert multiplier is not None
        assert multiplier**2 == pytest.approx(2, rel=1e-5)
        after = account_of(database)  # with an entry for the refusal
        assert (after.caps, after.totals, after.windows) == (before.caps, before.totals, before.windows)
    void(database, reserved)
    charge(database, _TAGGED, periods=held)
    assert _counted(database, "people") == Fraction(8, 10)
    entries_of(database)


def test_a_refusal_names_the_window_and_the_cap(database: Database) -> None:
    open_account(database, caps={"hispanic": {"definition": "zcdp", "rho": "1"}}, periods=_PANEL)
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, _TAGGED | {"rho": "2"}, periods=_MONTH)
    assert [(one.tag, one.window) for one in refused.value.failures] == [(None, "2026-02"), ("hispanic", None)]


def test_overdue_holds_of_some_periods_leave_a_cap(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists read no windows, but a cap's totals need none."""
    time = Clock(monkeypatch)
    open_account(database, caps=_CAPS, periods=_PANEL)
    charge(database, _TAGGED, periods=_MONTH)
    reserve(database, _TAGGED, periods=_MONTH)
    reserve(database, _TAGGED, periods="all")
    assert _counted(database, "people") == 3 * Fraction(4, 10)
    time.forward(2)
    with database.read() as connection:
        stored = accounts.read_account(connection, "people")
        found = in_list(connection, stored, clock.now()), present_account(connection, stored, clock.now()).account
    for account in found:
        (cap,) = account.caps
        assert spent_of_cap(cap.budget, cap.weights, cap.totals) == Fraction(4, 10)
        assert account.releases == 1
    charge(database, _TAGGED, periods=_MONTH)  # the holds expire first
    assert _counted(database, "people") == 2 * Fraction(4, 10)
    assert [entry.kind for entry in entries_of(database)].count("expired") == 2


@pytest.mark.parametrize("participation", [{"offsets": [0, 1]}, {"any": 2}], ids=["offsets", "any"])
def test_a_later_cap_counts_releases_of_all_periods(database: Database, participation: Any) -> None:
    open_account(database, periods={"calendar": "month", "participation": participation})
    for month in ("2026-01", "2027-01"):
        charge(database, _TAGGED, periods={"list": [month]})
    charge(database, {"type": "discrete_gaussian", "rho": "1/100"}, periods="all")  # tags promised nothing then
    first, second = reserve(database, _UNTAGGED, _UNTAGGED, periods=_MONTH)
    set_caps(database, _CAPS)
    assert _counted(database, "people") == 4 * (2 * Fraction(1, 10) + Fraction(1, 100) + 2 * Fraction(1, 20))
    void(database, first)
    commit(database, second)
    assert _counted(database, "people") == 4 * (2 * Fraction(1, 10) + Fraction(1, 100) + Fraction(1, 20))
    entries_of(database)
    with pytest.raises(BudgetExceeded) as refused:
        set_caps(database, {"hispanic": {"definition": "zcdp", "rho": "1"}})
    assert refused.value.pointer == "/caps/0/budget"


def test_an_allotment_counts_for_the_caps_of_an_account_with_periods(
    new_database: Callable[[], Database], signer: Signer
) -> None:
    """It is charged to all periods, and its whole loss to each cap; a lower or closed one gives back exactly that."""
    database, copy = new_database(), new_database()
    open_account(database, "agency", caps=_CAPS, periods=_PANEL)
    open_account(database, "people", parent="agency", funding="allotted", rho="1/2", definition="zcdp")
    assert (_counted(database, "agency"), left(database, "agency")) == (4 * Fraction(1, 2), Fraction(1, 2))
    charge(database, {"type": "discrete_gaussian", "rho": "1/10"})
    change_account(database, "people", read_budget({"definition": "zcdp", "rho": "1/4"}))
    assert (_counted(database, "agency"), left(database, "agency")) == (4 * Fraction(1, 4), Fraction(3, 4))
    charge(database, _TAGGED, name="agency", periods=_MONTH)
    with pytest.raises(BudgetExceeded) as refused:
        open_account(database, "others", parent="agency", funding="allotted", rho="29/10", definition="zcdp")
    assert [one.tag for one in refused.value.failures] == [None, "hispanic"]
    change_account(database, "people", "closed")
    assert (_counted(database, "agency"), left(database, "agency")) == (4 * Fraction(2, 10), Fraction(8, 10))
    for name in ("agency", "people"):
        entries_of(database, name)
    file = exported(database, signer)
    rebuild(copy, lambda: io.BytesIO(file), signer.public_key)
    assert account_of(copy, "agency") == account_of(database, "agency")


@pytest.mark.parametrize("definition", ["pure", "rdp", "approximate"])
def test_a_cap_beside_periods_has_any_definition(database: Database, definition: str) -> None:
    budgets = {
        "pure": {"definition": "pure", "epsilon": "1", "delta": "1e-6"},
        "rdp": {"definition": "rdp", "alpha": "8", "epsilon": "9"},
        "approximate": {"definition": "approximate", "epsilon": "1", "delta": "1e-6", "declared_delta": "1e-7"},
    }
    open_account(database, caps={"hispanic": budgets[definition]}, periods=_PANEL)
    geometric = {"type": "geometric", "epsilon": "0.01", "tags": ["hispanic"]}
    held = reserve(database, geometric, geometric, periods=_MONTH)
    charge(database, *[geometric] * 5, periods={"list": ["2030-01"]})
    commit(database, held[0])
    void(database, held[1])
    (cap,) = account_of(database).caps
    assert cap.totals.epsilon.finite == Fraction(12, 100)
    entries_of(database)


def test_a_repricing_states_the_periods_of_its_release(database: Database) -> None:
    open_account(database, periods=_PANEL)
    (charged,) = charge(database, _TAGGED, periods=_MONTH)
    audit = Audit("people")
    entries = entries_of(database)
    for entry in entries:
        audit.take(entry)
    stated: Any = read_text(entries[-1].body).content
    with pytest.raises(BrokenChain, match="other periods"):
        audit._take_price(
            charged.id, PriceChanged(was=stated.price, price=stated.price, accountant="1", periods='"all"')
        )
