"""Texts of entries that the owner of the database changes for a moment: none is believed that no chain has met."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO

import pytest
from sqlalchemy import Connection, text

from service.errors import Unavailable
from service.ledger.accounts import lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import read_budget
from service.ledger.accounts.lines import Line
from service.ledger.descriptions.registry import largest_budget
from service.ledger.installation.signing import Signer
from service.ledger.journal import canonical_json, chains, journal
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.chains import BadEntry, BrokenChain
from service.ledger.journal.entries import PriceChanged
from service.ledger.journal.entry_texts import PriceKey
from service.ledger.journal.journal import Head, JournalEntry
from service.ledger.journal.replay import replayed_entries
from service.ledger.releases import charges, preparation
from service.ledger.spending.spending_history import spending_history
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification import recompute as module
from service.ledger.verification.chain_check import Audit
from service.ledger.verification.export_reader import BadExport, Reader
from service.ledger.verification.receipts import receipt_of
from service.ledger.verification.recompute import RepricedRelease, recompute
from service.ledger.verification.verify import verify
from tests.ledger.charging import (
    ANN,
    BOB,
    account_of,
    change_account,
    charge,
    entries_of,
    half_price,
    open_account,
    reserve,
    void,
)
from tests.ledger.ledgers import describe, exported

_PLAN = {"type": "geometric", "epsilon": "1/2", "name": "a"}
_DEAR = {"type": "geometric", "epsilon": "2", "name": "a"}
_BUDGET = {"definition": "pure", "epsilon": "5"}
_FORGED = "not as the service wrote it"


def _edit(connection: Connection, statement: str, **values: object) -> None:
    """Write past the triggers, as the owner of the database can, in a transaction of somebody else's."""
    if connection.dialect.name == "sqlite":
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN ('journal', 'descriptions')"
        triggers = connection.execute(text(query)).all()
        for name, _ in triggers:
            connection.execute(text(f"DROP TRIGGER {name}"))
        connection.execute(text(statement), values)
        for _, sql in triggers:
            connection.execute(text(sql))
    else:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(statement), values)
        connection.execute(text("SET LOCAL session_replication_role = origin"))


def _put(connection: Connection, entry: JournalEntry) -> None:
    where = "UPDATE journal SET kind = :kind, body = :body, hash = :hash WHERE account_id = 1 AND seq = :seq"
    _edit(connection, where, seq=entry.seq, kind=entry.kind, body=entry.body, hash=entry.hash)


def _put_down(database: Database, entry: JournalEntry) -> None:
    database.write(lambda connection: _put(connection, entry), is_committed=lambda *_: False)


def _write(database: Database, statement: str, **values: object) -> None:
    database.write(lambda connection: _edit(connection, statement, **values), is_committed=lambda *_: False)


def _retold(database: Database, seq: int, old: str, new: str) -> tuple[JournalEntry, JournalEntry]:
    """An entry, and another text of it with the hash that fits it there."""
    *_, before, entry = entries_of(database)[:seq]
    assert old in entry.body
    body = entry.body.replace(old, new)
    return entry, entry._replace(body=body, hash=journal.entry_hash(before.hash, body))


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[JournalEntry, JournalEntry], None]:
    """Have an entry say something else from the moment its account is locked until a chain is followed there."""

    def forge(true: JournalEntry, other: JournalEntry) -> None:
        lock, chained, forged = lines.lock_account, chains.chained, list[Connection]()

        def locked(connection: Connection, line: Line) -> AccountRecord:
            account = lock(connection, line)
            _put(connection, other)
            forged.append(connection)
            return account

        def met(connection: Connection, *given: Any) -> Iterator[JournalEntry]:
            if forged:
                _put(forged.pop(), true)
            return chained(connection, *given)

        monkeypatch.setattr(lines, "lock_account", locked)
        monkeypatch.setattr(chains, "chained", met)

    return forge


