"""The page that registers a release and draws it: a preview that charges nothing, one draw for a form, no kept file."""

import csv
import html
import io
import json
import re
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it publishes no types
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.pages.drawing_form import NOISES
from tests.api.calls import Answer, Client, json_of, open_account, problem_of, pure
from tests.pages.forms import form_of, signed_in
from tests.pages.visits import hidden, saved

_PAGE = "/accounts/empty/draw"
_TABLE = "county,count\r\n001,12\r\n002,918273645\r\n"
_NEARLY_NONE = {"noise": "geometric scale", "figure": "1e-4", "name": "county totals"}


def _preview(client: Client, page: str = _PAGE, **texts: str) -> Answer:
    form = form_of(client.get(page), page)
    return client.post(page, data=form.with_texts(texts))


def _draw(client: Client, shown: Answer, table: str | bytes = _TABLE, page: str = _PAGE) -> Answer:
    form = form_of(shown, f"{page}/counts")
    files = {"counts": ("counts.csv", table, "text/csv")}
    return client.post(f"{page}/counts", data=form.fields, files=files)


def _released(api: Client, account: str = "empty") -> list[Any]:
    items: list[Any] = json_of(api.get(f"/v1/accounts/{account}/releases"))["items"]
    return items


@pytest.fixture
def wide(api: Client) -> str:
    """The page of an account in which nearly no noise fits."""
    open_account(api, "wide", {"definition": "pure", "epsilon": 10**6})
    return "/accounts/wide/draw"


def test_from_a_margin_to_noisy_counts(api: Client, steward: Client) -> None:
    assert f'href="{_PAGE}"' in steward.get("/accounts/empty").text
    shown = _preview(steward, noise="geometric moe", figure="11", name="county totals", purpose="Schools", tags="a, b")
    assert "each noisy count is within 11 of the true count" in shown.text
    assert _released(api) == []
    answer = _draw(steward, shown)
    assert "<h1>Drawn and charged</h1>" in answer.text
    assert (
        answer.headers["Cache-Control"] == "private, no-cache"
    )  # its labels are stored nowhere: the way back keeps it
    assert "data:" not in answer.headers["Content-Security-Policy"]
    rows = list(csv.DictReader(io.StringIO(saved(answer.text).decode(), newline="")))
    assert [(row["county"], row["moe"]) for row in rows] == [("001", "11"), ("002", "11")]
    (made,) = _released(api)
    assert (made["name"], made["tags"], made["metadata"]) == ("county totals", ["a", "b"], {"intended_use": "Schools"})
    (drawn,) = json_of(api.get(f"/v1/accounts/empty/releases/{made['id']}/draws"))["items"]
    assert [row["noisy"] for row in rows] == [str(count) for count in drawn["noisy"]]
    assert f'download="noisy-{drawn["draw"]}.csv"' in answer.text
    assert f'href="/accounts/empty/releases/{made["id"]}"' in answer.text


@pytest.mark.parametrize("confidence", ["0.9", "90 %", "9/10"])
def test_a_preview_states_the_margin_at_the_confidence_that_was_asked(steward: Client, confidence: str) -> None:
    shown = _preview(steward, noise="geometric moe", figure="80", confidence=confidence, name="n").text
    assert "within 80 of the true count with a probability of at least 90&nbsp;%;" in shown
    assert "states the margin at 95&nbsp;%, which is 105</dd>" in shown
    usual = _preview(steward, noise="geometric moe", figure="80", name="n").text
    assert "within 80 of the true count with a probability of at least 95&nbsp;%</dd>" in usual


