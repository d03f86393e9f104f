"""Worked examples of the documentation: requests, and the answers of a server.

``answers.json`` is the record of one day on a real server: answers by operation, status and media type, and a problem
of each code. ``python -m tests.first_day`` records it; a test repeats the day and compares.
"""

import json
from pathlib import Path
from typing import Any

_RECORDED = json.loads(Path(__file__).with_name("answers.json").read_text("utf-8"))
ANSWERS: dict[str, dict[str, dict[str, Any]]] = _RECORDED["answers"]
PROBLEMS: dict[str, Any] = _RECORDED["problems"]


def _id(operation: str, status: str, name: str) -> str:
    """Return the id of the resource in a recorded answer; empty before there is a record."""
    return str(ANSWERS.get(operation, {}).get(status, {}).get("application/json", {}).get(name, ""))


RELEASE_ID = _id("register_release", "201", "id")
DRAW_ID = _id("draw_mechanism", "201", "draw")
JOB_ID = _id("run_experiment", "202", "id")
KEY_ID = _id("create_key", "201", "id")
SCENARIO_ID = _id("save_scenario", "201", "id")
WEBHOOK_ID = _id("make_webhook", "201", "id")
DELIVERY_ID = _id("test_webhook", "202", "id")


def body(value: dict[str, Any]) -> dict[str, Any]:
    """Return an operation's example body, for ``openapi_extra``."""
    return {"requestBody": {"content": {"application/json": {"example": value}}}}


