"""Caps on tags on the ledger itself: against a model in plain fractions, and every way to set one wrongly."""

import io
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import text

from service.errors import Altered, BudgetExceeded, Conflict, InvalidInput, Unavailable
from service.ledger.accounts import account_changes, cap_changes, earlier_releases
from service.ledger.accounts.budgets import read_budget
from service.ledger.accounts.cap_changes import CapsChange
from service.ledger.accounts.caps import StatedCap, price_of_earlier
from service.ledger.accounts.earlier_releases import EarlierReleases
from service.ledger.accounts.waiting_changes import ChangedAccount
from service.ledger.idempotent_write import Operation
from service.ledger.installation.signing import Signer
from service.ledger.journal.entries import read_text
from service.ledger.releases import charges, preparation
from service.ledger.spending.spending_history import spending_history
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification.imports import rebuild
from service.ledger.verification.recompute import recompute
from service.ledger.verification.verify import verify
from service.privacy.accounting import effort, privacy_filter
from service.privacy.accounting.pricing import ACCOUNTANT
from service.privacy.accounting.privacy_filter import spent_of_cap
from service.privacy.numerics.keyed import memoised
from tests.ledger.charging import (
    ANN,
    BOB,
    account_of,
    carry_out,
    change_account,
    charge,
    commit,
    entries_of,
    half_price,
    open_account,
    prepared,
    reserve,
    set_caps,
    stated_caps,
    void,
)
from tests.ledger.ledgers import exported
from tests.ledger.writing import hold_of, put_back, run

ZCDP = {"definition": "zcdp", "rho": "1"}
TAGS = ("hispanic", "race")
UNREAD = "nothing capped"
PANEL = {"calendar": "month", "participation": {"offsets": [0, 2]}}
ANY = {"calendar": "month", "participation": {"any": 2}}
MAY = {"list": ["2026-05"]}
COUNTED_BY = pytest.mark.parametrize("periods", [None, PANEL, ANY], ids=["no periods", "offsets", "any"])


def noise(rho: str, *tags: str, **fields: Any) -> dict[str, Any]:
    return {"type": "discrete_gaussian", "rho": rho, **({"tags": list(tags)} if tags else {}), **fields}


def spent(database: Database, name: str = "people") -> dict[str, Fraction | None]:
    return {cap.tag: spent_of_cap(cap.budget, cap.weights, cap.totals) for cap in account_of(database, name).caps}


@dataclass
class Leaf:
    """A mechanism of the model: what it costs one record, and what its document says."""

    rho: Fraction
    tags: tuple[str, ...]
    reads: bool
    cells_replaced: bool

    def document(self) -> dict[str, Any]:
        return noise(
            str(self.rho),
            *self.tags,
            **({"reads": UNREAD} if self.reads else {}),
            **({"cells_replaced": 2} if self.cells_replaced else {}),
        )

    @property
    def replaced(self) -> Fraction:
        return self.rho * (2 if self.cells_replaced else 4)


@dataclass
class Model:
    """The expected count of each cap, leaf by leaf."""

    opened_with_caps: bool
    caps: dict[str, int] = field(default_factory=dict)  # by tag: the moment at which it was set
    releases: dict[str, tuple[int, list[Leaf], str]] = field(default_factory=dict)  # by id: moment, leaves, state
    moment: int = 0

    def counted(self, tag: str) -> Fraction:
        found = Fraction(0)
        for moment, leaves, state in self.releases.values():
            late = moment < self.caps[tag]
            for leaf in leaves if state in ("committed", "reserved") else ():
                promised = self.opened_with_caps and bool(leaf.tags) and not leaf.reads
                if tag in leaf.tags or (late and not promised):
                    found += leaf.replaced
        return found


class Clock:
    hours = 0

    def now(self) -> str:
        return clock.stamp(datetime(2030, 1, 1, tzinfo=UTC) + timedelta(hours=self.hours))


