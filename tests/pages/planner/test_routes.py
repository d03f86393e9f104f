"""The planner over HTTP: its results, its refusals, and registration once per button."""

import html
import json
import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.calls import Answer, charge, concentrated, json_of, make_key, open_account, pure
from tests.pages.forms import Form, form_of, signed_in

_ROWS = {"table": ["Total", "Age"], "geography": ["State", ""], "moe": ["6", "50"]}
_USUAL = {"confidence": ["0.95"] * 2, "cells": ["1"] * 2, "sensitivity": ["1"] * 2}
_UNKNOWN = "\N{EN DASH}"
_LEVELS = {"level": ["Nation", "County"], "moe": ["6", "11"]}


def _open(client: TestClient) -> None:
    """Open an account in each definition."""
    open_account(client, "pure", {"definition": "pure", "epsilon": "1"})
    open_account(client, "zcdp", {"definition": "zcdp", "rho": "0.5"})
    open_account(client, "rdp", {"definition": "rdp", "alpha": "8", "epsilon": "2"})
    open_account(client, "approximate", {"definition": "approximate", "epsilon": "4", "delta": "1e-6"})
    open_account(client, "replaced", {"definition": "zcdp", "rho": "0.5"}, neighbouring="replace_one")


@pytest.fixture
def client(embedded: TestClient) -> TestClient:
    """Return a steward's client of the API."""
    _open(embedded)
    return embedded


@pytest.fixture
def visit(client: TestClient) -> TestClient:
    """Return the same steward's client of the pages."""
    return signed_in(client)


@pytest.fixture(scope="module")
def reader(shared_client: TestClient) -> TestClient:
    """Return a steward's client of accounts that a module's tests share and never charge."""
    _open(shared_client)
    return signed_in(shared_client)


def _press(visit: TestClient, do: str, kind: str = "margins", **texts: Any) -> Answer:
    """Send the form with changed texts and a button."""
    form = form_of(visit.get("/plan", params={"kind": kind}), "/plan")
    rows = _ROWS | _USUAL if kind == "margins" else _LEVELS
    sent = form.with_texts(rows | {"do": do} | texts)
    return visit.post("/plan", data=sent)


def _plans(page: Answer) -> dict[str, Any]:
    """Return the plans of a page as JSON."""
    found = re.findall(r'<pre class="plan" id="plan-(\w+)"[^>]*>(.*?)</pre>', page.text, re.DOTALL)
    return {mechanism: json.loads(html.unescape(text)) for mechanism, text in found}


def _costs(page: Answer) -> list[str]:
    return _row(page, "Charge, ")


def _row(page: Answer, named: str) -> list[str]:
    """Return the figures of a row of the comparison."""
    return re.findall(r"<td[^>]*>(?:<strong>)?([^<\s]+)", _whole_row(page, named))


def _read(client: TestClient, account: str) -> dict[str, Any]:
    found: dict[str, Any] = json_of(client.get(f"/v1/accounts/{account}?with_gauge=true"))
    return found


def _register(visit: TestClient, page: Answer, mechanism: str, **texts: Any) -> Answer:
    sent = form_of(page, "/plan").with_texts({"do": f"register-{mechanism}", "release": "tables"} | texts)
    return visit.post("/plan", data=sent)


def _invalid(page: Answer) -> list[str]:
    """Return the fields that are marked as invalid."""
    assert page.status_code == 422
    marked = [tag for tag in re.findall(r"<(?:input|select)[^>]*>", page.text) if 'aria-invalid="true"' in tag]
    return [found[1] for tag in marked if (found := re.search(r'id="([^"]*)"', tag))]


