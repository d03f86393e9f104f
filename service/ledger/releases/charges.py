"""Charges of releases to an account and to all accounts above it: one transaction, in one function."""

import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert

from service.errors import BudgetExceeded
from service.ledger.accounts import accounts, budgets, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.caps import write_prices
from service.ledger.idempotent_write import Operation
from service.ledger.journal import journal
from service.ledger.journal.entries import Committed, Filing, Origin, OwnMembers, Proposed, Registration, Reserved
from service.ledger.journal.entry_texts import price_key_of, price_of
from service.ledger.journal.journal import Actor, Head, has_entry
from service.ledger.releases import admission, release_rows, reservation_rows, settlement
from service.ledger.releases.admission import AccountCharge
from service.ledger.releases.budget_refusals import refusal_of
from service.ledger.releases.preparation import Prepared
from service.ledger.releases.reservation_rows import State
from service.ledger.spending.spending_rows import ChargedSubplans, SpendingChange, UnlikeChanges
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Hold, Release, ReleaseTag
from service.ledger.storage.transaction import batch, count_metric, secret_of
from service.privacy.accounting.pricing import ACCOUNTANT
from service.privacy.numerics.numbers import exact_text


@dataclass(frozen=True, slots=True)
class Registered:
    """A release that was charged; ``account`` is the account after the charge."""

    id: str
    release: Prepared
    account: AccountRecord
    state: State
    created_at: str
    expires_at: str | None


_INSERT_RELEASE = insert(Release)
_INSERT_TAGS = insert(ReleaseTag)
_INSERT_HOLD = insert(Hold)


def register(request: Request, releases: Sequence[Prepared]) -> Operation[list[Registered]]:
    """Return the operation that charges releases, which were prepared for one account, all or none.

    Returns:
        An operation whose result has one item for each release, in their order.

    Raises:
        AccountClosed, BudgetExceeded: nothing is charged.
        TooManyRequests: many reservations of this principal have expired, and are not recorded yet.
    """
    line = releases[0].line
    for own in {id(own): own for release in releases for own in release.caps}.values():
        own.compute_rules()

    def work(connection: Connection, at: str) -> list[Registered]:
        locked = lines.lock_line(connection, line, at)
        if any(release.reserve_for is not None for release in releases):
            settlement.refuse_many_due(connection, locked[-1], request.actor, at)
        return charge(connection, locked, releases, request.actor, at)

    return Operation(work, _is_committed, charges=line)


def dry_run(database: Database, releases: Sequence[Prepared]) -> list[Registered]:
    """Return the result that ``register`` would have, on a line that is only read: it admits as ``charge`` does.

    Nothing is locked or written, so no other request waits (docs/decisions/0037-one-write-path.md).

    Raises:
        AccountClosed, BudgetExceeded: as ``register``.
    """
    at = clock.now()
    with database.read() as connection:
        found = lines.read_line(connection, releases[0].line)
        present = [settlement.without_due_reservations(connection, account, at) for account in found]
        line = admission.with_windows(connection, present, releases)
    done, _ = _admit_all(line, releases, None, at)
    return done


def charge(
    connection: Connection, line: Sequence[AccountRecord], releases: Sequence[Prepared], actor: Actor, at: str
) -> list[Registered]:
    """Admit and write releases one after the other, in the caller's transaction, on a locked line.

    The time depends on the plans and not on the ledger's size: the millionth release runs the same statements over as
    many rows as the first.

    Args:
        line: locked, root first.

    Returns:
        One for each release, in their order.

    Raises:
        AccountClosed, BudgetExceeded: nothing is charged.
        ReservationsDue: nothing is charged yet; the release may fit once expired reservations are released.
        ValueError: a release was prepared for another account.
    """
    rows, line = _Rows(secret_of(connection), actor), admission.with_windows(connection, line, releases)
    try:
        done, after = _admit_all(line, releases, rows, at)
    except BudgetExceeded:
        lines.refuse_due(line, at)
        raise
    rows.write(connection)
    saved = accounts.save(connection, after, rows.charged)
    done[-1] = replace(done[-1], account=saved[-1])  # a draw of the release continues from it
    return done


def _admit_all(
    line: Sequence[AccountRecord], releases: Sequence[Prepared], rows: "_Rows | None", at: str
) -> tuple[list[Registered], Sequence[AccountRecord]]:
    """Admit releases one after the other; return them, and the accounts as the last one leaves them.

    Args:
        rows: where the rows of the releases are collected; None in a dry run, which adds no entries to the journals.

    Raises:
        AccountClosed, BudgetExceeded, ValueError: as ``charge``.
    """
    admission.require_line(line, releases)
    done: list[Registered] = []
    for prepared in releases:
        admitted = _admit(line, prepared)
        registered = _registered(line, prepared, admitted.state, at)
        heads = [account.head for account in line] if rows is None else rows.add(registered, line, admitted.charges)
        line = _after(line, admitted, heads, registered)
        done.append(replace(registered, account=line[-1]))
    return done, line


class _Admitted(NamedTuple):
    """A release that fits: its first state, and the charge to each account of the line, root first."""

    state: State
    charges: Sequence[AccountCharge]


