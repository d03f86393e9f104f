"""The guide and the problems' pages: open without a key, complete, and without dead links."""

import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest
from fastapi.testclient import TestClient

from service.api.http.problems import KINDS
from service.app import create_app
from service.ledger.accounts import accounts
from service.ledger.draws.retention import remove_noisy
from service.ledger.storage.database import open_database
from service.ledger.storage.migrate import migrate
from service.ledger.storage.secret import Secret
from service.pages.guide import chapters
from service.settings import Settings
from tests.api.calls import STEWARD, Client, application, client_of, json_of, open_account, problem_of
from tests.documents import WEB, listings
from tests.processes import service

_PAGES = [*chapters(), "/problems", *(f"/problems/{code}" for code in KINDS)]


def _page(client: Client, path: str) -> str:
    answer = client.get(path, headers={"Authorization": ""}, follow_redirects=False)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
    return answer.text


def _without_code(page: str) -> str:
    return re.sub(r"<(pre|code)\b.*?</\1>", "", page, flags=re.S)


@pytest.mark.parametrize("path", _PAGES)
def test_a_page_is_open_and_keeps_to_its_policy(shared_client: Client, path: str) -> None:
    page = _page(shared_client, path)
    assert "default-src 'none'" in shared_client.get(path).headers["content-security-policy"]
    assert re.findall(r"<(?:script|style|iframe)|\s(?:style|on\w+)=", _without_code(page)) == []
    assert re.findall(r'(?:src|href)="(?!/|#)[^"]*"', page) == []  # nothing from another host
    assert page.count("<h1>") == 1


@pytest.mark.parametrize("path", _PAGES)
def test_every_link_leads_to_a_place(shared_client: Client, path: str) -> None:
    for link in re.findall(r'<a href="([^"]+)"', _page(shared_client, path)):
        target, anchor = urldefrag(urljoin(path, link))
        if not target.startswith(("/guide", "/problems")):
            continue
        reached = _page(shared_client, target)
        assert not anchor or f'id="{anchor}"' in reached, link


@pytest.mark.parametrize("path", _PAGES)
def test_formulas_are_mathml_and_leave_no_latex(shared_client: Client, path: str) -> None:
    page = _without_code(_page(shared_client, path))
    assert "$" not in page
    assert "\\" not in page
    assert "**" not in page


def test_some_pages_have_formulas_and_some_sections(shared_client: Client) -> None:
    assert _page(shared_client, "/guide/mechanisms").count("<math ") > 50
    assert 'href="#geometric"' in _page(shared_client, "/guide/mechanisms")
    assert re.search(r'<a href="/guide/errata" aria-current="page">', _page(shared_client, "/guide/errata"))


def test_every_file_of_the_guide_is_in_its_contents() -> None:
    files = {path.stem for path in (WEB / "guide").glob("*.md")}
    assert {path.rpartition("/")[2] for path in chapters()} - {"guide"} == files - {"index"}
    assert [path for path, chapter in chapters().items() if not chapter.title] == []


@pytest.mark.parametrize("path", ["/guide/nothing", "/guide/index", "/guide/", "/guide/..%2Fproblems", "/problems/"])
def test_what_the_guide_has_not(shared_client: Client, path: str) -> None:
    problem_of(shared_client.get(path, follow_redirects=False), "not_found")


def test_the_index_of_problems_names_them_all(shared_client: Client) -> None:
    page = _page(shared_client, "/problems")
    assert re.findall(r'href="/problems/(\w+)"', page) == list(KINDS)


def _shown(code: str) -> Any:
    (example,) = [text for words, text, _ in listings(WEB / "problems" / f"{code}.md") if words == ["json"]]
    return json.loads(example)


def test_the_example_of_an_unavailable_service_is_its_answer(tmp_path: Path, secret: Secret) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'empty.db'}")
    with TestClient(create_app(Settings(), database, secret, None)) as client:
        assert client.get("/readyz").json() == _shown("unavailable")


def test_the_example_of_a_failure_is_the_services_answer(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(accounts, "list_accounts", crash)
    assert embedded.get("/v1/accounts").json() == _shown("internal")


def test_the_example_of_removed_counts_is_the_services_answer(tmp_path: Path, secret: Secret) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    database = open_database(url)
    shown = _shown("gone")
    removed_at = re.findall(r"removed at (\S+),", shown["detail"])[0]
    body = {"name": "x", "mechanism": {"type": "geometric", "epsilon": "0.1"}, "counts": [1]}
    with client_of(application(database, secret)) as client:
        open_account(client)
        drawn = json_of(client.post("/v1/accounts/people/draws", json=body), 201)["draw"]
        assert remove_noisy(database, "9999", removed_at) == 1
        answer = client.get(f"/v1/accounts/people/draws/{drawn}").text
    assert json.loads(answer.replace(drawn, shown["draw"])) == shown


def test_the_example_of_too_many_requests_is_the_services_answer(tmp_path: Path, secret: Secret) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    with client_of(application(open_database(url), secret, key_rate="1/hour")) as client:
        json_of(client.get("/v1/accounts"))
        assert client.get("/v1/accounts").json() == _shown("too_many_requests")


def test_the_example_of_a_slow_request_is_the_services_answer(tmp_path: Path) -> None:
    """They are equal but for the time, which is a tenth of a second here."""
    head = (
        "POST /v1/compositions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n"
        "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    )
    with service(tmp_path, body_seconds="0.1") as served:
        where = urlsplit(served.address)
        with socket.create_connection((where.hostname, where.port), timeout=30) as line:
            line.sendall(head.format(STEWARD).encode())
            answer = b"".join(iter(lambda: line.recv(4096), b""))
    shown = _shown("too_slow")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == shown | {"detail": shown["detail"].replace("30 s", "0.1 s")}
