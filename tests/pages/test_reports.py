"""The page of a report, and its table."""

import csv
import io
import re

import pytest
from fastapi.testclient import TestClient

from service.api.routes import period_reports
from service.pages import reports
from tests.api.calls import Client, concentrated, json_of, open_account, operators_key, pure, release
from tests.pages.forms import signed_in


def _words(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def test_the_report_is_shown(api: Client, steward: Client) -> None:
    assert 'href="/accounts/persons/report"' in steward.get("/accounts/persons").text
    shown = steward.get("/accounts/persons/report")
    report = json_of(api.get("/v1/accounts/persons/report"))
    words = _words(shown.text)
    for one in report["releases"]:
        assert one["name"] in words
    assert f"{report['head']['seq']}:{report['head']['hash']}" in words
    assert "In words: suppose an outsider" in words
    assert "own releases have an entry in the period: 3 were registered" in words
    assert "Account opened with the budget ρ = 0.5" in words
    assert re.search(r"Used part \S [0-9.]+&nbsp;% \+[0-9.]+&nbsp;%", words)


def test_usual_periods_fill_the_days(steward: Client) -> None:
    found = reports._usual_periods("2026-02-03", "2025-05-05")
    assert [(one["name"], one["since"], one["until"]) for one in found] == [
        ("Quarter 2 of 2025", "2025-04-01", "2025-06-30"),
        ("Quarter 3 of 2025", "2025-07-01", "2025-09-30"),
        ("Quarter 4 of 2025", "2025-10-01", "2025-12-31"),
        ("Quarter 1 so far", "2026-01-01", "2026-02-03"),
        ("2026 so far", "2026-01-01", "2026-02-03"),
    ]
    shown = steward.get("/accounts/persons/report").text
    (link,) = re.findall(r'href="([^"]*)" aria-current="true">[0-9]{4} so far', shown)
    assert steward.get(f"/accounts/persons/report{link.replace('&amp;', '&')}").status_code == 200


def test_a_report_names_the_approvers_of_an_account_and_each_person_once(api: Client, steward: Client) -> None:
    made = {"approval_above": "0.01", "approvers": {"at_least": 1, "of": ["bob", "carol"]}}
    open_account(api, "approved", budget={"definition": "zcdp", "rho": "1"}, **made)
    two = {"type": "sequence", "parts": [pure("0.2") | {"name": one} for one in ("first", "second")]}
    proposed = release(api, two, "approved", name="Deciles")["id"]
    bob = operators_key(api, "approver", "bob")
    json_of(api.post(f"/v1/accounts/approved/releases/{proposed}/approve", headers=bob))
    words = _words(steward.get("/accounts/approved/report").text)
    sentence = "Account opened with the budget ρ = 1 ( zero-concentrated ). Releases above 0.01 need the approval of"
    assert f"{sentence} one of bob and carol. (entry 1)" in words
    assert words.count("by bob") == 1
    shown = steward.get("/accounts/approved/report").text
    assert shown.count('<span class="hidden">Deciles</span>') == 1


def test_parts_of_accounts_below(steward: Client) -> None:
    words = _words(steward.get("/accounts/nation/report").text)
    assert "Accounts under it" in words
    assert "persons" in words
    assert "Voided and expired releases are not counted." in words
    assert "Releases of accounts under it are in their own reports, and here with these ." in words
    below = steward.get("/accounts/nation/report?below=1").text
    words = _words(below)
    assert "Releases of persons" in words
    assert "are in their own reports" not in words
    assert "redistricting" in words
    assert 'href="/accounts/persons/report.csv?' in below


def test_the_report_marks_what_was_not_drawn(api: Client, steward: Client) -> None:
    report = json_of(api.get("/v1/accounts/persons/report"))
    drawn = {one["name"]: [mechanism["drawn"] for mechanism in one["mechanisms"]] for one in report["releases"]}
    assert (drawn["county totals"], drawn["redistricting"]) == ([True], [False] * 4)
    words = _words(steward.get("/accounts/persons/report").text)
    assert words.count("not drawn by the service yet") == sum(one is False for all_ in drawn.values() for one in all_)
    table = steward.get("/accounts/persons/report.csv").text
    rows = list(csv.DictReader(io.StringIO(table, newline="")))
    assert [row["mechanism.drawn"] for row in rows] == [
        str(one).lower() for one_release in report["releases"] for one in drawn[one_release["name"]]
    ]
    before = {"until": report["beginning"]["at"] if report["beginning"] else report["releases"][0]["registered_at"]}
    assert api.get("/v1/accounts/persons/report", params=before).status_code == 200


@pytest.mark.parametrize(("which", "names"), [("standing", ["end", "change"]), ("accounts", ["persons"])])
def test_each_table_of_a_report_is_a_file(steward: Client, which: str, names: list[str]) -> None:
    shown = steward.get("/accounts/nation/report").text
    (link,) = re.findall(rf'href="(/accounts/nation/report-{which}.csv[^"]*)"', shown)
    answer = steward.get(link.replace("&amp;", "&"))
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["moment" if which == "standing" else "account"] for row in rows] == names
    assert all(row["spent"] and row["of"] == "nation" for row in rows)
    assert answer.headers["Content-Disposition"].endswith(f"nation-{which}.csv")
    changes = steward.get("/accounts/nation/report-changes.csv").text
    assert next(csv.DictReader(io.StringIO(changes, newline="")))["kind"] == "account_opened"
    assert steward.get("/accounts/nation/report-nothing.csv").status_code == 404


