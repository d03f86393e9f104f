"""Uploaded residuals over HTTP: the shown figures, and no trace of the upload on a page, in a log or on disk."""

import base64
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from service.errors import TooLarge
from service.pages import empirical
from service.pages.shell import forms, number_column
from tests.api.calls import Answer, make_key
from tests.pages.forms import form_of, signed_in

EPSILON = 0.5
_SURE = "0.999999999"  # the split of the sample is random, and a test must not fail once in twenty times
_MARKED = 987_654_321  # a residual that is recognised wherever it appears


@pytest.fixture(scope="module")
def steward(shared_client: TestClient) -> TestClient:
    """Return a steward's client of the pages."""
    return signed_in(shared_client)


@pytest.fixture(scope="module")
def noise() -> list[int]:
    """Return geometric noise of a known loss."""
    tails = np.random.default_rng(20260101).geometric(1 - np.exp(-EPSILON), (2, 20_000))
    return [int(value) for value in tails[0] - tails[1]]


def _column(numbers: Any) -> bytes:
    return "\n".join(["residual", *map(str, numbers)]).encode()


def _upload(visit: TestClient, action: str, files: dict[str, bytes], **texts: str) -> Answer:
    sent = form_of(visit.get("/empirical"), action).with_texts(texts)
    named = {name: (f"{name}.csv", content, "text/csv") for name, content in files.items()}
    return visit.post(action, data=sent, files=named)


def _measure(visit: TestClient, files: dict[str, bytes], **texts: str) -> Answer:
    return _upload(visit, "/empirical/noise", files, **texts)


def _figures(page: Answer) -> list[float]:
    """Return the figures in large type."""
    assert page.status_code == 200
    return [float(text) for text in re.findall(r'<p class="figure">\D*?([0-9.]+)</p>', page.text)]


def _said(page: Answer, field: str) -> str:
    """Return the texts at a field."""
    assert page.status_code == 422
    found = re.search(rf'id="{field}-fault">([^<]*)<', page.text)
    assert found, f"nothing is said at {field}"
    return found[1]


def test_known_noise(steward: TestClient, noise: list[int]) -> None:
    page = _measure(steward, {"residuals": _column(noise)}, confidence=_SURE)
    published, certified = _figures(page)
    assert abs(published - EPSILON) < 0.1
    assert EPSILON - 0.15 < certified <= EPSILON
    assert "The answer is not protected." in page.text
    assert "img-src 'self' data:" in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "no-store"
    found = re.search(r'<img src="data:image/svg\+xml;base64,([^"]+)"', page.text)
    assert found is not None
    picture = base64.b64decode(found[1]).decode()
    assert picture.startswith("<?xml")
    assert f"EPL {published:.4g}" in picture  # of the same estimate
    assert "true count" not in picture.replace("computed from true counts", "")


def test_counts_are_for_the_picture(steward: TestClient, noise: list[int]) -> None:
    page = _measure(steward, {"residuals": _column(noise), "counts": _column(range(len(noise)))})
    found = re.search(r'<img src="data:image/svg\+xml;base64,([^"]+)"', page.text)
    assert found is not None
    assert "noisy count" in base64.b64decode(found[1]).decode()
    wrong = _measure(steward, {"residuals": _column(noise), "counts": _column([1])})
    assert "as many counts as residuals" in _said(wrong, "counts")


def test_pasted_text(steward: TestClient, noise: list[int]) -> None:
    pasted = "\n".join(map(str, noise[:2000]))
    assert len(_figures(_measure(steward, {}, residuals_pasted=pasted, bootstrap="0"))) == 2
    both = _measure(steward, {"residuals": _column(noise)}, residuals_pasted=pasted)
    assert "got both" in _said(both, "residuals")


def test_runs_on_two_neighbouring_inputs(steward: TestClient, noise: list[int]) -> None:
    shifted = [value + 1 for value in noise[10_000:]]
    files = {"outputs": _column(noise[:10_000]), "neighbouring_outputs": _column(shifted)}
    (certified,) = _figures(_upload(steward, "/empirical/runs", files, runs_confidence=_SURE))
    assert EPSILON - 0.25 < certified <= EPSILON
    (weaker,) = _figures(_upload(steward, "/empirical/runs", files, runs_confidence=_SURE, delta="0.1"))
    assert weaker < certified
    alone = _upload(steward, "/empirical/runs", {"outputs": _column(noise)})
    assert "expected a file" in _said(alone, "neighbouring_outputs")
    assert "above 0" in _said(_upload(steward, "/empirical/runs", files, runs_confidence="2"), "runs_confidence")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "another kind of file"),
        (b"a,b\n1,2\n", "row 1"),
        (b"1\n2\nthree", "row 3"),
        (b"1\nNaN", "row 2"),
        (b"1e999", "row 1"),
        (b"7\n7\n7", "not all alike"),
        (b"1\n99999999999999999999", "number 2 of the column"),
        (b"", "expected a file or pasted text"),
        (b"heading", "expected a file or pasted text"),
    ],
)
def test_a_wrong_file(steward: TestClient, content: bytes, said: str) -> None:
    page = _measure(steward, {"residuals": content})
    assert said in _said(page, "residuals")
    assert "What the residuals show" not in page.text


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"bandwidth": "0"}, "bandwidth"),
        ({"bandwidth": "wide"}, "bandwidth"),
        ({"percentile": "101"}, "percentile"),
        ({"multiplier": "-1"}, "multiplier"),
        ({"bootstrap": "1001"}, "bootstrap"),
        ({"bootstrap": "1e2"}, "bootstrap"),
        ({"shift": "0"}, "shift"),
        ({"confidence": "1"}, "confidence"),
    ],
)
def test_a_wrong_parameter(steward: TestClient, noise: list[int], typed: dict[str, str], field: str) -> None:
    page = _measure(steward, {"residuals": _column(noise[:100])}, **typed)
    assert _said(page, field)
    assert form_of(page, "/empirical/noise").fields[field] == [typed[field]]  # parameters are not secret


