"""Scenarios on the pages: saved from the planner, listed, compared, exported, registered and deleted."""

import csv
import io
import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.calls import Answer, concentrated, json_of, make_key, open_account, release
from tests.pages.forms import form_of, signed_in

_ROWS: dict[str, dict[str, Any]] = {
    "margins": {"table": ["Total", "Age"], "geography": ["State", ""], "moe": ["6", "50"]},
    "variances": {"table": ["Total", "Age"], "geography": ["State", ""], "variance": ["11", "700"]},
    "relative_errors": {
        "table": ["Total", "Age"],
        "geography": ["State", ""],
        "relative_error": ["0.005", "0.125"],
        "typical_count": ["1200", "400"],
    },
    "weights": {"table": ["Total", "Age"], "geography": ["State", ""], "weight": ["3", "1"]},
    "safetab": {"level": ["Nation", "County"], "moe": ["6", "11"]},
}
_USUAL = {"confidence": ["0.95"] * 2, "cells": ["1"] * 2, "sensitivity": ["1"] * 2}
_SUPPOSED = {"account": "", "unit": "household", "definition": "approximate", "cap": "2", "delta": "0.0000001"}


@pytest.fixture
def client(embedded: TestClient) -> TestClient:
    """Return a steward's client of the API."""
    open_account(embedded, "zcdp", {"definition": "zcdp", "rho": "0.5"})
    open_account(embedded, "replaced", {"definition": "rdp", "alpha": "8", "epsilon": "2"}, neighbouring="replace_one")
    return embedded


@pytest.fixture
def visit(client: TestClient) -> TestClient:
    """Return the same steward's client of the pages."""
    return signed_in(client)


def _press(visit: TestClient, do: str, kind: str = "margins", **texts: Any) -> Answer:
    usual = {} if kind == "safetab" else {name: _USUAL[name] for name in ("cells", "sensitivity")}
    if kind not in ("safetab", "weights"):
        usual |= {"confidence": _USUAL["confidence"]}
    form = form_of(visit.get("/plan", params={"kind": kind}), "/plan")
    return visit.post("/plan", data=form.with_texts(_ROWS[kind] | usual | {"do": do} | texts))


def _save(visit: TestClient, mechanism: str, kind: str = "margins", **texts: Any) -> str:
    """Save a scenario from the planner's form, and return its id."""
    answer = _press(visit, f"save-{mechanism}", kind, **texts)
    assert answer.status_code == 303, answer.text
    found = re.fullmatch(r"/scenarios/([0-9a-f-]+)\?done=saved", answer.headers["Location"])
    assert found is not None
    return found[1]


@pytest.mark.parametrize("kind", list(_ROWS))
@pytest.mark.parametrize("of", [{"account": "zcdp"}, {"account": "replaced", "delta": "1e-9"}, _SUPPOSED])
def test_a_scenario_opens_in_the_planner_as_it_was_saved(
    client: TestClient, visit: TestClient, kind: str, of: dict[str, str]
) -> None:
    mechanism = "geometric" if kind == "safetab" else "discrete_osgt"
    saved = _save(visit, mechanism, kind, scenario_name="first", **of)
    opened = form_of(visit.get("/plan", params={"scenario": saved}), "/plan")
    for name, texts in (_ROWS[kind] | of).items():
        assert opened.fields[name] == (texts if isinstance(texts, list) else [texts])
    before = json_of(client.get(f"/v1/scenarios/{saved}"))
    changed = opened.with_texts({"do": f"save-{mechanism}"})
    assert visit.post("/plan", data=changed).headers["Location"] == f"/scenarios/{saved}?done=saved"
    after = json_of(client.get(f"/v1/scenarios/{saved}"))
    assert after | {"changed_at": ""} == before | {"changed_at": ""}
    other = visit.post("/plan", data=changed | {"scenario_name": "second"}).headers["Location"]
    assert other != f"/scenarios/{saved}?done=saved"
    taken = visit.post("/plan", data=changed | {"scenario_name": "second", "once": "another"})
    assert taken.status_code == 409
    assert "none of your scenarios has" in taken.text


def test_the_same_targets_in_other_words_cost_the_same(client: TestClient, visit: TestClient) -> None:
    """A relative error of a half percent of 1,200 is a margin of 6, and an eighth of 400 one of 50."""
    ids = [
        _save(visit, "geometric", kind, scenario_name=kind, account="zcdp") for kind in ("margins", "relative_errors")
    ]
    rows = _results(visit, *ids)
    assert rows[0]["charge"] == rows[2]["charge"]
    assert [row["margin"] for row in rows] == ["6", "50"] * 2
    assert [row["noise"] for row in rows[:2]] == [row["noise"] for row in rows[2:]]


