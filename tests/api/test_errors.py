"""Errors are problems: of every kind, with the places of the faults, for any request."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from threading import Event, Semaphore
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.api.http.problems import KINDS, of_error
from service.api.schemas import granularity
from service.api.schemas.exact_numbers import check_exact
from service.errors import BudgetExceeded, Overrun
from service.ledger.accounts import accounts
from service.ledger.releases import budget_refusals
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from tests.api.calls import (
    Answer,
    Client,
    application,
    charge,
    client_of,
    json_of,
    open_account,
    pointers_of,
    problem_of,
    pure,
)

_JSON = {"Content-Type": "application/json"}


def _post(client: Client, content: str | bytes, path: str = "/v1/compositions") -> Answer:
    return client.post(path, content=content, headers=_JSON)


# Fault texts


@pytest.mark.parametrize(
    ("change", "pointer", "detail"),
    [
        ({"name": ""}, "/name", "expected text with a length of at least 1"),
        ({"name": "n" * 1000}, "/name", "expected text with a length of at most 200"),
        ({"name": 7}, "/name", "expected text, got a number"),
        ({"name": True}, "/name", "expected text, got a boolean"),
        ({"name": None}, "/name", "expected text, got null"),
        ({"tags": "a"}, "/tags", "expected a list, got text"),
        ({"plan": []}, "/plan", "expected an object, got a list"),
        ({"tags": ["a"] * 1000}, "/tags", "expected a list of at most 64, got 1000"),
        ({"plan": {"type": "sequence", "parts": []}}, "/plan/parts", "expected a list of at least 1, got 0"),
        ({"plan": pure("1", cells=1.5)}, "/plan/cells", "expected a whole number, got a number with a point or an exp"),
        ({"plan": pure("1", cells="1")}, "/plan/cells", "expected a whole number, got text"),
        ({"plan": pure("1", cells=0)}, "/plan/cells", "expected a number of at least 1"),
        ({"plan": pure("1", cells=10**30)}, "/plan/cells", "expected a number of at most "),
    ],
)
def test_what_was_expected_is_said_in_one_voice(
    shared_client: Client, change: dict[str, Any], pointer: str, detail: str
) -> None:
    body = {"name": "tables", "plan": pure("1")} | change
    (fault,) = problem_of(shared_client.post("/v1/accounts/people/releases", json=body), "validation")["errors"]
    assert fault["pointer"] == pointer
    assert fault["detail"].startswith(detail)


def test_the_detail_names_some_places_and_how_many_more(shared_client: Client) -> None:
    body = {"name": "", "plan": 1, "tags": 1, "delta": True, "reserve_for": 1}
    details = []
    for number in (1, 3, 5):
        wrong = {name: body[name] for name in list(body)[:number]}
        answer = shared_client.post("/v1/accounts/people/releases", json={"name": "t", "plan": pure("1")} | wrong)
        details.append(problem_of(answer, "validation")["detail"])
    assert details == [
        "1 fault: /name",
        "3 faults: /name, /plan, /tags",
        "5 faults: /name, /plan, /tags and 2 more",
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "faults"),
    [
        ("POST", "/v1/compositions", {"plan": {"type": "geometrc"}}, {"/plan/type": "geometric"}),
        ("POST", "/v1/compositions", {"plan": {"type": "gausian"}}, {"/plan/type": "gaussian"}),
        ("POST", "/v1/compositions", {"plan": {"type": "918273645"}}, {"/plan/type": None}),
        ("POST", "/v1/keys", {"name": "a", "role": "pipelin"}, {"/role": "pipeline"}),
        ("POST", "/v1/keys", {"name": "a", "role": 918273645}, {"/role": None}),
        (
            "POST",
            "/v1/accounts",
            {"name": "a", "unit": "p", "neighbouring": "add_remov", "budget": {"definition": "zcpd", "rho": 1}},
            {"/neighbouring": "add_remove", "/budget/definition": "zcdp"},
        ),
        ("GET", "/v1/accounts/people/releases?state=commited", None, {"/query/state": "committed"}),
    ],
)
def test_a_name_that_is_misspelt_gets_the_one_that_is_like_it(
    shared_client: Client, method: str, path: str, body: Any, faults: dict[str, str | None]
) -> None:
    answer = shared_client.request(method, path, json=body)
    found = {fault["pointer"]: fault["detail"] for fault in problem_of(answer, "validation")["errors"]}
    assert found.keys() == faults.keys()
    for pointer, meant in faults.items():
        assert found[pointer].startswith("expected ")
        assert found[pointer].endswith(f"; did you mean {meant}?") or (meant is None and "mean" not in found[pointer])
    assert "918273645" not in answer.text


# Addresses and methods


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/accounts", "GET, POST"),
        ("PUT", "/v1/accounts/people", "GET, PATCH"),
        ("POST", "/v1/accounts/people", "GET, PATCH"),
        ("DELETE", "/v1/accounts/people/releases", "GET, POST"),
        ("GET", "/v1/accounts/people/releases/batch", "POST"),
        ("PATCH", "/v1/accounts/people/releases/batch", "POST"),
        ("POST", "/v1/accounts/people/releases/some", "GET, PATCH"),
        ("GET", "/v1/compositions", "POST"),
        ("PATCH", "/v1/keys", "GET, POST"),
        ("GET", "/v1/keys/some", "DELETE"),
        ("OPTIONS", "/v1/keys/some", "DELETE"),
        ("BREW", "/v1/keys/some", "DELETE"),
        ("HEAD", "/v1/accounts", "GET, POST"),
        ("POST", "/docs", "GET, HEAD"),
        ("DELETE", "/healthz", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
        ("POST", "/static/page.css", "GET, HEAD"),
    ],
)
def test_a_method_that_an_address_has_not(shared_client: Client, method: str, path: str, allowed: str) -> None:
    answer = shared_client.request(method, path)
    if method != "HEAD":
        assert problem_of(answer, "method_not_allowed")["instance"] == path
    assert answer.status_code == 405
    assert answer.headers["Allow"] == allowed


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/guide", "/docs", "/openapi.json", "/static/page.css"])
def test_head_is_get_without_a_body_outside_the_contract(shared_client: Client, path: str) -> None:
    got, asked = shared_client.get(path), shared_client.head(path)
    assert (asked.status_code, asked.content) == (200, b"")
    for header in ("Content-Type", "Content-Length", "Content-Security-Policy"):
        assert asked.headers.get(header) == got.headers.get(header)
    assert shared_client.head("/nothing").status_code == 404


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/account", "/v1/accounts"),
        ("/v1/accounts/", "/v1/accounts"),
        ("/accounts", "/v1/accounts"),
        ("/v1/accounts/people/release", "/v1/accounts/people/releases"),
        ("/v1/accounts/people/releases/7/draw", "/v1/accounts/people/releases/7/draws"),
        ("/v1/composition", "/v1/compositions"),
        ("/v1/accounts/people/b", None),
        ("/v1/nothing", None),
        ("/v1/" + "a" * 300, None),
        ("/v1" + "/a" * 100, None),
        ("/nothing", None),
    ],
)
def test_an_address_that_is_nearly_one_is_named(shared_client: Client, path: str, meant: str | None) -> None:
    hint = f" Did you mean {meant}?" if meant else ""
    detail = f"The address, or a name or id in it, is unknown.{hint}"
    assert problem_of(shared_client.get(path), "not_found")["detail"] == detail


@pytest.mark.parametrize(
    ("path", "instance"),
    [
        ("/nothing", "/nothing"),
        ("/v1/nothing", "/v1/nothing"),
        ("/v1/accounts/", "/v1/accounts/"),
        ("/v1/accounts/nobody", "/v1/accounts/nobody"),
        ("/v1/accounts/a%2Fb", "/v1/accounts/a/b"),
        ("/v1/accounts/a%3Fb%23c", "/v1/accounts/a%3Fb%23c"),
        ("/v1/accounts/a%0Ab%20c", "/v1/accounts/a%0Ab%20c"),
        ("/v1/accounts/%C3%A9", "/v1/accounts/%C3%A9"),
        ("/v1/accounts/%00", "/v1/accounts/%00"),
        ("/v1/accounts/people%00/balance", "/v1/accounts/people%00/balance"),
        ("/v1/accounts/nobody/draws/%00", "/v1/accounts/nobody/draws/%00"),
        ("http://testserver//v1/accounts", "//v1/accounts"),
        ("/problems/nothing", "/problems/nothing"),
        ("/problems/validation/", "/problems/validation/"),
        ("/docs/", "/docs/"),
        ("/static/%00", "/static/%00"),
        ("/static/" + "x" * 5000, "/static/" + "x" * 5000),
    ],
)
def test_what_is_not_there(shared_client: Client, path: str, instance: str) -> None:
    """``instance`` is the address as a URI reference, whatever bytes it holds; no request is redirected."""
    assert problem_of(shared_client.get(path, follow_redirects=False), "not_found")["instance"] == instance


def test_text_that_no_database_holds_is_not_found_on_any(client: Client) -> None:
    """PostgreSQL does not accept NUL in text, even in a query."""
    open_account(client)
    for path in ("people%00", "people/releases/%00", "people/draws/%00", "people/releases/%00/draws"):
        problem_of(client.get(f"/v1/accounts/{path}"), "not_found")
    problem_of(client.delete("/v1/keys/%00"), "not_found")
    problem_of(client.patch("/v1/accounts/people%00", json={"state": "closed"}), "not_found")
    for path in ("/v1/accounts", "/v1/keys"):
        assert pointers_of(client.get(f"{path}?cursor=AGE")) == ["/query/cursor"]


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "evil.example", "x@y", "a/b?c", "x" * 2000])
def test_a_host_that_is_none_changes_nothing(shared_client: Client, host: str) -> None:
    problem_of(shared_client.get("/v1/nothing", headers={"Host": host}), "not_found")
    answer = shared_client.post("/v1/keys", json={}, headers={"Host": host, "Idempotency-Key": "k"})
    assert pointers_of(answer) == ["/name", "/role"]


@pytest.mark.parametrize(
    ("query", "pointers"),
    [
        ("limt=1", ["/query/limt"]),
        ("limit=1&limit=1", ["/query/limit"]),
        ("a/b~c=1", ["/query/a~1b~0c"]),
        ("=", ["/query/"]),
        ("a=1&b=2&limit=3", ["/query/a", "/query/b"]),
        ("%FF=1", [r"/query/\ufffd"]),
        ("x" * 5000, ["/query/" + "x" * 200]),
    ],
)
def test_query_parameters_are_known_and_said_once(shared_client: Client, query: str, pointers: list[str]) -> None:
    assert pointers_of(shared_client.get(f"/v1/accounts?{query}")) == pointers


def test_a_parameter_of_another_operation_is_unknown(shared_client: Client) -> None:
    assert pointers_of(shared_client.post("/v1/compositions?dry_run=true", json={"plan": pure(1)})) == [
        "/query/dry_run"
    ]


# Bodies


@pytest.mark.parametrize(
    "content",
    [
        "",
        " ",
        "{",
        "}",
        "{'a': 1}",
        '{"plan": 1,}',
        '{"plan": 01}',
        '{"plan": .5}',
        '{"plan": 1.}',
        '{"plan": +1}',
        '{"plan": 0x10}',
        '{"plan": 1} {}',
        "nul",
        '{"plan": 1e9999999999999999999}',
        '{"plan": -1E-9999999999999999999999999}',
        '{"plan": "\\ud800"}',
        '{"\\udfff": 1}',
        '{"plan": "\\ud83d"}',
        '{"plan": "\t"}',
        "[" * 100_000,
        '{"plan":' * 100_000,
        '{"plan": ' + "9" * 5000 + "}",
        b'{"plan": "\xff"}',
        b'{"plan": "\xed\xa0\x80"}',
        b"\xef\xbb\xbf{}",
        '{"plan": 1}'.encode("utf-16"),
        b"\x00",
    ],
    ids=lambda content: repr(content)[:40],
)
def test_what_is_not_json_has_no_meaning(shared_client: Client, content: str | bytes) -> None:
    assert pointers_of(_post(shared_client, content)) == [""]


@pytest.mark.parametrize(
    ("content", "pointers"),
    [
        ("NaN", [""]),
        ('{"plan": Infinity}', ["/plan"]),
        ('{"counts": [1, 2, NaN, 4, -Infinity]}', ["/counts/2", "/counts/4"]),
        ('{"plan": 1, "plan": 1}', ["/plan"]),
        ('{"pl\\u0061n": 1, "plan": 1}', ["/plan"]),
        ('{"a~/b": [[], {"type": "x", "scale": 1, "scale": NaN}]}', ["/a~0~1b/1/scale", "/a~0~1b/1/scale"]),
        ('{"counts": [' + "NaN, " * 99 + "1]}", [f"/counts/{number}" for number in range(10)]),
        ("[" * 500 + "NaN" + "]" * 500, ["/0" * 500]),
        ('{"' + "n" * 2000 + '": NaN}', ["/" + "n" * 1000]),
    ],
    ids=lambda content: repr(content)[:40],
)
def test_what_json_does_not_have_is_placed(shared_client: Client, content: str, pointers: list[str]) -> None:
    assert pointers_of(_post(shared_client, content)) == pointers


@pytest.mark.parametrize("content", ["[]", '"text"', "1", "1.5", "null", "true"])
def test_json_that_is_no_object(shared_client: Client, content: str) -> None:
    assert pointers_of(_post(shared_client, content))[0] == ""


def test_a_pair_of_surrogates_is_a_character(shared_client: Client) -> None:
    body = '{"name": "\\ud83d\\ude00", "role": "auditor"}'
    assert json_of(_post(shared_client, body, "/v1/keys"), 201)["name"] == "\U0001f600"


@pytest.mark.parametrize("number", ["1e400", "1E+2", "-0", "123456789012345678901234567890.5", "1e-400", "0.1000"])
def test_numbers_are_read_as_they_are_written(shared_client: Client, number: str) -> None:
    answer = _post(shared_client, f'{{"plan": {{"type": "gaussian", "rho": {number}}}}}')
    if number == "-0":
        assert pointers_of(answer) == ["/plan/rho"]
    else:
        assert json_of(answer)["pure"] is None


@pytest.mark.parametrize(
    "number", ["1e401", "1e-401", "1e999999999", "-1e-999999999", str(2**1024), f"0.{'1' * 400}", "9" * 4000]
)
def test_numbers_beyond_the_limits_are_refused(shared_client: Client, number: str) -> None:
    for text in (number, f'"{number}"'):
        answer = _post(shared_client, f'{{"plan": {{"type": "gaussian", "rho": {text}}}}}')
        assert pointers_of(answer) == ["/plan/rho"]
        assert number not in answer.text


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1_0", "٣", "0x1", "1/0", "1/-2", "1.", ".5", "1e", "1/2/3", "0.5/2", "∞", "nan", "1,5"]
)
def test_texts_that_are_no_numbers(shared_client: Client, text: str) -> None:
    assert pointers_of(shared_client.post("/v1/compositions", json={"plan": {"type": "gaussian", "rho": text}})) == [
        "/plan/rho"
    ]


@pytest.mark.parametrize(
    "media_type", [None, "", "text/plain", "application/jsonp", "text/json", "multipart/form-data"]
)
def test_a_body_of_another_media_type(shared_client: Client, media_type: str | None) -> None:
    headers = {} if media_type is None else {"Content-Type": media_type}
    answer = shared_client.post("/v1/compositions", content="{}", headers=headers)
    assert problem_of(answer, "unsupported_media_type")["detail"].startswith("expected application/json")


@pytest.mark.parametrize("kind", ["application/json", "text/csv", "application/vnd.apache.arrow.stream"])
def test_a_body_that_is_compressed_is_refused(shared_client: Client, kind: str) -> None:
    open_account(shared_client, f"of-{kind[-3:]}")
    path = f"/v1/accounts/of-{kind[-3:]}/draws"
    for encoding, named in (("gzip", "gzip"), ("Br", "br"), ("x" * 99, "another one")):
        headers = {"Content-Type": kind, "Content-Encoding": encoding}
        answer = shared_client.post(path, content=b"\x1f\x8b", headers=headers)
        detail = problem_of(answer, "unsupported_media_type")["detail"]
        assert detail == f"expected a body without Content-Encoding, got {named}"
    plain = {"Content-Type": kind, "Content-Encoding": "identity"}
    problem_of(shared_client.post(path, content=b"{", headers=plain), "validation")


@pytest.mark.parametrize("media_type", ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8"])
def test_a_body_of_the_media_type_however_it_is_written(shared_client: Client, media_type: str) -> None:
    body = json.dumps({"plan": pure(1)})
    json_of(shared_client.post("/v1/compositions", content=body, headers={"Content-Type": media_type}))


@pytest.fixture
def narrow(_sqlite_template: Any, tmp_path: Any, secret: Secret) -> Iterator[TestClient]:
    """Return a steward's client of a service with small limits."""
    path = tmp_path / "narrow.db"
    path.write_bytes(_sqlite_template.read_bytes())
    limits = {"max_json_bytes": 2000, "max_plan_nodes": 10, "max_plan_depth": 4, "max_plan_osgt": 3}
    with client_of(application(open_database(f"sqlite:///{path}"), secret, **limits)) as opened:
        yield opened


