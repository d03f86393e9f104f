"""Reports of an account and a period, compared with the journal by other code: plain fractions, and no replay."""

import csv
import io
from fractions import Fraction
from typing import Any

import pytest

from service.api.routes import period_reports
from service.ledger.storage import clock
from tests.api.calls import (
    Client,
    concentrated,
    head_of,
    json_of,
    make_key,
    open_account,
    operators_key,
    pages_of,
    problem_of,
    pure,
    release,
)

_REPORT = "/v1/accounts/people/report"
_COUNTS = {"type": "discrete_gaussian", "name": "counts", "rho": "0.02", "tags": ["age"]}


def _entries(client: Client, account: str = "people") -> list[dict[str, Any]]:
    return [one["entry"] for page in pages_of(client, f"/v1/accounts/{account}/journal") for one in page]


def _now() -> str:
    return clock.now()


class _Books:
    """The figures of a zCDP account's journal at one moment, added up by plain fractions."""

    def __init__(self, entries: list[dict[str, Any]], before: str) -> None:
        self.cap, self.spent, self.held = Fraction(0), dict[str, Fraction](), dict[str, Fraction]()
        self.of = dict[str, str]()  # the account of each release
        self.allotted = dict[str, Fraction]()
        for entry in entries:
            if entry["time"] < before:
                self._add(entry["kind"], entry["release"], entry["content"])

    def _add(self, kind: str, one: str, content: dict[str, Any]) -> None:
        if "budget" in content and kind in ("account_opened", "budget_changed"):
            self.cap = Fraction(content["budget"]["rho"])
        if kind == "allotted":
            self.allotted[content["child"]] = Fraction(content["price"]["rho"])
        if "plan" in content and "name" in content:
            book = self.spent if kind == "committed" else self.held
            book[one] = Fraction(content["price"]["rho"])
            self.of[one] = content.get("origin", {}).get("account", "people")
        elif kind == "committed" or content.get("to") == "committed":
            self.spent[one] = self.held.pop(one)
        elif kind in ("voided", "expired"):
            del self.held[one]

    def part(self, account: str, book: dict[str, Fraction]) -> Fraction:
        return sum((rho for one, rho in book.items() if self.of[one] == account), Fraction(0))

    @property
    def total(self) -> Fraction:
        return sum(self.spent.values(), Fraction(0)) + sum(self.allotted.values(), Fraction(0))


@pytest.fixture
def period(client: Client) -> tuple[str, str]:
    """An account with entries of all kinds before, in and after a period; the period's beginning and end."""
    second = operators_key(client, "steward", "second")
    open_account(client, budget={"definition": "zcdp", "rho": "2"}, approval_above="0.5")
    open_account(client, "town", {"definition": "zcdp", "rho": "1"}, parent="people")
    early = release(client, _COUNTS, name="early")
    held = release(client, concentrated("0.03"), name="held before", reserve_for="P30D")
    big = release(client, concentrated("0.6"), name="approved before", reserve_for="P30D")
    json_of(client.post(f"/v1/accounts/people/releases/{big['id']}/approve", headers=second))
    release(client, concentrated("0.01"), "town", name="of the town")
    since = _now()
    json_of(client.post(f"/v1/accounts/people/releases/{held['id']}/commit"))
    json_of(client.post(f"/v1/accounts/people/releases/{big['id']}/commit"))
    json_of(
        client.post(f"/v1/accounts/people/releases/{early['id']}/draws", json={"mechanism": "counts", "counts": [1]}),
        201,
    )
    plan = {"type": "sequence", "parts": [{**_COUNTS, "name": str(number)} for number in range(3)]}
    release(client, plan, name="=new", tags=["x"])
    gone = release(client, concentrated("0.07"), name="gone", reserve_for="P1D")
    json_of(client.post(f"/v1/accounts/people/releases/{gone['id']}/void", json={"reason": "r", "attestation": "n"}))
    release(client, concentrated("0.05"), "town", name="of the town, again", reserve_for="P1D")
    open_account(client, "village", {"definition": "zcdp", "rho": "0.125"}, parent="people", funding="allotted")
    changed = {"budget": {"definition": "zcdp", "rho": "3"}, "reason": "more tables"}
    json_of(client.patch("/v1/accounts/people", json=changed), 202)
    json_of(client.patch("/v1/accounts/people", json=changed | {"reason": "agreed"}, headers=second))
    json_of(client.patch("/v1/accounts/people", json={"budget": {"definition": "zcdp", "rho": "4"}}), 202)
    release(client, concentrated("0.55"), name="waits")
    described = {"metadata": {"intended_use": "Planning of schools"}}
    json_of(client.patch("/v1/accounts/people", json=described))
    until = _now()
    release(client, concentrated("0.01"), name="late")
    return since, until


