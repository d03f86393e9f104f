"""The operations on a running service, by both clients where they could differ."""

import asyncio
import io
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from inspect import signature
from pathlib import Path
from pydoc import plain, render_doc
from typing import Any

import polars as pl
import pytest

from privacy_budget_ledger import (
    Account,
    AsyncClient,
    Balance,
    Client,
    KeptHeads,
    NewRelease,
    PureBudget,
    Release,
    errors,
    operations,
    plans,
)
from privacy_budget_ledger.operations import Operations
from service.ledger.verification.packages import check_package
from service.ledger.verification.receipts import check_receipt
from tests.api.calls import STEWARD
from tests.client.conftest import AT_ONCE, answer_lost, faulty, opened, refused
from tests.processes import Served

_SMALL = plans.DiscreteGaussian(rho="0.01")
_COUNTY = plans.Geometric(name="county", epsilon="0.5", partitions=("01", "02", "36"))
_COUNTIES = pl.DataFrame({"state": ["36", "01", "36", "02", "01"], "count": [5000, 100, 6000, 300, 200]})


def test_a_release_is_registered_as_it_is_stated(ledger: Client, account: Account) -> None:
    plan = plans.sequence(_SMALL, plans.repeat(3, plans.DiscreteGaussian(rho="1/300")))
    release = ledger.register(account.name, name="tables", plan=plan, tags=["pl94"], delta="1e-9")
    assert (release.account, release.name, release.state) == (account.name, "tables", "committed")
    assert release.plan == plan
    assert release.remaining == {"definition": "zcdp", "rho": 0.48}
    assert (release.document["tags"], Fraction(release.document["delta"])) == (["pl94"], Fraction(1, 10**9))
    assert release.head.seq == 2
    assert ledger.release(account.name, release.id).document["id"] == release.id


def test_a_dry_run_changes_nothing(ledger: Client, account: Account) -> None:
    release = ledger.register(account.name, name="tables", plan=_SMALL, dry_run=True)
    assert (release.id, release.remaining["rho"], release.head) == ("", 0.49, account.head)
    assert ledger.account(account.name) == account


def test_a_dry_run_is_shown_as_one(ledger: Client, account: Account) -> None:
    trial = ledger.register(account.name, name="tables", plan=_SMALL, dry_run=True)
    shown = f"<dry run, nothing is registered: 'tables' of {account.name!r} would be committed>"
    assert (trial.is_dry_run, repr(trial)) == (True, shown)
    made = ledger.register(account.name, name="tables", plan=_SMALL)
    assert not made.is_dry_run
    assert repr(made).startswith(
        f"Release(id={made.id!r}, account={account.name!r}, name='tables', state='committed', "
    )
    assert "document" not in repr(made)


