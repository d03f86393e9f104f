"""Calibration of thresholds over HTTP."""

from fractions import Fraction
from typing import Any

import pytest

from tests.api.calls import Client, json_of, pointers_of
from tests.privacy.reference import mp, oracle

TARGET = {"mechanism": {"type": "geometric", "epsilon": "1", "cells": 3}, "delta": "1e-6"}


def cost_of(client: Client, mechanism: dict[str, Any], relation: str = "add_remove") -> float:
    answer = json_of(client.post("/v1/compositions", json={"plan": mechanism, "neighbouring": relation}))
    return float(answer["delta"])


@pytest.mark.parametrize(
    "noise",
    [
        {"type": "geometric", "epsilon": "0.5", "sensitivity": 2},
        {"type": "discrete_gaussian", "rho": "0.1"},
        {"type": "discrete_osgt", "sigma_squared": "40", "m": "3"},
        {"type": "geometric", "epsilon": "0.5", "granularity": "0.25"},
    ],
    ids=lambda noise: "-".join(map(str, noise.values())),
)
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_the_threshold_keeps_the_delta_and_a_lower_one_does_not(
    shared_client: Client, noise: dict[str, Any], relation: str
) -> None:
    question = {"mechanism": noise | {"cells": 4}, "neighbouring": relation, "delta": "1e-7"}
    found = json_of(shared_client.post("/v1/calibrations/threshold", json=question))
    mechanism = found["mechanism"]
    at_least, unit = Fraction(mechanism["threshold"]["at_least"]), Fraction(noise.get("granularity", 1))
    lower: Any = at_least - unit
    lower = mechanism | {"threshold": {"at_least": int(lower) if unit == 1 else str(lower)}}
    assert cost_of(shared_client, mechanism, relation) == found["threshold_delta"] <= 1e-7
    assert cost_of(shared_client, lower, relation) > 1e-7
    assert found["cost"]["delta"] == found["threshold_delta"]


def test_keys_are_published_as_often_as_it_says(shared_client: Client) -> None:
    counts = [0, 1, 5, 13, 14, 15, 40]
    found = json_of(shared_client.post("/v1/calibrations/threshold", json=TARGET | {"true_counts": counts}))
    threshold = found["mechanism"]["threshold"]["at_least"]
    masses = oracle.pmf(oracle.geometric(1))
    assert [one["true_count"] for one in found["published"]] == counts
    for one in found["published"]:
        truth = mp.fsum(p for x, p in masses.items() if one["true_count"] + x >= threshold)
        assert one["probability"] <= truth * (1 + mp.mpf(10) ** -40)
        assert one["probability"] == pytest.approx(float(truth), rel=1e-14)


def test_true_counts_are_multiples_of_the_granularity(shared_client: Client) -> None:
    question = TARGET | {"mechanism": {"type": "geometric", "epsilon": "1", "granularity": "0.5", "sensitivity": "1"}}
    found = json_of(shared_client.post("/v1/calibrations/threshold", json=question | {"true_counts": ["7.5", 3]}))
    assert [one["true_count"] for one in found["published"]] == ["7.5", "3.0"]
    refused = shared_client.post("/v1/calibrations/threshold", json=question | {"true_counts": [3, "0.3"]})
    assert pointers_of(refused) == ["/true_counts/1"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"mechanism": {"type": "laplace", "epsilon": "1"}}, "/mechanism"),
        ({"mechanism": {"type": "randomized_response", "epsilon": "1"}}, "/mechanism"),
        ({"mechanism": {"type": "geometric", "epsilon": "1", "threshold": {"at_least": 5}}}, "/mechanism/threshold"),
        ({"mechanism": {"type": "geometric", "epsilon": "1", "cells_added": 2}}, "/mechanism/cells_added"),
        ({"mechanism": {"type": "geometric", "epsilon": "1", "cells": 0}}, "/mechanism/cells"),
        ({"mechanism": {"type": "geometric", "epsilon": "1e-15"}}, "/delta"),
        ({"mechanism": {"type": "geometric", "epsilon": "1", "sensitivity": 2**53}}, "/delta"),
        ({"delta": "0"}, "/delta"),
        ({"delta": "1"}, "/delta"),
        ({"delta": "-1e-9"}, "/delta"),
        ({"delta": "NaN"}, "/delta"),
        ({"delta": None}, "/delta"),
        ({"neighbouring": "both"}, "/neighbouring"),
        ({"true_counts": ["1.5"]}, "/true_counts/0"),
        ({"true_counts": ["many"]}, "/true_counts/0"),
        ({"true_counts": [1] * 101}, "/true_counts"),
        ({"cells": 3}, "/cells"),
    ],
)
def test_meaningless_targets_are_refused(shared_client: Client, fields: dict[str, Any], pointer: str) -> None:
    assert pointers_of(shared_client.post("/v1/calibrations/threshold", json=TARGET | fields)) == [pointer]
