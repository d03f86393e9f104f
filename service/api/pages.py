"""What is open without a key: health, the interactive documentation, the problems' explanations."""

import html
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from anyio import CapacityLimiter, to_thread

from service.api.problems import KINDS
from service.errors import NotFound, Unavailable
from service.ledger.database import Database
from service.ledger.migrate import is_migrated

WEB = Path(__file__).parent.parent / "web"

router = APIRouter(include_in_schema=False)


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


def mount(app: FastAPI) -> None:
    """Pages, static files and health on the app."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=WEB / "static"))
    probes = CapacityLimiter(2)  # threads of their own: a probe never waits behind requests

    async def healthz() -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> Response:
        database: Database = request.app.state.database
        if not await to_thread.run_sync(is_migrated, database, limiter=probes):
            raise Unavailable("the database is not migrated: run python -m service migrate")
        return JSONResponse({"status": "ready"})

    operations = {"tags": ["operations"], "response_model": None}
    app.add_api_route("/healthz", healthz, summary="Alive", description="The process answers.", **operations)
    app.add_api_route(
        "/readyz", readyz, summary="Ready", description="The database answers and is migrated.", **operations
    )
