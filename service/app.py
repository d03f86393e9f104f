"""All wiring: settings and an open database in, an application out."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from anyio import CapacityLimiter
from fastapi import FastAPI

from service import __version__
from service.api import (
    accounts,
    accuracy,
    allocations,
    analysis,
    arrow,
    bulk,
    calibrations,
    comparisons,
    contract,
    curves,
    draws,
    empirical,
    health,
    histograms,
    history,
    jobs,
    keys,
    noise,
    postprocessing,
    principal,
    problems,
    releases,
    safetab,
    tabulations,
    trust,
)
from service.api.auth import Authentication
from service.api.middleware import SizeLimit, Surroundings
from service.jobs import Workers
from service.ledger.database import Database
from service.ledger.installation import Secret
from service.pages import refusals, routes
from service.pages.refusals import ProblemPages
from service.settings import Settings

_TITLE = "Privacy-budget ledger"
_ROUTERS = (
    accounts.router,
    history.router,
    releases.router,
    bulk.router,  # before the one of the same addresses in JSON, which takes every media type
    draws.router,
    histograms.router,
    tabulations.streams,
    tabulations.router,
    analysis.router,
    accuracy.router,
    curves.router,
    calibrations.router,
    noise.router,
    comparisons.router,
    allocations.router,
    safetab.router,
    postprocessing.router,
    empirical.router,
    jobs.router,
    keys.router,
    principal.router,
    trust.router,
    health.router,
)


def create_app(settings: Settings, database: Database, secret: Secret) -> FastAPI:
    """The application over an open database, which it closes at its end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with app.state.workers.working():
            yield
        database.close()

    app = FastAPI(
        title=_TITLE,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.settings, app.state.database, app.state.secret = settings, database, secret
    app.state.writers = ThreadPoolExecutor(settings.writer_threads, "writer")
    app.state.workers = Workers(database, settings.job_workers)
    app.state.probes = CapacityLimiter(2)
    for router in _ROUTERS:
        app.include_router(router)
    for router in routes.ROUTERS:
        app.include_router(router)
    app.mount("/static", routes.static)
    problems.install(app)
    refusals.install(app)
    app.add_middleware(
        SizeLimit, limits={arrow.MEDIA_TYPE: settings.max_arrow_bytes}, otherwise=settings.max_json_bytes
    )
    app.add_middleware(Authentication, database=database)
    app.add_middleware(ProblemPages)
    app.add_middleware(Surroundings)
    app.openapi = lambda: contract.describe(app)  # type: ignore[method-assign] # FastAPI's documented way
    return app


def openapi_document() -> dict[str, Any]:
    """The contract, without a database: what ``openapi.yaml`` holds."""
    app = FastAPI(title=_TITLE, version=__version__)
    for router in _ROUTERS:
        app.include_router(router)
    return contract.describe(app)