@pytest.mark.parametrize(
    ("account", "kind"),
    [
        *((name, "margins") for name in ("pure", "zcdp", "rdp", "replaced")),
        ("replaced", "safetab"),  # under add_remove the test in the browser has it
    ],
)
def test_what_is_shown_is_what_the_account_is_charged(
    client: TestClient, visit: TestClient, account: str, kind: str
) -> None:
    page = _press(visit, "plan", kind, account=account)
    assert page.status_code == 200
    plans, costs = _plans(page), _costs(page)
    relation = "replace_one" if account == "replaced" else "add_remove"
    for (mechanism, plan), shown in zip(plans.items(), costs, strict=True):
        before = _read(client, account)["counted"]
        fits = charge(client, plan, account, name="x", reserve_for="P1D").status_code == 201
        assert (f'value="register-{mechanism}"' in page.text) == fits
        if fits:
            truth: float | None = _read(client, account)["counted"] - before
            _void(client, account)
        else:
            question = {"plan": plan, "neighbouring": relation}
            cost = json_of(client.post("/v1/compositions", json=question))
            truth = cost["zcdp"]["rho"] if account == "replaced" else (cost["pure"] or {}).get("epsilon")
        if truth is None:
            assert shown == "infinite"
        else:
            assert truth * (1 - 1e-12) <= float(shown) <= truth * 1.001


def _void(client: TestClient, account: str) -> None:
    """Void all reservations."""
    for held in json_of(client.get(f"/v1/accounts/{account}/releases?state=reserved"))["items"]:
        body = {"reason": "a trial", "attestation": "nothing was published"}
        json_of(client.post(f"/v1/accounts/{account}/releases/{held['id']}/void", json=body))


@pytest.mark.parametrize("account", ["pure", "zcdp", "rdp", "approximate", "spent"])
def test_the_part_of_the_budget_is_by_how_much_the_gauge_grows(
    client: TestClient, visit: TestClient, account: str
) -> None:
    _open_spent(client)
    page = _press(visit, "plan", account=account, moe=["30", "50"])
    for (mechanism, plan), shown in zip(_plans(page).items(), _row(page, "Of the budget"), strict=True):
        before = _read(client, account)["gauge"]["used"]
        if charge(client, plan, account, name=mechanism, reserve_for="P1D").status_code == 201:
            grown = 100 * (_read(client, account)["gauge"]["used"] - before)
            assert grown * (1 - 1e-9) <= float(shown) <= grown * 1.011
            _void(client, account)
        else:
            assert (account, shown) == ("pure", "infinite")
            assert mechanism != "geometric"


def test_as_many_releases_are_said_to_fit_as_register(client: TestClient, visit: TestClient) -> None:
    _open_spent(client)
    page = _press(visit, "plan", account="spent", moe=["8", "10"])
    (plan, *_), (cell, *_) = _plans(page).values(), _cells(page, "Capacity")
    said = re.search(r">([0-9]+) times in all; then spent has no room in its ε budget<", cell)
    assert said is not None
    for _ in range(int(said[1])):
        json_of(charge(client, plan, "spent"), 201)
    assert charge(client, plan, "spent").status_code == 409
    full = _press(visit, "plan", account="spent", moe=["8", "10"])
    assert "not once" in _whole_row(full, "Capacity")


def _open_spent(client: TestClient) -> None:
    open_account(client, "spent", {"definition": "approximate", "epsilon": "4", "delta": "1e-6"})
    for _ in range(3):
        json_of(charge(client, concentrated("0.01"), "spent"), 201)


@pytest.mark.parametrize("account", ["zcdp", "rdp", "approximate", "spent"])
def test_what_is_called_cheaper_leaves_more(client: TestClient, visit: TestClient, account: str) -> None:
    _open_spent(client)
    page = _press(visit, "plan", account=account, moe=["30", "50"])
    left = {}
    for mechanism, plan in _plans(page).items():
        json_of(charge(client, plan, account, name=mechanism, reserve_for="P1D"), 201)
        left[mechanism] = -_read(client, account)["gauge"]["used"]
        _void(client, account)
    badges = ["cheap" in cell for cell in _cells(page, "Of the budget")]
    assert badges == [left[mechanism] == max(left.values()) for mechanism in left]


def _cells(page: Answer, named: str) -> list[str]:
    return re.findall(r"<td[^>]*>.*?</td>", _whole_row(page, named), re.DOTALL)


def _whole_row(page: Answer, named: str) -> str:
    row = re.search(rf"<th [^>]*>(?:<a [^>]*>)?{re.escape(named)}.*?</tr>", page.text, re.DOTALL)
    assert row is not None
    return row[0]


