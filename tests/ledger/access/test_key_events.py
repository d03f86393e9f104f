"""The keys that a process keeps from the installation's journal are those that the whole journal gives."""

import pickle
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from service.errors import Unavailable
from service.ledger.access.key_events import SeenKeys, keys_of, see_keys
from service.ledger.access.key_records import ROLES, KeyRecord
from service.ledger.access.keys import create_key, revoke_key, rotate_key
from service.ledger.installation import installation_journal
from service.ledger.journal.journal import Actor
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from tests.ledger.charging import SECRET, asking, change_account, open_account
from tests.ledger.keys import make_key, revoke, rotate
from tests.ledger.writing import never, unprotected

_LAST = "DELETE FROM installation_journal WHERE seq = (SELECT max(seq) FROM installation_journal)"


def _whole(connection: Connection) -> SeenKeys:
    """Read the whole journal, without what the process keeps."""
    return SeenKeys(installation_journal.head(connection), dict(keys_of(connection, SECRET)))


def _in_journal(database: Database) -> SeenKeys:
    with database.read() as connection:
        return _whole(connection)


@pytest.fixture
def entries_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the entries of the installation's journal that were read and checked."""
    numbers: list[int] = []
    checked = installation_journal._checked

    def check(secret: Secret, previous: Any, entry: Any, seal: str) -> dict[str, Any]:
        numbers.append(entry.seq)
        return checked(secret, previous, entry, seal)

    monkeypatch.setattr(installation_journal, "_checked", check)
    return numbers


def _act(connection: Connection, chosen: random.Random, known: list[KeyRecord], seen: SeenKeys | None) -> None:
    """Make, rotate or revoke a key, or write an entry about no key, as the operator or as a principal."""
    at = clock.now()
    valid = [key for key in known if key.revoked_at is None and (key.expires_at is None or key.expires_at > at)]
    stewards = [key for key in valid if key.role == "steward"]
    maker = chosen.choice([None, *stewards])
    by = None if maker is None else Actor(maker.name, maker.id)
    rotated = {key.rotated_from for key in known}
    old = [key for key in valid if key.id not in rotated]
    action = chosen.choice(["make", "make", "rotate", "revoke", "other"])
    if action == "rotate" and old:
        overlap = timedelta(hours=chosen.choice([0, 1]))
        rotate_key(connection, SECRET, chosen.choice(old).id, overlap=overlap, at=at, by=by, seen=seen)
    elif action == "revoke" and known:
        revoke_key(connection, SECRET, chosen.choice(known).id, at=at, by=by, seen=seen)
    elif action == "other":
        installation_journal.append(connection, SECRET, "mark_acknowledged", {"mark": None}, actor=None, at=at)
    else:
        given: dict[str, Any] = {"name": chosen.choice(["ann", "bob", "eve"]), "role": chosen.choice(ROLES)}
        given["accounts"] = chosen.choice([None, ["a"], ["a", "b"]])
        given["expires_at"] = chosen.choice([None, clock.later(at, timedelta(days=1))])
        create_key(connection, SECRET, at=at, by=by, seen=seen, **given)


@pytest.mark.parametrize("seed", range(4))
def test_the_kept_keys_are_those_of_the_whole_journal(database: Database, replica: Database, seed: int) -> None:
    """After random acts of two servers: before a lock, under it, and after acts that were rolled back."""
    chosen = random.Random(seed)
    for _ in range(20):
        server, fails = chosen.choice([database, replica]), chosen.random() < 0.3
        seen = see_keys(server, SECRET)
        assert seen == _in_journal(server)
        if chosen.random() < 0.3:  # after what was seen
            make_key(chosen.choice([database, replica]), "late", "steward")
        before = _in_journal(server)

        def work(connection: Connection, *, server: Database = server, fails: bool = fails) -> None:
            _act(connection, chosen, list(before.known.values()), seen)  # noqa: B023 - called at once
            assert keys_of(connection, SECRET, seen) == _whole(connection).known  # noqa: B023
            assert see_keys(server, SECRET) == before, "nothing is kept that is not committed"  # noqa: B023
            if fails:
                raise ZeroDivisionError

        if fails:
            with pytest.raises(ZeroDivisionError):
                server.write(work, is_committed=never)
        else:
            server.write(work, is_committed=never)
        for one in (database, replica):
            if chosen.random() < 0.5:
                assert see_keys(one, SECRET) == _in_journal(one)
    assert see_keys(database, SECRET) == see_keys(replica, SECRET) == _in_journal(database)


