"""The procedures of the guide's page on backups, run as they are printed there, on ledgers that are in use."""

import contextlib
import os
import re
import shlex
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, make_url
from typer.main import get_command

from service.__main__ import app
from service.cli import ledger_commands
from service.errors import Conflict, Unavailable
from service.ledger.storage.database import open_database
from service.ledger.verification.backup import back_up
from tests.api.calls import Client, json_of, open_account, problem_of, release
from tests.ledger.charging import SECRET, charge, open_account as open_in
from tests.postgres_server import installed
from tests.processes import PATIENCE, ROOT, environment, service

_PAGE = ROOT / "service" / "web" / "guide" / "backup.md"
_NOISE = {"type": "discrete_gaussian", "rho": "1/100000"}
_AT = "/v1/accounts/people"
_WRITERS = 3


def _listings(language: str) -> list[str]:
    """The page's listings of a language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", _PAGE.read_text("utf-8"), flags=re.M | re.S)
    return [re.sub(rf"^{indent}", "", text, flags=re.M) for indent, text in found]


def _listing(word: str) -> str:
    (found,) = [text for text in _listings("console") if word in text]
    return found


@pytest.mark.parametrize(("page", "number"), [("backup", 7), ("keys", 4)])
def test_the_pages_commands_and_options_are_the_services(page: str, number: int) -> None:
    text = _PAGE.with_stem(page).read_text("utf-8").replace("\n   ", " ")
    commands = re.findall(r"python -m service ([^\n`]+)", text)
    assert len(commands) >= number
    for words in map(shlex.split, commands):
        command: Any = get_command(app)
        while words and hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, command.name


@dataclass
class Load:
    """Pipelines that register one release after another, and the answers that each got."""

    client: Client
    answers: list[list[Any]] = field(default_factory=lambda: [[] for _ in range(_WRITERS)])
    stopping: threading.Event = field(default_factory=threading.Event)
    more: threading.Condition = field(default_factory=threading.Condition)

    def write(self, number: int) -> None:
        while not self.stopping.wait(0.05):  # others work on this machine, too
            made = release(self.client, _NOISE)
            with self.more:
                self.answers[number].append(made)
                self.more.notify_all()

    def all_go_on(self, times: int) -> None:
        """Wait until every pipeline was answered so often again."""
        goal = [len(got) + times for got in self.answers]
        with self.more:
            assert self.more.wait_for(
                lambda: all(len(got) >= to for got, to in zip(self.answers, goal, strict=True)), 60
            )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.write, args=(number,)) for number in range(_WRITERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()


@dataclass
class Place:
    """The place in which a page's commands run: an installation's directory, with what its shell exports."""

    home: Path
    settings: dict[str, str]
    exported: dict[str, str] = field(default_factory=dict)

    def do(self, commands: str) -> str:
        """Run commands, which must succeed, and return what they print."""
        given = environment(self.home, **self.settings) | self.exported
        given |= {"PATH": f"{Path(sys.executable).parent}:{installed()}:{given['PATH']}", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.home,
            env=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def place(database_url: str, tmp_path: Path) -> Iterator[Place]:
    """An installation over a fresh database of either kind, and the addresses that the page's commands need."""
    home = tmp_path / "installation"
    home.mkdir()
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        yield Place(home, {"database_url": database_url})
        return
    plain = url.set(drivername="postgresql")
    texts = [one.render_as_string(hide_password=False) for one in (plain, plain.set(database="ledger_restored"))]
    yield Place(home, {"database_url": database_url}, dict(zip(("LEDGER", "RESTORED"), texts, strict=True)))
    with psycopg.connect(texts[0], autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS ledger_restored WITH (FORCE)")


def _restored(place: Place) -> dict[str, str]:
    """The settings of a service over what was restored, in the place's directory."""
    if place.exported:
        return {"database_url": place.exported["RESTORED"].replace("postgresql:", "postgresql+psycopg:")}
    return {"data_dir": str(place.home / "restored" / "data")}


def _text(head: dict[str, Any]) -> str:
    return f"{head['seq']}:{head['hash']}"


def _kept(head: dict[str, Any]) -> dict[str, str]:
    return {"If-Ledger-Includes": _text(head)}


def test_a_backup_under_load_is_restored_verified_and_found_to_be_old(place: Place) -> None:
    backup = _listing("pg_dump" if place.exported else "service backup")
    with service(place.home, **place.settings) as served:
        open_account(served.client)
        load = Load(served.client)
        with load.running():
            load.all_go_on(3)
            before = [made for got in load.answers for made in list(got)]
            printed = place.do(backup)
            load.all_go_on(3)
        last = max((made for got in load.answers for made in got), key=lambda made: made["head"]["seq"])
        later = {made["id"] for got in load.answers for made in got} - {made["id"] for made in before}
        receipts = {made: json_of(served.client.get(f"{_AT}/releases/{made}/receipt")) for made in later}
        spent = json_of(served.client.get(f"{_AT}/balance"))["spent"]
        assert served.stop() == 0

    restore = _listing("pg_restore" if place.exported else "cp ledger-backup.db")
    if not place.exported:
        place.settings.clear()  # the commands say themselves where the restored ledger is
    restored = re.search("^export .*$", restore, flags=re.M)
    assert restored is not None
    found = place.do(f"{restore}\npython -m service verify || test $? = 1")
    said = r"the installation: the journal of 'people' ends with entry (\d+) and had (\d+)\n"
    assert (lacking := re.search(said, found)), found
    assert int(lacking[2]) == last["head"]["seq"]
    verified = place.do(f"{restored[0]}\n{_listing('service acknowledge')}\npython -m service verify")
    assert re.search(r"the installation: all valid\npeople: \d+ entries, all valid\n$", verified)
    if printed:
        assert verified.endswith(printed.partition(", head")[0] + ", all valid\n")
    with service(place.home, **_restored(place)) as served:
        if printed:
            assert json_of(served.client.get(f"{_AT}/verify?head={printed.split()[-1]}"))["valid"]
        _check_restored(served.client, before, last, receipts, spent)
        assert served.stop() == 0


def _check_restored(
    client: Client, before: list[Any], last: Any, receipts: dict[str, Any], spent: dict[str, Any]
) -> None:
    """All that was answered before the backup is there, what came later is refused, and can be entered again."""
    assert json_of(client.get(f"{_AT}/verify"))["valid"]
    assert not json_of(client.get(f"{_AT}/verify?head={_text(last['head'])}"))["valid"]
    found = {made["id"] for made in json_of(client.get(f"{_AT}/releases?limit=1000"))["items"]}
    assert {made["id"] for made in before} <= found
    assert last["id"] not in found
    for method, path, body in (("GET", _AT, None), ("POST", f"{_AT}/releases", {"name": "n", "plan": _NOISE})):
        problem_of(client.request(method, path, json=body, headers=_kept(last["head"])), "ledger_rolled_back")
    newest = max((made for made in before), key=lambda made: made["head"]["seq"])
    json_of(client.get(_AT, headers=_kept(newest["head"])))

    names: dict[str, Callable[[Any], Any]] = {}
    exec(_listings("python")[0], names)
    lost = [receipt for release_id, receipt in receipts.items() if release_id not in found]
    assert lost
    plans = [names["declared"](receipt) for receipt in lost]
    batch = {"releases": [{"name": "entered again", "plan": plan} for plan in plans]}
    entered = json_of(client.post(f"{_AT}/releases/batch", json=batch), 201)["releases"]
    drawing = {"mechanism": plans[0]["name"], "counts": [1]}
    problem_of(client.post(f"{_AT}/releases/{entered[0]['id']}/draws", json=drawing), "validation")
    again = json_of(client.get(f"{_AT}/balance"))["spent"]
    assert again["zcdp"] == spent["zcdp"]


# What the copy of an SQLite file refuses


@pytest.fixture
def ledger(_sqlite_template: Path, tmp_path: Path) -> Path:
    path = tmp_path / "ledger" / "a ledger #%41.db"
    path.parent.mkdir()
    path.write_bytes(_sqlite_template.read_bytes())
    return path


def test_the_copy_is_one_file_that_only_its_owner_reads_and_holds_what_is_not_in_the_first_file_yet(
    ledger: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copies" / "copy.db"
    target.parent.mkdir()
    with contextlib.closing(open_database(URL.create("sqlite", database=str(ledger)).render_as_string())) as database:
        database.secret = SECRET
        open_in(database, definition="zcdp", rho="1")
        charge(database, {"type": "gaussian", "rho": "1/2"})
        (copied,) = back_up(ledger, target, SECRET)
    assert (copied.name, copied.head.seq, copied.doubt) == ("people", 2, None)
    assert [found.name for found in target.parent.iterdir()] == ["copy.db"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with contextlib.closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT max(seq) FROM journal").fetchone() == (2,)


def test_an_older_backup_is_not_written_over(ledger: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("older")
    with pytest.raises(Conflict, match="exists already"):
        back_up(ledger, tmp_path / "copy.db", SECRET)
    assert (tmp_path / "copy.db").read_text() == "older"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["copy.db", "ledger"]


def test_what_a_killed_backup_left_is_not_in_the_way(ledger: Path, tmp_path: Path) -> None:
    """In a container every one may have the same process id."""
    left = tmp_path / f".copy.db.{os.getpid()}"
    left.write_text("half")
    back_up(ledger, tmp_path / "copy.db", SECRET)
    assert left.read_text() == "half"
    assert sorted(found.name for found in tmp_path.iterdir()) == [left.name, "copy.db", "ledger"]


def test_what_cannot_be_read_or_written_leaves_nothing(ledger: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    content = bytearray(ledger.read_bytes())
    content[4096 : 3 * 4096] = os.urandom(2 * 4096)
    damaged.write_bytes(content)
    (tmp_path / "text.db").write_text("no database" * 1000)
    for source in (tmp_path / "nothing.db", tmp_path / "text.db", damaged):
        with pytest.raises(Unavailable):
            back_up(source, tmp_path / "copy.db", SECRET)
    with pytest.raises(Unavailable, match="cannot be written"):
        back_up(ledger, tmp_path / "no directory" / "copy.db", SECRET)
    assert {found.name for found in tmp_path.iterdir()} == {"damaged.db", "ledger", "text.db"}


def test_a_database_that_was_never_migrated_is_copied_as_it_is(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "empty.db")) as empty:
        empty.execute("CREATE TABLE other (a)")
    assert back_up(tmp_path / "empty.db", tmp_path / "copy.db", SECRET) == []


def test_a_copy_of_an_older_version_or_without_the_secret_states_heads_that_were_not_checked(
    ledger: Path, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(ledger)) as older:
        open_in_file(ledger)
        assert [one.doubt for one in back_up(ledger, tmp_path / "1.db", None)] == ["its seal was not checked"]
        older.execute("DROP TABLE installation_journal")
    assert [one.doubt for one in back_up(ledger, tmp_path / "2.db", SECRET)] == ["its seal was not checked"]


_FORGED = "zz\npeople: 12 entries, head 12:00"


@pytest.mark.parametrize(
    ("name", "head", "said"),
    [
        ("CAST(X'ff' AS TEXT)", "head_hash", r"b'\xff': not certain, as {}: 1 entries, head 1:{}"),
        (
            f"'{_FORGED}'",
            "head_hash",
            r"'zz\npeople: 12 entries, head 12:00': not certain, as {}: 1 entries, head 1:{}",
        ),
        ("'zz'", "CAST(X'ff0a' AS TEXT)", r"zz: not certain, as {}: 1 entries, head 1:b'\xff\n'"),
    ],
)
def test_rows_that_somebody_wrote_end_no_backup_and_forge_no_line(
    ledger: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    head: str,
    said: str,
) -> None:
    open_in_file(ledger)
    with contextlib.closing(sqlite3.connect(ledger)) as file:
        columns = [row[1] for row in file.execute("PRAGMA table_info(accounts)") if row[1] not in ("id", "name")]
        values = ", ".join(head if one == "head_hash" else one for one in columns)
        named = f"INSERT INTO accounts (id, name, {', '.join(columns)})"
        file.execute(f"{named} SELECT id + 1, {name}, {values} FROM accounts")
        file.commit()
        (hash_,) = file.execute("SELECT head_hash FROM accounts WHERE name = 'people'").fetchone()
    (tmp_path / "secret").write_text(SECRET.key.hex())
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("SERVICE_DATABASE_URL", URL.create("sqlite", database=str(ledger)).render_as_string())
    monkeypatch.setenv("SERVICE_SECRET_FILE", str(tmp_path / "secret"))
    ledger_commands.backup(tmp_path / "copy.db")
    doubt = "its row, or the last entry of its journal, was not written by the service"
    lines = [f"people: 1 entries, head 1:{hash_}", said.format(doubt, hash_)]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(lines)


def open_in_file(ledger: Path) -> None:
    """Open an account in a ledger that nothing serves."""
    with contextlib.closing(open_database(URL.create("sqlite", database=str(ledger)).render_as_string())) as database:
        database.secret = SECRET
        open_in(database, definition="zcdp", rho="1")


def test_the_command_leaves_postgresql_to_its_own_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SERVICE_DATABASE_URL", "postgresql+psycopg://nobody@/nothing?host=/nowhere")
    with pytest.raises(Conflict, match="pg_dump"):
        ledger_commands.backup(tmp_path / "copy.db")
