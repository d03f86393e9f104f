"""Repricing of a ledger: if a theorem proves wrong, an agency learns in minutes which accounts are over budget.

Every release that counts is priced from its plan by the present accountant, under each account that it is charged to.
Differences are reported; when applied, each becomes an entry in the account's chain and changes its totals.
"""

import json
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection, bindparam, select, update

from service.errors import Conflict
from service.ledger.accounts import account_periods, accounts, budgets, lines, window_state
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.lines import Line
from service.ledger.accounts.window_state import WindowState
from service.ledger.journal import chains, entry_texts, journal
from service.ledger.journal.entries import Expired, Filing, PriceChanged, Registration, Voided, read_text
from service.ledger.journal.entry_texts import PriceKey, price_of_key
from service.ledger.journal.journal import Actor, Head, has_entry
from service.ledger.journal.replay import replayed_entries
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Hold, Release
from service.ledger.storage.transaction import secret_of
from service.ledger.verification.chain_check import Audit
from service.privacy.accounting.pricing import ACCOUNTANT, Price
from service.privacy.accounting.privacy_filter import Shortfall, shortfalls
from service.privacy.accounting.totals import Totals, add_price, add_prices, price_as_charged
from service.privacy.accounting.windows import price_as_charged_to_windows
from service.privacy.periods import Periods, PeriodSet, set_of

ACTOR = Actor("recompute")
_AT_ONCE = 500  # releases that are priced again in one transaction


@dataclass(frozen=True, slots=True)
class Difference:
    """A release whose price in an account differs from the present accountant's.

    Attributes:
        periods: those that the account is charged for, as canonical JSON; None: it has none.
        held: whether it is held, when the differences were found.
    """

    release: str
    old: PriceKey
    asked: Price
    periods: str | None
    held: bool = False


@dataclass(frozen=True, slots=True)
class RepricedRelease:
    """The result of pricing an account again.

    Attributes:
        account: with the new prices, applied or not.
        prices: of each release that differs, the old price and the new one.
        over: the caps that the account then exceeds.
    """

    account: AccountRecord
    prices: list[tuple[str, PriceKey, PriceKey]]
    over: list[Shortfall]


def recompute(database: Database, name: str, *, apply: bool) -> RepricedRelease:
    """Price an account's releases again; with ``apply``, write the differences into its journal and its totals.

    Args:
        apply: write the differences; False: only report them.

    Raises:
        NotFound: there is no such account.
        Conflict: another request prices the account again at the same time.
        Altered: the journal, or a row of the account, is not as the service wrote it.
    """
    with database.read() as connection:
        account = accounts.read_account(connection, name)
        found = differences(connection, account)
        if not apply or not found:
            after, prices = _with_prices(connection, account, found)
    if apply and found:
        return _apply(database, account, found)
    return RepricedRelease(after, prices, _over(after))


def differences(connection: Connection, account: AccountRecord) -> list[Difference]:
    """Return the releases charged to an account whose price there is not the present accountant's.

    The journal gives the charges and their settlements; releases whose price is right are not kept. The connection must
    be in a read transaction, as for every use of ``replayed_entries``.

    Returns:
        At most one for each release.

    Raises:
        Altered: the journal, or the row of a release that was priced again, is not as the service wrote it.
    """
    audit, wrong = Audit(account.name), dict[str, Difference]()
    for entry in replayed_entries(connection, account, audit.chain, account.head.seq):
        stated = read_text(entry.body)
        match stated.content:
            case Registration(price=amount, plan=plan, periods=periods):
                _note(wrong, audit, stated.release_id, amount, plan, periods)
            case Voided() | Expired():
                wrong.pop(stated.release_id, None)
            case PriceChanged(price=amount, periods=periods):
                plan = release_rows.sealed_plan(connection, stated.release_id)
                _note(wrong, audit, stated.release_id, amount, entry_texts.write(json.loads(plan)), periods)
    return [replace(one, held=one.release in audit.chain.held) for one in wrong.values()]


def _note(
    wrong: dict[str, Difference], audit: Audit, release: str, amount: PriceKey, plan: str, periods: str | None
) -> None:
    if audit.is_right(plan, amount):
        wrong.pop(release, None)
    else:
        wrong[release] = Difference(release, amount, audit.asked(plan), periods)


def _with_prices(
    connection: Connection, account: AccountRecord, found: list[Difference]
) -> tuple[AccountRecord, list[tuple[str, PriceKey, PriceKey]]]:
    """Return the account with the new prices in its totals, and the prices as they are added.

    Raises:
        Altered: more is taken away than was charged.
    """
    if account.periods is not None and account.windows is not None:
        return _with_prices_in_windows(connection, account, account.periods, account.windows, found)
    totals, prices = account.totals, []
    for difference in found:
        totals = add_prices(totals, [(price_of_key(difference.old), -1)])
        if totals.is_below_zero:
            raise release_rows.altered(difference.release)
        amount = price_as_charged(totals, difference.asked, held=True)  # as a hold's: a later repricing takes it away
        totals = add_price(totals, amount)
        prices.append((difference.release, difference.old, entry_texts.price_key_of(budgets.write_price(amount))))
    return replace(account, totals=totals), prices


