"""Accounts with periods over HTTP: opening, every way to charge, refusals, and what answers say."""

import json
from typing import Any

import pytest

from service.ledger.verification.receipts import check_receipt
from tests.api.calls import Client, head_of, json_of, make_key, open_account, pointers_of, problem_of
from tests.api.streams import MEDIA_TYPE, counts

_PANEL = {"calendar": "month", "participation": {"offsets": [0, 1, 2, 3, 12, 13, 14, 15]}}
_NOISE = {"type": "discrete_gaussian", "rho": "0.1", "name": "n"}
_RELEASE: dict[str, Any] = {"name": "labour force", "plan": _NOISE, "periods": {"from": "2026-01", "to": "2026-03"}}
_PATH = "/v1/accounts/people"


def _post(client: Client, path: str, body: Any, **options: Any) -> Any:
    return client.post(f"{_PATH}/{path}", json=body, **options)


def test_an_account_states_its_periods_and_what_they_mean(client: Client) -> None:
    opened = open_account(client, periods=_PANEL)
    assert opened["periods"].items() >= _PANEL.items()
    assert opened["periods"]["statement"] == (
        "Each person is in the data of the months t + 0 to t + 3, t + 12 to t + 15 alone, for one month t. Each cap of"
        " the budget holds for each person over its whole life."
    )
    assert json_of(client.get(_PATH)) == opened
    waves = {"calendar": "index", "participation": {"offsets": [0]}}
    other = open_account(client, "firms", unit="firm", neighbouring="replace_one", periods=waves)
    assert other["periods"]["statement"] == (
        "Each firm is in the data of at most one wave. Each cap of the budget holds for each firm over its whole life."
        " A record that replaces another is in the data of the same waves."
    )
    assert "periods" not in open_account(client, "plain")
    listed = json_of(client.get("/v1/accounts"))["items"]
    assert [account.get("periods") for account in listed] == [other["periods"], opened["periods"], None]


@pytest.mark.parametrize(
    ("periods", "pointer"),
    [
        ("month", "/periods"),
        ({}, "/periods"),
        ({**_PANEL, "more": 1}, "/periods"),
        ({**_PANEL, "calendar": "decade"}, "/periods/calendar"),
        ({**_PANEL, "calendar": 7}, "/periods/calendar"),
        ({**_PANEL, "participation": {"any": 0}}, "/periods/participation/any"),
        ({**_PANEL, "participation": {"offsets": [0], "any": 3}}, "/periods/participation"),
        ({**_PANEL, "participation": {"offsets": []}}, "/periods/participation/offsets"),
        ({**_PANEL, "participation": {"offsets": [1, 2]}}, "/periods/participation/offsets/0"),
        ({**_PANEL, "participation": {"offsets": [0, 2, 2]}}, "/periods/participation/offsets/2"),
        ({**_PANEL, "participation": {"offsets": [0, 1.5]}}, "/periods/participation/offsets/1"),
        ({**_PANEL, "participation": {"offsets": [0, 10**6]}}, "/periods/participation/offsets/1"),
        ({**_PANEL, "participation": {"offsets": [0, True]}}, "/periods/participation/offsets/1"),
    ],
)
def test_periods_that_no_account_has_are_refused_with_their_place(client: Client, periods: Any, pointer: str) -> None:
    body = {"name": "people", "unit": "person", "neighbouring": "add_remove", "periods": periods}
    answer = client.post("/v1/accounts", json=body | {"budget": {"definition": "zcdp", "rho": 1}})
    assert pointers_of(answer) == [pointer]
    assert client.get(_PATH).status_code == 404


