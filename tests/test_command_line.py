"""The command line, as an operator uses it: processes, signals and exit codes."""

import contextlib
import gc
import os
import signal
import socket
import sqlite3
import stat
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn
from fastapi import FastAPI

from service.ledger.storage.database import open_database
from service.ledger.storage.migrate import downgrade
from service.server import EndSignal, Server
from tests.api.calls import STEWARD, Answer, bearer, json_of, open_account, problem_of, pure
from tests.forks import Fork
from tests.processes import MODULE, PATIENCE, ROOT, environment, run, service


def test_the_ledger_survives_a_restart_and_the_first_key_is_the_operators(tmp_path: Path) -> None:
    with service(tmp_path) as served:
        opened = open_account(served.client)
        assert served.stop() == 0
    assert STEWARD not in "".join(served.said)
    assert (tmp_path / "service.secret").exists(), "the secret is next to the data directory and not in it"
    with service(tmp_path) as served:
        assert json_of(served.client.get("/v1/accounts/people")) == opened
        assert served.stop() == 0


def test_without_a_key_of_the_operators_one_is_printed_once(tmp_path: Path) -> None:
    with service(tmp_path, bootstrap_key="") as served:
        assert served.stop() == 0
    (token,) = [line.strip() for line in served.said if line.strip().startswith("pbl_")]
    assert "it expires after 24 hours" in "".join(served.said)
    (made,) = run(tmp_path, "keys", "list").stdout.splitlines()
    assert "  steward   first-steward  expires " in made
    with service(tmp_path, bootstrap_key="") as served:
        json_of(served.client.get("/v1/accounts", headers=bearer(token)))
        assert served.stop() == 0
    assert "pbl_" not in "".join(served.said)


def test_a_first_key_that_only_a_terminal_shows_does_not_expire(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shown, terminal = os.openpty()
    log = (tmp_path / "log").open("wb")
    with os.fdopen(shown, encoding="utf-8", buffering=1) as screen, log:
        served = Fork([*MODULE, "serve", "--port", str(port)], environment(tmp_path), terminal, log.fileno())
        os.close(terminal)
        said = [screen.readline()]
        while "Serving on" not in said[-1]:
            assert served.poll() is None
            said.append(screen.readline())
        served.terminate()
        served.wait(PATIENCE)
    assert said[0] == "The first key, a steward's, shown only once:\n"
    assert said[2].startswith("    pbl_")
    (made,) = run(tmp_path, "keys", "list").stdout.splitlines()
    assert "  steward   first-steward  valid" in made


def test_sigterm_finishes_what_is_running(tmp_path: Path) -> None:
    answers: list[Answer] = []
    with service(tmp_path) as served:
        open_account(served.client)
        body = {"name": "long", "mechanism": pure(1), "counts": [7] * 200_000}
        running = threading.Thread(
            target=lambda: answers.append(served.client.post("/v1/accounts/people/draws", json=body))
        )
        running.start()
        time.sleep(0.5)  # sampling takes seconds; where the request were done by then, the test would still hold
        assert served.stop() == 0
        running.join()
    assert len(json_of(answers[0], 201)["noisy"]) == 200_000


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    made = run(tmp_path, "keys", "create", "--role", "auditor", "--name", "an office", "--account", "people")
    assert "note: there is no account people yet" in made.stderr
    assert made.returncode == 0, made.stderr
    key_id, token = made.stdout.split()
    assert f"{key_id}  auditor   an office  valid, for people, made by" in run(tmp_path, "keys", "list").stdout
    with service(tmp_path) as served:
        assert json_of(served.client.get("/v1/accounts", headers=bearer(token))) == {"items": [], "next_cursor": None}
        problem_of(served.client.get("/v1/keys", headers=bearer(token)), "forbidden")
        assert run(tmp_path, "keys", "revoke", key_id).returncode == 0
        problem_of(served.client.get("/v1/accounts", headers=bearer(token)), "unauthenticated")
        assert served.stop() == 0
    first = run(tmp_path, "keys", "create", "--role", "auditor", "--name", "b", "--days", "90").stdout.split()[0]
    half = run(tmp_path, "keys", "rotate", first, "--overlap-hours", "0.001")
    assert half.returncode == 2
    assert "expected a whole number of hours from 0 to 8784, got 0.001" in " ".join(
        half.stderr.replace("│", "").split()
    )
    short = run(tmp_path, "keys", "rotate", first[:7])
    expected = "error: expected a key's id, or its beginning of at least 8 characters, got 7\n"
    assert (short.returncode, short.stderr) == (1, expected)
    successor = run(tmp_path, "keys", "rotate", first[:8], "--overlap-hours", "0").stdout.split()[0]
    _, old, new = run(tmp_path, "keys", "list").stdout.splitlines()[-3:]
    assert old.startswith(f"{first}  auditor   b  expired ")
    assert new.startswith(f"{successor}  auditor   b  expires ")
    assert old.partition("expired")[2] < new.partition("expires")[2]
    assert new.endswith(", made by the operator, last used never")
    refused = run(tmp_path, "keys", "create", "--role", "auditor", "--name", "c", "--expires-at", "2020-01-01")
    assert (refused.returncode, refused.stderr) == (1, "error: /expires_at: expected a moment in the future\n")
    history = run(tmp_path, "keys", "history").stdout.splitlines()
    assert all(kind in line for kind, line in zip(("revoked", "made", "made", "rotated"), history[-4:], strict=True))
    assert 'by the operator: {"accounts": null, "created_at": "' in history[-2]
    assert successor in history[-1]
    again = run(tmp_path, "keys", "revoke", "no-such-key")
    assert (again.returncode, again.stderr) == (1, "error: there is no key 'no-such-key'\n")


def test_keys_are_listed_by_the_journal_and_marked_where_their_rows_were_altered(tmp_path: Path) -> None:
    made = run(tmp_path, "keys", "create", "--role", "auditor", "--name", "a", "--account", "people")
    assert made.returncode == 0, made.stderr
    planted = "INSERT INTO api_keys (id, name, role, token_hash, created_at) VALUES ('i', 'b', 'steward', 'h', '2020')"
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "ledger.db", isolation_level=None)) as database:
        database.execute(planted)
        database.execute("UPDATE api_keys SET accounts = NULL, role = 'steward' WHERE name = 'a'")
    listed = run(tmp_path, "keys", "list")
    (line,) = listed.stdout.splitlines()
    assert "  auditor   a  refused: its row is not as this service wrote it" in line
    assert ", for people, made by the operator" in line
    assert "rows of keys that this service did not write are left out" in listed.stderr


