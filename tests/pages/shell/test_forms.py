"""Forms: bounded before they are parsed, parsed in threads, and processed in turns."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.api.http.fair_places import FairPlaces
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from service.pages.shell import forms
from service.pages.shell.forms import LARGEST_TEXT, MOST_FIELDS
from tests.api.calls import STEWARD, Client, application, client_of, json_of, problem_of
from tests.pages.forms import form_of
from tests.pages.visits import sign_in

_PAIRS, _PARTS = forms.URL_ENCODED, "multipart/form-data; boundary=x"
_PART = b'--x\r\nContent-Disposition: form-data; name="a"%b\r\n\r\n%b\r\n'


@pytest.mark.parametrize(
    ("path", "content", "media_type", "code", "expected"),
    [
        ("/plan", b"&" * (LARGEST_TEXT + 1), _PAIRS, "too_large", f"at most {LARGEST_TEXT} bytes"),
        ("/plan", b"&" * LARGEST_TEXT, _PAIRS, "validation", f"at most {MOST_FIELDS} fields"),
        ("/plan", b"&" * MOST_FIELDS, _PAIRS, "validation", f"at most {MOST_FIELDS} fields"),
        ("/plan", b"--x" + b"\r\n--x" * 1_000_000, _PARTS, "too_large", f"form of at most {LARGEST_TEXT} bytes"),
        ("/plan", b"a=%ff", _PAIRS, "validation", "UTF-8"),
        ("/empirical/noise", b"\r\n--" * 2_000_000, _PARTS, "validation", "as a browser sends it"),
        ("/empirical/noise", b"--x" + b"\r\n--" * 2_000_000, _PARTS, "validation", "the whole form"),
        ("/empirical/noise", b"--x" + b"\r\n--x" * 1_000_000, _PARTS, "validation", "as a browser sends it"),
        ("/plan", _PART % (b"", b"1") * (MOST_FIELDS + 2), _PARTS, "validation", f"at most {MOST_FIELDS} fields"),
        (
            "/empirical/noise",
            _PART % (b"", b"1" * (LARGEST_TEXT + 1)) + b"--x--",
            _PARTS,
            "too_large",
            "texts of at most",
        ),
        (
            "/plan",
            _PART % (b"; filename=f\r\nX: " + b"y" * 2000, b"1") + b"--x--",
            _PARTS,
            "validation",
            "as a browser",
        ),
        ("/plan", _PART % (b"", b"1"), _PARTS, "validation", "the whole form"),
        ("/plan", b"--\r\n", "multipart/form-data; boundary=", "validation", "as a browser sends it"),
        ("/plan", b"a", f'multipart/form-data; a="{";" * 6000}', "unsupported_media_type", "at most 300 characters"),
        ("/sign-in", b"k" * 4097, _PAIRS, "too_large", "at most 4096 bytes"),
        ("/sign-in", b"&" * 4096, _PAIRS, "validation", "at most 3 fields"),
        ("/sign-in", b"a&b&c&key=" + STEWARD.encode(), _PAIRS, "validation", "at most 3 fields"),
        ("/sign-in", _PART % (b"", b"1") * 5 + b"--x--", _PARTS, "validation", "at most 3 fields"),
    ],
)
def test_what_is_no_form_of_a_page_is_refused_before_it_is_parsed(
    app: FastAPI,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    content: bytes,
    media_type: str,
    code: str,
    expected: str,
) -> None:
    if content != b"a=%ff":
        monkeypatch.delattr(forms, "parse_qsl")
    with TestClient(app) as program:
        headers = {"Content-Type": media_type}
        sign_in_by_parts(program)
        assert expected in str(problem_of(program.post(path, content=content, headers=headers), code))
        page = program.post(path, content=content, headers=headers | {"Accept": "text/html"})
        assert expected in page.text
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"


def sign_in_by_parts(client: Client) -> None:
    """Sign in with a form of the other encoding."""
    part = b'--x\r\nContent-Disposition: form-data; name="key"\r\n\r\n%b\r\n--x--\r\n' % STEWARD.encode()
    answer = client.post("/sign-in", content=part, headers={"Content-Type": _PARTS}, follow_redirects=False)
    assert answer.status_code == 303


def test_both_encodings_say_the_same(steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def note(form: forms.Form, name: str) -> str:
        seen.append(form)
        return text_of(form, name)

    text_of = forms.text_of
    monkeypatch.setattr(forms, "text_of", note)
    texts = {"a": ["", "ä+&=%\r\n1"], "b b": [" 2 "]}
    steward.post("/plan", data=texts)
    steward.post("/plan", data=texts, files={"c": ('c;"\\.csv', b"\r\n--3\r\n", "text/csv")})
    first, second = seen
    assert first == forms.Form(texts)
    assert (second.texts, second.files["c"]) == (texts, b"\r\n--3\r\n")


@pytest.mark.parametrize("files", [{}, {"file": b"1\n" * 4096}], ids=["URL-encoded", "multipart"])
def test_what_is_not_small_is_parsed_in_a_thread_and_in_a_turn(
    app: FastAPI, steward: Client, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]
) -> None:
    held: list[tuple[bool, int]] = []
    name = "_of_parts" if files else "_of_pairs"
    parse = getattr(forms, name)

    def note(*given: Any) -> Any:
        held.append((threading.current_thread().name.startswith("AnyIO worker"), app.state.page_turns.busy))
        return parse(*given)

    monkeypatch.setattr(forms, name, note)
    form = form_of(steward.get("/plan"), "/plan")
    answer = steward.post(
        "/plan", data=form.with_texts({"do": "show", "release": "x" * 4000, "periods": "x" * 4000}), files=files
    )
    assert answer.status_code == 200
    assert held == [(True, 1)]
    assert app.state.page_turns.busy == 0


def test_a_form_is_worked_on_in_a_turn_of_who_is_signed_in(app: FastAPI, steward: TestClient) -> None:
    form = form_of(steward.get("/plan"), "/plan").with_texts({"do": "show"})
    turns = app.state.page_turns = FairPlaces(2, 1, 1, 0)
    name = json_of(client_of(app).get("/v1/principal"))["name"]
    assert steward.portal is not None
    steward.portal.call(turns.enter, name)
    assert "too many requests of one principal" in steward.post("/plan", data=form).text
    turns.leave(name)
    assert steward.post("/plan", data=form).status_code == 200


@pytest.fixture
def throttled(_sqlite_template: Path, tmp_path: Path, secret: Secret) -> Iterator[Client]:
    """Return a client without a key, at an address that may fail four times."""
    path = tmp_path / "throttled.db"
    shutil.copyfile(_sqlite_template, path)
    app = application(open_database(f"sqlite:///{path}"), secret, failure_rate="4/hour")
    with TestClient(app, follow_redirects=False) as client:
        yield client


def test_a_sign_in_without_a_key_is_one_that_failed(throttled: Client) -> None:
    encoded = {"Content-Type": _PAIRS}
    for content, status in ((b"", 401), (b"key=", 401), (b"&" * 100, 422), (b"key=%ff", 422)):
        assert throttled.post("/sign-in", content=content, headers=encoded).status_code == status
    for content in (b"", b"key=", b"&" * 100, b"key=wrong"):
        problem_of(throttled.post("/sign-in", content=content, headers=encoded), "too_many_requests")
    sign_in(throttled)


@pytest.mark.parametrize(
    ("path", "field", "words", "most"),
    [
        ("/accounts/households/draw", "name", "Name", 4000),
        ("/accounts/households/draw", "periods", "Periods", 131_072),
        ("/accounts/households/draw", "tags", "Tags", 40_000),
        ("/accounts/households/draw", "purpose", "Purpose", 40_000),
        ("/new-account", "offsets", "Offsets", 40_000),
        ("/new-account", "approver_names", "Approver names", 40_000),
        ("/new-account", "cap", "Cap", 4000),
        ("/keys", "accounts", "Accounts", 131_072),
        ("/webhooks", "events", "Events", 4000),
        ("/webhooks", "mail", "Mail", 40_000),
        ("/plan", "table", "Table", 4000),
        ("/plan", "periods", "Periods", 131_072),
        ("/plan", "csrf", "Csrf", 4000),
        ("/accounts/households/description", "intended_use", "Intended use", 40_000),
        ("/accounts/households/state", "reason", "Reason", 40_000),
    ],
)
def test_no_page_reads_a_longer_text_than_the_limit_of_its_field(
    steward: TestClient, path: str, field: str, words: str, most: int
) -> None:
    sent = form_of(steward.get("/plan"), "/plan").with_texts({"kind": "margins", "do": "show"})
    answer = steward.post(path, data=sent | {field: "a " * most}, headers={"Accept": "*/*"})
    (fault,) = problem_of(answer, "validation")["errors"]
    assert fault["pointer"] == f"/{field}"
    assert fault["detail"] == f"{words}: expected at most {most:,} characters, got {2 * most:,}"


@pytest.mark.parametrize("path", ["/", "/accounts/households", "/plan", "/keys"])
def test_a_query_of_too_many_parameters_shows_no_page(steward: TestClient, path: str) -> None:
    answer = steward.get(f"{path}?{'&' * 128}", headers={"Accept": "*/*"})
    assert [one["pointer"] for one in problem_of(answer, "validation")["errors"]] == ["/query"]
    assert "at most 128 query parameters" in steward.get(f"{path}?{'&' * 128}").text
