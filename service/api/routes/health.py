"""Probes: liveness and readiness."""

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from service.errors import Unavailable
from service.ledger.storage.database import Database
from service.ledger.storage.migrate import is_migrated

router = APIRouter()


@router.get("/healthz")
async def healthz() -> Response:
    """Check liveness.

    200 means that the process answers.
    """
    return JSONResponse({"status": "alive"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Check readiness.

    200 means that the database answers and is migrated, and that the process is not shutting down.
    """
    state = request.app.state
    if state.ending:
        raise Unavailable("the process is shutting down: use another one")
    database: Database = state.database
    if (refused := database.refused()) is not None:
        raise refused
    # SQLite answers from memory, in less time than a switch to a thread takes while other threads compute. Otherwise a
    # separate thread pool: a probe never waits behind requests.
    inline = database.kind == "sqlite"
    if not (is_migrated(database) if inline else await to_thread.run_sync(is_migrated, database, limiter=state.probes)):
        raise Unavailable(
            "the database belongs to another version of the service: run the migrate command of the newer one"
        )
    return JSONResponse({"status": "ready"})