def test_a_database_of_another_secret_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, "keys", "create", "--role", "auditor", "--name", "a").returncode == 0
    secret = tmp_path / "service.secret"
    secret.unlink()
    refused = run(tmp_path, "serve")
    assert refused.returncode == 1
    named = f"error: the file {tmp_path / 'data' / 'ledger.db'}: the secret file"
    assert refused.stderr.startswith(f"{named} {secret} is missing")
    assert not secret.exists(), "a second one would only hide that the first is lost"
    secret.write_text("00" * 32)
    secret.chmod(0o600)
    refused = run(tmp_path, "serve")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"{named} is not the one")
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("arguments", [("verify",), ("backup", "copy.db"), ("keys", "list")])
def test_a_question_about_a_ledger_that_is_not_there_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    refused = run(tmp_path, *arguments)
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        f"error: there is no ledger at {tmp_path / 'data' / 'ledger.db'}: set SERVICE_DATA_DIR"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", [("serve", "--port", "1"), ("keys", "create", "--role", "auditor", "--name", "ann")]
)
def test_no_ledger_is_begun_at_another_place_than_that_of_the_mark(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "service.high-water").write_bytes(b"")
    refused = run(tmp_path, *command)
    assert refused.returncode == 1
    assert "its high-water mark exists, so it was begun" in refused.stderr
    assert [found.name for found in tmp_path.iterdir()] == ["service.high-water"]


def test_verify_changes_nothing_of_a_ledger_of_an_older_version(tmp_path: Path) -> None:
    """An attacker may have brought it: what is sealed in it would hold in another ledger of this secret."""
    assert run(tmp_path, "keys", "create", "--role", "auditor", "--name", "ann").returncode == 0
    database = open_database(f"sqlite:///{tmp_path / 'data' / 'ledger.db'}")
    statement = "UPDATE api_keys SET seal = NULL"
    database.write(lambda connection: connection.exec_driver_sql(statement), is_committed=lambda *_: False)
    verified = run(tmp_path, "verify")
    assert verified.returncode == 1
    assert "is not as the service wrote it" in verified.stdout
    for arguments in (("keys", "list"), ("recompute",), ("export",)):
        assert run(tmp_path, *arguments).returncode == 0
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT seal FROM api_keys").scalars().all() == [None]
        (entries,) = connection.exec_driver_sql("SELECT count(*) FROM installation_journal").one()
    assert entries == 2
    downgrade(database, "0011")
    database.close()
    refused = run(tmp_path, "verify")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "run python -m service migrate, or start the server" in refused.stderr


