"""What is open without a key: health, the interactive documentation, the problems' explanations."""

import html
from pathlib import Path

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

from service.api.problems import KINDS
from service.errors import NotFound, Unavailable
from service.ledger.database import Database
from service.ledger.migrate import is_migrated

WEB = Path(__file__).parent.parent / "web"

router = APIRouter(include_in_schema=False)
health = APIRouter(tags=["operations"])
static = StaticFiles(directory=WEB / "static")


@router.get("/")
def start() -> Response:
    """The interactive documentation, until there is a page of its own."""
    return RedirectResponse("/docs")


@router.get("/docs")
def docs() -> Response:
    """Swagger UI, served from the package: agency networks reach no other host."""
    return HTMLResponse((WEB / "docs.html").read_text("utf-8"))


@router.get("/problems/{code}")
def explain_problem(code: str) -> Response:
    """What a problem's type means."""
    kind = KINDS.get(code)
    if kind is None:
        raise NotFound("problem", code)
    title, text = html.escape(kind.title), html.escape(kind.explanation)
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/page.css">'
        f"<main><h1>{title}</h1><p><code>{code}</code>, status {kind.status}</p><p>{text}</p></main></html>"
    )


@health.get("/healthz")
async def healthz() -> Response:
    """Alive.

    The process answers.
    """
    return JSONResponse({"status": "alive"})


@health.get("/readyz")
async def readyz(request: Request) -> Response:
    """Ready.

    The database answers and is migrated.
    """
    state = request.app.state
    database: Database = state.database
    # Threads of their own: a probe never waits behind requests.
    if not await to_thread.run_sync(is_migrated, database, limiter=state.probes):
        raise Unavailable("the database is not migrated: run python -m service migrate")
    return JSONResponse({"status": "ready"})