class Run:
    """Random operations on one account, with the model beside it."""

    def __init__(self, database: Database, time: Clock, seed: int, periods: Any) -> None:
        self.database, self.time, self.chance, self.periods = database, time, random.Random(seed), periods
        with_caps = seed % 2 == 0
        caps = {TAGS[0]: ZCDP | {"rho": "100"}} if with_caps else {}
        open_account(database, definition="zcdp", rho="1000", caps=caps, periods=periods)
        self.model = Model(with_caps, dict.fromkeys(caps, 0))

    def leaf(self) -> Leaf:
        tags = tuple(sorted(self.chance.sample((*TAGS, "state"), self.chance.randint(0, 2))))
        reads = not tags if self.model.caps else self.chance.random() < 0.1
        return Leaf(Fraction(self.chance.randint(1, 9), 700), tags, reads, self.chance.random() < 0.5)

    def step(self) -> None:
        self.model.moment += 1
        match self.chance.choice(["charge", "charge", "reserve", "reserve", "settle", "expire", "cap"]):
            case "charge":
                self.register(reserved=False)
            case "reserve":
                self.register(reserved=True)
            case "settle":
                self.settle()
            case "expire":
                self.time.hours += 2
                self.model.releases = {
                    release: (at, leaves, "expired" if state == "reserved" else state)
                    for release, (at, leaves, state) in self.model.releases.items()
                }
            case "cap":
                self.set_cap()

    def register(self, *, reserved: bool) -> None:
        leaves = [self.leaf() for _ in range(self.chance.randint(1, 3))]
        plan = {"type": "sequence", "parts": [leaf.document() for leaf in leaves]}
        for_hours = timedelta(hours=1) if reserved else None
        read = None if self.periods is None else self.chance.choice(["all", MAY, {"list": ["2026-05", "2026-07"]}])
        (one,) = charge(self.database, plan, reserve_for=for_hours, periods=read)
        self.model.releases[one.id] = self.model.moment, leaves, one.state

    def settle(self) -> None:
        held = [release for release, (_, _, state) in self.model.releases.items() if state == "reserved"]
        if held:
            release = self.chance.choice(held)
            at, leaves, _ = self.model.releases[release]
            end, state = self.chance.choice([(commit, "committed"), (void, "voided")])
            end(self.database, release)
            self.model.releases[release] = at, leaves, state

    def set_cap(self) -> None:
        tag = self.chance.choice(TAGS)
        set_caps(self.database, {tag: ZCDP | {"rho": str(100 + self.model.moment)}})
        self.model.caps.setdefault(tag, self.model.moment)

    def check(self) -> None:
        """Compare after overdue reservations have expired, which any change of the account sees to."""
        change_account(self.database, "people", account_of(self.database).budget)
        assert spent(self.database) == {tag: self.model.counted(tag) for tag in sorted(self.model.caps)}


@pytest.mark.parametrize(
    ("seed", "periods"), [*((seed, None) for seed in range(6)), (0, PANEL), (1, PANEL), (2, ANY), (3, ANY)]
)
def test_caps_count_what_a_model_counts(
    new_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch, signer: Signer, seed: int, periods: Any
) -> None:
    """A cap of an account with periods counts all releases, whatever periods they read."""
    time = Clock()
    monkeypatch.setattr(clock, "now", time.now)
    database, copy = new_database(), new_database()
    run = Run(database, time, seed, periods)
    for _ in range(25):
        run.step()
        run.check()
    entries_of(database)  # with verification, and replay to the same totals
    found = recompute(database, "people", apply=True)
    assert (found.prices, found.under_caps, found.over_caps) == ([], [], [])
    file = exported(database, signer)
    rebuild(copy, lambda: io.BytesIO(file), signer.public_key)
    assert account_of(copy) == account_of(database)
    assert exported(copy, signer) == file
    for tag in account_of(database).caps:
        with database.read() as connection:
            last = spending_history(connection, account_of(database), 1000, tag).steps
        assert (last[0].seq, last[-1].counted) == (tag.since, run.model.counted(tag.tag))


