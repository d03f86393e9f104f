"""A ledger that lost what it had acknowledged is refused, however it lost it, until an operator says what happened."""

import os
import random
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from service.ledger.installation.high_water import HighWaterFile
from service.ledger.storage.secret import load_secret
from tests.api.calls import Client, json_of, open_account, problem_of, pure, release
from tests.faults.conftest import Form
from tests.faults.processes import Replica, replicas
from tests.postgres_server import installed
from tests.processes import run
from tests.waiting import until

pytestmark = pytest.mark.faults

_ACKNOWLEDGED = 60  # releases


def _load(client: Client, number: int) -> None:
    for _ in range(number):
        release(client, pure("0.001"))


def _mark(home: Path) -> HighWaterFile:
    return HighWaterFile(home / "service.high-water", load_secret(home / "service.secret", make=False))


def _entries(home: Path) -> int:
    mark = _mark(home).read()
    return 0 if mark is None or "people" not in mark.heads else mark.heads["people"].seq


def _until_marked(home: Path, entries: int) -> None:
    until(lambda: _entries(home) == entries, "the mark follows")


def _refused(server: Replica, said: str) -> None:
    """The server does not start, and says why; nothing is written meanwhile."""
    done = run(server.home, "serve", **server.settings)
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stderr
    assert "python -m service acknowledge" in done.stderr
    assert "Traceback" not in done.stderr


def _acknowledge(server: Replica) -> str:
    done = run(server.home, "acknowledge", "--reason", "a test of rollback", **server.settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_log_of_sqlite_that_was_damaged_after_a_kill(tmp_path: Path, damage: str, times: Form) -> None:
    random_ = random.Random(damage)
    for turn in range(times(1, 10)):
        home = tmp_path / str(turn)
        # Without helpers, which outlive the server for a moment and write its log into the file.
        with replicas(home, 1, helper_processes="0") as (server,), server.client() as client:
            open_account(client)
            _load(client, 1)
            with closing(sqlite3.connect(home / "data" / "ledger.db")) as raw:
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the log holds what is to be lost
            _load(client, _ACKNOWLEDGED)
            _until_marked(home, _ACKNOWLEDGED + 2)
            server.kill()
            log = home / "data" / "ledger.db-wal"
            content = bytearray(log.read_bytes())
            place = random_.randrange(len(content) // 10, len(content) // 2)
            if damage == "gone":
                log.unlink()
            elif damage == "cut":
                os.truncate(log, place)
            else:
                content[place] ^= 0xFF
                log.write_bytes(content)
            _refused(server, "the journal of 'people' ends with entry ")
            bad = run(home, "verify")
            assert bad.returncode == 1
            assert "the journal of 'people' ends with entry" in bad.stdout
            assert "people: the first bad entry is" in bad.stdout
            assert "the journal of 'people' ends with entry" in _acknowledge(server)
            server.start()
            assert json_of(client.get("/v1/accounts/people/verify"))["valid"]
            server.stop()
            assert run(home, "verify").returncode == 0


def test_a_file_of_sqlite_that_is_damaged_after_an_unclean_end(tmp_path: Path) -> None:
    with replicas(tmp_path, 1, helper_processes="0") as (server,), server.client() as client:
        open_account(client)
        _load(client, 200)
        file = tmp_path / "data" / "ledger.db"
        with closing(sqlite3.connect(file)) as raw:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            page = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'release_tags'").fetchone()[0]
            size = raw.execute("PRAGMA page_size").fetchone()[0]
        _load(client, 1)
        server.kill()
        with file.open("r+b") as opened:
            opened.seek((page - 1) * size)
            opened.write(b"\xa5" * size)
        done = run(tmp_path, "serve")
        assert done.returncode == 1
        assert "the ledger's file is damaged" in done.stderr


def test_a_restored_backup_draws_nothing_for_a_key_that_was_used(url: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with replicas(home, 1, database_url=url, helper_processes="0") as (server,), server.client() as client:
        open_account(client)
        restore = _backup(url, tmp_path)
        asked = {"name": "d", "mechanism": pure("0.1"), "counts": [7, 8]}
        once = {"Idempotency-Key": "used"}
        json_of(client.post("/v1/accounts/people/draws", json=asked, headers=once), 201)
        _until_marked(home, 3)
        server.kill()
        restore()
        _refused(server, "the journal of 'people' ends with entry 1 and had 3")
        _refused(server, "the journal of 'people' ends with entry 1 and had 3")
        assert "draws and charges them again" in _acknowledge(server)
        server.start()
        json_of(client.post("/v1/accounts/people/draws", json=asked, headers=once), 201)
        kinds = run(home, "verify", **server.settings)
        assert kinds.returncode == 0, kinds.stdout


def test_entries_that_are_deleted_under_a_server_stop_it(tmp_path: Path) -> None:
    with replicas(tmp_path, 1, helper_processes="0") as (server,), server.client() as client:
        open_account(client)
        _load(client, 1)
        with closing(sqlite3.connect(tmp_path / "data" / "ledger.db")) as raw:
            columns = ("totals", "head_seq", "head_hash", "releases", "spending_sum", "seal")
            older = raw.execute(f"SELECT {', '.join(columns)} FROM accounts").fetchone()
        _load(client, 4)
        _until_marked(tmp_path, 6)
        with closing(sqlite3.connect(tmp_path / "data" / "ledger.db")) as raw, raw:
            raw.execute("BEGIN IMMEDIATE")  # so that no look finds the triggers gone
            triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for trigger, _ in triggers:
                raw.execute(f"DROP TRIGGER {trigger}")
            raw.execute("DELETE FROM journal WHERE seq > 2")
            raw.execute("DELETE FROM releases WHERE seq > 2")
            raw.execute(f"UPDATE accounts SET {', '.join(f'{column} = ?' for column in columns)}", older)
            for _, statement in triggers:
                raw.execute(statement)
        assert not json_of(client.get("/v1/accounts/people/verify"))["valid"]
        asked = {"name": "r", "plan": pure("0.001")}
        problem_of(client.post("/v1/accounts/people/releases", json=asked), "unavailable")
        assert server.ready() == 503
        assert any("the ledger lacks committed entries; nothing is written" in line for line in server.said)


def test_a_clock_that_is_behind_the_mark(tmp_path: Path) -> None:
    with replicas(tmp_path, 1, helper_processes="0") as (server,), server.client() as client:
        open_account(client)
        _until_marked(tmp_path, 1)
        server.stop()
        ahead = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() + 3600))
        _mark(tmp_path).advance({}, {}, ahead)
        _refused(server, "this machine's clock says")
        assert "the high-water mark starts anew" in _acknowledge(server)
        server.start()


def _backup(url: str, place: Path) -> Callable[[], None]:
    """Take a copy of a database now; what puts it back, once nobody uses the database."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        file, copy = Path(str(parsed.database)), place / "copy.db"
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)

        def restore() -> None:
            for ending in ("-wal", "-shm"):
                Path(f"{file}{ending}").unlink(missing_ok=True)
            shutil.copyfile(copy, file)

        return restore
    plain, dump = parsed.set(drivername="postgresql").render_as_string(hide_password=False), place / "ledger.dump"
    programs = Path(installed())
    subprocess.run([programs / "pg_dump", "--format=custom", f"--file={dump}", plain], check=True)

    def restore_dump() -> None:
        command = [str(programs / "pg_restore"), "--clean", "--if-exists", "--exit-on-error", "--single-transaction"]
        subprocess.run([*command, f"--dbname={plain}", str(dump)], check=True)

    return restore_dump
