"""Pictures by content negotiation: the same answer as SVG or PNG, for Accept: image/svg+xml or image/png.

matplotlib is loaded for the first picture only, so that a server that draws none starts without it.
"""

import io
import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

from fastapi import Request, Response

from service.api.http.accepted_types import preferred

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG = "image/svg+xml"
PNG = "image/png"

_DOTS_PER_INCH = 160
_drawing = threading.Lock()  # matplotlib's caches are not thread-safe

# Text stays text, so that it can be read and searched. Ids come from the content: the same figures give the same
# bytes. The background is opaque, so that a picture is readable on a dark page too. Set once, since a picture must not
# depend on what another thread draws.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "picture",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "date.converter": "concise",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
# Distinct with every kind of colour vision (Okabe and Ito), and dark enough for lines on white.
_COLOURS = ("#0072b2", "#d55e00", "#008060", "#aa4499", "#555555")


class Caption(NamedTuple):
    """The subject of a picture, for screen readers."""

    title: str
    description: str


def responses(what: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an operation that also answers with a picture."""
    text, binary = {"schema": {"type": "string"}}, {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": what, "content": {SVG: text, PNG: binary}}}


def wanted_type(request: Request) -> str | None:
    """Return the media type of the picture that Accept prefers at least as much as JSON; None where there is none."""
    return preferred(request.headers.get("accept", ""), (SVG, PNG))


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of so many inches, without a window and without pyplot's state."""
    with _drawing:
        import matplotlib as mpl  # noqa: PLC0415 - for the first picture only
        from matplotlib import rcsetup  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415

        mpl.rcParams.update(_STYLE | {"axes.prop_cycle": rcsetup.cycler(color=_COLOURS)})
    return Figure(figsize=(width, height), layout="constrained")


def respond(figure: "Figure", kind: str, caption: Caption) -> Response:
    """Answer with a figure of this media type, drawn by matplotlib's own backends: no clock, no other host."""
    buffer = io.BytesIO()
    with _drawing:
        if kind == PNG:
            written = {"Title": caption.title, "Description": caption.description, "Software": None}
            figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata=written)
        else:
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    content = buffer.getvalue()
    return Response(_with_labels(content, caption) if kind == SVG else content, media_type=kind)


def _with_labels(svg: bytes, caption: Caption) -> bytes:
    """Return an SVG picture with a title and description for screen readers."""
    before, opening, rest = svg.partition(b"<svg ")
    attributes, end, drawing = rest.partition(b">")
    labels = f"<title>{escape(caption.title)}</title><desc>{escape(caption.description)}</desc>".encode()
    return before + opening + b'role="img" ' + attributes + end + labels + drawing