def _report(client: Client, period: tuple[str, str], **query: Any) -> Any:
    return json_of(client.get(_REPORT, params={"since": period[0], "until": period[1], **query}))


def test_the_figures_are_those_of_the_journal(client: Client, period: tuple[str, str]) -> None:
    report, entries = _report(client, period), _entries(client)
    books = [_Books(entries, moment) for moment in period]
    for shown, book in zip((report["beginning"], report["end"]), books, strict=True):
        held = sum(book.held.values(), Fraction(0))
        assert Fraction(shown["spent_exact"]) == book.total
        assert Fraction(shown["held_exact"]) == held
        assert Fraction(shown["left_exact"]) == book.cap - book.total - held
        assert Fraction(shown["allotted_exact"]) == sum(book.allotted.values(), Fraction(0))
        assert Fraction(shown["budget"]["rho"]) == book.cap
        assert shown["releases"] == len(book.spent) + len(book.held)
        assert shown["used"] == pytest.approx(float((book.total + held) / book.cap), rel=1e-12)
        assert Fraction(repr(shown["spent"])) >= book.total
    change, (before, after) = report["change"], books
    assert Fraction(change["spent_exact"]) == after.total - before.total
    assert change["cap"] == 1
    assert {"seq": report["head"]["seq"], "hash": report["head"]["hash"]} == head_of(client)
    last = [entry for entry in entries if entry["time"] < period[1]][-1]
    assert (report["end"]["head"]["seq"], report["end"]["at"]) == (last["seq"], last["time"])


def test_the_parts_of_accounts_below_are_those_of_the_journal(client: Client, period: tuple[str, str]) -> None:
    report, entries = _report(client, period), _entries(client)
    before, after = (_Books(entries, moment) for moment in period)
    town, village = report["children"]
    assert (town["account"], town["funding"], town["releases"]) == ("town", "shared", 2)
    assert town["spent_before"] == float(before.part("town", before.spent))
    assert Fraction(town["spent_exact"]) == after.part("town", after.spent)
    assert Fraction(town["counted_exact"]) == after.part("town", after.spent) + after.part("town", after.held)
    assert town["used"] == pytest.approx(0.06 / 3)
    assert (village["account"], village["funding"], village["spent_before"]) == ("village", "allotted", 0)
    assert Fraction(village["spent_exact"]) == after.allotted["village"] == Fraction(1, 8)