def test_a_key_that_may_not_ask_for_the_capacity_sees_what_a_plan_costs_alone(client: TestClient) -> None:
    """An auditor registers nothing, and one that does not reach the account above is not told how much fits it."""
    open_account(client, "child", parent="zcdp")
    anywhere, below = (
        signed_in(client, make_key(client, "auditor", name, **limit)["Authorization"].removeprefix("Bearer "))
        for name, limit in (("anywhere", {}), ("below", {"accounts": ["child"]}))
    )
    seen, hidden = (_press(visit, "plan", account="child") for visit in (anywhere, below))
    for page in (seen, hidden):
        assert _row(page, "Left after it") == [_UNKNOWN] * 3
        assert _UNKNOWN not in _row(page, "Charge, ")
    assert "then zcdp has no room in its ρ budget" in _whole_row(seen, "Capacity")
    assert _row(hidden, "Of the budget") == _row(hidden, "Capacity") == [_UNKNOWN] * 3
    assert "cheap" not in hidden.text
    assert "zcdp has" not in hidden.text


@pytest.mark.parametrize(("account", "delta"), [("approximate", "1e-6"), ("zcdp", "1e-10")])
def test_a_blank_delta_is_that_of_the_account_that_is_chosen(
    client: TestClient, visit: TestClient, account: str, delta: str
) -> None:
    form = form_of(
        visit.get("/plan", params={"account": "zcdp" if account == "approximate" else "approximate"}), "/plan"
    )
    page = visit.post("/plan", data=form.with_texts(_ROWS | _USUAL | {"do": "plan", "account": account}))
    assert f"ε at δ = {delta}" in re.sub(r"<[^>]*>", "", page.text)
    assert form_of(page, "/plan").fields["delta"] == [""]
    assert _register(visit, page, "discrete_gaussian").status_code == 303
    (found,) = json_of(client.get(f"/v1/accounts/{account}/releases"))["items"]
    assert Fraction(found["delta"]) == Fraction(delta)
    typed = _press(visit, "plan", account=account, delta="1e-8")
    assert "= 1e-8</span>" in typed.text
    assert _register(visit, typed, "discrete_gaussian").status_code == 303
    assert json_of(client.get(f"/v1/accounts/{account}/releases"))["items"][-1]["delta"] == "1e-8"


@pytest.mark.parametrize("account", ["pure", "zcdp", "rdp", "approximate"])
def test_first_comes_what_is_charged_and_the_rest_behind_all_analyses(reader: TestClient, account: str) -> None:
    page = _press(reader, "plan", account=account)
    first, other = page.text.split("<summary>All analyses</summary>")
    names = re.findall(r'<th role="rowheader"[^>]*>(.*?)</th>', first.partition('aria-label="Costs"')[2])
    assert [re.sub(r"<[^>]*>", "", name).split(",")[0] for name in names[:2]] == ["Of the budget", "Charge"]
    assert "for this plan alone" not in first
    assert "for this plan alone" in other
    assert ("can move from" in first) == (account in ("pure", "approximate"))


def test_replaced_records_move_twice_as_many_cells(reader: TestClient) -> None:
    one, two = (_plans(_press(reader, "plan", account=name))["geometric"] for name in ("zcdp", "replaced"))
    assert [part["cells"] for part in one["parts"]] == [1, 1]
    assert [part["cells"] for part in two["parts"]] == [2, 2]


def test_registering_shows_the_release(client: TestClient, visit: TestClient) -> None:
    page = _press(visit, "plan", account="zcdp")
    plan = _plans(page)["geometric"]
    done = _register(visit, page, "geometric", tags="a, b", reserve_for="P1D", purpose="Schools")
    assert done.status_code == 303
    (found,) = json_of(client.get("/v1/accounts/zcdp/releases"))["items"]
    assert json_of(client.get(f"/v1/accounts/zcdp/releases/{found['id']}"))["metadata"] == {"intended_use": "Schools"}
    assert done.headers["Location"] == f"/accounts/zcdp/releases/{found['id']}?done=registered"
    assert "is held in zcdp.</p>" in visit.get(done.headers["Location"]).text
    assert (found["name"], found["state"], found["tags"]) == ("tables", "reserved", ["a", "b"])
    assert found["plan"] == plan


