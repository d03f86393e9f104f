"""Whether the process lives and can serve."""

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from service.errors import Unavailable
from service.ledger.database import Database
from service.ledger.migrate import is_migrated

router = APIRouter()


@router.get("/healthz")
async def healthz() -> Response:
    """Alive.

    The process answers.
    """
    return JSONResponse({"status": "alive"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Ready.

    The database answers and is migrated, and the process is not about to end.
    """
    state = request.app.state
    if state.ending:
        raise Unavailable("the process ends in a moment: ask another one")
    database: Database = state.database
    if database.stopped is not None:
        raise Unavailable(database.stopped)
    # Threads of their own: a probe never waits behind requests.
    if not await to_thread.run_sync(is_migrated, database, limiter=state.probes):
        raise Unavailable("the database is not of this version of the service: run the newer one's migrate command")
    return JSONResponse({"status": "ready"})
