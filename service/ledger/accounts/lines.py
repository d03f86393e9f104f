"""Lines: an account with those above it, and the lock on them that every charge takes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, ColumnElement, Connection, Row, Select, bindparam, func, select

from service.errors import Conflict, NotFound, ServiceError
from service.ledger.accounts import account_periods
from service.ledger.accounts.account_rows import COLUMNS, not_found
from service.ledger.accounts.accounts import AccountRecord, read_account, record_of
from service.ledger.accounts.allotments import Funding
from service.ledger.accounts.caps import Cap, read_caps
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Account, Hold, Release
from service.ledger.storage.transaction import DATABASE, leave_holds, wait_in_queue
from service.privacy.accounting.privacy_filter import Budget, Definition
from service.privacy.periods import Periods
from service.privacy.plans.walking import Neighbouring

MAX_DEPTH = 8
"""The largest number of accounts in a line, from the root down."""
_FEW, _SHORT = 10, 1 << 14  # the most holds that a request lets expire, and characters of their plans
_FEW_WINDOWS = 200  # that these holds touch, or that are compared again after them
_NEAR = 64  # entries after that of a hold's release, from which this process knows one to be linked with the head
# Statements are built once, because building one costs more than running it.
_HOLDS = (
    select(func.length(Release.plan).label("length"), Hold.periods, Release.seq, Account.name, Account.head_seq)
    .join(Hold, Hold.release_id == Release.id)
    .join(Account, Account.id == Release.account_id)
    .where(Hold.account_id == bindparam("account"))
)
_DUE = _HOLDS.where(Hold.expires_at <= bindparam("at")).order_by(Hold.expires_at).limit(_FEW + 1)
_OF_RELEASE = _HOLDS.where(Hold.release_id == bindparam("release"))


@dataclass(frozen=True, slots=True)
class Line:
    """The constant facts of an account and those above it that its releases charge, root first.

    An allotted account was charged above it with its whole cap. So a line begins at the nearest account that is
    allotted, if there is one, and else at the root.

    Attributes:
        name: the account's own, which is the last of the line.
        definition: of its budget.
        orders: the RDP orders of each.
        periods: of each; None: it has none.
        funding: of each; None: its releases charge the accounts above.
    """

    name: str
    ids: tuple[int, ...]
    neighbouring: Neighbouring
    definition: Definition
    orders: tuple[tuple[Fraction, ...], ...]
    periods: tuple[Periods | None, ...]
    funding: tuple[Funding | None, ...]

    @property
    def account_id(self) -> int:
        """Return the id of the account itself."""
        return self.ids[-1]


class AccountCaps(NamedTuple):
    """The caps on tags of an account of a line; ``account`` is its name."""

    account: str
    caps: tuple[Cap, ...]


class ReservationsDue(Exception):
    """Expired holds of an account that is to be changed."""

    def __init__(
        self, account_id: int, release_id: str | None = None, *, all_of_them: bool = False, slow: bool = False
    ) -> None:
        super().__init__("holds are due")
        self.account_id = account_id
        self.release_id = release_id  # the release that has to expire; None: any
        self.all_of_them = all_of_them
        self.slow = slow  # their expiry reads many windows, so no request waits for it


def line_above(connection: Connection, name: str) -> list[AccountRecord]:
    """Return an account with those above it, root first.

    Raises:
        NotFound: there is none of this name.
        Conflict: its line has no root.
        Unavailable: as ``read_account``.
    """
    line = [read_account(connection, name)]
    while line[-1].parent is not None:
        if len(line) == MAX_DEPTH:  # no account is deeper: this is a cycle that an attacker made
            raise Conflict(f"the account {name!r} has more accounts above it than are possible: its line has no root")
        line.append(read_account(connection, line[-1].parent))
    return line[::-1]


def charged_line(line: Sequence[AccountRecord]) -> Sequence[AccountRecord]:
    """Return those of a whole line, root first, that are charged for its last account."""
    return line[max((place for place, account in enumerate(line) if account.funding is not None), default=0) :]


@lru_cache(maxsize=4096)
def line_of(database: Database, name: str, *, funding: bool = False) -> Line:
    """Return the line of an account; it is fixed at opening, so a charge reads its rows only to lock them.

    Args:
        funding: of an allotted account, include the accounts above that are charged for its allotment.

    Raises:
        NotFound: there is none of this name.
    """
    with database.read() as connection:
        line = line_above(connection, name)
    return _line([*charged_line(line[:-1]), line[-1]] if funding else charged_line(line))


def root_of(database: Database, name: str | None) -> int | None:
    """Return the id of the account with which an account's line begins; None if there is no such account."""
    if name is None:
        return None
    try:
        return line_of(database, name).ids[0]
    except ServiceError:  # the change itself meets it, and reports it
        return None


def _line(line: Sequence[AccountRecord]) -> Line:
    return Line(
        line[-1].name,
        tuple(account.id for account in line),
        line[-1].neighbouring,
        line[-1].budget.definition,
        tuple(account.weights.orders for account in line),
        tuple(account.periods for account in line),
        tuple(account.funding for account in line),
    )


def budget_of(database: Database, line: Line) -> Budget:
    """Return the present budget of a line's account.

    Raises:
        NotFound: the database was replaced by one without it.
        Unavailable: as ``read_account``.
    """
    with database.read() as connection:
        return read_account(connection, line.name).budget


def caps_of(database: Database, line: Line) -> list[AccountCaps]:
    """Return the present caps on tags of each account of a line, root first, without a check of the rows' seals.

    A charge compares them with those of the rows that it locks.

    Raises:
        NotFound: the database was replaced by one without them.
        Altered: their rows are gone.
    """
    with database.read() as connection:
        rows = connection.execute(_reading_caps(len(line.ids)), _numbered(line.ids)).all()
        if len(rows) != len(line.ids):
            line_of.cache_clear()
            raise not_found(connection, line.name)
    return [AccountCaps(name, read_caps(caps)) for name, caps in rows]


