"""Caps on tags over HTTP: opening, changing, statements of plans, refusals, and every answer that shows them."""

from typing import Any

import pytest

from service.ledger.accounts import earlier_releases
from service.ledger.accounts.earlier_releases import EarlierReleases
from service.ledger.installation.signing import Signer
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.verification.receipts import check_receipt
from service.privacy.accounting import effort
from tests.api.calls import (
    Client,
    application,
    charge,
    client_of,
    head_of,
    json_of,
    make_key,
    open_account,
    operators_key,
    pointers_of,
    problem_of,
    release,
)

ZCDP = {"definition": "zcdp", "rho": "1"}
PEOPLE = "/v1/accounts/people"
PANEL = {"calendar": "month", "participation": {"offsets": [0, 1]}}
ANY_TWO = {"calendar": "month", "participation": {"any": 2}}
JANUARY, JUNE = {"list": ["2026-01"]}, {"list": ["2026-06"]}


def cap(tag: str = "hispanic", **budget: Any) -> dict[str, Any]:
    return {"tag": tag, "budget": ZCDP | budget}


def noise(rho: str, *tags: str, **fields: Any) -> dict[str, Any]:
    return {"type": "discrete_gaussian", "rho": rho, **({"tags": list(tags)} if tags else {}), **fields}


def test_an_account_shows_its_caps_and_what_they_count(client: Client) -> None:
    opened = open_account(client, caps=[cap("race", rho="2"), cap()])
    assert [one["tag"] for one in opened["caps"]] == ["hispanic", "race"]
    release(client, noise("0.1", "hispanic"))
    release(client, noise("0.1", "race", cells_replaced=2))
    (hispanic, race) = json_of(client.get(PEOPLE))["caps"]
    assert hispanic == {
        "tag": "hispanic",
        "budget": ZCDP,
        "counted": 0.4,
        "counted_exact": "0.4",
        "remaining": {"definition": "zcdp", "rho": 0.6},
        "used": 0.4,
    }
    assert (race["counted_exact"], race["remaining"]["rho"]) == ("0.2", 1.7999999999999998)
    assert json_of(client.get("/v1/accounts"))["items"][0]["caps"] == [hispanic, race]


def test_an_account_without_caps_shows_none(client: Client) -> None:
    assert "caps" not in open_account(client)
    release(client, noise("0.1", "hispanic"))
    balance = json_of(client.get(f"{PEOPLE}/balance?tag=hispanic"))
    assert "caps" not in balance
    assert "tag_relation" not in balance
    assert balance["spent"]["zcdp"]["rho"] == 0.1
    problem_of(client.get(f"{PEOPLE}/history?tag=hispanic"), "not_found")


def test_balance_and_history_of_a_tag_are_those_of_its_cap(client: Client) -> None:
    open_account(client, caps=[cap(), cap("race", rho="3")])
    release(client, noise("0.1", "hispanic"))
    release(client, noise("0.5", "state"))
    json_of(client.patch(PEOPLE, json={"caps": [cap(rho="2")]}))
    balance = json_of(client.get(f"{PEOPLE}/balance?tag=hispanic"))
    assert (balance["tag_relation"], balance["spent"]["zcdp"]["rho"]) == ("replacement", 0.4)
    assert balance["caps"] == json_of(client.get(PEOPLE))["caps"]
    assert json_of(client.get(f"{PEOPLE}/balance?tag=state"))["spent"]["zcdp"]["rho"] == 0.5
    then = json_of(client.get(f"{PEOPLE}/balance?tag=hispanic&as_of=2"))
    assert (then["caps"][0]["budget"]["rho"], then["caps"][0]["counted"]) == ("1", 0.4)
    history = json_of(client.get(f"{PEOPLE}/history?tag=hispanic"))
    assert (history["tag"], history["budget"]["rho"]) == ("hispanic", "2")
    assert [(point["cap"], point["counted"]) for point in history["points"]] == [(1, 0), (1, 0.4), (1, 0.4), (2, 0.4)]
    picture = client.get(f"{PEOPLE}/history?tag=hispanic", headers={"Accept": "image/svg+xml"})
    assert "Cap on hispanic in people over time" in picture.text


