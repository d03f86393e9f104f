"""Pictures of the shares of a spent loss: a bar for each part."""

from itertools import pairwise
from typing import Any

from fastapi import Response

from service.api.charts import pictures
from service.api.charts.charts import WIDTH
from service.api.charts.pictures import Caption, Region
from service.privacy.mechanisms import mechanism_label
from service.rounding import percent, up

_ROW, _AROUND = 0.26, 0.95  # inches of a bar, and of title and axis
_LONGEST = 26  # characters of a label, which would leave no room for the bars
_DO_NOT_ADD_UP = "Each bar is a part by itself: these losses do not add up."


def part_label(by: str, part: dict[str, Any]) -> str:
    """Return a part of ``/shares`` in words."""
    if "number" in part:
        return f"{part['number']} more" + (" and its own" if part["with_own"] else "")
    names = " + ".join(map(mechanism_label, part["names"]) if by == "mechanism" else part["names"])
    if part["allotted"]:
        return f"{names} (allotted)" if names else "allotted budgets"
    return names or {"account": "its own releases", "tag": "without a tag"}.get(by, "nothing")


def shares_picture(body: dict[str, Any], kind: str) -> Response:
    """Draw the shares as bars, the greatest first."""
    parts = body["parts"] + ([] if body["rest"] is None else [body["rest"]])
    figure = "rho" if body["budget"]["definition"] == "zcdp" else "epsilon"
    said = [f"{part_label(body['by'], part)}: {_said(part, figure)}" for part in parts]
    caption = Caption(
        f"What {body['account']} has spent, by {body['by']}",
        "; ".join(said or ["Nothing is spent"]) + ("." if body["adds_up"] else f". {_DO_NOT_ADD_UP}"),
    )
    height = _ROW * max(1, len(parts)) + _AROUND
    drawn = pictures.new_figure(WIDTH, height)
    axes = drawn.subplots()
    finite = [part["spent"] for part in parts if part["spent"] is not None]
    most = max(finite, default=0) or 1
    rows = range(len(parts))
    lengths = [most if part["spent"] is None else part["spent"] for part in parts]
    colours = ["#d55e00" if part["spent"] is None else "#777777" if "number" in part else "#0072b2" for part in parts]
    axes.barh(rows, lengths, color=colours, height=0.7)
    axes.set_yticks(rows, [_cut(part_label(body["by"], part)) for part in parts])
    axes.set_ylim(len(parts) - 0.4 if parts else 1, -0.6)
    unit = f"{figure} (nats)" if body["adds_up"] else f"{figure} (nats), each by itself"
    axes.set(title=f"Spent, by {body['by']}", xlabel=unit)
    axes.grid(visible=True, axis="x", linewidth=0.3)
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", nbins=5)

    def regions() -> list[Region]:
        box, scale = axes.get_window_extent(), 72 / drawn.dpi
        edges = [drawn.bbox.height - axes.transData.transform((0, row - 0.5))[1] for row in range(len(parts) + 1)]
        return [
            Region(0, top * scale, box.x1 * scale, (bottom - top) * scale, text)
            for (top, bottom), text in zip(pairwise(edges), said, strict=True)
        ]

    return pictures.respond(drawn, kind, caption, regions)


def _said(part: dict[str, Any], figure: str) -> str:
    if part["spent"] is None:
        return f"an infinite {figure}"
    share = "" if part["share"] is None else f", {percent(part['share'])} %"
    return f"{figure} {up(part['spent'])}{share}"


def _cut(label: str) -> str:
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