def test_a_purpose_that_cannot_be_recorded_registers_nothing(client: TestClient, visit: TestClient) -> None:
    refused = _register(visit, _press(visit, "plan", account="zcdp"), "geometric", purpose="a\x07b")
    assert refused.status_code == 422
    assert 'id="purpose-fault">expected a text of at most 10,000 characters' in refused.text
    assert json_of(client.get("/v1/accounts/zcdp/releases"))["items"] == []


def test_a_button_that_is_pressed_again_registers_nothing_more(client: TestClient, visit: TestClient) -> None:
    page = _press(visit, "plan", account="zcdp")
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda _: _register(visit, page, "geometric"), range(4)))
    assert {answer.status_code for answer in done} == {303}
    assert len({answer.headers["Location"] for answer in done}) == 1
    assert len(json_of(client.get("/v1/accounts/zcdp/releases"))["items"]) == 1
    # The other button is another release, and so is a page that was computed anew.
    assert _register(visit, page, "discrete_gaussian").headers["Location"] != done[0].headers["Location"]
    assert _register(visit, _press(visit, "plan", account="zcdp"), "geometric").status_code == 303
    assert len(json_of(client.get("/v1/accounts/zcdp/releases"))["items"]) == 3


def test_the_same_button_with_another_name_is_refused(client: TestClient, visit: TestClient) -> None:
    page = _press(visit, "plan", account="zcdp")
    assert _register(visit, page, "geometric").status_code == 303
    again = _register(visit, page, "geometric", release="another")
    assert again.status_code == 422
    assert "The Idempotency-Key was used before" in again.text
    assert len(json_of(client.get("/v1/accounts/zcdp/releases"))["items"]) == 1


@pytest.mark.parametrize("changed", [{"moe": ["7", "50"]}, {"account": "approximate"}, {"cells": ["1", "2"]}])
def test_what_was_not_looked_at_is_not_registered(
    client: TestClient, visit: TestClient, changed: dict[str, Any]
) -> None:
    page = _press(visit, "plan", account="zcdp")
    shown = _register(visit, page, "geometric", **changed)
    assert shown.status_code == 200
    assert "Nothing was registered" in shown.text
    for account in ("zcdp", "approximate"):
        assert json_of(client.get(f"/v1/accounts/{account}/releases"))["items"] == []
    assert _register(visit, shown, "geometric").status_code == 303


def test_a_refusal_is_shown_and_nothing_is_lost(client: TestClient, visit: TestClient) -> None:
    page = _press(visit, "plan", account="pure", moe=["60", "50"])
    json_of(charge(client, pure("0.95"), "pure"), 201)
    refused = _register(visit, page, "geometric", release="late", tags="x")
    assert refused.status_code == 409
    assert "The release exceeds the budget" in refused.text
    fields = form_of(refused, "/plan").fields
    assert (fields["release"], fields["tags"], fields["moe"]) == (["late"], ["x"], ["60", "50"])
    assert re.search(r"pure has 0.0(5|4999) of its ε budget left", " ".join(refused.text.split()))


def test_margins_are_widened_until_the_plan_fits(reader: TestClient) -> None:
    tight: dict[str, Any] = {"account": "pure", "moe": ["2", "3"]}
    buttons = form_of(_press(reader, "plan", **tight), "/plan").buttons
    assert [button for button in buttons if button.startswith("widen")] == ["widen-geometric"]  # pure: no Gaussian
    form = form_of(_press(reader, "widen-geometric", **tight), "/plan")
    assert "register-geometric" in form.buttons
    assert [int(moe) for moe in form.fields["moe"]] == [5, 6]


def test_margins_are_widened_no_further_than_needed(reader: TestClient) -> None:
    """One of them is rounded up to twice as much, and has room as it was once the other is wide."""
    tight: dict[str, Any] = {"account": "zcdp", "moe": ["1.5", "1"], "table": ["a", "b"]}
    form = form_of(_press(reader, "widen-discrete_gaussian", **tight), "/plan")
    assert "register-discrete_gaussian" in form.buttons
    margins = [int(moe) for moe in form.fields["moe"]]
    for row in range(2):
        narrower = [str(moe - (place == row)) for place, moe in enumerate(margins)]
        again = form_of(_press(reader, "plan", **tight | {"moe": narrower}), "/plan")
        assert narrower[row] in ("0", "1") or "register-discrete_gaussian" not in again.buttons


