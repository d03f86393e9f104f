"""A database that cannot be used: the terminal and the log say where it is and why, without any password."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import LiteralString
from urllib.parse import quote, quote_plus

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from service.errors import StartupRefused
from service.ledger.storage.connections.location import place_of
from service.ledger.storage.database import open_database
from tests.api.calls import problem_of
from tests.postgres_server import Cluster
from tests.processes import MODULE, PATIENCE, ROOT, environment, run, service

_CANARY = "cAn4ry/+ %1?x"
_WRITTEN = quote(_CANARY, safe="")
_FORMS = (_CANARY, _WRITTEN, _WRITTEN.lower(), quote_plus(_CANARY), "cAn4ry")
_COMMANDS = [("serve",), ("migrate",), ("verify",), ("keys", "list")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server that asks the user ``svc`` for a password."""
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        made = Cluster(Path(directory), durable=False)
        (made.directory / "pg_hba.conf").write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        made.start()
        with psycopg.connect(made.url.replace("+psycopg", ""), autocommit=True) as session:
            session.execute(sql.SQL("CREATE ROLE svc LOGIN PASSWORD {}").format(sql.Literal(_CANARY)))
            session.execute("CREATE DATABASE ledger OWNER svc")
        try:
            yield made
        finally:
            if made.answers():
                made.stop()


def _told(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on the terminal of a command that was refused."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert [form for form in _FORMS if form in line] == []
    return line


@pytest.mark.parametrize("command", _COMMANDS, ids=" ".join)
def test_a_wrong_password_is_told_by_every_command(tmp_path: Path, cluster: Cluster, command: tuple[str, ...]) -> None:
    url = f"postgresql+psycopg://svc@/ledger?host={cluster.home}&password={_WRITTEN}wrong"
    told = _told(run(tmp_path, *command, database_url=url))
    assert f"host {cluster.home}, port by default, database ledger, user svc" in told
    assert 'password authentication failed for user "svc"' in told
    assert told.endswith("check user, password and database in SERVICE_DATABASE_URL, and the server's log")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("svc:{0}@/other?host={1}", ["database other, user svc", 'database "other" does not exist', "server answers"]),
        ("nobody:{0}@/ledger?host={1}", ["user nobody", 'authentication failed for user "nobody"', "server answers"]),
        ("svc@/ledger?host={1}", ["user svc", "no password supplied", "check user, password"]),
        ("svc:{0}@127.0.0.1:1/ledger", ["host 127.0.0.1, port 1", "Connection refused; check that the server runs"]),
        ("svc:{0}@nowhere.invalid/ledger", ["host nowhere.invalid", "resolve host", "check that the server runs"]),
        ("svc:{0}@/ledger?host={1}&tiger=1", ['invalid connection option "tiger"', "options in SERVICE_DATABASE_URL"]),
        ("svc:{0}@/ledger?host={1}&sslmode={0}", ["invalid sslmode value", '"***"']),
        ("svc:{0}@host:port/ledger", ["SERVICE_DATABASE_URL: ", "expected an SQLAlchemy URL"]),
        ("svc:x@{0}@127.0.0.1:1/ledger", ["SERVICE_DATABASE_URL: ", "as %40"]),
        ("svc:{0}%00@/ledger?host={1}", ["SERVICE_DATABASE_URL: ", "null"]),
    ],
)
def test_a_server_that_cannot_be_used_is_told(tmp_path: Path, cluster: Cluster, url: str, parts: list[str]) -> None:
    told = _told(run(tmp_path, "verify", database_url=f"postgresql+psycopg://{url.format(_WRITTEN, cluster.home)}"))
    assert [part for part in parts if part not in told] == [], told


@pytest.fixture
def fresh(cluster: Cluster) -> Iterator[tuple[str, "psycopg.Connection[tuple[object, ...]]"]]:
    """The URL of a new database of ``svc``, with the password in its query, and its superuser's session there."""
    url = make_url(cluster.new_database("OWNER svc"))
    own = url.set(username="svc").update_query_dict({"password": _CANARY})
    with psycopg.connect(url.render_as_string().replace("+psycopg", ""), autocommit=True) as session:
        yield own.render_as_string(hide_password=False), session


def _place_in(url: str) -> str:
    parsed = make_url(url)
    return f"PostgreSQL at host {parsed.query['host']}, port by default, database {parsed.database}, user svc"


