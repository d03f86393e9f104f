"""Traces of requests and transactions by OpenTelemetry, where they are configured.

The module is imported only then, since its packages are optional. The standard OTEL_* variables set the destination of
traces. A span has the operation and its result: no query, no header, no body, no statement and no message of an error.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import structlog
from fastapi import FastAPI
from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, Tracer, format_trace_id
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import __version__
from service.api.http.middleware import PROBES, template_of
from service.ledger.storage.database import Database

_NAME = "privacy-budget-ledger"
_CARRIED = {b"traceparent", b"tracestate"}


def install(app: FastAPI, database: Database) -> Callable[[], None]:
    """Trace an application's requests and its database's transactions; return a function that flushes at the end."""
    own = Resource({SERVICE_NAME: _NAME, SERVICE_VERSION: __version__})
    provider = TracerProvider(resource=Resource.create().merge(own).merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer(_NAME, __version__)
    app.add_middleware(Requests, tracer=tracer)
    database.around = _transactions(tracer, database.kind)
    return provider.shutdown


class Requests:
    """ASGI middleware with a span for each request except probes, below the caller's span where it sends one."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self.app, self.tracer = app, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on within its span, whose id is in the log lines."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self.app(scope, receive, send)
            return
        carried = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CARRIED}
        method, status = scope["method"], 500

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        with self.tracer.start_as_current_span(
            method,
            context=propagate.extract(carried),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.scheme": scope["scheme"]},
            record_exception=False,  # its message may quote input
            set_status_on_exception=False,
        ) as span:
            structlog.contextvars.bind_contextvars(trace_id=format_trace_id(span.get_span_context().trace_id))
            try:
                await self.app(scope, receive, watched)
            finally:
                route, problem = template_of(scope), scope["state"].get("problem")
                if route is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
                if problem is not None:
                    span.set_attribute("error.type", problem)
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    span.set_status(StatusCode.ERROR)


def _transactions(tracer: Tracer, system: str) -> Callable[[str], AbstractContextManager[object]]:
    @contextmanager
    def transaction(kind: str) -> Iterator[None]:
        with tracer.start_as_current_span(
            f"{kind} transaction",
            kind=SpanKind.CLIENT,
            attributes={"db.system.name": system, "db.operation.name": kind},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    return transaction
