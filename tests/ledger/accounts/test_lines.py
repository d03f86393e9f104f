"""Accounts under others: one transaction charges the whole line, and a refusal names whose cap failed."""

import contextlib
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text

from service.errors import AccountClosed, Altered, BudgetExceeded, Conflict, Fault, InvalidInput, NotFound, Overrun
from service.ledger.accounts import account_opening, lines
from service.ledger.accounts.account_opening import NewAccount
from service.ledger.accounts.budgets import read_budget
from service.ledger.accounts.lines import MAX_DEPTH
from service.ledger.releases import charges, preparation
from service.ledger.releases.preparation import NewRelease
from service.ledger.spending import spending
from service.ledger.storage.database import Database, open_database
from service.privacy.accounting.privacy_filter import Definition
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring
from tests.ledger.charging import (
    ANN,
    SECRET,
    account_of,
    carry_out,
    change_account,
    charge,
    commit,
    entries_of,
    left,
    open_account,
    prepared,
    reserve,
    void,
)
from tests.ledger.writing import as_owner, never
from tests.postgres_server import libpq_url, session

_TENTH = {"type": "geometric", "epsilon": "0.1"}


def _family(database: Database) -> None:
    """An agency with two programmes, one of which has a product."""
    open_account(database, "agency", definition="pure", epsilon="1")
    open_account(database, "census", parent="agency", definition="pure", epsilon="0.7")
    open_account(database, "survey", parent="agency", definition="zcdp", rho="1")
    open_account(database, "product", parent="census", definition="approximate", epsilon="1", delta="1e-6")


def _close(database: Database, name: str, state: str = "closed") -> None:
    change_account(database, name, state)


def _refused(database: Database, plan: dict[str, Any], name: str) -> BudgetExceeded:
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, plan, name=name)
    return refused.value


def test_a_charge_is_in_every_account_of_its_line_and_in_no_other(database: Database) -> None:
    _family(database)
    (registered,) = charge(database, _TENTH, name="product")
    for name, epsilon in (("agency", "9/10"), ("census", "6/10")):
        assert left(database, name) == Fraction(epsilon)
        account = account_of(database, name)
        assert account.releases == 1
        entry = entries_of(database, name)[-1]
        content = json.loads(entry.body)["content"]
        assert (entry.kind, entry.release_id) == ("committed", registered.id)
        assert content["origin"] == {"account": "product", "seq": 2}
        assert (content["price"]["epsilon"], content["price"]["quanta"]) == ("1/10", [])
        with database.read() as connection:
            assert sum(spending.counts(connection, account)[0].values()) == 1
    own = json.loads(entries_of(database, "product")[-1].body)["content"]
    assert "origin" not in own
    assert len(own["price"]["quanta"]) == 250  # each account's price is in what its own definition needs
    assert len(entries_of(database, "survey")) == 1
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM releases")).scalar_one() == 1


def test_a_refusal_names_the_account_whose_cap_failed(database: Database) -> None:
    _family(database)
    refusal = _refused(database, {"type": "geometric", "epsilon": "0.8"}, "product")
    assert [(one.account, one.definition, one.cap) for one in refusal.failures] == [("census", "pure", "epsilon")]
    charge(database, {"type": "geometric", "epsilon": "0.6"}, name="census")
    refusal = _refused(database, {"type": "geometric", "epsilon": "0.5"}, "product")
    assert refusal.failures == (
        Overrun("census", "pure", "epsilon", Fraction("0.5"), Fraction("0.1")),
        Overrun("agency", "pure", "epsilon", Fraction("0.5"), Fraction("0.4")),
    )
    assert refusal.noise_multiplier() == 5  # for the census; the agency would fit at 1.25
    assert "account 'census' has" in str(refusal)
    for name in ("agency", "census"):
        assert account_of(database, name).releases == 1


def test_every_cap_of_an_account_that_fails_is_named(database: Database) -> None:
    open_account(database, definition="pure", epsilon="1", delta="1e-9")
    plan = {"type": "declared", "epsilon": "2", "delta": "1e-8", "reference": "r"}
    refusal = _refused(database, plan, "people")
    assert [(one.cap, str(one.requested), str(one.remaining)) for one in refusal.failures] == [
        ("epsilon", "2", "1"),
        ("delta", "1/100000000", "1/1000000000"),
    ]
    assert refusal.noise_multiplier() is None


