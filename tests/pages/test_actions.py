"""Actions of pages: each button is a call of the contract, and its refusal is shown at the button."""

import base64
import json
import re
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from service.ledger.storage import paging
from service.pages import accounts as pages_accounts
from tests.api.calls import Client, bearer, concentrated, json_of, make_key, open_account, operators_key, release
from tests.pages.visits import hidden, sign_in, submit

_GREATER = {
    "cap": "0.75",
    "declared": "",
    "greater": "ρ from 0.5 to 0.75, 1.5 times as large",
    "reason": "a new survey",
}
_VOID = {"reason": "withdrawn", "attestation": "nothing was published"}


def _one(api: Client, account: str, state: str) -> Any:
    (found,) = json_of(api.get(f"/v1/accounts/{account}/releases?state={state}"))["items"]
    return found


def _sign_in_as(api: Client, visitor: Client, role: str, name: str = "somebody") -> Client:
    sign_in(visitor, make_key(api, role, name)["Authorization"].removeprefix("Bearer "))
    return visitor


def test_committing_a_reservation(api: Client, visitor: Client) -> None:
    pipeline = _sign_in_as(api, visitor, "pipeline")
    page = f"/accounts/persons/releases/{_one(api, 'persons', 'reserved')['id']}"
    answer = submit(pipeline, page, f"{page}/commit")
    assert (answer.status_code, answer.headers["Location"]) == (303, f"{page}?done=committed")
    shown = pipeline.get(answer.headers["Location"]).text
    assert "The release was committed." in shown
    assert "/commit" not in shown


def test_voiding_with_a_reason(api: Client, steward: Client) -> None:
    page = f"/accounts/persons/releases/{_one(api, 'persons', 'reserved')['id']}"
    refused = submit(steward, page, f"{page}/void", reason="withdrawn")  # Gaussian noise is not drawn here
    assert refused.status_code == 422
    assert 'id="attestation-fault"' in refused.text
    assert _one(api, "persons", "reserved")
    done = submit(steward, page, f"{page}/void", reason="withdrawn", attestation="nothing was published")
    assert done.headers["Location"] == f"{page}?done=voided"
    entries = json_of(api.get("/v1/accounts/persons/journal"))["items"]
    assert entries[-1]["entry"]["content"] == {"reason": "withdrawn", "attestation": "nothing was published"}


def test_a_second_steward_approves(api: Client, steward: Client) -> None:
    proposed = release(api, concentrated("0.25"), "persons", name="large")
    page = f"/accounts/persons/releases/{proposed['id']}"
    assert "You proposed it: another person must approve it." in steward.get(page).text
    assert f"{page}/approve" not in steward.get("/accounts/persons").text
    own = steward.post(
        f"{page}/approve", data={name: hidden(steward.get("/accounts/persons").text, name) for name in ("csrf", "once")}
    )
    assert own.status_code == 403
    assert 'role="alert"' in own.text
    sign_in(steward, operators_key(api, "steward", "second")["Authorization"].removeprefix("Bearer "))
    long = submit(steward, page, f"{page}/approve", reason="x" * 4001)
    assert long.status_code == 422
    assert 'id="reason-fault"' in long.text
    # From the account's list of pending decisions.
    answer = submit(steward, "/accounts/persons", f"{page}/approve", reason="as the board decided")
    assert answer.headers["Location"] == f"{page}?done=approved"
    assert "as the board decided" in steward.get(page).text
    assert json_of(api.get(f"/v1{page}"))["state"] == "committed"


def test_a_second_steward_approves_a_greater_budget(api: Client, steward: Client) -> None:
    page = "/accounts/persons"
    answer = submit(steward, page, f"{page}/budget", **_GREATER)
    assert answer.headers["Location"] == f"{page}?done=proposed"
    shown = steward.get(answer.headers["Location"]).text
    assert "The change waits for other persons." in shown
    assert "first-steward proposed the budget" in shown
    assert "The reason: “a new survey”." in shown
    assert "Approve the change" not in shown
    assert json_of(api.get(f"/v1{page}"))["budget"]["rho"] == "0.5"
    sign_in(steward, operators_key(api, "steward", "second")["Authorization"].removeprefix("Bearer "))
    shown = steward.get(page).text
    assert "Approve the change" in shown
    assert 'first-steward proposed another budget. <a href="#waiting">It waits for other persons.</a>' in shown
    assert "once that whole budget is spent" in shown
    submit(steward, page, f"{page}/approve", proposal=hidden(shown, "proposal"))
    found = json_of(api.get(f"/v1{page}"))
    assert (found["budget"]["rho"], found["proposed_change"]) == ("0.75", None)
    assert "Approve the change" not in steward.get(page).text
    assert "by the key" in steward.get(f"{page}/journal").text


