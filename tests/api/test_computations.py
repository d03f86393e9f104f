"""Stateless computations over HTTP: compositions, conversions and calibrations, against published figures."""

from fractions import Fraction
from statistics import NormalDist
from typing import Any

import pytest

from tests.api.calls import Client, concentrated, json_of, pointers_of, pure
from tests.oracles.files import rows

_MECHANISMS = {
    "geometric": ("scale", "sensitivity"),
    "discrete_gaussian": ("sigma_squared", "sensitivity"),
    "gaussian": ("sigma_squared", "sensitivity"),
    "laplace": ("scale", "sensitivity"),
    "randomized_response": ("epsilon", "values"),
}


def _close(found: float, exact: str) -> bool:
    """Return True within a relative 1e-9 and never below, by the number's text, as a decimal reader sees it."""
    true = Fraction(exact)
    # The reference is itself rounded, to 17 digits.
    return true * (1 - Fraction(1, 10**16)) <= Fraction(repr(found)) <= true * (1 + Fraction(1, 10**9))


def _compose(client: Client, plan: Any, **fields: Any) -> Any:
    return json_of(client.post("/v1/compositions", json={"plan": plan} | fields))


@pytest.mark.parametrize(
    "value",
    [value for value in rows("cost") if value["mechanism"] in _MECHANISMS],
    ids=lambda value: "-".join(str(part) for part in value.values() if isinstance(part, str | int)),
)
def test_costs_are_those_of_the_reference(shared_client: Client, value: Any) -> None:
    fields = {name: value[name] for name in _MECHANISMS[value["mechanism"]] if name in value}
    neighbouring = "replace_one" if value["mechanism"] == "randomized_response" else "add_remove"
    plan = {"type": value["mechanism"]} | fields
    orders = list(value.get("renyi", {"2": ""}))
    found = _compose(shared_client, plan, neighbouring=neighbouring, orders=orders)
    if value.get("epsilon") in (None, "inf"):
        assert found["pure"] is None
    else:
        assert _close(found["pure"]["epsilon"], value["epsilon"])
    if "rho" in value and value.get("values", 2) == 2:
        assert _close(found["zcdp"]["rho"], value["rho"])
    shown = {point["alpha"]: point["epsilon"] for point in found["rdp"]}
    assert list(shown) == [float(order) for order in orders]
    for order, tau in value.get("renyi", {}).items():
        assert _close(shown[float(order)], tau)


@pytest.mark.parametrize("value", rows("conversion"), ids=lambda v: v["rho"])
def test_conversions_are_those_of_the_reference(shared_client: Client, value: Any) -> None:
    question = {"rho": value["rho"], "delta": value["delta"]}
    found = json_of(shared_client.post("/v1/conversions", json=question))
    epsilons = {statement["via"]: statement["epsilon"] for statement in found["approximate"]}
    assert _close(epsilons["zcdp"], value["epsilon"])
    assert _close(epsilons["analytic"], value["epsilon_analytic"])
    of_noise = _compose(shared_client, concentrated(value["rho"]), deltas=[value["delta"]])
    (tight,) = [statement for statement in of_noise["approximate"] if statement["via"] == "tight"]
    assert _close(tight["epsilon"], value["epsilon_gaussian"])
    assert tight["adaptive"] is False
    # The inverse: at that epsilon the same delta results, and the largest rho that implies both is this one.
    back = json_of(shared_client.post("/v1/conversions", json={"rho": value["rho"], "epsilon": epsilons["zcdp"]}))
    assert back["delta"] == pytest.approx(float(value["delta"]), rel=1e-6)
    assert Fraction(repr(back["delta"])) <= Fraction(value["delta"])
    implied = {"epsilon": epsilons["zcdp"], "delta": value["delta"], "to": "zcdp"}
    largest = json_of(shared_client.post("/v1/conversions", json=implied))
    assert largest["rho"] == pytest.approx(float(Fraction(value["rho"])), rel=1e-6)


def test_a_conversion_to_zcdp_is_rounded_down(shared_client: Client) -> None:
    rho = json_of(shared_client.post("/v1/conversions", json={"epsilon": 17, "delta": "1e-10", "to": "zcdp"}))["rho"]
    back = json_of(shared_client.post("/v1/conversions", json={"rho": rho, "delta": "1e-10"}))
    (by_zcdp,) = [statement for statement in back["approximate"] if statement["via"] == "zcdp"]
    assert by_zcdp["epsilon"] == pytest.approx(17, rel=1e-12)
    assert Fraction(repr(by_zcdp["epsilon"])) <= 17 * (1 + Fraction(1, 10**14))