@pytest.mark.parametrize(
    ("plan", "tags", "pointers"),
    [
        (noise("0.1"), [], ["/plan"]),
        (noise("0.1"), ["pl94"], ["/plan"]),  # a release's own tags say what all of it is, not what it leaves out
        ({"type": "sequence", "parts": [noise("0.1", "state"), noise("0.1")]}, [], ["/plan/parts/1"]),
        ({"type": "repeat", "count": 2, "part": noise("0.1")}, [], ["/plan/part"]),
        (noise("0.1", "hispanic", reads="nothing capped"), [], ["/plan/reads"]),
        (noise("0.1", reads="nothing capped"), ["hispanic"], ["/plan/reads"]),
        (noise("0.1", reads="nothing"), [], ["/plan/reads"]),
        (noise("0.1", "hispanic", cells_replaced=0), [], ["/plan/cells_replaced"]),
        (noise("0.1", "hispanic", cells_replaced="2"), [], ["/plan/cells_replaced"]),
    ],
)
def test_a_plan_without_a_statement_is_refused(client: Client, plan: Any, tags: list[str], pointers: list[str]) -> None:
    open_account(client, caps=[cap()])
    before = head_of(client)
    for query in ("", "?dry_run=true"):
        answer = client.post(f"{PEOPLE}/releases{query}", json={"name": "one", "plan": plan, "tags": tags})
        assert pointers_of(answer) == pointers
    many = {"releases": [{"name": "one", "plan": plan, "tags": tags}]}
    assert pointers_of(client.post(f"{PEOPLE}/releases/batch", json=many)) == [f"/releases/0{one}" for one in pointers]
    assert head_of(client) == before


def test_the_fault_says_what_is_accepted(client: Client) -> None:
    open_account(client, caps=[cap()])
    (fault,) = problem_of(charge(client, noise("0.1")), "validation")["errors"]
    assert fault["detail"] == 'expected tags, or "reads": "nothing capped", as the account people has caps'
    for stated in (noise("0.1", reads="nothing capped"), {"type": "sequence", "parts": [noise("0.1")], "tags": ["x"]}):
        release(client, stated)


def test_cells_replaced_belongs_to_add_remove(client: Client) -> None:
    open_account(client, neighbouring="replace_one", caps=[cap()])
    assert pointers_of(charge(client, noise("0.1", "hispanic", cells_replaced=2))) == ["/plan/cells_replaced"]
    release(client, noise("0.1", "hispanic", cells=3))
    assert json_of(client.get(PEOPLE))["caps"][0]["counted_exact"] == "0.3"


@pytest.mark.parametrize(
    ("caps", "pointers"),
    [
        ([], ["/caps"]),
        ([cap(f"tag {number}") for number in range(21)], ["/caps"]),
        ([cap(), cap("race"), cap()], ["/caps/2/tag"]),
        ([cap(""), {"tag": "race"}], ["/caps/0/tag", "/caps/1/budget"]),
        ([cap(rho="0")], ["/caps/0/budget/rho"]),
        ([cap(definition="pure")], ["/caps/0/budget/epsilon", "/caps/0/budget/rho"]),
        ([cap() | {"relation": "replace_one"}], ["/caps/0/relation"]),
        ("hispanic", ["/caps"]),
    ],
)
def test_caps_that_cannot_be_are_refused(client: Client, caps: Any, pointers: list[str]) -> None:
    body = {"name": "people", "unit": "person", "neighbouring": "add_remove", "budget": ZCDP, "caps": caps}
    assert pointers_of(client.post("/v1/accounts", json=body)) == pointers
    assert client.get(PEOPLE).status_code == 404
    open_account(client)
    assert pointers_of(client.patch(PEOPLE, json={"caps": caps})) == pointers
    assert head_of(client)["seq"] == 1


def test_a_change_is_one_change(client: Client) -> None:
    open_account(client, caps=[cap()])
    problem_of(client.patch(PEOPLE, json={"caps": [cap("race")], "state": "closed"}), "validation")
    assert pointers_of(
        client.patch(PEOPLE, json={"caps": [cap() | {"budget": {"definition": "pure", "epsilon": 1}}]})
    ) == ["/caps/0/budget/definition"]


