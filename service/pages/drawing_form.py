"""The form by which noisy counts are drawn from a page, and the requests that it states. It has no side effects."""

from collections.abc import Mapping
from typing import Any

from service.pages.planner.form import statement_of
from service.pages.shell.fault_texts import plain
from service.pages.shell.period_texts import stated_periods
from service.pages.shell.typed_lists import names_of

NOISES = {
    "geometric moe": "geometric, for a margin of error",
    "discrete_gaussian moe": "discrete Gaussian, for a margin of error",
    "geometric epsilon": "geometric, by its ε",
    "geometric scale": "geometric, by its scale",
    "discrete_gaussian rho": "discrete Gaussian, by its ρ",
    "discrete_gaussian sigma_squared": "discrete Gaussian, by its σ²",
    "discrete_osgt sigma_squared": "discrete OSGT, by its σ² and m",
}
"""The kinds of noise with their labels: the mechanism, and the figure that is typed."""
FIELDS = {
    "noise": "",
    "figure": "",
    "m": "",
    "confidence": "0.95",
    "sensitivity": "1",
    "cells": "1",
    "granularity": "",
    "name": "",
    "purpose": "",
    "tags": "",
    "reads": "",
    "periods": "",
}
"""The fields of the form with their texts at first; the noise depends on the account."""
NUMBERS = ("figure", "m", "sensitivity", "cells", "granularity")
"""Those of the fields that are numbers and no shares: they take no percent sign."""
_LONGEST_WHOLE = 16


def usual_noise(definition: str) -> str:
    """Return the noise that is chosen at first: usually the cheapest one in budgets of this definition."""
    return "geometric moe" if definition == "pure" else "discrete_gaussian moe"


def calibration_of(typed: Mapping[str, str], neighbouring: str) -> dict[str, Any] | None:
    """Return the request for noise within the typed margin of error; None if a parameter of the noise was typed."""
    kind, _, figure = typed["noise"].partition(" ")
    if figure != "moe":
        return None
    cells = _cells(typed, neighbouring)
    body = {"mechanism": kind, "moe": typed["figure"], "confidence": typed["confidence"], "cells": cells}
    return body | {"sensitivity": _whole(typed["sensitivity"])}


def mechanism_of(typed: Mapping[str, str], neighbouring: str, calibrated: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the mechanism to draw.

    Args:
        typed: the texts of the form.
        neighbouring: the relation of the account. Replacing a record changes twice as many cells as it is counted in.
        calibrated: the mechanism that meets the typed margin; None if a parameter of the noise was typed.
    """
    mechanism: dict[str, Any]
    if calibrated is not None:
        mechanism = dict(calibrated)
    else:
        kind, _, figure = typed["noise"].partition(" ")
        mechanism = {"type": kind, figure: typed["figure"]}
        mechanism |= {"m": typed["m"]} if kind == "discrete_osgt" else {}
        mechanism |= {"cells": _cells(typed, neighbouring), "sensitivity": _whole(typed["sensitivity"])}
        mechanism |= {"granularity": typed["granularity"]} if typed["granularity"] else {}
    named = {"name": typed["name"]} if typed["name"] else {}  # lists of mechanisms then name it as the release
    return mechanism | named | statement_of(typed["reads"])


def release_of(typed: Mapping[str, str], account: Mapping[str, Any], mechanism: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that registers the mechanism as a release."""
    calendar = account["periods"]["calendar"] if "periods" in account else None
    periods = stated_periods(typed["periods"], calendar)
    body = {"name": typed["name"], "plan": mechanism, "tags": names_of(typed["tags"])}
    return body | ({} if periods is None else {"periods": periods})


def faults_of(typed: Mapping[str, str], faults: Mapping[str, str]) -> dict[str, str]:
    """Return the faults of a refused request by the fields of the form; those of no field are left out."""
    _, _, figure = typed["noise"].partition(" ")
    of_field = {name: name for name in FIELDS} | {figure: "figure", "moe": "figure"}
    found: dict[str, str] = {}
    for pointer, detail in faults.items():
        steps = pointer.split("/")[1:]
        name = next((of_field[step] for step in (*reversed(steps), *steps) if step in of_field), None)
        if name == "tags" and steps[:1] == ["plan"]:
            name = "reads"
        if name is not None:
            found[name] = plain(detail)
    return found


def _cells(typed: Mapping[str, str], neighbouring: str) -> int | str:
    cells = _whole(typed["cells"])
    return 2 * cells if isinstance(cells, int) and neighbouring == "replace_one" else cells


def _whole(text: str) -> int | str:
    """Return the integer that a text states; any other text is passed on for ``/v1`` to refuse."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_WHOLE else text