ACCOUNT = {
    "name": "pl94-2020-us-persons",
    "unit": "person",
    "neighbouring": "replace_one",
    "budget": {"definition": "zcdp", "rho": "2.56"},
    "description": "2020 Census redistricting data, persons in the United States",
}
ACCOUNT_CHANGE = {"budget": {"definition": "zcdp", "rho": "2.63"}}
RELEASE_CHANGE = {
    "metadata": {
        "data_curators": ["U.S. Census Bureau"],
        "intended_use": "Redistricting",
        "data_product_type": "Summary statistics",
        "data_product_region": "United States",
        "data_product_sector": "Government",
        "publication_date": "2021-08-12",
        "unprotected_quantities": "Total population of each state",
        "notes": None,
    }
}
_STATE_TOTAL = {
    "type": "discrete_gaussian",
    "name": "State/total",
    "sigma_squared": "1.21",
    "tags": ["state"],
}
_COUNTY_TOTALS = {
    "type": "geometric",
    "name": "County/total",
    "epsilon": "0.4",
    "partitions": 52,
    "tags": ["county"],
}
RELEASE = {
    "name": "totals",
    "plan": {"type": "sequence", "parts": [_STATE_TOTAL, _COUNTY_TOTALS]},
    "tags": ["pl94"],
    "delta": "1e-10",
}
CAPACITY = {"plan": RELEASE["plan"]}
_OFFSET_TAILS = [
    {"type": "discrete_osgt", "name": "persons", "sigma_squared": "1600", "m": "18"},
    {"type": "osgt", "name": "income", "sigma_squared": "2500", "m": "22.5", "sensitivity": "0.5"},
]
BATCH = {
    "releases": [
        {"name": "first table", "plan": {"type": "geometric", "epsilon": "0.1"}},
        {"name": "second table", "plan": {"type": "discrete_gaussian", "rho": "0.01", "cells": 2}},
        {
            "name": "households of four",
            "plan": {"type": "group", "size": 4, "part": {"type": "sequence", "parts": _OFFSET_TAILS}},
        },
    ]
}
APPROVAL = {"reason": "checked against the plan that the board accepted"}
REJECTION = {"proposal": 2, "reason": "the board keeps the budget of this year"}
VOID = {"reason": "the tables were withdrawn before anything was drawn"}
DRAW = {
    "name": "county totals",
    "mechanism": {"type": "discrete_gaussian", "sigma_squared": "9.375"},
    "counts": [54571, 182265, 27457, 22915],
}
DRAW_OF_RELEASE = {"mechanism": "County/total", "partition": "01", "counts": [54571, 182265, 27457, 22915]}
SELECTION = {"mechanism": "/", "scores": [54571, 182265, 27457, 22915]}
# The same with an Arrow stream of counts: the other fields are the query.
DRAW_QUERY: dict[str, Any] = {
    "name": "county totals",
    "mechanism": '{"type": "discrete_gaussian", "sigma_squared": "9.375"}',
    "tags": ["county"],
    "delta": "1e-10",
    "granularity": "1",
}
DRAW_OF_RELEASE_QUERY: dict[str, Any] = {
    "mechanism": "County/total",
    "partition": "02",
    "repetition": "0",
    "granularity": "1",
}
HISTOGRAM = {
    "name": "gender by group quarters",
    "mechanism": {"type": "geometric", "epsilon": "0.5"},
    "dimensions": [
        {"name": "county", "values": ["001", "003"]},
        {"name": "gender", "values": ["female", "male"]},
        {"name": "group quarters", "values": ["none", "institutional", "other"]},
    ],
    "counts": [512, 31, 8, 498, 27, 11, 1204, 40, 15, 1187, 52, 9],
    "margins": [["county"], ["county", "gender"], []],
    "published": [{"margin": ["county"], "values": ["003"], "total": 2507}],
    "adjust": "rake",
}
_SEX_BY_AGE = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]]
TABULATION = {
    "level": "County, Detailed",
    "groups": [
        {"group": "36061/Latin American Indian alone", "sex_by_age": _SEX_BY_AGE},
        {"group": "36061/Celtic alone", "total_only": True, "total": 17},
    ],
    "thresholds": [1000, 5000, 20000],
}
TABULATION_QUERY: dict[str, Any] = {"level": "County, Detailed", "thresholds": "[1000, 5000, 20000]", "age_bins": "{}"}
COMPOSITION = {
    "plan": {"type": "repeat", "count": 63, "part": {"type": "geometric", "epsilon": "0.4"}},
    "neighbouring": "add_remove",
    "deltas": ["1e-10", "1e-6"],
    "orders": ["2", "5"],
    "gdp": True,
}
CONVERSION = {"rho": "293764/114921", "delta": "1e-10"}
CALIBRATION = {"mechanism": "geometric", "moe": 6, "confidence": "0.95", "method": "exact"}
ACCURACY = {
    "mechanism": {"type": "geometric", "epsilon": "0.4"},
    "summed_cells": 3142,
    "confidences": ["0.9", "0.95"],
}
NOISE = {"mechanism": "osgt", "epsilon": "0.94", "delta": "1e-10", "sub_gaussian": True}
THRESHOLD = {
    "mechanism": {"type": "discrete_gaussian", "rho": "0.1", "cells": 4},
    "delta": "1e-9",
    "true_counts": [1, 10, 20],
}
SAFETAB = {
    "mechanism": "discrete_gaussian",
    "levels": [
        {"name": "Nation, Detailed", "moe": 6},
        {"name": "County, Detailed", "moe": 11},
        {"name": "County, Regional", "moe": 50},
    ],
    "stability": 9,
    "stage_1_fraction": "0.1",
    "delta": "1e-10",
    "method": "exact",
}
ALLOCATION = {
    "budget": {"definition": "zcdp", "rho": "0.5"},
    "mechanism": "discrete_gaussian",
    "queries": [
        {"name": "total", "weight": "1/3"},
        {"name": "sex by age", "weight": "2/3"},
    ],
}
CURVE = {"counts": [54571, 182265, 27457, 22915], "epsilons": ["0.001", "0.01", "0.1", "1"]}
TABLE = {
    "counts": [12, -1, 7, 30, 4, 0],
    "shape": [2, 3],
    "totals": [{"axes": [], "values": [50]}, {"axes": [0], "values": [20, 30]}],
    "integer": True,
}
COMPARISON = {"mechanism": {"type": "osgt", "sigma_squared": "40", "m": "3"}, "delta": "1e-10", "cells": [1, 2, 4, 8]}
_RESIDUALS = [0, -3, 5, 1, -1, 0, 2, -7, 4, -2, 9, 1, -4, 0, 3, -1, 6, -5, 2, -12]
LOSS = {"residuals": _RESIDUALS, "bandwidth": "0.5", "percentile": "95", "multiplier": "1", "bootstrap": 20}
LOWER_BOUND = {"residuals": _RESIDUALS, "shift": 1, "confidence": "0.95"}
EXPERIMENT = {"algorithm": "rdpc", "epsilon": "0.1", "N": 1_000_000, "J": 3, "mu": 1000, "direct_runs": 500, "seed": 1}
SCENARIO = {
    "name": "state and county totals",
    "kind": "margins",
    "mechanism": "discrete_gaussian",
    "account": ACCOUNT["name"],
    "targets": [
        {"table": "total", "geography": "State", "moe": "6"},
        {"table": "total", "geography": "County", "moe": "11"},
    ],
}
KEY = {"name": "tabulation-pipeline", "role": "pipeline"}
ROTATE = {"overlap": "PT24H"}
WEBHOOK = {
    "name": "approvals",
    "url": "https://hooks.agency.example/ledger",
    "events": ["release.proposed", "release.approved", "budget.below"],
    "below": "0.2",
}
WEBHOOK_CHANGE = {"below": "0.1"}