def test_a_cap_below_what_is_spent_is_refused_with_its_place(client: Client) -> None:
    open_account(client)
    release(client, noise("0.1", "state"))
    before = head_of(client)
    refused = problem_of(client.patch(PEOPLE, json={"caps": [cap("race"), cap(rho="0.3")]}), "budget_exceeded")
    assert refused["detail"] == (
        "the new zcdp cap of account 'people' on rho for tag 'hispanic' would be 0.3, below what is spent and held: 0.4"
    )
    assert refused["title"] == "The new budget is below what is spent"
    assert refused["pointer"] == "/caps/1/budget"
    assert refused["failures"] == [
        {
            "account": "people",
            "definition": "zcdp",
            "cap": "rho",
            "requested": 0.4,
            "remaining": 0.3,
            "tag": "hispanic",
        }
    ]
    assert head_of(client) == before
    changed = json_of(client.patch(PEOPLE, json={"caps": [cap(rho="0.4")]}))  # earlier releases count, whatever tags
    assert changed["caps"][0]["counted_exact"] == "0.4"


def test_a_release_beyond_a_cap_is_refused_with_its_tag(client: Client) -> None:
    open_account(client, caps=[cap(rho="0.3")])
    refused = problem_of(charge(client, noise("0.1", "hispanic")), "budget_exceeded")
    assert [failure["tag"] for failure in refused["failures"]] == ["hispanic"]
    assert "for tag 'hispanic'" in refused["detail"]
    assert refused["noise_multiplier_that_fits"] == pytest.approx((4 / 3) ** 0.5, rel=1e-5)
    entry = json_of(client.get(f"{PEOPLE}/journal"))["items"][-1]["entry"]
    assert (entry["kind"], entry["content"]["tag"]) == ("refused", "hispanic")
    problem_of(charge(client, noise("0.1", "hispanic"), dry_run=True), "validation")


def test_a_capacity_is_stopped_by_a_cap(client: Client) -> None:
    open_account(client, caps=[cap(rho="0.5")])
    found = json_of(client.post(f"{PEOPLE}/capacity", json={"plan": noise("0.05", "hispanic")}))
    assert (found["fits"], found["stopped_by"]["tag"]) == (2, "hispanic")
    for _ in range(2):
        release(client, noise("0.05", "hispanic"))
    problem_of(charge(client, noise("0.05", "hispanic")), "budget_exceeded")
    labelled = {"plan": noise("0.05", "state"), "tags": ["hispanic"]}
    assert json_of(client.post(f"{PEOPLE}/capacity", json=labelled))["fits"] == 0
    found = json_of(client.post(f"{PEOPLE}/capacity", json={"plan": noise("0.05", "state")}))
    assert "tag" not in found["stopped_by"]
    assert pointers_of(client.post(f"{PEOPLE}/capacity", json={"plan": noise("0.05")})) == ["/plan"]


def test_a_cap_above_is_named_only_to_keys_that_reach_it(client: Client) -> None:
    open_account(client, "agency", caps=[cap("race", rho="0.1")])
    open_account(client, "people", parent="agency")
    key = make_key(client, "pipeline", accounts=["people"])
    body = {"name": "one", "plan": noise("0.1", "race")}
    seen = problem_of(client.post(f"{PEOPLE}/releases", json=body), "budget_exceeded")
    assert [(failure["account"], failure["tag"]) for failure in seen["failures"]] == [("agency", "race")]
    hidden = problem_of(client.post(f"{PEOPLE}/releases", json=body, headers=key), "budget_exceeded")
    assert [set(failure.values()) for failure in hidden["failures"]] == [{None}]


