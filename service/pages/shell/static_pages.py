"""Static files of the pages."""

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles

from service.pages.shell.layout import WEB

router = APIRouter(include_in_schema=False)
static = StaticFiles(directory=WEB / "static")


@router.get("/favicon.ico")
def icon() -> Response:
    """Send the icon from the address where browsers look for it when they show a file or a picture alone."""
    return FileResponse(WEB / "static" / "icon.svg", media_type="image/svg+xml")
