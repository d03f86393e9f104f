"""Pricing a ledger again: what an older accountant asked too little for is found, reported, and set right once."""

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import Connection

from service.errors import Conflict
from service.ledger.accounts.budgets import read_price
from service.ledger.journal.chains import BadEntry
from service.ledger.journal.entries import PriceChanged
from service.ledger.journal.entry_texts import price_key_of, price_of
from service.ledger.releases import charges, preparation
from service.ledger.releases.settlement import expire
from service.ledger.storage.database import Database
from service.ledger.verification import chain_check, recompute as module
from service.ledger.verification.recompute import RepricedRelease, recompute
from service.ledger.verification.verify import verify
from service.privacy.accounting import pricing
from service.privacy.accounting.pricing import Price
from tests.ledger.charging import (
    account_of,
    charge,
    commit,
    entries_of,
    half_price,
    open_account,
    release_of,
    reserve,
    void,
)
from tests.ledger.ledgers import Clock

_A = {"type": "geometric", "epsilon": "1/10", "name": "a"}
_B = {"type": "discrete_gaussian", "rho": "1/100", "name": "b"}


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """While it is in force, the accountant is an older one, which asks for half of what is right."""

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "price", half_price)
        patch.setattr(charges, "ACCOUNTANT", "0")
        yield patch


def _prices(found: RepricedRelease) -> dict[str, tuple[Price, Price]]:
    return {release: (read_price(price_of(old)), read_price(price_of(new))) for release, old, new in found.prices}


def _sound(database: Database, *names: str) -> None:
    with database.read() as connection:
        for name in names:
            assert verify(connection, name).valid, (name, verify(connection, name))


def test_a_ledger_that_is_priced_right_is_left_as_it_is(database: Database) -> None:
    open_account(database, definition="approximate", epsilon="5", delta="1e-6")
    charge(database, _A, _B)
    reserve(database, {"type": "laplace", "epsilon": "1/3"})
    before = account_of(database)
    for apply in (False, True):
        assert recompute(database, "people", apply=apply) == RepricedRelease(before, [], [])
    assert account_of(database) == before


@pytest.mark.parametrize(
    "budget",
    [
        {"definition": "pure", "epsilon": "1/8"},
        {"definition": "zcdp", "rho": "1/130"},
        {"definition": "rdp", "alpha": "2", "epsilon": "1/70"},
        {"definition": "approximate", "epsilon": "1/8", "delta": "1e-6"},
    ],
    ids=lambda budget: budget["definition"],
)
def test_prices_that_were_too_small_are_reported_and_then_applied(
    database: Database, older: pytest.MonkeyPatch, budget: dict[str, str]
) -> None:
    open_account(database, **budget)
    (first,) = charge(database, _A)
    (second,) = charge(database, _A)
    older.undo()
    before = account_of(database)
    entries = entries_of(database)
    found = recompute(database, "people", apply=False)
    assert _prices(found).keys() == {first.id, second.id}
    assert all(new.epsilon == 2 * (old.epsilon or 0) == Fraction(1, 10) for old, new in _prices(found).values())
    assert len(found.over) == 1
    assert entries_of(database) == entries, "nothing is changed without being told to"
    applied = recompute(database, "people", apply=True)
    assert (applied.prices, applied.over) == (found.prices, found.over)
    after = account_of(database)
    assert after == applied.account
    assert after.totals.epsilon.finite == 2 * before.totals.epsilon.finite == Fraction(1, 5)
    assert [entry.kind for entry in entries_of(database)[len(entries) :]] == ["repriced", "repriced"]
    again = recompute(database, "people", apply=True)
    assert (again.prices, len(again.over), again.account) == ([], 1, after)


def test_each_account_of_a_line_is_priced_by_itself(database: Database, older: pytest.MonkeyPatch) -> None:
    open_account(database, "agency", definition="approximate", epsilon="5", delta="1e-6")
    open_account(database, "product", parent="agency", definition="pure", epsilon="2")
    (release,) = charge(database, _A, name="product")
    older.undo()
    charge(database, _A, name="product")
    assert _prices(recompute(database, "agency", apply=True)).keys() == {release.id}
    assert account_of(database, "product").totals.epsilon.finite == Fraction(3, 20)
    assert account_of(database, "agency").totals.epsilon.finite == Fraction(1, 5)
    _sound(database, "agency", "product")
    assert _prices(recompute(database, "product", apply=True)).keys() == {release.id}
    assert account_of(database, "product").totals.epsilon.finite == Fraction(1, 5)
    for name in ("agency", "product"):
        assert recompute(database, name, apply=True).prices == []
        entries_of(database, name)


def test_what_is_held_is_priced_again_and_can_still_be_voided(database: Database, older: pytest.MonkeyPatch) -> None:
    open_account(database, definition="pure", epsilon="2")
    kept, gone, spent = reserve(database, _A, _A, _A)
    void(database, gone)
    older.undo()
    assert _prices(recompute(database, "people", apply=True)).keys() == {kept, spent}
    commit(database, spent)
    void(database, kept)
    assert account_of(database).totals.epsilon.finite == Fraction(1, 10)
    assert release_of(database, spent).state == "committed"
    entries_of(database)