def test_two_filters_admit_what_both_admit(database: Database) -> None:
    """A release must fit the account and each cap whose tag it carries; exactly full is admitted."""
    open_account(database, caps={"hispanic": ZCDP | {"rho": "0.4"}, "race": {"definition": "pure", "epsilon": "3"}})
    charge(database, noise("0.05", "hispanic"), noise("0.1", "state"))  # 0.2 of the cap
    charge(database, {"type": "geometric", "epsilon": "0.5", "tags": ["race"], "cells_replaced": 2})
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("0.0501", "hispanic"))
    (failure,) = refused.value.failures
    assert (failure.tag, failure.definition, failure.cap) == ("hispanic", "zcdp", "rho")
    assert (str(failure.requested), str(failure.remaining)) == ("501/2500", "1/5")
    multiplier = refused.value.noise_multiplier()
    assert multiplier is not None
    assert multiplier**2 == pytest.approx(0.0501 / 0.05, rel=1e-5)
    charge(database, noise("0.05", "hispanic"))
    assert spent(database) == {"hispanic": Fraction(2, 5), "race": Fraction(1)}
    with pytest.raises(BudgetExceeded) as both:
        charge(database, noise("0.9", "hispanic", "race"))
    assert [failure.tag for failure in both.value.failures] == [None, "hispanic", "race"]
    entries_of(database)


def test_a_refusal_under_a_cap_is_recorded_with_its_tag(database: Database) -> None:
    open_account(database, caps={"hispanic": ZCDP | {"rho": "0.1"}})
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("0.5", "hispanic"))
    entry = refused.value.entry
    assert entry is not None
    assert entry().tag == "hispanic"  # type: ignore[attr-defined]


@pytest.mark.parametrize("definition", ["pure", "rdp", "approximate"])
def test_a_cap_has_any_definition(database: Database, definition: str) -> None:
    budgets = {
        "pure": {"definition": "pure", "epsilon": "1", "delta": "1e-6"},
        "rdp": {"definition": "rdp", "alpha": "8", "epsilon": "9"},
        "approximate": {"definition": "approximate", "epsilon": "1", "delta": "1e-6", "declared_delta": "1e-7"},
    }
    open_account(database, caps={"hispanic": budgets[definition]})
    geometric = {"type": "geometric", "epsilon": "0.01", "tags": ["hispanic"]}
    held = reserve(database, geometric, geometric)
    charge(database, *[geometric] * 5)
    commit(database, held[0])
    void(database, held[1])
    (cap,) = account_of(database).caps
    assert cap.totals.epsilon.finite == Fraction(12, 100)
    set_caps(database, {"race": budgets[definition]})
    late = account_of(database).caps[1]
    assert late.totals.epsilon.finite == 0  # tags of an account that was opened with caps are promises
    entries_of(database)


def test_accounts_above_have_caps_of_their_own(database: Database) -> None:
    open_account(database, "agency", caps={"race": ZCDP | {"rho": "0.1"}})
    open_account(database, "people", parent="agency")
    with pytest.raises(InvalidInput) as unstated:
        charge(database, noise("0.01"))
    assert [fault.pointer for fault in unstated.value.faults] == ["/plan"]
    charge(database, noise("0.01", "race"), noise("0.5", "state"))
    assert spent(database, "agency") == {"race": Fraction(1, 25)}
    assert account_of(database, "people").caps == ()
    with pytest.raises(BudgetExceeded) as refused:
        charge(database, noise("0.02", "race"))
    assert [(failure.account, failure.tag) for failure in refused.value.failures] == [("agency", "race")]
    for name in ("agency", "people"):
        entries_of(database, name)


def test_a_cap_below_what_is_spent_is_refused(database: Database) -> None:
    open_account(database, caps={"hispanic": ZCDP})
    charge(database, noise("0.05", "hispanic"))
    reserve(database, noise("0.05", "hispanic"))
    with pytest.raises(BudgetExceeded) as refused:
        set_caps(database, {"race": ZCDP, "hispanic": ZCDP | {"rho": "0.39"}})
    assert refused.value.pointer == "/caps/1/budget"
    assert [(one.tag, str(one.requested), str(one.remaining)) for one in refused.value.failures] == [
        ("hispanic", "2/5", "39/100")
    ]
    assert [cap.tag for cap in account_of(database).caps] == ["hispanic"]
    set_caps(database, {"hispanic": ZCDP | {"rho": "0.4"}})
    assert len(entries_of(database)) == 4