@pytest.mark.parametrize("of_release", [False, True])
def test_words_that_stand_there_for_a_moment_are_not_journalled(
    database: Database, between: Callable[[JournalEntry, JournalEntry], None], *, of_release: bool
) -> None:
    open_account(database, **_BUDGET)
    (charged,) = charge(database, _PLAN)
    release = charged.id if of_release else None
    describe(database, "people", release, name="people", description="old")
    charge(database, _PLAN)
    between(*_retold(database, 3, '"name":"people"', '"name":"others"'))
    describe(database, "people", release, description="new")
    said = json.loads(entries_of(database)[-1].body)
    assert (said["kind"], said["release"]) == ("described", release)
    assert said["content"]["metadata"] == {"name": "people", "description": "new"}


def test_a_proposers_name_that_stands_there_for_a_moment_approves_nothing(
    database: Database, between: Callable[[JournalEntry, JournalEntry], None]
) -> None:
    open_account(database, approval_above="0.5", **{**_BUDGET, "epsilon": "1"})
    change = read_budget(_BUDGET)

    def ask() -> bool:
        return change_account(database, "people", change).waits

    assert ask()
    charge(database, _PLAN)
    between(*_retold(database, 2, '"actor":"ann"', '"actor":"bob"'))
    assert ask()
    assert account_of(database).budget.cap == 1
    assert [entry.kind for entry in entries_of(database)] == ["account_opened", "change_proposed", "committed"]


@pytest.mark.parametrize("of_release", [False, True])
def test_words_whose_row_is_gone_are_kept(database: Database, *, of_release: bool) -> None:
    """Rows only find descriptions: an edit that finds none follows the journal from the first entry that can be one."""
    open_account(database, **_BUDGET)
    (charged,) = charge(database, _PLAN)
    release = charged.id if of_release else None
    describe(database, "people", release, name="people")
    _write(database, "DELETE FROM descriptions")
    describe(database, "people", release, description="new")
    with database.read() as connection:
        bodies = connection.execute(text("SELECT body FROM journal WHERE kind = 'described' ORDER BY seq")).scalars()
        said = json.loads(bodies.all()[-1])
    assert said["content"]["metadata"] == {"name": "people", "description": "new"}


def test_a_decision_that_is_filed_under_another_kind_is_missed(database: Database) -> None:
    """Hidden from queries by its kind, it would let what it decided wait again, or a larger budget be forgotten."""
    open_account(database, approval_above="0.5", **{**_BUDGET, "epsilon": "1"})
    change = read_budget(_BUDGET)
    for request in (ANN, BOB):
        change_account(database, "people", change, request)
    charge(database, _PLAN)
    with database.read() as connection:
        assert largest_budget(connection, account_of(database)).cap == 5
    decision = entries_of(database)[2]
    assert decision.kind == "budget_changed"
    _put_down(database, decision._replace(kind="refused"))
    account = account_of(database)
    assert account.proposed is not None
    kinds = ("account_opened", "committed")
    readers: tuple[Callable[[Connection], object], ...] = (
        lambda connection: largest_budget(connection, account),
        lambda connection: spending_history(connection, account, 10),
        lambda connection: list(replayed_entries(connection, account, AccountState("people"), 4, kinds)),
    )
    for read in readers:
        with database.read() as connection, pytest.raises(Unavailable, match=_FORGED) as refused:
            read(connection)
        assert "entry 3 of account 1" in str(refused.value.for_operator)
    with pytest.raises(Unavailable, match=_FORGED):
        change_account(database, "people", change, BOB)


def test_a_receipt_is_not_signed_with_an_entry_that_nobody_wrote(database: Database) -> None:
    open_account(database, **_BUDGET)
    (charged,) = charge(database, _PLAN)
    true, forged = _retold(database, 2, '"actor":"ann"', '"actor":"eve"')
    for other in (forged, forged._replace(hash=true.hash)):
        _put_down(database, other)
        with database.read() as connection, pytest.raises(Unavailable, match=_FORGED):
            receipt_of(connection, account_of(database), charged.id, clock.now())
    _put_down(database, true)
    with database.read() as connection:
        assert receipt_of(connection, account_of(database), charged.id, clock.now())["entry"]["actor"] == "ann"