def test_every_way_to_charge_takes_periods(client: Client) -> None:
    open_account(client, periods=_PANEL)
    stated = _RELEASE["periods"]
    assert json_of(_post(client, "releases?dry_run=true", _RELEASE))["periods"] == stated
    first = json_of(_post(client, "releases", _RELEASE), 201)
    assert first["periods"] == stated
    assert json_of(client.get(f"{_PATH}/releases/{first['id']}"))["periods"] == stated
    batch = {"releases": [{**_RELEASE, "periods": "all"}, {**_RELEASE, "periods": {"list": ["2027-05", "2027-01"]}}]}
    both = json_of(_post(client, "releases/batch", batch), 201)["releases"]
    assert [one["periods"] for one in both] == ["all", {"list": ["2027-01", "2027-05"]}]
    drawing = {"name": "d", "mechanism": _NOISE, "counts": [1, 2], "periods": {"list": ["2026-02"]}}
    json_of(_post(client, "draws", drawing), 201)
    table = {"dimensions": [{"name": "x", "values": ["a", "b"]}]}
    json_of(_post(client, "histograms", drawing | table), 201)
    asked = {"name": "n", "mechanism": json.dumps(_NOISE), "periods": json.dumps({"from": "2026-02", "to": "2026-02"})}
    as_stream = {"Content-Type": MEDIA_TYPE}
    answer = client.post(f"{_PATH}/draws", params=asked, content=counts([1]), headers=as_stream)
    assert answer.status_code == 201, answer.text
    items = json_of(client.get(f"{_PATH}/releases"))["items"]
    single = {"from": "2026-02", "to": "2026-02"}
    assert [item["periods"] for item in items] == [stated, "all", both[1]["periods"], single, single, single]
    # The window 2026-01 holds 2026-02 and 2027-01, so it is touched by all six, at 0.1 each.
    account = json_of(client.get(_PATH))
    assert (account["counted_exact"], account["remaining"]["rho"]) == ("0.6", 0.39999999999999997)
    assert json_of(client.get(f"{_PATH}/verify"))["valid"]


def test_a_reservation_keeps_its_periods_through_every_step(client: Client) -> None:
    open_account(client, periods=_PANEL, approval_above="0.05")
    held = json_of(_post(client, "releases", _RELEASE | {"reserve_for": "PT1H"}), 201)
    assert (held["state"], held["periods"]) == ("proposed", _RELEASE["periods"])
    other = make_key(client, "steward", "another")
    for step, headers in (("approve", other), ("commit", {})):
        settled = json_of(client.post(f"{_PATH}/releases/{held['id']}/{step}", headers=headers))
        assert settled["periods"] == _RELEASE["periods"]
    (voided,) = [json_of(_post(client, "releases", _RELEASE | {"reserve_for": "PT1H"}), 201)]
    before = json_of(client.get(_PATH))["counted_exact"]
    json_of(_post(client, f"releases/{voided['id']}/void", {"reason": "a test"}))
    assert (before, json_of(client.get(_PATH))["counted_exact"]) == ("0.2", "0.1")
    assert json_of(client.get(f"{_PATH}/verify"))["valid"]


def test_a_repeated_request_is_answered_as_the_first_one(client: Client) -> None:
    open_account(client, periods=_PANEL)
    key = {"Idempotency-Key": "one"}
    answers = [_post(client, "releases", _RELEASE, headers=key) for _ in range(2)]
    assert answers[0].content == answers[1].content
    assert json_of(client.get(_PATH))["counted_exact"] == "0.1"


@pytest.mark.parametrize(
    ("path", "change", "pointer"),
    [
        ("releases", {"periods": None}, "/periods"),
        ("releases", {"periods": 7}, "/periods"),
        ("releases", {"periods": {"from": "2026-02"}}, "/periods"),
        ("releases", {"periods": {"from": "2026-02", "to": "2026-01"}}, "/periods/to"),
        ("releases", {"periods": {"from": "26-02", "to": "2026-02"}}, "/periods/from"),
        ("releases", {"periods": {"list": ["2026-02", "secret input"]}}, "/periods/list/1"),
        ("releases", {"periods": {"from": "1000-01", "to": "9999-12"}}, "/periods"),
    ],
)
def test_faults_have_their_place_and_never_the_input(client: Client, path: str, change: Any, pointer: str) -> None:
    open_account(client, periods=_PANEL)
    before = head_of(client)
    answer = _post(client, path, _RELEASE | change)
    assert pointers_of(answer) == [pointer]
    assert "secret" not in answer.text
    batch = _post(client, "releases/batch", {"releases": [_RELEASE, _RELEASE | change]})
    assert pointers_of(batch) == [f"/releases/1{pointer}"]
    assert head_of(client) == before


