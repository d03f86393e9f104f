"""Traces: not even imported by default; where configured, spans say what happened and nothing of what was in it."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.api.calls import Client, json_of, open_account, problem_of, pure
from tests.api.local_issuer import AUDIENCE, CLIENT, local_issuer
from tests.processes import ROOT, environment, service

_COUNT = 8675309021
_TEXT = str(_COUNT)
_TRACE, _PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class _Collector(http.server.BaseHTTPRequestHandler):
    """A receiver of OTLP over HTTP."""

    received: list[bytes]
    paths: ClassVar[set[str]]  # of all exports

    def do_POST(self) -> None:
        """Take an export."""
        self.paths.add(self.path)
        self.received.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def _collector() -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and what it has received."""
    received: list[bytes] = []
    paths: set[str] = set()
    handler = type("Handler", (_Collector,), {"received": received, "paths": paths})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()
    assert paths <= {"/v1/traces"}  # neither logs nor metrics


def _spans(received: list[bytes]) -> tuple[list[Any], dict[str, str]]:
    """All spans, and the attributes of what sent them."""
    spans, sender = [], dict[str, str]()
    for content in received:
        for resource in ExportTraceServiceRequest.FromString(content).resource_spans:
            sender |= {each.key: each.value.string_value for each in resource.resource.attributes}
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    return spans, sender


def _attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_spans_of_a_sign_in_have_neither_code_nor_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _collector() as (address, received), local_issuer() as issuer:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        issuer.client_secret = "the-client's-secret"
        settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_client_id": CLIENT}
        settings |= {"oidc_client_secret": issuer.client_secret, "public_url": "{address}"}
        with service(tmp_path, tracing="true", **settings) as served, Client(follow_redirects=True) as browser:
            for status in (None, 500):
                issuer.token_status = status
                answer = browser.get(f"{served.address}/sign-in/oidc")
                assert answer.status_code == (503 if status else 200)
            assert served.stop() == 0
    spans, _ = _spans(received)
    ends = [span for span in spans if span.name == "GET /sign-in/oidc/callback"]
    assert [_attributes(span)["http.response.status_code"] for span in ends] == [200, 503]
    sent = b"".join(received)
    secrets = ["the-client", "eyJ", *(form[name] for form in issuer.forms for name in ("code", "code_verifier"))]
    assert [secret for secret in secrets if secret.encode() in sent] == []


def test_spans_of_requests_and_transactions(
    tmp_path: Path, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _collector() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "the-ledger")
        monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")  # which would send what is wrong with bodies
        with service(tmp_path, database_url=empty_database_url, tracing="true") as served:
            open_account(served.client, budget={"definition": "pure", "epsilon": 10})
            drawing = {"name": _TEXT, "mechanism": pure(1), "counts": [_COUNT]}
            headers = {"traceparent": f"00-{_TRACE}-{_PARENT}-01", "X-Request-Id": "traced"}
            json_of(served.client.post("/v1/accounts/people/draws", json=drawing, headers=headers), 201)
            drawing["counts"] = [_TEXT]
            problem_of(served.client.post("/v1/accounts/people/draws", json=drawing), "validation")
            problem_of(served.client.get(f"/v1/accounts/people/balance?x={_TEXT}"), "validation")
            json_of(served.client.get("/healthz"))
            assert served.stop() == 0
    spans, sender = _spans(received)
    assert sender["service.name"] == "the-ledger"
    requests = {span.name for span in spans if span.kind == span.SPAN_KIND_SERVER}
    assert requests == {
        "POST /v1/accounts",
        "POST /v1/accounts/{account}/draws",
        "GET /v1/accounts/{account}/balance",
    }
    (drawn,) = [span for span in spans if span.trace_id.hex() == _TRACE and span.kind == span.SPAN_KIND_SERVER]
    assert drawn.parent_span_id.hex() == _PARENT
    assert _attributes(drawn) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "http.route": "/v1/accounts/{account}/draws",
        "http.response.status_code": 201,
    }
    within = [span for span in spans if span.parent_span_id == drawn.span_id]
    assert [span.name for span in within][-1] == "write transaction"
    kind = "sqlite" if empty_database_url.startswith("sqlite") else "postgresql"
    for span in within:
        assert _attributes(span)["db.system.name"] == kind
        assert drawn.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= drawn.end_time_unix_nano
    problems = [_attributes(span).get("error.type") for span in spans if span.name.endswith(("draws", "balance"))]
    assert sorted(filter(None, problems)) == ["validation", "validation"]
    assert not any(_TEXT.encode() in content for content in received)
    assert _TEXT not in str(spans)
    assert "people" not in str(spans)
    (line,) = [line for line in served.said if '"request_id": "traced"' in line]
    assert f'"trace_id": "{_TRACE}"' in line


def test_a_crash_is_a_span_without_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashing = (
        "from service.api.routes.noisy_counts import draws\n"
        "def failing(counts, *_):\n"
        "    raise RuntimeError(f'cannot draw {counts}')\n"
        "draws.add_noise = failing\n"
        "from service.__main__ import main\n"
        "main()\n"
    )
    with _collector() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        with service(tmp_path, ("-c", crashing), tracing="true") as served:
            open_account(served.client)
            drawing = {"name": "x", "mechanism": pure("0.1"), "counts": [_COUNT]}
            problem_of(served.client.post("/v1/accounts/people/draws", json=drawing), "internal")
            assert served.stop() == 0
    spans, sender = _spans(received)
    assert sender["service.name"] == "privacy-budget-ledger"
    (crashed,) = [span for span in spans if span.name == "POST /v1/accounts/{account}/draws"]
    assert crashed.status.code == crashed.status.STATUS_CODE_ERROR
    assert (crashed.status.message, list(crashed.events)) == ("", [])
    assert _attributes(crashed)["error.type"] == "internal"
    assert not any(_TEXT.encode() in content for content in received)


def test_nobody_who_receives_them_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with service(tmp_path, tracing="true") as served:
        open_account(served.client)
        assert served.stop() == 0


def test_it_is_not_imported_unless_it_is_asked_for(tmp_path: Path) -> None:
    """The framework itself imports the interfaces, opentelemetry-api, and nothing that sends."""
    named = "[name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))]"
    code = f"import sys, service.__main__; print({named})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_without_its_packages_the_start_is_refused(tmp_path: Path) -> None:
    code = "import sys; sys.modules['opentelemetry.sdk.resources'] = None; from service.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "--port", "1"],
        cwd=ROOT,
        env=environment(tmp_path, tracing="true"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "requirements-otel.lock" in done.stderr