def _family(database: Database) -> list[str]:
    """An agency whose whole budget releases of an account under it took; the ids of these."""
    open_account(database, "agency", definition="pure", epsilon="1")
    open_account(database, "census", parent="agency", definition="pure", epsilon="100")
    return [charge(database, _PLAN, name="census")[0].id for _ in range(2)]


@contextmanager
def _older(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have an older accountant, who asks for half of what is right."""
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "price", half_price)
        patch.setattr(charges, "ACCOUNTANT", "0")
        yield


@pytest.mark.parametrize("hashed", [False, True])
def test_nothing_is_priced_again_by_an_entry_that_nobody_wrote(database: Database, *, hashed: bool) -> None:
    """An entry above that stated a greater price would have the service itself give that much back."""
    _family(database)
    open_account(database, "model", **_BUDGET)
    charge(database, _DEAR, name="model")
    dear = json.loads(entries_of(database, "model")[1].body)["content"]["price"]
    before, true = entries_of(database, "agency")[:2]
    said = json.loads(true.body)
    said["content"]["price"] = dear
    body = canonical_json.canonical(said)
    forged = true._replace(body=body, hash=journal.entry_hash(before.hash, body) if hashed else true.hash)
    _put_down(database, forged)
    for apply in (False, True):
        with pytest.raises(Unavailable, match=_FORGED):
            recompute(database, "agency", apply=apply)
    _put_down(database, true)
    assert account_of(database, "agency").totals.epsilon.finite == 1
    assert recompute(database, "agency", apply=True).prices == []
    assert len(entries_of(database, "agency")) == 3


def test_a_plan_that_nobody_stated_is_not_priced_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(database, **_BUDGET)
    with _older(monkeypatch):
        charge(database, _PLAN)
    assert len(recompute(database, "people", apply=True).prices) == 1
    cheap = json.dumps(_PLAN | {"epsilon": "1/100"})
    _edit_plans(database, cheap)
    with pytest.raises(Unavailable, match=_FORGED):
        recompute(database, "people", apply=True)
    assert account_of(database).totals.epsilon.finite.denominator == 2


def _edit_plans(database: Database, plan: str) -> None:
    def work(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'releases'"
            for name in connection.execute(text(query)).scalars().all():
                connection.execute(text(f"DROP TRIGGER {name}"))
        else:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("UPDATE releases SET plan = :plan"), {"plan": plan})

    database.write(work, is_committed=lambda *_: False)


def test_what_was_voided_meanwhile_is_not_priced_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row says otherwise for a moment; the entry that voided it decides."""
    open_account(database, **_BUDGET)
    with _older(monkeypatch):
        gone, kept = reserve(database, _PLAN, _PLAN)
    apply = module._apply

    def late(*given: Any) -> RepricedRelease:
        void(database, gone)
        return apply(*given)

    monkeypatch.setattr(module, "_apply", late)
    assert [release for release, *_ in recompute(database, "people", apply=True).prices] == [kept]
    entries_of(database)


def _lie(monkeypatch: pytest.MonkeyPatch, was: PriceKey) -> None:
    """Have the service write another price until now than it took away, as where it believed another text."""
    written = PriceChanged.content
    monkeypatch.setattr(PriceChanged, "content", lambda said, *_: written(replace(said, was=was)))


@pytest.mark.parametrize("above", [False, True], ids=["own", "below"])
def test_a_lie_about_an_older_price_is_found_in_the_ledger_and_in_its_export(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch, *, above: bool
) -> None:
    """Of releases of accounts below too, whose price in an account above only that one's chain says."""
    open_account(database, "agency", **_BUDGET)
    open_account(database, "census", parent="agency", **_BUDGET)
    charge(database, _PLAN, name="census")
    with _older(monkeypatch):
        charge(database, _DEAR, name="census")
    name = "agency" if above else "census"
    lie = PriceChanged.FORMS["was"].read(json.loads(entries_of(database, name)[1].body)["content"]["price"])
    _lie(monkeypatch, lie)
    recompute(database, name, apply=True)
    monkeypatch.undo()
    with database.read() as connection:
        found = verify(connection, name).first_bad
    last = account_of(database, name).head.seq
    assert found == BadEntry(last, "the release had another price")
    file = exported(database, signer)
    opened: tuple[BinaryIO, ...] = (io.BytesIO(file), _Pipe(file))
    for read in opened:
        with pytest.raises(BadExport, match="the release had another price"):
            for _ in Reader(read, signer.public_key).entries():
                pass


class _Pipe(io.BytesIO):
    """A file that is read once."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation


def test_a_true_price_until_now_is_taken_from_files_and_pipes(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, "agency", **_BUDGET)
    open_account(database, "census", parent="agency", **_BUDGET)
    with _older(monkeypatch):
        charge(database, _PLAN, name="census")
    for name in ("agency", "census"):
        assert len(recompute(database, name, apply=True).prices) == 1
        with database.read() as connection:
            assert verify(connection, name).valid
    file = exported(database, signer)
    for read in (io.BytesIO(file), _Pipe(file)):
        assert sum(entered.entry.kind == "repriced" for entered in Reader(read, signer.public_key).entries()) == 2


def test_a_price_of_another_plan_is_found_in_the_ledger_and_in_its_export(
    database: Database, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is that which this chain charged, and not one that is looked up."""
    open_account(database, **_BUDGET)
    charge(database, _PLAN)
    with _older(monkeypatch):
        charge(database, _DEAR)
    cheap = PriceChanged.FORMS["price"].read(json.loads(entries_of(database)[1].body)["content"]["price"])
    written = PriceChanged.content
    monkeypatch.setattr(PriceChanged, "content", lambda said, *_: written(replace(said, price=cheap)))
    recompute(database, "people", apply=True)
    monkeypatch.undo()
    with database.read() as connection:
        found = verify(connection, "people").first_bad
    assert found == BadEntry(account_of(database).head.seq, "the price is not that of the plan")
    file = exported(database, signer)
    opened: tuple[BinaryIO, ...] = (io.BytesIO(file), _Pipe(file))
    for read in opened:
        with pytest.raises(BadExport, match="the price is not that of the plan"):
            for _ in Reader(read, signer.public_key).entries():
                pass


def test_sums_below_zero_do_not_add_up(database: Database) -> None:
    open_account(database, **_BUDGET)
    (charged,) = charge(database, _PLAN)
    charge(database, _PLAN)
    audit = Audit("people", None, ())
    for entry in entries_of(database):
        audit.take(entry)
    audit.check_end()
    price = PriceChanged.FORMS["was"].read(json.loads(entries_of(database)[1].body)["content"]["price"])
    for _ in range(3):
        audit.chain.reprice(charged.id, price, ("0", "0", "0", "0", ()), {}, None)
    with pytest.raises(BrokenChain, match="do not add up"):
        audit.check_end()


def test_a_chain_is_followed_page_by_page_to_its_head(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "_CHAINED", 2)
    open_account(database, **_BUDGET)
    for _ in range(4):
        charge(database, _PLAN)
    stored, head = entries_of(database), account_of(database).head
    with database.read() as connection:
        for at in range(len(stored) + 1):
            before = journal.BEFORE_FIRST if at == 0 else Head(at, stored[at - 1].hash)
            assert list(chains.chained(connection, 1, before, head)) == stored[at:]
        with pytest.raises(Unavailable, match=_FORGED):
            list(chains.chained(connection, 1, head, Head(2, stored[1].hash)))
