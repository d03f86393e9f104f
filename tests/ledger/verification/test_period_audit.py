"""The periods along a line, as a reader of an export audits them."""

from fractions import Fraction
from typing import Any

import pytest

from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import AccountOpened, Committed, Origin
from service.ledger.journal.entry_texts import NOTHING
from service.ledger.verification.period_audit import PeriodAudit
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights
from service.privacy.periods import Calendar, Offsets, Periods
from service.privacy.plans.walking import Neighbouring

_BUDGET = Budget(definition=Definition.ZCDP, cap=Fraction(1))
_MONTHS, _QUARTERS, _WEEKS = (
    Periods(calendar, Offsets((0,))) for calendar in (Calendar.MONTH, Calendar.QUARTER, Calendar.WEEK)
)


def _opening(parent: str | None, periods: Periods | None) -> AccountOpened:
    relation: dict[str, Any] = {"neighbouring": Neighbouring.ADD_REMOVE, "unit": "person", "description": ""}
    return AccountOpened(admission=Weights(), budget=_BUDGET, parent=parent, periods=periods, **relation)


def _release(periods: str | None, origin: Origin | None = None) -> Committed:
    said: dict[str, Any] = {"accountant": "1", "delta": "0", "name": "n", "plan": "{}", "price": NOTHING, "tags": ()}
    return Committed(origin=origin, periods=periods, **said)


@pytest.fixture
def audit() -> PeriodAudit:
    """Return an audit of quarters above months, with an account without periods between them."""
    found = PeriodAudit()
    found.open("quarterly", _opening(None, _QUARTERS))
    found.open("agency", _opening("quarterly", None))
    found.open("people", _opening("agency", _MONTHS))
    found.check_release(_MONTHS, "a", _release('{"list":["2026-01","2026-03","2026-05"]}'))
    found.check_release(None, "b", _release(None))
    return found


def test_an_account_above_is_charged_for_what_holds_the_periods(audit: PeriodAudit) -> None:
    origin = Origin("people", 2)
    audit.check_release(None, "a", _release(None, origin))
    audit.check_release(_QUARTERS, "a", _release('{"from":"2026-Q1","to":"2026-Q2"}', origin))
    for other in ('{"from":"2026-Q1","to":"2026-Q1"}', '"all"', None, '{"list":["2026-Q1","2026-Q2"]}'):
        with pytest.raises(BrokenChain):
            audit.check_release(_QUARTERS, "a", _release(other, origin))


def test_all_periods_are_charged_above_an_account_without_them(audit: PeriodAudit) -> None:
    audit.check_release(_QUARTERS, "b", _release('"all"', Origin("agency", 2)))
    with pytest.raises(BrokenChain):
        audit.check_release(_QUARTERS, "b", _release('{"from":"2026-Q1","to":"2026-Q2"}', Origin("agency", 2)))
    with pytest.raises(BrokenChain, match="was not registered where"):
        audit.check_release(_QUARTERS, "b", _release('"all"', Origin("nowhere", 2)))


def test_a_calendar_nests_in_those_of_all_accounts_above(audit: PeriodAudit) -> None:
    with pytest.raises(BrokenChain, match="cannot be under its parent"):
        audit.open("weekly", _opening("agency", _WEEKS))
