"""Charges of allotments: an allotted account's cap is charged to accounts above it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import Connection, select

from service.errors import AccountClosed, BudgetExceeded, Conflict, InvalidInput
from service.ledger.accounts import accounts, allotments, budgets, caps, lines
from service.ledger.accounts.account_periods import EVERY_PERIOD
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.allotments import AllotmentRow, AllottedSum, amount_in, amount_of, leaf_of, text_of
from service.ledger.accounts.caps import read_prices, write_prices
from service.ledger.journal.entries import Allotted
from service.ledger.journal.entry_texts import PriceKey, price_key_of, price_of, price_of_key, read_text
from service.ledger.journal.journal import Actor
from service.ledger.releases import admission
from service.ledger.releases.admission import AccountCharge
from service.ledger.releases.held_charges import HeldCharge, caps_without, without
from service.ledger.releases.recorded_allotments import read_recorded, require_recorded
from service.ledger.spending.spending_rows import ReplacedSubplan, SpendingChange, Subplans, UnlikeChanges
from service.ledger.spending.subplans import allotted_to, charged_to
from service.ledger.storage.tables import Account, Allotment
from service.privacy.accounting.pricing import ACCOUNTANT, Price, price
from service.privacy.accounting.privacy_filter import Budget, spent_alone
from service.privacy.accounting.totals import Totals, add_price, add_prices, is_charge_of
from service.privacy.mechanisms.declared import Declared, declared_in
from service.privacy.periods import ALL


class LeafPrices(NamedTuple):
    """The prices of an allotment's mechanism in one account: under its budget, and under its caps by tag."""

    price: Price
    under_caps: Mapping[str, Price]


def prices_of(account: AccountRecord, leaf: Declared) -> LeafPrices:
    """Return the prices of an allotment's mechanism in an account; the whole mechanism counts towards each cap."""
    asked = price(leaf, account.neighbouring, account.weights.orders)
    return LeafPrices(
        asked, {cap.tag: caps.price_under(leaf, cap.weights, account.neighbouring) for cap in account.caps}
    )


def leaf_for(child: AccountRecord) -> Declared:
    """Return the mechanism that the accounts above count for an allotted account in its present state.

    Raises:
        Conflict: the account's loss is infinite, which no mechanism can state.
    """
    amount = amount_of(child.budget, child.weights, child.totals, child.state)
    if amount is None:
        raise Conflict(
            f"the account {child.name!r} has an infinite loss, as its releases were priced again: the accounts above"
            " can count nothing for it"
        )
    return leaf_of(child.name, child.budget, amount)


def require_countable(line: Sequence[AccountRecord], leaf: Declared, budget: Budget) -> None:
    """Refuse the budget of an allotted account if its loss is infinite in an account above or under a cap there.

    For example, a zCDP budget has an infinite loss in a pure account. The prices are cached, so the charge that follows
    does not compute them again.

    Args:
        line: the accounts that would be charged, root first.
        leaf: the mechanism that they would be charged for.
        budget: of the allotted account, which the refusal names.

    Raises:
        InvalidInput: the loss is infinite in an account or under a cap.
    """
    got = f"got {budget.definition.value}" + ("" if budget.alpha is None else f" of order {budget.alpha}")
    for account in reversed(line):
        found = prices_of(account, leaf)
        if spent_alone(account.budget, account.weights, found.price) is None:
            raise InvalidInput.at(
                "/budget/definition",
                f"expected a budget that every account above can count as one finite loss; {got}",
            )
        for cap in account.caps:
            if spent_alone(cap.budget, cap.weights, found.under_caps[cap.tag]) is None:
                raise InvalidInput.at(
                    "/budget/definition",
                    f"expected a budget that every cap on a tag above can count as one finite loss; {got}",
                )


def require_one_person(line: Sequence[AccountRecord], leaf: Declared) -> None:
    """Refuse an allotment that one steward opens but that, as a release, would need the approval of others.

    Raises:
        InvalidInput: its loss is above ``approval_above`` of an account of the line.
    """
    for account in reversed(line):
        if admission.asks_approval(account, prices_of(account, leaf).price):
            raise InvalidInput.at(
                "/budget",
                "expected a loss of at most approval_above of each account above: open the account with a smaller"
                " budget, and raise it with the approval of others",
            )


