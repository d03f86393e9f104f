"""Noise tables over HTTP: refused tables, budgets, draws with replays and partitions, statements and packages."""

import io
import zipfile
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from service.ledger.storage.database import Database
from service.ledger.verification.recompute import recompute
from tests.api.calls import Client, charge, json_of, open_account, pointers_of, problem_of, release
from tests.noise.reference import chi_square_p

ROWS: list[dict[str, Any]] = [{"value": -2, "mass": "1/32"}, {"value": 0, "mass": "5/8"}, {"value": 1, "mass": "1/4"}]
ROWS.append({"value": -1, "mass": "3/32"})
TABLE = {"type": "noise_table", "masses": ROWS}
BUDGET = {"definition": "approximate", "epsilon": 50, "delta": "0.9", "declared_delta": "0.8"}


@pytest.mark.parametrize(
    ("table", "pointers"),
    [
        ({"masses": []}, ["/plan/masses"]),
        ({}, ["/plan"]),
        ({"rows": []}, ["/plan/rows"]),
        ({"rows": [{"masses": ROWS}], "masses": ROWS}, ["/plan"]),
        ({"rows": [{"masses": ROWS}, {"masses": ROWS[1:]}]}, ["/plan/rows/1/masses"]),
        ({"rows": [{"masses": ROWS}, {"masses": []}]}, ["/plan/rows/1/masses"]),
        ({"rows": [{"masses": ROWS}] * 101}, ["/plan/rows"]),
        ({"masses": [{"value": 0, "mass": "1/2"}]}, ["/plan/masses"]),
        ({"masses": [{"value": 0.5, "mass": "1"}]}, ["/plan/masses/0/value"]),
        ({"masses": [{"value": "0", "mass": "1"}]}, ["/plan/masses/0/value"]),
        ({"masses": [{"value": 1000001, "mass": "1"}]}, ["/plan/masses/0/value"]),
        ({"masses": [{"value": 0, "mass": "NaN"}]}, ["/plan/masses/0/mass"]),
        ({"masses": [{"value": 0, "mass": "-1"}, {"value": 1, "mass": "2"}]}, ["/plan/masses/0/mass"]),
        ({"masses": [{"value": 0}]}, ["/plan/masses/0/mass"]),
        ({"masses": [{"value": 0, "mass": "1/2"}, {"value": 0, "mass": "1/2"}]}, ["/plan/masses/1/value"]),
        ({"masses": [{"value": value, "mass": "1/513"} for value in range(513)]}, ["/plan/masses"]),
        (
            {"masses": [{"value": value, "mass": "1/500"} for value in range(500)], "sensitivity": 20},
            ["/plan/sensitivity"],
        ),
        ({"masses": ROWS, "sensitivity": "0.5"}, ["/plan/sensitivity"]),
        ({"masses": ROWS, "scale": "1"}, ["/plan/scale"]),
    ],
)
def test_what_is_no_table_is_refused(shared_client: Client, table: Any, pointers: list[str]) -> None:
    asked = {"plan": {"type": "noise_table"} | table, "neighbouring": "add_remove"}
    assert pointers_of(shared_client.post("/v1/compositions", json=asked)) == pointers


def test_the_fault_says_what_the_masses_add_up_to(shared_client: Client) -> None:
    asked = {"plan": TABLE | {"masses": ROWS[:2]}, "neighbouring": "add_remove"}
    (fault,) = problem_of(shared_client.post("/v1/compositions", json=asked), "validation")["errors"]
    assert fault["detail"] == "expected masses that add up to 1, got 0.65625"


def test_budgets_without_room_for_its_delta_refuse_it(client: Client) -> None:
    """A shift by 1 makes the value 1, of mass 1/4, possible on one side only."""
    for definition in (
        {"definition": "pure", "epsilon": 50},
        {"definition": "zcdp", "rho": 50, "delta": "0.24"},
        {"definition": "approximate", "epsilon": 50, "delta": "0.5", "declared_delta": "0.24"},
    ):
        name = str(definition["definition"])
        open_account(client, name, definition)
        failures = problem_of(charge(client, TABLE, name), "budget_exceeded")["failures"]
        assert [one["cap"] for one in failures] == ["declared_delta" if name == "approximate" else "delta"]
    open_account(client, "room", {"definition": "zcdp", "rho": 50, "delta": "0.25"})
    assert charge(client, TABLE, "room").status_code == 201


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_a_charged_table_is_priced_again_to_the_same_integers(
    client: Client, database: Database, relation: str
) -> None:
    open_account(client, "people", BUDGET, neighbouring=relation)
    assert charge(client, TABLE).status_code == 201
    open_account(client, "pure", {"definition": "pure", "epsilon": 50, "delta": "0.5"}, neighbouring=relation)
    assert charge(client, TABLE, "pure").status_code == 201
    for account in ("people", "pure"):
        found = recompute(database, account, apply=False)
        assert (found.prices, found.under_caps) == ([], [])


