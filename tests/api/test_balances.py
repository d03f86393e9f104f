"""Balances: spending in every notion, the remaining budget, by tag and at an earlier entry."""

from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import mpmath  # type: ignore[import-untyped]  # it publishes no types
import pytest
from sqlalchemy import Connection, text

from service.ledger.spending import subplans
from service.ledger.storage.database import Database
from tests.api.calls import (
    Client,
    charge,
    concentrated,
    head_of,
    json_of,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)

_NAMES = ("hispanic", "state")
_VOID = {"reason": "withdrawn", "attestation": "nothing was published"}


def _balance(client: Client, query: str = "", account: str = "people") -> Any:
    """Return a balance without the drawn partitions, which have no earlier state; test_declarations has them."""
    balance = json_of(client.get(f"/v1/accounts/{account}/balance{query}"))
    del balance["partitions"]
    return balance


def test_a_balance_of_nothing(embedded: Client) -> None:
    head = open_account(embedded)["head"]
    balance = _balance(embedded)
    assert balance["account"] == "people"
    assert balance["releases"] == 0
    assert balance["head"] == head
    assert balance["remaining"] == {"definition": "zcdp", "rho": 1.0}
    for part in ("spent", "reserved"):
        assert balance[part]["zcdp"] == {"rho": 0.0, "rho_exact": "0"}
        assert balance[part]["pure"] == {"epsilon": 0.0, "epsilon_exact": "0"}
        assert all(statement["epsilon"] == 0 for statement in balance[part]["approximate"])


def test_a_balance_composes_all_releases(client: Client) -> None:
    open_account(client, budget={"definition": "pure", "epsilon": 10})
    for epsilon in ("0.5", "0.25", "0.5"):
        head = release(client, pure(epsilon))["head"]
    balance = _balance(client, "?delta=1e-6")
    assert balance["releases"] == 3
    assert balance["head"] == head
    assert balance["spent"]["pure"] == {"epsilon": 1.25, "epsilon_exact": "1.25"}
    # The geometric mechanism of sensitivity 1 is exactly (epsilon tanh(epsilon/2))-zCDP.
    rho = sum(mpmath.mpf(e) * mpmath.tanh(mpmath.mpf(e) / 2) for e in (0.5, 0.25, 0.5))
    assert rho <= balance["spent"]["zcdp"]["rho"] <= rho * (1 + mpmath.mpf("1e-12"))
    assert balance["remaining"] == {"definition": "pure", "epsilon": 8.75}
    assert {statement["via"] for statement in balance["spent"]["approximate"]} >= {"zcdp", "rdp", "pure"}
    assert {statement["delta"] for statement in balance["spent"]["approximate"]} == {1e-6}


def test_how_many_more_releases_fit_is_said_of_epsilon_delta_budgets_alone(client: Client) -> None:
    budget = {"definition": "approximate", "epsilon": "4", "delta": "1e-6"}
    open_account(client, "people", budget)
    open_account(client, "other")
    release(client, concentrated("0.01"), "other")
    assert _balance(client, account="other")["equal_more"] is None
    assert _balance(client)["equal_more"] is None
    release(client, concentrated("0.01"))
    more = _balance(client)["equal_more"]
    assert more > 10
    for _ in range(more - 1):
        release(client, concentrated("0.01"))
    assert _balance(client)["equal_more"] == 1
    assert _balance(client, "?as_of=2")["equal_more"] == more
    release(client, concentrated("0.01"))
    assert _balance(client)["equal_more"] == 0
    assert problem_of(charge(client, concentrated("0.01")), "budget_exceeded")["failures"]


@pytest.mark.parametrize(
    "edit",
    [
        "DELETE FROM spending",
        "UPDATE spending SET occurrences = 1 WHERE occurrences = 2",
        "UPDATE spending SET occurrences = occurrences + reserved, reserved = 0",
        "UPDATE spending SET subplan = replace(subplan, '0', '1')",
    ],
)
def test_spending_that_somebody_changed_is_shown_nowhere(client: Client, database: Database, edit: str) -> None:
    open_account(client)
    release(client, concentrated("0.1"))
    release(client, {"type": "sequence", "parts": [concentrated("0.1"), concentrated("0.2")]})
    release(client, concentrated("0.05"), reserve_for="P1D")
    queries = (
        "balance",
        "balance?tag=t&delta=1e-7",
        "balance?picture=profile",
        "balance?picture=rdp",
        "registry-entry",
    )
    history = json_of(client.get("/v1/accounts/people/history"))
    before = _balance(client)

    def run(*statements: str) -> None:
        def work(connection: Connection) -> None:
            for statement in statements:
                connection.execute(text(statement))

        database.write(work, is_committed=lambda *_: False)

    run("CREATE TABLE before AS SELECT * FROM spending", edit)
    for query in queries:
        kind = {"Accept": "image/svg+xml"} if "picture" in query else {}
        problem = problem_of(client.get(f"/v1/accounts/people/{query}", headers=kind), "unavailable")
        assert "the account's spending is not as the service wrote it" in problem["detail"]
    assert json_of(client.get("/v1/accounts/people/history")) == history, "which the journal tells"
    assert _balance(client, f"?as_of={before['head']['seq']}")["spent"] == before["spent"]
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"] is False
    run("DELETE FROM spending", "INSERT INTO spending SELECT * FROM before", "DROP TABLE before")
    assert _balance(client) == before
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"] is True


