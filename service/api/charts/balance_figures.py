"""Pictures of budgets and guarantees, drawn from the figures of the JSON answers."""

from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any, Literal

from fastapi import Response

from service.api.charts import charts
from service.api.charts.charts import Line, Panel
from service.api.charts.pictures import Caption
from service.privacy.numerics.numbers import parse_exact
from service.rounding import down, up

OfGuarantee = Literal["profile", "rdp"]
"""The pictures of a guarantee: the privacy profile, epsilon against delta, and the Rényi curve."""
OfBalance = Literal["spending", "profile", "rdp"]

PROFILE_DELTAS = tuple(parse_exact(f"{digit}e-{place}") for place in range(1, 13) for digit in (3, 1))
"""The default deltas of a privacy profile."""

_VIA = {"zcdp": "zCDP", "rdp": "RDP", "pure": "pure", "analytic": "zCDP, analytic", "tight": "tight"}


_UNEVEN = " Epsilons do not add up here: with equal releases the total can grow fast at first and slowly later."


def drawn_at(of: OfGuarantee, deltas: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return the deltas that a picture needs: those of the request, with the default ones beside a single delta."""
    if of == "rdp":
        return ()
    return (
        tuple(deltas) if len(deltas) > 1 else (*PROFILE_DELTAS, *(one for one in deltas if one not in PROFILE_DELTAS))
    )


def spending_picture(history: dict[str, Any], kind: str) -> Response:
    """Draw a budget over time: what was left after each entry, what was spent, and the limit."""
    points = history["points"]
    figure = "rho" if history["budget"]["definition"] == "zcdp" else "epsilon"
    times = [datetime.fromisoformat(point["at"]) for point in points]

    limit, done = _limit(history), _done(history)

    def line(label: str, name: str, style: str) -> Line:
        values = [float("nan") if point[name] is None else point[name] for point in points]
        return Line(label, times, values, style, steps=True)

    lines = [
        line("left", "remaining", "o-"),
        line(done, "spent", "-"),
        *([line(f"{done} and held", "counted", "--")] if _holds(points) else []),
        line(limit, "cap", ":"),
    ]
    last = points[-1]
    spent = "an infinite loss" if last["counted"] is None else up(last["counted"])
    uneven = history["budget"]["definition"] == "approximate"
    caption = Caption(
        f"Cap on {history['tag']} in {history['account']} over time"
        if "tag" in history
        else f"Budget of {history['account']} over time",
        f"After entry {last['seq']}, at {last['at']}: {spent} of {last['cap']} {figure} is {done} or held,"
        f" {down(last['remaining'])} is left.{_UNEVEN if uneven else ''}",
    )
    said = [_said(point, limit, done) for point in points]
    return charts.picture([Panel(caption.title, "time (UTC)", f"{figure} (nats)", lines, said=said)], kind, caption)


def _limit(history: dict[str, Any]) -> str:
    """Return what limits the loss: an account has a budget, a tag has a cap."""
    return "cap" if "tag" in history else "budget"


def _done(history: dict[str, Any]) -> str:
    """Return what the loss is that is not held: that of an account with allotments contains them."""
    return "spent or allotted" if history.get("has_allotted") else "spent"


def _holds(points: Sequence[dict[str, Any]]) -> bool:
    """Return whether anything was ever held; otherwise a line of it would lie on that of what was spent."""
    return any(point["counted"] != point["spent"] for point in points)


def _said(point: dict[str, Any], limit: str, done: str) -> str:
    """Return what the picture says of one entry, a line for each figure."""
    name = f" {point['name']}" if point.get("name") else ""
    figures = {
        "left": down(point["remaining"]),
        done: up(point["spent"]),
        **({f"{done} and held": up(point["counted"])} if point["counted"] != point["spent"] else {}),
        limit: down(point["cap"]),
    }
    about = f"entry {point['seq']}, {point['kind'].replace('_', ' ')}{name}, {point['at'][:19].replace('T', ' ')} UTC"
    return "\n".join([about, *(f"{label}: {value}" for label, value in figures.items())])


def guarantee_picture(guarantee: dict[str, Any], of: OfGuarantee, what: str, kind: str) -> Response:
    """Draw a guarantee: its profile, with a line for each analysis, or its Rényi curve.

    Args:
        guarantee: the fields of GUARANTEE.
        of: the picture to draw.
        what: the subject, for the title.
        kind: the media type.
    """
    if of == "rdp":
        panel, description = _rdp(guarantee, what)
    else:
        panel, description = _profile(guarantee, what)
    return charts.picture([panel], kind, Caption(panel.title, description))


def _profile(guarantee: dict[str, Any], what: str) -> tuple[Panel, str]:
    lines = []
    for via, label in _VIA.items():
        points = sorted((one["delta"], one["epsilon"]) for one in guarantee["approximate"] if one["via"] == via)
        if points:
            lines.append(Line(label, [epsilon for _, epsilon in points], [delta for delta, _ in points], "-"))
    best = [(one["delta"], one["fixed"]["epsilon"]) for one in guarantee["best"] if one["fixed"] is not None]
    summary = "; ".join(f"epsilon {up(epsilon)} at delta {delta}" for delta, epsilon in _few(sorted(best)))
    panel = Panel(f"Privacy profile of {what}", "epsilon", "delta", lines, ("linear", "log"))
    return panel, f"Upper bounds by each analysis. The least epsilons: {summary or 'none is finite'}."


def _rdp(guarantee: dict[str, Any], what: str) -> tuple[Panel, str]:
    points = [(one["alpha"], one["epsilon"]) for one in guarantee["rdp"] if one["epsilon"] is not None]
    line = Line("Rényi divergence", [alpha for alpha, _ in points], [epsilon for _, epsilon in points], "o-")
    scales = ("log", "log") if all(epsilon > 0 for _, epsilon in points) else ("log", "linear")
    summary = "; ".join(f"{up(epsilon)} at order {alpha:g}" for alpha, epsilon in _few(points))
    panel = Panel(f"Rényi curve of {what}", "order", "epsilon (nats)", [line], scales)
    return panel, f"Upper bounds. {summary or 'None is finite'}."


def _few(pairs: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return pairs if len(pairs) < 4 else (pairs[0], pairs[len(pairs) // 2], pairs[-1])
