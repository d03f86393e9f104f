"""Cost of a charge after a million releases in one account: the statements, rows and time of the first ones."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import cache
from statistics import median
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, event, text

from benchmarks.servers import CALLER, carry_out, open_account, opened, sqlite_database
from service.ledger.accounts import accounts, lines
from service.ledger.journal.journal import Head
from service.ledger.releases import charges, preparation
from service.ledger.releases.preparation import NewRelease
from service.ledger.spending import spending
from service.ledger.spending.spending_rows import ChargedSubplans
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.newest_heads import NewestHeads
from service.privacy.accounting.totals import LossSum, Totals
from service.privacy.plans import Plan
from service.privacy.plans.notation import read_plan

_RELEASES = 1_000_000
_BATCH = 10_000
_VARIANCES = range(100, 140)  # so that totals have common denominators and spending has rows, as in real ledgers
_CHARGES = 1_500  # of each account, alternating
_WARM_UP = 50
_TARGET = 1.1


class Times(NamedTuple):
    """Of one charge, in seconds. Elapsed is mostly the disk's, which may wait for a tick of its own clock."""

    elapsed: float
    processor: float


class Statement(NamedTuple):
    """A statement as the driver ran it; ``rows``: how many it changed, -1 where it only reads."""

    text: str
    parameters: Any
    rows: int


def run() -> None:
    """Print the time of a charge on a full account as a multiple of that on a new one, and compare their statements."""
    print(f"A charge after {_RELEASES:,} releases / the first ones (SQLite, target: at most {_TARGET})")
    with ExitStack() as stack:
        database, apart = (_opened(stack) for _ in range(2))
        open_account(database, "full")
        open_account(database, "new")
        open_account(apart, "new")
        started = time.perf_counter()
        _fill(database, "full")
        database.newest = NewestHeads()  # the rows were not written by the service, so their texts do not link heads
        print(f"  (filled in {time.perf_counter() - started:.0f} s)")

        places = {
            "full": (database, "full"),
            "new, same database": (database, "new"),
            "new, empty database": (apart, "new"),
        }
        _compare_statements(places)
        times: dict[str, list[Times]] = {name: [] for name in places}
        for number in range(_CHARGES + _WARM_UP):
            for name in sorted(places, reverse=number % 2 == 0):  # nobody always comes after the same one
                taken = _charge(*places[name], number)
                if number >= _WARM_UP:
                    times[name].append(taken)
    middle = {name: Times(*map(median, zip(*found, strict=True))) for name, found in times.items()}
    print(f"  {f'medians of {_CHARGES:,} alternating charges':<52}{'elapsed':>10}{'processor':>11}")
    for name, (elapsed, processor) in middle.items():
        print(f"    {name + ', microseconds':<50}{elapsed * 1e6:10.0f}{processor * 1e6:11.0f}")
    full, *others = middle.items()
    for name, other in others:
        ratios = [one / two for one, two in zip(full[1], other, strict=True)]
        print(f"  {'full / ' + name:<52}{ratios[0]:10.2f}{ratios[1]:11.2f}")


def _opened(stack: ExitStack) -> Database:
    database = opened(stack.enter_context(sqlite_database()))
    stack.callback(database.close)
    return database


def _release(number: int) -> NewRelease:
    document, plan = _stated(_VARIANCES[number % len(_VARIANCES)])
    return NewRelease(name="small", plan=plan, document=document, tags=(), delta=Fraction(1, 10**10), pointer="/plan")


@cache
def _stated(variance: int) -> tuple[dict[str, Any], Plan]:
    document: dict[str, Any] = {"type": "discrete_gaussian", "sigma_squared": str(variance)}
    return document, read_plan(document)