def test_the_report_says_what_is_spent_in_words(steward: Client) -> None:
    words = _words(steward.get("/accounts/nation/report").text)
    assert (
        "What is spent at the end of the period, by itself, can move" in words
        or "What is spent now, by itself" in words
    )
    assert "What is spent" not in _words(steward.get("/accounts/empty/report").text).replace("What is spent, held", "")


@pytest.mark.parametrize("account", ["nation", "households", "empty"])
def test_every_account_has_a_report(steward: Client, account: str) -> None:
    assert steward.get(f"/accounts/{account}/report").status_code == 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"since": "x"}, "since"),
        ({"until": "<b>"}, "until"),
        ({"since": "2026-13-01"}, "since"),
        ({"until": "2001-01-01", "since": ""}, "until"),
        ({"since": "9998-01-01"}, "since"),
        ({"since": "2001-01-02", "until": "2001-01-01"}, "until"),
        ({"until": "9999-12-31"}, "until"),
    ],
)
def test_a_wrong_day_is_told_at_its_field(steward: Client, query: dict[str, str], field: str) -> None:
    answer = steward.get("/accounts/persons/report", params=query)
    assert answer.status_code == 422
    assert f'id="{field}-fault"' in answer.text


def test_the_table_has_all_pages(api: Client, steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("service.pages.tables", fromlist=["x"])._OF_ACCOUNT, "report", "1")
    answer = steward.get("/accounts/persons/report.csv", params={"confidence": "0.9"})
    assert answer.headers["Content-Disposition"].endswith("persons-report.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    report = json_of(api.get("/v1/accounts/persons/report", params={"confidence": "0.9"}))
    expected = [(one["name"], mechanism["mechanism"]) for one in report["releases"] for mechanism in one["mechanisms"]]
    assert [(row["name"], row["mechanism.mechanism"]) for row in rows] == expected


def test_what_is_left_out_is_counted_and_linked(api: Client, steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(period_reports, "MOST_MECHANISMS", 1)
    report = json_of(api.get("/v1/accounts/persons/report", params={"confidence": "0.9"}))
    (cut,) = (one for one in report["releases"] if one["mechanisms_number"] > 1)
    number, at = cut["mechanisms_number"], f"/accounts/persons/releases/{cut['release']}/accuracy?confidence=0.9"
    shown = " ".join(steward.get("/accounts/persons/report", params={"confidence": "0.9"}).text.split())
    assert f'and {number - 1} more: <a href="{at}">all {number}</a>' in shown
    assert steward.get(at).status_code == 200
    table = steward.get("/accounts/persons/report.csv", params={"confidence": "0.9"}).text
    assert [row["release"] for row in csv.DictReader(io.StringIO(table))].count(cut["release"]) == number


def test_an_unknown_table_or_query(steward: Client) -> None:
    for path in ("/accounts/persons/nothing.csv", "/nothing.csv", "/accounts/persons/releases/x/nothing.csv"):
        assert steward.get(path).status_code == 404
    assert steward.get("/accounts/persons/report.csv", params={"since": "x"}).status_code == 422
    assert steward.get("/accounts/persons/report.csv", params={"nothing": "x"}).status_code == 422
    assert steward.get("/accounts/nobody/report.csv").status_code == 404
    assert steward.get("/accounts/nobody/report").status_code == 404


def test_a_refused_period_is_told_in_days(steward: Client) -> None:
    shown = steward.get("/accounts/persons/report?since=2999-01-01").text
    assert '<a href="#since">From</a>: expected a day that has begun' in shown
    shown = steward.get("/accounts/persons/report?since=2026-02-01&until=2026-01-31").text
    assert '<a href="#until">To the end of</a>: expected a day that is not before the first one' in shown


def test_a_period_that_is_not_over_is_said_to_be_so(steward: Client) -> None:
    words = _words(steward.get("/accounts/persons/report?until=2999-12-31").text)
    assert "The period is not over: the figures are those of now." in words
    assert "At the end" not in words.partition("Releases of the period")[0]
    assert "The period is not over" not in _words(steward.get("/accounts/persons/report").text)


def test_a_voided_release_takes_no_part_of_the_budget(embedded: TestClient) -> None:
    open_account(embedded)
    held = release(embedded, {"type": "discrete_gaussian", "sigma_squared": "2"}, reserve_for="PT1H")
    json_of(embedded.post(f"/v1/accounts/people/releases/{held['id']}/void", json={"reason": "too fine"}))
    visit = signed_in(embedded)
    for path in ("/accounts/people/report", "/accounts/people/releases"):
        words = _words(visit.get(path).text)
        assert "no longer charged" in words
        assert "25 %" not in words


def test_the_parts_of_an_approximate_budget_are_explained(embedded: TestClient) -> None:
    open_account(embedded, budget={"definition": "approximate", "epsilon": "4", "delta": "1e-6"})
    release(embedded, concentrated("0.01"))
    visit = signed_in(embedded)
    for path in ("/accounts/people/report", "/accounts/people/releases"):
        assert "a release with the greater ε can take the smaller part" in _words(visit.get(path).text)
    first, _, analyses = visit.get("/accounts/people/report").text.partition("All analyses")
    assert ">Spent<" not in first.partition("Spent, held and left</h2>")[2]
    assert ">Spent<" in analyses
    home = _words(visit.get("/").text)
    assert " % of the declared" not in home
    assert "ε = 3." not in home
