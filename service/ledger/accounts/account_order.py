"""Lists of accounts in another order than that of their names, and the accounts above those of a list."""

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Row, Select, and_, func, select
from sqlalchemy.orm import aliased

from service.errors import InvalidInput
from service.ledger.accounts import budgets
from service.ledger.accounts.account_rows import without_strangers
from service.ledger.accounts.accounts import Wanted
from service.ledger.storage.tables import Account, Entry
from service.privacy.accounting.capacity import gauge
from service.privacy.accounting.privacy_filter import Weights, remaining
from service.privacy.accounting.totals import Totals
from service.privacy.numerics.numbers import double_down, double_up

Order = Literal["used", "left", "changed"]
MOST = 20_000
"""Accounts that one list sorts: some 85 microseconds of work for each."""
_AT_ONCE = 500
_MOMENT = len("2026-01-31T12:00:00.000000Z")
_LAST = and_(Entry.account_id == Account.id, Entry.seq == Account.head_seq)
# The last member of an entry's text, which may be long and is not parsed.
_CHANGED = func.substr(Entry.body, func.length(Entry.body) - _MOMENT - 1, _MOMENT)


class Rank(NamedTuple):
    """The place of an account in an order, in which ranks ascend.

    Attributes:
        group: the definition of the budget, where figures of different definitions are not compared; else empty.
        figure: the smaller, the earlier.
        name: the account's.
    """

    group: str
    figure: float
    name: str

    def write(self) -> str:
        """Return the rank as text."""
        return f"{self.group} {self.figure!r} {self.name}"

    @classmethod
    def read(cls, text: str) -> "Rank":
        """Read a text that ``write`` made.

        Raises:
            ValueError: it is none.
        """
        group, figure, name = text.split(" ")
        number = int(figure) if figure.lstrip("-").isdecimal() else float(figure)
        if math.isnan(number):
            raise ValueError("expected a number")
        return cls(group, number, name)


def first_ranked(connection: Connection, order: Order, after: Rank | None, limit: int, wanted: Wanted) -> list[Rank]:
    """Return the ranks of the first accounts in an order: the fullest, those with the least left, or the last changed.

    The figures are those of the stored rows: what has expired counts until its expiry is recorded.

    Args:
        after: the rank that they follow; None: from the beginning.
        limit: the greatest number of ranks.

    Raises:
        InvalidInput: more than ``MOST`` accounts are wanted.
    """
    number = connection.execute(select(func.count()).select_from(Account).where(*wanted.conditions())).scalar_one()
    if number > MOST:
        raise InvalidInput.at(
            "/query/sort", f"expected at most {MOST} accounts; ask for fewer by name, state or parent"
        )
    ranks = _RANKED[order](connection, wanted)
    return heapq.nsmallest(limit, ranks if after is None else (one for one in ranks if one > after))


def _by_used(connection: Connection, wanted: Wanted) -> Iterator[Rank]:
    for row in _rows(connection, _TOTALS, wanted):
        used = gauge(budgets.stored_budget(row.budget), *_totals(row)).used
        yield Rank("", -math.inf if used is None else -double_up(used), row.name)


def _by_left(connection: Connection, wanted: Wanted) -> Iterator[Rank]:
    for row in _rows(connection, _TOTALS, wanted):
        budget = budgets.stored_budget(row.budget)
        yield Rank(budget.definition.value, double_down(remaining(budget, *_totals(row))), row.name)


def _by_change(connection: Connection, wanted: Wanted) -> Iterator[Rank]:
    for row in _rows(connection, _CHANGES, wanted):
        yield Rank("", -int("".join(filter(str.isdecimal, row.at))), row.name)


_RANKED: Mapping[Order, Callable[[Connection, Wanted], Iterator[Rank]]] = {
    "used": _by_used,
    "left": _by_left,
    "changed": _by_change,
}


_TOTALS = select(Account.id, Account.name, Account.budget, Account.admission, Account.totals)
_CHANGES = select(Account.id, Account.name, _CHANGED.label("at")).join(Entry, _LAST)


def _rows(connection: Connection, query: Select[*tuple[Any, ...]], wanted: Wanted) -> Iterator[Row[*tuple[Any, ...]]]:
    with connection.execute(query.where(*wanted.conditions()), execution_options={"yield_per": _AT_ONCE}) as rows:
        for some in rows.partitions():
            yield from without_strangers(connection, some)


def _totals(row: Row[*tuple[Any, ...]]) -> tuple[Weights, Totals]:
    return budgets.read_weights(row.admission), budgets.read_totals(row.totals)


def last_changes(connection: Connection, ids: Sequence[int]) -> dict[int, str]:
    """Return the moment of the last entry of each account, by its id."""
    query = select(Account.id, _CHANGED).join(Entry, _LAST).where(Account.id.in_(ids))
    return {row[0]: row[1] for row in connection.execute(query)}


def names_above(connection: Connection, names: Collection[str], only: frozenset[str] | None) -> list[str]:
    """Return the names of the accounts above others that are not among these, in order.

    Args:
        only: the names to include; None: all.
    """
    above, below = aliased(Account), aliased(Account)
    family = select(Account.id, Account.parent_id).where(Account.name.in_(names)).cte(recursive=True)
    family = family.union(select(above.id, above.parent_id).where(above.id == family.c.parent_id))
    found = connection.execute(select(below.name).where(below.id.in_(select(family.c.id))))
    return sorted(name for name in found.scalars() if name not in names and (only is None or name in only))
