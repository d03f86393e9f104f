"""Problems as pages, and the headers of each page."""

import shutil
import threading
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.errors import Unavailable
from service.ledger.accounts import accounts
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from service.pages import start
from service.pages.shell import figures, layout
from service.pages.shell.layout import PICTURES_WITHIN, POLICY
from tests.api.calls import STEWARD, Client, application, bearer, open_account, problem_of
from tests.pages.visits import hidden, sign_in

_PROGRAM = {"Accept": "*/*"}
_PAGES = (
    "/",
    "/accounts/persons",
    "/accounts/persons/releases",
    "/accounts/persons/journal",
    "/keys",
    "/nothing",
    "/problems/conflict",
)


@pytest.mark.parametrize(("path", "policy"), [*((path, POLICY) for path in _PAGES), ("/empirical", PICTURES_WITHIN)])
def test_pages_run_no_foreign_code_and_are_not_kept(steward: Client, path: str, policy: str) -> None:
    answer = steward.get(path)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers.get_list("content-security-policy") == [policy]
    assert "unsafe" not in policy
    assert answer.headers.get_list("cache-control") == ["no-store"]
    assert answer.headers["Referrer-Policy"] == "same-origin"  # no-referrer would hide the origin of forms
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert not any(mark in answer.text for mark in ("://", "<script>", "<style", "style=", "javascript:", " onclick"))


def test_static_files_may_be_kept(visitor: Client) -> None:
    assert visitor.get("/static/page.css").headers["Cache-Control"] == "no-cache"
    assert visitor.get("/static/nothing.css").status_code == 404


def test_programs_keep_their_problems(steward: Client) -> None:
    for path in ("/nothing", "/problems/nothing", "/static/nothing", "/accounts/nobody"):
        assert problem_of(steward.get(path, headers=_PROGRAM), "not_found")["instance"].endswith(path)
        assert problem_of(steward.get(path, headers={"Accept": "text/html;q=0.5, application/json"}), "not_found")
        assert "Not found" in steward.get(path).text
    for path in ("/v1", "/v1/accounts", "/v1/nothing"):
        problem_of(steward.get(path), "unauthenticated")


def test_a_page_is_rendered_off_the_event_loop(steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise everybody would wait for a long one."""
    threads: list[str] = []
    real = figures.moment

    def moment(stamp: str) -> str:
        threads.append(threading.current_thread().name)
        return real(stamp)

    monkeypatch.setitem(layout._ENVIRONMENT.filters, "moment", moment)
    layout._ENVIRONMENT.cache.clear()  # type: ignore[union-attr] # compiled templates keep their filters
    answer = steward.get("/accounts/persons")
    layout._ENVIRONMENT.cache.clear()  # type: ignore[union-attr] # it has one
    assert answer.headers["Content-Length"] == str(len(answer.content))
    assert threads
    assert all("AnyIO worker" in name for name in threads)


def test_a_method_that_a_page_has_not(steward: Client) -> None:
    answer = steward.delete("/keys")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD, POST")


def test_a_form_that_is_too_large(steward: Client) -> None:
    csrf = hidden(steward.get("/").text, "csrf")
    answer = steward.post("/sign-out", data={"csrf": csrf, "more": "x" * (2 << 20)})
    assert (answer.status_code, answer.headers["Content-Type"]) == (413, "text/html; charset=utf-8")
    huge = steward.post("/sign-out", content=b"x" * (64 * 2**20 + 1), headers={"Content-Type": "text/plain"})
    assert (huge.status_code, huge.headers["Content-Type"]) == (413, "text/html; charset=utf-8")


def test_a_crash_is_shown_without_its_reason(steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def crash(*_: object) -> None:
        raise RuntimeError("the reason, which is nobody's business")

    monkeypatch.setattr(start, "accounts_page", crash)
    answer = steward.get("/")
    assert answer.status_code == 500
    assert "The service failed" in answer.text
    assert "reason" not in answer.text
    assert answer.headers["Content-Security-Policy"] == POLICY
    # the server closes it, and a client that sent more would never read the answer
    assert answer.headers["Connection"] == "close"
    assert "reason" not in problem_of(steward.get("/", headers=_PROGRAM), "internal")["detail"]


def test_what_v1_cannot_answer_is_said_on_the_page(steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object, **__: object) -> None:
        raise Unavailable("the ledger is busy", retry_after=7)

    monkeypatch.setattr(accounts, "list_accounts", busy)
    answer = steward.get("/")
    assert (answer.status_code, "the ledger is busy" in answer.text) == (503, True)


@pytest.fixture
def limited(_sqlite_template: Path, tmp_path: Path) -> FastAPI:
    """Return a service whose keys may send five requests an hour."""
    path = tmp_path / "limited.db"
    shutil.copyfile(_sqlite_template, path)
    return application(open_database(f"sqlite:///{path}"), Secret(bytes(32)), key_rate="5/hour")


def test_a_page_is_one_request_however_much_it_asks_for(limited: FastAPI) -> None:
    open_account(TestClient(limited, headers=bearer(STEWARD)))
    with TestClient(limited, headers={"Accept": "text/html"}, follow_redirects=False) as visitor:
        sign_in(visitor)
        assert [visitor.get("/accounts/people").status_code for _ in range(4)] == [200, 200, 200, 429]