def lock_line(connection: Connection, line: Line, at: str | None) -> list[AccountRecord]:
    """Lock the accounts of a line until the transaction ends, and return them, root first.

    SQLite has one writer at a time. PostgreSQL locks the rows in the order of their ids, in which every line has its
    root first, so that no two transactions wait for each other.

    Args:
        at: the present moment; None where overdue holds do not matter.

    Raises:
        NotFound: the database was replaced by one in which they are not this line; the next request finds its own.
        Altered: their rows are gone.
        ReservationsDue: a few of their holds have expired at ``at``, if that is given. More are counted as held until
            the server's own thread lets them expire, so that no request waits for the reservations of others.
    """
    found = read_line(connection, line, lock=True)
    if at is not None:
        refuse_few_due(connection, found, at)
    return found


def read_line(connection: Connection, line: Line, *, lock: bool = False) -> list[AccountRecord]:
    """Return the present accounts of a line, without a lock by default.

    Raises:
        NotFound, Altered: as ``lock_line``.
    """
    found = _read(connection, line.name, line.ids, lock=lock)
    above = (None, *(account.name for account in found))
    stands = all(account.parent == parent for account, parent in zip(found, above, strict=False) if parent is not None)
    begins = found[0].parent is None or found[0].funding is not None
    if not (stands and begins) or _line(found) != line:
        line_of.cache_clear()  # otherwise a charge would pass the caps of the accounts now above it
        raise NotFound("account", line.name)
    return found


def lock_account(connection: Connection, line: Line) -> AccountRecord:
    """Lock and return the account of a line alone, for changes that do not affect those above it.

    Raises:
        NotFound: the database was replaced by one without it.
        Altered: its row is gone.
    """
    return _read(connection, line.name, line.ids[-1:], lock=True)[0]


def refuse_few_due(connection: Connection, line: Iterable[AccountRecord], at: str) -> None:
    """Refuse to continue with accounts of which a few holds have expired; more are left to the server's own thread.

    Raises:
        ReservationsDue: a few have.
    """
    for account in line:
        if account.next_expiry is not None and account.next_expiry <= at:
            due = connection.execute(_DUE, {"account": account.id, "at": at}).all()
            if _expire_soon(connection, account, due):
                raise ReservationsDue(account.id)
            leave_holds(connection)


def expires_soon(connection: Connection, line: Iterable[AccountRecord], release_id: str) -> bool:
    """Return whether an expired release of a line's account can be settled in some milliseconds."""
    return all(
        _expire_soon(
            connection, account, connection.execute(_OF_RELEASE, {"account": account.id, "release": release_id}).all()
        )
        for account in line
    )


def _expire_soon(connection: Connection, account: AccountRecord, due: Sequence[Row[*tuple[Any, ...]]]) -> bool:
    """Return whether holds that are due can expire in some milliseconds, whoever made them.

    Their plans are read, the windows that they touch are charged, and the texts after their entries are followed.
    """
    if len(due) > _FEW or sum(row.length for row in due) > _SHORT:
        return False
    points = connection.info[DATABASE].points
    near = all(
        row.head_seq - row.seq <= _NEAR or points.next(row.name, row.seq, row.seq + _NEAR) is not None for row in due
    )
    return near and _windows_of(account, [row.periods for row in due]) <= _FEW_WINDOWS


def _windows_of(account: AccountRecord, stated: Sequence[str | None]) -> int:
    """Return the number of windows that holds touch, or of all where those that lead are found again."""
    if account.periods is None or account.windows is None:
        return 0
    if account.windows.several is not None:
        return account.windows.number
    own = account_periods.write(account.periods)
    return sum(account_periods.number_of(own, text) for text in stated)


def refuse_due(line: Iterable[AccountRecord], at: str) -> None:
    """Refuse to continue with accounts that have expired holds.

    Raises:
        ReservationsDue: one of them has; all of these are to expire, or as many as a request waits for.
    """
    for account in line:
        if account.next_expiry is not None and account.next_expiry <= at:
            # Of those that are due only the windows that lead count here: their number is known without reading a hold.
            raise ReservationsDue(account.id, all_of_them=True, slow=_windows_of(account, ()) > _FEW_WINDOWS)


@cache
def _reading(depth: int, *, lock: bool) -> Select[Any]:
    query = select(*COLUMNS).where(_of_line(depth)).order_by(Account.id)
    return query.with_for_update() if lock else query


@cache
def _reading_caps(depth: int) -> Select[str, str | None]:
    return select(Account.name, Account.caps).where(_of_line(depth)).order_by(Account.id)


def _of_line(depth: int) -> ColumnElement[bool]:
    ids: list[BindParameter[int]] = [bindparam(f"id_{number}") for number in range(depth)]
    return Account.id.in_(ids)


def _numbered(ids: Sequence[int]) -> dict[str, int]:
    return {f"id_{number}": account_id for number, account_id in enumerate(ids)}


def _read(connection: Connection, name: str, ids: tuple[int, ...], *, lock: bool) -> list[AccountRecord]:
    if lock:
        wait_in_queue(connection, ids[0])
    rows = connection.execute(_reading(len(ids), lock=lock), _numbered(ids)).all()
    if len(rows) != len(ids) or rows[-1].name != name:  # the database was replaced
        line_of.cache_clear()
        raise not_found(connection, name)
    return [record_of(connection, row, locked=lock) for row in rows]