def test_a_refusal_is_an_entry_of_the_account_that_was_asked(database: Database) -> None:
    _family(database)
    before = {name: account_of(database, name) for name in ("agency", "census", "product")}
    _refused(database, {"type": "geometric", "epsilon": "0.8", "tags": ["t"]}, "product")
    assert account_of(database, "agency") == before["agency"]
    assert account_of(database, "census") == before["census"]
    entry = entries_of(database, "product")[-1]
    assert (entry.kind, entry.release_id) == ("refused", None)
    assert json.loads(entry.body)["content"] == {
        "name": "a release",
        # sha256 of {"epsilon":"0.8","tags":["t"],"type":"geometric"}
        "plan_digest": "28689d49b5aa10ae3d5cc7ed7e77ec98ea2153ea179cf18a877dd5b124602aac",
        "account": None,  # of another account the journal says nothing: not all who read it may read that one
        "definition": None,
        "cap": None,
        "requested": None,
        "remaining": None,
    }
    open_account(database, "alone", definition="pure", epsilon="0.7")
    _refused(database, {"type": "geometric", "epsilon": "0.8"}, "alone")
    own = json.loads(entries_of(database, "alone")[-1].body)["content"]
    assert (own["account"], own["definition"], own["cap"]) == ("alone", "pure", "epsilon")
    assert (own["requested"], own["remaining"]) == ("4/5", "7/10")
    with pytest.raises(BudgetExceeded):
        charges.dry_run(database, prepared(database, {"type": "geometric", "epsilon": "0.8"}, name="product"))
    assert entries_of(database, "product")[-1] == entry


def test_a_closed_account_closes_nothing_but_the_way_through_it(database: Database) -> None:
    _family(database)
    (held, drawn) = reserve(database, _TENTH, _TENTH, name="product")
    _close(database, "census")
    assert account_of(database, "product").state == "open"
    for name in ("product", "census"):
        with pytest.raises(AccountClosed) as refused:
            charge(database, _TENTH, name=name)
        assert refused.value.account == "census"
    charge(database, _TENTH, name="agency")
    commit(database, held, "product")
    void(database, drawn, "product")
    _close(database, "product")
    with pytest.raises(AccountClosed) as refused:
        charge(database, _TENTH, name="product")
    assert refused.value.account == "product"
    _close(database, "census", "open")
    _close(database, "product", "open")
    charge(database, _TENTH, name="product")
    assert left(database, "census") == Fraction(1, 2)


def test_settling_reaches_the_whole_line(database: Database) -> None:
    _family(database)
    opened = {name: account_of(database, name) for name in ("agency", "census", "product")}
    one, other = reserve(database, _TENTH, {"type": "geometric", "epsilon": "1/7"}, name="product")
    void(database, other, "product")
    commit(database, one, "product")
    for name, before in opened.items():
        kinds = [entry.kind for entry in entries_of(database, name)]
        assert kinds == ["account_opened", "reserved", "reserved", "voided", "committed"]
        account = account_of(database, name)
        assert (account.totals.epsilon.finite, account.releases) == (Fraction(1, 10), 1)
        assert before.totals.epsilon.finite == 0


def test_an_account_above_can_ask_for_approval(database: Database) -> None:
    """By the size in its own definition: an epsilon of 0.1 is less than 0.02 of its rho."""
    open_account(database, "agency", definition="zcdp", rho="1", approval_above="0.02")
    open_account(database, "census", parent="agency", definition="pure", epsilon="1", approval_above="0.5")
    states = [charge(database, plan, name="census")[0].state for plan in (_TENTH, _TENTH | {"epsilon": "0.3"})]
    assert states == ["committed", "proposed"]
    assert [entry.kind for entry in entries_of(database, "agency")] == ["account_opened", *states]


def test_a_parent_must_be_like_its_child(database: Database) -> None:
    open_account(database, "agency")
    budget = read_budget({"definition": "pure", "epsilon": "1"})
    for unit, relation, parent in (
        ("household", Neighbouring.ADD_REMOVE, "agency"),
        ("person", Neighbouring.REPLACE_ONE, "agency"),
        ("person", Neighbouring.ADD_REMOVE, "nobody"),
        ("person", Neighbouring.ADD_REMOVE, "child"),
    ):
        new = NewAccount("child", unit, relation, "", budget, parent)
        with pytest.raises(InvalidInput) as refused:
            carry_out(database, account_opening.open_account(database, ANN, new))
        assert [fault.pointer for fault in refused.value.faults] == ["/parent"]
    _close(database, "agency")
    with pytest.raises(AccountClosed):
        open_account(database, "child", parent="agency")
    with database.read() as connection:
        assert connection.execute(text("SELECT name FROM accounts")).scalars().all() == ["agency"]


def _line(database: Database, depth: int) -> list[str]:
    """Accounts one under the other; by name the line is not in order, by id it is."""
    names = [f"{'zyxwvutsr'[number]}-account" for number in range(depth)]
    for number, name in enumerate(names):
        open_account(database, name, parent=names[number - 1] if number else None, definition="pure", epsilon="5")
    return names


