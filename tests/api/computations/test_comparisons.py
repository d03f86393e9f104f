"""Offset tails beside Gaussian noise over HTTP, against Sadeghi and Korki 2022's figures and reference values."""

from typing import Any

import pytest

from tests.api.calls import Client, json_of, pointers_of
from tests.oracles.files import rows

OSGT = {"type": "osgt", "sigma_squared": "40", "m": "3"}


@pytest.fixture(scope="module")
def found(shared_client: Client) -> Any:
    return json_of(shared_client.post("/v1/calibrations/comparison", json={"mechanism": OSGT}))


def test_the_published_example(found: Any) -> None:
    assert found["variance"] == pytest.approx(27.70468, abs=5e-6)
    assert found["sub_gaussian"] == {"holds": True, "offset_in_sigmas": pytest.approx(3 / 40**0.5)}
    one = found["equal_privacy"][0]
    assert one["epsilon"] == pytest.approx(0.93663, abs=5e-6)
    assert one["gaussian_variance"] > 1.3 * one["variance"]
    gain = [row["gaussian_variance"] / row["variance"] for row in found["equal_privacy"]]
    assert gain == sorted(gain, reverse=True)  # it falls with the number of cells, as the slides say


def test_delta_and_divergences_at_equal_variance(found: Any, shared_client: Client) -> None:
    (reference,) = [v for v in rows("cost") if v.get("m") == "3" and v["mechanism"] == "osgt"]
    taus = {row["alpha"]: row for row in found["rdp"]}
    for order in ("1.5", "2", "5"):
        assert taus[float(order)]["offset_tails"] == pytest.approx(float(reference["renyi"][order]), rel=1e-9)
        assert taus[float(order)]["gaussian"] == pytest.approx(float(order) / 2 / 27.70468, rel=1e-6)
    assert taus[2.0]["offset_tails"] > taus[2.0]["gaussian"]  # offset tails are worse at small orders
    assert taus[64.0]["offset_tails"] < taus[64.0]["gaussian"]
    row = found["delta"][-5]
    for kind, plan in (("offset_tails", OSGT), ("gaussian", {"type": "gaussian", "sigma_squared": "27.7046783263"})):
        question = {"plan": plan, "epsilon": row["epsilon"]}
        analyses = json_of(shared_client.post("/v1/conversions", json=question))["analyses"]
        (tight,) = [one["delta"] for one in analyses if one["via"] == "tight"]
        assert row[kind] == pytest.approx(tight, rel=1e-5)


def test_sub_gaussian_tails_are_below_their_bound(found: Any) -> None:
    for row in found["tails"]:
        assert row["offset_tails"] <= row["bound"]
    assert found["tails"][-1]["offset_tails"] > found["tails"][-1]["gaussian"]


def test_noise_on_the_integers_and_far_offsets(shared_client: Client) -> None:
    mechanism = {"type": "discrete_osgt", "sigma_squared": "40", "m": "6", "sensitivity": 2}
    found = json_of(shared_client.post("/v1/calibrations/comparison", json={"mechanism": mechanism, "cells": [1]}))
    assert found["sub_gaussian"]["holds"] is False
    assert {row["bound"] for row in found["tails"]} == {None}
    assert found["equal_privacy"][0]["gaussian_variance"] > found["variance"]


def test_its_picture(shared_client: Client) -> None:
    answer = shared_client.post(
        "/v1/calibrations/comparison", json={"mechanism": OSGT, "cells": [1]}, headers={"Accept": "image/svg+xml"}
    )
    assert answer.headers["content-type"] == "image/svg+xml"
    for title in ("Equal variance: delta", "Equal (epsilon, delta)", "Equal variance: tails"):
        assert title in answer.text


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"mechanism": {"type": "gaussian", "sigma_squared": "1"}}, "/mechanism/type"),
        ({"mechanism": OSGT | {"m": "-1"}}, "/mechanism/m"),
        ({"mechanism": OSGT | {"m": "100"}}, "/mechanism/m"),
        ({"mechanism": OSGT | {"m": "1e-400"}}, "/mechanism/m"),
        ({"mechanism": OSGT | {"sigma_squared": "1e9"}}, "/mechanism/sigma_squared"),
        ({"mechanism": OSGT | {"cells": 2}}, "/mechanism/cells"),
        ({"delta": "0"}, "/delta"),
        ({"delta": "1e-50"}, "/delta"),
        ({"cells": []}, "/cells"),
        ({"cells": [65]}, "/cells/0"),
        ({"cells": [1] * 7}, "/cells"),
        ({"epsilon": 1}, "/epsilon"),
    ],
)
def test_meaningless_questions_are_refused(shared_client: Client, fields: dict[str, Any], pointer: str) -> None:
    answer = shared_client.post("/v1/calibrations/comparison", json={"mechanism": OSGT} | fields)
    assert pointers_of(answer) == [pointer]