def test_the_releases_of_the_period(client: Client, period: tuple[str, str]) -> None:
    report, entries = _report(client, period), _entries(client)
    found = {one["name"]: one for one in report["releases"]}
    assert list(found) == ["held before", "approved before", "early", "=new", "gone", "waits"]
    states = {name: (one["state_before"], one["state"]) for name, one in found.items()}
    assert states == {
        "held before": ("reserved", "committed"),
        "approved before": ("reserved", "committed"),
        "early": ("committed", "committed"),
        "=new": (None, "committed"),
        "gone": (None, "voided"),
        "waits": (None, "proposed"),
    }
    for one in found.values():
        first = next(entry for entry in entries if entry["release"] == one["release"])
        assert (one["registered_at"], one["registered_by"]) == (first["time"], first["actor"])
        rho = Fraction(first["content"]["price"]["rho"])
        assert Fraction(one["charge"]["rho_exact"]) == rho
        assert one["charge"]["share"] == pytest.approx(float(rho / 3), rel=1e-12)
        assert one["purpose"] == "Planning of schools"
    assert found["approved before"]["approved_by"] == "second"
    assert found["held before"]["approved_by"] is None
    assert (found["gone"]["ended_by"], found["=new"]["ended_at"]) == (found["gone"]["registered_by"], None)
    assert (found["gone"]["end_reason"], found["=new"]["end_reason"]) == ("r", None)
    drawn = [entry for entry in entries if entry["kind"] == "drawn"]
    assert found["early"]["draws"] == {
        "number": 1,
        "first_at": drawn[0]["time"],
        "last_at": drawn[0]["time"],
        "by": [drawn[0]["actor"]],
    }
    assert found["=new"]["draws"] is None
    assert report["numbers"] == {
        "releases": 6, "registered": 3, "approved": 0, "committed": 3, "voided": 1, "expired": 0, "draws": 1,
        "priced_again": 0, "changes": 3,
    }  # fmt: skip


def test_the_accuracy_is_that_of_the_statement(client: Client, period: tuple[str, str]) -> None:
    report = _report(client, period, confidence="0.9")
    assert report["confidence"] == 0.9
    for one in report["releases"]:
        path = f"/v1/accounts/people/releases/{one['release']}/accuracy"
        statement = json_of(client.get(path, params={"confidence": "0.9"}))["mechanisms"]
        for mechanism in statement:
            del mechanism["partitions_declared"], mechanism["partitions_drawn"]
        assert one["mechanisms"] == statement
        assert one["mechanisms_number"] == len(statement)


def test_changes_have_their_persons_and_reasons(client: Client, period: tuple[str, str]) -> None:
    report = _report(client, period)
    first, second, third = report["changes"]
    assert [one["kind"] for one in report["changes"]] == ["change_proposed", "budget_changed", "change_proposed"]
    assert (second["by"], second["reason"], second["proposal_reason"]) == ("second", "agreed", "more tables")
    assert (second["proposed_by"], second["proposed_at"]) == (first["by"], first["at"])
    assert (second["former_budget"]["rho"], second["budget"]["rho"]) == ("2", "3")
    waiting = report["waiting"]
    assert (waiting["number"], [one["name"] for one in waiting["releases"]]) == (1, ["waits"])
    assert (waiting["change"]["seq"], waiting["change"]["budget"]["rho"]) == (third["seq"], "4")