def test_an_approver_decides_and_does_nothing_else(api: Client, steward: Client) -> None:
    large = [release(api, concentrated("0.21"), "persons", name=f"large {number}") for number in range(2)]
    page = "/accounts/persons"
    submit(steward, page, f"{page}/budget", **_GREATER)
    sign_in(steward, operators_key(api, "approver", "board")["Authorization"].removeprefix("Bearer "))
    first_page = steward.get("/").text
    assert "Waiting for you" in first_page
    assert "Open an account" not in first_page
    shown = steward.get(page).text
    assert "Approve the change" in shown
    assert "Reject the change" in shown
    for manages in ("<h2>Manage</h2>", f"{page}/state", f"{page}/approval"):
        assert manages not in shown
    approved, rejected = (f"{page}/releases/{one['id']}" for one in large)
    assert "spent or held" in steward.get(approved).text
    assert f'href="{approved}/accuracy"' in steward.get(approved).text
    assert submit(steward, approved, f"{approved}/approve").headers["Location"] == f"{approved}?done=approved"
    assert "/commit" not in steward.get(rejected).text
    assert (
        "The release was rejected."
        in steward.get(submit(steward, rejected, f"{rejected}/void", **_VOID).headers["Location"]).text
    )
    assert ">rejected</a>" in steward.get(rejected).text
    assert [json_of(api.get(f"/v1{one}"))["state"] for one in (approved, rejected)] == ["committed", "voided"]
    unclear = submit(steward, page, f"{page}/reject", proposal="9" * 20, reason="")
    assert unclear.status_code == 422
    assert 'id="reject-reason-fault"' in unclear.text
    proposal = str(json_of(api.get(f"/v1{page}"))["proposed_change"]["seq"])
    late = submit(steward, page, f"{page}/reject", proposal="1", reason="not this year")
    assert late.status_code == 409
    assert 'value="not this year"' in late.text
    done = submit(steward, page, f"{page}/reject", proposal=proposal, reason="not this year")
    assert "The change was rejected." in steward.get(done.headers["Location"]).text
    assert json_of(api.get(f"/v1{page}"))["proposed_change"] is None


def test_closing_and_opening(api: Client, steward: Client) -> None:
    answer = submit(steward, "/accounts/empty", "/accounts/empty/state", state="closed")
    assert answer.headers["Location"] == "/accounts/empty?done=closed"
    assert "is closed now" in steward.get(answer.headers["Location"]).text
    assert json_of(api.get("/v1/accounts/empty"))["state"] == "closed"
    submit(steward, "/accounts/empty", "/accounts/empty/state", state="open")
    assert json_of(api.get("/v1/accounts/empty"))["state"] == "open"
    refused = submit(steward, "/accounts/empty", "/accounts/empty/state", state="ajar")
    assert refused.status_code == 422
    assert "ajar" not in refused.text


def test_a_form_sent_twice_is_done_once(api: Client, steward: Client) -> None:
    page = steward.get("/keys").text
    form = {name: hidden(page, name) for name in ("csrf", "once")} | {"name": "twice", "role": "auditor"}
    first, again = (steward.post("/keys", data=form) for _ in range(2))
    assert (first.status_code, again.status_code) == (200, 200)
    made = [key for key in json_of(api.get("/v1/keys"))["items"] if key["name"] == "twice"]
    assert len(made) == 1
    token = first.text.partition("<code>")[2].partition("</code>")[0]
    assert token in again.text
    assert json_of(api.get("/v1/principal", headers={"Authorization": f"Bearer {token}"}))["name"] == "twice"