@pytest.mark.parametrize(
    ("command", "statement", "parts"),
    [
        ("verify", "", ["the database is empty"]),
        ("serve", "CREATE TABLE other (x int)", ["has tables, but no ledger: check the database"]),
        ("serve", "DROP SCHEMA public", ["the ledger's schema, public, does not exist"]),
        ("migrate", "DROP SCHEMA public", ["the ledger's schema, public, does not exist"]),
        (
            "migrate",
            "ALTER SCHEMA public OWNER TO postgres; REVOKE CREATE ON SCHEMA public FROM public",
            ["(42501)", "permission denied for schema public; as the tables' owner"],
        ),
        (
            "serve",
            "ALTER SCHEMA public OWNER TO postgres; REVOKE USAGE ON SCHEMA public FROM public",
            ["schema, public, may not be used by this role; CREATE SCHEMA or GRANT USAGE"],
        ),
        (
            "migrate",
            "ALTER ROLE svc SET default_transaction_read_only = on",
            ["the database is read-only: ", "in a read-only transaction; name the primary server"],
        ),
    ],
)
def test_a_database_without_a_ledger_is_told(
    tmp_path: Path,
    fresh: tuple[str, "psycopg.Connection[tuple[object, ...]]"],
    command: str,
    statement: LiteralString,
    parts: list[str],
) -> None:
    url, session = fresh
    try:
        session.execute(statement)
        told = _told(run(tmp_path, command, database_url=url))
    finally:
        session.execute("ALTER ROLE svc RESET ALL")
    assert [part for part in [_place_in(url), *parts] if part not in told] == [], told


@pytest.mark.parametrize(
    ("command", "statement", "parts"),
    [
        ("serve", "UPDATE alembic_version SET version_num = '0020'", ["not migrated", "version 0020", "needs 00"]),
        (
            "verify",
            "UPDATE alembic_version SET version_num = '0020'",
            ["not migrated", "run python -m service migrate"],
        ),
        (
            "migrate",
            "UPDATE alembic_version SET version_num = '9999'",
            ["a newer version", "of version 9999", "up to 00"],
        ),
        ("serve", "DELETE FROM alembic_version", ["does not state one version"]),
        ("serve", "DROP TABLE draws CASCADE", ["the database lacks the ", "changed outside the service"]),
    ],
)
def test_a_ledger_of_another_version_is_told(
    tmp_path: Path,
    fresh: tuple[str, "psycopg.Connection[tuple[object, ...]]"],
    command: str,
    statement: LiteralString,
    parts: list[str],
) -> None:
    url, session = fresh
    assert run(tmp_path, "migrate", database_url=url).returncode == 0
    session.execute(statement)
    told = _told(run(tmp_path, command, database_url=url))
    assert [part for part in [_place_in(url), *parts] if part not in told] == [], told


def test_a_secret_of_another_database_is_told(
    tmp_path: Path, fresh: tuple[str, "psycopg.Connection[tuple[object, ...]]"]
) -> None:
    url, _ = fresh
    made = run(tmp_path, "keys", "create", "--role", "steward", "--name", "first", database_url=url)
    assert [form for form in _FORMS if form in made.stdout + made.stderr] == []
    secret = tmp_path / "service.secret"
    for content, reason in (
        ("ab" * 32, "is not the one that"),
        ("hunter2", "must hold 32 bytes"),
        (None, "is missing"),
    ):
        secret.unlink()
        if content is not None:
            secret.write_text(content)
            secret.chmod(0o600)
        told = _told(run(tmp_path, "serve", database_url=url))
        assert _place_in(url) in told
        assert f"the secret file {'' if content == 'ab' * 32 else secret}" in told
        assert reason in told
        assert str(content) not in told
        secret.touch()