def test_conversions_say_what_every_analysis_gives(shared_client: Client) -> None:
    plan = {"type": "discrete_osgt", "sigma_squared": "40", "m": "3"}
    found = json_of(shared_client.post("/v1/conversions", json={"plan": plan, "epsilon": "0.5"}))
    # pure is absent, since no part is pure
    assert [one["via"] for one in found["analyses"]] == ["tight", "rdp", "zcdp", "analytic"]
    deltas = [one["delta"] for one in found["analyses"]]
    assert deltas == sorted(deltas)
    assert {name: found[name] for name in ("delta", "via", "method")} == found["analyses"][0]
    back = json_of(shared_client.post("/v1/conversions", json={"plan": plan, "delta": str(found["delta"])}))
    (tight,) = [statement for statement in back["approximate"] if statement["via"] == "tight"]
    assert tight["epsilon"] == pytest.approx(0.5, rel=1e-6)
    implied = json_of(shared_client.post("/v1/conversions", json={"epsilon": "1", "delta": "1e-10", "to": "zcdp"}))
    rhos = {one["via"]: one["rho"] for one in implied["analyses"]}
    assert rhos["analytic"] < rhos["zcdp"] == implied["rho"] < rhos["tight"]  # tight is for Gaussian noise only
    of_noise = _compose(shared_client, concentrated(rhos["tight"]), deltas=["1e-10"])
    (tight,) = [statement for statement in of_noise["approximate"] if statement["via"] == "tight"]
    assert tight["epsilon"] == pytest.approx(1, rel=1e-9)


def test_deltas_and_orders_are_echoed_as_asked(shared_client: Client) -> None:
    found = _compose(
        shared_client, pure("0.1"), deltas=["1e-10", "1e-6", 0.5], orders=["2", 1.5, "1000000000000", "1e400"]
    )
    assert [best["delta"] for best in found["best"]] == [1e-10, 1e-6, 0.5]
    assert {statement["delta"] for statement in found["approximate"]} == {1e-10, 1e-6, 0.5}
    assert [point["alpha"] for point in found["rdp"]][:3] == [2.0, 1.5, 1e12]
    assert found["rdp"][3]["alpha"] < float("inf")  # a bound at an order also holds at lower ones
    for best in found["best"]:
        statements = [statement for statement in found["approximate"] if statement["delta"] == best["delta"]]
        assert best["fixed"]["epsilon"] == min(statement["epsilon"] for statement in statements)
        assert best["adaptive"]["adaptive"] is True


def test_figures_are_never_below_the_exact_ones_as_text(shared_client: Client) -> None:
    """0.1 + 0.2 is exactly 0.3; the shown double and its text must not be below."""
    for count in (1, 3, 7, 10, 49, 10**6 + 1):
        found = _compose(shared_client, {"type": "repeat", "count": count, "part": pure("0.1")})
        assert Fraction(found["pure"]["epsilon_exact"]) == Fraction(count, 10)
        assert Fraction(repr(found["pure"]["epsilon"])) >= Fraction(count, 10)
        assert Fraction(found["pure"]["epsilon"]) >= Fraction(count, 10)


@pytest.mark.parametrize(
    ("question", "pointers"),
    [
        ({"rho": 1}, [""]),
        ({"delta": "1e-6"}, [""]),
        ({"rho": 1, "delta": "1e-6", "epsilon": 1}, [""]),
        ({"rho": 1, "plan": pure(1), "delta": "1e-6"}, [""]),
        ({"epsilon": 1, "delta": "1e-6", "to": "zcdp", "rho": 1}, [""]),
        ({"epsilon": 1, "to": "zcdp"}, [""]),
        ({"epsilon": 1, "delta": "1e-6", "to": "pure"}, ["/to"]),
        ({"epsilon": 0, "delta": "1e-6", "to": "zcdp"}, ["/epsilon"]),
        ({"rho": 1, "epsilon": -1}, ["/epsilon"]),
        ({"rho": -1, "delta": "1e-6"}, ["/rho"]),
        ({"rho": 1, "delta": 0}, ["/delta"]),
        ({"rho": 1, "delta": 1}, ["/delta"]),
        ({"rdp": [], "delta": "1e-6"}, ["/rdp"]),
        ({"rdp": [{"alpha": 1, "epsilon": 1}], "delta": "1e-6"}, ["/rdp/0/alpha"]),
        ({"rdp": [{"alpha": 2, "epsilon": 1}, {"alpha": 2, "epsilon": 1}], "delta": "1e-6"}, ["/rdp"]),
        ({"plan": pure(0), "delta": "1e-6"}, ["/plan/epsilon"]),
    ],
)
def test_questions_without_an_answer(shared_client: Client, question: Any, pointers: list[str]) -> None:
    assert pointers_of(shared_client.post("/v1/conversions", json=question)) == pointers


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"deltas": []}, "/deltas"),
        ({"deltas": ["1e-6", 0]}, "/deltas/1"),
        ({"orders": []}, "/orders"),
        ({"orders": [2, 1]}, "/orders/1"),
        ({"neighbouring": "some"}, "/neighbouring"),
        ({"delta": "1e-6"}, "/delta"),
        ({"orders": [2] * 1001}, "/orders"),
    ],
)
def test_compositions_without_a_meaning(shared_client: Client, fields: Any, pointer: str) -> None:
    assert pointers_of(shared_client.post("/v1/compositions", json={"plan": pure(1)} | fields)) == [pointer]


