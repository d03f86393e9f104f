"""Lines in which one account has caps on tags and another has periods; no account has both."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from service.errors import InvalidInput
from service.ledger.accounts import window_rows
from service.ledger.installation.signing import Signer
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import AccountOpened, CapsChanged, PriceChanged, read_text
from service.ledger.journal.entries.committed_texts import registered
from service.ledger.storage.database import Database
from service.ledger.verification.chain_check import Audit
from service.ledger.verification.imports import rebuild
from service.ledger.verification.recompute import recompute
from service.privacy.accounting.privacy_filter import spent_of_cap
from service.privacy.periods import ALL
from tests.ledger.charging import (
    account_of,
    charge,
    commit,
    entries_of,
    left,
    open_account,
    reserve,
    set_caps,
    void,
)
from tests.ledger.ledgers import exported
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
    [({"periods": _PANEL}, {"caps": _CAPS}), ({"caps": _CAPS}, {"periods": _PANEL})],
    ids=["caps below periods", "periods below caps"],
)


@_LINES
def test_each_account_counts_by_its_own_limits(database: Database, above: Any, below: Any) -> None:
    _opened(database, above, below)
    capped, counting = ("people", "agency") if "caps" in below else ("agency", "people")
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
    with_tag, without = [set(one) for one in _optional(database, capped)][:2]
    assert (with_tag, without) == ({"caps"}, set())
    assert _optional(database, counting) == [{"periods": text}] * 5


@_LINES
def test_verification_and_import_agree(
    new_database: Callable[[], Database], signer: Signer, above: Any, below: Any
) -> None:
    old, new = new_database(), new_database()
    periods = _opened(old, above, below)
    set_caps(old, _CAPS | {"race": _CAPS["hispanic"]}, "people" if "caps" in below else "agency")
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
    assert _counted(database, "people" if "caps" in below else "agency") == 3 * Fraction(4, 10)


def test_an_account_has_not_both(database: Database) -> None:
    with pytest.raises(InvalidInput) as refused:
        open_account(database, "both", caps=_CAPS, periods=_PANEL)
    assert [(fault.pointer, fault.detail) for fault in refused.value.faults] == [
        ("/caps", "expected none on an account with periods")
    ]
    open_account(database, "people", periods=_PANEL)
    before = account_of(database)
    with pytest.raises(InvalidInput) as refused:
        set_caps(database, _CAPS)
    assert [fault.pointer for fault in refused.value.faults] == ["/caps"]
    assert account_of(database) == before


def test_a_journal_in_which_an_account_has_both_is_refused(database: Database) -> None:
    open_account(database, "monthly", periods=_PANEL)
    open_account(database, "people")
    set_caps(database, _CAPS)
    opened, changed = (read_text(entry.body) for entry in entries_of(database))
    monthly: Any = read_text(entries_of(database, "monthly")[0].body)
    assert isinstance(opened.content, AccountOpened)
    assert isinstance(changed.content, CapsChanged)
    (cap,) = changed.content.caps
    with pytest.raises(BrokenChain, match="has caps"):
        replace(monthly.content, caps=(cap._replace(counted=None),)).replay(AccountState("monthly"), monthly)
    chain = AccountState("monthly")
    monthly.content.replay(chain, monthly)
    with pytest.raises(BrokenChain, match="has caps"):
        changed.content.replay(chain, changed)


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