def test_a_line_has_at_most_eight_accounts(database: Database) -> None:
    names = _line(database, MAX_DEPTH)
    charge(database, _TENTH, name=names[-1])
    assert [left(database, name) for name in names] == [Fraction(49, 10)] * 8
    with pytest.raises(InvalidInput) as refused:
        open_account(database, "ninth", parent=names[-1])
    assert refused.value.faults[0].pointer == "/parent"


def _execute(database: Database, statement: str) -> None:
    database.write(lambda connection: connection.execute(text(statement)), is_committed=lambda *_: False)


def test_the_database_itself_refuses_a_line_that_cannot_be(database: Database) -> None:
    names = _line(database, MAX_DEPTH)
    row = (
        f"INSERT INTO accounts SELECT {MAX_DEPTH + 1}"
        + ", 'new', {unit}, {relation}, '', budget, admission, totals, state, created_at,"
    )
    row += " head_seq, head_hash, {parent}, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"
    row += " FROM accounts WHERE name = '{name}'"
    like = {"unit": "unit", "relation": "neighbouring", "parent": "id", "name": names[0]}
    wrong: list[dict[str, str]] = [
        {"name": names[-1]},
        {"unit": "'household'"},
        {"relation": "'replace_one'"},
        {"parent": f"{MAX_DEPTH + 1}"},
        {"parent": f"{MAX_DEPTH + 2}"},
    ]
    for fault in wrong:
        statement = row.format_map(like | fault)
        with pytest.raises((Altered, RuntimeError, Conflict)):
            _execute(database, statement)
    _execute(database, row.format_map(like))
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM accounts")).scalar_one() == MAX_DEPTH + 1


def test_a_charge_runs_as_many_statements_in_a_long_line_as_alone(database: Database) -> None:
    names = _line(database, MAX_DEPTH)
    open_account(database, "alone", definition="pure", epsilon="5")
    statements: list[str] = []
    event.listen(database.pools.writer, "before_cursor_execute", lambda *given: statements.append(given[2]))
    counts = []
    for name in ("alone", names[-1], "alone", names[-1]):
        statements.clear()
        charge(database, _TENTH, name=name)
        counts.append([statement.split()[0] for statement in statements if "busy_timeout" not in statement])
    assert counts[2] == counts[3] == ["BEGIN", "SELECT", "INSERT", "INSERT", "INSERT", "UPDATE"]


