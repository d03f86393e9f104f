"""Log lines: JSON that says which principal asked what, for how long, and how the service was started."""

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from service import logs
from tests.api.calls import STEWARD, bearer, json_of, make_key, open_account, problem_of, pure, release
from tests.processes import Served, service

# The service with a line of its own within each charge, in the thread that writes.
_TALKATIVE = """\
import logging, structlog
from service.ledger.releases import preparation

prepare = preparation.prepare

def told(*arguments):
    structlog.get_logger().info("ours")
    logging.getLogger("somebody").warning("theirs")
    return prepare(*arguments)

preparation.prepare = told
from service.__main__ import main
main()
"""


def _lines(served: Served, event: str) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in served.said if line.startswith("{")]
    return [line for line in parsed if line["event"] == event]


def test_a_line_says_who_asked_what(tmp_path: Path) -> None:
    nobody = {"oidc_issuer": "http://127.0.0.1:1", "oidc_audience": "ledger"}
    token = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"one"}').decode() + ".e30.AAAA"
    with service(tmp_path, **nobody) as served:
        open_account(served.client)
        key = make_key(served.client, "pipeline", "census-pipeline")
        made = release(served.client, pure("0.1"))
        path = f"/v1/accounts/people/releases/{made['id']}"
        json_of(served.client.get(path, headers=key | {"X-Request-Id": "one"}))
        problem_of(served.client.get("/v1/keys", headers=key | {"X-Request-Id": "two"}), "forbidden")
        problem_of(
            served.client.get("/v1/keys", headers=bearer("wrong") | {"X-Request-Id": "three"}), "unauthenticated"
        )
        problem_of(served.client.get("/nothing", headers={"X-Request-Id": "four"}), "not_found")
        problem_of(served.client.get("/v1/keys", headers=bearer(token) | {"X-Request-Id": "five"}), "unavailable")
        long = "/v1/accounts/" + "a" * 5000
        served.client.get(long, headers=key | {"X-Request-Id": "six"})
        served.client.get("/" + "b" * 5000, headers={"X-Request-Id": "seven"})
        served.client.get("/healthz")
        served.client.get("/metrics")
        served.client.post("/healthz")
        assert served.stop() == 0
    by_id = {line["request_id"]: line for line in _lines(served, "request")}
    one = by_id["one"]
    assert one.pop("milliseconds") > 0
    assert one.pop("timestamp").endswith("Z")
    assert len(one.pop("key")) == 36
    assert one == {
        "event": "request",
        "level": "info",
        "request_id": "one",
        "method": "GET",
        "route": "/v1/accounts/{account}/releases/{release}",
        "path": path,
        "status": 200,
        "principal": "census-pipeline",
        "account": "people",
    }
    assert (by_id["two"]["principal"], by_id["two"]["problem"]) == ("census-pipeline", "forbidden")
    assert (by_id["three"]["status"], by_id["three"]["client"]) == (401, "127.0.0.1")
    assert "principal" not in by_id["three"]
    assert (by_id["four"]["status"], by_id["four"]["route"]) == (404, None)
    assert (by_id["five"]["status"], by_id["five"]["client"]) == (503, "127.0.0.1"), "who it was cannot be told"
    assert (by_id["six"]["path"], by_id["six"]["account"]) == (long[:300], "a" * 300)
    assert by_id["seven"]["path"] == "/" + "b" * 299
    (failure,) = _lines(served, "the issuer's keys cannot be fetched")
    assert (failure["issuer"], failure["reason"]) == ("http://127.0.0.1:1", "ConnectError")
    # Probes are asked all day long: only what goes wrong with them is told.
    probes = [line for line in by_id.values() if line["path"] in ("/healthz", "/readyz", "/metrics")]
    assert [(line["method"], line["status"]) for line in probes] == [("POST", 405)]


def test_lines_within_a_request_carry_its_id(tmp_path: Path) -> None:
    """Those of other libraries too, and in the threads that write."""
    with service(tmp_path, ("-c", _TALKATIVE)) as served:
        open_account(served.client)
        for request_id in ("first", "second"):
            body = {"name": "x", "plan": pure("0.1")}
            answer = served.client.post("/v1/accounts/people/releases", json=body, headers={"X-Request-Id": request_id})
            json_of(answer, 201)
        assert served.stop() == 0
    for event in ("ours", "theirs"):
        assert [line["request_id"] for line in _lines(served, event)] == ["first", "second"]
    assert not any("request_id" in line for line in _lines(served, "start") + _lines(served, "stop"))


def test_no_library_tells_what_it_read(tmp_path: Path) -> None:
    """A form that is none: what came in its place may be a column of true counts."""
    with service(tmp_path, log_level="debug") as served:
        for content in (b"7", b"--x\r\n7", b"--x\r\nContent-Disposition: form-data; name=key\r\n\r\n1\r\n--x7"):
            headers = {"Content-Type": "multipart/form-data; boundary=x", "X-Request-Id": "form"}
            assert served.client.post("/sign-in", content=content, headers=headers).status_code in (401, 422)
        assert served.stop() == 0
    told = [json.loads(line) for line in served.said if "form" in line and line.startswith("{")]
    assert {line["event"] for line in told if line.get("request_id") == "form"} == {"request"}


@pytest.mark.parametrize("hidden", ["hunter2hunter2hunter2hunter2hunter2"])
def test_start_and_stop_are_told_with_the_settings_and_no_secret(
    tmp_path: Path, postgresql_url: str, hidden: str
) -> None:
    url = postgresql_url + ("&" if "?" in postgresql_url else "?") + f"password={hidden}"
    with service(tmp_path, database_url=url, bootstrap_key=STEWARD, max_plan_depth="7") as served:
        assert served.stop() == 0
    (start,) = _lines(served, "start")
    (stop,) = _lines(served, "stop")
    assert start["settings"]["max_plan_depth"] == 7
    assert start["settings"]["bootstrap_key"] is True
    assert start["settings"]["database_url"].startswith("postgresql+psycopg://")
    assert start["version"] == "0.12.0"
    assert start["timestamp"] < stop["timestamp"]
    printed = "".join(served.said)
    assert hidden not in printed
    assert STEWARD not in printed


@pytest.fixture
def _root_logger() -> Iterator[None]:
    """Give the root logger its handlers and level back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_root_logger")
def test_a_logger_in_use_obeys_later_changes() -> None:
    """Commands configure logs in the tests' process, and a test that collects lines must see those of every logger."""
    logs.configure("info")
    logger = structlog.get_logger("somebody")
    logger.info("before")
    logs.configure("info")
    with capture_logs() as lines:
        logger.info("after")
    assert [line["event"] for line in lines] == ["after"]
