"""SafeTab's comparison of mechanisms, as the paper prints it and as it should be: two tables of at most 80 columns."""

from collections.abc import Mapping
from contextlib import ExitStack
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import typer

from service.demo.client import DemoStopped, ask, connect
from service.demo.local import local_service

_LEVELS = (
    ("Nation, Detailed", 6),
    ("State, Detailed", 6),
    ("County, Detailed", 11),
    ("AIANNH, Detailed", 11),
    ("Nation, Regional", 50),
    ("State, Regional", 50),
    ("County, Regional", 50),
)
"""The paper's levels of population groups, with their margins of error in counts."""
_MECHANISMS = (("geometric", "epsilon"), ("discrete_gaussian", "rho"))


def run(url: str | None, key: str | None) -> None:
    """Print the tables; without ``url`` and ``key`` a service is started for it and stopped at the end.

    Raises:
        DemoStopped: the service refuses something, or does not answer.
    """
    if (url is None) != (key is None):
        raise DemoStopped("expected both --url and --key, or neither")
    with ExitStack() as stack:
        address, token = (url, key) if url and key else stack.enter_context(local_service())[:2]
        client = stack.enter_context(connect(address, token, trust_environment=url is not None))
        levels = [{"name": name, "moe": margin} for name, margin in _LEVELS]
        for mechanism, unit in _MECHANISMS:
            answers = [
                ask(client, "POST", "/v1/plans/safetab", {"mechanism": mechanism, "levels": levels, "method": method})
                for method in ("safetab", "exact")
            ]
            typer.echo(report(mechanism, unit, *answers))


def report(mechanism: str, unit: str, printed: Mapping[str, Any], exact: Mapping[str, Any]) -> str:
    """Tables 4 and 2 of the paper for one mechanism; its closed forms beside exact calibration."""
    title = f"SafeTab, {mechanism.replace('_', ' ')} noise, delta = 1e-10"
    lines = ["", title, "=" * len(title), "", f"Total {unit} of each level, and what its margin of error truly covers"]
    lines.append(f"  {'level':<20}{'MOE':>5}{'printed':>10}{'formula':>11}{'covers':>9}{'exact':>11}{'covers':>9}")
    for one, other in zip(printed["levels"], exact["levels"], strict=True):
        as_printed = one["as_printed"]["total"] if one["as_printed"] else "-"
        lines.append(
            f"  {one['name']:<20}{one['moe']:>5}{as_printed:>10}{_up(one['total']):>11}{_percent(one['coverage']):>9}"
            f"{_up(other['total']):>11}{_percent(other['coverage']):>9}"
        )
    lines += ["", "epsilon of the whole, by analysis"]
    lines.append(f"  {'analysis':<34}{'sound':>7}{'closed form':>14}{'exact':>11}")
    found = {one["name"]: one for one in exact["analyses"]}
    for one in printed["analyses"]:
        name, sound = one["name"], "yes" if one["sound"] else "no"
        other = _up(found[name]["epsilon"]) if name in found else ""
        shown = one["epsilon"] if name.endswith("as printed") else _up(one["epsilon"])
        lines.append(f"  {name:<34}{sound:>7}{shown:>14}{other:>11}")
    return "\n".join(line.rstrip() for line in lines)


def _up(loss: float) -> Decimal:
    """Rounded up: a shortened bound stays a bound."""
    return Decimal(repr(loss)).quantize(Decimal("0.0001"), ROUND_CEILING)


def _percent(share: float) -> str:
    """Rounded down, as coverages are."""
    return f"{(100 * Decimal(repr(share))).quantize(Decimal('0.01'), ROUND_FLOOR)} %"
