"""Accuracy over HTTP: margins of one cell and of sums, and refusals."""

from fractions import Fraction
from typing import Any

import pytest

from tests.api.calls import Client, json_of, pointers_of, problem_of

GEOMETRIC = {"type": "geometric", "epsilon": "0.4"}
OSGT = {"type": "osgt", "sigma_squared": "40", "m": "3"}


def _accuracy(client: Client, mechanism: Any, **fields: Any) -> Any:
    return json_of(client.post("/v1/accuracy", json={"mechanism": mechanism} | fields))


def test_one_cell_has_the_margin_that_calibration_aims_at(shared_client: Client) -> None:
    target = {"mechanism": "discrete_gaussian", "moe": 6, "confidence": "0.95"}
    calibrated = json_of(shared_client.post("/v1/calibrations/moe", json=target))
    found = _accuracy(shared_client, calibrated["mechanism"])
    assert found["margins"] == [{"confidence": 0.95, "moe": 6, "coverage": calibrated["coverage"]}]


def test_the_total_of_all_counties(shared_client: Client) -> None:
    found = _accuracy(shared_client, GEOMETRIC, summed_cells=3142, confidences=["0.9", 0.95])
    # Var X = 2q/(1-q)², q = exp(-0.4); a sum of so many is nearly normal.
    assert found["variance"] == pytest.approx(3142 * 12.334658, rel=1e-6)
    assert [margin["moe"] for margin in found["margins"]] == [324, 386]
    for margin in found["margins"]:
        assert Fraction(repr(margin["coverage"])) >= Fraction(repr(margin["confidence"]))
    assert found["method"] == "characteristic function"


def test_continuous_noise_has_margins_that_are_not_whole(shared_client: Client) -> None:
    found = _accuracy(shared_client, OSGT)
    assert found["variance"] == pytest.approx(27.704678326334605, rel=1e-14)
    assert found["margins"][0]["moe"] == pytest.approx(10.5812416, rel=1e-7)
    assert found["method"] == "closed form"
    gaussian = _accuracy(shared_client, OSGT | {"m": "0"}, summed_cells=4)
    assert gaussian["variance"] == 160


@pytest.mark.parametrize("mechanism", [OSGT, {"type": "gaussian", "rho": "1"}, {"type": "laplace", "scale": "2"}])
def test_a_vanishing_confidence_is_answered(shared_client: Client, mechanism: Any) -> None:
    (margin,) = _accuracy(shared_client, mechanism, confidences=["1e-300"])["margins"]
    assert 0 < margin["moe"] < 1e-298
    assert margin["coverage"] == pytest.approx(1e-300, rel=1e-12)
    assert margin["coverage"] <= 1e-300


def test_noise_beyond_the_doubles_has_no_figures(shared_client: Client) -> None:
    found = _accuracy(shared_client, {"type": "geometric", "scale": "1e300"})
    assert found["variance"] is None
    assert found["mean_absolute"] == pytest.approx(1e300)


@pytest.mark.parametrize(
    ("question", "pointers"),
    [
        ({}, ["/mechanism"]),
        ({"mechanism": GEOMETRIC, "summed_cells": 0}, ["/summed_cells"]),
        ({"mechanism": GEOMETRIC, "summed_cells": -1}, ["/summed_cells"]),
        ({"mechanism": GEOMETRIC, "summed_cells": 1.0}, ["/summed_cells"]),
        ({"mechanism": GEOMETRIC, "summed_cells": 2**53 + 1}, ["/summed_cells"]),
        ({"mechanism": GEOMETRIC, "confidences": []}, ["/confidences"]),
        ({"mechanism": GEOMETRIC, "confidences": ["0.95"] * 21}, ["/confidences"]),
        ({"mechanism": GEOMETRIC, "confidences": ["0.95", "1"]}, ["/confidences/1"]),
        ({"mechanism": GEOMETRIC, "confidences": ["nan"]}, ["/confidences/0"]),
        ({"mechanism": GEOMETRIC, "confidences": [0]}, ["/confidences/0"]),
        ({"mechanism": GEOMETRIC | {"scale": 1}}, ["/mechanism"]),
        ({"mechanism": {"type": "geometric", "scale": "-1"}}, ["/mechanism/scale"]),
        ({"mechanism": {"type": "geometric", "scale": "1e100"}, "summed_cells": 2}, ["/mechanism"]),
        ({"mechanism": {"type": "laplace", "scale": "1e200"}}, ["/mechanism"]),
        ({"mechanism": OSGT, "summed_cells": 2}, ["/summed_cells"]),
        ({"mechanism": {"type": "laplace", "scale": "1"}, "summed_cells": 1001}, ["/summed_cells"]),
        ({"mechanism": {"type": "randomized_response", "epsilon": "1"}}, ["/mechanism"]),
        ({"mechanism": {"type": "declared", "rho": "1", "reference": "elsewhere"}}, ["/mechanism"]),
        ({"mechanism": GEOMETRIC, "cells": 3}, ["/cells"]),
    ],
)
def test_meaningless_questions_are_refused(shared_client: Client, question: Any, pointers: list[str]) -> None:
    assert pointers_of(shared_client.post("/v1/accuracy", json=question)) == pointers


def test_a_mechanism_without_noise_is_refused_with_those_that_are_accepted(shared_client: Client) -> None:
    answer = shared_client.post("/v1/accuracy", json={"mechanism": {"type": "randomized_response", "epsilon": "1"}})
    (fault,) = problem_of(answer, "validation")["errors"]
    accepted = "geometric, discrete_gaussian, discrete_osgt, noise_table, laplace, gaussian or osgt"
    assert fault == {"pointer": "/mechanism", "detail": f"expected a mechanism that adds noise: {accepted}"}
