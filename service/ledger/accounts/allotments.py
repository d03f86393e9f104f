"""Allotments: the caps of allotted accounts, which are charged as a whole to the accounts above.

An account that is opened with the funding ``allotted`` charges its whole cap at once to the accounts above it, up to
and including the nearest one that is itself allotted. Each of these accounts counts one declared mechanism, whose
guarantee is the cap. The releases of the allotted account then charge nothing above it.
``docs/mathematics/allotments.md`` proves that this bounds the loss.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from service.errors import Altered
from service.ledger.accounts import budgets
from service.ledger.journal.canonical_json import canonical
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Allotment as Table
from service.ledger.storage.transaction import batch, require_written, secret_of
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights, spent_of_cap
from service.privacy.accounting.totals import Totals
from service.privacy.mechanisms.declared import Declaration, Declared
from service.privacy.plans.notation import write_plan

Funding = Literal["allotted"]
"""The funding of an account whose cap is charged above it as a whole; other accounts have no funding."""


class AllottedSum(NamedTuple):
    """The sum of the allotments that an account is charged for.

    Attributes:
        accounts: the number of allotted accounts, closed ones included.
        totals: the sum of their charges, which the account's own totals contain.
    """

    accounts: int
    totals: Totals


def read_sum(text: str) -> AllottedSum:
    """Return the sum in the text of an account's row."""
    document = json.loads(text)
    return AllottedSum(document["accounts"], budgets.stored_totals(document["totals"]))


def write_sum(allotted: AllottedSum) -> str:
    """Return the text of a sum for the account's row; equal sums have equal texts."""
    return json.dumps({"accounts": allotted.accounts, "totals": budgets.write_totals(allotted.totals)})


class Amount(NamedTuple):
    """The figures that an allotted account charges above it: its cap, or if it is closed, what it has used."""

    cap: Fraction
    delta: Fraction

    def exceeds(self, other: "Amount | None") -> bool:
        """Return whether the amount permits more than another one in either figure."""
        return other is None or self.cap > other.cap or self.delta > other.delta


def is_fixed(budget: Budget) -> bool:
    """Return whether an account with this budget always charges the amount with which it was opened.

    That holds for (epsilon, delta) budgets. Their charges do not add up to the cap, so no unused part of the cap can be
    identified and returned (A-5).
    """
    return budget.definition is Definition.APPROXIMATE


def amount_of(budget: Budget, weights: Weights, totals: Totals, state: str) -> Amount | None:
    """Return the amount that an allotted account charges above it.

    An account that exceeds its cap, because its releases were priced again, charges what it has used. A closed account
    charges only what it has spent, held and allotted, unless its amount is fixed.

    Args:
        budget: the account's budget.
        weights: the orders of the budget.
        totals: the account's own totals.
        state: the account's state.

    Returns:
        None if the loss is infinite, because releases were priced again: no mechanism can state such a loss.
    """
    used = spent_of_cap(budget, weights, totals)
    if used is None:
        return None
    if is_fixed(budget):  # declared deltas are counted on top of the rest of the delta (F-3)
        beyond = max(Fraction(0), totals.delta - budget.declared_delta)
        return Amount(max(budget.cap, used), budget.delta + beyond)
    if state == "closed":
        return Amount(used, totals.delta)
    return Amount(max(budget.cap, used), max(budget.declared_delta, totals.delta))


def leaf_of(account: str, budget: Budget, amount: Amount) -> Declared:
    """Return the declared mechanism that the accounts above count for an allotted account."""
    delta = amount.delta
    match budget.definition:
        case Definition.ZCDP:
            guarantee = Declaration(rho=amount.cap, delta=delta)
        case Definition.RDP if budget.alpha is not None:
            guarantee = Declaration(rdp=((budget.alpha, amount.cap),), delta=delta)
        case _:
            guarantee = Declaration(epsilon=amount.cap, delta=delta)
    return Declared(guarantee=guarantee, reference=reference_to(account))


def reference_to(account: str) -> str:
    """Return the reason that the mechanism of an allotted account states for its guarantee."""
    return f"the budget of the account {account}"