def test_a_margin_is_no_share(reader: TestClient) -> None:
    page = _press(reader, "plan", account="zcdp", moe=["10 %", "50"])
    assert page.status_code == 422
    assert "Margin of error: expected a number of units, such as 10; for a share of a count" in page.text
    assert form_of(page, "/plan").fields["moe"] == ["10 %", "50"]


def test_a_thousand_is_refused_in_words(reader: TestClient) -> None:
    page = _press(reader, "plan", account="zcdp", moe=["1.000", "50"], sensitivity=["1", "2.000"])
    assert "Margin of error: 1.000: write 1 or 1000" in page.text
    assert "Sensitivity: 2.000: write 2 or 2000" in page.text
    page = _press(reader, "plan", account="zcdp", moe=["1.500", "50"])
    assert (page.status_code, "Margin of error: 1.500: write 1 or 1500" in page.text) == (422, True)
    form = form_of(reader.get("/plan", params={"kind": "relative_errors"}), "/plan")
    rows = {"table": ["a", "", ""], "relative_error": ["5 %", "", ""], "typical_count": ["1.500", "", ""]}
    page = reader.post("/plan", data=form.with_texts(rows | {"do": "plan", "account": "zcdp"}))
    assert (page.status_code, "Typical count: 1.500: write 1 or 1500" in page.text) == (422, True)


def test_margins_that_act_as_others_have_a_note(reader: TestClient) -> None:
    page = _press(reader, "plan", account="zcdp", moe=["11.5", "50"])
    assert page.text.count("so that this margin acts as 11.") == 1
    form = form_of(reader.get("/plan", params={"kind": "relative_errors"}), "/plan")
    rows = {"table": ["a", "b", ""], "relative_error": ["5 %", "5", ""], "typical_count": ["10", "1200", ""]}
    page = reader.post("/plan", data=form.with_texts(rows | {"do": "plan", "account": "zcdp"}))
    assert "expected less than 100 %: write 5 % or 0.05" in page.text
    assert "A margin below 1 acts as 0" in page.text


def test_a_fault_of_the_file_is_at_the_file(reader: TestClient) -> None:
    form = form_of(reader.get("/plan"), "/plan")
    for content, told in (
        (b"PK\xff", "expected a CSV file in UTF-8: save it"),
        (b"Table,Notes,Margin of error\na,b,6\n", "each once and nothing else; got “Notes”"),
    ):
        page = reader.post("/plan", data=form.with_texts({"do": "read"}), files={"file": ("rows.csv", content)})
        assert page.status_code == 422
        assert 'id="file-fault">' in page.text
        assert told in page.text
        assert 'id="targets-fault"' not in page.text


def test_a_parent_without_room_is_named(client: TestClient, visit: TestClient) -> None:
    open_account(client, "child", {"definition": "zcdp", "rho": "5"}, parent="zcdp")
    page = _press(visit, "plan", account="child", moe=["1", "50"])
    assert "zcdp has 0.5 of its ρ budget left" in " ".join(page.text.split())
    assert "register-geometric" not in form_of(page, "/plan").buttons