def test_a_body_that_is_too_large_whether_announced_or_not(narrow: Client) -> None:
    body = json.dumps({"plan": pure(1)})
    fitting, too_large = body.ljust(2000).encode(), body.ljust(2001).encode()
    json_of(_post(narrow, fitting))
    for content in (too_large, _in_pieces(too_large)):
        answer = narrow.post("/v1/compositions", content=content, headers=_JSON)
        assert "2000" in problem_of(answer, "too_large")["detail"]
    json_of(narrow.post("/v1/compositions", content=_in_pieces(fitting), headers=_JSON))
    # A wrong Content-Length is not trusted, whichever way it is wrong.
    answer = narrow.post("/v1/compositions", content=too_large, headers=_JSON | {"Content-Length": "10"})
    problem_of(answer, "too_large")


def _in_pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), 100):
        yield content[start : start + 100]


def _nested(depth: int) -> dict[str, Any]:
    plan = pure(1)
    for level in range(depth - 1):
        plan = {"type": "repeat", "count": 1, "part": plan} if level % 2 else {"type": "sequence", "parts": [plan]}
    return plan


def _offset_tails(*m: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "discrete_osgt", "sigma_squared": "40", "m": each} | fields for each in m]


def test_unlike_mechanisms_with_offset_tails_beyond_the_limit(narrow: Client) -> None:
    groups = [{"type": "group", "size": size, "part": _offset_tails(1)[0]} for size in (1, 2, 3, 4)]
    for parts in (_offset_tails(1, 2, 3, 3) + _offset_tails(1, cells=5), groups[:3]):
        json_of(narrow.post("/v1/compositions", json={"plan": {"type": "sequence", "parts": parts}}))
    for parts in ([*_offset_tails(1, 2, 3), {"type": "osgt", "sigma_squared": "40", "m": 3}], groups):
        answer = narrow.post("/v1/compositions", json={"plan": {"type": "choice", "parts": parts}})
        (fault,) = problem_of(answer, "validation")["errors"]
        assert fault["pointer"] == "/plan"
        assert "at most 3" in fault["detail"]


