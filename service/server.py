"""Serving: over an open installation, until a signal ends it."""

import gc
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service import __version__
from service.app import create_app
from service.connections import Limits, Listener, limited
from service.errors import StartupRefused
from service.installation import high_water_file, open_installation
from service.ledger.keys import ensure_first_key
from service.ledger.mark_keeper import MarkKeeper
from service.settings import Settings, memory_there, shown, unknown_variables

_SWITCH = 0.0005  # seconds after which a thread that computes lets another go on, which has a charge to answer
_READERS = 60  # threads that may have a connection to the database, beside those that write
_FILES_OF_DATABASE = 3  # of one connection: SQLite's file, its log and their index
_OTHER_FILES = 256  # the program's own, its pipes, and connections that end as others come
_LOGGED_KEY = timedelta(hours=24)  # a first key's life where it goes to a log, which others read, and later
_log = structlog.get_logger("service.server")


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; running requests are finished first, then the process exits with 0.

    Raises:
        StartupRefused: hashes can be foreseen, the address cannot be listened at, or there is no installation to open.
        Unavailable: the database does not answer.
    """
    require_random_hashes(os.environ)
    # uvicorn raises the signal again after its shutdown: by then this is what it meets.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    allow_files(settings)
    bound = bound_socket(host, port)  # before a first key is shown by a process that will not serve
    database, secret = open_installation(settings, begin=True, serving=True)
    keeper = MarkKeeper(database, high_water_file(settings, secret))
    keeper.advance(everything=True)
    bootstrap = settings.bootstrap_key.get_secret_value() if settings.bootstrap_key else None
    lifetime = None if sys.stdout.isatty() else _LOGGED_KEY
    first = ensure_first_key(database, secret, bootstrap, lifetime)
    if first is not None:
        print(f"The first key, a steward's, {_shown(lifetime)}:\n\n    {first}\n", flush=True)
    print(f"Serving on http://{host}:{port}, documentation at http://{host}:{port}/docs", flush=True)
    # What exists by now lives as long as the process: the collector need not walk it again and again. And a request
    # makes thousands of objects that are gone by its end, so it looks for cycles every few requests, not in each.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(_SWITCH)
    app = create_app(settings, database, secret, keeper)
    if app.state.helpers is not None:
        threading.Thread(target=app.state.helpers.warm, name="helpers", daemon=True).start()
    _log.info("start", version=__version__, settings=shown(settings))
    if settings.most_memory > (there := memory_there()):
        _log.warning("bodies may take more memory than there is", most_bytes=settings.most_memory, there_bytes=there)
    if unknown := unknown_variables():
        _log.warning("variables that no setting has", names=unknown)
    try:
        listener = Listener(bound, limits_of(settings, app))
        Server(configuration(settings, app, host, port), app, settings.drain_seconds).run([listener])
    finally:
        _log.info("stop")


def _shown(lifetime: timedelta | None) -> str:
    """What is said of the first key, which goes to a log where standard output is no terminal."""
    if lifetime is None:
        return "shown this once"
    hours = lifetime // timedelta(hours=1)
    return f"shown this once; it ends after {hours} hours, as whoever reads this log has it: make others with it"


def allow_files(settings: Settings) -> None:
    """Raise the process's limit on open files to what its connections and databases need.

    Raises:
        StartupRefused: the operating system does not allow as many.
    """
    needed = files_needed(settings)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) or hard >= needed:
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise StartupRefused(
        f"SERVICE_MAX_CONNECTIONS and SERVICE_WRITER_THREADS need {needed} open files, and the operating system allows"
        f" {hard}: raise its hard limit (nofile), or lower these"
    )


def files_needed(settings: Settings) -> int:
    """The most files and connections that the process has open."""
    threads = settings.writer_threads + _READERS
    return settings.max_connections + _FILES_OF_DATABASE * threads + _OTHER_FILES


def require_random_hashes(environment: Mapping[str, str]) -> None:
    """Refuse a start at which Python draws no key for the hashes of text.

    Whoever knows the key makes texts and numbers that collide, and a request of some kilobytes takes minutes.

    Raises:
        StartupRefused: it draws none.
    """
    if environment.get("PYTHONHASHSEED", "") not in ("", "random"):
        raise StartupRefused("expected PYTHONHASHSEED unset, or random: with a fixed one clients can foresee hashes")


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at the address; until uvicorn listens at it, connections are refused.

    It is of the protocol TCP by name: asyncio sends small answers at once (TCP_NODELAY) on no others.

    Raises:
        StartupRefused: nobody can listen there.
    """
    with ExitStack() as undone:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
            )[0]
            made = undone.enter_context(socket.socket(family, kind, protocol))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except OSError as error:
            raise StartupRefused(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None
        undone.pop_all()
    return made


class Server(uvicorn.Server):
    """Tells those who ask whether it is ready that it will end, a while before it does.

    A proxy that sends a request at the moment when an idle connection is closed cannot know whether it was read.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_seconds: float) -> None:
        super().__init__(config)
        self._app, self._drain_seconds = app, drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End, on SIGTERM after the while; a second signal waits for nothing."""
        if sig == signal.SIGTERM and self._drain_seconds and not self._app.state.ending:
            self._app.state.ending = True
            timer = threading.Timer(self._drain_seconds, super().handle_exit, (sig, frame))
            timer.daemon = True
            timer.start()
        else:
            super().handle_exit(sig, frame)


def limits_of(settings: Settings, app: ASGIApp) -> Limits:
    """The limits on connections."""
    return Limits(
        settings.max_connections,
        settings.resolved_connections_of_address,
        settings.header_seconds,
        settings.answer_seconds,
        ProxyHeadersMiddleware(app, settings.trusted_proxies).trusted_hosts,  # type: ignore[arg-type] # ASGI is ASGI
        settings.connection_rate,
    )


def configuration(settings: Settings, app: ASGIApp, host: str, port: int) -> uvicorn.Config:
    """How uvicorn serves."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=limited(limits_of(settings, app)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        reset_contextvars=True,  # what is bound to a request is not to the next one of its connection
    )
