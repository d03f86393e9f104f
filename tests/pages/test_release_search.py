"""The page of the releases of all accounts, which is searched like an account's own."""

import csv
import io
import re

import pytest

from service.ledger.releases import release_search
from tests.api.calls import Client, json_of, make_key
from tests.pages.visits import sign_in


def _text(client: Client, **query: str) -> str:
    return " ".join(client.get("/releases", params=query).text.split())


def test_the_first_page_leads_to_the_releases_of_all_accounts(api: Client, steward: Client) -> None:
    assert 'href="/releases"' in steward.get("/").text
    shown = _text(steward)
    for one in json_of(api.get("/v1/releases"))["items"]:
        assert f'<a href="/accounts/{one["account"]}/releases/{one["id"]}">{one["name"]}</a>' in shown
        assert f'<a href="/accounts/{one["account"]}">{one["account"]}</a>' in shown
    assert "ε = 0.5" in shown


def test_all_accounts_are_searched_with_the_form_of_one(steward: Client) -> None:
    found = _text(steward, name="hold", state="committed")
    assert "households</a>" in found
    assert "redistricting</a>" not in found
    table = csv.DictReader(io.StringIO(steward.get("/releases.csv", params={"name": "hold"}).text))
    assert [(row["account"], row["name"]) for row in table] == [("households", "households")]
    nobody = _text(steward, approved_by="nobody")
    assert "There are no such releases. Tags and principals are matched exactly, with upper and lower case" in nobody
    assert "matched exactly" not in _text(steward, name="nobody")
    for path in ("/releases", "/accounts/persons/releases"):
        for wrong in ({"since": "yesterday"}, {"until": "0"}, {"state": "lost"}, {"approved_by": "x" * 201}):
            refused = steward.get(path, params=wrong)
            assert (refused.status_code, refused.text.count('aria-invalid="true"')) == (422, 1)


def test_a_long_search_goes_on(steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_search, "MOST_SEARCHED", 1)
    shown = steward.get("/releases", params={"name": "redistricting"}).text
    assert "There are no such releases among those searched so far." in shown
    assert "Search further</a>" in shown
    assert "name=redistricting" in shown
    table = csv.DictReader(io.StringIO(steward.get("/releases.csv", params={"name": "redistricting"}).text))
    assert [row["name"] for row in table] == ["redistricting"]


def test_a_limited_key_sees_its_accounts_only(api: Client, visitor: Client) -> None:
    key = make_key(api, "auditor", "ours", accounts=["households"])["Authorization"].removeprefix("Bearer ")
    sign_in(visitor, key)
    shown = _text(visitor)
    assert "households</a>" in shown
    assert "redistricting" not in shown
    assert "There are no such releases in accounts to which your key has access." in _text(visitor, name="large")


@pytest.mark.parametrize("path", ["/releases", "/accounts/persons/releases"])
def test_a_last_day_before_the_first_is_refused(steward: Client, path: str) -> None:
    answer = steward.get(path, params={"since": "2026-03-02", "until": "2026-03-01"})
    assert answer.status_code == 422
    assert 'id="until-fault">expected a day that is not before the first one' in answer.text
    assert steward.get(path, params={"since": "2026-03-02", "until": "2026-03-02"}).status_code == 200


def test_the_releases_are_among_the_accounts_in_the_navigation(steward: Client) -> None:
    assert '<a href="/" aria-current="page">Accounts</a>' in steward.get("/releases").text


def test_lists_have_the_newest_first_unless_the_oldest_are_asked_for(api: Client, steward: Client) -> None:
    names = [one["name"] for one in json_of(api.get("/v1/accounts/persons/releases"))["items"]]
    for query, expected in (({}, names[::-1]), ({"order": "asc"}, names), ({"order": "desc"}, names[::-1])):
        shown = steward.get("/accounts/persons/releases", params=query).text
        assert re.findall(r'releases/[0-9a-f-]{36}">([^<]+)<', shown) == expected
        (table,) = re.findall(r'href="(/accounts/persons/releases\.csv[^"]*)"', shown)
        rows = csv.DictReader(io.StringIO(steward.get(table.replace("&amp;", "&")).text))
        assert [row["name"] for row in rows] == expected
    assert "In the reverse order in which" in _text(steward)
    assert "In the order in which" in _text(steward, order="asc")
    assert steward.get("/releases", params={"order": "sideways"}).status_code == 422