def _with_prices_in_windows(
    connection: Connection, account: AccountRecord, periods: Periods, windows: WindowState, found: list[Difference]
) -> tuple[AccountRecord, list[tuple[str, PriceKey, PriceKey]]]:
    """Return the account with the new prices in the windows that the releases touch; as ``_with_prices``."""
    touched = [account_periods.stated(periods, one.periods or "").places for one in found]
    everywhere = set_of(place for places in touched for place in places.ranges)
    state = before = window_state.read_at(connection, account.id, windows, everywhere)
    prices: list[tuple[str, PriceKey, PriceKey]] = []
    for number, (difference, places) in enumerate(zip(found, touched, strict=True)):

        def charged(
            state: WindowState,
            amount: Price,
            count: int,
            seq: int = account.head.seq + 1 + number,
            places: PeriodSet = places,
            held: bool = difference.held,
        ) -> WindowState:
            some = [(amount, count)]
            return state.charged(
                account.weights, places, seq, committed=[] if held else some, held=some if held else []
            )

        state = charged(state, price_of_key(difference.old), -1)
        if state.is_below_zero:
            raise release_rows.altered(difference.release)
        totals = [state.common.totals] if places.everything else list(state.totals_at(places).values())
        amount = price_as_charged_to_windows(totals, difference.asked, held=True)
        state = charged(state, amount, 1)
        prices.append((difference.release, difference.old, entry_texts.price_key_of(budgets.write_price(amount))))
    state = window_state.lowered(connection, account.id, account.weights, state, before.present)
    return replace(account, windows=state, totals=state.bound), prices


def _over(account: AccountRecord) -> list[Shortfall]:
    return shortfalls(account.budget, account.weights, Totals(), account.totals)


def _apply(database: Database, account: AccountRecord, found: list[Difference]) -> RepricedRelease:
    """Apply differences, some releases in each transaction; after a failure, the next run finds the rest."""
    line, seen = lines.line_of(database, account.name), account.head
    done: list[tuple[str, PriceKey, PriceKey]] = []
    for first in range(0, len(found), _AT_ONCE):
        some = found[first : first + _AT_ONCE]
        account, prices = database.write(
            partial(_write, line=line, seen=seen, found=some),
            is_committed=lambda connection, written: has_entry(connection, written[0].id, written[0].head),
        )
        seen = account.head
        done += prices
    return RepricedRelease(account, done, _over(account))


def _write(
    connection: Connection, line: Line, seen: Head, found: list[Difference]
) -> tuple[AccountRecord, list[tuple[str, PriceKey, PriceKey]]]:
    """Write entries, totals and rows for releases that still count, on the locked account.

    Changes since ``found`` was computed are read only in the texts that the chain meets.
    """
    account, at = lines.lock_account(connection, line), clock.now()
    since = [(entry.kind, entry.release_id) for entry in chains.chained(connection, account.id, seen, account.head)]
    if any(kind == PriceChanged.KIND for kind, _ in since):
        raise Conflict(f"account {account.name!r} is being priced again by another process")
    gone = {release for kind, release in since if kind in (Voided.KIND, Expired.KIND)}
    holds = {
        one.release: connection.execute(_HOLD, {"release": one.release, "account": account.id}).all() for one in found
    }
    present = [replace(one, held=bool(holds[one.release])) for one in found if one.release not in gone]
    account, prices = _with_prices(connection, account, present)
    rows: list[journal.Row] = []
    for one, (release, old, new) in zip(present, prices, strict=True):
        entry = PriceChanged(was=old, price=new, accountant=ACCOUNTANT, periods=one.periods)
        row, head = entry.following(account.chain, actor=ACTOR, release_id=release, at=at)
        rows.append(row)
        account = replace(account, head=head)
        changed = entry.rows(Filing(account.id, head.seq, release, at)).changed
        own = (Release.id == release, Release.account_id == account.id)
        connection.execute(update(Release).where(*own).values(changed))
        for hold in holds[release]:
            reservation_rows.require_seal(connection, hold)
            reservation_rows.save(connection, secret_of(connection), {**hold._mapping, "price": changed["price"]})
    if rows:
        journal.write(connection, rows)
        (account,) = accounts.save(connection, [account])
    return account, prices


_HOLD = select(*reservation_rows.COLUMNS).where(
    Hold.release_id == bindparam("release"), Hold.account_id == bindparam("account")
)