def test_a_balance_names_the_tags_that_it_can_be_asked_for_by(client: Client) -> None:
    open_account(client)
    release(client, concentrated("0.1", tags=["state"]), tags=["pl94"])
    inner = {"type": "choice", "parts": [concentrated("0.1", tags=["county"]), concentrated("0.2")]}
    held = release(client, {"type": "repeat", "count": 2, "part": inner, "tags": ['a"b']}, reserve_for="P1D")
    assert _balance(client)["tags"] == ['a"b', "county", "pl94", "state"]
    json_of(client.post(f"/v1/accounts/people/releases/{held['id']}/void", json=_VOID))
    assert _balance(client)["tags"] == ["pl94", "state"]


def test_a_balance_after_a_charge_reads_no_earlier_plan_again(
    embedded: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(embedded)
    parts = [pure(f"0.00{1000 + k}", tags=["state"] if k % 2 else []) for k in range(40)]
    release(embedded, {"type": "sequence", "parts": parts})
    before = _balance(embedded)["spent"]
    read = Mock(wraps=subplans.plan_in)
    monkeypatch.setattr(subplans, "plan_in", read)
    release(embedded, pure("0.0009"))
    after = _balance(embedded)["spent"]
    assert read.call_count == 1, "of the charged one"
    assert after["pure"]["epsilon"] == pytest.approx(before["pure"]["epsilon"] + 0.0009)
    subplans._condensed.cache_clear()
    assert _balance(embedded)["spent"] == after, "as after a restart"
    assert read.call_count == 42


def test_a_balance_is_an_odometer_and_never_called_adaptive(embedded: Client) -> None:
    """Figures that are converted from past spending are no adaptive guarantee."""
    open_account(embedded)
    assert release(embedded, concentrated("0.3"))["cost"]["approximate"][0]["adaptive"] is True
    spent = _balance(embedded)["spent"]
    assert {statement["adaptive"] for statement in spent["approximate"]} == {False}
    assert spent["best"][0]["adaptive"] is None
    assert spent["best"][0]["fixed"]["epsilon"] == min(statement["epsilon"] for statement in spent["approximate"])


def test_a_tag_counts_what_carries_it_wherever_it_stands(client: Client) -> None:
    open_account(client)
    release(client, concentrated("0.01", tags=["state"]), tags=["pl94"])
    parts = [concentrated("0.02", tags=["hispanic"]), concentrated("0.04", tags=["state", "hispanic"])]
    release(client, {"type": "sequence", "parts": parts, "tags": ["pl94"]})
    release(client, {"type": "parallel", "max_degree": 1, "parts": [concentrated("0.08", tags=["state"])]})
    release(client, concentrated("0.16"))
    expected = {"state": "0.13", "hispanic": "0.06", "pl94": "0.07", "nothing": "0"}
    for tag, rho in expected.items():
        assert _balance(client, f"?tag={tag}")["spent"]["zcdp"]["rho_exact"] == rho
    assert _balance(client)["spent"]["zcdp"]["rho_exact"] == "0.31"


def test_the_past_can_be_asked_for(client: Client) -> None:
    open_account(client)
    release(client, concentrated("0.1", tags=["t"]))
    json_of(client.patch("/v1/accounts/people", json={"budget": {"definition": "zcdp", "rho": 2}}))
    heads = [head_of(client), release(client, concentrated("0.2"))["head"]]
    then = _balance(client, f"?as_of={heads[0]['seq']}")
    assert (then["head"], then["releases"], then["budget"]["rho"]) == (heads[0], 1, "2")
    assert then["spent"]["zcdp"]["rho_exact"] == "0.1"
    assert then["remaining"]["rho"] == 1.9
    assert _balance(client, "?as_of=2")["budget"]["rho"] == "1"
    assert _balance(client, f"?as_of={heads[1]['seq']}") == _balance(client)
    assert _balance(client, "?as_of=4&tag=t")["spent"]["zcdp"]["rho_exact"] == "0.1"
    for wrong in ("5", "0", "-1", "x"):
        assert pointers_of(client.get(f"/v1/accounts/people/balance?as_of={wrong}")) == ["/query/as_of"]


def test_a_balance_of_a_line_by_tag_and_at_each_of_its_moments(client: Client) -> None:
    """Spending and reservations are shown separately, for the account and for its parent."""
    open_account(client, "agency")
    open_account(client, parent="agency")
    held = release(client, concentrated("0.1", tags=["t"]), reserve_for="P1D", tags=["r"])
    release(client, concentrated("0.2", tags=["t"]))
    json_of(client.post(f"/v1/accounts/people/releases/{held['id']}/commit"))
    moments = {  # after the entries of opening, of the reservation, of the other release and of the commitment
        1: ("0", "0", 1.0, 0),
        2: ("0", "0.1", 0.9, 1),
        3: ("0.2", "0.1", 0.7, 2),
        4: ("0.3", "0", 0.7, 2),
    }
    for account in ("people", "agency"):
        for seq, (spent, reserved, left, number) in moments.items():
            then = _balance(client, f"?as_of={seq}", account)
            found = [then[part]["zcdp"]["rho_exact"] for part in ("spent", "reserved")]
            assert (found, then["releases"]) == ([spent, reserved], number)
            assert then["remaining"]["rho"] == pytest.approx(left)
        for tag, seq, expected in (("t", 3, ["0.2", "0.1"]), ("r", 3, ["0", "0.1"]), ("r", 4, ["0.1", "0"])):
            then = _balance(client, f"?as_of={seq}&tag={tag}", account)
            assert [then[part]["zcdp"]["rho_exact"] for part in ("spent", "reserved")] == expected
        assert _balance(client, "?as_of=4", account) == _balance(client, "", account)
        assert _balance(client, "?tag=r", account)["spent"]["zcdp"]["rho_exact"] == "0.1"


def test_what_is_left_is_rounded_down_and_never_below_zero(embedded: Client) -> None:
    open_account(embedded, budget={"definition": "rdp", "alpha": "3", "epsilon": "1"})
    release(embedded, concentrated("1/9"))
    left = _balance(embedded)["remaining"]
    assert Fraction(repr(left["epsilon"])) <= Fraction(2, 3)
    assert left == {"definition": "rdp", "alpha": 3.0, "epsilon": left["epsilon"]}
    assert left["epsilon"] == pytest.approx(2 / 3, rel=1e-15)


def test_remaining_has_the_shape_of_the_budget(embedded: Client) -> None:
    declared = {"type": "declared", "epsilon": "0.5", "delta": "1e-9", "reference": "a proof"}
    open_account(embedded, "a", {"definition": "pure", "epsilon": 1, "delta": "3e-9"})
    left = release(embedded, declared, "a")["remaining"]
    assert left == {"definition": "pure", "epsilon": 0.5, "delta": pytest.approx(2e-9)}
    assert left["delta"] <= 2e-9
    open_account(embedded, "b", {"definition": "approximate", "epsilon": 1, "delta": "1e-6", "declared_delta": "1e-9"})
    left = release(embedded, declared, "b")["remaining"]
    assert left["definition"] == "approximate"
    assert (left["delta"], left["declared_delta"]) == (1e-6, 0.0)
    assert 0.5 <= left["epsilon"] < 1  # admission counts no more than the pure sum as spent


def test_at_several_deltas_at_once(embedded: Client) -> None:
    open_account(embedded)
    release(embedded, concentrated("0.3"))
    several = _balance(embedded, "?delta=1e-10&delta=1e-6")["spent"]
    assert [best["delta"] for best in several["best"]] == [1e-10, 1e-6]
    alone = [_balance(embedded, f"?delta={delta}")["spent"]["best"][0] for delta in ("1e-10", "1e-6")]
    assert several["best"] == alone
    too_many = embedded.get("/v1/accounts/people/balance?" + "&".join(["delta=1e-6"] * 101))
    assert pointers_of(too_many) == ["/query/delta"]
    assert pointers_of(embedded.get("/v1/accounts/people/balance?delta=1e-6&delta=2")) == ["/query/delta/1"]


@pytest.mark.parametrize("query", ["delta=0", "delta=1", "delta=x", "tag=", "tag=a%0Ab", "detla=1e-9"])
def test_questions_without_a_meaning(embedded: Client, query: str) -> None:
    open_account(embedded)
    answer = embedded.get(f"/v1/accounts/people/balance?{query}")
    name = query.partition("=")[0]
    assert pointers_of(answer) == ["/query/delta/0" if name == "delta" else f"/query/{name}"]
