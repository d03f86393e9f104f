"""Serving: over an open installation, until a signal ends it."""

import gc
import signal
import sys

import structlog
import uvicorn
from starlette.types import ASGIApp

from service import __version__
from service.app import create_app
from service.connections import Limits, limited
from service.installation import open_installation
from service.ledger.keys import ensure_first_key
from service.settings import Settings, shown

_log = structlog.get_logger("service.server")


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; running requests are finished first, then the process exits with 0."""
    # uvicorn raises the signal again after its shutdown: by then this is what it meets.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    database, secret = open_installation(settings)
    bootstrap = settings.bootstrap_key.get_secret_value() if settings.bootstrap_key else None
    first = ensure_first_key(database, secret, bootstrap)
    if first is not None:
        print(f"The first key, a steward's, shown this once:\n\n    {first}\n", flush=True)
    print(f"Serving on http://{host}:{port}, documentation at http://{host}:{port}/docs", flush=True)
    # What exists by now lives as long as the process: the collector need not walk it again and again. And a request
    # makes thousands of objects that are gone by its end, so it looks for cycles every few requests, not in each.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    app = create_app(settings, database, secret)
    _log.info("start", version=__version__, settings=shown(settings))
    try:
        uvicorn.Server(configuration(settings, app, host, port)).run()
    finally:
        _log.info("stop")


def configuration(settings: Settings, app: ASGIApp, host: str, port: int) -> uvicorn.Config:
    """How uvicorn serves."""
    limits = Limits(settings.max_connections, settings.header_seconds, settings.answer_seconds)
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=limited(limits),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        reset_contextvars=True,  # what is bound to a request is not to the next one of its connection
    )
