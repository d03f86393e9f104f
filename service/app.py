"""Assembly of the application from settings and an open database."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.types import Lifespan

from service import __version__, logs
from service.api.arrow import streams as arrow
from service.api.computations import (
    accuracy,
    accuracy_curve,
    allocations,
    calibrations,
    comparisons,
    composition,
    empirical,
    noise_calibration,
    postprocessing,
    safetab,
    threshold_calibration,
)
from service.api.http import helper_processes, metrics, problems
from service.api.http.body_limits import Allowance, BodyLimits
from service.api.http.fair_places import FairPlaces
from service.api.http.followed_journals import FollowedJournals
from service.api.http.helper_processes import Helpers
from service.api.http.metrics import Metrics, MetricSources, Threads
from service.api.http.middleware import OuterMiddleware
from service.api.identity import principal
from service.api.identity.auth import Authentication
from service.api.identity.authorization_code import IssuerSignIn
from service.api.identity.oidc import Tokens
from service.api.identity.throttle import Throttle
from service.api.openapi import contract
from service.api.routes import (
    accounts,
    accuracy_statements,
    balances,
    capacity,
    health,
    history,
    jobs,
    journal_streams,
    journals,
    keys,
    packages,
    period_reports,
    periods,
    proposals,
    registry,
    release_events,
    release_search,
    releases,
    scenarios,
    shares,
    verification,
    webhooks,
)
from service.api.routes.noisy_counts import arrow_draws, csv_draws, draws, histograms, selections, tabulations
from service.errors import StartupRefused
from service.jobs import Workers
from service.ledger.access.key_usage import KeyUsage
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.installation.mark_check import remember_marked
from service.ledger.releases.expiry_keeper import ExpiryKeeper
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.schema import require_parsed_schema
from service.ledger.storage.secret import Secret
from service.notifications.notifier import Notifier
from service.pages import routes, start
from service.pages.shell import forms, problem_pages
from service.pages.shell.problem_pages import ProblemPages
from service.settings import SMALL_BODIES, Settings

_TITLE = "Privacy-budget ledger"
# FastAPI's own telemetry, which an environment variable turns on, would send faults of bodies: true counts.
_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
_THREADS = 40  # anyio's threads for requests that only read
_TURNS = 1  # running requests of one principal in this process while other principals are present
_ALONE = 8  # running requests of one principal otherwise: most places, readers and writers stay free for newcomers
_STREAMED = 4  # one of so many connections may carry a stream without end
# Routes are tried one after the other, so the most frequent ones come first.
_ROUTERS = (
    arrow_draws.router,  # both before the JSON routes of the same addresses, which accept every media type
    csv_draws.router,
    draws.router,
    selections.router,
    releases.router,
    health.router,
    metrics.router,
    accounts.router,
    balances.router,
    periods.router,
    capacity.router,
    journal_streams.router,  # before the JSON route of the same address
    journals.router,
    history.router,
    shares.router,
    tabulations.streams,
    tabulations.router,
    histograms.router,
    jobs.router,
    scenarios.router,
    accuracy_statements.router,
    packages.router,
    period_reports.router,
    release_events.router,
    release_search.router,
    proposals.router,
    verification.router,
    composition.router,
    accuracy.router,
    accuracy_curve.router,
    calibrations.router,
    noise_calibration.router,
    threshold_calibration.router,
    comparisons.router,
    allocations.router,
    safetab.router,
    postprocessing.router,
    empirical.router,
    keys.router,
    webhooks.router,
    registry.router,
    principal.router,
)


def create_app(settings: Settings, database: Database, secret: Secret, keeper: MarkKeeper | None) -> FastAPI:
    """Return the application over an open database, which it closes at its end.

    Args:
        settings: the configuration.
        database: the open database.
        secret: the installation's secret.
        keeper: writes the high-water mark; None where there is none.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        marked = nullcontext() if keeper is None else keeper.keeping()
        expiring, notifying = ExpiryKeeper(database).keeping(), notifier.keeping()
        with marked, app.state.uses.written(), expiring, notifying, app.state.workers.working():
            yield
        if app.state.helpers is not None:
            app.state.helpers.close()
        database.close()
        stop_tracing()

    notifier = Notifier(database, secret, settings)
    mark = None if keeper is None else keeper.file
    app = _application(settings, database, secret, mark, lifespan)
    places = _THREADS + settings.writer_threads
    alone = max(1, min(_ALONE, settings.writer_threads - 1))
    app.state.turns = FairPlaces(places, _TURNS, alone, settings.max_connections)
    own = settings.model_copy(update={"bootstrap_key": None, "oidc_client_secret": None, "smtp_password": None})
    make = partial(helper_app, own, database.url, database.version, secret, mark, database.newest.complete)
    most = settings.max_connections
    app.state.page_turns = FairPlaces(most, _TURNS, most, most, beside=app.state.turns)
    app.state.journals = FollowedJournals(database, max(1, most // _STREAMED))
    number, asking = settings.helper_processes, max(1, settings.writer_threads // 2)
    app.state.helpers = Helpers(number, make, __name__, settings.helper_seconds, asking) if number else None
    app.state.workers = Workers(
        database,
        secret,
        settings.job_workers,
        timedelta(days=settings.job_retention_days),
        None if settings.draw_retention_days is None else timedelta(days=settings.draw_retention_days),
    )
    app.state.uses, app.state.tokens = KeyUsage(database), Tokens.configured(settings)
    app.state.issuer_sign_in = IssuerSignIn.configured(settings, app.state.tokens)
    app.state.throttle = Throttle(settings.key_rate, settings.failure_rate)
    contract.install(app)
    app.state.probes, app.state.ending = CapacityLimiter(2), False
    for router in routes.ROUTERS:
        app.router.routes.extend(router.routes)
    app.mount("/static", routes.static)
    problem_pages.install(app)
    _surround(app, settings, database, keeper, notifier)
    stop_tracing = _trace(app, database) if settings.tracing else lambda: None
    return app


def helper_app(
    settings: Settings,
    url: str,
    version: str | None,
    secret: Secret,
    mark: HighWaterFile | None,
    complete: bool,
) -> FastAPI:
    """Return the application of a helper process: the caller is authenticated already, and no request is passed on.

    Args:
        settings: the configuration, without the bootstrap key, the client's secret and the password for mail.
        url: the database's URL, which the helper opens for reading.
        version: of the database's tables; None: any version.
        secret: the installation's secret.
        mark: the file of the high-water mark; None where there is none.
        complete: whether the server knew all accounts when it began.
    """
    logs.configure(settings.log_level)
    database = open_database(url, lock_timeout=settings.lock_timeout_seconds, writer_threads=1)
    database.secret, database.version, database.begun = secret, version, require_parsed_schema
    if mark is not None:
        remember_marked(database, mark, complete=complete)
    app = _application(settings, database, secret, mark)
    app.state.turns, app.state.helpers = FairPlaces(_THREADS, _THREADS, _THREADS, _THREADS), None
    helper_processes.install(app)
    return app


def _application(
    settings: Settings,
    database: Database,
    secret: Secret,
    mark: HighWaterFile | None,
    lifespan: Lifespan[FastAPI] | None = None,
) -> FastAPI:
    """Return ``/v1`` over an open database, without middleware."""
    app = FastAPI(
        title=_TITLE,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # FastAPI would render it for each request
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
    )
    app.state.settings, app.state.database, app.state.secret = settings, database, secret
    app.state.mark = mark
    app.state.writers = Threads(settings.writer_threads, "writer")
    _add_routes(app)
    problems.install(app)
    return app


def _add_routes(app: FastAPI) -> None:
    # Not include_router, whose routers within routers match each request twice: up to 150 microseconds a request.
    for router in _ROUTERS:
        app.router.routes.extend(router.routes)


def _surround(
    app: FastAPI, settings: Settings, database: Database, keeper: MarkKeeper | None, notifier: Notifier
) -> None:
    """Add the middleware, from the innermost to the outermost, and the metrics."""
    json, streams = (
        Allowance(largest, at_once, at_once // (SMALL_BODIES * settings.max_connections))
        for largest, at_once in (
            (settings.max_json_bytes, settings.resolved_json_bytes_at_once),
            (settings.max_arrow_bytes, settings.resolved_arrow_bytes_at_once),
        )
    )
    # Requests without a key cannot take the memory of those with one: each connection has a share for signing in.
    sign_in = Allowance(start.LARGEST_FORM, start.LARGEST_FORM * settings.max_connections)
    bodies = {"json": json, "arrow": streams}
    state, most = app.state, settings.max_connections
    sources = MetricSources(
        database, state.writers, bodies, settings.metrics_accounts, state.turns, state.helpers, keeper,
        notifier.unfollowed_age,
    )  # fmt: skip
    state.metrics = Metrics(sources)
    app.add_middleware(
        BodyLimits,
        paths={start.SIGN_IN: sign_in},
        # an empty media type means no body: such a request at most reads draws back
        allowances={arrow.MEDIA_TYPE: streams, "": streams},
        otherwise=json,
        seconds=settings.body_seconds,
        rate=settings.body_bytes_per_second,
        turns=FairPlaces(most, _TURNS, most, most, beside=state.turns),
        open_seconds=settings.header_seconds,
        shorter={forms.URL_ENCODED: forms.LARGEST_TEXT},
    )
    app.add_middleware(
        Authentication,
        database=database,
        secret=app.state.secret,
        uses=app.state.uses,
        tokens=app.state.tokens,
        throttle=app.state.throttle,
    )
    app.add_middleware(ProblemPages)
    app.add_middleware(OuterMiddleware, metrics=app.state.metrics, hsts_seconds=settings.hsts_seconds)


def _trace(app: FastAPI, database: Database) -> Callable[[], None]:
    try:
        from service import tracing  # noqa: PLC0415 - of an extra, and slow to import
    except ImportError:
        detail = "SERVICE_TRACING needs the packages of requirements-otel.lock, and they are not installed"
        raise StartupRefused(detail) from None
    return tracing.install(app, database)


def openapi_document() -> dict[str, Any]:
    """Return the contract, without a database: the content of ``openapi.yaml``."""
    app = FastAPI(title=_TITLE, version=__version__)
    _add_routes(app)
    return contract.describe(app)