@pytest.mark.parametrize(
    ("caps", "pointer", "detail"),
    [
        (
            {"hispanic": {"definition": "pure", "epsilon": "1"}},
            "/caps/0/budget/definition",
            "the cap's definition, rdp",
        ),
        ({"hispanic": {"definition": "rdp", "alpha": "3", "epsilon": "1"}}, "/caps/0/budget/alpha", "the cap's order"),
        ({"race": ZCDP}, "/caps/0/budget/definition", "the cap's definition, approximate"),
        ({f"tag {n}": ZCDP for n in range(20)}, "/caps", "at most 20 caps of an account, got 22"),
    ],
)
def test_a_cap_that_cannot_be_is_refused(database: Database, caps: Any, pointer: str, detail: str) -> None:
    race = {"definition": "approximate", "epsilon": "1", "delta": "1e-6"}
    open_account(database, caps={"hispanic": {"definition": "rdp", "alpha": "2", "epsilon": "1"}, "race": race})
    with pytest.raises(InvalidInput, match=detail) as refused:
        set_caps(database, caps)
    assert [fault.pointer for fault in refused.value.faults] == [pointer]
    assert len(entries_of(database)) == 1


def test_a_tag_has_one_cap(database: Database) -> None:
    twice = cap_changes.CapsChange(stated_caps({"hispanic": ZCDP}) * 2)
    open_account(database)
    with pytest.raises(InvalidInput) as refused:
        change_account(database, "people", twice)
    assert [fault.pointer for fault in refused.value.faults] == ["/caps/1/tag"]


def test_setting_the_same_cap_again_writes_nothing(database: Database) -> None:
    open_account(database, caps={"hispanic": ZCDP})
    set_caps(database, {"hispanic": ZCDP})
    assert len(entries_of(database)) == 1


def test_raising_a_cap_takes_two_persons_and_a_new_one_does_not(database: Database) -> None:
    open_account(database, approval_above="0.5", caps={"hispanic": ZCDP})
    assert not set_caps(database, {"race": ZCDP}).waits
    raised = {"race": ZCDP | {"rho": "2"}, "sex": ZCDP}
    waiting = set_caps(database, raised)
    assert waiting.waits
    assert waiting.account.proposed is not None
    assert [cap["tag"] for cap in waiting.account.proposed.change["caps"]] == ["race", "sex"]
    assert set_caps(database, raised).waits  # by the same steward
    done = set_caps(database, raised, request=BOB)
    assert not done.waits
    assert [str(cap.budget.cap) for cap in done.account.caps] == ["1", "2", "1"]
    assert not set_caps(database, {"race": ZCDP}).waits  # lowering
    kinds = [entry.kind for entry in entries_of(database)]
    assert kinds == ["account_opened", "caps_changed", "change_proposed", "caps_changed", "caps_changed"]


def test_a_cap_that_was_set_while_a_release_was_priced_makes_it_wait(database: Database) -> None:
    open_account(database)
    ready = prepared(database, noise("0.01"))
    set_caps(database, {"hispanic": ZCDP})
    with pytest.raises(Unavailable) as refused:
        carry_out(database, charges.register(ANN, ready))
    assert refused.value.retry_after == 1
    raised = prepared(database, noise("0.01", "hispanic"))
    set_caps(database, {"hispanic": ZCDP | {"rho": "2"}})  # another figure asks for no other price
    carry_out(database, charges.register(ANN, raised))
    assert len(entries_of(database)) == 4


def test_too_many_holds_are_settled_before_a_new_cap(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_releases, "_MOST_HOLDS", 2)
    open_account(database)
    held = reserve(database, *[noise("0.01")] * 3)
    with pytest.raises(Conflict, match="more than 2 releases are reserved or proposed"):
        set_caps(database, {"hispanic": ZCDP})
    void(database, held[0])
    set_caps(database, {"hispanic": ZCDP})
    assert spent(database) == {"hispanic": Fraction(8, 100)}
    void(database, held[1])
    assert spent(database) == {"hispanic": Fraction(4, 100)}
    entries_of(database)