def _results(visit: TestClient, *ids: str) -> list[dict[str, str]]:
    table = visit.get("/scenarios/results.csv", params={"id": list(ids)})
    assert table.status_code == 200
    return list(csv.DictReader(io.StringIO(table.text, newline="")))


def test_results_are_those_of_the_present_budget_and_what_is_registered(client: TestClient, visit: TestClient) -> None:
    saved = _save(visit, "discrete_gaussian", scenario_name="totals", account="zcdp")
    first, second = _results(visit, saved)
    assert (first["target"], second["target"]) == ("State/Total", "Age")
    assert (first["definition"], first["delta"], first["fits"]) == ("zcdp", "1e-10", "true")
    assert first["percent_of_budget"] == first["percent_of_what_is_left"]
    release(client, concentrated("0.25"), "zcdp")
    again = _results(visit, saved)[0]
    assert again["charge"] == first["charge"]
    assert float(again["percent_of_what_is_left"]) == pytest.approx(
        2 * float(first["percent_of_what_is_left"]), rel=1e-2
    )
    page = visit.get(f"/scenarios/{saved}")
    form = form_of(page, f"/scenarios/{saved}/register")
    assert form.fields["release"] == ["totals"]
    sent = form.with_texts({"tags": "a, b"})
    twice = [visit.post(f"/scenarios/{saved}/register", data=sent) for _ in range(2)]
    assert {answer.status_code for answer in twice} == {303}
    assert twice[0].headers["Location"] == twice[1].headers["Location"]
    found = json_of(client.get("/v1" + twice[0].headers["Location"].partition("?")[0]))
    assert (found["name"], found["tags"], found["state"]) == ("totals", ["a", "b"], "committed")
    assert found["cost"]["zcdp"]["rho"] == pytest.approx(float(first["charge"]), rel=1e-9)
    assert [part["name"] for part in found["plan"]["parts"]] == ["State/Total", "Age"]
    release(client, concentrated("0.2"), "zcdp")
    full = visit.get(f"/scenarios/{saved}")
    assert "The dry run is refused" in full.text
    assert visit.post(f"/scenarios/{saved}/register", data=sent | {"once": "another"}).status_code == 409


def test_only_the_plan_that_was_shown_is_registered(client: TestClient, visit: TestClient) -> None:
    saved = _save(visit, "geometric", scenario_name="totals", account="zcdp")
    form = form_of(visit.get(f"/scenarios/{saved}"), f"/scenarios/{saved}/register")
    body = json_of(client.get(f"/v1/scenarios/{saved}"))
    kept = {name: body[name] for name in ("name", "kind", "mechanism", "account", "targets")}
    kept["targets"][0]["moe"] = "7"
    json_of(client.put(f"/v1/scenarios/{saved}", json=kept))
    answer = visit.post(f"/scenarios/{saved}/register", data=form.fields)
    assert answer.status_code == 200
    assert "Nothing was registered" in answer.text
    wrong = form_of(answer, f"/scenarios/{saved}/register").with_texts({"reserve_for": "long", "release": "kept"})
    refused = visit.post(f"/scenarios/{saved}/register", data=wrong)
    assert refused.status_code == 422
    assert 'value="kept"' in refused.text
    assert json_of(client.get("/v1/accounts/zcdp/releases"))["items"] == []


def test_two_to_four_are_compared(client: TestClient, visit: TestClient) -> None:
    ids = [
        _save(visit, "geometric", scenario_name="one", account="zcdp"),
        _save(visit, "discrete_osgt", scenario_name="two", account="zcdp"),
        _save(visit, "geometric", scenario_name="three", **_SUPPOSED),
        _save(visit, "geometric", "weights", scenario_name="four", account="zcdp", divided="0.1"),
    ]
    page = visit.get("/scenarios/compare", params={"id": ids})
    assert page.status_code == 200
    assert "cheap" not in _press(visit, "plan", "weights", account="zcdp").text
    for name in ("one", "two", "three", "four", "±6", "household"):
        assert name in page.text
    for wrong in ([], ids[:1], ids[:1] * 2, [*ids, _save(visit, "geometric", scenario_name="five", account="zcdp")]):
        assert visit.get("/scenarios/compare", params={"id": wrong}).status_code == 422
    assert visit.get("/scenarios/compare", params={"id": ["no", "such"]}).status_code == 404
    file = json.loads(visit.get("/scenarios/results.json", params={"id": ids}).text)
    assert [one["scenario"]["name"] for one in file] == ["one", "two", "three", "four"]
    assert file[2]["result"][0]["definition"] == "approximate"
    assert float(file[3]["result"][0]["charge"]) <= 0.1
    listed = visit.get("/scenarios")
    assert listed.text.count('type="checkbox"') == 5
    assert visit.get("/scenarios.csv").text.count("\n") == 6