@pytest.mark.parametrize(
    ("typed", "fields"),
    [
        ({"account": ""}, ["cap"]),
        ({"account": "nobody's"}, ["account"]),
        ({"moe": ["NaN", "-1"]}, ["moe-0", "moe-1"]),
        ({"moe": ["5", "-1"]}, ["moe-1"]),
        ({"moe": ["5", "1e999"]}, ["moe-1"]),
        ({"moe": ["1e300", "5"]}, ["moe-0"]),
        ({"moe": ["", ""]}, ["moe-0", "moe-1"]),
        ({"confidence": ["0.95", "1"]}, ["confidence-1"]),
        ({"confidence": ["x", "2"]}, ["confidence-0", "confidence-1"]),
        ({"cells": ["1.5", "99999999999999999999"]}, ["cells-0", "cells-1"]),
        ({"sensitivity": ["0.5", "1"]}, ["sensitivity-0"]),
        ({"table": ["", "Age"], "geography": ["", ""]}, ["table-0"]),
        ({"table": ["Age", "Age"], "geography": ["", ""]}, ["table-1"]),
        ({"table": ["Age", "Age"], "geography": ["", ""], "confidence": ["0.9", "0.95"]}, ["table-0", "table-1"]),
        ({"table": ["x" * 300, "Age"]}, ["table-0"]),
        ({"table": ["", ""], "geography": ["", ""], "moe": ["", ""]}, ["table-0"]),
        ({"delta": "1"}, ["delta"]),
        ({"delta": "<b>"}, ["delta"]),
    ],
)
def test_what_has_no_meaning_is_said_at_its_field(reader: TestClient, typed: dict[str, Any], fields: list[str]) -> None:
    page = _press(reader, "plan", **({"account": "zcdp"} | typed))
    assert _invalid(page) == fields
    sent = Form(page.text, "/plan").fields
    for name, texts in typed.items():
        assert sent[name] == (texts if isinstance(texts, list) else [texts]) or name == "account"


@pytest.mark.parametrize(
    ("typed", "fields"),
    [
        ({"stability": "0"}, ["stability"]),
        ({"stability": "9.0"}, ["stability"]),
        ({"stage_1_fraction": "1"}, ["stage_1_fraction"]),
        ({"confidence": "0.9", "method": "safetab"}, ["confidence"]),
        ({"method": "other"}, ["method"]),
        ({"level": ["Nation", "Nation"]}, ["level-1"]),
        ({"moe": ["6", ""]}, ["moe-1"]),
        ({"delta": "0"}, ["delta"]),
    ],
)
def test_what_has_no_meaning_for_safetab(reader: TestClient, typed: dict[str, Any], fields: list[str]) -> None:
    assert _invalid(_press(reader, "plan", "safetab", **({"account": "zcdp"} | typed))) == fields


@pytest.mark.parametrize(
    ("typed", "fields"),
    [
        ({"release": ""}, ["release"]),
        ({"release": "a\x07b"}, ["release"]),
        ({"tags": ",".join(map(str, range(65)))}, ["tags"]),
        ({"reserve_for": "a week"}, ["reserve_for"]),
        ({"reserve_for": "P400D"}, ["reserve_for"]),
    ],
)
def test_what_has_no_meaning_of_a_release(
    client: TestClient, visit: TestClient, typed: dict[str, Any], fields: list[str]
) -> None:
    page = _press(visit, "plan", account="zcdp")
    assert _invalid(_register(visit, page, "geometric", **typed)) == fields
    assert json_of(client.get("/v1/accounts/zcdp/releases"))["items"] == []


@pytest.mark.parametrize("do", ["", "everything", "register-laplace", "register-", "remove-x", "widen-"])
def test_a_button_that_is_not_there(reader: TestClient, do: str) -> None:
    assert _press(reader, do, account="zcdp").status_code == 422


@pytest.mark.parametrize("changed", [{"once": ""}, {"kind": "tea"}, {"once": "ü"}, {"once": "€"}, {"once": "x" * 300}])
def test_a_form_that_was_tampered_with(client: TestClient, visit: TestClient, changed: dict[str, str]) -> None:
    page = _press(visit, "plan", account="zcdp")
    assert _register(visit, page, "geometric", **changed).status_code == 422
    assert json_of(client.get("/v1/accounts/zcdp/releases"))["items"] == []


def test_a_forged_form_does_nothing(client: TestClient, visit: TestClient) -> None:
    page = _press(visit, "plan", account="zcdp")
    assert _register(visit, page, "geometric", csrf="forged").status_code == 403
    assert json_of(client.get("/v1/accounts/zcdp/releases"))["items"] == []


def test_rows_come_and_go_without_losing_what_was_typed(reader: TestClient) -> None:
    typed: dict[str, Any] = {"account": "zcdp", "table": ["<b>", "Age"]}
    more = form_of(_press(reader, "add", **typed), "/plan").fields
    assert (more["table"], more["account"]) == (["<b>", "Age", ""], ["zcdp"])
    fewer = form_of(_press(reader, "remove-0", **typed), "/plan").fields
    assert (fewer["table"], fewer["moe"]) == (["Age"], ["50"])


