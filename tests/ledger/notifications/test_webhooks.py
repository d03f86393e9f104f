"""Rows of webhooks: sealed, and vouched for by the installation's journal."""

import base64
import hashlib
import hmac
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, text

from service.errors import Altered, Conflict, NotFound, Unauthenticated
from service.ledger.installation import installation_journal
from service.ledger.journal.journal import Actor, Head
from service.ledger.notifications import webhook_changes, webhooks
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Webhook
from service.ledger.verification.verify_installation import verify_installation
from tests.ledger.charging import SECRET
from tests.ledger.notifications.hooks import change_webhook, erase, make_webhook, remove_webhook
from tests.ledger.writing import never, run


def used(database: Database) -> list[WebhookRecord]:
    """Return the webhooks to which messages are sent."""
    with database.read() as connection:
        return webhooks.journalled(connection, SECRET)


def faults(database: Database) -> list[str]:
    with database.read() as connection:
        return [fault for fault in verify_installation(connection, SECRET) if fault.startswith("webhooks")]


def row_of(database: Database, webhook_id: str) -> dict[str, Any]:
    with database.read() as connection:
        found = connection.execute(text("SELECT * FROM webhooks WHERE id = :id"), {"id": webhook_id})
        return dict(found.mappings().one())


def test_webhooks_are_entries_without_targets(database: Database) -> None:
    made = make_webhook(database, url="https://hooks.agency.example/t0ken")
    changed = change_webhook(database, made.id, url=None, mail=("ann@agency.example",))
    assert used(database) == [changed]
    assert faults(database) == []
    remove_webhook(database, made.id)
    assert used(database) == []
    assert faults(database) == []
    with database.read() as connection:
        entries = [one for one in installation_journal.read(connection, SECRET) if one["kind"].startswith("webhook")]
    assert [one["kind"] for one in entries] == ["webhook_made", "webhook_changed", "webhook_deleted"]
    assert {one["actor"] for one in entries} == {"issuer's steward"}
    assert "t0ken" not in str(entries)
    assert "ann@" not in str(entries)


def test_an_altered_row_is_refused_and_not_used(database: Database) -> None:
    made = make_webhook(database)
    run(database, "UPDATE webhooks SET url = 'https://elsewhere.example/'")
    assert used(database) == []
    assert faults(database) == [f"webhooks: the row of {made.id} does not follow from the installation's journal"]
    with database.read() as connection, pytest.raises(Altered):
        webhooks.read_webhook(connection, SECRET, made.id)


def put_back(database: Database, row: dict[str, Any]) -> None:
    """Write an earlier row of a webhook, as whoever writes the database may, in place of the present one if any."""

    def work(connection: Connection) -> None:
        connection.execute(delete(Webhook).where(Webhook.id == row["id"]))
        connection.execute(insert(Webhook).values(row))

    database.write(work, is_committed=lambda *_: False)


def shown(database: Database) -> list[WebhookRecord]:
    """Return the webhooks that stewards see."""
    with database.read() as connection:
        return list(webhooks.list_webhooks(connection, SECRET, "", 10, None))


def test_a_row_that_is_put_back_is_not_used(database: Database) -> None:
    """It has its seal, but the journal has a later change; no change begins with it."""
    made = make_webhook(database)
    before = row_of(database, made.id)
    changed = change_webhook(database, made.id, generation=2, accounts=("people",))
    after = row_of(database, made.id)
    put_back(database, before)
    assert used(database) == []
    for act in (
        lambda: shown(database),
        lambda: change_webhook(database, made.id, name="renamed"),
        lambda: remove_webhook(database, made.id),
    ):
        with pytest.raises(Altered):
            act()
    with database.read() as connection, pytest.raises(Altered):
        webhooks.read_webhook(connection, SECRET, made.id)
    assert faults(database) == [f"webhooks: the row of {made.id} does not follow from the installation's journal"]
    put_back(database, after)
    assert (shown(database), faults(database)) == ([changed], [])


@pytest.mark.parametrize("erased", [False, True])
def test_a_deleted_webhook_that_is_put_back_is_not_used(database: Database, erased: bool) -> None:
    made = make_webhook(database)
    before = row_of(database, made.id)
    remove_webhook(database, made.id)
    assert faults(database) == []
    assert before["url"] not in str(row_of(database, made.id))
    if erased:
        erase(database)
        assert faults(database) == []
    put_back(database, before)
    assert (used(database), shown(database)) == ([], [])
    for act in (change_webhook, remove_webhook):
        with pytest.raises(NotFound):
            act(database, made.id)
    assert faults(database) == [f"webhooks: the row of {made.id} does not follow from the installation's journal"]


@pytest.mark.parametrize(
    ("deleted", "fault"),
    [
        (True, "entry 3 changes the webhook {}, which did not exist by then"),
        (False, "entry 3 gives the webhook {} an earlier secret again"),
    ],
)
def test_an_entry_that_does_not_follow_is_a_fault_and_is_not_used(
    database: Database, deleted: bool, fault: str
) -> None:
    """As servers wrote them that began changes with a row that somebody put back."""
    made = make_webhook(database)
    before = row_of(database, made.id)
    if deleted:
        remove_webhook(database, made.id)
    else:
        change_webhook(database, made.id, generation=2)
    content: dict[str, object] = {"id": made.id, "generation": 1, "seal": before["seal"]}
    database.write(
        lambda connection: installation_journal.append(
            connection, SECRET, "webhook_changed", content, actor=None, at=clock.now()
        ),
        is_committed=never,
    )
    put_back(database, before)
    assert used(database) == []
    assert faults(database)[0] == f"webhooks: {fault.format(made.id)}"


