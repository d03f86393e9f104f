"""Versions of the ledger: rows of a version that an operator gave up are refused, though their seals were right."""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from service.errors import Conflict
from service.ledger.access import keys
from service.ledger.installation import installation_journal, sealing
from service.ledger.installation.binding import check_secret
from service.ledger.installation.ledger_versions import NewVersion, begin_version, prepare_version
from service.ledger.installation.sealing import sealed_rows
from service.ledger.notifications import deliveries
from service.ledger.notifications.deliveries import Message
from service.ledger.storage import clock, idempotency
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import ApiKey, Base, Delivery
from service.ledger.verification.verify import verify
from service.ledger.verification.verify_installation import verify_installation
from tests.api.calls import Answer, Client, bearer, charge, concentrated, json_of, open_account, release
from tests.ledger.charging import SECRET, asking
from tests.ledger.ledgers import NAMES, Clock, everything
from tests.ledger.notifications.hooks import make_webhook
from tests.ledger.writing import HIDING, never, run as execute, stored, unprotected
from tests.processes import run, service

_FIXED = {"draws", "jobs", "known_costs", "installation_journal", "webhooks", "deliveries"}
"""The tables whose sealed rows never change, or decide nothing."""
_HOOK = {"name": "w", "url": "https://example.com/hook", "events": ["release.refused"]}


def _begin(database: Database, name: str = "") -> NewVersion:
    """Acknowledge the ledger as it is, as the command does."""
    bound = check_secret(database, SECRET)
    with database.read() as connection:
        new = prepare_version(connection, bound, verified=True)
    content: dict[str, object] = {"mark": None, "version": name or new.name}

    def work(connection: Any) -> None:
        begin_version(connection, bound, new)
        at = clock.now()
        installation_journal.append(connection, bound, "mark_acknowledged", content, actor=None, at=at)

    database.write(work, is_committed=never)
    return new