@pytest.mark.parametrize("once", ["", "日本", "a\nb", "x" * 256])
def test_a_form_whose_key_was_spoilt_does_nothing(api: Client, steward: Client, once: str) -> None:
    page = f"/accounts/persons/releases/{_one(api, 'persons', 'reserved')['id']}"
    assert submit(steward, page, f"{page}/commit", once=once).status_code == 422
    assert _one(api, "persons", "reserved")["id"] in page


def test_keys_are_rotated(api: Client, steward: Client) -> None:
    """The new key is shown once and works; a key is rotated once."""
    assert submit(steward, "/keys", "/keys", name="loader", role="pipeline").status_code == 200
    old = json_of(api.get("/v1/keys"))["items"][-1]
    answer = submit(steward, "/keys", f"/keys/{old['id']}/rotate", overlap="P7D")
    new = json_of(api.get("/v1/keys"))["items"][-1]
    assert (new["name"], new["role"], new["rotated_from"]) == ("loader", "pipeline", old["id"])
    (shown,) = re.findall(r"pbl_[\w-]+", answer.text)
    assert json_of(api.get("/v1/principal", headers=bearer(shown)))["name"] == "loader"
    ended = json_of(api.get("/v1/keys"))["items"][-2]
    assert ended["rotated_to"] == new["id"]
    assert datetime.fromisoformat(ended["expires_at"]) - datetime.fromisoformat(new["created_at"]) == timedelta(7)
    listed = steward.get("/keys").text
    assert "by rotation" in listed
    assert "The old key stays valid for" in listed
    assert "another took its place" in listed
    assert f"/keys/{old['id']}/rotate" not in listed
    assert f"/keys/{old['id']}/revoke" in listed
    form = {name: hidden(listed, name) for name in ("csrf", "once")}
    again = steward.post(f"/keys/{old['id']}/rotate", data=form | {"overlap": "PT1H"})
    assert again.status_code == 409
    for overlap in ("", "P400D", "a week", "PT0S"):
        wrong = submit(steward, "/keys", f"/keys/{new['id']}/rotate", overlap=overlap)
        assert (wrong.status_code, "/overlap" in wrong.text) == (422, True)
    assert "pbl_" not in again.text


def test_a_key_that_has_expired_says_so_and_is_left_alone(
    api: Client, steward: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = json_of(
        api.post("/v1/keys", json={"name": "n", "role": "auditor", "expires_at": "2999-01-01T00:00:00Z"}), 201
    )
    button = f'action="/keys/{made["id"]}/revoke"'
    assert button in steward.get("/keys").text
    monkeypatch.setattr("service.pages.keys.clock", SimpleNamespace(now=lambda: "2999-01-01T00:00:00.000000Z"))
    shown = steward.get("/keys").text
    assert ("expired 2999" in shown, button in shown) == (True, False)


def test_keys_are_made_and_revoked(api: Client, steward: Client) -> None:
    fields = {"name": "pipe", "role": "pipeline", "accounts": "empty, persons", "expires": "2999-12-31"}
    assert submit(steward, "/keys", "/keys", **fields).status_code == 200
    made = json_of(api.get("/v1/keys"))["items"][-1]
    assert (made["accounts"], made["expires_at"]) == (["empty", "persons"], "2999-12-31T23:59:59.000000Z")
    answer = submit(steward, "/keys", f"/keys/{made['id']}/revoke")
    assert answer.headers["Location"] == "/keys?done=revoked"
    assert json_of(api.get("/v1/keys"))["items"][-1]["revoked_at"] is not None


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"name": ""}, "name"),
        ({"role": "king"}, "role"),
        ({"accounts": "empty; a/b, c d/e"}, "accounts"),
        ({"expires": "2001-01-01"}, "expires"),
        ({"expires": "soon"}, "expires"),
    ],
)
def test_a_key_that_cannot_be_says_where(steward: Client, api: Client, fields: dict[str, str], fault: str) -> None:
    answer = submit(steward, "/keys", "/keys", **{"name": "n", "role": "auditor"} | fields)
    assert answer.status_code == 422
    assert f'id="{fault}-fault"' in answer.text
    assert len(json_of(api.get("/v1/keys"))["items"]) == 1