def test_too_much(steward: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_column, "MOST_NUMBERS", 3)
    assert "at most 3 numbers" in _said(_measure(steward, {"residuals": b"1\n2\n3\n4"}), "residuals")
    monkeypatch.setattr(number_column, "MOST_BYTES", 1 << 20)
    assert "at most 1 MiB" in _said(_measure(steward, {"residuals": b"1\n" * (1 << 20)}), "residuals")


@pytest.mark.parametrize("files", [{}, {"counts": b""}], ids=["URL-encoded", "multipart"])
def test_more_is_pasted_than_a_field_takes(steward: TestClient, files: dict[str, bytes]) -> None:
    page = _measure(steward, files, residuals_pasted=f"{_MARKED}\n" * 250_000)
    assert page.status_code == 413
    assert "at most 2097152 bytes" in page.text
    assert str(_MARKED) not in page.text


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """Return all log lines."""
    with capture_logs() as caught:
        yield caught


def test_nothing_of_an_upload_is_shown_logged_or_written(
    steward: TestClient, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a temporary file would be true counts on a disk")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # the class that a spooled file becomes on disk
    large = _column([_MARKED, *(number % 50 for number in range(500))]) + b"\n" + b" " * (2 << 20)
    answers = [
        _measure(steward, {"residuals": large}, bootstrap="0"),
        _measure(steward, {"residuals": large + b"\nx987654321"}),
        _measure(steward, {"residuals": _column([_MARKED] * 3)}),
        _measure(steward, {}, residuals_pasted=f"{_MARKED}\n1\nx{_MARKED}"),
        _measure(steward, {"residuals": _column(range(9)), "counts": _column([_MARKED])}),
    ]
    assert [answer.status_code for answer in answers] == [200, 422, 422, 422, 422]
    for answer in answers:
        assert str(_MARKED) not in answer.text
        assert str(_MARKED) not in str(answer.headers)
    assert lines
    assert str(_MARKED) not in str(lines)


@pytest.mark.parametrize("role", ["auditor", "pipeline"])
def test_others_are_refused(shared_client: TestClient, steward: TestClient, role: str, noise: list[int]) -> None:
    key = make_key(shared_client, role, f"an empirical {role}")["Authorization"].removeprefix("Bearer ")
    visit = signed_in(shared_client, key)
    assert visit.get("/empirical").status_code == 403
    csrf = form_of(visit.get("/plan"), "/sign-out").fields["csrf"]
    for action in ("/empirical/noise", "/empirical/runs"):
        name = "residuals" if action.endswith("noise") else "outputs"
        files = {name: ("x.csv", _column(noise[:100]), "text/csv")}
        if name == "outputs":
            files["neighbouring_outputs"] = files[name]
        sent = form_of(steward.get("/empirical"), action).with_texts({"csrf": csrf})
        assert visit.post(action, data=sent, files=files).status_code == 403


def test_no_file_is_read_for_others(
    shared_client: TestClient, monkeypatch: pytest.MonkeyPatch, noise: list[int]
) -> None:
    key = make_key(shared_client, "auditor", "an auditor with a file")["Authorization"].removeprefix("Bearer ")
    visit = signed_in(shared_client, key)
    monkeypatch.delattr(forms, "_whole")
    for action in ("/empirical/noise", "/empirical/runs"):
        assert visit.post(action, files={"residuals": ("x.csv", _column(noise), "text/csv")}).status_code == 403


def test_memory_is_reserved_before_numbers_are_read(steward: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def refuse(size: int) -> None:
        taken.append(size)
        raise TooLarge("expected less")

    monkeypatch.setattr(empirical, "room_of", lambda _: refuse)
    monkeypatch.delattr(number_column, "_lines")
    column = b"1\n" * 1000
    assert _measure(steward, {"residuals": column, "counts": column}).status_code == 413
    assert taken == [2 * (len(column) + number_column.memory_of(column))]


def test_a_forged_upload_is_refused(steward: TestClient, noise: list[int]) -> None:
    assert _measure(steward, {"residuals": _column(noise[:10])}, csrf="forged").status_code == 403
