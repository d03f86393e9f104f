"""Budget refusals: their content, and the journal entry that records each."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from sqlalchemy import Connection

from service.errors import BudgetExceeded, Overrun
from service.ledger.accounts import accounts, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.caps import Cap
from service.ledger.accounts.lines import Line
from service.ledger.journal.entries import Refused
from service.ledger.journal.journal import Head, has_entry
from service.ledger.releases.admission import charges_of, limits_of
from service.ledger.releases.preparation import Prepared
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.privacy.accounting import effort
from service.privacy.accounting.batch_costs import BeyondDoubles
from service.privacy.accounting.pricing import Price, estimate_price
from service.privacy.numerics.numbers import double_up
from service.privacy.planning.noise_scaling import noise_multiplier
from service.privacy.plans import Plan
from service.privacy.plans.tagged import as_replacement, tagged_part


def record_refusal(database: Database, request: Request, line: Line, refusal: BudgetExceeded) -> None:
    """Record a release that does not fit a budget in the journal of the requested account.

    This is a transaction of its own, because that of the charge was rolled back. The caller gets the refusal only once
    it is recorded.

    Args:
        refusal: without an entry, nothing is recorded.
    """
    entry = None if refusal.entry is None else refusal.entry()
    if not isinstance(entry, Refused):
        return

    def work(connection: Connection) -> tuple[int, Head]:
        account = lines.lock_account(connection, line)
        head = entry.append(connection, account.chain, actor=request.actor, at=clock.now())
        accounts.save(connection, [replace(account, head=head)])
        return account.id, head

    database.write(work, is_committed=lambda connection, written: has_entry(connection, *written))


def refusal_of(line: Sequence[AccountRecord], prepared: Prepared, failures: Sequence[Overrun]) -> BudgetExceeded:
    """Return the refusal of a release that does not fit a line of accounts.

    Args:
        line: root first.
        failures: at least one.
    """
    # Readers of this account's journal may have no access to those above it.
    first = failures[0] if failures[0].account == line[-1].name else Overrun()

    def entry() -> Refused:
        return Refused(
            name=prepared.name,
            plan_digest=hashlib.sha256(prepared.written.encode()).hexdigest(),
            account=first.account,
            definition=first.definition,
            cap=first.cap,
            requested=None if first.requested is None else str(first.requested),
            remaining=None if first.remaining is None else str(first.remaining),
            tag=first.tag,
            window=first.window,
        )

    def search() -> float | None:
        return noise_multiplier_that_fits(line, prepared) if len(prepared.written) <= _LONG else None

    return BudgetExceeded(failures, noise_multiplier=search, entry=entry)


_FEW_WINDOWS = 500  # each of which every step of a search may have to compare
_LONG = 1 << 14  # characters of a plan, beyond which reading it alone would delay other requests


def noise_multiplier_that_fits(line: Sequence[AccountRecord], prepared: Prepared) -> float | None:
    """Return the smallest factor on the plan's noise scales with which the release would fit every limit.

    It is None if there is none, or if the search would take far longer than the refusal that it explains: the serving
    process searches, for any caller whose release is refused.

    Returns:
        The nearest double where its text is not below the exact factor, else the next one above.
    """
    if sum(len(account.windows.present) for account in line if account.windows is not None) > _FEW_WINDOWS:
        return None
    plan, limits = prepared.plan(), limits_of(charges_of(line, prepared, held=False))
    if effort.of_search(plan, [limit.weights.orders for limit in limits]) > effort.LIGHT:
        return None

    def fits(scaled: Plan) -> bool:
        charges = charges_of(line, _at_estimated_prices(line, prepared, scaled), held=False)
        return not any(limit.shortfalls for limit in limits_of(charges))

    try:
        found = noise_multiplier(plan, fits)
    except BeyondDoubles:  # the exact price would be searched step by step, and each step takes as long as a charge
        return None
    if found is None:
        return None
    nearest = float(found)  # the result is a decimal with six digits, and the nearest double's text shows exactly these
    return nearest if Fraction(repr(nearest)) >= found else double_up(found)


def _at_estimated_prices(line: Sequence[AccountRecord], prepared: Prepared, plan: Plan) -> Prepared:
    """Return a release at the estimated prices of another plan, which differs in its noise alone."""
    neighbouring, orders = line[-1].neighbouring, [account.weights.orders for account in line]
    asked = {some: estimate_price(plan, neighbouring, some) for some in set(orders)}

    def under(cap: Cap) -> Price:
        part = tagged_part(plan, prepared.tags, cap.tag)
        if part is None:
            raise ValueError("expected a plan with the tags of the prepared one")
        return estimate_price(as_replacement(part, neighbouring), neighbouring, cap.weights.orders)

    caps = [
        one._replace(prices={cap.tag: under(cap) for cap in account.caps if cap.tag in one.prices})
        for one, account in zip(prepared.caps, line, strict=True)
    ]
    return replace(prepared, prices=tuple(asked[some] for some in orders), caps=tuple(caps))
