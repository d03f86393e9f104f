"""Verification of allotments: what only a faulty server writes is found, in the ledger and in its export."""

import io
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from service.ledger.accounts import account_opening, lines
from service.ledger.accounts.allotments import Amount
from service.ledger.installation.signing import Signer
from service.ledger.releases import allotment_charges
from service.ledger.storage.database import Database
from service.ledger.verification.export_reader import BadExport, Reader
from service.ledger.verification.funding_check import OTHER_AMOUNT, UNFUNDED
from service.ledger.verification.verify import verify
from tests.ledger.charging import change_account, charge, open_account
from tests.ledger.ledgers import exported

PURE = {"definition": "pure", "epsilon": "1"}
OWN = {"type": "declared", "epsilon": "1/4", "reference": "a proof"}


def _reason(database: Database, name: str) -> str | None:
    with database.read() as connection:
        bad = verify(connection, name).first_bad
    return None if bad is None else bad.reason


def _in_export(database: Database, signer: Signer) -> str:
    reader = Reader(io.BytesIO(exported(database, signer)), None)
    with pytest.raises(BadExport) as bad:
        list(reader.entries())
    return str(bad.value)


def _share(database: Database) -> None:
    open_account(database, "agency", **PURE | {"epsilon": "9"})
    open_account(database, "share", parent="agency", funding="allotted", **PURE)


def test_an_account_that_nothing_above_is_charged_for_is_found(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_opening, "set_allotment", lambda *_: [])
    _share(database)
    assert _reason(database, "share") == UNFUNDED
    assert _reason(database, "agency") is None
    assert "agency" in _in_export(database, signer)


def test_an_amount_that_is_not_the_cap_is_found(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as faulty:
        faulty.setattr(allotment_charges, "amount_of", lambda *_: Amount(Fraction(1, 2), Fraction(0)))
        _share(database)
    assert _reason(database, "share") == OTHER_AMOUNT
    assert _reason(database, "agency") is None
    assert "another amount than the cap of 'share'" in _in_export(database, signer)


def test_a_price_that_is_not_that_of_the_cap_is_found(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Callable[..., Any] = allotment_charges.prices_of

    def half(*given: Any) -> Any:
        found = right(*given)
        return found._replace(price=replace(found.price, epsilon=found.price.epsilon / 2))

    with monkeypatch.context() as faulty:
        faulty.setattr(allotment_charges, "prices_of", half)
        _share(database)
    assert _reason(database, "agency") == "the allotment is none, or is not charged at its price"
    assert "not charged at its price" in _in_export(database, signer)


def test_a_release_of_an_allotted_account_that_is_charged_above_it_is_found(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _share(database)
    charge(database, OWN, name="share")
    with monkeypatch.context() as faulty:
        faulty.setattr(lines, "charged_line", lambda line: line)
        lines.line_of.cache_clear()
        charge(database, OWN, name="share")
    lines.line_of.cache_clear()
    assert "of an allotted account" in (_reason(database, "agency") or "")
    assert "releases charge this one" in _in_export(database, signer)


def test_an_allotment_that_a_closed_account_has_used_more_of_is_found(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _share(database)
    charge(database, OWN, name="share")
    with monkeypatch.context() as faulty:
        faulty.setattr(allotment_charges, "amount_of", lambda *_: Amount(Fraction(1, 8), Fraction(0)))
        change_account(database, "share", "closed")
    assert _reason(database, "share") == OTHER_AMOUNT
    assert "another amount" in _in_export(database, signer)