def amount_in(leaf: Declared) -> Amount:
    """Return the figures that the mechanism of an allotment states.

    Raises:
        ValueError: the mechanism is not that of an allotment.
    """
    stated = leaf.guarantee
    caps = [cap for cap in (stated.epsilon, stated.rho, *(cap for _, cap in stated.rdp)) if cap is not None]
    if len(caps) != 1:
        raise ValueError("expected the mechanism of an allotment")
    return Amount(caps[0], stated.delta)


def text_of(leaf: Declared) -> str:
    """Return the mechanism of an allotment as canonical JSON."""
    return canonical(write_plan(leaf))


@dataclass(frozen=True, slots=True)
class AllotmentRow:
    """An allotment, as one of the charged accounts counts it.

    Attributes:
        account_id: the charged account.
        child_id: the allotted account.
        plan: the mechanism of the allotment, as canonical JSON.
        price: JSON of its amount in the charged account's totals.
        caps: JSON of its amounts in the totals of that account's caps, by tag; None if the account has no caps.
        seq: the number of the charged account's last entry about the allotment.
    """

    account_id: int
    child_id: int
    plan: str
    price: str
    caps: str | None
    seq: int


COLUMNS = (
    Table.account_id,
    Table.child_id,
    Table.plan,
    Table.price,
    Table.caps,
    Table.seq,
    Table.seal,
)
_NAMES = tuple(column.key for column in COLUMNS if column.key != "seal")
_PURPOSE = "allotment"


def read_rows(connection: Connection, account_ids: Sequence[int], child_id: int) -> dict[int, AllotmentRow]:
    """Return the charges for one allotted account, by the ids of the charged accounts.

    Raises:
        Altered: a row is not as the service wrote it.
    """
    query = select(*COLUMNS).where(Table.child_id == child_id, Table.account_id.in_(account_ids))
    return {row.account_id: row_of(connection, row) for row in connection.execute(query)}


def row_of(connection: Connection, row: Row[*tuple[Any, ...]]) -> AllotmentRow:
    """Return the allotment in a row that has the columns ``COLUMNS``.

    Raises:
        Altered: the row is not as the service wrote it.
    """
    if not is_sealed(secret_of(connection), row):
        raise altered(row.child_id)
    return AllotmentRow(*(row._mapping[name] for name in _NAMES))


def altered(child_id: int) -> Altered:
    """Return the refusal to use an allotment that is not as the service wrote it."""
    return Altered("an allotment", f"a row of allotments, of the account with the id {child_id!r},")


def is_sealed(secret: Secret, row: Row[*tuple[Any, ...]]) -> bool:
    """Return whether a row of ``allotments`` is as the service wrote it."""
    return secret.is_text(row.seal, seal_of(secret, row._mapping))


def seal_of(secret: Secret, row: Mapping[Any, Any]) -> str:
    """Return the seal of a row of ``allotments``."""
    return secret.row_seal(_PURPOSE, *(row[name] for name in _NAMES))


def write_rows(connection: Connection, rows: Sequence[AllotmentRow], *, new: bool) -> None:
    """Seal and write the rows of allotments.

    Args:
        connection: the transaction.
        rows: the allotments.
        new: True if none of them has a row yet; False if all have one.

    Raises:
        Altered: the database did not write all of them.
    """
    secret, given = secret_of(connection), []
    for row in rows:
        values: Mapping[str, Any] = {name: getattr(row, name) for name in _NAMES}
        given.append({**values, "seal": seal_of(secret, values)})
    if not given:
        return
    if new:
        connection.execute(insert(Table), given)
        return
    changed = [{f"new_{name}": one[name] for name in _CHANGING} | _place(one) for one in given]
    require_written(connection.execute(_UPDATE, batch(changed)), len(changed))


def _place(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"account": row["account_id"], "child": row["child_id"]}


_CHANGING = ("plan", "price", "caps", "seq", "seal")
_UPDATE = (
    update(Table)
    .where(Table.account_id == bindparam("account"), Table.child_id == bindparam("child"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGING})
    .execution_options(preserve_rowcount=True)
)
