"""The high-water mark of ledgers with many accounts: its first writing, the check at a start, and one second's work."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from sqlalchemy import Connection, insert

from benchmarks.servers import CALLER, open_account, opened, postgresql_database, sqlite_database
from service.ledger.accounts.accounts import read_account
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.installation.mark_check import check_mark
from service.ledger.journal import journal
from service.ledger.journal.journal import BEFORE_FIRST, AccountHead, Actor
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Account, Entry
from service.ledger.verification.backup import require_sound_file
from tests.postgres_server import postgres_server

_SIZES = (10_000, 100_000)
_CHANGED = 1_000  # accounts that are charged in one round
_BATCH = 5_000


def run() -> None:
    """Print the seconds that each takes."""
    print("The high-water mark, in seconds")
    print(f"  {'':<26}{'first':>8}{'start':>8}{'round':>8}{'file':>8}")
    print(f"  {'':<26}{'writing':>8}{'check':>8}{f'of {_CHANGED}':>8}{'check':>8}")
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server())
        for size in _SIZES:
            _measure("SQLite", size, stack.enter_context(sqlite_database()))
            _measure("PostgreSQL", size, stack.enter_context(postgresql_database(server)))


def _measure(kind: str, size: int, url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, closing(opened(url)) as database:
        ids = _open_accounts(database, size)
        file = HighWaterFile(Path(directory) / "service.high-water", CALLER.secret)
        keeper = MarkKeeper(database, file)
        first = _seconds(lambda: keeper.advance(everything=True))
        start = _seconds(lambda: check_mark(database, file, check_file=False))
        database.write(lambda connection: _append(connection, ids[:_CHANGED]), is_committed=lambda *_: False)
        second = _seconds(keeper.advance)
        sound = _seconds(lambda: require_sound_file(database, whole=True))
        print(f"  {f'{kind}, {size:,} accounts':<26}{first:8.2f}{start:8.2f}{second:8.2f}{sound:8.2f}", flush=True)


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _open_accounts(database: Database, size: int) -> list[int]:
    """Accounts like one that the ledger opened, with an entry each."""
    open_account(database, "first")
    with database.read() as connection:
        columns = dict(connection.execute(Account.__table__.select()).one()._mapping)
        first = read_account(connection, "first")
    for begin in range(0, size, _BATCH):
        rows = [
            columns
            | {"id": first.id + number, "name": f"account {number}", "head_seq": 0, "head_hash": BEFORE_FIRST.hash}
            for number in range(begin + 1, begin + _BATCH + 1)
        ]

        def work(connection: Connection, rows: list[dict[str, object]] = rows) -> None:
            connection.execute(insert(Account), rows)
            entries = []
            for row in rows:
                account = AccountHead(int(str(row["id"])), str(row["name"]), BEFORE_FIRST)
                content: dict[str, object] = {"unit": "person"}
                entries.append(
                    journal.following(account, "account_opened", content, actor=Actor("a"), at=clock.now())[0]
                )
            connection.execute(insert(Entry), entries)
            _set_heads(connection, [(row["account_id"], row["seq"], row["hash"]) for row in entries])

        database.write(work, is_committed=lambda *_: False)
    return [first.id + number for number in range(1, size + 1)]


def _append(connection: Connection, ids: list[int]) -> None:
    """One more entry of each account."""
    for account_id in ids:
        name, seq, digest = connection.execute(
            Account.__table__.select()
            .with_only_columns(Account.name, Account.head_seq, Account.head_hash)
            .where(Account.id == account_id)
        ).one()
        chain = AccountHead(account_id, name, journal.Head(seq, digest))
        head = journal.append(connection, chain, "metadata_changed", {"metadata": {}}, actor=Actor("a"), at=clock.now())
        _set_heads(connection, [(account_id, head.seq, head.hash)])


def _set_heads(connection: Connection, heads: list[tuple[object, object, object]]) -> None:
    table = Account.__table__
    for account_id, seq, digest in heads:
        connection.execute(table.update().where(Account.id == account_id).values(head_seq=seq, head_hash=digest))  # type: ignore[attr-defined]


if __name__ == "__main__":
    run()