def test_only_later_entries_are_read(database: Database, replica: Database, entries_read: list[int]) -> None:
    for _ in range(3):
        make_key(database)
    entries_read.clear()
    see_keys(replica, SECRET)
    assert entries_read == [1, 2, 3]
    see_keys(replica, SECRET)
    assert entries_read == [1, 2, 3]
    for _ in range(2):
        make_key(database)
    see_keys(replica, SECRET)
    assert entries_read == [1, 2, 3, 4, 5]


def test_an_act_of_a_steward_reads_no_entry_again(database: Database, entries_read: list[int]) -> None:
    eve, _ = make_key(database, role="steward")
    open_account(database)
    see_keys(database, SECRET)
    entries_read.clear()
    change_account(database, "people", "closed", asking("eve", key_id=eve.id))
    assert entries_read == []


def test_a_kept_key_takes_little_memory_however_many_accounts_it_lists(database: Database) -> None:
    names = [f"{number:0100}" for number in range(1000)]
    key, _ = make_key(database, accounts=names)
    seen = see_keys(database, SECRET)
    assert seen is not None
    assert seen.known[key.id].accounts == (), "it reaches no account, should anybody ask"
    assert len(pickle.dumps(seen)) < 1000


def _fork(database: Database) -> None:
    unprotected(database, "installation_journal", _LAST)
    make_key(database, "another")


def _go_back(database: Database) -> None:
    unprotected(database, "installation_journal", _LAST)


def _go_back_to_nothing(database: Database) -> None:
    unprotected(database, "installation_journal", "DELETE FROM installation_journal")


@pytest.mark.parametrize("look", ["before a lock", "under it"])
@pytest.mark.parametrize("attack", [_go_back, _fork, _go_back_to_nothing])
def test_a_journal_that_was_set_back_stops_a_server_that_kept_more(
    database: Database, replica: Database, attack: Callable[[Database], None], look: str
) -> None:
    """The owner of the database puts an earlier copy in place, on which others may have built."""
    for _ in range(2):
        make_key(replica)
    seen = see_keys(database, SECRET)
    assert seen == see_keys(replica, SECRET)
    replica.seen_keys = None
    replica.newest = type(replica.newest)()  # as after a restart
    attack(replica)
    looks: dict[str, Callable[[], object]] = {
        "before a lock": lambda: see_keys(database, SECRET),
        "under it": lambda: database.write(lambda connection: keys_of(connection, SECRET, seen), is_committed=never),
    }
    with pytest.raises(Unavailable, match="the ledger lacks"):
        looks[look]()
    assert database.stopped is not None
    assert see_keys(replica, SECRET) == _in_journal(replica)


def test_entries_that_are_not_sound_are_not_kept(database: Database, entries_read: list[int]) -> None:
    make_key(database)
    before = see_keys(database, SECRET)
    copied = "INSERT INTO installation_journal SELECT seq + 1, kind, body, hash, seal FROM installation_journal"
    unprotected(database, "installation_journal", copied)
    assert see_keys(database, SECRET) is None
    assert database.seen_keys == before
    unprotected(database, "installation_journal", _LAST)
    entries_read.clear()
    assert see_keys(database, SECRET) == before
    assert entries_read == []


def test_a_revocation_elsewhere_is_seen_at_once(database: Database, replica: Database) -> None:
    eve, _ = make_key(database, role="steward")
    ann, _ = make_key(database, role="steward")
    see_keys(replica, SECRET)
    revoked = revoke(database, eve.id)
    new, _ = rotate(database, ann.id)
    seen = see_keys(replica, SECRET)
    assert seen is not None
    assert seen.known[eve.id].revoked_at == revoked.revoked_at is not None
    assert seen.known[ann.id].expires_at is not None
    assert seen.known[new.id].rotated_from == ann.id