class RepricedAllotment(NamedTuple):
    """An allotment whose charge has changed: the name of the allotted account, its old and its new price."""

    child: str
    old: PriceKey
    new: PriceKey


def reprice(
    connection: Connection, account: AccountRecord, actor: Actor, at: str, *, apply: bool
) -> tuple[AccountRecord, list[RepricedAllotment]]:
    """Charge those allotments of an account again that the present accountant, or the allotted account, changes.

    For example, if an allotted account exceeds its cap because its releases were priced again, the new charge is what
    that account has used.

    Args:
        connection: the transaction.
        account: the charged account; it is locked if the charges are applied.
        actor: the actor of the journal entries.
        at: their time.
        apply: write the new charges; otherwise they are only computed.

    Returns:
        The account after the new charges, and the allotments that are charged again.

    Raises:
        Altered: an allotment is not as the service wrote it.
    """
    query = select(*allotments.COLUMNS, Account.name).join(Account, Account.id == Allotment.child_id)
    query = query.where(Allotment.account_id == account.id).order_by(Allotment.child_id)
    rows = {row.name: allotments.row_of(connection, row) for row in connection.execute(query)}
    require_recorded(connection, account, rows)
    found: list[RepricedAllotment] = []
    for name, former in rows.items():
        child = accounts.read_account(connection, name)
        leaf = leaf_for(child)
        if former.plan == text_of(leaf) and _is_right(former, prices_of(account, leaf)):
            continue
        charged = _charge(connection, account, former, child.name, leaf, 1)
        found.append(RepricedAllotment(child.name, price_key_of(json.loads(former.price)), charged.entry.price))
        (account,) = _write(connection, [charged], child, actor, at) if apply else (charged.account,)
    return account, found


def _is_right(former: AllotmentRow, asked: LeafPrices) -> bool:
    """Return whether the stored price and the prices under caps are those of the present accountant."""
    under = dict(read_prices(former.caps))
    pairs = [(budgets.read_price(json.loads(former.price)), asked.price)]
    pairs += [(price_of_key(under[tag]), one) for tag, one in asked.under_caps.items()]
    return all(is_charge_of(amount, right) for amount, right in pairs)


@dataclass(frozen=True, slots=True)
class _Charged:
    """An account after the charge of an allotment, with the charge, its former row and its journal entry."""

    account: AccountRecord
    charge: AccountCharge
    former: AllotmentRow | None
    entry: Allotted


def set_allotment(
    connection: Connection, line: Sequence[AccountRecord], child: AccountRecord, actor: Actor, at: str, pointer: str
) -> list[AccountRecord]:
    """Charge an allotted account's present amount to the accounts above it, in place of its former amount.

    If the amount has not changed, nothing is written. A smaller amount is charged even where the budget has no room.

    Args:
        connection: the transaction.
        line: the charged accounts, root first, all locked.
        child: the allotted account after its change.
        actor: the actor of the journal entries.
        at: their time.
        pointer: the JSON pointer of the change in the request.

    Returns:
        The charged accounts as they were saved.

    Raises:
        AccountClosed: the amount is greater, and a charged account is closed.
        Altered: an allotment is not as the service wrote it.
        BudgetExceeded: the amount is greater, and does not fit an account or a cap.
        ReservationsDue: it may fit after expired reservations are released.
    """
    leaf, former = leaf_for(child), read_recorded(connection, line, child)
    if all(row.plan == text_of(leaf) for row in former.values()) and former:
        return list(line)
    greater = asks_more(child, list(former.values()))
    if greater:
        for account in reversed(line):
            if account.state == "closed":
                raise AccountClosed(account.name)
    charged = [_charge(connection, account, former.get(account.id), child.name, leaf, len(line)) for account in line]
    failures = admission.failures_of([one.charge for one in charged]) if greater else ()
    if failures:
        lines.refuse_due(line, at)
        raise BudgetExceeded(failures, pointer=pointer, subject="allotment")
    return _write(connection, charged, child, actor, at)