def test_keys_see_what_they_reach(client: TestClient) -> None:
    def key(role: str, **limits: Any) -> TestClient:
        return signed_in(client, make_key(client, role, f"a {role}", **limits)["Authorization"].removeprefix("Bearer "))

    limited = key("pipeline", accounts=["zcdp"])
    assert _invalid(_press(limited, "plan", account="pure")) == ["account"]
    assert "register-geometric" in form_of(_press(limited, "plan", account="zcdp"), "/plan").buttons
    auditor = key("auditor")
    page = _press(auditor, "plan", account="zcdp")
    assert page.status_code == 200
    assert not [button for button in form_of(page, "/plan").buttons if button.startswith("register")]
    # If the button is sent all the same, the API refuses it.
    steward = _press(signed_in(client), "plan", account="zcdp")
    digest = form_of(steward, "/plan").fields["shown-geometric"]
    assert _register(auditor, page, "geometric", **{"shown-geometric": digest}).status_code == 403
    assert json_of(client.get("/v1/accounts/zcdp/releases"))["items"] == []


def test_what_needs_approval_is_said_to(client: TestClient, visit: TestClient) -> None:
    open_account(client, "watched", approval_above="0.01")
    page = _press(visit, "plan", account="watched")
    assert page.text.count("once others approve it") == 3
    assert _register(visit, page, "geometric").status_code == 303
    (found,) = json_of(client.get("/v1/accounts/watched/releases"))["items"]
    assert found["state"] == "proposed"


def test_closed_accounts_are_not_offered(client: TestClient, visit: TestClient) -> None:
    page = _press(visit, "plan", account="zcdp")
    json_of(client.patch("/v1/accounts/zcdp", json={"state": "closed"}))
    assert _register(visit, page, "geometric").status_code == 409
    assert '<option value="zcdp">' not in visit.get("/plan").text
    assert '<option value="pure">' in visit.get("/plan").text


def test_the_account_alone_is_for_the_script(reader: TestClient) -> None:
    piece = reader.get("/plan/account", params={"account": "approximate"})
    assert piece.status_code == 200
    assert "<html" not in piece.text
    assert "4" in piece.text
    assert "Choose an account" in reader.get("/plan/account", params={"account": "../keys"}).text


def test_without_a_session_there_is_nothing(client: TestClient) -> None:
    stranger = TestClient(client.app, headers={"Accept": "text/html"}, follow_redirects=False)
    for path in ("/plan", "/plan/account"):
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers["Location"].partition("?")[0]) == (303, "/")
    assert stranger.post("/plan").status_code == 401


def test_another_kind_of_plan_keeps_what_both_ask_for(reader: TestClient) -> None:
    form = form_of(_press(reader, "kind-weights", account="zcdp", release="kept"), "/plan").fields
    assert (form["kind"], form["account"], form["release"]) == (["weights"], ["zcdp"], ["kept"])
    assert form["table"] == _ROWS["table"]
    assert "moe" not in form
    back = form_of(reader.post("/plan", data=form | {"do": "kind-margins"}), "/plan").fields
    assert (back["kind"], back["table"], back["moe"]) == (["margins"], _ROWS["table"], [""] * len(_ROWS["table"]))
    unknown = _press(reader, "kind-lottery")
    assert unknown.status_code == 422
    assert "lottery" not in unknown.text


def test_decimal_commas_and_percentages_are_numbers(visit: TestClient) -> None:
    texts = {"do": "plan", "account": "zcdp", "moe": ["12,0", "50"], "confidence": ["95 %", "0,9"]}
    shown = visit.post("/plan", data=form_of(visit.get("/plan"), "/plan").with_texts(_ROWS | _USUAL | texts)).text
    assert "Plan and cost" in shown
    assert 'value="12.0"' in shown
    assert 'value="0.9"' in shown
    texts["moe"] = ["1,000", "50"]
    shown = visit.post("/plan", data=form_of(visit.get("/plan"), "/plan").with_texts(_ROWS | _USUAL | texts)).text
    assert '<a href="#moe-0">Margin of error of row 1</a>: expected a number such as 0.5, 0,5 or 1/3' in shown


