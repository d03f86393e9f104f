"""Post-processing over HTTP."""

from typing import Any

import pytest

from tests.api.calls import Client, json_of, pointers_of, problem_of

TABLE = {"counts": [12, -1, 7, 30, 4, 0], "shape": [2, 3], "totals": [{"axes": [0], "values": [20, 30]}]}


@pytest.mark.parametrize("method", ["rake", "project"])
def test_published_totals_are_met(shared_client: Client, method: str) -> None:
    found = json_of(shared_client.post(f"/v1/postprocessing/{method}", json=TABLE))["counts"]
    assert (sum(found[:3]), sum(found[3:])) == (20, 30)
    assert all(isinstance(count, int) and count >= 0 for count in found)
    real = json_of(shared_client.post(f"/v1/postprocessing/{method}", json=TABLE | {"integer": False}))["counts"]
    assert all(isinstance(count, float) for count in real)
    assert sum(real) == pytest.approx(50)


def test_a_contradiction_is_explained(shared_client: Client) -> None:
    totals = [{"axes": [], "values": [51]}, {"axes": [0], "values": [20, 30]}]
    answer = shared_client.post("/v1/postprocessing/rake", json=TABLE | {"totals": totals})
    (fault,) = problem_of(answer, "validation")["errors"]
    assert fault["pointer"] == "/totals/1/values"
    assert "add up" in fault["detail"]


@pytest.mark.parametrize("method", ["rake", "project"])
def test_rows_and_columns_are_met_at_once(shared_client: Client, method: str) -> None:
    totals = [{"axes": [0], "values": [20, 30]}, {"axes": [1], "values": [25, 24, 1]}, {"axes": [], "values": [50]}]
    crossing = TABLE | {"totals": totals}
    found = json_of(shared_client.post(f"/v1/postprocessing/{method}", json=crossing))["counts"]
    assert (sum(found[:3]), sum(found[3:])) == (20, 30)
    assert [a + b for a, b in zip(found[:3], found[3:], strict=True)] == [25, 24, 1]
    assert all(isinstance(count, int) and count >= 0 for count in found)
    real = json_of(shared_client.post(f"/v1/postprocessing/{method}", json=crossing | {"integer": False}))["counts"]
    assert all(isinstance(count, float) and count >= 0 for count in real)
    assert [a + b for a, b in zip(real[:3], real[3:], strict=True)] == pytest.approx([25, 24, 1], rel=1e-9)
    assert max(abs(a - b) for a, b in zip(real, found, strict=True)) < 1 + 1e-6


def test_crossing_totals_that_contradict_each_other_are_explained(shared_client: Client) -> None:
    totals: list[dict[str, Any]] = [{"axes": [0], "values": [20, 30]}, {"axes": [1], "values": [25, 24, 2]}]
    answer = shared_client.post("/v1/postprocessing/rake", json=TABLE | {"totals": totals})
    (fault,) = problem_of(answer, "validation")["errors"]
    assert fault["pointer"] == "/totals/1/values"
    assert "those of /totals/0: at the whole" in fault["detail"]
    # Each two of these have a table: equal along the first two, equal along the last two, unequal along both others.
    equal, unequal = [1, 0, 0, 1], [0, 1, 1, 0]
    pairs = zip(([0, 1], [1, 2], [0, 2]), (equal, equal, unequal), strict=True)
    totals = [{"axes": axes, "values": values} for axes, values in pairs]
    table = {"counts": [1] * 8, "shape": [2, 2, 2], "totals": totals}
    for integer in (True, False):
        answer = shared_client.post("/v1/postprocessing/project", json=table | {"integer": integer})
        (fault,) = problem_of(answer, "validation")["errors"]
        assert fault["pointer"] == "/totals"
        assert "no such table meets all of these" in fault["detail"]


@pytest.mark.parametrize("method", ["rake", "project"])
@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"counts": []}, ["/counts"]),
        ({"counts": [1.5]}, ["/counts/0"]),
        ({"counts": [True]}, ["/counts/0"]),
        ({"counts": [2**60]}, ["/counts/0"]),
        ({"shape": [6, 2]}, ["/shape"]),
        ({"shape": [-6]}, ["/shape/0"]),
        ({"shape": [2**53, 2**53]}, ["/shape"]),
        ({"totals": [{"axes": [0]}]}, ["/totals/0/values"]),
        ({"totals": [{"axes": [5], "values": [1]}]}, ["/totals/0/axes"]),
        ({"totals": [{"axes": [0], "values": [-1, 1]}]}, ["/totals/0/values/0"]),
        ({"totals": [{"axes": [0], "values": []}]}, ["/totals/0/values"]),
        ({"totals": [{"axes": [0], "values": [2**41, 1]}, {"axes": [1], "values": [2**41, 0, 1]}]}, ["/totals"]),
        ({"integer": 1}, ["/integer"]),
        ({"weights": [1]}, ["/weights"]),
    ],
)
def test_meaningless_tables_are_refused(
    shared_client: Client, method: str, fields: dict[str, Any], pointers: list[str]
) -> None:
    assert pointers_of(shared_client.post(f"/v1/postprocessing/{method}", json=TABLE | fields)) == pointers