def _fill(database: Database, account: str) -> None:
    """The first of them through the ledger's own function, as ``/releases/batch`` does; then copies of their rows.

    The account is left as all these charges would leave it: its totals and spending are multiples. Only the copied
    entries' hashes are not those of a chain, which no charge reads.
    """
    batch = preparation.prepare(database, account, [_release(number) for number in range(_BATCH)])

    def work(connection: Connection) -> None:
        at = clock.now()
        line = lines.lock_line(connection, batch[0].line, at)
        charges.charge(connection, line, batch, CALLER.actor, at)
        full = accounts.read_account(connection, account)
        given = {"account": full.id, "batch": _BATCH, "copies": _RELEASES // _BATCH}
        for statement in _COPIES:
            connection.execute(text(statement), given)
        head = Head(full.head.seq + _RELEASES - _BATCH, full.head.hash)
        totals = _times(full.totals, _RELEASES // _BATCH)
        once, _ = spending.counts(connection, full)
        rest = Counter({subplan: count * (_RELEASES // _BATCH - 1) for subplan, count in once.items()})
        after = replace(full, totals=totals, head=head, releases=_RELEASES)
        accounts.save(connection, [after], ChargedSubplans(rest, Counter()))

    database.write(work, is_committed=lambda *_: False)


_COPIES = (
    "WITH RECURSIVE copies (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM copies WHERE number + 1 < :copies)"
    " INSERT INTO releases (id, account_id, seq, name, plan, tags, delta, state, price, accountant, created_at,"
    " expires_at, seal) SELECT lower(hex(randomblob(18))), account_id, seq + number * :batch, name, plan, tags,"
    " delta, state, price, accountant, created_at, expires_at, seal FROM copies, releases WHERE account_id = :account",
    "INSERT INTO journal SELECT copy.account_id, copy.seq, kind, copy.id, body, hash FROM releases copy JOIN journal"
    " ON journal.account_id = :account AND journal.seq = (copy.seq - 2) % :batch + 2"
    " WHERE copy.account_id = :account AND copy.seq > :batch + 1",
)


def _times(totals: Totals, factor: int) -> Totals:
    return Totals(
        epsilon=LossSum(totals.epsilon.finite * factor, totals.epsilon.infinite * factor),
        rho=LossSum(totals.rho.finite * factor, totals.rho.infinite * factor),
        delta=totals.delta * factor,
        linear=totals.linear * factor,
        quanta=tuple(quanta * factor for quanta in totals.quanta),
        infinite=tuple(count * factor for count in totals.infinite),
    )


def _charge(database: Database, account: str, number: int) -> Times:
    """One charge, from the plan to the commit."""
    new = [_release(number)]
    elapsed, processor = time.perf_counter(), time.thread_time()
    carry_out(database, charges.register(CALLER, preparation.prepare(database, account, new)))
    return Times(time.perf_counter() - elapsed, time.thread_time() - processor)


def _compare_statements(places: dict[str, tuple[Database, str]]) -> None:
    """Print the statements of a charge, and check that they are the same everywhere and find their rows by an index.

    Raises:
        RuntimeError: they are not, or do not.
    """
    logs: dict[str, list[Statement]] = {}
    for name, (database, account) in places.items():
        _charge(database, account, 0)  # what a first charge looks up once belongs to no later one
        with _statements() as log:
            _charge(database, account, 0)
        logs[name] = log
        for statement in log:
            _require_index(database, statement)
    full = [(statement.text, statement.rows) for statement in logs["full"]]
    for name, log in logs.items():
        if [(statement.text, statement.rows) for statement in log] != full:
            raise RuntimeError(f"expected the statements and rows of the full account on {name!r}, got others")
    print(f"  {len(full)} statements, on the full account and on new ones, with the rows that they change:")
    for statement_text, rows in full:
        print(f"    {statement_text[:60]:<60}{max(rows, 0):>4}")


@contextmanager
def _statements() -> Iterator[list[Statement]]:
    """Every statement that is run meanwhile, but for how long it may wait for a lock."""
    log: list[Statement] = []

    def note(_connection: Connection, cursor: Any, text: str, parameters: Any, *_: object) -> None:
        if not text.startswith("PRAGMA busy_timeout"):
            log.append(Statement(" ".join(text.split()), parameters, cursor.rowcount))

    event.listen(Engine, "after_cursor_execute", note)
    try:
        yield log
    finally:
        event.remove(Engine, "after_cursor_execute", note)


def _require_index(database: Database, statement: Statement) -> None:
    """Refuse a statement that reads a table from end to end: it would run the same and take ever longer.

    The rows of an INSERT are given; what SQLite would scan for their foreign keys' sake it never comes to.
    """
    if statement.text.startswith(("BEGIN", "INSERT")):
        return
    with database.read() as connection:
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement.text}", statement.parameters).all()
    if any("SCAN" in step[-1] for step in steps):
        raise RuntimeError(f"expected a search by index, got {[step[-1] for step in steps]} for {statement.text}")