def test_a_form_without_targets_says_what_it_lacks(visit: TestClient) -> None:
    form = form_of(visit.get("/plan"), "/plan")
    shown = visit.post("/plan", data=form.with_texts({"do": "plan", "account": "zcdp"})).text
    assert '<a href="#table-0">Table of row 1</a>: expected at least one row that is filled in' in shown


def test_a_result_may_be_shown_again_on_the_way_back(visit: TestClient) -> None:
    form = form_of(visit.get("/plan"), "/plan")
    answer = visit.post("/plan", data=form.with_texts(_ROWS | _USUAL | {"do": "plan", "account": "zcdp"}))
    assert answer.headers["Cache-Control"] == "private, no-cache"
    assert visit.get("/plan").headers["Cache-Control"] == "no-store"


def test_a_plan_is_held_for_a_week_in_words(client: TestClient, visit: TestClient) -> None:
    form = form_of(visit.get("/plan"), "/plan")
    planned = visit.post("/plan", data=form.with_texts(_ROWS | _USUAL | {"do": "plan", "account": "zcdp"}))
    texts = {"do": "register-geometric", "release": "held", "reserve_for": "1 week"}
    visit.post("/plan", data=form_of(planned, "/plan").with_texts(texts))
    (held,) = json_of(client.get("/v1/accounts/zcdp/releases"))["items"]
    assert held["state"] == "reserved"


def test_a_plan_that_costs_a_short_decimal_is_shown_at_it(reader: TestClient) -> None:
    """Noise with σ² = 10/9 and 10/3 costs exactly 0.6, which is 120 % of 0.5."""
    rows = {"table": ["Employment", "Age by sex"], "geography": ["County", "State"], "weight": ["3", "1"]}
    form = form_of(reader.get("/plan", params={"kind": "weights"}), "/plan")
    texts = rows | {name: ["1"] * 2 for name in ("cells", "sensitivity")}
    found = reader.post("/plan", data=form.with_texts(texts | {"account": "zcdp", "divided": "0.6", "do": "plan"}))
    words = " ".join(re.sub("<[^>]+>", " ", html.unescape(found.text)).split())
    assert "σ² = 10/9" in words
    assert "zcdp has 0.5 of its ρ budget left; it would take 0.6." in words
    assert "120 %" in words
    assert "121 %" not in words
    assert re.search(r'<span title="b = [0-9./]{9,}">b ≈ [0-9.]{4,6}</span>', found.text)


@pytest.mark.parametrize(
    ("kind", "rows", "wrong"),
    [
        (
            "margins",
            {"moe": ["many", "-1", "6", "6", "6"], "sensitivity": ["1", "1", "0.5", "1", "1"], "table": list("abcdd")},
            ["moe-0", "moe-1", "sensitivity-2", "table-4"],
        ),
        (
            "margins",
            {"moe": ["6", "6", "-1"], "confidence": ["2", "2", "0.95"], "table": list("abc")},
            ["confidence-0", "confidence-1", "moe-2"],
        ),
        (
            "relative_errors",
            {"relative_error": ["x", "0.1", "0.1"], "typical_count": ["9", "9", "9"], "table": list("abb")},
            ["relative_error-0", "table-2"],
        ),
        ("safetab", {"moe": ["-1", "x", "9", "9"], "level": list("abcc")}, ["moe-0", "moe-1", "level-3"]),
    ],
)
def test_the_faults_of_all_rows_are_told_together(
    visit: TestClient, kind: str, rows: dict[str, list[str]], wrong: list[str]
) -> None:
    usual = {"geography": "x", "confidence": "0.95", "cells": "1", "sensitivity": "1"} if kind != "safetab" else {}
    rows = {name: [text] * len(rows["moe" if "moe" in rows else "table"]) for name, text in usual.items()} | rows
    assert sorted(_invalid(_press(visit, "plan", kind, account="zcdp", **rows))) == sorted(wrong)
