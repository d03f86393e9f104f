"""All wiring: settings and an open database in, an application out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import CapacityLimiter
from fastapi import FastAPI

from service import __version__
from service.api import accounts, analysis, calibrations, contract, draws, keys, pages, problems, releases
from service.api.auth import Authentication
from service.api.middleware import SizeLimit, Surroundings
from service.ledger.database import Database
from service.ledger.installation import Secret
from service.settings import Settings


def create_app(settings: Settings, database: Database, secret: Secret) -> FastAPI:
    """The application over an open database, which it closes at its end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        database.close()

    app = FastAPI(
        title="Privacy-budget ledger", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.settings, app.state.database, app.state.secret = settings, database, secret
    app.state.writers = CapacityLimiter(settings.writer_threads)
    for resource in (accounts, releases, draws, analysis, calibrations, keys):
        app.include_router(resource.router)
    pages.mount(app)
    problems.install(app)
    app.add_middleware(SizeLimit, limit=settings.max_json_bytes)
    app.add_middleware(Authentication, database=database)
    app.add_middleware(Surroundings)
    app.openapi = lambda: contract.describe(app)  # type: ignore[method-assign] # FastAPI's documented way
    return app


def openapi_document() -> dict[str, Any]:
    """The contract, without a database: what ``openapi.yaml`` holds."""
    app = FastAPI(title="Privacy-budget ledger", version=__version__)
    for resource in (accounts, releases, draws, analysis, calibrations, keys):
        app.include_router(resource.router)
    return contract.describe(app)
