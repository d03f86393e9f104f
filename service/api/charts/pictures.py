"""Pictures by content negotiation: the same answer as SVG or PNG, for Accept: image/svg+xml or image/png.

matplotlib is loaded for the first picture only, so that a server that draws none starts without it.
"""

import io
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

from fastapi import Request, Response

from service.api.http.accepted_types import preferred

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SVG = "image/svg+xml"
PNG = "image/png"

_DOTS_PER_INCH = 200
_SHEET = re.compile(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL)
_STYLES = re.compile(r' style="([^"]*)"')
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_drawing = threading.Lock()  # matplotlib's caches are not thread-safe

# Text stays text, so that it can be read and searched. Ids come from the content: the same figures give the same
# bytes. The background is opaque, so that a picture is readable on a dark page too. Set once, since a picture must not
# depend on what another thread draws.
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "picture",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.parse_math": False,  # labels are names that people chose, and a dollar sign begins no formula
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
# Distinct with every kind of colour vision (Okabe and Ito), and dark enough for lines on white.
_COLOURS = ("#0072b2", "#d55e00", "#008060", "#aa4499", "#555555")


class Region(NamedTuple):
    """A part of a picture that says something when it is pointed at: a rectangle, in points from the upper left."""

    x: float
    y: float
    width: float
    height: float
    text: str


class Caption(NamedTuple):
    """The subject of a picture, for screen readers."""

    title: str
    description: str


def responses(what: str, others: Mapping[str, Any] | None = None) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an operation that also answers with a picture, or with contents of other media types."""
    text, binary = {"schema": {"type": "string"}}, {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": what, "content": {SVG: text, PNG: binary, **(others or {})}}}


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


def few_dates(axes: "Axes") -> None:
    """Have so few dates along an axis of time that none runs into the next."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415 - for the first picture only

    # With more ticks at least, matplotlib finds no distance of them for some ranges.
    locator = AutoDateLocator(minticks=2, maxticks=5)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    formatter.formats[5] = "%H:%M:%S.%f"  # seconds alone would not look like a time
    axes.xaxis.set_major_formatter(formatter)
    axes.margins(x=0.02)


def plain_powers(axis: "Axis") -> None:
    """Have powers of ten along a logarithmic axis in plain characters, as formulas are never drawn."""
    from matplotlib.ticker import LogFormatterSciNotation  # noqa: PLC0415 - for the first picture only

    class Powers(LogFormatterSciNotation):
        def __call__(self, value: float, position: int | None = None) -> str:
            formula = super().__call__(value, position).removeprefix(r"$\mathdefault{").removesuffix("}$")
            base, _, power = formula.replace(r"\times", "\N{MULTIPLICATION SIGN}").partition("^{")
            return base + power.removesuffix("}").translate(_RAISED)

    axis.set_major_formatter(Powers())
    axis.set_minor_formatter(Powers())


def respond(figure: "Figure", kind: str, caption: Caption, regions: Callable[[], Sequence[Region]] = tuple) -> Response:
    """Answer with a figure of this media type, drawn by matplotlib's own backends: no clock, no other host.

    Args:
        figure: the figure.
        kind: the media type.
        caption: texts for screen readers.
        regions: returns those of an SVG picture.
    """
    buffer = io.BytesIO()
    with _drawing:
        if kind == PNG:
            written = {"Title": caption.title, "Description": caption.description, "Software": None}
            figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata=written)
            return Response(buffer.getvalue(), media_type=kind)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        placed = regions()
    return Response(_finished(buffer.getvalue().decode(), caption, placed), media_type=kind)


def _finished(svg: str, caption: Caption, regions: Sequence[Region]) -> str:
    """Return an SVG picture with texts for screen readers, and with regions.

    Styles become attributes of their own, because a page with a strict content security policy applies no others to
    a picture that stands in it.
    """
    before, opening, rest = svg.partition("<svg ")
    attributes, _, drawing = rest.partition(">")
    drawing = _STYLES.sub(_as_attributes, _SHEET.sub("", drawing))
    labels = f"<title>{escape(caption.title)}</title><desc>{escape(caption.description)}</desc>"
    pointed_at = "".join(
        f'<rect x="{one.x:.2f}" y="{one.y:.2f}" width="{one.width:.2f}" height="{one.height:.2f}" fill="none"'
        f' pointer-events="all"><title>{escape(one.text)}</title></rect>'
        for one in regions
    )
    lines = 'stroke-linejoin="round" stroke-linecap="butt"'
    whole = f'{before}{opening}role="img" {lines} {attributes}>{labels}{drawing}'
    return whole.replace("</svg>", f"{pointed_at}</svg>")


def _as_attributes(style: re.Match[str]) -> str:
    members = (member.partition(":") for member in style[1].split(";"))
    return "".join(f' {name.strip()}="{value.strip()}"' for name, _, value in members)
