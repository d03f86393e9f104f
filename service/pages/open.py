"""What is open without a key: the interactive documentation, the problems' explanations, static files."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles

from service.api.problems import KINDS
from service.errors import NotFound
from service.pages.layout import WEB, page

router = APIRouter(include_in_schema=False)
static = StaticFiles(directory=WEB / "static")

# Swagger UI sets styles on its elements, and its pictures are in its style sheet.
_DOCS_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; form-action 'none';"
    " frame-ancestors 'none'; base-uri 'none'"
)


@router.get("/docs")
def docs() -> Response:
    """Swagger UI, served from the package: agency networks reach no other host."""
    text = (WEB / "docs.html").read_text("utf-8")
    return HTMLResponse(text, headers={"Content-Security-Policy": _DOCS_POLICY})


@router.get("/problems/{code}")
def explain_problem(request: Request, code: str) -> Response:
    """What a problem's type means."""
    kind = KINDS.get(code)
    if kind is None:
        raise NotFound("problem", code)
    return page(request, "explanation.html", {"code": code, "kind": kind})