def test_a_form_that_is_sent_twice_charges_once(api: Client, steward: Client, wide: str) -> None:
    shown = _preview(steward, wide, **_NEARLY_NONE)
    first, again = (_draw(steward, shown, page=wide) for _ in range(2))
    assert saved(first.text) == saved(again.text)
    other = _draw(steward, shown, _TABLE.replace("12", "13"), wide)
    assert "This form has drawn another table" in other.text
    assert "Idempotency-Key" not in other.text
    assert hidden(other.text, "once") == hidden(shown.text, "once")
    assert len(_released(api, "wide")) == 1
    anew = _preview(steward, wide, **_NEARLY_NONE)
    assert hidden(anew.text, "once") != hidden(shown.text, "once")


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("", "expected a file with a line of names and a column count"),
        (
            "a,b\n1,2\n",
            "row 1: expected the names of the columns, separated by commas or semicolons, one of them count",
        ),
        ("count\n", "row 2: expected at least one row"),
        ("county,count\n001,918273645x\n", "row 2, column 2: expected a whole number"),
        (b"count\n\xff\n", "row 2: expected UTF-8"),
        ("count\n918273645.5\n", "row 2, column 1: expected a whole number"),
        ("county,count\n001,1\n 002,918273645\n", "row 3, column 1: expected 1 to 200 visible characters"),
        (
            'county,count\n"1,918273645\n',
            "row 2: expected values separated by commas or semicolons, with closed quotation marks",
        ),
    ],
)
def test_a_wrong_file_is_told_without_its_counts(
    api: Client, steward: Client, wide: str, table: str | bytes, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = _draw(steward, _preview(steward, wide, **_NEARLY_NONE), table, wide)
    assert answer.status_code == 422
    assert f'id="counts-fault">{fault}' in answer.text
    assert "1 fault" not in answer.text
    assert "918273645" not in answer.text + caplog.text
    assert _released(api, "wide") == []


def test_more_values_than_the_service_reads_at_once(app: FastAPI, api: Client, steward: Client, wide: str) -> None:
    shown = _preview(steward, wide, **_NEARLY_NONE)
    app.state.settings = app.state.settings.model_copy(update={"max_json_items": 4})
    answer = _draw(steward, shown, _TABLE, wide)
    assert answer.status_code == 413
    assert "expected a table of at most 4 values" in answer.text
    assert _released(api, "wide") == []


def test_noisy_counts_that_are_too_long_for_a_page_are_sent_as_a_file(
    steward: Client, wide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.pages.counts_form.LONGEST_ANSWER", 10)
    answer = _draw(steward, _preview(steward, wide, **_NEARLY_NONE), page=wide)
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert answer.headers["Content-Disposition"].endswith(".csv")
    assert answer.text.startswith("county,noisy,moe,confidence")


@pytest.mark.parametrize(
    ("account", "chosen"),
    [("empty", "geometric"), ("nation", "discrete_gaussian"), ("households", "discrete_gaussian")],
)
def test_the_noise_that_suits_the_budget_is_chosen_first(steward: Client, account: str, chosen: str) -> None:
    page = f"/accounts/{account}/draw"
    assert form_of(steward.get(page), page).fields["noise"] == [f"{chosen} moe"]


def test_the_mechanism_has_the_name_of_the_release(api: Client, steward: Client, wide: str) -> None:
    assert "registers and charges a new release" in steward.get(wide).text
    assert 'href="/accounts/wide/releases"' in steward.get(wide).text
    _draw(steward, _preview(steward, wide, **_NEARLY_NONE), page=wide)
    (made,) = _released(api, "wide")
    assert made["plan"]["name"] == "county totals"
    for page in (f"releases/{made['id']}", f"releases/{made['id']}/accuracy", "accuracy"):
        assert 'scope="row">county totals</th>' in steward.get(f"/accounts/wide/{page}").text
    assert steward.get("/accounts/wide/report").text.count("county totals<") == 1 + 2  # listed, and with its mechanism


def test_a_mechanism_without_a_name_has_that_of_its_release(api: Client, steward: Client) -> None:
    body = {"name": "older", "mechanism": pure("0.1"), "counts": [1, 2]}
    drawn = json_of(api.post("/v1/accounts/empty/draws", json=body), 201)
    assert drawn["mechanism"]["name"] == "/"
    for page in (f"releases/{drawn['release']}", f"releases/{drawn['release']}/accuracy", "accuracy", "report"):
        shown = steward.get(f"/accounts/empty/{page}").text
        assert "older" in shown
        assert not re.search(r"<t[hd][^>]*>/</t[hd]>", shown)


@pytest.mark.parametrize("noise", NOISES)
def test_every_kind_of_noise(api: Client, steward: Client, noise: str) -> None:
    open_account(
        api, "all", {"definition": "approximate", "epsilon": "1000", "delta": "1e-6"}, neighbouring="replace_one"
    )
    page = "/accounts/all/draw"
    figure = "5" if noise.endswith(("moe", "scale", "sigma_squared")) else "0.5"
    shown = _preview(steward, page, noise=noise, figure=figure, m="3", name="n", cells="2", sensitivity="1")
    mechanism = json.loads(hidden(shown.text, "mechanism"))
    assert mechanism["cells"] == 4
    assert _draw(steward, shown, page=page).status_code == 200
    (made,) = _released(api, "all")
    assert made["plan"]["type"] == noise.split(" ", maxsplit=1)[0]


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ({"name": "a" * 201}, "name"),
        ({"tags": "a\x07"}, "tags"),
        ({"figure": "x"}, "figure"),
        ({"figure": "-1"}, "figure"),
        ({"figure": "1.500", "noise": "geometric moe"}, "figure"),
        ({"figure": ""}, "figure"),
        ({"figure": "1e-400000"}, "figure"),
        ({"confidence": "1"}, "confidence"),
        ({"confidence": "NaN"}, "confidence"),
        ({"cells": "0"}, "cells"),
        ({"cells": "1.5"}, "cells"),
        ({"sensitivity": "-1"}, "sensitivity"),
        ({"name": ""}, "name"),
        ({"tags": "a" * 201}, "tags"),
        ({"noise": "gaussian rho"}, "noise"),
        ({"purpose": "a\x07b"}, "purpose"),
        ({"granularity": "0.5"}, "granularity"),
        ({"noise": "geometric epsilon", "figure": "Infinity"}, "figure"),
        ({"noise": "geometric epsilon", "figure": "0.1", "granularity": "-1"}, "granularity"),
        ({"noise": "discrete_osgt sigma_squared", "figure": "4", "m": "x"}, "m"),
    ],
)
def test_a_wrong_field_is_told_at_its_place(steward: Client, texts: dict[str, str], field: str) -> None:
    answer = _preview(steward, **({"figure": "11", "name": "n"} | texts))
    assert answer.status_code == 422, answer.text
    assert f'id="{field}-fault"' in answer.text
    assert not re.search(r"matches|1 fault|bits|decimal string", answer.text)
    assert f'action="{_PAGE}/counts"' not in answer.text


