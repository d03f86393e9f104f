"""Pictures of the empirical answers, in the form of figures SA1 and SA2 of Flaxman and Petti 2020."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import Response
from numpy.typing import NDArray

from service.api.charts.pictures import Caption, new_figure, respond

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_POINTS = 5_000  # of a scatter plot
_MOST_PLACES = 2_000  # of a curve
_BARS = 200  # of a histogram
Scatter = tuple[NDArray[np.float64], NDArray[np.float64]]
"""True counts and residuals."""
_NOTE = "Not protected: computed from true counts."


def loss_picture(answer: dict[str, Any], scatter: Scatter | None, kind: str) -> Response:
    """Draw an estimate."""
    title = f"Empirical privacy loss {answer['epl']:.4g}{_interval(answer['interval'])}"
    sentence = f"The largest log ratio of the residuals' smoothed density at places one apart, at {answer['at']:.6g}."
    return respond(_loss_figure(answer, scatter), kind, Caption(title, f"{sentence} {_NOTE}"))


def bound_picture(samples: dict[str, NDArray[np.float64]], answer: dict[str, Any], kind: str) -> Response:
    """Draw a lower bound."""
    event = answer["event"]
    proof = (
        "No event proves a larger bound."
        if event is None
        else f"Of {event['tested']} tested values {event['likely']} were in the event and {event['unlikely']} in the"
        " event for comparison."
    )
    return respond(_bound_figure(samples, answer), kind, Caption(_bound_title(answer), f"{proof} {_NOTE}"))


def _loss_figure(answer: dict[str, Any], scatter: Scatter | None) -> "Figure":
    """Draw figure SA2, with SA1 above it where counts are given.

    SA2 is the density of the residuals, plain and smoothed, beside EPL(x). SA1 is the noisy counts and the residuals
    against the true counts; ``scatter`` holds true counts and residuals.
    """
    figure = _figure(1 if scatter is None else 2)
    panels: Sequence[Axes] = np.ravel(figure.subplots(1 if scatter is None else 2, 2)).tolist()
    if scatter is not None:
        true, residuals = (part[:: max(1, -(-part.size // _MOST_POINTS))] for part in scatter)
        for axes, values, title in ((panels[0], true + residuals, "noisy count"), (panels[1], residuals, "residual")):
            axes.plot(true, values, ".", markersize=2)
            axes.set(xlabel="true count", ylabel=title)
    density, ratios = panels[-2:]
    curve = answer["curve"][:: -(-len(answer["curve"]) // _MOST_PLACES)]
    x = [point["x"] for point in curve]
    density.step(x, [point["density"] for point in curve], where="mid", label="residuals", linewidth=0.8)
    density.plot(x, [point["smoothed"] for point in curve], label="smoothed")
    density.set(xlabel="residual (noisy - true)", ylabel="density")
    density.legend()
    _ratios(ratios, curve)
    ratios.axvline(answer["at"], linestyle=":", color="grey")
    ratios.set_title(f"EPL {answer['epl']:.4g}{_interval(answer['interval'])}")
    return figure


def _bound_figure(samples: dict[str, NDArray[np.float64]], answer: dict[str, Any]) -> "Figure":
    """Draw histograms of the tested values, with the two events that prove the bound."""
    figure = _figure(1)
    axes = figure.subplots()
    both = np.concatenate(list(samples.values()))
    if both.size:
        margin = 0.5 + 4 * np.spacing(np.abs(both).max())  # the distance stays visible to doubles at any size
        low, high = float(both.min()) - margin, float(both.max()) + margin
        edges = low + np.arange(_BARS + 1) * max(1.0, np.ceil((high - low) / _BARS))
        for name, values in samples.items():
            axes.stairs(np.histogram(values, edges)[0] / max(1, values.size), edges, label=name)
        axes.set_xlim(low, high)
        axes.legend()
    event = answer["event"]
    if event is not None:
        for place, colour in ((event["start"], "black"), (event["compared_with"], "grey")):
            axes.axvline(place, linestyle=":", color=colour)
    axes.set_title(_bound_title(answer))
    axes.set(xlabel="value", ylabel="frequency")
    return figure


def _bound_title(answer: dict[str, Any]) -> str:
    what = "epsilon" if answer["delta_lower_bound"] is None else "delta"
    bound = np.floor(answer[f"{what}_lower_bound"] * 1e6) / 1e6  # rounded down, as the bound itself
    return f"{what} at least {bound:.6f} at confidence {answer['confidence']}"


def _figure(rows: int) -> "Figure":
    figure = new_figure(9, 3.6 * rows)
    figure.supxlabel(_NOTE, fontsize=7)
    return figure


def _ratios(axes: "Axes", curve: list[dict[str, Any]]) -> None:
    known = [point for point in curve if point["epl"] is not None]
    axes.plot([point["x"] for point in known], [point["epl"] for point in known])
    axes.set(xlabel="residual x", ylabel="EPL(x) = log p(x)/p(x + 1)")


def _interval(interval: list[float] | None) -> str:
    return "" if interval is None else f", 95 % bootstrap interval {interval[0]:.4g} to {interval[1]:.4g}"
