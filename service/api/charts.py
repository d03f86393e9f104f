"""Pictures of figures, as SVG without scripts: the same figures give the same bytes."""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastapi import Request, Response

MEDIA_TYPE = "image/svg+xml"
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "description": "Where Accept asks for it."}}}}
}
"""What an operation that has a picture adds to its answers."""


class Line(NamedTuple):
    """A line of a panel; ``style`` as matplotlib has it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "-"


class Panel(NamedTuple):
    """Lines over common axes; ``scales`` are linear or log, of x and of y."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    scales: tuple[str, str] = ("linear", "linear")
    limits: tuple[float, float] | None = None


def wants_picture(request: Request) -> bool:
    """Whether Accept asks for a picture, and not for JSON as well."""
    accepted = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")]
    return MEDIA_TYPE in accepted and "application/json" not in accepted


def picture(panels: Sequence[Panel]) -> Response:
    """The panels side by side, at most two in a row."""
    # It takes half a second to import, which only those who want a picture wait for.
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    drawn = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "font.size": 9}):
        figure = Figure(figsize=(5.2 * columns, 3.6 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for panel, ax in zip(panels, axes, strict=False):
            for line in panel.lines:
                ax.plot(line.x, line.y, line.style, label=line.label, linewidth=1.2, markersize=4)
            ax.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, xscale=panel.scales[0], yscale=panel.scales[1])
            if panel.limits is not None:
                ax.set_ylim(*panel.limits)
            ax.grid(visible=True, linewidth=0.3)
            ax.legend(frameon=False)
        for ax in list(axes)[len(panels) :]:
            ax.set_axis_off()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return Response(drawn.getvalue(), media_type=MEDIA_TYPE)