def test_siblings_fill_their_parent_exactly(database: Database) -> None:
    """Sixteen threads through four children of one account, all of them and the account with reservations too."""
    open_account(database, "agency", definition="pure", epsilon="2")
    for child in "abcd":
        open_account(database, child, parent="agency", definition="pure", epsilon="1")
        open_account(database, f"{child}{child}", parent=child, definition="pure", epsilon="0.9")

    def attempt(number: int) -> str:
        child = "abcd"[number % 4] * (1 + number // 4 % 2)
        try:
            if number % 3:
                charge(database, _TENTH, name=child)
            else:
                (release,) = reserve(database, _TENTH, name=child)
                (commit if number % 2 else void)(database, release, child)
                return "committed" if number % 2 else "voided"
        except BudgetExceeded:
            return "refused"
        return "committed"

    with ThreadPoolExecutor(16) as threads:
        outcomes = Counter(threads.map(attempt, range(48)))
    agency = account_of(database, "agency")
    assert agency.totals.epsilon.finite == Fraction(outcomes["committed"], 10) <= 2
    assert agency.releases == outcomes["committed"]
    children = [account_of(database, child) for child in "abcd"]
    assert sum(child.totals.epsilon.finite for child in children) == agency.totals.epsilon.finite
    assert all(child.totals.epsilon.finite <= 1 for child in children)
    for name in ("agency", *"abcd", *(2 * child for child in "abcd")):
        entries_of(database, name)
    while outcomes["committed"] < 20:
        charge(database, _TENTH, name="agency")
        outcomes["committed"] += 1
    _refused(database, {"type": "geometric", "epsilon": "1e-20"}, "agency")


def test_a_line_that_another_database_brought_is_charged_as_it_is_there(database: Database) -> None:
    """As when a backup is restored under a running server, in which the account is under another one."""
    open_account(database, "agency", definition="pure", epsilon="0.05")
    open_account(database, "people", parent="agency", definition="pure", epsilon="1")
    stale = lines.Line(
        "people", (account_of(database).id,), Neighbouring.ADD_REMOVE, Definition.ZCDP, ((),), (None,), (None,)
    )
    before = [replace(release, line=stale) for release in prepared(database, _TENTH)]
    with pytest.raises(NotFound):
        carry_out(database, charges.register(ANN, [replace(before[0], prices=before[0].prices[-1:])]))
    assert account_of(database).releases == 0
    assert _refused(database, _TENTH, "people").failures[0].account == "agency"


def test_an_account_whose_row_is_gone_is_not_one_that_never_was(database_url: str, database: Database) -> None:
    """The attack: a row is taken away for a moment, so that a pipeline goes on as if there were no such account."""
    open_account(database)
    (charge,) = prepared(database, _TENTH)
    with as_owner(database_url) as owner:
        owner.execute(text("DELETE FROM accounts"))
    for read in (lines.caps_of, lines.budget_of):
        with pytest.raises(Altered):
            read(database, charge.line)
    for lock in (lambda c: lines.lock_line(c, charge.line, None), lambda c: lines.lock_account(c, charge.line)):
        with pytest.raises(Altered):
            database.write(lock, is_committed=never)


def test_a_charge_is_bounded_by_the_rows_that_it_writes(database: Database) -> None:
    """Each account of a line has an entry of each release, and a long one where it looks at 250 orders."""
    open_account(database, "agency", definition="approximate", epsilon="3", delta="1e-6")
    open_account(database, "programme", parent="agency", definition="approximate", epsilon="3", delta="1e-6")
    open_account(database, "plain", definition="pure", epsilon="3")
    open_account(database, "below", parent="plain", definition="pure", epsilon="3")
    batch = {"agency": 6_700, "programme": 4_000, "plain": 13_500, "below": 10_400}
    for name, most in batch.items():
        _prepare(database, name, _TENTH, number=most)
        refused = _too_long(database, name, _TENTH, number=most + 200)
        assert refused.pointer == "/releases"
        assert f"number of releases {most + 200} (reserved 0), tags 0, distinct subplans 1," in refused.detail
    tagged = {"type": "sequence", "parts": [_TENTH | {"tags": [f"{k}-{j}" for j in range(64)]} for k in range(4_000)]}
    refused = _too_long(database, "plain", tagged)
    assert refused.pointer == "/plan"
    assert "got an estimated 2.80: " in refused.detail
    assert "releases 1 (reserved 0), tags 256000, distinct subplans 4000," in refused.detail
    for depth in range(6):
        open_account(
            database,
            f"below {depth}",
            parent=f"below {depth - 1}" if depth else "below",
            definition="pure",
            epsilon="3",
        )
    unlike = {"type": "sequence", "parts": [{"type": "geometric", "scale": str(k)} for k in range(1, 5_001)]}
    _prepare(database, "below 5", unlike, number=4)
    assert "distinct subplans 25000," in _too_long(database, "below 5", unlike, number=5).detail
    named = {"type": "sequence", "parts": [_TENTH | {"name": f"{k:0100}"} for k in range(1_000)]}
    assert "distinct subplans 1," in _too_long(database, "plain", named, number=600).detail


def _prepare(database: Database, name: str, document: dict[str, Any], *, number: int = 1) -> None:
    new = NewRelease("a release", read_plan(document), document, (), Fraction(1, 10**10), "/plan")
    preparation.prepare(database, name, [new] * number)


def _too_long(database: Database, name: str, document: dict[str, Any], *, number: int = 1) -> Fault:
    with pytest.raises(InvalidInput, match="expected at most 2 seconds of writing, got an estimated") as refused:
        _prepare(database, name, document, number=number)
    (fault,) = refused.value.faults
    return fault


def test_one_session_of_a_server_waits_for_an_account_and_the_others_behind_it(postgresql_url: str) -> None:
    """A principal with many requests at one server would otherwise stand in front of those of all other servers."""
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND state = %s AND query LIKE %s"
    )
    number, end, waiting, begun = 6, time.monotonic() + 60, 0, 0
    with (
        contextlib.closing(open_database(postgresql_url)) as database,
        psycopg.connect(libpq_url(postgresql_url)) as other,
    ):
        database.secret = SECRET
        open_account(database, "people")
        other.execute("SELECT 1 FROM accounts FOR UPDATE")
        with session(postgresql_url) as watcher, ThreadPoolExecutor(number) as pool:

            def count(state: str, query: str) -> int:
                (found,) = watcher.execute(sessions, (state, query)).fetchone() or (0,)
                return int(found)

            charged = [pool.submit(charge, database, _TENTH) for _ in range(number)]
            while waiting + begun < number and time.monotonic() < end:
                time.sleep(0.01)
                waiting, begun = count("active", "%FOR UPDATE%"), count("idle in transaction", "BEGIN%")
            other.rollback()
            assert [len(future.result(60)) for future in charged] == [1] * number
        assert (waiting, begun) == (1, number - 1)
        assert account_of(database, "people").releases == number
