"""The accuracy statement's page, its table, and the tables of draws."""

import csv
import io
from itertools import product
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.api.routes import accuracy_statements
from tests.api.calls import Client, json_of, open_account, pure, release as register
from tests.pages.forms import signed_in


@pytest.fixture
def drawn(api: Client) -> Any:
    """The demo's release that was drawn, with its address."""
    (found,) = (
        one for one in json_of(api.get("/v1/accounts/persons/releases"))["items"] if one["name"] == "county totals"
    )
    return found | {"at": f"/accounts/persons/releases/{found['id']}"}


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_the_statement_is_shown_at_a_confidence(api: Client, steward: Client, drawn: Any) -> None:
    assert f'href="{drawn["at"]}/accuracy"' in steward.get(drawn["at"]).text
    for confidence, percent in (("0.9", "90 %"), ("0.999", "99.9 %")):
        stated = json_of(api.get(f"/v1{drawn['at']}/accuracy", params={"confidence": confidence}))
        shown = " ".join(steward.get(f"{drawn['at']}/accuracy", params={"confidence": confidence}).text.split())
        assert f"with a probability of at least {percent}." in shown
        assert f"±{stated['mechanisms'][0]['moe']}" in shown


def test_margins_hold_before_suppression(api: Client, steward: Client) -> None:
    budget = {"definition": "pure", "epsilon": "2", "delta": "0.1"}
    open_account(api, "suppressed", budget=budget)
    for number, threshold in enumerate((None, {"at_least": 30})):
        plan = pure("0.5") | ({} if threshold is None else {"threshold": threshold})
        made = register(api, plan, "suppressed", name=f"n{number}")
        at = f"/accounts/suppressed/releases/{made['id']}"
        for page in (at, f"{at}/accuracy"):
            assert ("before suppression" in steward.get(page).text) is (threshold is not None)
        assert ("too large on average" in steward.get(f"{at}/accuracy").text) is (threshold is not None)
    assert "before suppression" in steward.get("/accounts/suppressed/accuracy").text


def test_a_family_is_stated_together(api: Client, steward: Client) -> None:
    at = "/accounts/persons/accuracy"
    assert f'href="{at}"' in steward.get("/accounts/persons/releases").text
    assert f'href="{at}?name=county"' in steward.get("/accounts/persons/releases", params={"name": "county"}).text
    for query in ({}, {"name": "county"}, {"name": "a", "since": "2000-01-01", "confidence": "0.9"}):
        asked = query | ({"since": "2000-01-01T00:00:00Z"} if "since" in query else {})
        stated = json_of(api.get(f"/v1{at}", params=asked))
        page = steward.get(at, params=query)
        assert page.status_code == 200
        shown = " ".join(page.text.split())
        for release in stated["releases"]:
            assert f'href="/accounts/persons/releases/{release["release"]}/accuracy">{release["name"]}</a>' in shown
            assert all(f"±{one['moe']}" in shown for one in release["mechanisms"] if isinstance(one["moe"], int))
        number = len(stated["releases"])
        assert (f"These are the {number} committed releases" if number > 1 else "the one committed release") in shown
        table = _rows(steward.get(f"{at}.csv", params=query).text)
        assert [row["release"] for row in table] == [
            release["release"] for release in stated["releases"] for _ in release["mechanisms"]
        ]
        assert {float(row["joint_rho"]) for row in table} == {stated["joint"]["zcdp"]["rho"]}


def test_a_family_that_is_none(steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    at = "/accounts/persons/accuracy"
    assert "There are no such committed releases." in steward.get(at, params={"name": "no such"}).text
    wrong = steward.get(at, params={"since": "yesterday"})
    assert wrong.status_code == 422
    assert 'id="since-fault"' in wrong.text
    monkeypatch.setattr(accuracy_statements, "_MOST_RELEASES", 1)
    many = steward.get(at)
    assert many.status_code == 422
    assert "expected a family of at most 1 releases, got more: ask for fewer" in many.text


def test_a_confidence_that_pages_do_not_offer_is_refused_at_its_field(steward: Client, drawn: Any) -> None:
    pages = (f"{drawn['at']}/accuracy", "/accounts/persons/accuracy", "/accounts/persons/report")
    for confidence, page in product(("2", "<b>", "0.96"), pages):
        refused = steward.get(page, params={"confidence": confidence})
        assert (refused.status_code, 'id="confidence-fault"' in refused.text) == (422, True)
        assert "expected one of 90 %, 95 %, 99 %, 99.9 %" in refused.text
    assert "at least 95 %." in steward.get(pages[0], params={"confidence": ""}).text
    for page in pages[:2]:
        refused = steward.get(f"{page}.csv", params={"confidence": "2"})
        assert (refused.status_code, "confidence" in refused.text) == (422, True)


def test_the_table_is_a_file(api: Client, steward: Client, drawn: Any) -> None:
    answer = steward.get(f"{drawn['at']}/accuracy.csv", params={"confidence": "0.9"})
    assert answer.headers["Content-Disposition"].endswith(f"accuracy-{drawn['id']}.csv")
    stated = json_of(api.get(f"/v1{drawn['at']}/accuracy", params={"confidence": "0.9"}))
    assert [row["moe"] for row in _rows(answer.text)] == [str(one["moe"]) for one in stated["mechanisms"]]


def test_noisy_counts_are_a_file(api: Client, steward: Client, drawn: Any) -> None:
    (draw, *_) = json_of(api.get(f"/v1{drawn['at']}/draws"))["items"]
    path = f"/accounts/persons/draws/{draw['draw']}.csv"
    assert f'href="{path}"' in steward.get(drawn["at"]).text
    answer = steward.get(path)
    assert answer.headers["Content-Disposition"].endswith(f"draw-{draw['draw']}.csv")
    assert [row["noisy"] for row in _rows(answer.text)] == [str(count) for count in draw["noisy"]]


def test_an_unknown_release_or_draw(steward: Client) -> None:
    for path in ("releases/none/accuracy", "releases/none/accuracy.csv", "draws/none.csv"):
        assert steward.get(f"/accounts/persons/{path}").status_code == 404


def test_a_family_names_the_accounts_under_it_that_it_leaves_out(api: Client, steward: Client) -> None:
    below = json_of(api.get("/v1/accounts", params={"parent": "nation", "with_gauge": "true"}))["items"]
    number = {child["name"]: child["gauge"]["releases"] for child in below}["persons"]
    shown = " ".join(steward.get("/accounts/nation/accuracy").text.split())
    assert "This is the one committed release of nation itself." in shown
    assert f'<a href="/accounts/persons/accuracy">persons</a> ({number} releases)' in shown
    assert 'The budget counts all of them: <span class="whole">ρ = ' in shown
    assert "Not in this statement" not in steward.get("/accounts/persons/accuracy").text


def test_a_pure_loss_is_stated_without_a_delta(embedded: TestClient) -> None:
    open_account(embedded)
    plan = {"type": "geometric", "name": "totals", "epsilon": "0.3178511"}
    made = json_of(embedded.post("/v1/accounts/people/releases", json={"name": "totals", "plan": plan}), 201)
    at = f"/accounts/people/releases/{made['id']}"
    assert json_of(embedded.get(f"/v1{at}/accuracy"))["pure"] == pytest.approx(0.3178511, rel=1e-15)
    visit = signed_in(embedded)
    for path in (at, f"{at}/accuracy", "/accounts/people/accuracy"):
        page = visit.get(path).text.partition("All analyses")[0]
        assert "0.3179" in page
        assert "1e-10" not in page
        assert "tells everything" not in page
