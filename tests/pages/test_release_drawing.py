"""The page that draws a registered release: what it offers, one draw for each turn, and reasons in words."""

import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.ledger.access.key_records import Role
from tests.api.calls import Client, json_of, open_account, operators_key, pure, release
from tests.pages.forms import form_of, signed_in
from tests.pages.visits import hidden, saved, submit

_TABLE = "county,count\r\n001,12\r\n002,918273645\r\n"
_NEARLY_NONE = {"type": "geometric", "scale": "1e-4"}


@pytest.fixture(autouse=True)
def _wide(api: Client) -> None:
    """Open an account in which nearly no noise fits."""
    open_account(api, "wide", {"definition": "pure", "epsilon": 10**6})


def _registered(api: Client, plan: Any, **fields: Any) -> str:
    """Register a release, and return the address of its page."""
    return f"/accounts/wide/releases/{release(api, plan, 'wide', name='county totals', **fields)['id']}"


def _draw(client: Client, at: str, table: str | bytes | None = _TABLE, mechanism: str = "", **texts: str) -> Any:
    """Send the form of a mechanism as a browser would."""
    page = f"{at}/draw"
    form = form_of(client.get(page, params={"mechanism": mechanism} if mechanism else None), page)
    files = {} if table is None else {"counts": ("counts.csv", table, "text/csv")}
    data = form.with_texts(texts)
    return client.post(page, data=data, files=files)


def _draws(api: Client, at: str) -> list[Any]:
    items: list[Any] = json_of(api.get(f"/v1{at}/draws"))["items"]
    return items


def _left(api: Client) -> Any:
    return json_of(api.get("/v1/accounts/wide"))["remaining"]


def test_from_the_release_to_its_noisy_counts(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE)
    before = _left(api)
    assert f'href="{at}/draw"' in steward.get(at).text
    answer = _draw(steward, at)
    assert "<h1>Drawn</h1>" in answer.text
    assert "charged nothing more" in answer.text
    assert f'href="{at}"' in answer.text
    assert saved(answer.text).decode().splitlines() == [
        "county,noisy,moe,confidence",
        "001,12,0,0.95",
        "002,918273645,0,0.95",
    ]
    (drawn,) = _draws(api, at)
    assert drawn["noisy"] == [12, 918273645]
    assert _left(api) == before
    assert "nothing is drawn twice" in steward.get(at).text
    assert f'href="{at}/draw"' not in steward.get(at).text
    shown = steward.get(f"{at}/draw").text
    assert f'action="{at}/draw"' not in shown
    assert "nothing is drawn twice" in shown


def test_the_first_draw_commits_a_reservation(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE, reserve_for="P1D")
    assert "commits its reservation" in steward.get(f"{at}/draw").text
    assert _draw(steward, at).status_code == 200
    assert json_of(api.get(f"/v1{at}"))["state"] == "committed"


def test_a_release_that_was_approved_is_drawn(api: Client, steward: Client) -> None:
    made = release(api, {"type": "discrete_gaussian", "rho": "0.3"}, "persons", name="approved")
    at = f"/accounts/persons/releases/{made['id']}"
    shown = steward.get(at).text
    assert "waits for approval" in shown
    assert f'href="{at}/draw"' not in shown
    assert "waits for approval" in steward.get(f"{at}/draw").text
    second = TestClient(api.app, headers=operators_key(api, "approver", "second"))  # type: ignore[attr-defined]
    json_of(second.post(f"/v1{at}/approve"))
    assert _draw(steward, at).status_code == 200
    assert len(_draws(api, at)) == 1


def test_a_form_that_is_sent_twice_draws_once(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE)
    form = form_of(steward.get(f"{at}/draw"), f"{at}/draw")
    sent = [
        steward.post(f"{at}/draw", data=form.with_texts({"file": ending}), files={"counts": ("c", table, "text/csv")})
        for ending, table in (("csv", _TABLE), ("csv", _TABLE), ("parquet", _TABLE), ("csv", _TABLE + "3,4\n"))
    ]
    assert [answer.status_code for answer in sent] == [200, 200, 200, 422]
    assert saved(sent[0].text) == saved(sent[1].text)
    assert saved(sent[2].text).startswith(b"PAR1")
    assert "This form has drawn another table" in sent[3].text
    assert "Idempotency-Key" not in sent[3].text
    assert len(_draws(api, at)) == 1