_CHANGED = [
    "UPDATE accounts SET caps = replace(caps, '1', '9')",
    "UPDATE accounts SET cap_totals = replace(cap_totals, '1/5', '1/6')",
    "UPDATE accounts SET caps = NULL, cap_totals = NULL",
    "UPDATE accounts SET cap_totals = NULL",
    "UPDATE holds SET caps = replace(caps, '1/25', '1/26')",
    "UPDATE holds SET caps = NULL",
]


@pytest.mark.parametrize("periods", [None, PANEL], ids=["no periods", "offsets"])
@pytest.mark.parametrize("statement", _CHANGED)
def test_verification_finds_a_changed_column(database: Database, statement: str, periods: Any) -> None:
    open_account(database, caps={"hispanic": ZCDP}, periods=periods)
    read = periods and MAY
    charge(database, noise("0.04", "hispanic"), periods=read)
    reserve(database, noise("0.01", "hispanic"), periods=read)
    with database.read() as connection:
        assert verify(connection, "people").valid
    _force(database, statement)
    with database.read() as connection:
        verdict = verify(connection, "people")
    assert not verdict.valid
    assert verdict.first_bad is not None
    assert "does not follow from the journal" in verdict.first_bad.reason


def _force(database: Database, statement: str) -> None:
    """Change rows as an attacker who can write the database, past its triggers."""

    def work(connection: Any) -> None:
        if database.kind == "sqlite":
            connection.execute(text("DROP TRIGGER IF EXISTS accounts_by_entry"))
        else:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        assert connection.execute(text(statement)).rowcount

    database.write(work, is_committed=lambda *_: False)


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """While it is in force, the accountant is an older one, which asks for half of what is right."""
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "price", half_price)
        patch.setattr("service.ledger.accounts.caps.price", half_price)
        patch.setattr(charges, "ACCOUNTANT", "0")
        patch.setattr(cap_changes, "ACCOUNTANT", "0")
        yield patch


@COUNTED_BY
def test_pricing_again_corrects_what_caps_count(database: Database, older: pytest.MonkeyPatch, periods: Any) -> None:
    open_account(database, periods=periods)
    read = periods and MAY
    charge(database, noise("0.01", "hispanic"), periods=periods and "all")
    held = reserve(database, noise("0.02", "hispanic"), noise("0.03", "state"), periods=read)
    set_caps(database, {"hispanic": ZCDP | {"rho": "0.25"}})
    late = reserve(database, noise("0.04", "hispanic"), periods=read)
    assert spent(database) == {"hispanic": Fraction(1, 2) * 4 * Fraction(10, 100)}
    older.undo()
    before = account_of(database)
    found = recompute(database, "people", apply=False)
    assert account_of(database) == before
    assert {(one.release, one.tag) for one in found.under_caps} == {
        (release, "hispanic") for release in (*held, *late, None)
    }
    assert [tag for tag, _ in found.over_caps] == ["hispanic"]
    recompute(database, "people", apply=True)
    assert spent(database) == {"hispanic": 4 * Fraction(10, 100)}
    entries_of(database)
    again = recompute(database, "people", apply=True)
    assert (again.prices, again.under_caps) == ([], [])
    for release in (*held, *late):
        void(database, release)
    assert spent(database) == {"hispanic": Fraction(4, 100)}
    entries = entries_of(database)
    stated = [read_text(entry.body).content for entry in entries if entry.kind == "repriced"]
    assert all(content.caps is None or set(content.caps) == {"hispanic"} for content in stated)  # type: ignore[attr-defined]