@pytest.fixture
def ledger(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A ledger with rows of every kind."""
    check_secret(database, SECRET)
    assert keys.ensure_first_key(database, SECRET, None, None) is not None
    everything(database, Clock(monkeypatch))
    answer, at = idempotency.Answer(201, "{}"), clock.now()
    database.write(lambda connection: idempotency.store(connection, asking("ann", "k"), answer, at), is_committed=never)
    return database


def _seals(database: Database) -> dict[str, list[Any]]:
    with database.read() as connection:
        return {
            name: list(connection.execute(text(f"SELECT seal FROM {name}")).scalars())
            for name, table in Base.metadata.tables.items()
            if "seal" in table.columns
        }


def test_every_row_that_can_change_gets_the_seal_of_the_new_version(ledger: Database) -> None:
    before = _seals(ledger)
    new = _begin(ledger)
    after = _seals(ledger)
    assert new.faults == {}
    changed = {name for name in before if set(before[name]).isdisjoint(after[name]) and before[name]}
    assert changed == before.keys() - _FIXED
    assert new.rows.number == sum(len(before[name]) for name in changed)
    assert all(before[name] == after[name] for name in _FIXED - {"installation_journal"})
    bound = check_secret(ledger, SECRET)
    assert (bound.version, ledger.secret) == (new.name, bound)
    with ledger.read() as connection:
        assert list(verify_installation(connection, bound)) == []
        assert all(verify(connection, name).valid for name in NAMES)
        assert sealed_rows(connection, SECRET, ()).number == 0, "the rows of the version before have no right seals"


def test_messages_of_an_earlier_version_are_deleted_and_refused(ledger: Database) -> None:
    """The attack: signed messages about releases that were given up, which somebody puts back after `acknowledge`."""
    made = make_webhook(ledger)
    message = Message(made.id, "release.proposed", "people", clock.now(), {"seq": 3})
    rows = deliveries.sealed(SECRET, [message], clock.now())
    ledger.write(lambda connection: deliveries.queue(connection, rows), is_committed=never)
    _begin(ledger)
    bound = check_secret(ledger, SECRET)
    with ledger.read() as connection:
        assert connection.execute(select(Delivery.id)).all() == []
    ledger.write(lambda connection: deliveries.queue(connection, rows), is_committed=never)
    with ledger.read() as connection:
        assert deliveries.due(connection, bound, clock.now(), made, 10) == []
        faults = list(verify_installation(connection, bound))
    assert faults == [f"deliveries: the message {rows[0]['id']} is not as the service wrote it"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_keys_that_are_not_utf8_keep_no_row_from_a_new_version(
    ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: no statement can name such a key, so that a page which follows it would lack all later rows."""
    monkeypatch.setattr(sealing, "_AT_ONCE", 2)
    with ledger.read() as connection:
        before = sealed_rows(connection, SECRET, ())
    names = ", ".join(column.name for column in ApiKey.__table__.columns if column.name not in ("id", "token_hash"))
    for number in range(5):
        odd = f"CAST(X'2D{number:02x}ff' AS TEXT)"  # before all ids
        execute(
            ledger, f"INSERT INTO api_keys (id, token_hash, {names}) SELECT {odd}, {odd}, {names} FROM api_keys LIMIT 1"
        )
    with ledger.read() as connection:
        assert sealed_rows(connection, SECRET, ()) == before
    assert _begin(ledger).rows == before


def test_a_second_version_follows_a_first(ledger: Database) -> None:
    names = {_begin(ledger).name, _begin(ledger).name}
    assert len(names) == 2
    bound = check_secret(ledger, SECRET)
    with ledger.read() as connection:
        assert all(verify(connection, name).valid for name in NAMES)
        assert bound.version in names


def test_what_does_not_follow_from_the_journals_is_not_sealed_again(ledger: Database) -> None:
    """Somebody may put rows back before the operator acknowledges: right seals do not show that."""
    bound = check_secret(ledger, SECRET)
    with ledger.read() as connection:
        row = stored(connection.execute(text("SELECT * FROM window_totals ORDER BY place LIMIT 1")).one())
    forged = {**row, "releases": row["releases"] + 1}
    values = [forged[name] for name in ("account_id", "place", "committed", "held", "releases", "seq")]
    seal = bound.row_seal("window", *values)
    where = "WHERE account_id = :account AND place = :place"
    unprotected(
        ledger,
        "window_totals",
        f"UPDATE window_totals SET releases = :releases, seal = :seal {where}",
        releases=forged["releases"],
        seal=seal,
        account=row["account_id"],
        place=row["place"],
    )
    execute(ledger, "UPDATE api_keys SET role = 'auditor'")
    new = _begin(ledger)
    told = list(new.faults.values())
    assert len(told) == 2
    assert told[0].startswith("api_keys: the row of ")
    assert told[1].startswith("account 'monthly': the first bad entry is 7: a row of window_totals")
    bound = check_secret(ledger, SECRET)
    with ledger.read() as connection:
        valid = {name: verify(connection, name).valid for name in NAMES}
    without_seals = ("monthly", "clinic")  # what the second is allotted is a row of the first
    assert valid == {name: name not in without_seals for name in NAMES}


def test_rows_that_change_after_they_were_verified_are_not_sealed(ledger: Database) -> None:
    bound, before = check_secret(ledger, SECRET), _seals(ledger)
    with ledger.read() as connection:
        new = prepare_version(connection, bound, verified=True)
    execute(ledger, "UPDATE window_totals SET seal = 'another' WHERE place = (SELECT max(place) FROM window_totals)")
    with pytest.raises(Conflict, match="changed at the same moment"):
        ledger.write(lambda connection: begin_version(connection, bound, new), is_committed=never)
    assert _seals(ledger)["accounts"] == before["accounts"]


def test_a_running_server_stops_when_another_version_begins(ledger: Database) -> None:
    bound = check_secret(ledger, SECRET)
    installation_journal.follow(ledger, bound)
    before = ledger.stopped
    _begin(ledger, "another")
    installation_journal.follow(ledger, bound)
    assert before is None
    assert "start this server again" in str(ledger.stopped)


def test_the_version_is_not_read_again_for_the_first_key(ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody could show the second reading an earlier journal: all rows of that version would then be accepted."""
    _begin(ledger, "another")
    bound = check_secret(ledger, SECRET)
    monkeypatch.setattr(installation_journal, "ledger_version", lambda *_: "")
    assert keys.ensure_first_key(ledger, bound, None, None) is None
    assert ledger.secret == bound
    assert bound.version == "another"


def test_a_command_that_was_shown_an_earlier_journal_is_refused(ledger: Database) -> None:
    _begin(ledger, "another")
    bound = check_secret(ledger, SECRET)
    with ledger.read() as connection:
        installation_journal.require_version(connection, bound)
        assert not any("names another" in fault for fault in verify_installation(connection, bound))
        with pytest.raises(Conflict, match="changed at the same moment"):
            installation_journal.require_version(connection, SECRET)
        assert any("names another version" in fault for fault in verify_installation(connection, SECRET))


def test_a_version_of_the_secret_changes_only_the_seals_of_rows() -> None:
    later = replace(SECRET, version="7")
    assert later.seal("a", 1) == SECRET.seal("a", 1)
    assert later.row_seal("a", 1) != SECRET.row_seal("a", 1) == SECRET.seal("a", 1)
    assert later.row_seal("a", 1) == replace(SECRET, version="7").row_seal("a", 1)
    assert later.row_seal("a", 1) != replace(SECRET, version="8").row_seal("a", 1)
    assert later.fingerprint() == SECRET.fingerprint()
    assert later.row_seal("a", 1) != Secret(bytes(32), "7").row_seal("a", 1)


class _Copy:
    """An installation whose database somebody else reads and writes, past no trigger."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def rows(self, query: str) -> list[dict[str, Any]]:
        with self._opened() as connection:
            connection.row_factory = sqlite3.Row
            rows = [dict(row) for row in connection.execute(query)]
        return [{name: value for name, value in row.items() if name not in HIDING} for row in rows]

    def insert(self, table: str, row: dict[str, Any]) -> None:
        with self._opened() as connection:
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))
            connection.commit()

    def put_back(self, table: str, row: dict[str, Any], *key: str) -> None:
        given = [name for name in row if name not in key]
        changes, where = (
            separator.join(f"{name} = ?" for name in names) for separator, names in ((", ", given), (" AND ", key))
        )
        with self._opened() as connection:
            values = [row[name] for name in (*given, *key)]
            assert connection.execute(f"UPDATE {table} SET {changes} WHERE {where}", values).rowcount == 1
            connection.commit()

    def _opened(self) -> contextlib.closing[sqlite3.Connection]:
        return contextlib.closing(sqlite3.connect(self.home / "data" / "ledger.db", timeout=20))