@pytest.mark.parametrize(
    ("role", "buttons"), [("auditor", set()), ("pipeline", {"commit"}), ("steward", {"commit", "void"})]
)
def test_buttons_are_those_of_the_role(api: Client, visitor: Client, role: str, buttons: set[str]) -> None:
    somebody = _sign_in_as(api, visitor, role)
    page = f"/accounts/persons/releases/{_one(api, 'persons', 'reserved')['id']}"
    shown = somebody.get(page).text
    assert {what for what in ("commit", "void", "approve") if f'action="{page}/{what}"' in shown} == buttons
    assert ("/accounts/persons/state" in somebody.get("/accounts/persons").text) == (role == "steward")
    assert ('href="/keys"' in shown) == (role == "steward")


@pytest.mark.parametrize("what", ["commit", "void", "approve"])
def test_what_has_no_button_is_refused_all_the_same(api: Client, visitor: Client, what: str) -> None:
    auditor = _sign_in_as(api, visitor, "auditor")
    page = f"/accounts/persons/releases/{_one(api, 'persons', 'reserved')['id']}"
    form = {"csrf": hidden(auditor.get(page).text, "csrf"), "once": "x", "reason": "r"}
    assert auditor.post(f"{page}/{what}", data=form).status_code == 403
    assert _one(api, "persons", "reserved")["id"] in page


# Reading


def test_the_chain_is_verified_on_demand(steward: Client, api: Client) -> None:
    assert "The chain is valid" not in steward.get("/accounts/persons/journal").text
    assert "All 5 entries" in steward.get("/accounts/persons/journal?verify=1").text


def test_the_chain_is_verified_against_a_head_that_somebody_kept(steward: Client, api: Client) -> None:
    first = json_of(api.get("/v1/accounts/persons/journal"))["items"][0]
    verify = {"verify": "1", "head": f" 1:{first['hash']} "}
    shown = steward.get("/accounts/persons/journal", params=verify)
    assert (shown.status_code, "the head that you kept is among them" in shown.text) == (200, True)
    other = steward.get("/accounts/persons/journal", params=verify | {"head": f"1:{'0' * 64}"})
    assert (other.status_code, "The chain is broken" in other.text) == (200, True)
    wrong = steward.get("/accounts/persons/journal", params=verify | {"head": "yesterday's"})
    assert (wrong.status_code, 'id="head-fault"' in wrong.text, "The chain is" in wrong.text) == (422, True, False)


def test_the_journal_shows_the_newest_first_and_pages_back(steward: Client, api: Client) -> None:
    open_account(api, "long")
    for _ in range(60):
        release(api, concentrated("1e-9"), "long")
    for to, first, last in (("", 61, 37), ("?to=36", 36, 12), ("?to=11", 11, 1), ("?to=1", 1, 1)):
        shown = steward.get(f"/accounts/long/journal{to}").text
        rows = [int(part.partition("</th>")[0]) for part in shown.split('scope="row">')[1:]]
        assert rows == list(range(first, last - 1, -1))
    for nonsense in ("0", "x", "-1", "1.5", "9" * 20, "²"):
        assert steward.get("/accounts/long/journal", params={"to": nonsense}).status_code == 422
    assert steward.get("/accounts/long/journal?to=99999").status_code == 200


