"""The stored rows of ``window_totals``: each sealed, and all of an account's in one sum, which its sealed row holds.

A row is the window's own totals, without those of releases to all periods. Its seal shows that the service wrote it.
It does not show that the row is the newest one, or that no other row is missing: the sum does. It adds one number of
each row, a keyed hash of its code, modulo 2^256, and is stored masked, as the sum of spending is (``spending_rows``).
The numbers are never stored, unlike the seals, so the sum of other rows, older ones among them, can be neither computed
nor searched for. They are the same in every version of the ledger. A charge changes the sum by its own rows. It is
compared wherever all rows of an account are read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, insert, select, text, update

from service.errors import Altered
from service.ledger.accounts import budgets
from service.ledger.spending.spending_rows import stored_sum
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import WindowTotals as Table
from service.ledger.storage.transaction import batch, require_written, secret_of
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.totals import Totals, add_price, add_prices, add_totals
from service.privacy.periods import PeriodSet

_NOTHING = Totals()
_NOTHING_TEXT = budgets.write_totals(_NOTHING)


@dataclass(frozen=True, slots=True)
class Window:
    """The totals of releases that touch a window, or of those to all periods.

    Attributes:
        committed: of committed releases.
        held: of held releases.
        releases: the number of both.
        seq: the number of the last entry that changed them.
        code: of the row that was read; None: it was not read, or has changed since.
    """

    committed: Totals = _NOTHING
    held: Totals = _NOTHING
    releases: int = 0
    seq: int = 0
    code: str | None = field(default=None, compare=False)

    @property
    def totals(self) -> Totals:
        """Return the totals of committed and held releases."""
        return self.committed if self.held is _NOTHING else add_totals(self.committed, self.held)

    def changed(
        self,
        seq: int,
        *,
        committed: Sequence[tuple[Price, int]] = (),
        held: Sequence[tuple[Price, int]] = (),
        releases: int = 0,
    ) -> "Window":
        """Return the totals after an entry.

        Args:
            seq: the number of the entry.
            committed: the prices that are added to the committed ones, each with a count; below 0: taken away.
            held: those that are added to the held ones.
            releases: the number of releases that are added; below 0: taken away.
        """
        return Window(_sum(self.committed, committed), _sum(self.held, held), self.releases + releases, seq)

    @property
    def is_below_zero(self) -> bool:
        """True where more was taken away than was charged."""
        return self.committed.is_below_zero or self.held.is_below_zero or self.releases < 0


def _sum(totals: Totals, charges: Sequence[tuple[Price, int]]) -> Totals:
    if not charges:
        return totals
    if len(charges) == 1 and charges[0][1] == 1:  # as of most releases, and many times as fast
        return add_price(totals, charges[0][0])
    after = add_prices(totals, charges)
    return _NOTHING if after == _NOTHING else after


Windows = Mapping[int, Window]
"""Windows by their places."""

EMPTY = Window()


def read_windows(connection: Connection, account_id: int, places: PeriodSet) -> dict[int, Window]:
    """Return the windows at some places, or all windows of an account; a window without a row is left out.

    Raises:
        Altered: a row is not as the service wrote it.
    """
    if places.everything:
        rows = connection.execute(rows_of(account_id))
    else:
        given = {"account": account_id, "ranges": json.dumps(places.ranges)}
        rows = connection.execute(_SOME[connection.dialect.name], given)
    secret = secret_of(connection)
    return {row.place: _window(secret, row) for row in rows}


def _window(secret: Secret, row: Row[*tuple[Any, ...]]) -> Window:
    code = _code(secret, row[:-1])
    if not secret.is_text(row.seal, secret.in_version(code)):
        raise Altered(
            "an account's window", f"the row at {row.place!r} of window_totals, of account {row.account_id!r},"
        )
    held = _NOTHING if row.held == _NOTHING_TEXT else budgets.stored_totals(row.held)
    return Window(budgets.stored_totals(row.committed), held, row.releases, row.seq, code)


def altered(account_id: int) -> Altered:
    """Return the refusal to use windows that are not as the service wrote them."""
    return Altered("an account's window", f"a row of window_totals, of account {account_id!r},")


def rows_of(account_id: int) -> Select[*tuple[Any, ...]]:
    """Return the query of all rows of an account, in the order of their places."""
    return select(*COLUMNS).where(Table.account_id == account_id).order_by(Table.place)


def is_sealed(secret: Secret, row: Row[*tuple[Any, ...]]) -> bool:
    """Return whether the service wrote a row of ``window_totals`` as it is."""
    return secret.is_text(row.seal, seal_of(secret, row._mapping))


def seal_of(secret: Secret, row: Mapping[Any, Any]) -> str:
    """Return the seal of a row of ``window_totals``."""
    return secret.in_version(_code(secret, (row[name] for name in _NAMES)))


def _code(secret: Secret, values: Iterable[object]) -> str:
    return secret.seal(_PURPOSE, *values)


def write_windows(connection: Connection, account_id: int, before: Windows, after: Windows) -> int:
    """Write the windows that differ from the stored ones; return the addition to the account's sum.

    Args:
        before: as they are stored; one without a row is left out.
        after: with at least these.

    Raises:
        Altered: the database dropped some rows.
    """
    changed = [place for place in sorted(after) if before.get(place) != after[place]]
    new, old = [place for place in changed if place not in before], [place for place in changed if place in before]
    secret = secret_of(connection)
    rows = {place: row_of(account_id, place, after[place]) for place in changed}
    codes = {place: _code(secret, row.values()) for place, row in rows.items()}
    for place, row in rows.items():
        row["seal"] = secret.in_version(codes[place])
    for statement, given in (
        (_INSERT, [rows[place] for place in new]),
        (_UPDATE, [_update_values(rows[place]) for place in old]),
    ):
        if given:
            require_written(connection.execute(statement, batch(given)), len(given))
    return sum_of(secret, codes.values()) - sum_of(
        secret, (_code_of(secret, account_id, place, before[place]) for place in old)
    )


def _code_of(secret: Secret, account_id: int, place: int, window: Window) -> str:
    return _code(secret, row_of(account_id, place, window).values()) if window.code is None else window.code


def row_of(account_id: int, place: int, window: Window) -> dict[str, Any]:
    """Return the row of a window, without its seal, in the order of ``COLUMNS``."""
    return {
        "account_id": account_id,
        "place": place,
        "committed": budgets.store_totals(window.committed),
        "held": _NOTHING_TEXT if window.held is _NOTHING else budgets.store_totals(window.held),
        "releases": window.releases,
        "seq": window.seq,
    }


def _update_values(row: Mapping[str, Any]) -> dict[str, Any]:
    given = {f"new_{name}": row[name] for name in (*_CHANGING, "seal")}
    return given | {"account": row["account_id"], "at": row["place"]}


def sum_of(secret: Secret, codes: Iterable[str]) -> int:
    """Return the sum of rows with these codes; it counts modulo 2^256."""
    return sum(secret.number("window code", code) for code in codes)


def is_sum(secret: Secret, account_id: int, stored: object, windows: Windows) -> bool:
    """Return whether a text is that of the sum of all windows of an account."""
    codes = (_code_of(secret, account_id, place, window) for place, window in windows.items())
    return secret.is_text(stored, stored_sum(secret, account_id, sum_of(secret, codes)))


_PURPOSE = "window"
COLUMNS = (Table.account_id, Table.place, Table.committed, Table.held, Table.releases, Table.seq, Table.seal)
_NAMES = tuple(column.key for column in COLUMNS if column.key != "seal")
_CHANGING = ("committed", "held", "releases", "seq")
_SOME = {
    "sqlite": text(
        "SELECT w.account_id, w.place, w.committed, w.held, w.releases, w.seq, w.seal"
        " FROM json_each(:ranges) AS given CROSS JOIN window_totals w WHERE w.account_id = :account"
        " AND w.place BETWEEN json_extract(given.value, '$[0]') AND json_extract(given.value, '$[1]')"
    ),
    "postgresql": text(
        "SELECT w.account_id, w.place, w.committed, w.held, w.releases, w.seq, w.seal"
        " FROM json_array_elements(CAST(:ranges AS json)) AS given CROSS JOIN window_totals w"
        " WHERE w.account_id = :account"
        " AND w.place BETWEEN CAST(given.value ->> 0 AS bigint) AND CAST(given.value ->> 1 AS bigint)"
    ),
}
_INSERT = insert(Table).execution_options(preserve_rowcount=True)
_UPDATE = (
    update(Table)
    .where(Table.account_id == bindparam("account"), Table.place == bindparam("at"))
    .values({name: bindparam(f"new_{name}") for name in (*_CHANGING, "seal")})
    .execution_options(preserve_rowcount=True)
)
