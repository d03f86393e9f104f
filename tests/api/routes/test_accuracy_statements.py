"""Accuracy statements of releases: compared with the simulated noise and with what other operations answer."""

import csv
import io
import math
from fractions import Fraction
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent  # type: ignore[import-untyped]
from dp_accounting.pld import PLDAccountant  # type: ignore[import-untyped]

from tests.api.calls import Client, json_of, make_key, open_account, pointers_of, problem_of, release

_PLAN = {
    "type": "sequence",
    "parts": [
        {"type": "geometric", "name": "county", "epsilon": "0.5", "tags": ["county", "sex"], "partitions": 3},
        {"type": "discrete_gaussian", "name": "tract", "sigma_squared": "9.375"},
        {"type": "repeat", "count": 4, "part": {"type": "gaussian", "name": "means", "rho": "0.01"}},
        {"type": "declared", "name": "elsewhere", "epsilon": "0.1", "reference": "a proof"},
    ],
}


@pytest.fixture
def stated(client: Client) -> Any:
    """A release, partly drawn, as the API answers."""
    open_account(client, budget={"definition": "approximate", "epsilon": "50", "delta": "1e-6"})
    made = release(client, _PLAN, name="=a release")
    for partition in ("a", "b"):
        body = {"mechanism": "county", "partition": partition, "counts": [1, 2]}
        json_of(client.post(f"/v1/accounts/people/releases/{made['id']}/draws", json=body), 201)
    return made


def _statement(client: Client, made: Any, **query: str) -> Any:
    return json_of(client.get(f"/v1/accounts/people/releases/{made['id']}/accuracy", params=query))


def test_a_statement_has_what_a_publication_needs(client: Client, stated: Any) -> None:
    found = _statement(client, stated)
    facts = {name: found[name] for name in ("account", "release", "name", "state", "unit", "neighbouring", "delta")}
    assert facts == {
        "account": "people",
        "release": stated["id"],
        "name": "=a release",
        "state": "committed",
        "unit": "person",
        "neighbouring": "add_remove",
        "delta": 1e-6,
    }
    assert found["epsilon"] == stated["cost"]["best"][0]["adaptive"]["epsilon"]
    assert found["rho"] == stated["cost"]["zcdp"]["rho"]
    assert [one["mechanism"] for one in found["mechanisms"]] == ["county", "tract", "means", "elsewhere"]
    county, _, means, elsewhere = found["mechanisms"]
    assert (county["tags"], county["partitions_declared"], county["partitions_drawn"]) == (["county", "sex"], 3, 2)
    assert (county["type"], county["parameters"]["scale"]) == ("geometric", "2")
    assert (means["repetitions"], means["type"]) == (4, "gaussian")
    assert [one["drawn"] for one in found["mechanisms"]] == [True, False, False, False]
    assert (elsewhere["moe"], elsewhere["coverage"], elsewhere["standard_deviation"]) == (None, None, None)


def test_figures_are_those_of_the_noise(client: Client, stated: Any) -> None:
    """Of geometric noise both are elementary; the Gaussian quantile is of tables."""
    county, tract, means, _ = _statement(client, stated, confidence="0.9")["mechanisms"]
    ratio = math.exp(-0.5)
    beyond = [2 * ratio ** (moe + 1) / (1 + ratio) for moe in (county["moe"] - 1, county["moe"])]
    assert beyond[1] <= 0.1 < beyond[0]
    assert county["coverage"] == pytest.approx(1 - beyond[1], rel=1e-12)
    assert county["standard_deviation"] == pytest.approx(math.sqrt(2 * ratio) / (1 - ratio), rel=1e-12)
    assert tract["standard_deviation"] == pytest.approx(math.sqrt(9.375), rel=1e-6)
    assert means["standard_deviation"] == pytest.approx(math.sqrt(50), rel=1e-12)
    assert means["moe"] == pytest.approx(1.6448536269514722 * math.sqrt(50), rel=1e-9)