@pytest.mark.parametrize("periods", [{}, {"periods": PANEL}], ids=["no periods", "periods"])
def test_a_receipt_states_the_prices_under_caps(client: Client, signer: Signer, periods: Any) -> None:
    open_account(client, caps=[cap(), cap("race")], **periods)
    read: dict[str, Any] = {"periods": JANUARY} if periods else {}
    one = release(client, noise("0.1", "hispanic"), **read)
    receipt = json_of(client.get(f"{PEOPLE}/releases/{one['id']}/receipt"))
    assert {tag: price["rho"] for tag, price in receipt["charged"]["caps"].items()} == {"hispanic": "2/5"}
    assert receipt["entry"]["content"]["caps"] == receipt["charged"]["caps"]
    check_receipt(receipt, signer.public_key)
    other = release(client, noise("0.1", "state"), **read)
    assert "caps" not in json_of(client.get(f"{PEOPLE}/releases/{other['id']}/receipt"))["charged"]


def test_raising_a_cap_waits_for_another_steward(client: Client) -> None:
    open_account(client, approval_above="0.5", caps=[cap()])
    answer = client.patch(PEOPLE, json={"caps": [cap(rho="2")]})
    waiting = json_of(answer, 202)
    assert waiting["proposed_change"]["caps"] == [cap(rho="2")]
    assert (waiting["proposed_change"]["budget"], waiting["proposed_change"]["state"]) == (None, None)
    assert waiting["caps"][0]["budget"]["rho"] == "1"


def test_draws_reservations_and_replays_count_once(client: Client) -> None:
    open_account(client, caps=[cap()])
    drawn = {"name": "one", "mechanism": noise("0.05", "hispanic"), "counts": [1, 2, 3]}
    headers = {"Idempotency-Key": "once"}
    first = client.post(f"{PEOPLE}/draws", json=drawn, headers=headers)
    assert json_of(client.post(f"{PEOPLE}/draws", json=drawn, headers=headers), 201) == json_of(first, 201)
    held = release(client, noise("0.05", "hispanic"), reserve_for="PT1H")
    counted = [json_of(client.get(PEOPLE))["caps"][0]["counted_exact"]]
    json_of(client.post(f"{PEOPLE}/releases/{held['id']}/void", json={"reason": "not needed"}))
    counted.append(json_of(client.get(PEOPLE))["caps"][0]["counted_exact"])
    assert counted == ["0.4", "0.2"]
    dry = {"name": "two", "plan": noise("0.05", "hispanic")}
    json_of(client.post(f"{PEOPLE}/releases?dry_run=true", json=dry))
    assert json_of(client.get(PEOPLE))["caps"][0]["counted_exact"] == "0.2"
    assert json_of(client.get(f"{PEOPLE}/verify"))["valid"]


def test_a_cap_beside_periods_counts_the_releases_of_all_periods(client: Client) -> None:
    """Statement T-5: the budget counts each window by itself, and the cap all releases together."""
    opened = open_account(client, periods=PANEL, caps=[cap()])
    assert (opened["periods"]["calendar"], opened["caps"][0]["counted_exact"]) == ("month", "0")
    release(client, noise("0.1", "hispanic"), periods=JANUARY)
    held = release(client, noise("0.05", "hispanic"), periods=JUNE, reserve_for="PT1H")
    release(client, noise("0.2", reads="nothing capped"), periods=JUNE)
    release(client, noise("0.01", "hispanic"), periods="all")
    (counted,) = json_of(client.get(PEOPLE))["caps"]
    assert (counted["counted_exact"], counted["remaining"]["rho"]) == ("0.64", 0.36)
    assert json_of(client.get("/v1/accounts"))["items"][0]["caps"] == [counted]
    for query, window, loss in (("", "2026-05", 0.04), ("&period=2026-01", "2025-12", 0.44)):
        balance = json_of(client.get(f"{PEOPLE}/balance?tag=hispanic{query}"))
        assert (balance["tag_relation"], balance["caps"]) == ("replacement", [counted])
        assert (balance["window"]["start"], balance["spent"]["zcdp"]["rho"]) == (window, loss)
    points = json_of(client.get(f"{PEOPLE}/history?tag=hispanic"))["points"]
    assert [(point["spent"], point["counted"]) for point in points] == [
        (0, 0),
        (0.4, 0.4),
        (0.4, 0.6000000000000001),
        (0.4, 0.6000000000000001),
        (0.44, 0.64),
    ]
    json_of(client.post(f"{PEOPLE}/releases/{held['id']}/void", json={"reason": "not needed"}))
    many = [{"name": "one", "plan": noise("0.05", "hispanic"), "periods": one} for one in (JANUARY, JUNE)]
    json_of(client.post(f"{PEOPLE}/releases/batch", json={"releases": many}), 201)
    (counted,) = json_of(client.get(PEOPLE))["caps"]
    assert counted["counted_exact"] == "0.84"
    assert json_of(client.get(f"{PEOPLE}/balance?as_of=2"))["caps"][0]["counted_exact"] == "0.4"
    assert json_of(client.get(f"{PEOPLE}/verify"))["valid"]