def test_releases_are_found_in_pages_and_in_either_order(
    ledger: Client, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_PAGE", 2)
    for name in ("births", "deaths", "births again"):
        ledger.register(account.name, name=name, plan=_SMALL, tags=["t"])

    def names(**asked: Any) -> list[str]:
        return [one.name for one in ledger.releases(account.name, **asked)]

    assert names() == ["births", "deaths", "births again"]
    assert names(newest_first=True) == ["births again", "deaths", "births"]
    assert names(newest_first=True, most=1) == ["births again"]
    assert names(most=3) == names()
    assert names(name="BIRTHS", tag="t", state="committed", registered_by="first-steward") == ["births", "births again"]
    now = datetime.now(UTC)
    assert names(since=now.date() - timedelta(days=1), before=now.date() + timedelta(days=2)) == names()
    assert names(since=now.astimezone(timezone(timedelta(hours=1))) + timedelta(hours=2)) == []
    assert names(before="2020-01-01") == []
    assert ledger.releases(account.name)[0].plan == _SMALL
    with pytest.raises(ValueError, match="expected a moment with a time zone"):
        names(since=datetime(2026, 1, 1))  # noqa: DTZ001


def test_releases_of_all_accounts_are_found(ledger: Client, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "_PAGE", 1)
    other = opened(ledger).name
    for number, name in enumerate((other, account.name, other)):
        ledger.register(name, name=f"t {number}", plan=_SMALL, tags=[account.name])

    def found(**asked: Any) -> list[tuple[str, str]]:
        return [(one.account, one.name) for one in ledger.find_releases(tag=account.name, **asked)]

    assert found() == [(account.name, "t 1"), (other, "t 0"), (other, "t 2")]
    assert found(newest_first=True) == found()[::-1]
    assert found(newest_first=True, most=1) == [(other, "t 2")]
    assert found(name="T 1", state="committed", registered_by="first-steward") == [(account.name, "t 1")]


def test_a_batch_is_registered_whole_or_not_at_all(ledger: Client, account: Account) -> None:
    first = NewRelease("first", _SMALL, ["pl94"], delta="1e-9")
    held = NewRelease("second", _SMALL, reserve_for=timedelta(days=1))
    trial = ledger.register_batch(account.name, [first, held], dry_run=True)
    assert [(one.id, one.name) for one in trial] == [("", "first"), ("", "second")]
    assert ledger.account(account.name) == account
    batch = ledger.register_batch(account.name, [first, held], idempotency_key="b")
    assert [one.state for one in batch] == ["committed", "reserved"]
    assert (batch[0].document["tags"], batch[1].remaining["rho"]) == (["pl94"], 0.48)
    again = ledger.register_batch(account.name, [first, held], idempotency_key="b")
    assert [one.id for one in again] == [one.id for one in batch]
    with pytest.raises(errors.BudgetExceeded):
        ledger.register_batch(account.name, [first, NewRelease("large", plans.DiscreteGaussian(rho="0.48"))])
    balance = ledger.balance(account.name)
    assert balance["remaining"]["rho"] == 0.48
    lines = str(balance).splitlines()
    assert lines[0].startswith(f"balance of {account.name}, at entry ")
    assert [line.split()[0] for line in lines[1:]] == ["budget", "left", "spent", "held", "releases"]
    assert lines[2] == "  left      rho 0.48"
    assert lines[3].startswith("  spent     rho 0.01; epsilon ")


def test_a_balance_is_asked_for_a_tag_and_a_delta(ledger: Client, account: Account) -> None:
    ledger.register(account.name, name="tagged", plan=_SMALL, tags=["age"])
    ledger.register(account.name, name="other", plan=_SMALL)
    found = ledger.balance(account.name, tag="age", delta="1e-6")
    assert (found["spent"]["zcdp"]["rho"], found["remaining"]["rho"]) == (0.01, 0.48)
    assert {one["delta"] for one in found["spent"]["approximate"]} == {1e-6}


def test_receipts_and_packages_are_signed(ledger: Client, account: Account) -> None:
    release = ledger.register(account.name, name="tables", plan=_COUNTY)
    ledger.draw_release(account.name, release.id, _COUNTIES.head(1).select("count"), mechanism="county", partition="36")
    key = ledger.request("GET", "/v1/installation")["public_key"]
    receipt = ledger.receipt(account.name, release.id)
    check_receipt(receipt, key)
    assert receipt["release"]["id"] == release.id
    (stated,) = ledger.accuracy(account.name, release.id, confidence="0.9")["mechanisms"]
    assert (stated["mechanism"], stated["partitions_drawn"]) == ("county", 1)
    manifest = check_package(io.BytesIO(ledger.package(account.name, release.id, confidence="0.9")), key)
    assert manifest["release"] == release.id
    with pytest.raises(errors.NotFound):
        ledger.package(account.name, "none")


def test_an_account_takes_further_fields(ledger: Client, account: Account) -> None:
    below = ledger.open_account(
        f"{account.name}.part",
        unit="person",
        neighbouring="add_remove",
        budget=PureBudget(epsilon="1/3"),
        parent=account.name,
        description="a part",
        approval_above="1/10",
        approvers={"at_least": 2, "of": ["bob", "carol"]},
    )
    assert below.document["approvers"] == {"at_least": 2, "of": ["bob", "carol"]}
    assert (below.document["parent"], below.document["description"]) == (account.name, "a part")
    assert below.document["budget"]["epsilon"] == "1/3"


def test_a_reservation_is_committed_or_voided(ledger: Client, account: Account) -> None:
    held = [
        ledger.register(account.name, name="held", plan=_SMALL, reserve_for=timedelta(days=2, hours=1)).id
        for _ in range(2)
    ]
    assert ledger.release(account.name, held[0]).state == "reserved"
    assert ledger.commit(account.name, held[0]).state == "committed"
    assert ledger.void(account.name, held[1], reason="not published").state == "voided"
    assert ledger.account(account.name).remaining["rho"] == 0.49


@pytest.mark.parametrize("time", [timedelta(0), timedelta(seconds=-1), timedelta(milliseconds=1500)])
def test_a_reservation_takes_whole_seconds(time: timedelta, ledger: Client) -> None:
    with pytest.raises(ValueError, match="whole seconds above 0"):
        ledger.register("town", name="held", plan=_SMALL, reserve_for=time)


def test_noise_is_calibrated_to_a_margin(ledger: Client) -> None:
    found = ledger.calibrate("discrete_gaussian", moe=6, confidence=Fraction(95, 100), cells=2)
    assert isinstance(found, plans.DiscreteGaussian)
    assert (found.sigma_squared, found.cells) == ("11.081705253", 2)
    assert isinstance(ledger.calibrate("osgt", moe="6.5", m=3), plans.Osgt)
    assert isinstance(ledger.calibrate("laplace", moe="0.5"), plans.Laplace)
    assert isinstance(ledger.calibrate("geometric", moe="6"), plans.Geometric)


def test_a_draw_is_repeated_under_its_key(ledger: Client, account: Account) -> None:
    frame, key = _COUNTIES.select("count"), "county totals"
    drawn = [
        ledger.draw(account.name, frame, name="totals", mechanism=_SMALL, tags=["county"], idempotency_key=key)
        for _ in range(2)
    ]
    assert [one.replayed for one in drawn] == [False, True]
    assert drawn[0].frame.equals(drawn[1].frame)
    assert drawn[0].draws == drawn[1].draws
    assert ledger.account(account.name).remaining["rho"] == 0.49
    with pytest.raises(errors.IdempotencyConflict):
        ledger.draw(account.name, frame.reverse(), name="totals", mechanism=_SMALL, idempotency_key=key)


def test_a_draw_with_a_granularity_counts_units_of_it(ledger: Client, account: Account) -> None:
    half = plans.DiscreteGaussian(sigma_squared="4", sensitivity="0.5", granularity="0.5")
    drawn = ledger.draw(account.name, _COUNTIES, name="halves", mechanism=half, granularity="1/2")
    stored = ledger.request("GET", f"/v1/accounts/{account.name}/draws/{drawn.draws[0]}")
    units = drawn.frame["noisy"].to_list()
    assert [Fraction(noisy) for noisy in stored["noisy"]] == [Fraction(number, 2) for number in units]


def _counties(ledger: Client, account: Account) -> str:
    pure = plans.sequence(_COUNTY)
    return ledger.register(account.name, name="counties", plan=pure).id


def test_a_mechanism_of_a_release_is_drawn_once(ledger: Client, account: Account) -> None:
    release = _counties(ledger, account)
    drawn = ledger.draw_release(account.name, release, _COUNTIES, mechanism="county", partition="01")
    assert drawn.release == release
    with pytest.raises(errors.AlreadyDrawn) as caught:
        ledger.draw_release(account.name, release, _COUNTIES, mechanism="county", partition="01")
    assert caught.value.draw == drawn.draws[0]


def test_the_values_of_a_column_are_partitions(ledger: Client, account: Account) -> None:
    release = _counties(ledger, account)
    drawn = ledger.draw_partitions(account.name, release, _COUNTIES, mechanism="county", by="state")
    assert drawn.frame["state"].to_list() == _COUNTIES["state"].to_list()
    for noisy, count in zip(drawn.frame["noisy"], _COUNTIES["count"], strict=True):
        assert abs(noisy - count) < 50
    listed = ledger.request("GET", f"/v1/accounts/{account.name}/releases/{release}/draws")["items"]
    assert [(one["partition"], len(one["noisy"])) for one in listed] == [("36", 2), ("01", 2), ("02", 1)]
    assert tuple(one["draw"] for one in listed) == drawn.draws
    assert drawn.head.seq == listed[-1]["head"]["seq"]


def test_partitions_that_failed_half_way_continue_under_the_errors_key(
    served: Served, ledger: Client, account: Account
) -> None:
    release = _counties(ledger, account)
    wanted: dict[str, Any] = {"mechanism": "county", "by": "state"}
    client, _ = faulty(served, answer_lost, attempts=1)
    with client, pytest.raises(errors.ConnectionFailed) as caught:
        client.draw_partitions(account.name, release, _COUNTIES, **wanted)
    key = caught.value.idempotency_key
    first = ledger.draw_partitions(account.name, release, _COUNTIES, **wanted, idempotency_key=key)
    again = ledger.draw_partitions(account.name, release, _COUNTIES, **wanted, idempotency_key=key)
    assert (first.replayed, again.replayed) == (False, True)
    assert first.frame.equals(again.frame)


@pytest.mark.parametrize("column", [[1, 2], ["01", None], [None, None]])
def test_partitions_have_names_that_are_texts(column: list[Any], ledger: Client) -> None:
    frame = pl.DataFrame({"state": column, "count": [1, 2]})
    with pytest.raises(errors.InvalidFrame, match="expected a column 'state' of texts"):
        ledger.draw_partitions("town", "id", frame, mechanism="county", by="state")
    with pytest.raises(errors.InvalidFrame, match="expected one column 'county', got 0"):
        ledger.draw_partitions("town", "id", frame, mechanism="county", by="county")
    with pytest.raises(errors.InvalidFrame, match="at least one row"):
        ledger.draw_partitions("town", "id", _COUNTIES.clear(), mechanism="county", by="state")


def test_names_in_an_address_are_encoded(ledger: Client) -> None:
    with pytest.raises(errors.NotFound):
        ledger.account("/".join(("..", "keys")))
    with pytest.raises(errors.NotFound):
        ledger.release("town?x=1", "a/b")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_help_shows_what_an_operation_returns(kind: type) -> None:
    assert signature(kind.register).return_annotation is Release  # type: ignore[attr-defined]
    assert kind.balance.__annotations__["return"] is Balance  # type: ignore[attr-defined]
    shown = plain(render_doc(kind))
    assert "Generator[" not in shown
    assert "-> tuple[privacy_budget_ledger.operations.Release, ...]" in shown


@pytest.mark.parametrize("address", ["127.0.0.1:8822", "localhost:8822", "ledger.example", "ftp://a", "https://", ""])
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="expected an address that begins with http"):
        Client(address, "key")