def test_an_account_without_periods_takes_none(client: Client) -> None:
    open_account(client)
    assert pointers_of(_post(client, "releases", _RELEASE)) == ["/periods"]
    asked = {"name": "n", "mechanism": json.dumps(_NOISE), "periods": '"all"'}
    answer = client.post(f"{_PATH}/draws", params=asked, content=counts([1]), headers={"Content-Type": MEDIA_TYPE})
    assert pointers_of(answer) == ["/query/periods"]


def test_a_refusal_names_the_window(client: Client) -> None:
    open_account(client, periods=_PANEL)
    large = {"type": "discrete_gaussian", "rho": "0.95"}
    json_of(_post(client, "releases", _RELEASE | {"plan": large, "periods": {"list": ["2026-05"]}}), 201)
    problem = problem_of(_post(client, "releases", _RELEASE), "budget_exceeded")
    assert problem["window"] == "2025-02"  # the first one that holds a period of both: 2026-02 to 2026-05
    assert problem["failures"][0].items() >= {"window": "2025-02", "cap": "rho"}.items()
    assert "cap on rho in window '2025-02'; the release needs 0.1" in problem["detail"]
    entries = json_of(client.get(f"{_PATH}/journal"))["items"]
    assert entries[-1]["entry"]["content"]["window"] == "2025-02"
    json_of(_post(client, "releases", _RELEASE | {"periods": {"list": ["2026-09"]}}), 201)


def test_a_key_that_does_not_reach_the_account_above_learns_no_window(client: Client) -> None:
    open_account(client, "agency", {"definition": "zcdp", "rho": "0.05"}, periods=_PANEL)
    open_account(client, parent="agency", periods=_PANEL)
    limited = make_key(client, "pipeline", "limited", accounts=["people"])
    problem = problem_of(_post(client, "releases", _RELEASE, headers=limited), "budget_exceeded")
    assert "window" not in problem
    assert "window" not in problem["failures"][0]
    entry = json_of(client.get(f"{_PATH}/journal"))["items"][-1]["entry"]
    assert (entry["kind"], entry["content"].get("window")) == ("refused", None)


def test_a_child_has_a_calendar_that_nests(client: Client) -> None:
    open_account(client, "agency", periods=_PANEL)
    body: dict[str, Any] = {"name": "people", "unit": "person", "neighbouring": "add_remove", "parent": "agency"}
    body |= {"budget": {"definition": "zcdp", "rho": 1}, "periods": _PANEL | {"calendar": "week"}}
    problem = problem_of(client.post("/v1/accounts", json=body), "validation")
    assert problem["errors"] == [
        {
            "pointer": "/periods/calendar",
            "detail": "expected a calendar that nests in month, that of agency: day, month; got week",
        }
    ]


def test_a_receipt_states_the_periods_of_its_release(client: Client) -> None:
    open_account(client, periods=_PANEL)
    release = json_of(_post(client, "releases", _RELEASE), 201)
    receipt = json_of(client.get(f"{_PATH}/releases/{release['id']}/receipt"))
    assert receipt["release"]["periods"] == receipt["entry"]["content"]["periods"] == _RELEASE["periods"]
    check_receipt(receipt, receipt["public_key"])


def test_a_registry_entry_states_the_periods(client: Client) -> None:
    open_account(client, periods=_PANEL)
    metadata = {"name": "n", "description": "d", "intended_use": "u", "data_product_type": "Dataset"}
    release = json_of(_post(client, "releases", _RELEASE), 201)
    as_json = {"Accept": "application/json"}
    lacking = problem_of(client.get(f"{_PATH}/registry-entry", headers=as_json), "incomplete")["missing"]
    known = {name: ["c"] if name.endswith("s") else "2026-01-01" for name in lacking} | {
        name: value for name, value in metadata.items() if name in lacking
    }
    json_of(client.patch(_PATH, json={"metadata": known}))
    whole = json_of(client.get(f"{_PATH}/registry-entry", headers=as_json))["deployment"]
    assert "Each person is in the data of the months t + 0 to t + 3" in whole["privacy_loss"]["privacy_unit_details"]
    assert "for each set of periods in which one unit can be" in whole["accounting"]["composition"]
    one = json_of(client.get(f"{_PATH}/releases/{release['id']}/registry-entry", headers=as_json))["deployment"]
    assert "It reads the periods" in one["accounting"]["composition"]
    assert "2026-03" in one["accounting"]["composition"]