def test_a_question_about_an_empty_database_is_refused(tmp_path: Path, empty_database_url: str) -> None:
    (tmp_path / "service.secret").write_text("00" * 32)
    (tmp_path / "service.secret").chmod(0o600)
    given = {"database_url": empty_database_url, "secret_file": str(tmp_path / "service.secret")}
    refused = run(tmp_path, "verify", **given)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert run(tmp_path, "migrate", **given).returncode == 0
    verified = run(tmp_path, "verify", **given)
    assert (verified.returncode, verified.stdout) == (0, "the installation: all valid\nthe ledger has no accounts\n")


def test_a_data_directory_is_its_owners_or_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, "migrate").returncode == 0
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    refused = run(tmp_path, "migrate", data_dir=str(tmp_path / "file"))
    assert refused.returncode == 1
    assert refused.stderr == f"error: the data directory {tmp_path / 'file'} cannot be created: File exists\n"


def test_an_address_that_is_taken_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run(tmp_path, "serve", "--port", str(port))
    assert refused.returncode == 1
    assert (refused.stdout, refused.stderr) == (
        "",
        f"error: cannot listen at 127.0.0.1, port {port}: Address already in use\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_will_end_says_so_and_goes_on(tmp_path: Path) -> None:
    room = str(1 << 30)  # so that the log warns of no memory that this machine has not
    with service(tmp_path, drain_seconds="3600", key_rates="10/minute", max_arrow_bytes_at_once=room) as served:
        served.process.send_signal(signal.SIGTERM)
        while served.client.get("/readyz").is_success:
            time.sleep(0.02)
        assert "shutting down" in problem_of(served.client.get("/readyz"), "unavailable")["detail"]
        open_account(served.client)
        assert served.stop() == 0, "a second signal waits for nothing"
    (warning,) = [line for line in served.said if '"warning"' in line]
    assert '"names": ["SERVICE_KEY_RATES"]' in warning, "a variable that is misspelt is told of"


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_a_process_ends_after_its_while(seconds: float) -> None:
    app = FastAPI()
    app.state.ending = False
    server = Server(uvicorn.Config(app), app, seconds, EndSignal())
    server.handle_exit(signal.SIGTERM, None)
    assert app.state.ending == (seconds > 0)
    for waited in threading.enumerate():
        if isinstance(waited, threading.Timer):
            waited.join()
    assert server.should_exit


def test_a_signal_during_the_start_is_not_lost_where_exceptions_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    end, app, ignored = EndSignal(), FastAPI(), list[object]()
    app.state.journals = SimpleNamespace(end=lambda: None)
    monkeypatch.setattr(sys, "unraisablehook", lambda one: ignored.append(one.exc_type))
    before = signal.signal(signal.SIGTERM, end)

    def callback(*_: object) -> None:
        if not end.came:
            signal.raise_signal(signal.SIGTERM)

    gc.callbacks.append(callback)
    try:
        gc.collect()
        Server(uvicorn.Config(app, port=0), app, 0, end).run()
    finally:
        gc.callbacks.remove(callback)
        signal.signal(signal.SIGTERM, before)
    assert ignored == [SystemExit]


def test_a_short_bootstrap_key_is_refused_without_being_shown(tmp_path: Path) -> None:
    refused = run(tmp_path, "serve", bootstrap_key="too-short")
    assert refused.returncode == 1
    assert "SERVICE_BOOTSTRAP_KEY" in refused.stderr
    assert "too-short" not in refused.stderr


def test_migrating_an_embedded_database_and_one_of_a_server(tmp_path: Path, empty_database_url: str) -> None:
    for _ in range(2):
        migrated = run(tmp_path, "migrate", database_url=empty_database_url)
        assert migrated.returncode == 0, migrated.stderr
        assert migrated.stdout.startswith("The database is migrated: "), migrated.stdout
    with service(tmp_path, database_url=empty_database_url) as served:
        open_account(served.client)
        assert served.stop() == 0


def test_the_contract_is_printed(tmp_path: Path) -> None:
    printed = run(tmp_path, "openapi")
    assert printed.stdout == (ROOT / "openapi.yaml").read_text(encoding="utf-8")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("arguments", [("serve", "--port", "0"), ("keys", "create", "--role", "king", "--name", "x")])
def test_wrong_arguments_are_explained(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    refused = run(tmp_path, *arguments)
    assert refused.returncode == 2
    assert "Invalid value" in refused.stderr