def test_both_clients_have_all_operations() -> None:
    names = {name for name in vars(Operations) if not name.startswith("_")}
    for client in (Client, AsyncClient):
        assert {name for name in vars(client) if not name.startswith("_")} == names | {"close", "follow"}
        assert all(getattr(client, name).__doc__ == getattr(Operations, name).__doc__ for name in names)


def test_the_client_for_asyncio_does_the_same(served: Served, ledger: Client, tmp_path: Path) -> None:
    account = opened(ledger)

    async def work() -> list[pl.DataFrame]:
        async with AsyncClient(served.address, STEWARD, retries=AT_ONCE, heads=tmp_path) as client:
            assert await client.account(account.name) == account
            plan = plans.sequence(_COUNTY)
            release = await client.register(account.name, name="counties", plan=plan)
            draws = [
                client.draw_release(account.name, release.id, _COUNTIES, mechanism="county", partition=name)
                for name in ("01", "02", "36")
            ]
            drawn = await asyncio.gather(*draws)
            with pytest.raises(errors.BudgetExceeded):
                await client.register(account.name, name="too much", plan=plans.DiscreteGaussian(rho="1"))
            assert KeptHeads(tmp_path).of(account.name) == max(one.head for one in drawn)
            return [one.frame for one in drawn]

    assert [frame.columns for frame in asyncio.run(work())] == [["state", "noisy"]] * 3


def test_the_client_for_asyncio_tries_again(served: Served) -> None:
    async def work() -> str:
        async with AsyncClient(served.address, STEWARD, retries=AT_ONCE, transport=_AsyncFaulty()) as client:
            principal = await client.request("GET", "/v1/principal")
            return str(principal["role"])

    assert asyncio.run(work()) == "steward"


class _AsyncFaulty(__import__("httpx").AsyncHTTPTransport):  # type: ignore[misc]
    """A connection whose first request is refused."""

    tried = False

    async def handle_async_request(self, request: Any) -> Any:
        if not self.tried:
            self.tried = True
            refused(request, lambda _: None)  # type: ignore[arg-type,return-value]
        return await super().handle_async_request(request)