def test_pages_have_the_same_totals(client: Client, period: tuple[str, str]) -> None:
    whole = _report(client, period)
    names, cursor, pages = list[str](), None, 0
    while pages == 0 or cursor is not None:
        page = _report(client, period, limit=4, **({"cursor": cursor} if cursor else {}))
        assert {name: page[name] for name in ("beginning", "end", "numbers", "children", "changes")} == {
            name: whole[name] for name in ("beginning", "end", "numbers", "children", "changes")
        }
        names += [one["name"] for one in page["releases"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert (names, pages) == ([one["name"] for one in whole["releases"]], 2)


def test_a_table_has_a_line_for_each_mechanism(client: Client, period: tuple[str, str]) -> None:
    query: dict[str, str | int] = {"since": period[0], "until": period[1], "limit": 5}
    answer = client.get(_REPORT, params=query, headers={"Accept": "text/csv"})
    page = _report(client, period, limit=5)
    assert answer.headers["X-Next-Cursor"] == page["next_cursor"]
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert len(rows) == sum(len(one["mechanisms"]) for one in page["releases"])
    new = [row for row in rows if row["name"] == "'=new"]
    assert [row["mechanism.mechanism"] for row in new] == ["0", "1", "2"]
    head = page["head"]
    assert {row["head"] for row in rows} == {f"{head['seq']}:{head['hash']}"}
    assert new[0]["charge.rho_exact"] == "0.06"
    assert float(new[0]["mechanism.moe"]) == page["releases"][3]["mechanisms"][0]["moe"]


def test_a_table_has_all_mechanisms(client: Client, period: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _report(client, period)
    monkeypatch.setattr(period_reports, "MOST_MECHANISMS", 2)
    some = _report(client, period)
    assert [one["mechanisms"] for one in some["releases"]] == [one["mechanisms"][:2] for one in whole["releases"]]
    assert [one["mechanisms_number"] for one in some["releases"]] == [
        len(one["mechanisms"]) for one in whole["releases"]
    ]
    query = {"since": period[0], "until": period[1]}
    rows = csv.DictReader(io.StringIO(client.get(_REPORT, params=query, headers={"Accept": "text/csv"}).text))
    assert [row["mechanism.mechanism"] for row in rows] == [
        mechanism["mechanism"] for one in whole["releases"] for mechanism in one["mechanisms"]
    ]


def test_without_a_period_all_is_reported(client: Client, period: tuple[str, str]) -> None:
    report = json_of(client.get(_REPORT))
    assert (report["since"], report["beginning"]) == (None, None)
    assert report["until"] == report["made_at"]
    assert report["change"]["spent_exact"] == report["end"]["spent_exact"]
    assert report["end"]["head"] == report["head"]
    balance = json_of(client.get("/v1/accounts/people"))
    assert Fraction(report["end"]["left_exact"]) == Fraction(balance["counted_exact"]) * -1 + 3


def test_an_empty_period(client: Client, period: tuple[str, str]) -> None:
    report = _report(client, (_now(), _now()))
    assert report["beginning"] == report["end"]
    assert (report["releases"], report["changes"], report["change"]["spent"]) == ([], [], 0)
    assert set(report["numbers"].values()) == {0}
    assert report["waiting"]["number"] == 1


@pytest.mark.parametrize("definition", ["pure", "approximate", "rdp"])
def test_other_definitions(client: Client, definition: str) -> None:
    more = {"approximate": {"delta": "1e-6"}, "rdp": {"alpha": "8"}, "pure": {}}[definition]
    open_account(client, budget={"definition": definition, "epsilon": "10", **more})
    made = release(client, pure("0.5"), name="one")
    held = release(client, pure("0.25"), name="two", reserve_for="P1D")
    report = json_of(client.get(_REPORT))
    account = json_of(client.get("/v1/accounts/people"))
    assert report["end"]["left"] == account["remaining"]["epsilon"]
    charges = {
        one["id"]: json_of(client.get(f"/v1/accounts/people/releases/{one['id']}?with_charge=true"))
        for one in (made, held)
    }
    assert [one["charge"] for one in report["releases"]] == [charges[one["id"]]["charge"] for one in (made, held)]
    if definition == "pure":
        assert (report["end"]["spent_exact"], report["end"]["held_exact"]) == ("0.5", "0.25")
        assert report["whole_budget"] == {"epsilon": "10", "delta": None}
    assert Fraction(report["delta"]) == Fraction("1e-6" if definition == "approximate" else "1e-10")


def test_an_account_with_periods(client: Client) -> None:
    periods = {"calendar": "month", "participation": {"offsets": [0]}}
    open_account(client, periods=periods)
    for month in ("2026-01", "2026-02"):
        release(client, concentrated("0.25"), periods={"list": [month]})
    report = json_of(client.get(_REPORT))
    assert report["end"]["spent_exact"] == "0.25"
    assert report["end"]["releases"] == 2


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"since": "yesterday"}, "/query/since"),
        ({"until": "2026-01-01"}, "/query/until"),
        ({"until": "0"}, "/query/until"),
        ({"since": "2026-02-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "/query/until"),
        ({"since": "2026-02-01T00:00:00Z", "until": "2026-02-01T00:00:00Z"}, "/query/until"),
        ({"since": "9999-01-01T00:00:00Z"}, "/query/until"),
        ({"until": "2001-01-01T00:00:00Z"}, "/query/until"),
        ({"confidence": "1"}, "/query/confidence"),
        ({"confidence": "NaN"}, "/query/confidence"),
        ({"limit": "0"}, "/query/limit"),
        ({"limit": "201"}, "/query/limit"),
        ({"limit": "x"}, "/query/limit"),
        ({"cursor": "!"}, "/query/cursor"),
        ({"before": "x"}, "/query/before"),
    ],
)
def test_wrong_queries(client: Client, query: dict[str, str], pointer: str) -> None:
    open_account(client)
    answer = client.get(_REPORT, params=query)
    assert problem_of(answer, "validation")["errors"][0]["pointer"] == pointer


def test_a_limited_key_and_an_unknown_account(client: Client) -> None:
    open_account(client)
    elsewhere = make_key(client, "auditor", accounts=["elsewhere"])
    problem_of(client.get(_REPORT, headers=elsewhere), "forbidden")
    problem_of(client.get("/v1/accounts/nobody/report"), "not_found")


def test_what_only_some_have_approved_still_waits(client: Client) -> None:
    """Of three persons one approved: the releases are held, those of the account below too, until the last one does."""
    persons = {name: operators_key(client, "approver", name) for name in ("bob", "carol")}
    approvers = {"at_least": 2, "of": list(persons)}
    open_account(client, budget={"definition": "zcdp", "rho": "3"}, approval_above="0.5", approvers=approvers)
    open_account(client, "town", {"definition": "zcdp", "rho": "2"}, parent="people")
    own = release(client, concentrated("0.6"), name="own")
    below = release(client, concentrated("0.7"), "town", name="below")
    for number, (name, key) in enumerate(persons.items(), 1):
        for one in (own, below):
            path = f"/v1/accounts/{one['account']}/releases/{one['id']}/approve"
            json_of(client.post(path, json={"reason": f"{name} agrees"}, headers=key))
        found, books, last = json_of(client.get(_REPORT)), _Books(_entries(client), "9999"), number == len(persons)
        (town,) = found["children"]
        assert (town["releases"], Fraction(town["counted_exact"])) == (1, Fraction("0.7"))
        assert Fraction(town["spent_exact"]) == books.part("town", books.spent) == (Fraction("0.7") if last else 0)
        assert [one["name"] for one in found["waiting"]["releases"]] == ([] if last else ["own"])
        (listed,) = found["releases"]
        assert (listed["state"], listed["approved_by"]) == (("committed", name) if last else ("proposed", None))
        assert (listed["approval_reason"], listed["end_reason"]) == ((f"{name} agrees",) * 2 if last else (None, None))
        assert found["numbers"]["approved"] == found["numbers"]["committed"] == last
        assert [(one["by"], one["reason"]) for one in listed["approvals"]] == [
            (one, f"{one} agrees") for one in list(persons)[:number]
        ]
    bobs, carols = listed["approvals"]
    later = json_of(client.get(_REPORT, params={"since": carols["at"]}))["releases"][0]
    assert later["approvals"] == listed["approvals"], "also those before the period"
    earlier = json_of(client.get(_REPORT, params={"until": carols["at"]}))["releases"][0]
    assert (earlier["state"], earlier["approvals"]) == ("proposed", [bobs]), "and none after it"
    table = client.get(_REPORT, headers={"Accept": "text/csv"}).text
    assert "bob agrees" in table
    assert "carol agrees" in table


def test_other_approvers_are_stated_where_they_wait_and_where_they_are_made(client: Client) -> None:
    first, other = {"at_least": 1, "of": ["bob"]}, {"at_least": 1, "of": ["bob", "carol"]}
    open_account(client, budget={"definition": "zcdp", "rho": "3"}, approval_above="0.5", approvers=first)
    json_of(client.patch("/v1/accounts/people", json={"approvers": other}), 202)
    found = json_of(client.get(_REPORT))
    assert found["waiting"]["change"]["approvers"] == other
    bob = operators_key(client, "approver", "bob")
    json_of(client.patch("/v1/accounts/people", json={"approvers": other}, headers=bob))
    assert json_of(client.get(_REPORT))["changes"][-1]["approvers"] == other