def test_the_journal_shows_all_its_rows_where_entries_are_large(
    steward: Client, api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(api, "long")
    made = [release(api, concentrated("1e-9"), "long")["id"] for _ in range(4)]
    monkeypatch.setattr(paging, "CHARACTERS", 1)  # one entry per page
    shown = steward.get("/accounts/long/journal").text
    rows = [int(part.partition("</th>")[0]) for part in shown.split('scope="row">')[1:]]
    assert rows == [5, 4, 3, 2, 1]
    assert all(f"/accounts/long/releases/{one}" in shown for one in made)


def test_the_journal_leads_to_the_releases_of_accounts_below(steward: Client, api: Client) -> None:
    held = _one(api, "persons", "reserved")["id"]
    json_of(api.post(f"/v1/accounts/persons/releases/{held}/void", json=_VOID))
    assert api.post("/v1/accounts/persons/releases", json={"name": "r", "plan": concentrated("9")}).status_code == 409
    shown = steward.get("/accounts/nation/journal").text
    links = set(re.findall(r'"(/accounts/[a-z]+/releases/[^"]+)"', shown))
    assert f"/accounts/persons/releases/{held}" in links
    assert all(steward.get(link).status_code == 200 for link in links)
    # Its end has neither its name nor its account: the row that registered it does.
    assert shown.count(f'<a href="/accounts/persons/releases/{held}">held</a> of persons') == 2
    end = json_of(api.get("/v1/accounts/nation/head"))["seq"]
    registered = next(
        row["entry"]["seq"]
        for row in json_of(api.get("/v1/accounts/nation/journal"))["items"]
        if row["entry"]["release"] == held
    )
    for _ in range(25 - (end - registered)):
        release(api, concentrated("1e-6"), "nation")
    assert f"<code>{held}</code>" in steward.get("/accounts/nation/journal").text  # that row is on an older page
    assert _VOID["reason"] in shown
    assert "r, which did not fit persons" in steward.get("/accounts/persons/journal").text


def test_a_tabulation_among_the_draws(steward: Client, api: Client) -> None:
    noise = {"type": "geometric", "scale": "100"}
    steps = {"type": "sequence", "parts": [noise | {"name": "State/step 1"}, noise | {"name": "State/step 2"}]}
    made = release(api, {"type": "choice", "parts": [noise | {"name": "State/total"}, steps]}, "households")
    groups = [{"group": name, "total_only": True, "total": 5} for name in ("a", "b", "c")]
    at = f"/accounts/households/releases/{made['id']}"
    json_of(api.post(f"/v1{at}/tabulations", json={"level": "State", "groups": groups}), 201)
    shown = steward.get(at).text
    assert "tabulation of State" in shown
    assert 'class="number">3</td>' in shown


def test_the_page_of_an_account_has_its_course_drawn_within(pictures: None, steward: Client, api: Client) -> None:
    shown = steward.get("/accounts/persons").text
    found = re.search(r'href="data:image/svg\+xml;base64,([^"]+)"', shown)
    assert found is not None
    drawn = api.get("/v1/accounts/persons/history?points=120", headers={"Accept": "image/svg+xml"}).text
    assert base64.b64decode(found[1]).decode() == drawn
    assert drawn[drawn.index("<svg ") :] in shown
    assert "pictures/spending" not in shown


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?cursor=nonsense!", 422),
        ("/accounts/nobody", 404),
        ("/accounts/NOBODY%20%00", 404),
        ("/accounts/persons/releases/none", 404),
        ("/accounts/persons/releases?state=lost", 422),
        ("/accounts/persons/releases?cursor=!", 422),
        ("/accounts/persons/draws/none", 404),
        ("/accounts/persons/pictures/none.svg", 404),
        ("/accounts/persons/pictures/..%2f..%2fkeys.svg", 404),
        ("/accounts/..%2fkeys", 404),
        ("/accounts/persons/state", 405),
        ("/keys?cursor=!", 422),
    ],
)
def test_what_is_not_there_is_said_on_a_page(steward: Client, path: str, status: int) -> None:
    answer = steward.get(path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
    assert "Traceback" not in answer.text
    assert "first-steward" in answer.text  # the header shows the signed-in principal


def test_files_are_those_of_the_contract(steward: Client, api: Client) -> None:
    (found,) = [
        one for one in json_of(api.get("/v1/accounts/persons/releases"))["items"] if one["name"] == "county totals"
    ]
    page = f"/accounts/persons/releases/{found['id']}"
    (draw,) = json_of(api.get(f"/v1{page}/draws"))["items"]
    shown = steward.get(page).text
    file = steward.get(f"{page}/receipt")
    assert file.headers["Content-Disposition"] == f"attachment; filename*=UTF-8''receipt-{found['id']}.json"
    assert json_of(file)["release"]["id"] == found["id"]
    assert json_of(api.get("/v1/installation"))["public_key"] in shown
    assert f"/accounts/persons/draws/{draw['draw']}" in shown
    assert f"±{draw['margin_of_error']['moe']} at 95 %" in shown
    assert json_of(steward.get(f"/accounts/persons/draws/{draw['draw']}")) == draw
    lines = steward.get("/accounts/persons/export")
    assert lines.headers["Content-Type"].startswith("application/x-ndjson")
    heads = json.loads(lines.text.splitlines()[0])["accounts"]
    assert [head["account"] for head in heads] == ["nation", "persons"]
    for answer in (file, lines):
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert len(answer.headers.get_list("x-request-id")) == 1


def test_entries_of_the_registry_are_files_or_say_what_is_missing(steward: Client, api: Client) -> None:
    (found,) = [
        one for one in json_of(api.get("/v1/accounts/persons/releases"))["items"] if one["name"] == "county totals"
    ]
    path = f"/accounts/persons/releases/{found['id']}"
    for place in ("/accounts/persons", path):
        assert f'href="{place}/description#entry"' in steward.get(place).text
        missing = steward.get(f"{place}/registry-entry")
        assert (missing.status_code, "Intended use" in missing.text) == (409, True)
        assert missing.headers["Content-Type"].startswith("text/html")
        assert f'href="{place}/description">Describe it</a>' in missing.text
    people = {
        "data_curators": ["The office"],
        "intended_use": "Planning",
        "data_product_type": "Summary statistics",
        "data_product_region": "The country",
        "description": "Counts",
        "publication_date": "2026-01-31",
    }
    json_of(api.patch("/v1/accounts/persons", json={"metadata": people}))
    for place in ("/accounts/persons", path):
        entry = steward.get(f"{place}/registry-entry")
        assert entry.headers["Content-Type"] == "application/yaml"
        assert entry.headers["Content-Disposition"].startswith("attachment;")
        assert yaml.safe_load(entry.text)["deployment"]["basic"]["intended_use"] == "Planning"


def test_noisy_counts_are_on_no_page(steward: Client, api: Client) -> None:
    """There can be millions: pages link to the file."""
    draw = {"name": "big", "mechanism": {"type": "geometric", "epsilon": "0.001"}, "counts": [123456789]}
    made = json_of(api.post("/v1/accounts/households/draws", json=draw), 201)
    shown = steward.get(f"/accounts/households/releases/{made['release']}").text
    assert str(made["noisy"][0]) not in shown


def test_beside_an_epsilon_that_is_no_sum_stands_how_many_more_releases_fit(steward: Client, api: Client) -> None:
    budget = {"definition": "approximate", "epsilon": "4", "delta": "1e-6"}
    open_account(api, "noisy", budget, parent="households", unit="household")
    assert "own budget" not in _words_of(steward, "/accounts/noisy")
    release(api, concentrated("0.02"), "noisy")
    more = json_of(api.get("/v1/accounts/noisy/balance"))["equal_more"]
    shown = _words_of(steward, "/accounts/noisy")
    said = re.search(
        r"<strong>ε = [0-9.]+</strong> of 4 spent; ([0-9.]+) % of the room for equal releases; (\d+) more releases like"
        r" the first one fit its own budget; those above it can have less room\.",
        shown,
    )
    assert said is not None
    assert int(said[2]) == more
    assert float(said[1]) - 0.1 <= 100 / (more + 1) <= float(said[1]) * (1 + 2 / more)
    release(api, concentrated("0.01"), "noisy")
    in_words = re.compile(r"[0-9.]+ % of the room for equal releases; \d+ more releases like the mean one fit")
    for address, accounts in (("/accounts/noisy", 1), ("/accounts/households", 2), ("/plan/account?account=noisy", 1)):
        assert len(in_words.findall(_words_of(steward, address))) == accounts, address
    assert "like the" not in _words_of(steward, "/accounts/empty")


def _words_of(steward: Client, address: str) -> str:
    return " ".join(steward.get(address).text.split())


def test_releases_are_searched(api: Client, steward: Client) -> None:
    release(api, concentrated("1e-6"), "persons", name="Births of 2026")
    found = steward.get("/accounts/persons/releases", params={"name": "births", "since": "2020-01-01"}).text
    assert "Births of 2026" in found
    assert found.count('role="rowheader"') == 2  # in the list, and in all analyses
    assert 'value="births"' in found
    today = json_of(api.get("/v1/accounts/persons/releases?name=births"))["items"][0]["created_at"][:10]
    assert "Births of 2026" in steward.get(f"/accounts/persons/releases?since={today}&until={today}").text
    none = steward.get("/accounts/persons/releases", params={"name": "births", "until": "2020-01-01"}).text
    assert "There are no such releases." in none


def test_a_wrong_search_says_where(steward: Client) -> None:
    for parameter, value in (
        ("since", "yesterday"),
        ("until", "soon"),
        ("name", "x" * 201),
        ("state", "gone"),
    ):
        answer = steward.get("/accounts/persons/releases", params={parameter: value})
        assert answer.status_code == 422
        assert f'id="{parameter}-fault"' in answer.text


def test_the_first_page_shows_a_steward_what_waits(api: Client, steward: Client) -> None:
    release(api, concentrated("0.25"), "persons", name="a large table")
    json_of(api.patch("/v1/accounts/persons", json={"budget": {"definition": "zcdp", "rho": "0.75"}}), 202)
    assert "Waiting for you" not in steward.get("/").text  # both are this steward's own
    sign_in(steward, operators_key(api, "steward", "second")["Authorization"].removeprefix("Bearer "))
    shown = steward.get("/").text
    assert "Waiting for you" in shown
    assert "a large table" in shown
    assert "persons</a>: the budget from ρ = 0.5 (" in shown
    assert "Waiting for you" not in steward.get("/", params={"parent": "nation"}).text
    sign_in(steward, make_key(api, "pipeline", "weekly")["Authorization"].removeprefix("Bearer "))
    assert "Waiting for you" not in steward.get("/").text


def test_the_first_page_says_that_more_may_wait(api: Client, steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' proposals may stand behind as many of one's own as are looked at."""
    monkeypatch.setattr(pages_accounts, "_WAITING", 1)
    json_of(api.patch("/v1/accounts/persons", json={"approval_above": "0.01"}))
    for _ in range(2):
        release(api, concentrated("0.02"), "persons", name="a large table")
    shown = steward.get("/").text
    assert "More may wait than is shown here" in shown
    assert "More of your proposals are on the pages of the accounts." in shown


def test_a_refused_form_links_to_its_field_and_keeps_its_tab(steward: Client) -> None:
    answer = submit(steward, "/accounts/empty", "/accounts/empty/budget", cap="x")
    assert answer.status_code == 422
    summary, _, rest = answer.text.partition("<h1>")
    assert "One field is wrong" in summary
    assert '<a href="#cap">Budget, ε</a>: expected a number such as 0.5, 0,5 or 1/3' in summary
    assert 'id="cap-fault"' in rest
    assert '<a href="/accounts/empty" aria-current="page">Overview</a>' in rest
    assert answer.headers["Cache-Control"] == "private, no-cache"


def test_a_budget_may_have_a_decimal_comma(api: Client, steward: Client) -> None:
    assert submit(steward, "/accounts/empty", "/accounts/empty/budget", cap="0,5").status_code == 303
    assert json_of(api.get("/v1/accounts/empty"))["budget"]["epsilon"] == "0.5"


def test_a_key_is_never_kept_by_the_browser(steward: Client) -> None:
    made = submit(steward, "/keys", "/keys", name="somebody", role="auditor")
    assert made.headers["Cache-Control"] == "no-store"


def test_signing_out_deletes_what_the_browser_keeps(steward: Client) -> None:
    answer = steward.post("/sign-out", data={"csrf": hidden(steward.get("/").text, "csrf")})
    assert answer.headers["Clear-Site-Data"] == '"cache"'


def test_the_way_to_the_registry_entry_is_a_page_that_says_what_is_missing(steward: Client) -> None:
    assert 'href="/accounts/empty/description#entry"' in steward.get("/accounts/empty").text
    shown = steward.get("/accounts/empty/description").text
    assert "The description lacks:" in shown
    assert '<a href="#data_curators">Data curators</a>' in shown
