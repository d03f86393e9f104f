"""Pictures by content negotiation: the same answer as SVG for whoever asks for image/svg+xml.

matplotlib is loaded for the first picture only, so that a server that draws none starts without it.
"""

import io
import threading
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from service.api.context import prefers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG = "image/svg+xml"

_drawing = threading.Lock()  # matplotlib's caches are not made for threads

# Text stays text, so that it can be read and searched, and ids come from the content: the same figures give the same
# bytes. Set once, since a picture must not depend on what another thread draws.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "picture",
    "font.family": "sans-serif",
    "font.size": 9.0,
}


def responses(what: str) -> dict[int | str, dict[str, Any]]:
    """What an operation declares that answers with a picture too."""
    return {200: {"description": what, "content": {SVG: {"schema": {"type": "string"}}}}}


def wants_picture(request: Request) -> bool:
    """Whether Accept asks for SVG at least as much as for JSON."""
    return prefers(request.headers.get("accept", ""), SVG)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, of no window and without any state of pyplot's."""
    with _drawing:
        import matplotlib as mpl  # noqa: PLC0415 - for the first picture only
        from matplotlib.figure import Figure  # noqa: PLC0415

        mpl.rcParams.update(_STYLE)
    return Figure(figsize=(width, height), layout="constrained")


def svg(figure: "Figure") -> Response:
    """A figure as an answer, drawn by the SVG backend alone: no clock, no other host."""
    buffer = io.BytesIO()
    with _drawing:
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Response(buffer.getvalue(), media_type=SVG)
