"""Charts: lines over common axes, in one or more panels."""

from collections.abc import Sequence
from typing import NamedTuple

from fastapi import Response

from service.api import pictures


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


def picture(panels: Sequence[Panel]) -> Response:
    """The panels side by side, at most two in a row."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = pictures.new_figure(5.2 * columns, 3.6 * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, ax in zip(panels, axes, strict=False):
        for line in panel.lines:
            ax.plot(line.x, line.y, line.style, label=line.label, linewidth=1.2, markersize=4)
        ax.set(title=panel.title, xlabel=panel.x, ylabel=panel.y, xscale=panel.scales[0], yscale=panel.scales[1])
        if panel.limits is not None:
            ax.set_ylim(*panel.limits)
        ax.grid(visible=True, linewidth=0.3)
        ax.legend(frameon=False)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    return pictures.svg(figure)