# Haney et al. 2021's Table 4: the totals of the levels at their margins of error; stability s = 9, gamma = 0.1.
_TABLE_4 = {
    ("geometric", 6): "4.2796",
    ("geometric", 11): "2.4964",
    ("geometric", 50): "0.5874",
    ("discrete_gaussian", 6): "0.5333",
    ("discrete_gaussian", 11): "0.1587",
    ("discrete_gaussian", 50): "0.00768",
}


def _calibrate(client: Client, mechanism: str, moe: Any, **fields: Any) -> Any:
    return json_of(client.post("/v1/calibrations/moe", json={"mechanism": mechanism, "moe": moe} | fields))


@pytest.mark.parametrize(("mechanism", "moe"), _TABLE_4)
def test_safetab_gives_the_papers_table(shared_client: Client, mechanism: str, moe: int) -> None:
    found = _calibrate(shared_client, mechanism, moe, method="safetab")
    cost = found["cost"]["pure"]["epsilon"] if mechanism == "geometric" else found["cost"]["zcdp"]["rho"]
    printed = _TABLE_4[mechanism, moe]
    digits = len(printed.partition(".")[2])
    assert f"{10 * cost:.{digits}f}" == printed  # s/(1 - gamma) = 10
    assert (found["method"], found["confidence"], found["moe"]) == ("safetab", 0.95, moe)


def test_safetab_says_what_it_truly_covers(shared_client: Client) -> None:
    assert _calibrate(shared_client, "geometric", 6, method="safetab")["coverage"] == pytest.approx(0.9395, abs=5e-5)
    assert _calibrate(shared_client, "discrete_gaussian", 6, method="safetab")["coverage"] == pytest.approx(
        0.9670, abs=5e-5
    )


@pytest.mark.parametrize(("mechanism", "cost"), [("geometric", 0.45690), ("discrete_gaussian", 0.04512)])
def test_the_exact_method_meets_its_target_at_the_least_cost(
    shared_client: Client, mechanism: str, cost: float
) -> None:
    found = _calibrate(shared_client, mechanism, 6)
    assert 0.95 <= found["coverage"] < 0.9500001
    notion = found["cost"]["pure"] if mechanism == "geometric" else found["cost"]["zcdp"]
    assert next(iter(notion.values())) == pytest.approx(cost, abs=5e-6)
    assert (found["method"], found["confidence"]) == ("exact", 0.95)