def test_a_plan_beyond_the_limits(narrow: Client) -> None:
    for plan in (_nested(4), {"type": "sequence", "parts": [pure(1)] * 9}):
        json_of(narrow.post("/v1/compositions", json={"plan": plan}))
    for plan in (_nested(5), {"type": "sequence", "parts": [pure(1)] * 10}):
        answer = narrow.post("/v1/compositions", json={"plan": plan})
        assert pointers_of(answer) == ["/plan"]
        assert "at most 10 nodes and depth 4" in answer.json()["errors"][0]["detail"]
    batch = {"releases": [{"name": "a", "plan": pure(1)}, {"name": "b", "plan": _nested(5)}]}
    assert pointers_of(narrow.post("/v1/accounts/a/releases/batch", json=batch)) == ["/releases/1/plan"]


def test_the_usual_limits_on_plans(shared_client: Client) -> None:
    json_of(shared_client.post("/v1/compositions", json={"plan": _nested(32)}))
    assert pointers_of(shared_client.post("/v1/compositions", json={"plan": _nested(33)})) == ["/plan"]
    too_many: list[list[Any]] = [[pure(1)] * 100_000, [{"type": "choice", "parts": [7] * 100_000}], [[]] * 100_000]
    for parts in too_many:
        answer = shared_client.post("/v1/compositions", json={"plan": {"type": "sequence", "parts": parts}})
        assert pointers_of(answer) == ["/plan"]