def _admit(line: Sequence[AccountRecord], prepared: Prepared) -> _Admitted:
    """Admit a release to the budgets of a line.

    Raises:
        BudgetExceeded: it does not fit.
    """
    state = admission.first_state(line, prepared)
    charges = admission.charges_of(line, prepared, held=state != "committed")
    failures = admission.failures_of(charges)
    if failures:
        raise refusal_of(line, prepared, failures)
    return _Admitted(state, charges)


def _registered(line: Sequence[AccountRecord], prepared: Prepared, state: State, at: str) -> Registered:
    expires_at = None if prepared.reserve_for is None else clock.later(at, prepared.reserve_for)
    return Registered(str(uuid.uuid4()), prepared, line[-1], state, at, expires_at)


def _is_committed(connection: Connection, done: list[Registered]) -> bool:
    """Return whether an earlier attempt at these charges is in the ledger."""
    return has_entry(connection, done[-1].account.id, done[-1].account.head)


def _after(
    line: Sequence[AccountRecord], admitted: _Admitted, heads: Sequence[Head], registered: Registered
) -> list[AccountRecord]:
    """Return the accounts of a line as a release leaves them."""
    ends = registered.expires_at if registered.release.expires else None
    return [
        replace(
            account,
            totals=charge.totals,
            caps=charge.caps,
            windows=charge.windows,
            head=head,
            next_expiry=min(filter(None, (account.next_expiry, ends)), default=None),
            releases=account.releases + 1,
        )
        for account, charge, head in zip(line, admitted.charges, heads, strict=True)
    ]


def _entry(registered: Registered, own: OwnMembers, line: Sequence[AccountRecord]) -> Registration:
    """Return the content of the release's entry in the journal of its own account, whose members are ``own``."""
    release = registered.release
    committed = Committed(
        accountant=ACCOUNTANT,
        delta=exact_text(release.delta),
        name=release.name,
        plan=release.written,
        tags=release.tags,
        **own._asdict(),
    )
    if registered.state == "committed":
        return committed
    if registered.state == "reserved":
        return Reserved.until(registered.expires_at, committed)
    proposed = Proposed.until(registered.expires_at, committed)
    return replace(proposed, approval_of=admission.asking_accounts(line, release))


class _Rows:
    """The rows that a transaction's charges insert, collected so that one statement inserts all rows of a table."""

    def __init__(self, secret: Secret, actor: Actor) -> None:
        self._secret, self._actor = secret, actor
        self._releases: list[dict[str, Any]] = []
        self._entries: list[journal.Row] = []
        self._tags: list[dict[str, Any]] = []
        self._holds: list[dict[str, Any]] = []
        self._charged: dict[tuple[int, ...], ChargedSubplans] = {}

    def add(
        self, registered: Registered, line: Sequence[AccountRecord], charges: Sequence[AccountCharge]
    ) -> list[Head]:
        """Add a release with an entry in each account's chain; return the heads that these entries make."""
        release, own, held = registered.release, line[-1], registered.state != "committed"
        seq = own.head.seq + 1
        written = [
            OwnMembers(
                price=price_key_of(budgets.write_price(charge.amount)),
                caps=charge.cap_prices or None,
                periods=None if periods is None else periods.text,
            )
            for charge, periods in zip(charges, release.periods, strict=True)
        ]
        self._tags += [{"account_id": own.id, "tag": tag, "seq": seq} for tag in release.all_tags]
        for spending in release.spending:
            ids = tuple(line[number].id for number in spending.accounts)
            charged = self._charged.setdefault(ids, ChargedSubplans(Counter(), Counter()))
            (charged.held if held else charged.committed).update(spending.subplans)
            if spending.many is not None:
                charged.many.append((spending.many, held))
        if held:
            hold = {"release_id": registered.id, "expires_at": registered.expires_at if release.expires else None}
            self._holds += [
                {**hold, "account_id": account.id, "price": json.dumps(price_of(members.price))}
                | {"caps": write_prices(members.caps or ()), "periods": members.periods}
                for account, members in zip(line, written, strict=True)
            ]
        entry = _entry(registered, written[-1], line)
        heads: list[Head] = []
        for account, content in zip(line, entry.contents_in_line(written[:-1], Origin(own.name, seq)), strict=True):
            row, head = journal.following(
                account.chain,
                entry.KIND,
                content,
                actor=self._actor,
                release_id=registered.id,
                at=registered.created_at,
            )
            self._entries.append(row)
            heads.append(head)
        stated = entry.row(Filing(own.id, seq, registered.id, registered.created_at), release.document)
        self._releases.append(stated | {"seal": release_rows.seal_of(self._secret, stated, heads[-1].hash)})
        return heads

    @property
    def charged(self) -> SpendingChange:
        """Return the change of the accounts' spending."""
        return UnlikeChanges(self._charged)

    def write(self, connection: Connection) -> None:
        """Insert all rows except those of spending, which are saved with the accounts."""
        connection.execute(_INSERT_RELEASE, batch(self._releases))
        for state, number in Counter(release["state"] for release in self._releases).items():
            count_metric(connection, "releases", state, number)
        if self._tags:
            connection.execute(_INSERT_TAGS, self._tags)
        journal.write(connection, self._entries)
        if self._holds:
            connection.execute(_INSERT_HOLD, [reservation_rows.sealed(self._secret, hold) for hold in self._holds])
