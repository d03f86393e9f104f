"""Charts: lines over common axes, in one or more panels."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fastapi import Response

from service.api.charts import pictures
from service.api.charts.pictures import Caption, Region

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, _HEIGHT = 4.8, 3.3  # inches of a single panel: its texts are readable on a telephone too
_WIDTH_BESIDE, _HEIGHT_BESIDE = 5.2, 3.6  # of one of several
_MOST_MARKS = 40  # points of a line with marks; more would run together
_A_MINUTE = timedelta(minutes=1)  # after the only entry, so that a line is seen


class Line(NamedTuple):
    """A line of a panel; ``style`` is matplotlib's. ``steps``: a value holds until the next one, the last one on."""

    label: str
    x: Sequence[float] | Sequence[datetime]
    y: Sequence[float]
    style: str = "-"
    steps: bool = False


class Panel(NamedTuple):
    """Lines over common axes; ``scales`` are linear or log, of x and of y.

    Attributes:
        said: what the picture says where one points near each value of x; only of a single panel.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    scales: tuple[str, str] = ("linear", "linear")
    limits: tuple[float, float] | None = None
    said: Sequence[str] = ()


def picture(panels: Sequence[Panel], kind: str, caption: Caption) -> Response:
    """Draw the panels side by side, at most two in a row.

    Args:
        panels: the panels, from left to right.
        kind: the media type of the answer.
        caption: texts for screen readers.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    width, height = (WIDTH, _HEIGHT) if len(panels) == 1 else (_WIDTH_BESIDE, _HEIGHT_BESIDE)
    figure = pictures.new_figure(width * columns, height * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, ax in zip(panels, axes, strict=False):
        _draw(panel, ax)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    return pictures.respond(figure, kind, caption, partial(_regions, figure, axes[0], panels[0]))


def _draw(panel: Panel, ax: "Axes") -> None:
    ax.set(xscale=panel.scales[0], yscale=panel.scales[1])  # before the lines, which turn an axis into one of dates
    for axis, scale in zip((ax.xaxis, ax.yaxis), panel.scales, strict=True):
        if scale == "log":
            pictures.plain_powers(axis)
    for line in panel.lines:
        style = line.style.replace("o", "") if len(line.x) > _MOST_MARKS else line.style
        drawn: Literal["steps-post", "default"] = "steps-post" if line.steps else "default"
        x: Any = line.x
        x, y = _prolonged(line) if line.steps else (x, line.y)
        marked = range(len(line.x))
        ax.plot(x, y, style, label=line.label, linewidth=1.2, markersize=4, drawstyle=drawn, markevery=marked)
    ax.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    if panel.lines and isinstance(panel.lines[0].x[0], datetime):
        pictures.few_dates(ax)
    if panel.limits is not None:
        ax.set_ylim(*panel.limits)
    ax.grid(visible=True, linewidth=0.3)
    if panel.lines:
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _prolonged(line: Line) -> tuple[list[datetime], list[float]]:
    """Return the points of steps in time with one more, so that the last value is seen too, and a single one."""
    times = [time for time in line.x if isinstance(time, datetime)]
    return [*times, times[-1] + ((times[-1] - times[0]) / 20 or _A_MINUTE)], [*line.y, line.y[-1]]


def _regions(figure: "Figure", ax: "Axes", panel: Panel) -> list[Region]:
    """Return a region for each value of x, from half-way to the last one to half-way to the next."""
    if not panel.said:
        return []
    box, scale = ax.get_window_extent(), 72 / figure.dpi
    lines: Any = ax.get_lines()[0].get_xdata(orig=False)
    places = [ax.transData.transform((x, 0))[0] for x in lines[: len(panel.said)]]
    edges = [box.x0, *((one + other) / 2 for one, other in pairwise(places)), box.x1]
    top = figure.bbox.height - box.y1
    return [
        Region(left * scale, top * scale, (right - left) * scale, box.height * scale, text)
        for (left, right), text in zip(pairwise(edges), panel.said, strict=True)
    ]
