"""Charges of held releases to one account, as they are given back or committed."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, select

from service.ledger.accounts import account_periods, budgets, caps
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.caps import Cap
from service.ledger.releases import reservation_rows
from service.ledger.releases.releases import HELD
from service.ledger.spending import window_state
from service.ledger.storage.tables import Hold, Release
from service.privacy.accounting.totals import Totals, add_prices
from service.privacy.periods import set_of

_MANY = 1000  # holds, each of which takes some microseconds to check


class HeldCharge(NamedTuple):
    """A charge of a held release to an account: its price, its prices under caps and its periods, as texts."""

    price: str
    caps: str | None
    periods: str | None


def of_held(row: Row[*tuple[Any, ...]]) -> Row[*tuple[Any, ...]]:
    """Return a row of holds with the state of its release, after checking that the release is held.

    Raises:
        Altered: it was settled, and its hold with it: the row was put back.
    """
    if row.state not in HELD:
        raise reservation_rows.altered(row.release_id)
    return row


def without(account: AccountRecord, charges: Iterable[HeldCharge]) -> AccountRecord:
    """Return an account that has no periods without these charges.

    Reservations are often alike, and prices take long to parse.
    """
    held = list(charges)
    counts = Counter(charge.price for charge in held)
    amounts = [(budgets.read_price(json.loads(price)), -count) for price, count in counts.items()]
    return replace(account, totals=add_prices(account.totals, amounts), caps=caps_without(account, held))


def caps_without(account: AccountRecord, charges: Iterable[HeldCharge]) -> tuple[Cap, ...]:
    """Return an account's caps on tags without these charges, whatever periods they are of."""
    counts = Counter(charge.caps for charge in charges if charge.caps is not None)
    gone = [(caps.read_prices(stated), count) for stated, count in counts.items()]
    return caps.without(account.caps, gone) if gone else account.caps


def held_totals(connection: Connection, account: AccountRecord, at: str) -> Totals:
    """Return the sum of what is held in an account without periods, overdue holds left out.

    Raises:
        Altered: a hold is not as the service wrote it.
    """
    return held_by_account(connection, [account], at).get(account.id, Totals())


def held_by_account(connection: Connection, accounts: Iterable[AccountRecord], at: str) -> Mapping[int, Totals]:
    """Return the sum of what is held in each of some accounts without periods, by id, overdue holds left out.

    Raises:
        Altered: a hold is not as the service wrote it.
    """
    counts: dict[int, Counter[str]] = {}
    query = select(*reservation_rows.COLUMNS, Release.state).join(Release, Release.id == Hold.release_id)
    for row in connection.execute(query.where(Hold.account_id.in_([one.id for one in accounts]))):
        reservation_rows.require_seal(connection, of_held(row))
        if row.expires_at is None or row.expires_at > at:
            counts.setdefault(row.account_id, Counter())[row.price] += 1
    return {
        account: add_prices(Totals(), [(budgets.read_price(json.loads(price)), count) for price, count in own.items()])
        for account, own in counts.items()
    }


def has_many_holds(connection: Connection, accounts: Iterable[AccountRecord]) -> bool:
    """Return whether reading what is held in some accounts takes long."""
    query = select(Hold.release_id).where(Hold.account_id.in_([one.id for one in accounts])).limit(_MANY + 1)
    return len(connection.execute(query).all()) > _MANY


def with_settled_windows(
    connection: Connection, account: AccountRecord, charges: Sequence[HeldCharge], seq: int, *, gone: bool
) -> AccountRecord:
    """Return an account whose windows hold these charges no longer; otherwise committed, unless they are gone.

    A cap on a tag counts what is gone no longer, either. It counts held and committed releases alike.

    Args:
        seq: the number of the entry that settles the first of them; the next ones settle the others.

    Raises:
        Altered: a window holds less.
    """
    if account.periods is None or account.windows is None:
        raise ValueError("expected an account with periods")
    stated = [account_periods.stated(account.periods, charge.periods or "") for charge in charges]
    places = set_of(place for one in stated for place in one.places.ranges)
    state = before = window_state.read_at(connection, account.id, account.windows, places)
    for number, (charge, one) in enumerate(zip(charges, stated, strict=True)):
        amount = budgets.read_price(json.loads(charge.price))
        state = state.charged(
            account.weights,
            one.places,
            seq + number,
            committed=[] if gone else [(amount, 1)],
            held=[(amount, -1)],
            releases=-1 if gone else 0,
        )
    if state.is_below_zero:
        raise reservation_rows.altered(account.name)
    if gone:
        state = window_state.lowered(connection, account.id, account.weights, state, before.present)
        account = replace(account, caps=caps_without(account, charges))
    return replace(account, windows=state, totals=state.bound)