def test_draws_have_the_tables_law_and_are_replayed(client: Client) -> None:
    open_account(client, "people", BUDGET)
    made = release(client, {"type": "repeat", "count": 2, "part": TABLE | {"name": "t"}, "partitions": ["a", "b"]})
    path, counts = f"/v1/accounts/people/releases/{made['id']}/draws", [7] * 8000
    body = {"mechanism": "t", "partition": "a", "counts": counts}
    first = json_of(client.post(path, json=body, headers={"Idempotency-Key": "one"}), 201)
    assert json_of(client.post(path, json=body, headers={"Idempotency-Key": "one"}), 201) == first
    problem_of(client.post(path, json=body), "already_drawn")
    other = json_of(client.post(path, json=body | {"partition": "b"}), 201)
    assert other["noisy"] != first["noisy"]
    seen = Counter(noisy - 7 for noisy in first["noisy"] + other["noisy"])
    expected = {row["value"]: 16000 * float(Fraction(row["mass"])) for row in ROWS}
    assert seen.keys() == expected.keys()
    assert chi_square_p([seen[x] for x in expected], list(expected.values())) > 1e-4
    assert first["margin_of_error"] == {"confidence": 0.95, "moe": 1}
    stated = json_of(client.get(f"/v1/accounts/people/releases/{made['id']}/accuracy"))
    assert (stated["pure"], stated["rho"]) == (None, None)  # they hold beside a delta only
    (mechanism,) = stated["mechanisms"]
    assert (mechanism["type"], mechanism["moe"], mechanism["drawn"]) == ("noise_table", 1, True)
    package = zipfile.ZipFile(io.BytesIO(client.get(f"/v1/accounts/people/releases/{made['id']}/package").content))
    assert any("noise_table" in package.read(name).decode("utf-8", "replace") for name in package.namelist())


def test_a_granularity_scales_values_counts_and_margins(client: Client) -> None:
    open_account(client, "people", BUDGET)
    body = {
        "name": "income",
        "mechanism": TABLE | {"granularity": "0.5", "sensitivity": "0.5"},
        "counts": ["1.5", "2"] * 50,
    }
    drawn = json_of(client.post("/v1/accounts/people/draws", json=body), 201)
    assert {Fraction(noisy) - Fraction(true) for noisy, true in zip(drawn["noisy"], body["counts"], strict=True)} <= {
        Fraction(value, 2) for value in (-2, -1, 0, 1)
    }


def test_accuracy_of_sums_is_that_of_the_convolution(shared_client: Client) -> None:
    law = {0: Fraction(1)}
    for _ in range(6):
        following: dict[int, Fraction] = {}
        for total, p in law.items():
            for row in ROWS:
                place = total + row["value"]
                following[place] = following.get(place, Fraction(0)) + p * Fraction(row["mass"])
        law = following
    asked = {"mechanism": TABLE, "summed_cells": 6, "confidences": ["0.5", "0.95", "0.999"]}
    found = json_of(shared_client.post("/v1/accuracy", json=asked))
    for margin, confidence in zip(found["margins"], ("0.5", "0.95", "0.999"), strict=True):
        beyond = [sum(p for x, p in law.items() if abs(x) > m) for m in range(13)]
        least = next(m for m, p in enumerate(beyond) if p <= 1 - Fraction(confidence))
        assert margin["moe"] == least
        assert margin["coverage"] == pytest.approx(float(1 - beyond[least]), rel=1e-12)
        assert Fraction(margin["coverage"]) <= 1 - beyond[least]
    assert found["variance"] == pytest.approx(float(sum(x * x * p for x, p in law.items())), rel=1e-12)
    assert found["mean_absolute"] == pytest.approx(float(sum(abs(x) * p for x, p in law.items())), rel=1e-12)
    assert pointers_of(shared_client.post("/v1/accuracy", json=asked | {"summed_cells": 10**9})) == ["/mechanism"]


KEPT = [{"value": 0, "mass": "1"}]
BY_COUNT = {
    "type": "noise_table",
    "rows": [{"masses": KEPT}, {"masses": ROWS}, {"masses": [{"value": 9, "mass": "1"}]}],
}


def test_counts_are_drawn_by_their_rows_and_negative_ones_are_refused_without_being_named(client: Client) -> None:
    open_account(
        client, "people", {"definition": "approximate", "epsilon": 50, "delta": "0.9", "declared_delta": "0.8"}
    )
    rows = [{"masses": [{"value": -1, "mass": "1/8"}, {"value": 0, "mass": "3/4"}, {"value": 1, "mass": "1/8"}]}] * 3
    table = {"type": "noise_table", "rows": [{"masses": KEPT}, *rows]}
    body: dict[str, Any] = {"name": "rows", "mechanism": table, "counts": [0] * 100}
    problem_of(client.post("/v1/accounts/people/draws", json=body), "budget_exceeded")
    body["mechanism"] = {"type": "noise_table", "rows": rows}
    refused = client.post("/v1/accounts/people/draws", json=body | {"counts": [3, -8731, 5]})
    assert pointers_of(refused) == ["/mechanism"]
    assert "8731" not in refused.text
    drawn = json_of(client.post("/v1/accounts/people/draws", json=body), 201)
    assert {-1, 0, 1} >= set(drawn["noisy"])


def test_the_margin_of_a_table_with_rows_holds_for_each_count(shared_client: Client) -> None:
    asked = {"mechanism": BY_COUNT, "confidences": ["0.9"]}
    found = json_of(shared_client.post("/v1/accuracy", json=asked))
    assert found["margins"] == [{"confidence": 0.9, "moe": 9, "coverage": 1}]
    assert (found["variance"], found["mean_absolute"]) == (81, 9)
    refused = problem_of(shared_client.post("/v1/accuracy", json=asked | {"summed_cells": 2}), "validation")
    assert "depends on each count" in refused["errors"][0]["detail"]