def test_releases_are_priced_again_some_at_a_time(
    database: Database, older: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    open_account(database, definition="pure", epsilon="2")
    for _ in range(5):
        charge(database, _A)
    older.undo()
    assert len(recompute(database, "people", apply=True).prices) == 5
    assert len(entries_of(database)) == 11
    assert recompute(database, "people", apply=True).prices == []


_IN_PERIODS = {"calendar": "month", "participation": {"offsets": [0, 1]}}
_MONTHS = {"from": "2026-03", "to": "2026-05"}
_TAGGED = _B | {"tags": ["income"]}


@pytest.mark.parametrize("state", ["voided", "expired"])
@pytest.mark.parametrize("name", ["people", "agency"])
@pytest.mark.parametrize(
    "limits",
    [{}, {"periods": _IN_PERIODS}, {"caps": {"income": {"definition": "zcdp", "rho": "1"}}}],
    ids=["plain", "periods", "caps"],
)
def test_what_counts_no_more_before_the_first_write_is_not_priced_again_by_a_later_one(
    database: Database,
    older: pytest.MonkeyPatch,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    name: str,
    limits: dict[str, Any],
) -> None:
    time = Clock(monkeypatch)
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    open_account(database, "agency", **limits)
    open_account(database, parent="agency", **limits)
    periods = _MONTHS if "periods" in limits else None
    charge(database, *[_TAGGED] * 2, periods=periods)
    gone = reserve(database, *[_TAGGED] * 5, periods=periods)
    (held,) = reserve(database, _TAGGED, hours=9, periods=periods)
    older.undo()
    apply = module._apply

    def late(*given: Any) -> RepricedRelease:
        if state == "expired":
            time.forward(2)
            expire(database, account_of(database).id)
        else:
            for release in gone:
                void(database, release)
        assert {release_of(database, release).state for release in gone} == {state}
        return apply(*given)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_apply", late)
        done = recompute(database, name, apply=True)
    assert len(done.prices) == 3
    assert _prices(done).keys().isdisjoint(gone)
    assert account_of(database, name).totals.rho.finite == 3 * Fraction(1, 100)
    _sound(database, "people", "agency")
    assert recompute(database, name, apply=True).prices == []
    void(database, held)
    assert account_of(database, name).totals.rho.finite == 2 * Fraction(1, 100)
    entries_of(database, name)


def test_a_failure_between_two_writes_leaves_whole_writes_and_the_next_run_finds_the_rest(
    database: Database, older: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    open_account(database)
    charge(database, *[_B] * 5)
    older.undo()
    write = module._write

    def changed_meanwhile(connection: Connection, **given: Any) -> Any:
        if account_of(database).head.seq > 6:
            raise Conflict("by another process")
        return write(connection, **given)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", changed_meanwhile)
        with pytest.raises(Conflict):
            recompute(database, "people", apply=True)
    assert account_of(database).totals.rho.finite == Fraction(2 * 2 + 3, 200)
    _sound(database, "people")
    assert len(recompute(database, "people", apply=True).prices) == 3
    assert account_of(database).totals.rho.finite == Fraction(5, 100)
    _sound(database, "people")


def test_a_price_that_was_rounded_up_is_right(database: Database) -> None:
    """A charge is rounded up to a multiple of 10^-18 where denominators grow, which is no other price."""
    open_account(database, definition="pure", epsilon="2")
    for number in range(40):
        charge(database, {"type": "declared", "epsilon": f"1/{10**9 + 7 + 2 * number}", "reference": "primes, or so"})
    prices = [json.loads(entry.body)["content"]["price"]["epsilon"] for entry in entries_of(database)[1:]]
    assert sum(10**18 % Fraction(price).denominator == 0 for price in prices) > 30
    assert recompute(database, "people", apply=False).prices == []


def test_a_release_that_was_priced_twice_is_followed_to_its_last_price(
    database: Database, older: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, definition="pure", epsilon="2")
    charge(database, _A)
    older.undo()
    with monkeypatch.context() as patch:  # a next version, which asks for more, and is taken back
        patch.setattr(module, "ACCOUNTANT", "0.5")
        patch.setattr(chain_check, "price", lambda *asked: replace(pricing.price(*asked), epsilon=Fraction(1)))
        assert len(recompute(database, "people", apply=True).prices) == 1
        assert account_of(database).totals.epsilon.finite == 1
    assert _prices(recompute(database, "people", apply=True)).keys() == {release_id(database)}
    assert account_of(database).totals.epsilon.finite == Fraction(1, 10)
    assert len(entries_of(database)) == 4
    assert recompute(database, "people", apply=False).prices == []


def release_id(database: Database) -> str:
    return str(json.loads(entries_of(database)[1].body)["release"])


def test_two_who_price_an_account_again_do_not_do_it_twice(
    database: Database, older: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, definition="pure", epsilon="2")
    charge(database, _A)
    older.undo()
    apply = module._apply

    def late(*given: Any) -> RepricedRelease:
        monkeypatch.setattr(module, "_apply", apply)
        assert recompute(database, "people", apply=True).prices
        return apply(*given)

    monkeypatch.setattr(module, "_apply", late)
    with pytest.raises(Conflict, match="by another process"):
        recompute(database, "people", apply=True)
    assert account_of(database).totals.epsilon.finite == Fraction(1, 10)
    assert len(entries_of(database)) == 3


def test_a_lie_about_an_older_price_is_found(
    database: Database, older: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price that an entry states must be the price that was charged, or totals could be lowered with it."""
    open_account(database, definition="pure", epsilon="2")
    charge(database, _A)
    older.undo()
    written = PriceChanged.content
    lie = ("1/10", *price_key_of(json.loads(entries_of(database)[1].body)["content"]["price"])[1:])
    monkeypatch.setattr(PriceChanged, "content", lambda said, *_: written(replace(said, was=lie)))
    recompute(database, "people", apply=True)
    with database.read() as connection:
        assert verify(connection, "people").first_bad == BadEntry(3, "the release had another price")