_ZCDP = {"definition": "zcdp", "rho": "1"}
_JANUARY = {"periods": {"list": ["2030-01"]}}
_CHANGING = (
    "budget", "totals", "state", "head_seq", "head_hash", "approval_above", "next_expiry", "releases", "caps",
    "cap_totals", "allotted", "spending_sum", "seal",
)  # fmt: skip


def _kept(client: Client, account: str, budget: dict[str, str]) -> None:
    json_of(client.patch(f"/v1/accounts/{account}", json={"budget": budget}), 200)


def _hooked(client: Client, key: str) -> Answer:
    return client.post("/v1/webhooks", json=_HOOK, headers={"Idempotency-Key": key})


@pytest.fixture(scope="module")
def given_up(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Callable[[str], list[dict[str, Any]]], str]:
    """An installation that went back to a backup, the rows that it had given up, by table, and a key's token."""
    home, backup = tmp_path_factory.mktemp("installation"), tmp_path_factory.mktemp("backup") / "data"
    with service(home) as served:
        client = served.client
        open_account(client, "months", _ZCDP, periods={"calendar": "month", "participation": {"offsets": [0]}})
        release(client, concentrated("0.1"), "months", **_JANUARY)
        open_account(client, "top", _ZCDP)
        open_account(client, "lot", _ZCDP | {"rho": "0.3"}, parent="top", funding="allotted")
        open_account(client, "cap", _ZCDP)
        release(client, concentrated("0.9"), "cap")
        _hooked(client, "before")
        assert served.stop() == 0
    shutil.copytree(home / "data", backup)
    copy = _Copy(home)
    with service(home) as served:
        client = served.client
        made = json_of(client.post("/v1/keys", json={"name": "leaky", "role": "pipeline"}), 201)
        for _ in range(3):
            release(client, concentrated("0.000001"), "months", **_JANUARY)
            release(client, concentrated("0.0001"), "top")
        _kept(client, "lot", _ZCDP | {"rho": "0.6"})
        _kept(client, "cap", _ZCDP | {"rho": "5"})
        _hooked(client, "after")
        rows = {
            "stored_answers": copy.rows("SELECT * FROM stored_answers WHERE key = 'after'"),
            "api_keys": copy.rows("SELECT * FROM api_keys WHERE name = 'leaky'"),
            "window_totals": copy.rows("SELECT * FROM window_totals WHERE place >= 0"),
            "allotments": copy.rows("SELECT * FROM allotments"),
            "accounts": copy.rows("SELECT * FROM accounts WHERE name = 'cap'"),
            "journal": copy.rows("SELECT j.* FROM journal j JOIN accounts a ON a.id = j.account_id WHERE name = 'cap'"),
        }
        assert client.delete(f"/v1/keys/{made['id']}").is_success
        assert served.stop() == 0
    shutil.rmtree(home / "data")
    shutil.copytree(backup, home / "data")
    told = run(home, "acknowledge", "--reason", "the disk was lost")
    assert told.returncode == 0, told.stderr
    assert "refused" not in told.stdout
    return home, rows.__getitem__, made["key"]


