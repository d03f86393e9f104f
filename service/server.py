"""The server process: serve an open installation until a signal ends it."""

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
from service.connections import Limits, Listener, limited_protocol
from service.errors import StartupRefused
from service.installation import high_water_file, open_installation
from service.ledger.access.key_events import see_keys
from service.ledger.access.keys import ensure_first_key
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.settings import Settings, available_memory, logged, unknown_variables

_SWITCH = 0.0001  # seconds after which a computing thread yields to another one, which may answer a charge
_READERS = 60  # threads that may have a connection to the database, beside those that write
_FILES_OF_DATABASE = 3  # of one connection: SQLite's file, its log and their index
_OTHER_FILES = 256  # the program's own files, its pipes, and connections that end while others begin
_LOGGED_KEY = timedelta(hours=24)  # lifetime of a first key that is written to a log, which has other readers
_log = structlog.get_logger("service.server")


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; running requests are finished first, then the process exits with 0.

    Raises:
        StartupRefused: hashes are predictable, the address is not available, or there is no installation to open.
        Unavailable: the database does not answer.
    """
    require_random_hashes(os.environ)
    end = EndSignal()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # uvicorn raises the signal again after its shutdown, and it comes here
        signal.signal(number, end)
    allow_files(settings)
    bound = bound_socket(host, port)  # before a process that cannot serve shows a first key
    database, secret = open_installation(settings, begin=True, serving=True)
    keeper = MarkKeeper(database, high_water_file(settings, secret))
    keeper.advance(everything=True)
    bootstrap = settings.bootstrap_key.get_secret_value() if settings.bootstrap_key else None
    lifetime = None if sys.stdout.isatty() else _LOGGED_KEY
    first = ensure_first_key(database, secret, bootstrap, lifetime)
    see_keys(database, secret)  # once: requests read only later entries
    if first is not None:
        print(f"The first key, a steward's, {_key_validity(lifetime)}:\n\n    {first}\n", flush=True)
    print(f"Serving on http://{host}:{port}, documentation at http://{host}:{port}/docs", flush=True)
    # Objects that exist by now live as long as the process, so the collector need not visit them again. A request makes
    # thousands of short-lived objects, so the collector looks for cycles every few requests and not during each.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(_SWITCH)
    app = create_app(settings, database, secret, keeper)
    if app.state.helpers is not None:
        threading.Thread(target=app.state.helpers.warm, name="helpers", daemon=True).start()
    _log.info("start", version=__version__, settings=logged(settings))
    if (most := settings.most_memory + settings.most_memory_of_helpers) > (there := available_memory()):
        _log.warning(
            "requests may take more memory than the machine or container has", most_bytes=most, there_bytes=there
        )
    if unknown := unknown_variables():
        alike = {name: instead for name, instead in unknown.items() if instead}
        _log.warning("unknown SERVICE_ variables are ignored", names=list(unknown), did_you_mean=alike or None)
    try:
        listener = Listener(bound, limits_of(settings, app))
        Server(configuration(settings, app, host, port), app, settings.drain_seconds, end).run([listener])
    finally:
        _log.info("stop")


def _key_validity(lifetime: timedelta | None) -> str:
    """Describe the validity of the first key, which goes to a log where standard output is no terminal."""
    if lifetime is None:
        return "shown only once"
    hours = lifetime // timedelta(hours=1)
    return f"shown only once; it expires after {hours} hours, as others may read this log: use it to create other keys"


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
        f"SERVICE_MAX_CONNECTIONS and SERVICE_WRITER_THREADS need {needed} open files, and the operating system"
        f" allows {hard}: raise its hard limit (nofile), or lower these"
    )


def files_needed(settings: Settings) -> int:
    """Return the largest number of files and connections that the process has open."""
    threads = settings.writer_threads + _READERS
    return settings.max_connections + _FILES_OF_DATABASE * threads + _OTHER_FILES


def require_random_hashes(environment: Mapping[str, str]) -> None:
    """Refuse a start with predictable hashes of text.

    A client who knows the hash key can send texts and numbers that collide: a request of some kilobytes then takes
    minutes.

    Raises:
        StartupRefused: PYTHONHASHSEED is set to a fixed value.
    """
    if environment.get("PYTHONHASHSEED", "") not in ("", "random"):
        raise StartupRefused("expected PYTHONHASHSEED unset or random: with a fixed value clients can predict hashes")


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket at the address; until uvicorn listens at it, connections are refused.

    Its protocol is TCP by name: asyncio sends small answers at once (TCP_NODELAY) only on such sockets.

    Raises:
        StartupRefused: the address is not available.
    """
    with ExitStack() as undone:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
            )[0]
            listening = undone.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError as error:
            raise StartupRefused(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None
        undone.pop_all()
    return listening


class EndSignal:
    """A handler that ends the process, and remembers that it was called.

    Python ignores an exception that is raised in a finalizer or in a callback of the garbage collector. A signal that
    comes there while the service starts would be lost.

    Attributes:
        came: whether a signal came.
    """

    def __init__(self) -> None:
        self.came = False

    def __call__(self, *_: object) -> None:
        """End with the exit status 0."""
        self.came = True
        sys.exit(0)


class Server(uvicorn.Server):
    """A server whose readiness probe announces its end for a while before it ends.

    Otherwise a proxy could send a request on a connection that is just being closed, and not know if it was read.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_seconds: float, end: EndSignal) -> None:
        super().__init__(config)
        self._app, self._drain_seconds, self._end = app, drain_seconds, end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and end at once if a signal came before the handler of signals was there."""
        await super().startup(sockets)
        self.should_exit |= self._end.came

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End, on SIGTERM after the announced time; a second signal ends at once."""
        if sig == signal.SIGTERM and self._drain_seconds and not self._app.state.ending:
            self._app.state.ending = True
            timer = threading.Timer(self._drain_seconds, super().handle_exit, (sig, frame))
            timer.daemon = True
            timer.start()
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; streams without end are ended first, so that nobody waits for them."""
        self._app.state.journals.end()
        await super().shutdown(sockets)


def limits_of(settings: Settings, app: ASGIApp) -> Limits:
    """Return the limits on connections."""
    return Limits(
        settings.max_connections,
        settings.resolved_connections_of_address,
        settings.header_seconds,
        settings.answer_seconds,
        ProxyHeadersMiddleware(app, settings.trusted_proxies).trusted_hosts,  # type: ignore[arg-type] # ASGI is ASGI
        settings.connection_rate,
    )


def configuration(settings: Settings, app: ASGIApp, host: str, port: int) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=limited_protocol(limits_of(settings, app)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        reset_contextvars=True,  # a request's context variables must not reach the next one of its connection
    )