def test_noise_that_does_not_fit(api: Client, steward: Client) -> None:
    answer = _preview(steward, noise="geometric epsilon", figure="2", name="n")
    assert answer.status_code == 409
    assert "exceeds the budget" in answer.text
    assert "empty has 1 of its ε budget left; it would take 2." in answer.text
    assert _released(api) == []


def test_a_release_that_needs_a_second_person_is_proposed_and_not_drawn(api: Client, steward: Client) -> None:
    page = "/accounts/persons/draw"
    shown = _preview(steward, page, noise="discrete_gaussian rho", figure="0,25", name="n", purpose="Schools")
    assert "waits for the approval of" in shown.text
    assert f'action="{page}/counts' not in shown.text
    fields = form_of(shown, f"{page}/propose").fields
    sent = [steward.post(f"{page}/propose", data=fields) for _ in range(2)]
    (proposed,) = [one for one in _released(api, "persons") if one["state"] == "proposed" and one["name"] == "n"]
    assert {answer.headers["Location"] for answer in sent} == {
        f"/accounts/persons/releases/{proposed['id']}?done=proposed"
    }
    assert "The release is proposed." in steward.get(sent[0].headers["Location"]).text
    assert (proposed["name"], proposed["metadata"]["intended_use"]) == ("n", "Schools")


def test_an_account_with_periods_asks_for_them(api: Client, steward: Client) -> None:
    open_account(api, "months", periods={"calendar": "month", "participation": {"offsets": [0]}})
    page = "/accounts/months/draw"
    noise = {"noise": "discrete_gaussian rho", "figure": "0.1", "name": "n"}
    assert 'id="periods-fault"' in _preview(steward, page, **noise).text
    assert _draw(steward, _preview(steward, page, **noise, periods="2026-01 to 2026-03"), page=page).status_code == 200
    (made,) = _released(api, "months")
    assert made["periods"]