@pytest.mark.parametrize(
    "counts",
    [
        "[]",
        "[1.0]",
        "[1e0]",
        "[true]",
        "[null]",
        '["1"]',
        "[[1]]",
        "{}",
        "1",
        "null",
        f"[{2**53 + 1}]",
        f"[-{2**53 + 1}]",
    ],
)
def test_counts_are_integers_within_the_limits(shared_client: Client, counts: str) -> None:
    body = f'{{"name": "x", "mechanism": {{"type": "geometric", "scale": 1}}, "counts": {counts}}}'
    expected = ["/counts" if counts in {"[]", "{}", "1", "null"} else "/counts/0"]
    assert pointers_of(_post(shared_client, body, "/v1/accounts/nobody/draws")) == expected


def test_of_many_wrong_counts_the_first_is_named(shared_client: Client) -> None:
    """A million faults would take longer to report than a million draws."""
    body = {"name": "x", "mechanism": pure(1), "counts": [1, 2, *["x"] * 50_000]}
    assert pointers_of(shared_client.post("/v1/accounts/nobody/draws", json=body)) == ["/counts/2"]


@pytest.mark.parametrize(
    "body",
    [
        {"plan": pure(-1) | {"cells": 0}, "deltas": [], "mood": 1},
        {"plan": {"type": "sequence", "parts": [pure(1), {"type": "mood"}, 1]}},
        {"plan": {"type": "sequence", "parts": [pure(1), pure("1/0"), {}]}},
        {},
        [],
        {"plan": pure(1)},
    ],
)
def test_a_large_body_means_what_a_small_one_does(shared_client: Client, body: Any) -> None:
    small, large = json.dumps(body), json.dumps(body).ljust(1 << 17)
    answers = [_post(shared_client, content) for content in (small, large)]
    assert answers[0].json() == answers[1].json()
    assert answers[0].status_code == answers[1].status_code


