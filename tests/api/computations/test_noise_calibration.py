"""Calibration to (epsilon, delta) over HTTP."""

from fractions import Fraction
from typing import Any

import pytest

from tests.api.calls import Client, json_of, pointers_of

TARGET = {"mechanism": "gaussian", "epsilon": "1", "delta": "1e-10"}


@pytest.mark.parametrize("mechanism", ["gaussian", "discrete_gaussian", "osgt", "discrete_osgt"])
@pytest.mark.parametrize("cells", [1, 2])
def test_the_noise_keeps_the_guarantee_that_was_asked_for(shared_client: Client, mechanism: str, cells: int) -> None:
    body = TARGET | {"mechanism": mechanism, "cells": cells, "sensitivity": "2"}
    if "osgt" in mechanism:
        body |= {"sub_gaussian": True}
    found = json_of(shared_client.post("/v1/calibrations/noise", json=body))
    question = {"plan": found["mechanism"], "epsilon": "1"}
    delta = json_of(shared_client.post("/v1/conversions", json=question))["delta"]
    assert delta == pytest.approx(1e-10, rel=1e-4)
    assert found["mechanism"]["cells"] == cells
    assert found["mechanism"]["type"] == mechanism or Fraction(found["mechanism"].get("m", 0)) == 0
    accuracy = json_of(shared_client.post("/v1/accuracy", json={"mechanism": found["mechanism"]}))
    assert accuracy["variance"] == found["variance"]
    (best,) = found["cost"]["best"]
    assert best["fixed"]["epsilon"] == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"mechanism": "laplace"}, "/mechanism"),
        ({"epsilon": "0"}, "/epsilon"),
        ({"epsilon": "-1"}, "/epsilon"),
        ({"epsilon": "1e9"}, "/epsilon"),
        ({"epsilon": "NaN"}, "/epsilon"),
        ({"epsilon": None}, "/epsilon"),
        ({"delta": "0"}, "/delta"),
        ({"delta": "1"}, "/delta"),
        ({"delta": "1e-100"}, "/delta"),
        ({"sensitivity": "0"}, "/sensitivity"),
        ({"sensitivity": "1e6"}, "/sensitivity"),
        ({"mechanism": "discrete_gaussian", "sensitivity": "1.5"}, "/sensitivity"),
        ({"cells": 0}, "/cells"),
        ({"cells": 10**7}, "/cells"),
        ({"mechanism": "osgt", "cells": 21}, "/cells"),
        ({"sub_gaussian": True}, "/sub_gaussian"),
        ({"sub_gaussian": "yes", "mechanism": "osgt"}, "/sub_gaussian"),
        ({"rho": 1}, "/rho"),
    ],
)
def test_meaningless_targets_are_refused(shared_client: Client, fields: dict[str, Any], pointer: str) -> None:
    assert pointers_of(shared_client.post("/v1/calibrations/noise", json=TARGET | fields)) == [pointer]