def test_counts_that_are_drawn_are_not_drawn_again(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE)
    form = form_of(steward.get(f"{at}/draw"), f"{at}/draw")
    first = json_of(api.post(f"/v1{at}/draws", json={"mechanism": "/", "counts": [1]}), 201)["draw"]
    answer = steward.post(f"{at}/draw", data=form.fields, files={"counts": ("c", _TABLE, "text/csv")})
    assert answer.status_code == 409
    assert "The counts are already drawn" in answer.text
    assert f'href="/accounts/wide/draws/{first}.csv"' in answer.text
    assert len(_draws(api, at)) == 1


def test_one_of_several_mechanisms_is_chosen(api: Client, steward: Client) -> None:
    parts = [
        _NEARLY_NONE | {"name": "state"},
        _NEARLY_NONE,
        pure("0.1", name="rest"),
        {"type": "laplace", "epsilon": "0.1", "name": "no"},
    ]
    at = _registered(api, {"type": "sequence", "parts": parts})
    shown = steward.get(f"{at}/draw").text
    assert [name in shown for name in ('value="state"', 'value="/parts/1"', 'value="rest"', 'value="no"')] == [
        True,
        True,
        True,
        False,
    ]
    assert f'method="post" action="{at}/draw"' not in shown
    assert _draw(steward, at, mechanism="/parts/1").status_code == 200
    assert [one["mechanism"]["name"] for one in _draws(api, at)] == ["/parts/1"]
    shown = steward.get(f"{at}/draw").text
    assert 'value="/parts/1"' not in shown
    assert _draw(steward, at, mechanism="state").status_code == 200
    assert hidden(steward.get(f"{at}/draw").text, "mechanism") == "rest"  # which is the only one that is left


def test_declared_partitions_are_chosen_from_a_list(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE, partitions=["north", "south"])
    assert 'value="north"' in steward.get(f"{at}/draw").text
    answer = _draw(steward, at, partition="west")
    assert answer.status_code == 422
    assert 'id="partition-fault">expected one of the partitions that the plan declares' in answer.text
    assert _draw(steward, at, partition="north").status_code == 200
    shown = steward.get(f"{at}/draw").text
    assert 'value="north"' not in shown
    assert "The whole input" not in shown
    assert _draw(steward, at, partition="south").status_code == 200
    assert [one["partition"] for one in _draws(api, at)] == ["north", "south"]
    assert "nothing is drawn twice" in steward.get(f"{at}/draw").text


def test_a_number_of_partitions_bounds_their_names(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE, partitions=1)
    assert "declares 1 partition." in steward.get(f"{at}/draw").text
    assert 'id="partition-fault">expected 1 to 200 visible' in _draw(steward, at, partition="a\u200bb").text
    assert _draw(steward, at, partition="north").status_code == 200
    assert "nothing is drawn twice" in steward.get(f"{at}/draw").text


def test_partitions_that_the_plan_does_not_declare_take_a_tick(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE)
    answer = _draw(steward, at, partition="north", disjoint="")
    assert answer.status_code == 422
    assert 'id="partition-fault">the plan declares no partitions: leave this blank' in answer.text
    assert _draws(api, at) == []
    assert _draw(steward, at, partition="north", disjoint="yes").status_code == 200
    assert [one["partition"] for one in _draws(api, at)] == ["north"]


def test_the_draw_is_confirmed(api: Client, steward: Client) -> None:
    shown = steward.get(f"{_registered(api, _NEARLY_NONE)}/draw").text
    assert '<input type="checkbox" required> <span>Draw <span id="what-is-drawn">the counts of' in shown
    assert "as “county totals”. What is drawn cannot be drawn again from this release." in shown
    assert '<script src="/static/draw.js" defer>' in shown