def test_rows_of_a_version_that_was_given_up_are_refused(
    given_up: tuple[Path, Callable[[str], list[dict[str, Any]]], str],
) -> None:
    home, kept, token = given_up
    copy = _Copy(home)
    told = run(home, "verify")
    assert (told.returncode, told.stdout.count("all valid")) == (0, 5), told.stdout
    with service(home) as served:
        client = served.client
        release(client, concentrated("0.8"), "months", **_JANUARY)
        for _ in range(2):
            release(client, concentrated("0.001"), "months", periods={"list": ["2031-01"]})
            release(client, concentrated("0.2"), "top")
        assert charge(client, concentrated("0.31"), "top").status_code == 409
        assert json_of(client.get("/v1/accounts/cap"))["budget"]["rho"] == "1"

        (answer,) = kept("stored_answers")
        copy.insert("stored_answers", answer)
        assert "was changed and is not repeated" in json_of(_hooked(client, "after"), 409)["detail"]
        assert _hooked(client, "before").headers["Idempotent-Replay"] == "true"

        copy.insert("api_keys", kept("api_keys")[0])
        assert client.get("/v1/accounts", headers=bearer(token)).status_code == 401

        copy.put_back("window_totals", kept("window_totals")[0], "account_id", "place")
        assert charge(client, concentrated("0.5"), "months", **_JANUARY).status_code == 503

        copy.put_back("allotments", kept("allotments")[0], "account_id", "child_id")
        lower = client.patch("/v1/accounts/lot", json={"budget": _ZCDP | {"rho": "0.29"}})
        assert lower.status_code == 503

        for entry in kept("journal"):
            if entry["seq"] > 2:
                copy.insert("journal", entry)
        row = kept("accounts")[0]
        copy.put_back("accounts", {name: row[name] for name in (*_CHANGING, "id")}, "id")
        assert charge(client, concentrated("3"), "cap").status_code == 503
        assert client.get("/v1/accounts/cap").status_code == 503
    told = run(home, "verify")
    assert told.returncode == 1
    assert "stored_answers: 1 of 'first-steward' not as stored" in told.stdout
    for fault in ("api_keys: no entry made the key", "months: the first bad entry", "top: the first bad", "cap: the"):
        assert fault in told.stdout