def test_no_admission_rule_is_computed_under_the_lock(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes milliseconds, and an account may have twenty caps."""
    approximate = {"definition": "approximate", "epsilon": "50", "delta": "1e-7"}
    open_account(database, definition="zcdp", rho="1000", caps=dict.fromkeys(("race", "income"), approximate))
    plan = {"type": "discrete_gaussian", "sigma_squared": "90", "tags": ["race", "income"]}
    monkeypatch.setattr(privacy_filter, "_rule", memoised(maxsize=16)(privacy_filter._rule.__wrapped__))
    registering = charges.register(ANN, prepared(database, plan))
    cap = StatedCap("hispanic", read_budget(approximate | {"delta": "1e-8"}))
    changing = account_changes.change_account(database, ANN, "people", CapsChange([cap]), "/caps", lambda _: True)

    def computed(*_: object) -> Fraction:
        raise AssertionError("a rule is computed under the lock")

    monkeypatch.setattr(privacy_filter, "conversion", computed)
    carry_out(database, registering)
    carry_out(database, changing)
    monkeypatch.undo()
    assert {cap.tag for cap in account_of(database).caps} == {"race", "income", "hispanic"}


def test_reservations_and_charges_since_a_cap_was_counted_are_counted_too(database: Database) -> None:
    open_account(database, definition="zcdp", rho="1000")
    reserve(database, noise("0.01"))
    charge(database, noise("0.02"))
    changing = setting(database, "race")
    reserve(database, noise("0.03"))
    charge(database, noise("0.04"))
    carry_out(database, changing)
    assert spent(database) == {"race": 4 * Fraction("0.1")}
    with database.read() as connection:
        assert verify(connection, "people").valid


@pytest.mark.parametrize(
    ("limit", "register"),
    [
        ("_SHORT", reserve),
        ("_SHORT", charge),
        ("_MOMENT", reserve),
        ("_MOMENT", charge),
        ("_FEW_ROWS", charge),
        ("_FEW_CHARACTERS", charge),
    ],
)
def test_a_cap_waits_where_too_much_came_since_it_was_counted(
    database: Database, monkeypatch: pytest.MonkeyPatch, limit: str, register: Callable[..., object]
) -> None:
    """Others wait while the account is locked, so what is parsed and priced then is bounded."""
    monkeypatch.setattr(earlier_releases, limit, 0)
    open_account(database, definition="zcdp", rho="1000")
    changing = setting(database, "race")
    register(database, noise("0.01"))
    with pytest.raises(Unavailable, match="changed while they were counted"):
        carry_out(database, changing)
    assert spent(database) == {}
    carry_out(database, setting(database, "race"))


def test_releases_that_come_while_a_cap_counts_are_priced_before_the_lock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, definition="zcdp", rho="1000")
    charge(database, noise("0.01"))
    come = [noise("0.02"), noise("0.03")]
    price = price_of_earlier

    def slow(*arguments: Any, **options: Any) -> Any:
        if come:
            charge(database, come.pop())
        return price(*arguments, **options)

    monkeypatch.setattr(earlier_releases, "price_of_earlier", slow)
    changing = setting(database, "race")
    monkeypatch.setattr(earlier_releases, "_SHORT", 0)  # nothing is left for the lock
    carry_out(database, changing)
    assert spent(database) == {"race": 4 * Fraction("0.06")}


def test_a_cap_that_takes_too_much_work_to_count_is_refused(database: Database) -> None:
    open_account(database, definition="zcdp", rho="1000")
    charge(database, *(noise(f"0.01{number}") for number in range(9)))
    change = CapsChange([StatedCap("race", read_budget(ZCDP))], EarlierReleases(0.1))
    with pytest.raises(Conflict, match="too much work: expected at most 0 units"):
        account_changes.change_account(database, ANN, "people", change, "/caps", lambda _: True)


def test_nothing_is_priced_in_the_transaction_that_reads_the_earlier_releases(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, definition="zcdp", rho="1000")
    charge(database, noise("0.01"))
    reserve(database, noise("0.02"))
    within, priced, price = list[str](), list[str](), price_of_earlier

    @contextmanager
    def around(what: str) -> Iterator[None]:
        within.append(what)
        try:
            yield
        finally:
            within.pop()

    def outside(*arguments: Any, **options: Any) -> Any:
        assert not within, "a transaction stays open"
        priced.append("once")
        return price(*arguments, **options)

    monkeypatch.setattr(earlier_releases, "price_of_earlier", outside)
    database.around = around
    changing = setting(database, "race")
    assert priced
    carry_out(database, changing)
    assert spent(database) == {"race": 4 * Fraction("0.03")}


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_another_process_counts_what_takes_long(database: Database, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A later release is counted here with the prices that came back, or there again where they were too many."""
    open_account(database, definition="zcdp", rho="1000")
    charge(database, *(noise(f"0.01{number}") for number in range(9)))
    reserve(database, noise("0.02"))
    stated, asked = [StatedCap("race", read_budget(ZCDP | {"rho": "100"}))], list[CapsChange]()
    monkeypatch.setattr(earlier_releases, "_MOST_SENT", most)

    def elsewhere() -> EarlierReleases:
        asked.append(CapsChange(stated))
        asked[-1].prepare(database, "people")
        if len(asked) == 1:
            charge(database, noise("0.03"))
        returned: EarlierReleases = pickle.loads(pickle.dumps(asked[-1].earlier))
        return returned

    monkeypatch.setattr(effort, "LIGHT", 0.4)  # enough for one of them
    change = CapsChange(stated, elsewhere=elsewhere)
    carry_out(database, account_changes.change_account(database, ANN, "people", change, "/caps", lambda _: True))
    assert spent(database) == {"race": 4 * (Fraction("0.126") + Fraction("0.05"))}
    assert len(asked) == (2 if most == 1 else 1)


@pytest.mark.parametrize("late", [False, True])
def test_a_hold_that_was_removed_for_a_while_or_put_back_is_counted_by_no_cap(database: Database, late: bool) -> None:
    """Servers delete holds, and the servers' role may write them: the sealed spending says what is held."""
    open_account(database, definition="zcdp", rho="1000")
    (held,) = reserve(database, noise("0.01"))
    hold = hold_of(database, held)
    if late:
        commit(database, held)
        put_back(database, hold)
    else:
        run(database, "DELETE FROM holds")
    with pytest.raises(Altered):
        setting(database, "race")
    if late:
        run(database, "DELETE FROM holds")
    else:
        put_back(database, hold)
    carry_out(database, setting(database, "race"))
    assert spent(database) == {"race": 4 * Fraction("0.01")}


def test_the_hold_of_a_voided_release_does_not_stand_for_that_of_an_equal_one(database: Database) -> None:
    open_account(database, definition="zcdp", rho="1000")
    voided, _ = reserve(database, noise("0.01"), noise("0.01"))
    hold = hold_of(database, voided)
    void(database, voided)
    run(database, "DELETE FROM holds")
    put_back(database, hold)
    with pytest.raises(Altered):
        setting(database, "race")


@pytest.mark.parametrize("accountant", [ACCOUNTANT, "0"])
def test_an_entry_that_leaves_out_what_is_held_is_found_whoever_priced_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, accountant: str
) -> None:
    open_account(database, definition="zcdp", rho="1000")
    reserve(database, noise("0.01"))
    monkeypatch.setattr(cap_changes, "ACCOUNTANT", accountant)
    counted = EarlierReleases.count

    def without_holds(*arguments: Any, **options: Any) -> Any:
        return {tag: prices._replace(held=()) for tag, prices in counted(*arguments, **options).items()}

    monkeypatch.setattr(EarlierReleases, "count", without_holds)
    carry_out(database, setting(database, "race"))
    monkeypatch.undo()
    with database.read() as connection:
        fault = verify(connection, "people").first_bad
        assert fault is not None
        assert fault.reason == "a cap does not count what is held"
    with pytest.raises(Altered):
        recompute(database, "people", apply=False)


def setting(database: Database, tag: str) -> Operation[ChangedAccount]:
    """Return the operation that sets a new cap, with what it counts found already."""
    change = CapsChange([StatedCap(tag, read_budget(ZCDP | {"rho": "100"}))])
    return account_changes.change_account(database, ANN, "people", change, "/caps", lambda _: True)