def test_a_refusal_by_a_cap_beside_periods_has_the_tag_and_no_window(client: Client) -> None:
    open_account(client, periods=PANEL, caps=[cap()])
    release(client, noise("0.2", "hispanic"), periods=JANUARY)
    before = json_of(client.get(PEOPLE))["caps"]
    body = {"name": "one", "plan": noise("0.1", "hispanic"), "periods": JUNE}
    for path, sent in (
        ("releases?dry_run=true", body),
        ("releases", body),
        ("releases/batch", {"releases": [body | {"plan": noise("0.01", "hispanic")}, body]}),
    ):
        problem = problem_of(client.post(f"{PEOPLE}/{path}", json=sent), "budget_exceeded")
        assert [(one["tag"], "window" in one) for one in problem["failures"]] == [("hispanic", False)]
        assert json_of(client.get(PEOPLE))["caps"] == before
    assert json_of(client.get(f"{PEOPLE}/balance"))["releases"] == 1


@pytest.mark.parametrize(
    ("period", "loss"), [("", 0.64), ("&period=2026-01", 0.64), ("&period=2026-02", 0.44), ("&period=2026-06", 0.64)]
)
def test_the_balance_of_a_tag_is_a_bound_for_units_in_any_periods(client: Client, period: str, loss: float) -> None:
    """As the cap does, it compares inputs with another value of the attribute; like all such balances, it is a sum."""
    open_account(client, periods=ANY_TWO, caps=[cap(rho="2")])
    for plan, periods in (
        (noise("0.1", "hispanic"), JANUARY),
        (noise("0.05", "hispanic"), JUNE),
        (noise("0.04", "hispanic", cells_replaced=1), "all"),
        (noise("0.3", reads="nothing capped"), {"list": ["2026-02"]}),
    ):
        release(client, plan, periods=periods)
    release(client, noise("0.04", "hispanic", cells_replaced=2), periods=JANUARY, reserve_for="PT1H")
    balance = json_of(client.get(f"{PEOPLE}/balance?tag=hispanic{period}"))
    assert (balance["tag_relation"], balance["basis"]) == ("replacement", "largest_periods")
    assert balance["spent"]["zcdp"]["rho"] == pytest.approx(loss)
    assert balance["caps"][0]["counted_exact"] == "0.72"


@pytest.mark.parametrize(
    ("caps", "periods", "pointers"),
    [
        ([], PANEL, ["/caps"]),
        ([cap() | {"periods": PANEL}], PANEL, ["/caps/0/periods"]),  # there is no cap by windows
        ([cap() | {"windows": True}], PANEL, ["/caps/0/windows"]),
        ([cap(rho="-1")], PANEL, ["/caps/0/budget/rho"]),
        ([cap(rho="NaN")], PANEL, ["/caps/0/budget/rho"]),
        ([cap(rho="Infinity")], PANEL, ["/caps/0/budget/rho"]),
        ([cap(rho=[1])], PANEL, ["/caps/0/budget/rho"]),
        ([cap(), cap()], PANEL, ["/caps/1/tag"]),
        ([cap()], PANEL | {"participation": {"offsets": [1]}}, ["/periods/participation/offsets/0"]),
        ([cap()], PANEL | {"participation": {"any": 0}}, ["/periods/participation/any"]),
    ],
)
def test_caps_beside_periods_are_read_as_others(client: Client, caps: Any, periods: Any, pointers: list[str]) -> None:
    body = {"name": "people", "unit": "person", "neighbouring": "add_remove", "budget": ZCDP, "periods": periods}
    assert pointers_of(client.post("/v1/accounts", json=body | {"caps": caps})) == pointers
    assert client.get(PEOPLE).status_code == 404