def test_a_scenario_that_cannot_be_worked_out_says_why(client: TestClient, visit: TestClient) -> None:
    body = {"kind": "margins", "mechanism": "geometric", "account": "zcdp", "name": "early"}
    body |= {"targets": [{"table": "Total", "moe": "6", "confidence": "2"}]}  # type: ignore[dict-item]
    saved = json_of(client.post("/v1/scenarios", json=body), 201)["id"]
    page = visit.get(f"/scenarios/{saved}")
    assert "Confidence of row 1" in page.text
    (row,) = _results(visit, saved)
    assert "Confidence of row 1" in row["fault"]
    assert row["charge"] == ""


def test_those_who_may_delete(client: TestClient, visit: TestClient) -> None:
    saved = _save(visit, "geometric", scenario_name="totals", account="zcdp")
    reader = make_key(client, "auditor", "reader")["Authorization"].removeprefix("Bearer ")
    with_reader = signed_in(client, reader)
    page = with_reader.get(f"/scenarios/{saved}")
    assert "/delete" not in page.text
    assert "/register" not in page.text
    form = form_of(visit.get(f"/scenarios/{saved}"), f"/scenarios/{saved}/delete")
    answer = visit.post(f"/scenarios/{saved}/delete", data=form.fields)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/scenarios?done=deleted")
    assert visit.get(f"/scenarios/{saved}").status_code == 404
    assert visit.get("/plan", params={"scenario": saved}).status_code == 404
    assert "There are none yet" in visit.get("/scenarios").text


@pytest.mark.parametrize(
    ("kind", "typed", "fields"),
    [
        ("variances", {"variance": ["0", "1"]}, ["variance-0"]),
        ("variances", {"variance": ["x", "1e99"]}, ["variance-0", "variance-1"]),
        ("relative_errors", {"relative_error": ["0", "NaN"]}, ["relative_error-0", "relative_error-1"]),
        ("relative_errors", {"typical_count": ["-1", "1e300"]}, ["typical_count-0", "relative_error-1"]),
        ("weights", {"weight": ["0", "1"]}, ["weight-0"]),
        ("weights", {"divided": "x"}, ["divided"]),
        ("weights", {"confidence": "1"}, ["confidence"]),
        ("margins", {"account": "", "cap": "0.5", "definition": "rdp"}, ["alpha"]),
        ("margins", {"account": "", "cap": "0.5", "definition": "approximate"}, ["delta"]),
        ("margins", {"account": "", "cap": "0.5", "definition": "none"}, ["definition"]),
        ("margins", {"account": "", "cap": "0.5", "unit": ""}, ["unit"]),
        ("margins", {"do": "save-geometric", "scenario_name": ""}, ["scenario_name"]),
        ("margins", {"do": "save-geometric", "scenario_name": "x" * 300}, ["scenario_name"]),
        ("margins", {"do": "read", "targets": "Table,Colour"}, ["targets"]),
    ],
)
def test_what_has_no_meaning_is_said_at_its_field(
    visit: TestClient, kind: str, typed: dict[str, Any], fields: list[str]
) -> None:
    page = _press(visit, kind=kind, **({"do": "plan", "account": "zcdp"} | typed))
    assert page.status_code == 422
    marked = [tag for tag in re.findall(r"<(?:input|select|textarea)[^>]*>", page.text) if 'aria-invalid="true"' in tag]
    assert [re.findall(r'id="([^"]*)"', tag)[0] for tag in marked] == fields


def test_an_uploaded_file_is_read(visit: TestClient) -> None:
    form = form_of(visit.get("/plan?account=zcdp"), "/plan").with_texts({"do": "read"})
    page = visit.post("/plan", data=form, files={"file": ("targets.csv", b"Total,State,6\nAge,,50\n")})
    assert form_of(page, "/plan").fields["moe"] == ["6", "50"]
    wrong = visit.post("/plan", data=form, files={"file": ("targets.csv", b"\xff\xfe,")})
    assert wrong.status_code == 422
    assert "UTF-8" in wrong.text


def test_too_few_or_too_many_keep_the_visitor_on_the_list(visit: TestClient) -> None:
    ids = [_save(visit, "geometric", account="zcdp", scenario_name=f"s{number}") for number in range(5)]
    answer = visit.get("/scenarios/compare")
    assert answer.status_code == 422
    assert "Tick at least two scenarios to compare them." in answer.text
    one = visit.get("/scenarios/compare", params={"id": ids[0]}).text
    assert f'value="{ids[0]}" checked' in one
    assert f'value="{ids[1]}" checked' not in one
    assert (
        "5 scenarios are ticked, and at most 4 are compared."
        in visit.get("/scenarios/compare", params={"id": ids}).text
    )


def test_scenarios_are_pages_of_the_planner(visit: TestClient) -> None:
    assert '<a href="/plan" aria-current="page">' in visit.get("/scenarios").text
