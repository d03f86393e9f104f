"""Pages beside the guide that need no key: the interactive documentation and static files."""

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, Response
from fastapi.staticfiles import StaticFiles

from service.pages.shell.layout import WEB

router = APIRouter(include_in_schema=False)
static = StaticFiles(directory=WEB / "static")

# Swagger UI sets styles on its elements, and its style sheet contains its pictures.
_DOCS_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; form-action 'none'; frame-ancestors"
    " 'none'; base-uri 'none'"
)


@router.get("/favicon.ico")
def icon() -> Response:
    """Send the icon from the address where browsers look for it when they show a file or a picture alone."""
    return FileResponse(WEB / "static" / "icon.svg", media_type="image/svg+xml")


@router.get("/docs")
def docs() -> Response:
    """Render Swagger UI from this package's own files: agency networks reach no other host."""
    text = (WEB / "docs.html").read_text("utf-8")
    return HTMLResponse(text, headers={"Content-Security-Policy": _DOCS_POLICY})