def test_a_calibrated_mechanism_is_one_that_can_be_registered(shared_client: Client) -> None:
    fields = {"confidence": "0.9", "sensitivity": 3, "cells": 2}
    found = _calibrate(shared_client, "geometric", "6.9", **fields)
    assert found["moe"] == 6.9
    assert found["mechanism"] == _calibrate(shared_client, "geometric", 6, **fields)["mechanism"]
    assert _compose(shared_client, found["mechanism"]) == found["cost"]
    assert found["mechanism"]["cells"] == 2


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"mechanism": "declared"}, "/mechanism"),
        ({"mechanism": "laplace", "moe": 0}, "/moe"),
        ({"mechanism": "osgt", "moe": "0.9e-9"}, "/moe"),
        ({"mechanism": "gaussian", "moe": 2**53 + 1}, "/moe"),
        ({"mechanism": "laplace", "confidence": "1/" + "9" * 300}, "/confidence"),
        ({"mechanism": "laplace", "method": "safetab"}, "/method"),
        ({"mechanism": "discrete_osgt", "method": "safetab"}, "/method"),
        ({"m": 3}, "/m"),
        ({"mechanism": "gaussian", "m": 0}, "/m"),
        ({"mechanism": "discrete_osgt", "m": -1}, "/m"),
        ({"mechanism": "discrete_osgt", "m": "1e-10"}, "/m"),
        ({"mechanism": "osgt", "m": 2**53 + 1}, "/m"),
        ({"mechanism": "osgt", "m": "much"}, "/m"),
        ({"moe": -1}, "/moe"),
        ({"moe": 2**53 + 1}, "/moe"),
        ({"moe": None}, "/moe"),
        ({"confidence": 1}, "/confidence"),
        ({"confidence": 0}, "/confidence"),
        ({"confidence": "0." + "9" * 31}, "/confidence"),
        ({"mechanism": "discrete_gaussian", "confidence": "1/" + "9" * 300}, "/confidence"),
        ({"moe": 2**53, "confidence": "1/" + "9" * 300}, "/confidence"),
        ({"method": "safetab", "confidence": "0.9"}, "/confidence"),
        ({"method": "normal"}, "/method"),
        ({"mechanism": "discrete_gaussian", "method": "safetab", "moe": "0.5"}, "/moe"),
        ({"sensitivity": 0}, "/sensitivity"),
        ({"cells": "2"}, "/cells"),
    ],
)
def test_targets_without_a_meaning(shared_client: Client, fields: Any, pointer: str) -> None:
    body = {"mechanism": "geometric", "moe": 6} | fields
    assert pointers_of(shared_client.post("/v1/calibrations/moe", json=body)) == [pointer]


@pytest.mark.parametrize(
    ("mechanism", "fields"),
    [("discrete_osgt", {}), ("discrete_osgt", {"m": "2.5"}), ("osgt", {}), ("osgt", {"m": 40}), ("osgt", {"m": 0}),
     ("gaussian", {}), ("laplace", {"cells": 3, "sensitivity": 2})],
)  # fmt: skip
def test_all_additive_noise_is_calibrated_to_a_margin_that_its_accuracy_confirms(
    shared_client: Client, mechanism: str, fields: Any
) -> None:
    target = {"confidence": "0.9", **fields}
    found = _calibrate(shared_client, mechanism, "6.75", **target)
    assert 0.9 <= found["coverage"] < 0.9000001
    assert (found["moe"], found["mechanism"]["type"]) == (6.75, mechanism)
    assert _compose(shared_client, found["mechanism"]) == found["cost"]
    asked = {"mechanism": found["mechanism"] | {"cells": 1}, "confidences": ["0.9"]}
    (margin,) = json_of(shared_client.post("/v1/accuracy", json=asked))["margins"]
    whole = mechanism == "discrete_osgt"
    assert margin["moe"] == 6 if whole else margin["moe"] == pytest.approx(6.75, rel=1e-10)
    if "m" in fields:
        assert found["mechanism"]["m"] == str(fields["m"])
    elif "osgt" in mechanism:
        ratio = float(found["mechanism"]["m"]) ** 2 / float(found["mechanism"]["sigma_squared"])
        assert ratio == pytest.approx(0.67448**2, rel=1e-9)


def test_a_composition_states_its_trade_off_where_it_is_asked_for(shared_client: Client) -> None:
    plan = {"type": "gaussian", "sigma_squared": 1}
    found = _compose(shared_client, plan, false_positives=["0.05", "1/3"])["tradeoff"]
    assert [point["false_positives"] for point in found] == [0.05, 1 / 3]
    normal = NormalDist()
    truth = [normal.cdf(normal.inv_cdf(1 - share) - 1) for share in (0.05, 1 / 3)]
    assert [point["false_negatives"] for point in found] == pytest.approx(truth, abs=1e-8)
    assert "tradeoff" not in _compose(shared_client, plan)
    assert "tradeoff" not in _compose(shared_client, plan, false_positives=[])


@pytest.mark.parametrize(
    ("shares", "pointers"),
    [
        (["0.1", "0", "1", "-1/2", "2"], [f"/false_positives/{number}" for number in (1, 2, 3, 4)]),
        (["NaN", "inf", "x", True, None], [f"/false_positives/{number}" for number in range(5)]),
        (["0.1"] * 11, ["/false_positives"]),
        ("0.1", ["/false_positives"]),
    ],
)
def test_a_trade_off_is_asked_for_at_probabilities(shared_client: Client, shares: Any, pointers: list[str]) -> None:
    body = {"plan": pure(1), "false_positives": shares}
    assert pointers_of(shared_client.post("/v1/compositions", json=body)) == pointers
    picture = shared_client.post("/v1/compositions", json=body, headers={"Accept": "image/svg+xml"})
    assert pointers_of(picture) == pointers
