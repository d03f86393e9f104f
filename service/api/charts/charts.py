"""Charts: lines over common axes, in one or more panels."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from fastapi import Response

from service.api.charts import pictures
from service.api.charts.pictures import Caption


class Line(NamedTuple):
    """A line of a panel; ``style`` is matplotlib's. ``steps``: a value holds until the next one."""

    label: str
    x: Sequence[float] | Sequence[datetime]
    y: Sequence[float]
    style: str = "-"
    steps: bool = False


class Panel(NamedTuple):
    """Lines over common axes; ``scales`` are linear or log, of x and of y."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    scales: tuple[str, str] = ("linear", "linear")
    limits: tuple[float, float] | None = None


def picture(panels: Sequence[Panel], kind: str, caption: Caption) -> Response:
    """Draw the panels side by side, at most two in a row.

    Args:
        panels: the panels, from left to right.
        kind: the media type of the answer.
        caption: texts for screen readers.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    width = 5.2 * columns if columns > 1 else 7.0
    figure = pictures.new_figure(width, 3.6 * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, ax in zip(panels, axes, strict=False):
        ax.set(xscale=panel.scales[0], yscale=panel.scales[1])  # before the lines, which turn an axis into one of dates
        for line in panel.lines:
            drawn: Literal["steps-post", "default"] = "steps-post" if line.steps else "default"
            ax.plot(line.x, line.y, line.style, label=line.label, linewidth=1.2, markersize=4, drawstyle=drawn)
        ax.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        if panel.limits is not None:
            ax.set_ylim(*panel.limits)
        ax.grid(visible=True, linewidth=0.3)
        if panel.lines:
            ax.legend(frameon=False)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    return pictures.respond(figure, kind, caption)
