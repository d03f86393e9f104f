"""The demo's release: facts of the 2020 redistricting release, and published county counts.

Where both files come from is in ``SOURCES.md`` beside them.
"""

import csv
import json
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent

ACCOUNT = "pl94-2020-us-persons"
_BUDGET_RHO = "2.56"  # the release's 2.5562... and little more

# Queries whose names are not their attributes. `detailed` is the full cross of all four; `hhinstlevels` is a
# coarser version of hhgq, households and kinds of group quarters, and reveals something about the same thing.
_ATTRIBUTES = {
    "total": (),
    "hhinstlevels": ("hhgq",),
    "detailed": ("hhgq", "votingage", "hispanic", "cenrace"),
}


class County(NamedTuple):
    """A county and its published count."""

    name: str
    state: str
    population: int


def read_allocation() -> dict[str, Any]:
    """Return the shares of the release's loss: levels of geography with their proportions, queries with theirs."""
    allocation: dict[str, Any] = json.loads((_HERE / "pl94_2020_us_persons.json").read_text(encoding="utf-8"))
    return allocation


def read_counties() -> list[County]:
    """Published counts of the 2010 Census, in the order of their FIPS codes."""
    with (_HERE / "us_county_population_2010.csv").open(encoding="utf-8", newline="") as file:
        return [
            County(f"{row['county']}, {row['state']}", row["state"], int(row["population"]))
            for row in csv.DictReader(file)
        ]


def budget_of() -> dict[str, str]:
    """The budget of the demo's account."""
    return {"definition": "zcdp", "rho": _BUDGET_RHO}


def plan_of(allocation: dict[str, Any]) -> dict[str, Any]:
    """The release as a PLAN: all queries in sequence, named ``level/query``.

    A query with proportion q at a level with proportion g has the variance global_scale²/(g q) per cell (the
    file's note). It stays an exact fraction, since rho is then exactly what the Census Bureau allotted.
    The tags are the level and the attributes: a balance can then be asked for one of them.
    """
    scale = Fraction(allocation["global_scale"])
    return {
        "type": "sequence",
        "parts": [
            {
                "type": allocation["mechanism"],
                "name": f"{level['geolevel']}/{query['name']}",
                "sigma_squared": str(scale**2 / (Fraction(level["proportion"]) * Fraction(query["proportion"]))),
                "tags": [level["geolevel"], *_ATTRIBUTES.get(query["name"], query["name"].split(" * "))],
            }
            for level in allocation["levels"]
            for query in level["queries"]
        ],
    }