def test_each_repetition_is_drawn_once(api: Client, steward: Client) -> None:
    at = _registered(api, {"type": "repeat", "count": 2, "part": _NEARLY_NONE})
    assert "From 0 to 1." in steward.get(f"{at}/draw").text
    for wrong in ("2", "-1", "x", "0.5"):
        answer = _draw(steward, at, repetition=wrong)
        assert answer.status_code == 422
        assert 'id="repetition-fault"' in answer.text
        assert "JSON" not in answer.text
    for repetition in ("1", "0"):
        assert _draw(steward, at, repetition=repetition).status_code == 200
    assert [one["repetition"] for one in _draws(api, at)] == [1, 0]
    assert "nothing is drawn twice" in steward.get(f"{at}/draw").text


def test_counts_with_a_granularity(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE | {"granularity": "0.5", "scale": "0.001"})
    assert "multiples of 0.5" in steward.get(f"{at}/draw").text
    assert "row 2, column 1: expected a multiple of 0.5" in _draw(steward, at, "count\n1.5x\n").text
    assert b"1.5" in saved(_draw(steward, at, "count\n1.5\n").text)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (None, "expected a file with a line of names and a column count"),
        ("", "expected a file with a line of names and a column count"),
        ("a,b\n1,2\n", "row 1: expected the names of the columns"),
        ("county,count\n001,918273645x\n", "row 2, column 2: expected a whole number"),
        ("county,count\n001,918273645\n001,5\n", "row 3: expected each combination of labels once"),
    ],
)
def test_a_wrong_file_is_told_without_its_counts(
    api: Client, steward: Client, table: str | None, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    at = _registered(api, _NEARLY_NONE)
    answer = _draw(steward, at, table)
    assert answer.status_code == 422
    assert f'id="counts-fault">{fault}' in answer.text
    assert "1 fault" not in answer.text
    assert "918273645" not in answer.text
    assert "918273645" not in "".join(capfd.readouterr())
    assert _draws(api, at) == []


def test_equal_faults_of_a_column_are_one(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE)
    rows = "".join(f"{row};918273645,5\n" for row in range(30))
    answer = _draw(steward, at, f"county;count\n{rows}")
    told = "column 2 (“count”), in at least 10 rows, the first of which is row 2: expected a whole number"
    assert f'id="counts-fault">{told}' in answer.text
    thousands = _draw(steward, at, "county;count\n001;1.000\n")
    assert "row 2, column 2: expected a whole number, and 1000 without a mark between its digits" in thousands.text
    assert _draws(api, at) == []


def test_more_values_than_the_service_reads_at_once(app: FastAPI, api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE)
    app.state.settings = app.state.settings.model_copy(update={"max_json_items": 4})
    answer = _draw(steward, at)
    assert answer.status_code == 413
    assert "expected a table of at most 4 values" in answer.text


def test_a_mechanism_that_the_plan_has_not(api: Client, steward: Client) -> None:
    at = _registered(api, _NEARLY_NONE)
    form = form_of(steward.get(f"{at}/draw"), f"{at}/draw")
    files = {"counts": ("c", _TABLE, "text/csv")}
    answer = steward.post(f"{at}/draw", data=form.with_texts({"mechanism": "other"}), files=files)
    assert answer.status_code == 422
    assert 'id="mechanism-fault">expected the name' in answer.text
    assert steward.post(f"{at}/draw", data=form.with_texts({"file": "pdf"}), files=files).status_code == 422
    assert steward.post(f"{at}/draw", data=form.fields | {"csrf": "x"}, files=files).status_code == 403
    assert _draws(api, at) == []


def test_a_plan_that_the_service_only_accounts(api: Client, steward: Client) -> None:
    at = _registered(api, {"type": "laplace", "epsilon": "0.1"})
    for page in (at, f"{at}/draw"):
        assert "only accounted" in steward.get(page).text


def test_levels_are_left_to_tabulations(api: Client, steward: Client) -> None:
    steps = {"type": "sequence", "parts": [_NEARLY_NONE | {"name": f"State/step {step}"} for step in (1, 2)]}
    level = {"type": "choice", "parts": [_NEARLY_NONE | {"name": "State/total"}, steps]}
    alone = _registered(api, level)
    assert f"POST /v1{alone}/tabulations" in steward.get(alone).text
    beside = _registered(api, {"type": "sequence", "parts": [level, _NEARLY_NONE | {"name": "rest"}]})
    shown = steward.get(f"{beside}/draw").text
    assert "The levels State are drawn as tabulations" in shown
    assert hidden(shown, "mechanism") == "rest"


def test_a_plan_that_is_long_is_left_to_pipelines(
    api: Client, steward: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.pages.drawable.MOST_NODES", 2)
    at = _registered(api, {"type": "sequence", "parts": [_NEARLY_NONE, _NEARLY_NONE]})
    said = f"The plan is too long for a page. A pipeline draws its mechanisms with POST /v1{at}/draws."
    assert said in steward.get(at).text


@pytest.mark.parametrize("state", ["voided", "expired"])
def test_a_release_that_is_over_is_not_drawn(api: Client, steward: Client, state: str) -> None:
    at = _registered(api, _NEARLY_NONE, reserve_for="PT1S")
    form = form_of(steward.get(f"{at}/draw"), f"{at}/draw")
    if state == "voided":
        submit(steward, at, f"{at}/void", reason="withdrawn", attestation="")
    else:
        time.sleep(1.1)
    answer = steward.post(f"{at}/draw", data=form.fields, files={"counts": ("c", _TABLE, "text/csv")})
    assert answer.status_code == 409
    assert f"the release is {state}" in answer.text
    for page in (at, f"{at}/draw"):
        shown = steward.get(page).text
        assert f"The release is {state}: nothing of it may be drawn." in shown
        assert f'action="{at}/draw"' not in shown
    assert _draws(api, at) == []


@pytest.mark.parametrize("role", ["auditor", "approver"])
def test_a_role_that_may_not_draw_is_told_who_does(api: Client, visitor: Client, role: Role) -> None:
    at = _registered(api, _NEARLY_NONE)
    key = operators_key(api, role, "reader")["Authorization"].removeprefix("Bearer ")
    reader = signed_in(visitor, key)  # type: ignore[arg-type]
    for page in (at, f"{at}/draw"):
        shown = reader.get(page).text
        assert "Your key may not draw: that takes the role pipeline or steward." in shown
        assert f"A pipeline draws with POST /v1{at}/draws." in shown
        assert f'action="{at}/draw"' not in shown
        assert f'href="{at}/draw"' not in shown
    fields = {"csrf": hidden(reader.get("/").text, "csrf"), "once": "o", "mechanism": "/"}
    answer = reader.post(f"{at}/draw", data=fields, files={"counts": ("c", _TABLE, "text/csv")})
    assert answer.status_code == 403
    assert _draws(api, at) == []


def test_a_key_without_the_account_sees_nothing(api: Client, visitor: Client) -> None:
    at = _registered(api, _NEARLY_NONE)
    key = operators_key(api, "pipeline", "elsewhere", ["nation"])["Authorization"].removeprefix("Bearer ")
    other = signed_in(visitor, key)  # type: ignore[arg-type]
    assert other.get(f"{at}/draw").status_code in (403, 404)
    fields = {"csrf": hidden(other.get("/").text, "csrf"), "once": "o", "mechanism": "/"}
    answer = other.post(f"{at}/draw", data=fields, files={"counts": ("c", _TABLE, "text/csv")})
    assert answer.status_code in (403, 404)
    assert _draws(api, at) == []


def test_addresses_of_no_release(steward: Client) -> None:
    assert steward.get("/accounts/wide/releases/none/draw").status_code == 404
    assert steward.get("/accounts/nobody/releases/none/draw").status_code == 404


def test_true_counts_are_nowhere(api: Client, steward: Client, app: FastAPI, capfd: pytest.CaptureFixture[str]) -> None:
    """The noise is wide, so that a noisy count is no true one."""
    at = _registered(api, {"type": "geometric", "scale": "100000"})
    answer = _draw(steward, at, "county,count\n001,918273645\n")
    assert answer.status_code == 200
    assert "918273645" not in saved(answer.text).decode()
    assert "918273645" not in "".join(capfd.readouterr())
    shown = [steward.get(page).text for page in (at, f"{at}/draw", "/accounts/wide/journal")]
    assert not any("918273645" in text for text in [answer.text, *shown, *map(str, answer.headers.items())])