def test_margins_agree_with_the_operation_for_one_mechanism(client: Client, stated: Any) -> None:
    for confidence in ("0.5", "0.95", "0.999999"):
        for one in _statement(client, stated, confidence=confidence)["mechanisms"][:3]:
            asked = {"mechanism": {"type": one["type"], **one["parameters"]}, "confidences": [confidence]}
            (margin,) = json_of(client.post("/v1/accuracy", json=asked))["margins"]
            assert (one["moe"], one["coverage"]) == (margin["moe"], margin["coverage"])


def test_a_table_has_a_line_for_each_mechanism(client: Client, stated: Any) -> None:
    path = f"/v1/accounts/people/releases/{stated['id']}/accuracy"
    answer = client.get(path, headers={"Accept": "text/csv"})
    assert answer.headers["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    found = _statement(client, stated)
    assert [row["mechanism"] for row in rows] == [one["mechanism"] for one in found["mechanisms"]]
    assert {row["name"] for row in rows} == {"'=a release"}
    assert [row["moe"] for row in rows[:2]] == [str(one["moe"]) for one in found["mechanisms"][:2]]
    assert (rows[0]["tags"], rows[0]["confidence"], rows[3]["moe"]) == ("county; sex", "0.95", "")


def test_margins_with_a_granularity_are_texts(client: Client) -> None:
    open_account(client)
    made = release(client, {"type": "geometric", "epsilon": "0.5", "granularity": "0.25"})
    (one,) = _statement(client, made)["mechanisms"]
    assert isinstance(one["moe"], str)
    assert float(one["moe"]) % 0.25 == 0


def test_noise_that_is_too_wide_has_no_figures(client: Client) -> None:
    open_account(client)
    made = release(client, {"type": "gaussian", "sigma_squared": "1e300"})
    (one,) = _statement(client, made)["mechanisms"]
    assert (one["moe"], one["coverage"], one["standard_deviation"]) == (None, None, None)


@pytest.mark.parametrize(
    "confidence", ["0", "1", "-1", "1.5", "NaN", "Infinity", "x", "", "1e-400000", "0.5&confidence=0.6"]
)
def test_confidences_without_a_meaning(client: Client, stated: Any, confidence: str) -> None:
    answer = client.get(f"/v1/accounts/people/releases/{stated['id']}/accuracy?confidence={confidence}")
    assert problem_of(answer, "validation")["errors"][0]["pointer"] == "/query/confidence"


def test_a_limited_key_and_an_unknown_release(client: Client, stated: Any) -> None:
    elsewhere = make_key(client, "auditor", accounts=["elsewhere"])
    path = f"/v1/accounts/people/releases/{stated['id']}/accuracy"
    problem_of(client.get(path, headers=elsewhere), "forbidden")
    problem_of(client.get("/v1/accounts/people/releases/none/accuracy"), "not_found")


def test_the_table_of_a_draw(client: Client, stated: Any) -> None:
    listed = json_of(client.get(f"/v1/accounts/people/releases/{stated['id']}/draws"))["items"]
    path = f"/v1/accounts/people/draws/{listed[0]['draw']}"
    answer = client.get(path, headers={"Accept": "text/csv"})
    rows = list(csv.reader(io.StringIO(answer.text, newline="")))
    assert rows == [["noisy"], *([str(count)] for count in listed[0]["noisy"])]
    assert answer.headers["X-Draw"] == listed[0]["draw"]


def test_a_statement_of_the_first_mechanisms(client: Client, stated: Any) -> None:
    whole = _statement(client, stated)
    number = len(whole["mechanisms"])
    for limit in (1, 2, number, 1_000_000):
        assert _statement(client, stated, limit=str(limit)) == whole | {"mechanisms": whole["mechanisms"][:limit]}
    path = f"/v1/accounts/people/releases/{stated['id']}/accuracy"
    table = client.get(path, params={"limit": "2"}, headers={"Accept": "text/csv"}).text
    assert len(list(csv.DictReader(io.StringIO(table, newline="")))) == 2
    for wrong in ("0", "-1", "1.5", "nan", "", "1000001", "9" * 40):
        assert pointers_of(client.get(path, params={"limit": wrong})) == ["/query/limit"]


_FAMILY = "/v1/accounts/people/accuracy"


def test_the_loss_of_a_family_is_that_of_its_releases_together(client: Client) -> None:
    """The rho of Gaussian noise add up; the epsilon of 1e-6 is the analytic Gaussian mechanism's, by dp-accounting."""
    open_account(client, budget={"definition": "approximate", "epsilon": "50", "delta": "1e-6"})
    for number, variance in enumerate(("8", "12", "24")):
        release(client, {"type": "gaussian", "sigma_squared": variance}, name=f"Wave {number}", tags=["wave"])
    release(client, {"type": "gaussian", "sigma_squared": "1"}, name="other")
    rho = sum(Fraction(1, 2 * variance) for variance in (8, 12, 24))
    event = GaussianDpEvent(float(1 / (2 * rho)) ** 0.5)
    expected = PLDAccountant().compose(event).get_epsilon(1e-6)
    for query in ({"name": "wave"}, {"tag": "wave"}):
        found = json_of(client.get(_FAMILY, params=query))
        assert [one["name"] for one in found["releases"]] == ["Wave 0", "Wave 1", "Wave 2"]
        for one in found["releases"]:
            single = json_of(client.get(f"/v1/accounts/people/releases/{one['release']}/accuracy"))
            assert one == single
        joint = found["joint"]
        assert rho <= Fraction(repr(joint["zcdp"]["rho"])) <= rho * (1 + Fraction(1, 10**15))
        (best,) = joint["best"]
        assert best["fixed"]["epsilon"] == pytest.approx(expected, rel=1e-3)
        assert (best["adaptive"], best["delta"]) == (None, 1e-6)
        table = client.get(_FAMILY, params=query, headers={"Accept": "text/csv"}).text
        rows = list(csv.DictReader(io.StringIO(table, newline="")))
        assert {float(row["joint_epsilon"]) for row in rows} == {best["fixed"]["epsilon"]}
        assert [row["name"] for row in rows] == ["Wave 0", "Wave 1", "Wave 2"]


def test_a_family_has_committed_releases_alone(client: Client) -> None:
    open_account(client)
    assert json_of(client.get(_FAMILY))["releases"] == []
    held = release(client, {"type": "geometric", "epsilon": "0.1"}, reserve_for="PT10M")
    assert held["state"] == "reserved"
    assert json_of(client.get(_FAMILY))["releases"] == []


def test_a_family_of_the_first_mechanisms(client: Client, stated: Any) -> None:
    whole = json_of(client.get(_FAMILY))
    assert stated["id"] in [one["release"] for one in whole["releases"]]
    cut = [one | {"mechanisms": one["mechanisms"][:2]} for one in whole["releases"]]
    assert json_of(client.get(_FAMILY, params={"limit": "2"})) == whole | {"releases": cut}
    for wrong in ("0", "1.5", "1000001"):
        assert pointers_of(client.get(_FAMILY, params={"limit": wrong})) == ["/query/limit"]


def test_a_family_is_bounded_and_read_by_its_keys(client: Client) -> None:
    open_account(client, budget={"definition": "pure", "epsilon": "50"})
    for _ in range(101):
        release(client, {"type": "geometric", "epsilon": "0.01"})
    assert pointers_of(client.get(_FAMILY)) == ["/query"]
    for wrong in ({"confidence": "nan"}, {"since": "x"}, {"tag": ""}, {"unknown": "1"}):
        assert pointers_of(client.get(_FAMILY, params=wrong)) == [f"/query/{next(iter(wrong))}"]
    problem_of(client.get(_FAMILY, headers=make_key(client, "auditor", accounts=["elsewhere"])), "forbidden")
    problem_of(client.get("/v1/accounts/nobody/accuracy"), "not_found")
