"""The files that tests compare with: what each is and where it comes from is in ``README.md`` beside this."""

import csv
import json
from pathlib import Path
from typing import Any

import yaml

ORACLES = Path(__file__).resolve().parent
DEMO = Path(__file__).resolve().parents[2] / "service" / "demo"
VALUES = ORACLES / "values.json"


def rows(kind: str) -> list[dict[str, Any]]:
    """The reference values of one kind."""
    return [row for row in json.loads(VALUES.read_text(encoding="utf-8"))["values"] if row["kind"] == kind]


def allocation() -> dict[str, Any]:
    """The 2020 redistricting release's division of its privacy loss."""
    found: dict[str, Any] = json.loads((DEMO / "pl94_2020_us_persons.json").read_text(encoding="utf-8"))
    return found


def counties() -> list[dict[str, str]]:
    """The counties with their published counts, in the order of the file."""
    with (DEMO / "us_county_population_2010.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def registry_schema() -> dict[str, Any]:
    """The schema of the Differential Privacy Deployments Registry."""
    found: dict[str, Any] = yaml.safe_load((ORACLES / "deployments-registry-schema.yaml").read_text(encoding="utf-8"))
    return found