def asks_more(child: AccountRecord, former: Sequence[AllotmentRow]) -> bool:
    """Return whether an allotted account in its present state must charge more above it than it charges now."""
    amount = amount_of(child.budget, child.weights, child.totals, child.state)
    return not former or amount is None or any(amount.exceeds(amount_in(_leaf(row))) for row in former)


def _leaf(row: AllotmentRow) -> Declared:
    leaf = declared_in(read_text(row.plan))
    if leaf is None:
        raise allotments.altered(row.child_id)
    return leaf


def _charge(
    connection: Connection,
    account: AccountRecord,
    former: AllotmentRow | None,
    child: str,
    leaf: Declared,
    number: int,
) -> _Charged:
    """Return an account of a line after the charge of an allotment, admitted or not.

    Args:
        number: of the accounts of the line; in all of them together as many windows may be read as in one.
    """
    asked = prices_of(account, leaf)
    rest = account if former is None else _without(account, former)
    present = admission.with_all_windows(connection, rest, [asked.price], times=number)
    charge = admission.charge_of_allotment(present, asked.price, asked.under_caps)
    amount = charge.amount
    children, totals = rest.allotted or AllottedSum(0, Totals())
    allotted = AllottedSum(children + (former is None), add_price(totals, amount))
    entry = Allotted(
        accountant=ACCOUNTANT,
        before=None if former is None else former.plan,
        caps=charge.cap_prices or None,
        child=child,
        plan=text_of(leaf),
        price=price_key_of(budgets.write_price(amount)),
    )
    after = replace(present, totals=charge.totals, caps=charge.caps, windows=charge.windows, allotted=allotted)
    return _Charged(after, charge, former, entry)


def _without(account: AccountRecord, former: AllotmentRow) -> AccountRecord:
    """Return an account without the amount of an allotment.

    Raises:
        Altered: the account's totals, or the sum of its allotments, are less than that amount.
    """
    charge, gone = HeldCharge(former.price, former.caps, None), [(budgets.read_price(json.loads(former.price)), -1)]
    children, totals = account.allotted or AllottedSum(0, Totals())
    allotted = AllottedSum(children, add_prices(totals, gone))
    if account.windows is None:
        rest = without(account, [charge])
        below = rest.totals.is_below_zero
    else:
        windows = account.windows.charged(account.weights, ALL, account.head.seq + 1, committed=gone)
        caps_left = caps_without(account, [charge])
        rest, below = replace(account, windows=windows, totals=windows.bound, caps=caps_left), windows.is_below_zero
    if below or allotted.totals.is_below_zero or any(cap.totals.is_below_zero for cap in rest.caps):
        raise allotments.altered(former.child_id)
    return replace(rest, allotted=allotted)


def _write(
    connection: Connection, charged: Sequence[_Charged], child: AccountRecord, actor: Actor, at: str
) -> list[AccountRecord]:
    after: list[AccountRecord] = []
    rows: list[AllotmentRow] = []
    changes: dict[tuple[int, ...], SpendingChange] = {}
    for one in charged:
        account, entry = one.account, one.entry
        head = entry.append(connection, account.chain, actor=actor, at=at)
        old = None if entry.before is None else _subplan(account, child.name, entry.before)
        changes[account.id,] = ReplacedSubplan(old, _subplan(account, child.name, entry.plan))
        written = write_prices(entry.caps or ())
        rows.append(
            AllotmentRow(account.id, child.id, entry.plan, json.dumps(price_of(entry.price)), written, head.seq)
        )
        after.append(replace(account, head=head))
    allotments.write_rows(connection, rows, new=charged[0].former is None)
    return accounts.save(connection, after, UnlikeChanges(changes))


def _subplan(account: AccountRecord, child: str, plan: str) -> str:
    (counted,) = charged_to(Subplans([allotted_to(child, plan)]), None if account.periods is None else EVERY_PERIOD)
    return counted