def test_only_those_who_draw_see_the_form(api: Client, visitor: Client) -> None:
    application: TestClient = visitor  # type: ignore[assignment]
    for role in ("auditor", "approver"):
        made = json_of(api.post("/v1/keys", json={"name": role, "role": role}), 201)["key"]
        reader = signed_in(application, made)
        assert f'href="{_PAGE}"' not in reader.get("/accounts/empty").text
        shown = reader.get(_PAGE).text
        assert "takes a key with the role pipeline" in html.unescape(shown)
        assert f'action="{_PAGE}' not in shown
        csrf = hidden(reader.get("/").text, "csrf")
        fields = {
            "csrf": csrf,
            "once": "o",
            "mechanism": json.dumps({"type": "geometric", "epsilon": "0.1"}),
            "name": "n",
        }
        answer = reader.post(f"{_PAGE}/counts", data=fields, files={"counts": ("c", _TABLE, "text/csv")})
        assert answer.status_code == 403
    assert _released(api) == []


def test_a_form_of_another_site_or_session_draws_nothing(api: Client, steward: Client, wide: str) -> None:
    form = form_of(_preview(steward, wide, **_NEARLY_NONE), f"{wide}/counts")
    files = {"counts": ("counts.csv", _TABLE, "text/csv")}
    for data, headers in (
        (form.fields | {"csrf": "x"}, {}),
        (form.fields, {"Origin": "https://elsewhere.example"}),
        (form.fields, {"Sec-Fetch-Site": "cross-site"}),
    ):
        answer = steward.post(f"{wide}/counts", data=data, files=files, headers=headers)
        assert answer.status_code == 403
    assert _released(api, "wide") == []


def test_unknown_and_closed_accounts(api: Client, steward: Client) -> None:
    assert steward.get("/accounts/nobody/draw").status_code == 404
    json_of(api.patch("/v1/accounts/empty", json={"state": "closed"}))
    assert "The account is closed" in steward.get(_PAGE).text
    assert f'href="{_PAGE}"' not in steward.get("/accounts/empty").text
    problem_of(api.get("/v1/accounts/nobody"), "not_found")


def test_noisy_counts_are_saved_as_parquet(api: Client, steward: Client, wide: str) -> None:
    shown = _preview(steward, wide, **_NEARLY_NONE)
    form = form_of(shown, f"{wide}/counts")
    assert form.fields["file"] == ["csv"]
    files = {"counts": ("counts.csv", _TABLE, "text/csv")}
    as_parquet, as_csv = (
        steward.post(f"{wide}/counts", data=form.with_texts({"file": ending}), files=files)
        for ending in ("parquet", "csv")
    )
    assert 'href="data:application/vnd.apache.parquet;base64,' in as_parquet.text
    assert '.parquet">' in as_parquet.text
    rows = pq.read_table(io.BytesIO(saved(as_parquet.text))).to_pylist()
    assert [(row["county"], row["noisy"], row["moe"]) for row in rows] == [("001", 12, 0), ("002", 918273645, 0)]
    assert [str(row["noisy"]) for row in rows] == [
        line.split(",")[1] for line in saved(as_csv.text).decode().splitlines()[1:]
    ]
    assert len(_released(api, "wide")) == 1
    refused = steward.post(f"{wide}/counts", data=form.with_texts({"file": "parquet"}), files={})
    assert 'value="parquet" checked' in refused.text
    assert steward.post(f"{wide}/counts", data=form.with_texts({"file": "pdf"}), files=files).status_code == 422


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_first_rows_are_shown_beside_the_file(steward: Client, wide: str, ending: str) -> None:
    form = form_of(_preview(steward, wide, **_NEARLY_NONE), f"{wide}/counts")
    table = "county;count\r\n" + "".join(f"{number:03};{number}\r\n" for number in range(20))
    files = {"counts": ("counts.csv", table, "text/csv")}
    shown = steward.post(f"{wide}/counts", data=form.with_texts({"file": ending}), files=files).text
    cells = re.findall(r'<th role="rowheader"[^>]*>(\d+)</th>\s*<td[^>]*>(\d+)</td>', shown)
    assert cells == [(f"{number:03}", str(number)) for number in range(8)]


def test_a_stored_draw_is_saved_as_parquet(api: Client, steward: Client, wide: str) -> None:
    _draw(steward, _preview(steward, wide, **_NEARLY_NONE), page=wide)
    (made,) = _released(api, "wide")
    shown = steward.get(f"/accounts/wide/releases/{made['id']}").text
    (link,) = re.findall(r'href="([^"]+\.parquet)"', shown)
    assert pq.read_table(io.BytesIO(steward.get(link).content)).column("noisy").to_pylist() == [12, 918273645]