def test_faults_without_number_are_counted(shared_client: Client) -> None:
    """Naming all of them would take a thousand times the memory of the request."""
    plan = {"type": "sequence", "parts": [pure(1) | {f"mood {n}": n for n in range(50)} for _ in range(300)]}
    (fault,) = problem_of(shared_client.post("/v1/compositions", json={"plan": plan}), "validation")["errors"]
    assert fault == {"pointer": "", "detail": "expected a body that the operation accepts; 15000 faults were found"}


def test_large_bodies_are_read_beside_the_event_loop(alone: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact numbers take microseconds each; all other requests would otherwise wait for them."""
    on_the_loop = []

    def noted(value: Any) -> str:
        on_the_loop.append(asyncio._get_running_loop() is not None)
        return check_exact(value)

    monkeypatch.setattr(granularity, "check_exact", noted)
    body = {"name": "x", "mechanism": pure(1) | {"granularity": "0.5"}, "counts": ["1.5"] * 20_000}
    assert alone.post("/v1/accounts/nobody/draws", json=body).status_code == 404
    assert on_the_loop == [False] * 20_000


def test_the_order_in_which_things_are_refused(shared_client: Client) -> None:
    """The order is key, address, body, validation, stored state: 401, 404 or 405, 415, 422, then 403 and the rest."""
    path = "/v1/accounts/nobody/releases"
    assert shared_client.put(path, content="{", headers={"Content-Type": "x"}).status_code == 405
    assert shared_client.post(path, content="{", headers={"Content-Type": "x"}).status_code == 415
    assert shared_client.post(path, content="{", headers=_JSON).status_code == 422
    assert shared_client.post(path, json={"name": "x", "plan": pure(-1)}).status_code == 422
    assert shared_client.post(path, json={"name": "x", "plan": pure(1)}).status_code == 404


# Headers of answers


def test_a_request_id_is_echoed_or_made(shared_client: Client) -> None:
    for given in ("abc", "x" * 200, "!~", "my run 7", "!"):
        assert shared_client.get("/healthz", headers={"X-Request-Id": given}).headers["X-Request-Id"] == given
    made = set()
    for given in ("", "a\tb", "x" * 201, "\t"):
        made.add(shared_client.get("/healthz", headers={"X-Request-Id": given}).headers["X-Request-Id"])
    made.add(shared_client.get("/v1/nothing").headers["X-Request-Id"])
    assert len(made) == 5
    assert not made & {"", "a\tb", "x" * 201}


def test_a_crash_is_a_problem_too(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("the reason, which is nobody's business")

    monkeypatch.setattr(accounts, "list_accounts", crash)
    answer = embedded.get("/v1/accounts", headers={"X-Request-Id": "abc"})
    assert "reason" not in problem_of(answer, "internal")["detail"]
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (500, "abc")


def test_every_kind_is_explained_on_a_page(shared_client: Client) -> None:
    for code, kind in KINDS.items():
        page = shared_client.get(f"/problems/{code}")
        assert page.headers["Content-Type"].startswith("text/html")
        assert (code in page.text, str(kind.status) in page.text) == (True, True)
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "<script" not in page.text


_ALWAYS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/accounts"),
        ("GET", "/v1/nothing"),
        ("POST", "/v1/accounts"),
        ("POST", "/v1/accuracy/curve"),
        ("GET", "/healthz"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/static/page.css"),
        ("GET", "/nothing"),
        ("BREW", "/healthz"),
    ],
)
def test_every_answer_says_what_browsers_may_do_with_it(shared_client: Client, method: str, path: str) -> None:
    body = {"counts": [1, 2], "mechanism": "geometric", "epsilons": ["0.1", "0.2"]} if "curve" in path else None
    headers = shared_client.request(method, path, json=body, headers={"Accept": "image/svg+xml"}).headers
    assert {name: headers.get(name) for name in _ALWAYS} == _ALWAYS
    assert "default-src 'none'" in headers["Content-Security-Policy"]  # an answer that is no page runs nothing
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert not headers.keys() & {"server", "strict-transport-security", "x-powered-by"}


@pytest.mark.parametrize("path", ["/docs", "/problems/validation"])
def test_a_page_is_in_no_frame_and_has_no_camera(shared_client: Client, path: str) -> None:
    headers = shared_client.get(path).headers
    assert headers["Content-Security-Policy"].count("frame-ancestors 'none'") == 1
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "camera=()" in headers["Permissions-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_answer_to_a_crash_has_its_headers_too(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(accounts, "list_accounts", crash)
    headers = embedded.get("/v1/accounts").headers
    assert {name: headers.get(name) for name in _ALWAYS} == _ALWAYS
    assert (headers["Cache-Control"], headers["Connection"]) == ("no-store", "close")


@pytest.fixture
def strict(_sqlite_template: Any, tmp_path: Any, secret: Secret) -> Iterator[TestClient]:
    """Return a steward's client of a service that every client reaches over TLS."""
    path = tmp_path / "strict.db"
    path.write_bytes(_sqlite_template.read_bytes())
    with client_of(application(open_database(f"sqlite:///{path}"), secret, hsts_seconds=31536000)) as opened:
        yield opened


@pytest.mark.parametrize("path", ["/healthz", "/docs", "/v1/nothing"])
def test_tls_is_asked_for_where_it_is_configured(strict: Client, path: str) -> None:
    assert strict.get(path).headers["Strict-Transport-Security"] == "max-age=31536000"


def test_answers_are_not_to_be_kept_or_guessed_at(shared_client: Client) -> None:
    for path in ("/v1/accounts", "/v1/nothing"):
        headers = shared_client.get(path).headers
        assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")


def test_a_refusal_names_the_part_of_an_account_and_the_place_in_the_request_only_where_it_has_them() -> None:
    plain = Overrun("people", "zcdp", "rho", Fraction("0.5"), Fraction("0.25"))
    parts = [plain._replace(tag="t"), plain._replace(window="2026-01"), plain._replace(tag="t", window="2026-01")]

    def body(*failures: Overrun, pointer: str | None = None) -> Any:
        refusal = BudgetExceeded(failures, pointer=pointer).redacted(lambda account: account == "people")
        return json.loads(bytes(of_error(refusal, "/v1/accounts").body))

    usual = {"account", "definition", "cap", "requested", "remaining"}
    whole = body(plain)
    assert set(whole["failures"][0]) == usual
    assert not whole.keys() & {"tag", "window", "pointer"}
    assert "on rho; the release" in whole["detail"]
    detailed = body(*parts, pointer="/caps/0/budget")
    added = [{name: failure[name] for name in failure.keys() - usual} for failure in detailed["failures"]]
    assert added == [{"tag": "t"}, {"window": "2026-01"}, {"tag": "t", "window": "2026-01"}]
    assert (detailed["tag"], detailed["pointer"]) == ("t", "/caps/0/budget")
    assert "on rho for tag 't'; the release" in detailed["detail"]
    above = body(plain._replace(account="agency", tag="t"), pointer="/caps/0/budget")
    assert (above["failures"], above["pointer"]) == ([dict.fromkeys(usual)], "/caps/0/budget")


def test_noise_that_fits_is_searched_for_in_a_turn_and_holds_up_no_other_answers(
    secret: Secret, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application(open_database(database_url), secret)
    searching, over, busy = Semaphore(0), Event(), list[int]()

    def search(*_: Any) -> None:
        busy.append(app.state.turns.busy)
        searching.release()
        over.wait(60)

    monkeypatch.setattr(budget_refusals, "noise_multiplier_that_fits", search)
    with client_of(app) as client, ThreadPoolExecutor(4) as threads:
        open_account(client)
        refused = [threads.submit(charge, client, pure(2)) for _ in range(4)]
        try:
            assert all(searching.acquire(timeout=60) for _ in range(4))  # all threads for searches are taken
            assert problem_of(client.get("/v1/accounts?limit=99999999"), "validation")
            assert problem_of(client.get("/v1/accounts/nowhere"), "not_found")
        finally:
            over.set()
        for answer in refused:
            problem_of(answer.result(), "budget_exceeded")
    assert max(busy) == 4
    assert app.state.turns.busy == 0