def test_a_release_beside_caps_and_periods_states_both(client: Client) -> None:
    open_account(client, periods=PANEL, caps=[cap()])
    before = head_of(client)
    for fields, pointers in (
        ({"plan": noise("0.1"), "periods": JANUARY}, ["/plan"]),
        ({"plan": noise("0.1", "hispanic")}, ["/periods"]),
        ({"plan": noise("0.1", "hispanic"), "periods": {"list": ["2026-13"]}}, ["/periods/list/0"]),
    ):
        assert pointers_of(client.post(f"{PEOPLE}/releases", json={"name": "one"} | fields)) == pointers
    assert head_of(client) == before


_WIDE = {"definition": "zcdp", "rho": 1000}
_APPROXIMATE = {"tag": "race", "budget": {"definition": "approximate", "epsilon": "1000", "delta": "1e-6"}}
_OFFSETS = [{"type": "discrete_osgt", "sigma_squared": f"{100 + k}.5", "m": "3", "tags": ["race"]} for k in range(4)]


@pytest.mark.parametrize("helper_processes", [1])
def test_a_helper_prices_what_a_new_cap_counts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("people", "firms"):
        open_account(client, name, budget=_WIDE)
        plan = {"type": "sequence", "parts": _OFFSETS}
        json_of(client.post(f"/v1/accounts/{name}/releases", json={"name": "x", "plan": plan}), 201)
    change = {"caps": [_APPROXIMATE]}
    monkeypatch.setattr(effort, "LIGHT", 1e9)
    here = json_of(client.patch(PEOPLE, json=change))["caps"]

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("this is for a helper")

    monkeypatch.undo()
    monkeypatch.setattr(earlier_releases, "price_of_earlier", refuse)
    assert json_of(client.patch("/v1/accounts/firms", json=change))["caps"] == here


def test_the_refusal_of_a_helper_is_that_of_this_process(
    database: Database, secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(application(database, secret)) as client:
        open_account(client, budget=_WIDE)
        release(client, {"type": "sequence", "parts": _OFFSETS})
    monkeypatch.setattr(earlier_releases, "FEW", 0)  # reading them is for the helper
    with client_of(application(database, secret, helper_processes=1, max_work=1)) as client:
        refused = problem_of(client.patch(PEOPLE, json={"caps": [_APPROXIMATE]}), "conflict")
    assert "takes too much work: expected at most 1 units" in refused["detail"]


@pytest.mark.parametrize("helper_processes", [0, 1])
def test_an_approver_has_nothing_priced_that_no_steward_proposed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(client, approval_above="0.5", caps=[cap("race")])
    release(client, noise("0.1", "race"))
    approver = operators_key(client, "approver", "bob", ["people"])
    counted, count = list[str](), EarlierReleases.counted_before_lock

    def counting(*arguments: Any, **options: Any) -> EarlierReleases:
        counted.append("once")
        return count(*arguments, **options)

    monkeypatch.setattr(EarlierReleases, "counted_before_lock", counting)
    change = {"caps": [cap("race", rho="2"), cap("sex")]}
    refused = problem_of(client.patch(PEOPLE, json=change, headers=approver), "forbidden")
    assert refused["detail"] == "expected a change that a steward has proposed and that waits: approvers propose none"
    assert not counted
    assert client.patch(PEOPLE, json=change).status_code == 202, "a steward proposes it"
    counted.clear()
    other = {"caps": [cap("race", rho="2"), cap("sex", rho="3")]}
    problem_of(client.patch(PEOPLE, json=other, headers=approver), "forbidden")
    assert not counted
    for _ in range(2):  # the second time it changes nothing
        caps = json_of(client.patch(PEOPLE, json=change, headers=approver))["caps"]
        assert [(one["tag"], one["budget"]["rho"]) for one in caps] == [("race", "2"), ("sex", "1")]
    assert len(counted) == 1
