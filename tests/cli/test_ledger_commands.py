"""The commands that check, copy and price a ledger again, as an operator uses them."""

import contextlib
import json
import re
import shutil
import sqlite3
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.__main__ import main
from service.cli import ledger_commands
from service.ledger.accounts import account_rows
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.journal.journal import Head
from service.ledger.releases import charges, preparation
from service.ledger.storage.database import open_database
from service.ledger.storage.migrate import migrate
from service.ledger.storage.secret import load_secret
from service.ledger.storage.tables import Account, Draw
from service.ledger.verification.verify_installation import verify_installation
from tests.api.calls import concentrated, json_of, open_account, pure, release
from tests.ledger import charging
from tests.ledger.charging import bind_as_before, charge, half_price, migrate_unsealed, unseal
from tests.processes import environment, run, service


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation with a release, a draw, and what a client kept of it: a head, a receipt, the public key."""
    path = tmp_path_factory.mktemp("installation")
    with service(path) as served:
        client = served.client
        open_account(client)
        made = release(client, concentrated("0.1"))
        draw = {"name": "d", "mechanism": pure("0.1"), "counts": [1, 2, 3]}
        json_of(client.post("/v1/accounts/people/draws", json=draw), 201)
        (path / "receipt.json").write_bytes(client.get(f"/v1/accounts/people/releases/{made['id']}/receipt").content)
        (path / "head").write_text("{seq}:{hash}".format_map(json_of(client.get("/v1/accounts/people/head"))))
        (path / "key").write_text(json_of(client.get("/v1/installation"))["public_key"])
        assert served.stop() == 0
    return path


def _changed(home: Path, copy: Path, *statements: str) -> Path:
    """A copy of an installation on whose database somebody ran statements that it does not refuse."""
    shutil.copytree(home, copy)
    with contextlib.closing(sqlite3.connect(copy / "data" / "ledger.db")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return copy


def _tampered(home: Path, copy: Path, *statements: str) -> Path:
    """Change rows as an attacker does who drops the triggers for that and creates them again."""
    with contextlib.closing(sqlite3.connect(home / "data" / "ledger.db")) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    dropped, made = [f"DROP TRIGGER {name}" for name, _ in triggers], [text for _, text in triggers]
    return _changed(home, copy, *dropped, *statements, *made)


@dataclass
class Command:
    """The command line in this process: a process of its own for each command would take most of the tests' time."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, home: Path, *arguments: str, code: int = 0) -> str:
        """Return the output of a command in the installation of ``home``; it must end with ``code``."""
        for name, value in environment(home).items():
            if name.startswith("SERVICE_"):
                self.monkeypatch.setenv(name, value)
        self.monkeypatch.setattr(sys, "argv", ["service", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = self.capsys.readouterr()
        assert (ended.value.code or 0) == code, said
        return said.out + said.err


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_a_ledger_is_verified(home: Path, tmp_path: Path, said: Command) -> None:
    mark, _, rest = said(home, "verify").partition("\n")
    assert mark.startswith("the high-water mark: 6 entries in 2 journals, 20")
    assert rest == "the installation: all valid\npeople: 4 entries, all valid\n"
    assert "all valid" in said(home, "verify", "--account", "people", "--head", (home / "head").read_text())
    assert said(home, "verify", "--account", "people", "--head", "9:" + "0" * 64, code=1) == (
        "people: the first bad entry is 5: the entry is missing\n"
    )
    assert "error: there is no account 'nobody'" in said(home, "verify", "--account", "nobody", code=1)
    for arguments in (["--head", "9:" + "0" * 64], ["--account", "people", "--head", "9"], ["no-such-file"]):
        assert "Invalid value" in said(home, "verify", *arguments, code=2)
    database = home / "data" / "ledger.db"
    told = said(home, "verify", str(database), code=1)
    assert told.startswith(f"error: expected an export, got an SQLite database in {database}: `verify` without FILE")
    assert told.endswith(f"let SERVICE_DATABASE_URL be sqlite:///{database.resolve()}\n")
    changed = _tampered(home, tmp_path / "changed", "UPDATE draws SET size = 4")
    bad = "people: the first bad entry is 4: the draw is not the one in its entry\n"
    assert said(changed, "verify", code=1).endswith(f"\nthe installation: all valid\n{bad}")


def test_a_file_that_cannot_be_written_is_told_in_one_line(home: Path, tmp_path: Path, said: Command) -> None:
    nowhere, release = tmp_path / "nowhere" / "file", json.loads((home / "receipt.json").read_text())["release"]["id"]
    for command in (("export", "--output", str(nowhere)), ("package", "people", release, str(nowhere))):
        assert said(home, *command, code=1) == f"error: {nowhere} cannot be written: No such file or directory\n"
    full = Path("/dev/full").open("w", encoding="ascii")  # noqa: SIM115 - closing it fails, too
    with contextlib.redirect_stdout(full):
        assert said(home, "export", code=1) == "error: standard output: No space left on device\n"
    with contextlib.suppress(OSError):
        full.close()


def test_indexes_that_do_not_fit_their_tables_are_told_from_other_damage(
    home: Path, tmp_path: Path, said: Command
) -> None:
    """A writer of the file can make an index anew by functions of its own; nothing else is lost then."""
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    with contextlib.closing(sqlite3.connect(copy / "data" / "ledger.db")) as connection:
        connection.create_collation("BINARY", lambda one, other: (one > other) - (one < other) if one < "b" else 1)
        connection.execute("REINDEX releases")
        connection.commit()
    assert "indexes of its file do not fit its tables; REINDEX makes them anew" in said(copy, "verify", code=1)
    with contextlib.closing(sqlite3.connect(copy / "data" / "ledger.db")) as connection:
        connection.execute("REINDEX")
        connection.commit()
    assert "the installation: all valid" in said(copy, "verify")


def test_a_trigger_that_somebody_dropped_is_told(home: Path, tmp_path: Path, said: Command) -> None:
    copy = _changed(home, tmp_path / "copy", "DROP TRIGGER journal_no_delete")
    lines = said(copy, "verify", code=1).splitlines()
    missing = "the trigger journal_no_delete on journal"
    assert f"the database: {missing} is missing" in lines
    assert {"the installation: all valid", "people: 4 entries, all valid"} <= set(lines)
    for arguments in (["serve", "--host", "127.0.0.2"], ["keys", "list"]):
        ended = run(copy, *arguments)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert re.fullmatch(rf"error: the file \S+: the database lacks {missing}: .*\n", ended.stderr)


def test_what_is_away_while_the_ledger_is_verified_is_verified(
    home: Path, tmp_path: Path, said: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: the row of an account is taken away once the ledger was compared with its mark."""
    copy = shutil.copytree(home, tmp_path / "copy")

    def hide(*given: Any) -> Any:
        with contextlib.closing(sqlite3.connect(copy / "data" / "ledger.db")) as connection:
            triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for (name,) in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute("DELETE FROM accounts")
            connection.execute("DELETE FROM installation_journal")
            connection.commit()
        return verify_installation(*given)

    monkeypatch.setattr(ledger_commands, "verify_installation", hide)
    assert said(copy, "verify").endswith("the installation: all valid\npeople: 4 entries, all valid\n")
    monkeypatch.undo()
    assert said(copy, "verify", code=1).endswith("the ledger has no accounts\n")


@pytest.mark.parametrize("value", ["'x'", "X'ff'", "1e300"])
def test_a_row_of_another_type_ends_no_verification(home: Path, tmp_path: Path, said: Command, value: str) -> None:
    row = f"('j', 'x', '{{}}', 'succeeded', {value}, 1, '2026-11-27T00:00:00.000000Z')"
    names = "id, principal, parameters, state, permille, attempts, created_at"
    copy = _changed(home, tmp_path / "copy", f"INSERT INTO jobs ({names}) VALUES {row}")
    told = "the installation: jobs: job j is not as the service wrote it"
    assert said(copy, "verify", code=1).splitlines()[1:] == [told, "people: 4 entries, all valid"]


def test_what_cannot_be_read_is_told(home: Path, tmp_path: Path, said: Command) -> None:
    """The attack: texts that are no texts, and rows that are there twice, of which no command may say nothing."""
    unreadable = _tampered(home, tmp_path / "one", "UPDATE journal SET body = CAST(X'ff' AS TEXT) WHERE seq = 3")
    bad = "people: the first bad entry is 3: the entry or one of its rows has invalid content"
    assert ["the installation: all valid", bad] == said(unreadable, "verify", code=1).splitlines()[1:]
    told = "error: entry 3 of account 'people', or the row of its draw, is not as the service wrote it: run verify"
    assert said(unreadable, "export", code=1).splitlines()[-1] == told
    names = ", ".join(column.name for column in Draw.__table__.columns if column.name not in ("id", "repetition"))
    for number, change in enumerate(
        (
            "UPDATE draws SET id = X'ff'",
            "DELETE FROM draws",
            f"INSERT INTO draws (id, repetition, {names}) SELECT 'another', 8, {names} FROM draws",
        )
    ):
        changed = _tampered(home, tmp_path / f"draw {number}", change)
        assert "people: the first bad entry is 4: " in said(changed, "verify", code=1)
        refused = said(changed, "export", code=1).splitlines()[-1]
        assert refused.startswith("error: entry 4 of account 'people', or the row of its draw, is not as the service")


_REST = ", ".join(column.name for column in Account.__table__.columns if column.name not in ("id", "name"))
_ROGUE = f"INSERT INTO accounts (id, name, {_REST}) SELECT id + 1, {{}}, {_REST} FROM accounts"


@pytest.mark.parametrize("name", ["X'ff'", "CAST(X'ff' AS TEXT)", "'zz'"])
def test_a_row_of_an_account_that_nobody_opened_ends_no_command(
    home: Path, tmp_path: Path, said: Command, name: str
) -> None:
    """The attack: one inserted row of accounts, and an entry whose hash is no text."""
    entry = "INSERT INTO journal SELECT max(id), max(head_seq), 'x', NULL, '{}', CAST(X'ff' AS TEXT) FROM accounts"
    copy = _changed(home, tmp_path / "copy", _ROGUE.format(name), entry)
    lines = said(copy, "verify", code=1).splitlines()
    assert {"the installation: all valid", "people: 4 entries, all valid"} <= set(lines)
    assert len(lines) == 4
    exported, whole = said(copy, "export", "--account", "people"), said(home, "export")
    assert exported.count('{"entry"') == whole.count('{"entry"') == 4
    assert said(copy, "export", code=1).count("is not as the service wrote it") == 1
    (copy / "service.high-water").unlink()
    assert said(copy, "export", code=1).count("is not as the service wrote it") == 1, "nothing tells it from others"
    refused = said(copy, "acknowledge", "--reason", "x", "--leave-faults")
    assert refused.endswith("acknowledged; the high-water mark starts anew\n")
    assert "people: 4 entries, all valid" in said(copy, "verify", code=1).splitlines()


def test_the_name_of_an_account_begins_no_line(home: Path, tmp_path: Path, said: Command) -> None:
    """The attack: a name with line feeds and with what a terminal obeys."""
    forged = "'zz: all valid' || char(10, 27) || '[2J' || char(10) || 'people: 4 entries, all valid'"
    names = "id, principal, parameters, state, permille, attempts, created_at"
    job = f"INSERT INTO jobs ({names}) VALUES ({forged}, 'x', '{{}}', 'succeeded', 0, 0, '')"
    printed = said(_changed(home, tmp_path / "copy", _ROGUE.format(forged), job), "verify", code=1)
    lines = printed.splitlines()
    assert lines.count("people: 4 entries, all valid") == 1
    assert "\x1b" not in printed
    assert len(lines) == 4
    assert lines[1].startswith(r"the installation: jobs: job zz: all valid\n\x1b[2J\npeople: 4 entries")
    assert lines[-1].startswith(r"'zz: all valid\n\x1b[2J\npeople: 4 entries, all valid': the first bad entry")


_ANSWER = "INSERT INTO stored_answers (principal, key, request_digest, status, body, created_at, seal) VALUES"


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("api_keys", "UPDATE api_keys SET created_by = CAST(X'ff' AS TEXT)"),
        ("api_keys", "UPDATE api_keys SET accounts = CAST(X'ff' AS TEXT), role = 'auditor'"),
        ("stored_answers", f"{_ANSWER} ('ann', 'k', 'd', 200, CAST(X'ff' AS TEXT), 't', 's')"),
        ("stored_answers", f"{_ANSWER} (CAST(X'ff' AS TEXT), 'k', 'd', 200, 'x', 't', 's')"),
    ],
)
def test_a_text_that_is_not_utf8_is_a_fault_of_its_row(
    home: Path, tmp_path: Path, said: Command, table: str, change: str
) -> None:
    copy = _changed(home, tmp_path / "copy", change)
    lines = said(copy, "verify", code=1).splitlines()
    assert lines[1].startswith(f"the installation: {table}: ")
    assert lines[-1] == "people: 4 entries, all valid"
    (copy / "service.high-water").unlink()
    assert "acknowledged" in said(copy, "acknowledge", "--reason", "x", "--leave-faults")


def test_another_id_of_the_installation_is_told(home: Path, tmp_path: Path, said: Command) -> None:
    """The attack: the next start took the database for a new one, and bound it a second time."""
    copy = _changed(home, tmp_path / "copy", "UPDATE installation SET id = 2")
    told = "the installation: installation: expected one row, of id 1, with the fingerprint of the secret"
    assert told in said(copy, "verify", code=1).splitlines()
    said(copy, "keys", "list")
    with contextlib.closing(sqlite3.connect(copy / "data" / "ledger.db")) as connection:
        assert connection.execute("SELECT id FROM installation").fetchall() == [(2,)]


def test_an_index_that_holds_other_rows_is_told(home: Path, tmp_path: Path, said: Command) -> None:
    swap = (
        "UPDATE sqlite_master SET rootpage = (SELECT sum(rootpage) FROM sqlite_master AS two WHERE two.name IN"
        " ('draws_kept', 'jobs_by_state')) - rootpage WHERE name IN ('draws_kept', 'jobs_by_state')"
    )
    copy = _changed(home, tmp_path / "copy", "PRAGMA writable_schema = ON", swap)
    lines = said(copy, "verify", code=1).splitlines()
    damaged = "the database: indexes of its file do not fit its tables; REINDEX makes them anew"
    assert [damaged, "the installation: all valid", "people: 4 entries, all valid"] == lines[1:]


@pytest.mark.parametrize("table", ["installation", "holds"])
def test_a_table_that_somebody_dropped_is_told(home: Path, tmp_path: Path, table: str) -> None:
    copy = _changed(home, tmp_path / "copy", f"DROP TABLE {table}")
    for arguments in (["serve", "--host", "127.0.0.2"], ["verify"]):
        ended = run(copy, *arguments)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert re.fullmatch(rf"error: the file \S+: the database lacks the table {table}: .*\n", ended.stderr)


_CUT = (
    "DELETE FROM draws",
    "DELETE FROM journal WHERE seq > 2",
    "UPDATE accounts SET head_seq = 2, head_hash = (SELECT hash FROM journal WHERE seq = 2)",
)


def test_a_ledger_that_lacks_entries_of_its_mark_is_refused_until_somebody_says_why(
    home: Path, tmp_path: Path, said: Command
) -> None:
    cut = _tampered(home, tmp_path / "cut", *_CUT)
    missing = "the journal of 'people' ends with entry 2 and had 4"
    verdict = said(cut, "verify", code=1)
    assert f"the installation: {missing}\n" in verdict
    assert "people: the first bad entry is 3: the entry is missing" in verdict
    assert "the first bad entry is 3" in said(cut, "verify", "--account", "people", code=1)
    for command in (["export"], ["keys", "list"], ["recompute"]):
        assert missing in said(cut, *command, code=1)
    assert "Invalid value" in said(cut, "acknowledge", "--reason", " ", code=2)
    why = ("acknowledge", "--reason", "the disk failed; the backup of Monday")
    faults = "account 'people': the first bad entry is 2: a row of releases belongs to no entry that wrote one"
    assert faults in said(cut, *why, code=1)
    told = said(cut, *why, "--leave-faults")
    assert missing in told
    assert f"{faults}; it stays refused\n" in told
    assert said(cut, "keys", "list")
    assert "nothing to acknowledge" in said(cut, "acknowledge", "--reason", "again", code=1)
    with contextlib.closing(sqlite3.connect(cut / "data" / "ledger.db")) as connection:
        (body,) = connection.execute(
            "SELECT body FROM installation_journal WHERE kind = 'mark_acknowledged'"
        ).fetchone()
    content = json.loads(body)["content"]
    assert (content["reason"], content["missing"]) == ("the disk failed; the backup of Monday", 1)
    (journal,) = content["journals"]
    assert (journal["account"], journal["seq"], journal["last"]) == ("people", 4, 2)


def test_a_row_that_shows_an_earlier_head_is_not_marked_anew(home: Path, tmp_path: Path, said: Command) -> None:
    """Its journal lacks nothing: only what an operator is told is missing may be forgotten."""
    last = "DELETE FROM installation_journal WHERE seq = (SELECT max(seq) FROM installation_journal)"
    cut = _tampered(home, tmp_path / "cut", last, _CUT[-1])
    told = said(cut, "acknowledge", "--reason", "a backup of Monday", "--leave-faults")
    assert "the journal of 'people'" not in told
    assert "the row of account 'people' is not as the service wrote it; its head is not marked anew" in told
    assert _marked(cut)["people"].seq == 4


def test_a_journal_whose_last_entry_was_altered_is_not_forgotten(home: Path, tmp_path: Path, said: Command) -> None:
    """Without a head in the mark, any earlier state of it would be accepted later."""
    altered = _tampered(home, tmp_path / "altered", f"UPDATE journal SET hash = '{'0' * 64}' WHERE seq = 4")
    told = said(altered, "acknowledge", "--reason", "a backup of Monday", code=1)
    assert "the last entry is not as the service wrote it: 'people'" in told
    assert _marked(altered)["people"].seq == 4


def test_a_mark_that_cannot_be_used_is_refused_until_somebody_says_why(
    home: Path, tmp_path: Path, said: Command
) -> None:
    copy = _tampered(home, tmp_path / "copy")
    (copy / "service.high-water").write_bytes(b"no database")
    for command in (["verify"], ["keys", "list"]):
        assert "service.high-water cannot be used: " in said(copy, *command, code=1)
    said(copy, "acknowledge", "--reason", "the volume was lost")
    assert "the high-water mark: 7 entries in 2 journals" in said(copy, "verify")
    (copy / "service.high-water").unlink()
    assert said(copy, "verify").startswith("the installation: all valid\n"), "a new one begins at the next start"


@pytest.mark.parametrize("adopt", [True, False])
def test_an_operator_decides_whether_an_older_versions_rows_are_adopted(
    tmp_path: Path, said: Command, adopt: bool
) -> None:
    place = tmp_path / "older"
    (place / "data").mkdir(parents=True)
    secret = load_secret(place / "service.secret", make=True)
    with contextlib.closing(open_database(f"sqlite:///{place}/data/ledger.db")) as database:
        migrate(database)
        bind_as_before(database, secret)
        charging.open_account(database)
        unseal(database)
        migrate_unsealed(database)
    (place / "service.high-water").write_bytes(b"no database")
    why = ("acknowledge", "--reason", "a backup of the old version")
    assert "Add --adopt if" in said(place, *why, code=1)
    said(place, *why, "--adopt" if adopt else "--no-adopt")
    with contextlib.closing(sqlite3.connect(place / "data" / "ledger.db")) as connection:
        rows = connection.execute("SELECT kind, body FROM installation_journal ORDER BY seq").fetchall()
    assert [kind for kind, _ in rows] == (["rows_sealed"] if not adopt else []) + ["mark_acknowledged"]
    assert json.loads(rows[-1][1])["content"].get("adopt", False) is adopt
    with service(place) as served:
        assert served.client.get("/v1/accounts/people").status_code == (200 if adopt else 503)


def test_a_ledger_without_a_mark_begins_a_version_when_it_is_acknowledged(
    home: Path, tmp_path: Path, said: Command
) -> None:
    """A backup was restored on another machine, where no mark is: rows of what was lost are refused from then on."""
    copy = _tampered(home, tmp_path / "copy")
    (copy / "service.high-water").unlink()
    said(copy, "acknowledge", "--reason", "restored on another machine")
    assert "the installation: all valid\npeople: 4 entries, all valid\n" in said(copy, "verify")
    with contextlib.closing(sqlite3.connect(copy / "data" / "ledger.db")) as now:
        after = now.execute("SELECT seal FROM accounts").fetchall()
    with contextlib.closing(sqlite3.connect(home / "data" / "ledger.db")) as then:
        assert then.execute("SELECT seal FROM accounts").fetchall() != after
    assert "nothing to acknowledge" in said(copy, "acknowledge", "--reason", "again", code=1)


def test_nothing_is_adopted_where_no_older_version_was(home: Path, tmp_path: Path, said: Command) -> None:
    copy = _tampered(home, tmp_path / "copy")
    (copy / "service.high-water").write_bytes(b"no database")
    for choice in ("--adopt", "--no-adopt"):
        assert "left no rows without seals" in said(copy, "acknowledge", "--reason", "lost", choice, code=1)


def test_a_key_that_somebody_put_into_the_database_is_found(home: Path, tmp_path: Path, said: Command) -> None:
    minted = "INSERT INTO api_keys (id, name, role, token_hash, created_at) VALUES ('k', 'm', 'steward', 'h', 'now')"
    copy = _tampered(home, tmp_path / "minted", minted)
    assert "the installation: api_keys: no entry made the key k of 'm'" in said(copy, "verify", code=1)
    assert "all valid" in said(copy, "verify", "--account", "people")


@pytest.mark.parametrize("command", [("export",), ("recompute", "--apply"), ("keys", "list")])
def test_no_command_goes_on_without_a_sound_installation_journal(
    home: Path, tmp_path: Path, said: Command, command: tuple[str, ...]
) -> None:
    """This journal alone tells of which version of the ledger the rows must be."""
    copy = _tampered(home, tmp_path / "altered", "UPDATE installation_journal SET body = body || ' ' WHERE seq = 1")
    assert "the installation's journal is not as this service wrote it: entry 1" in said(copy, *command, code=1)
    assert "the installation: installation_journal: entry 1" in said(copy, "verify", code=1)


def test_a_receipt_is_verified_in_a_process_without_an_installation(home: Path, tmp_path: Path) -> None:
    arguments = ("verify-receipt", str(home / "receipt.json"), "--public-key", (home / "key").read_text())
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("valid: 'a release' in 'people', committed when the receipt was issued, ")
    assert not list(tmp_path.iterdir())


def test_a_package_is_made_and_verified_without_an_installation(home: Path, tmp_path: Path, said: Command) -> None:
    receipt, key = json.loads((home / "receipt.json").read_text()), (home / "key").read_text()
    file, release = tmp_path / "package.zip", receipt["release"]["id"]
    assert "without a registry entry: the metadata lack data_curators" in said(
        home, "package", "people", release, str(file)
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    verified = run(tmp_path / "elsewhere", "verify-package", str(file), "--public-key", key)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout.startswith("valid: 'a release' in 'people', 7 files, issued ")
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    assert said(tmp_path, "verify-package", str(file), "--public-key", key, code=1).startswith(f"error: {file}: ")
    file.write_bytes(whole)
    assert "no release" in said(home, "package", "people", "none", str(file), code=1)
    assert file.read_bytes() == whole
    said(home, "package", "people", release, str(file), "--confidence", "NaN", code=2)


def test_what_is_no_receipt_is_refused(home: Path, tmp_path: Path, said: Command) -> None:
    key, receipt = (home / "key").read_text(), home / "receipt.json"
    changed: dict[str, Any] = json.loads(receipt.read_text()) | {"unit": "household"}
    twice = receipt.read_bytes().replace(b"{", b'{"unit":"household",', 1)  # some readers take the first of two
    for content in (json.dumps(changed).encode(), twice, b"{", b"[]", b"\xff", b"[" * 100_000):
        (tmp_path / "changed.json").write_bytes(content)
        refused = said(tmp_path, "verify-receipt", str(tmp_path / "changed.json"), "--public-key", key, code=1)
        assert refused.startswith("error: ")
        assert str(tmp_path / "changed.json") in refused
    refused = said(tmp_path, "verify-receipt", str(receipt), "--public-key", "00" * 32, code=1)
    assert refused.startswith(f"error: {receipt}: the statement names another public key than the expected one")


def test_an_export_is_verified_and_rebuilds_the_ledger(home: Path, tmp_path: Path, said: Command) -> None:
    file, head = tmp_path / "export.jsonl", (home / "head").read_text()
    assert said(home, "export", "--output", str(file)) == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it tells what is not yet published"
    assert said(home, "export", "--account", "people").splitlines()[1:] == file.read_text().splitlines()[1:]
    key = (home / "key").read_text()
    assert said(tmp_path, "verify", str(file), "--public-key", key) == f"people: 4 entries, all valid, head {head}\n"
    assert f"signed with the public key {key}" in said(tmp_path, "verify", str(file))
    assert "another public key" in said(tmp_path, "verify", str(file), "--public-key", "00" * 32, code=1)

    copy = tmp_path / "copy"
    copy.mkdir()
    assert "another public key" in said(copy, "import", str(file), code=1), "a new installation has a key of its own"
    (copy / "cut.jsonl").write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    cut = said(copy, "import", str(copy / "cut.jsonl"), "--public-key", key, code=1)
    assert cut == "error: line 6: the file ends before the noisy counts of a draw\n"
    assert said(copy, "import", str(file), "--public-key", key) == f"people: 4 entries, head {head}\n"
    with contextlib.closing(sqlite3.connect(copy / "data" / "ledger.db")) as connection:
        begun = connection.execute("SELECT body FROM installation_journal WHERE kind = 'mark_acknowledged'").fetchall()
    assert "version" in json.loads(begun[0][0])["content"], "rows of the ledger that was exported are refused"
    assert said(copy, "verify").endswith("people: 4 entries, all valid\n")
    assert "without accounts" in said(copy, "import", str(file), "--public-key", key, code=1)
    assert not (copy / "service.high-water").exists(), "the first server begins it"

    marked = tmp_path / "marked"
    marked.mkdir()
    with service(marked) as served:
        assert served.stop() == 0
    assert f"people: 4 entries, head {head}\n" in said(marked, "import", str(file), "--public-key", key)
    assert "{0.seq}:{0.hash}".format(_marked(marked)["people"]) == head
    (marked / "data" / "ledger.db").unlink()
    before = _marked(marked)
    assert f"people: 4 entries, head {head}\n" in said(marked, "import", str(file), "--public-key", key)
    assert _marked(marked) == before, "the installation's journal is gone, which an operator is to acknowledge"
    assert "acknowledge --reason" in said(marked, "keys", "list", code=1)


def test_a_ledger_is_priced_again(home: Path, tmp_path: Path, said: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(home, "recompute") == "0 releases priced otherwise; nothing was changed\n"
    charged = tmp_path / "charged"
    shutil.copytree(home, charged)
    secret = load_secret(charged / "service.secret", make=False)
    with contextlib.closing(open_database(f"sqlite:///{charged / 'data' / 'ledger.db'}")) as database:
        database.secret = secret
        with monkeypatch.context() as older_accountant:  # who asked for half of what is right
            older_accountant.setattr(preparation, "price", half_price)
            older_accountant.setattr(charges, "ACCOUNTANT", "0")
            charge(database, {"type": "discrete_gaussian", "rho": "1/50", "name": "m"})
    lower = """UPDATE accounts SET budget = '{"definition": "zcdp", "rho": "0.1"}', seal = NULL"""
    older = _tampered(charged, tmp_path / "older", lower)
    with contextlib.closing(open_database(f"sqlite:///{older / 'data' / 'ledger.db'}")) as database:
        database.write(
            lambda connection: account_rows.seal_old(connection, secret, 0, 9), is_committed=lambda *_: False
        )
    answer = said(older, "recompute", code=3)
    assert "rho 1/100 -> 1/50" in answer
    assert "people: over its budget: " in answer
    assert answer.endswith("1 release priced otherwise; nothing was changed\n")
    assert said(older, "recompute", "--apply", code=3).endswith("1 release priced again\n")
    assert _marked(older)["people"].seq == 6, "the entry of the new price"
    assert said(older, "recompute", code=3).endswith("0 releases priced otherwise; nothing was changed\n")


def _marked(home: Path) -> dict[str, Head]:
    file = HighWaterFile(home / "service.high-water", load_secret(home / "service.secret", make=False))
    mark = file.read()
    assert mark is not None
    assert not mark.in_use
    return dict(mark.heads)


def test_a_revocation_by_a_command_that_is_taken_back_is_noticed(home: Path, tmp_path: Path, said: Command) -> None:
    """The attack: no server runs, or one that has nothing to do, and what a command wrote is taken away at leisure."""
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    before = _marked(copy)[""].seq
    key = said(copy, "keys", "create", "--role", "steward", "--name", "eve").split()[0]
    assert _marked(copy)[""].seq == before + 1
    with contextlib.closing(sqlite3.connect(copy / "data" / "ledger.db")) as connection:
        (seal,) = connection.execute("SELECT seal FROM api_keys WHERE id = ?", (key,)).fetchone()
    assert said(copy, "keys", "revoke", key) == f"revoked {key}\n"
    assert _marked(copy)[""].seq == before + 2
    assert said(copy, "keys", "rotate", key, code=1) == "error: expected a valid key; it is revoked or expired\n"
    back = _tampered(
        copy,
        tmp_path / "back",
        f"UPDATE api_keys SET revoked_at = NULL, seal = '{seal}' WHERE id = '{key}'",
    )
    assert "steward   eve  revoked " in said(back, "keys", "list"), "as the journal says"
    back = _tampered(
        back,
        tmp_path / "further",
        "DELETE FROM installation_journal WHERE seq = (SELECT max(seq) FROM installation_journal)",
    )
    for command in (("keys", "list"), ("verify",)):
        assert f"the installation's journal ends with entry {before + 1} and had" in said(back, *command, code=1)


def test_a_command_says_that_the_row_of_a_revoked_key_was_changed(home: Path, tmp_path: Path, said: Command) -> None:
    changed = _changed(home, tmp_path / "changed", "UPDATE api_keys SET revoked_at = created_at")
    key = said(changed, "keys", "list").split()[0]
    answer = run(changed, "keys", "revoke", key)  # a process of its own, whose log lines are not this one's
    assert "warning: the key's row was not as the service wrote it; run verify\n" in answer.stderr
    assert answer.stdout == f"revoked {key}\n"
    assert "key revoked by the operator" in said(changed, "keys", "history")