def test_only_committed_entries_are_kept_and_only_later_ones_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_webhook(database)
    assert shown(database) == [made]
    kept = database.seen_webhooks
    changed = change_webhook(database, made.id, name="renamed")
    assert database.seen_webhooks is kept
    begun, read = list[int](), installation_journal.read_after

    def counted(connection: Connection, secret: Secret, last: Head) -> Any:
        begun.append(last.seq)
        return read(connection, secret, last)

    monkeypatch.setattr(installation_journal, "read_after", counted)
    with database.read() as older:
        older.execute(text("SELECT count(*) FROM installation_journal")).all()
        again = change_webhook(database, made.id, name="renamed again")
        assert shown(database) == [again]
        assert webhooks.read_webhook(older, SECRET, made.id) == changed
    assert shown(database) == [again]
    assert begun == [1, 1, 0, 3]


def test_no_webhook_is_made_to_look_deleted(database: Database) -> None:
    made, other = make_webhook(database), make_webhook(database)
    remove_webhook(database, other.id)
    columns = {name: value for name, value in row_of(database, other.id).items() if name not in ("id", "created_at")}
    run(database, f"UPDATE webhooks SET {', '.join(f'{name} = :{name}' for name in columns)}", **columns)
    assert faults(database) == [f"webhooks: the row of {made.id} does not follow from the installation's journal"]


def test_a_missing_row_is_found(database: Database) -> None:
    made = make_webhook(database)
    run(database, "DELETE FROM webhooks")
    assert faults(database) == [f"webhooks: the webhook {made.id} is missing"]


def test_a_key_that_the_journal_does_not_know_makes_none(database: Database) -> None:
    at, unknown = clock.now(), Actor("eve", "no such key")
    with pytest.raises(Unauthenticated):
        database.write(
            lambda connection: webhook_changes.make(
                connection, SECRET, {}, limited=False, at=at, by=unknown, seen=None
            ),
            is_committed=lambda *_: False,
        )


def test_there_are_at_most_so_many(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_changes, "MOST", 2)
    first = make_webhook(database)
    make_webhook(database)
    with pytest.raises(Conflict, match="2 webhooks"):
        make_webhook(database)
    remove_webhook(database, first.id)
    make_webhook(database)


def test_one_principal_makes_at_most_so_many(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_changes, "MOST_OF_ONE", 2)
    first = make_webhook(database, "ann")
    make_webhook(database, "ann")
    with pytest.raises(Conflict, match="you have made 2 webhooks"):
        make_webhook(database, "ann")
    make_webhook(database, "bob")
    remove_webhook(database, first.id)
    make_webhook(database, "ann")


def test_limited_keys_leave_places_to_others(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_changes, "MOST_BEFORE_LIMITED", 2)
    make_webhook(database, "ann", limited=True)
    make_webhook(database, "bob", limited=True)
    with pytest.raises(Conflict, match="limited to accounts"):
        make_webhook(database, "eve", limited=True)
    make_webhook(database, "eve")


def test_an_unknown_webhook_is_not_found(database: Database) -> None:
    make_webhook(database)
    for act in (remove_webhook, change_webhook):
        with pytest.raises(NotFound):
            act(database, "unknown")


def test_signatures_are_those_of_standard_webhooks(database: Database) -> None:
    """By both secrets for a day after a rotation, and by the new one from then on."""
    made = make_webhook(database)
    old = webhooks.secret_of(SECRET, made.id, 1)
    at = clock.now()
    rotated = change_webhook(database, made.id, generation=2, rotated_at=at)
    new = webhooks.secret_of(SECRET, made.id, 2)
    later = clock.later(at, webhooks.OVERLAP)
    assert [_signed(made, old, at), _signed(rotated, new, at), _signed(rotated, old, at)] == [True] * 3
    assert [_signed(rotated, new, later), _signed(rotated, old, later)] == [True, False]
    assert len({old, new, webhooks.secret_of(SECRET, "another", 1)}) == 3


def _signed(webhook: WebhookRecord, secret: str, at: str) -> bool:
    """Return whether a message is signed by a secret, as a receiver checks it."""
    code = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), b"m1.1700000000.{}", hashlib.sha256).digest()
    header = webhooks.signatures(SECRET, webhook, "m1", 1_700_000_000, "{}", at)
    return f"v1,{base64.b64encode(code).decode()}" in header.split(" ")


def test_the_secret_is_nowhere_in_the_database(database: Database) -> None:
    made = make_webhook(database)
    secret = webhooks.secret_of(SECRET, made.id, 1)
    with database.read() as connection:
        for table in ("webhooks", "installation_journal"):
            stored = str(connection.execute(text(f"SELECT * FROM {table}")).all())
            assert secret not in stored
            assert secret.removeprefix("whsec_") not in stored