def test_a_setting_and_an_address_that_cannot_be_used_are_told_before_the_database_is_asked(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://svc:{_WRITTEN}@127.0.0.1:1/ledger?password={_WRITTEN}"
    told = _told(run(tmp_path, "serve", database_url=url, max_json_bytes="cAn4ry"))
    assert told == "error: SERVICE_MAX_JSON_BYTES: expected a whole number from 1"
    assert "hunter2" not in _told(run(tmp_path, "serve", database_url=url, bootstrap_key="hunter2"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = _told(run(tmp_path, "serve", "--port", str(port), database_url=url))
    assert told == f"error: cannot listen at 127.0.0.1, port {port}: Address already in use"


def test_a_database_that_is_lost_while_the_service_runs_is_in_the_log_and_not_in_the_answer(
    tmp_path: Path, cluster: Cluster
) -> None:
    url = f"postgresql+psycopg://svc:{_WRITTEN}@/ledger?host={cluster.home}"
    with service(tmp_path, database_url=url) as served:
        assert served.client.get("/v1/accounts").status_code == 200
        cluster.stop()
        try:
            for address in ("/v1/accounts", "/readyz"):
                answer = served.client.get(address)
                assert problem_of(answer, "unavailable")["detail"] == "the database cannot be reached"
                private = (str(cluster.home), "svc", "ledger,", *_FORMS)
                assert [part for part in private if part in answer.text + str(answer.headers)] == []
            page = served.client.get("/accounts").text
            assert str(cluster.home) not in page
            assert served.stop() == 0
        finally:
            cluster.start()
    said = "".join(served.said)
    assert [form for form in _FORMS if form in said] == []
    lines = [json.loads(line) for line in served.said if line.startswith("{")]
    refused = [line for line in lines if line["event"] == "refused"]
    assert {line["level"] for line in refused} == {"warning"}
    assert all(f"host {cluster.home}, port by default, database ledger, user svc: " in x["detail"] for x in refused)
    assert any("No such file or directory" in line["detail"] for line in refused)
    assert {line["request_id"] for line in refused} <= {line["request_id"] for line in lines if "status" in line}


def _directory(at: Path) -> None:
    at.mkdir()


def _text(at: Path) -> None:
    at.write_text("not a database" * 1000)


@pytest.mark.parametrize(
    ("command", "make", "reason"),
    [
        ("migrate", _directory, "it is a directory; check"),
        ("verify", _directory, "it is a directory; check"),
        ("serve", _text, "file is not a database; check"),
    ],
)
def test_a_file_that_is_no_ledger_is_told(
    tmp_path: Path, command: str, make: Callable[[Path], None], reason: str
) -> None:
    make(tmp_path / "ledger.db")
    told = _told(run(tmp_path, command, database_url=f"sqlite:///{tmp_path / 'ledger.db'}"))
    assert f"the file {tmp_path / 'ledger.db'}: {reason} the path in SERVICE_DATABASE_URL" in told


def test_a_path_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = _told(run(tmp_path, "migrate", database_url=f"sqlite:///{tmp_path / 'file' / 'ledger.db'}"))
    assert f"the file {tmp_path / 'file' / 'ledger.db'}: " in told
    assert "and that this user may write there" in told


@pytest.mark.parametrize(("command", "mode"), [("serve", 0o555), ("verify", 0o555), ("verify", 0o000)])
def test_a_ledger_that_this_user_may_not_write_is_told(tmp_path: Path, command: str, mode: int) -> None:
    assert run(tmp_path, "migrate").returncode == 0
    data = tmp_path / "data"
    for path in (*data.iterdir(), data):
        path.chmod(mode)
    # Root may write everywhere, unless it gives that up.
    may = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    try:
        done = subprocess.run(
            [*may, sys.executable, *MODULE, command],
            cwd=ROOT,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        data.chmod(0o700)
    told = _told(done)
    assert str(data / "ledger.db") in told
    assert "this user may" in told


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://u:p@h:1/d", "PostgreSQL at host h, port 1, database d, user u"),
        ("postgresql://", "PostgreSQL at host by default, port by default, database by default, user by default"),
        ("postgresql:///d?host=a:1&host=b:2&user=u&password=p", "PostgreSQL at host a:1,b:2, port by default, "),
        ("postgresql://x@y/z?dbname=d&user=u&host=h&port=2", "PostgreSQL at host h, port 2, database d, user u"),
    ],
)
def test_a_place_is_named_as_the_driver_understands_it(url: str, name: str) -> None:
    assert place_of(make_url(url)).name.startswith(name)


def test_a_reason_holds_no_password_in_any_form() -> None:
    place = place_of(make_url(f"postgresql://u:{_WRITTEN}@h/d?password=s%20e%2Fc&sslpassword=other"))
    told = place.message("failed", f"a {_CANARY} b {_WRITTEN} c {_WRITTEN.lower()} s e/c s+e%2fc\n other", "do")
    assert (
        told == "failed: PostgreSQL at host h, port by default, database d, user u: a *** b *** c *** *** *** ***; do"
    )


def test_a_password_that_is_the_users_name_is_not_told_by_the_reason() -> None:
    place = place_of(make_url("postgresql://svc:svc@h/d"))
    assert place.message("failed", 'for user "svc"', "").endswith('user svc: for user "svc"')


@pytest.mark.parametrize(
    "url", ["postgresql://u:a@b@h/d", "postgresql://u:tiger%00@h/d", "postgresql://u:ti@ger/x@h/d"]
)
def test_a_url_that_would_be_taken_for_another_is_refused(url: str) -> None:
    with pytest.raises(StartupRefused, match="expected") as refused:
        open_database(url)
    assert "ger" not in str(refused.value)
