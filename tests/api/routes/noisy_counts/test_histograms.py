"""Bottom-up tables over HTTP: noisy cells, margins by aggregation with exact margins of error, published totals."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.api.calls import Answer, Client, json_of, open_account, pointers_of, problem_of

_WIDE = {"definition": "pure", "epsilon": 10**6}
_DIMENSIONS = [
    {"name": "county", "values": ["a", "b", "c"]},
    {"name": "sex", "values": ["f", "m"]},
    {"name": "age", "values": ["0", "1", "2", "3"]},
]
_SHAPE = (3, 2, 4)
_MARGINS: list[list[str]] = [["county"], ["age", "county"], ["sex", "age", "county"], []]
_COUNTS = list(range(100, 2500, 100))
_GEOMETRIC = {"type": "geometric", "scale": "3"}
_NEARLY_NONE = {"type": "geometric", "scale": "1e-4"}


def _draw(client: Client, key: str | None = None, **fields: Any) -> Answer:
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"name": "t", "mechanism": _GEOMETRIC, "dimensions": _DIMENSIONS, "counts": _COUNTS, "margins": _MARGINS}
    return client.post("/v1/accounts/people/histograms", json=body | fields, headers=headers)


def _sums(cells: list[Any], margin: list[str]) -> list[Any]:
    """Return a margin by its definition: each cell is added at the place that its values name."""
    names = [dimension["name"] for dimension in _DIMENSIONS]
    kept = [names.index(name) for name in margin]
    sums: dict[tuple[int, ...], Any] = {}
    for place, count in zip(np.ndindex(_SHAPE), cells, strict=True):
        at = tuple(place[axis] for axis in kept)
        sums[at] = sums.get(at, 0) + count
    return [sums[at] for at in np.ndindex(*(_SHAPE[axis] for axis in kept))]


def _margin_by_convolution(scale: float, cells: int) -> int:
    """Return the smallest m with P(|S| > m) <= 0.05, with the law of S convolved here."""
    x = np.arange(-400, 401)
    mass = np.exp(-abs(x) / scale)
    mass /= mass.sum()
    law = mass
    for _ in range(cells - 1):
        law = np.convolve(law, mass)
    half = (law.size - 1) // 2
    inside = np.concatenate([[law[half]], law[half] + np.cumsum(law[half + 1 :] + law[half - 1 :: -1])])
    return int(np.argmax(inside >= 0.95))


def test_margins_are_sums_of_noisy_cells_with_exact_margins_of_error(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    drawn = json_of(_draw(embedded), 201)
    noisy = drawn["cells"]["noisy"]
    assert len(noisy) == 24
    assert noisy != _COUNTS
    assert all(abs(value - count) < 200 for value, count in zip(noisy, _COUNTS, strict=True))
    assert [margin["dimensions"] for margin in drawn["margins"]] == _MARGINS
    for margin, cells in zip(drawn["margins"], (8, 2, 1, 24), strict=True):
        assert margin["noisy"] == _sums(noisy, margin["dimensions"])
        assert margin["moe"] == _margin_by_convolution(3, cells)
    assert drawn["cells"]["moe"] == drawn["margins"][2]["moe"]
    assert drawn["confidence"] == 0.95


def test_margins_of_exact_counts_are_their_sums(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    drawn = json_of(_draw(embedded, mechanism=_NEARLY_NONE), 201)
    assert drawn["cells"] == {"noisy": _COUNTS, "adjusted": None, "moe": 0}
    assert drawn["margins"][3] == {"dimensions": [], "noisy": [sum(_COUNTS)], "adjusted": None, "moe": 0}
    large = [2**53] * 24
    drawn = json_of(_draw(embedded, mechanism=_NEARLY_NONE, counts=large), 201)
    assert drawn["margins"][3]["noisy"] == [24 * 2**53]
    wide = {"type": "geometric", "scale": 2**50}  # margins of 24 such cells may exceed 64 bits, which JSON allows
    drawn = json_of(_draw(embedded, mechanism=wide), 201)
    assert drawn["margins"][3]["noisy"] == [sum(drawn["cells"]["noisy"])]


def test_a_histogram_is_one_release_and_one_draw(client: Client) -> None:
    open_account(client)
    first = _draw(client, key="k", mechanism={"type": "discrete_gaussian", "rho": "0.3"})
    drawn = json_of(first, 201)
    again = _draw(client, key="k", mechanism={"type": "discrete_gaussian", "rho": "0.3"})
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Idempotent-Replay"] == "true"
    (registered,) = json_of(client.get("/v1/accounts/people/releases"))["items"]
    assert registered["cost"]["zcdp"]["rho_exact"] == "0.3"  # margins have no cost
    stored = json_of(client.get(f"/v1/accounts/people/draws/{drawn['draw']}"))
    assert stored["noisy"] == drawn["cells"]["noisy"]
    assert stored["release"] == registered["id"]
    head = json_of(client.get("/v1/accounts/people/head"))
    refused = _draw(client, mechanism={"type": "discrete_gaussian", "rho": 3})
    assert problem_of(refused, "budget_exceeded")["requested"] == 3
    assert len(json_of(client.get("/v1/accounts/people/releases"))["items"]) == 1
    assert json_of(client.get("/v1/accounts/people/head"))["seq"] <= head["seq"] + 1  # at most the refusal's entry


@pytest.mark.parametrize("adjust", ["rake", "least_squares"])
def test_published_totals_are_met_by_the_adjusted_cells(client: Client, adjust: str) -> None:
    """The noisy cells stay in the answer, and a replay gives the same adjusted cells."""
    open_account(client, budget=_WIDE)
    published = [
        {"margin": ["county"], "values": ["a"], "total": 4000},
        {"margin": ["sex", "county"], "values": ["m", "b"], "total": 1234},
        {"margin": [], "values": [], "total": 31_000},
    ]
    answers = [_draw(client, key="k", published=published, adjust=adjust) for _ in range(2)]
    drawn = json_of(answers[0], 201)
    assert answers[1].content == answers[0].content
    cells = drawn["cells"]
    assert min(cells["adjusted"]) >= 0
    assert sum(cells["adjusted"]) == 31_000
    assert sum(cells["adjusted"][:8]) == 4000
    assert sum(cells["adjusted"][12:16]) == 1234
    assert all(isinstance(value, int) for value in cells["adjusted"])
    assert cells["noisy"] != cells["adjusted"]
    for margin in drawn["margins"]:
        assert margin["adjusted"] == _sums(cells["adjusted"], margin["dimensions"])
        assert margin["noisy"] == _sums(cells["noisy"], margin["dimensions"])
    stored = json_of(client.get(f"/v1/accounts/people/draws/{drawn['draw']}"))
    assert stored["noisy"] == cells["noisy"]


@pytest.mark.parametrize("adjust", ["rake", "least_squares"])
def test_rows_and_columns_are_met_at_once(client: Client, adjust: str) -> None:
    """The totals are of every county and of every age, and some of both; a replay gives the same cells."""
    open_account(client, budget=_WIDE)
    county, age, both = (_sums(_COUNTS, margin) for margin in (["county"], ["age"], ["county", "age"]))
    published = [
        *({"margin": ["county"], "values": [name], "total": n} for name, n in zip("abc", county, strict=True)),
        *({"margin": ["age"], "values": [name], "total": n} for name, n in zip("0123", age, strict=True)),
        {"margin": ["age", "county"], "values": ["2", "b"], "total": both[6]},
        {"margin": [], "values": [], "total": sum(_COUNTS)},
    ]
    answers = [_draw(client, key="k", published=published, adjust=adjust) for _ in range(2)]
    drawn = json_of(answers[0], 201)
    assert answers[1].content == answers[0].content
    cells = drawn["cells"]["adjusted"]
    assert min(cells) >= 0
    assert all(isinstance(value, int) for value in cells)
    assert _sums(cells, ["county"]) == county
    assert _sums(cells, ["age"]) == age
    assert _sums(cells, ["county", "age"])[6] == both[6]
    assert drawn["margins"][3]["adjusted"] == [sum(_COUNTS)]
    assert max(abs(a - n) for a, n in zip(cells, drawn["cells"]["noisy"], strict=True)) < 200


def test_crossing_totals_that_contradict_each_other_charge_nothing(client: Client) -> None:
    """Counties add up to more than the ages, or only fractions have the totals; both for any noise."""
    open_account(client, budget=_WIDE)
    head = json_of(client.get("/v1/accounts/people/head"))
    published: list[dict[str, Any]] = [
        *({"margin": ["county"], "values": [name], "total": 50} for name in "abc"),
        *({"margin": ["age"], "values": [name], "total": 30} for name in "0123"),
    ]
    refused = _draw(client, published=published, adjust="rake")
    assert pointers_of(refused) == [f"/published/{number}/total" for number in range(3)]
    assert "exceeds" in problem_of(refused, "validation")["errors"][0]["detail"]

    dimensions = [{"name": name, "values": ["0", "1"]} for name in "xyz"]
    halves = {(0, 0, 1), (0, 1, 0), (1, 0, 0)}  # any two of these cells share a 0, and these pairs have a total of 1
    published = [{"margin": [name], "values": ["0"], "total": 1} for name in "xyz"]
    published += [
        {"margin": ["x", "y", "z"], "values": [str(value) for value in place], "total": 0}
        for place in np.ndindex(2, 2, 2)
        if place not in halves
    ]
    asked: dict[str, Any] = {"dimensions": dimensions, "margins": [], "counts": [5] * 8}
    refused = _draw(client, published=published, adjust="least_squares", **asked)
    assert pointers_of(refused) == ["/published"]
    assert "fractions" in problem_of(refused, "validation")["errors"][0]["detail"]
    assert json_of(client.get("/v1/accounts/people/head")) == head


def test_published_totals_of_a_weighted_table(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    published = [{"margin": ["county"], "values": ["c"], "total": "4000.75"}]
    fields: dict[str, Any] = {"granularity": "0.25", "published": published, "adjust": "rake"}
    drawn = json_of(_draw(embedded, mechanism={"type": "geometric", "scale": 4}, **fields), 201)
    assert sum(map(Fraction, drawn["cells"]["adjusted"][16:])) == Fraction("4000.75")
    assert Fraction(drawn["margins"][0]["adjusted"][2]) == Fraction("4000.75")


def test_a_weighted_table(embedded: Client) -> None:
    """The largest weight is the sensitivity."""
    open_account(embedded, budget=_WIDE)
    mechanism = {"type": "geometric", "scale": "3", "sensitivity": "17.5"}
    counts = [f"{count}.5" for count in _COUNTS]
    drawn = json_of(_draw(embedded, mechanism=mechanism, counts=counts, granularity="0.25"), 201)
    noisy = [Fraction(value) for value in drawn["cells"]["noisy"]]
    assert all((4 * value).denominator == 1 for value in noisy)
    for margin, cells in zip(drawn["margins"], (8, 2, 1, 24), strict=True):
        assert [Fraction(value) for value in margin["noisy"]] == _sums(noisy, margin["dimensions"])
        assert Fraction(margin["moe"]) == Fraction(_margin_by_convolution(12, cells), 4)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"counts": _COUNTS[1:]}, "/counts"),
        ({"counts": [8675309.5, *_COUNTS[1:]]}, "/counts/0"),
        ({"counts": ["8675309.5", *_COUNTS[1:]]}, "/counts/0"),
        ({"dimensions": []}, "/dimensions"),
        ({"dimensions": [{"name": "a", "values": []}]}, "/dimensions/0/values"),
        (
            {"dimensions": [{"name": "a", "values": ["x", "x"]}], "counts": [1, 2], "margins": []},
            "/dimensions/0/values",
        ),
        ({"dimensions": [_DIMENSIONS[1]] * 2, "counts": [1] * 4, "margins": []}, "/dimensions/1/name"),
        ({"margins": [["county"], ["town"]]}, "/margins/1"),
        ({"margins": [["county", "county"]]}, "/margins/0"),
        ({"margins": [[]] * 101}, "/margins"),
        ({"mechanism": {"type": "gaussian", "rho": 1}}, "/mechanism"),
        ({"mechanism": {"type": "geometric", "scale": 2**50 + 1}}, "/mechanism"),
        ({"mechanism": _GEOMETRIC, "granularity": "1/3", "counts": ["0.5", *_COUNTS[1:]]}, "/counts/0"),
        ({"tables": []}, "/tables"),
        ({"published": [{"margin": [], "values": [], "total": 1}]}, "/adjust"),
        *(
            ({"published": published, "adjust": "rake"}, pointer)
            for published, pointer in (
                ([{"margin": ["town"], "values": ["a"], "total": 1}], "/published/0/margin"),
                ([{"margin": ["county"], "values": [], "total": 1}], "/published/0/values"),
                ([{"margin": ["county"], "values": ["z"], "total": 1}], "/published/0/values/0"),
                ([{"margin": ["county"], "values": ["a"], "total": -1}], "/published/0/total"),
                ([{"margin": ["county"], "values": ["a"], "total": 1.5}], "/published/0/total"),
                ([{"margin": ["county"], "values": ["a"], "total": "2"}], "/published/0/total"),
                (
                    [{"margin": [], "values": [], "total": 1}, {"margin": ["county"], "values": ["a"], "total": 2}],
                    "/published/0/total",
                ),
                (
                    [
                        {"margin": ["sex"], "values": ["f"], "total": 1},
                        {"margin": ["county"], "values": ["a"], "total": 2},
                        {"margin": ["county", "sex"], "values": ["a", "f"], "total": 2},
                    ],
                    "/published/0/total",
                ),
                (
                    [
                        {"margin": ["sex"], "values": ["f"], "total": 2**40},
                        {"margin": ["sex"], "values": ["m"], "total": 1},
                        {"margin": ["county"], "values": ["a"], "total": 2},
                    ],
                    "/published",
                ),
            )
        ),
        ({"adjust": "both"}, "/adjust"),
    ],
    ids=str,
)
def test_tables_without_a_meaning(shared_client: Client, fields: Any, pointer: str) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    head = json_of(shared_client.get("/v1/accounts/people/head"))
    answer = _draw(shared_client, **fields)
    assert pointers_of(answer) == [pointer]
    assert "8675309" not in answer.text
    assert json_of(shared_client.get("/v1/accounts/people/head")) == head


def test_totals_of_more_margins_than_are_asked_for_are_refused(embedded: Client) -> None:
    """A single cell can have a million margins, and each two of them would be compared."""
    open_account(embedded, budget=_WIDE)
    head = json_of(embedded.get("/v1/accounts/people/head"))
    dimensions = [{"name": str(number), "values": ["a"]} for number in range(16)]
    pairs = list(itertools.combinations(map(str, range(16)), 2))[:101]
    published = [{"margin": pair, "values": ["a", "a"], "total": 5} for pair in pairs]
    asked: dict[str, Any] = {"dimensions": dimensions, "margins": [], "counts": [5], "adjust": "rake"}
    refused = _draw(embedded, published=published, **asked)
    assert pointers_of(refused) == ["/published"]
    assert json_of(embedded.get("/v1/accounts/people/head")) == head
    drawn = json_of(_draw(embedded, published=published[:100], **asked), 201)
    assert drawn["cells"]["adjusted"] == [5]


def test_the_first_counts_that_are_not_whole_are_told_together(client: Client) -> None:
    open_account(client)
    answer = _draw(client, counts=[8675309.5] * 24)
    assert pointers_of(answer) == [f"/counts/{number}" for number in range(10)]
    assert "8675309" not in answer.text
