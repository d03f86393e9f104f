"""Questions whose answers are figures, spread widely by a fixed seed; and noise under a fixed keystream.

The questions of a version are stored beside their answers: this module may change, the files of earlier versions do
not depend on it.
"""

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from service.noise import Keystream, NoiseLaw, sample
from tests.compatibility.files import Question
from tests.noise.reference import KEY

SEED = 2030_01_01
_DELTAS = ("1e-3", "1e-6", "1e-9", "1e-10", "1e-15", "1e-30")
_LOSSES = ("0.001", "1/300", "0.01", "0.05", "1/7", "0.3", "1", "2.5", "9")
_SQUARES = ("0.3", "2", "9.375", "55.5", "400", "1e4", "3e6")
_CONFIDENCES = ("0.5", "0.9", "0.95", "0.99", "0.999999")
_RELATIONS = ("add_remove", "replace_one")
_BUDGETS: tuple[dict[str, str], ...] = (
    {"definition": "pure", "epsilon": "3"},
    {"definition": "zcdp", "rho": "7/9"},
    {"definition": "rdp", "alpha": "5/2", "epsilon": "1.5"},
    {"definition": "approximate", "epsilon": "2", "delta": "1e-8"},
)


class Inputs:
    """Plans and parameters, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def mechanism(self, relation: str, *, divided: bool = False) -> dict[str, Any]:
        """Any mechanism that has a meaning under the relation; ``divided``: below ``parallel`` and ``choice``."""
        pick, replaced = self.random.choice, relation == "replace_one"
        cells: dict[str, Any] = {"cells": pick((1, 2, 3, 7, 64))} if self.random.random() < 0.4 else {}
        if cells and replaced:
            cells["cells_added"] = pick((1, cells["cells"]))
        match pick(("geometric", "geometric", "discrete_gaussian", "discrete_gaussian", "laplace", "gaussian", "osgt",
                    "discrete_osgt", "randomized_response", "declared")):  # fmt: skip
            case "geometric" if pick((True, False)):
                lattice = {"granularity": "1/4", "sensitivity": "1.75"}
                return {"type": "geometric", "scale": pick(_SQUARES), **lattice, **cells}
            case "geometric" | "laplace" as kind:
                return {"type": kind, "epsilon": pick(_LOSSES), **cells}
            case "discrete_gaussian" if pick((True, False)):
                return {"type": "discrete_gaussian", "sigma_squared": pick(_SQUARES), **cells}
            case "discrete_gaussian" | "gaussian" as kind:
                return {"type": kind, "rho": pick(_LOSSES), "sensitivity": pick((1, 2, 5)), **cells}
            case "osgt" | "discrete_osgt" as kind:
                return {"type": kind, "sigma_squared": pick(("40", "400", "1e4")), "m": pick(("0", "3", "12.5"))}
            case "randomized_response" if replaced and not divided:
                return {"type": "randomized_response", "epsilon": pick(_LOSSES), "values": pick((2, 3, 100))}
            case _:
                stated: dict[str, Any] = pick(
                    (
                        {"epsilon": pick(_LOSSES)},
                        {"rho": pick(_LOSSES[:5]), "delta": "1e-12"},
                        {"rdp": [{"alpha": "2", "epsilon": "0.01"}, {"alpha": "30", "epsilon": "0.4"}]},
                    )
                )
                one_sided = {"add_remove": stated} if replaced else {}
                return {"type": "declared", "reference": "elsewhere", **stated, **one_sided}

    def plan(self, relation: str, depth: int, *, divided: bool = False) -> dict[str, Any]:
        """A plan of at most this depth."""
        pick = self.random.choice
        if depth == 0:
            return self.mechanism(relation, divided=divided)
        kind = pick(("sequence", "sequence", "parallel", "choice", "repeat", "group"))
        if kind in ("repeat", "group"):
            number = {"count": pick((2, 9, 63, 10**4))} if kind == "repeat" else {"size": pick((2, 3, 10))}
            partitions = pick(({}, {}, {"partitions": 3143}, {"partitions": ["01", "02"]})) if kind == "repeat" else {}
            found = {"type": kind, **number, "part": self.plan(relation, depth - 1, divided=divided)}
            return found | (partitions if _is_drawn(found) else {})
        below = divided or kind != "sequence"
        parts = [self.plan(relation, depth - 1, divided=below) for _ in range(pick((2, 2, 3)))]
        return {"type": kind, "parts": parts} | ({"max_degree": pick((1, 2))} if kind == "parallel" else {})


def _is_drawn(plan: dict[str, Any]) -> bool:
    parts = [*plan.get("parts", ()), *([plan["part"]] if "part" in plan else ())]
    return plan["type"] in ("geometric", "discrete_gaussian", "discrete_osgt") or any(map(_is_drawn, parts))


def questions() -> dict[str, list[Question]]:
    """All that is asked, by kind; of each an empty installation is asked, in this order."""
    inputs = Inputs(SEED)
    return {
        "compositions": list(_compositions(inputs)),
        "conversions": list(_conversions(inputs)),
        "calibrations": list(_calibrations(inputs)),
        "accuracy": list(_accuracies(inputs)),
        "allocations": list(_allocations(inputs)),
        "safetab": list(_safetab()),
        "adjustments": list(_adjustments(inputs)),
        "charges": list(_charges(inputs)),
        "draws": list(_draws(inputs)),
    }


def _compositions(inputs: Inputs) -> Iterator[Question]:
    pick = inputs.random.choice
    for number in range(96):
        relation = _RELATIONS[number % 2]
        plan = inputs.plan(relation, number % 4)
        body: dict[str, Any] = {"plan": plan, "neighbouring": relation, "deltas": [pick(_DELTAS)]}
        if number % 5 == 0:
            body["orders"] = ["1.0001", "3/2", "17", "1e4"]
        yield Question("POST", "/v1/compositions", body)
    many = [f"{digit}e-{power}" for power in range(2, 22, 2) for digit in (1, 4)]
    for plan in (
        {"type": "geometric", "epsilon": "0.4", "cells": 3},
        {"type": "repeat", "count": 63, "part": {"type": "geometric", "epsilon": "0.05"}},
        {"type": "discrete_gaussian", "rho": "0.1"},
        {"type": "repeat", "count": 9, "part": {"type": "laplace", "epsilon": "1/30"}},
        {"type": "discrete_osgt", "sigma_squared": "400", "m": "12.5"},
    ):
        yield Question("POST", "/v1/compositions", {"plan": plan, "deltas": many})
    deep: dict[str, Any] = {"type": "discrete_gaussian", "rho": "0.001"}
    for depth in range(28):
        deep = {"type": "sequence", "parts": [deep]} if depth % 2 else {"type": "repeat", "count": 2, "part": deep}
    yield Question("POST", "/v1/compositions", {"plan": deep})
    wide = [{"type": "geometric", "epsilon": f"{number}/20000"} for number in range(1, 200)]
    yield Question("POST", "/v1/compositions", {"plan": {"type": "sequence", "parts": wide}})


def _conversions(inputs: Inputs) -> Iterator[Question]:
    pick = inputs.random.choice
    for number in range(40):
        rho = f"{inputs.random.randrange(1, 10**6)}/{10 ** (2 + number % 7)}"
        yield Question("POST", "/v1/conversions", {"rho": rho, "delta": pick(_DELTAS)})
        yield Question("POST", "/v1/conversions", {"rho": pick(_LOSSES[:7]), "epsilon": pick(_LOSSES)})
        yield Question("POST", "/v1/conversions", {"to": "zcdp", "epsilon": pick(_LOSSES), "delta": pick(_DELTAS)})
    for number in range(24):
        relation = _RELATIONS[number % 2]
        body = {"plan": inputs.plan(relation, number % 3), "neighbouring": relation, "epsilon": pick(_LOSSES[3:])}
        yield Question("POST", "/v1/conversions", body)
    for number in range(12):
        rdp = [
            {"alpha": alpha, "epsilon": f"{number + 1}/{50 + step}"} for step, alpha in enumerate(("3/2", "4", "20"))
        ]
        yield Question("POST", "/v1/conversions", {"rdp": rdp, pick(("delta", "epsilon")): pick(("1e-9", "0.1"))})


def _calibrations(inputs: Inputs) -> Iterator[Question]:
    pick = inputs.random.choice
    for number in range(60):
        body = {"mechanism": ("geometric", "discrete_gaussian")[number % 2], "moe": pick((1, 6, 11, 50, "99.5", 10**4)),
                "confidence": pick(_CONFIDENCES), "cells": pick((1, 2, 9))}  # fmt: skip
        yield Question("POST", "/v1/calibrations/moe", body)
        yield Question("POST", "/v1/calibrations/moe", body | {"confidence": "0.95", "method": "safetab"})
    for number in range(24):
        kind = ("gaussian", "discrete_gaussian", "gaussian", "discrete_gaussian", "osgt", "discrete_osgt")[number % 6]
        body = {"mechanism": kind, "epsilon": pick(("0.05", "0.94", "3")), "delta": pick(_DELTAS[:5])}
        if "osgt" not in kind:
            body |= {"cells": pick((1, 100)), "sensitivity": pick(("1", "3"))}
        yield Question("POST", "/v1/calibrations/noise", body | ({"sub_gaussian": True} if "osgt" in kind else {}))
    for mechanism in (
        {"type": "osgt", "sigma_squared": "40", "m": "3"},
        {"type": "discrete_osgt", "sigma_squared": "400", "m": "12"},
    ):
        yield Question("POST", "/v1/calibrations/comparison", {"mechanism": mechanism, "cells": [1, 4]})


def _accuracies(inputs: Inputs) -> Iterator[Question]:
    pick = inputs.random.choice
    for number in range(60):
        mechanism: dict[str, Any] = pick(
            (
                {"type": "geometric", "epsilon": pick(_LOSSES)},
                {"type": "geometric", "scale": pick(_SQUARES), "granularity": "0.25"},
                {"type": "discrete_gaussian", "sigma_squared": pick(_SQUARES)},
                {"type": "discrete_osgt", "sigma_squared": pick(_SQUARES[2:]), "m": pick(("3", "12.5"))},
                {"type": "laplace", "scale": pick(_SQUARES)},
                {"type": "gaussian", "sigma_squared": pick(_SQUARES)},
            )
        )
        cells = 1 if number % 2 else pick((2, 7, 64, 65, 900))
        body = {"mechanism": mechanism, "summed_cells": cells, "confidences": list(_CONFIDENCES)}
        yield Question("POST", "/v1/accuracy", body)
    osgt = {"type": "osgt", "sigma_squared": "40", "m": "3"}
    yield Question("POST", "/v1/accuracy", {"mechanism": osgt, "confidences": list(_CONFIDENCES)})


def _allocations(inputs: Inputs) -> Iterator[Question]:
    kinds, objectives = ("geometric", "discrete_gaussian", "laplace", "gaussian"), ("proportional", "max_error",
                                                                                    "weighted_error")  # fmt: skip
    for number in range(24):
        queries = [{"name": f"q{n}", "weight": inputs.random.randrange(1, 9), "cells": 1 + n} for n in range(2)]
        yield Question("POST", "/v1/calibrations/allocation", {
            "budget": _BUDGETS[number // 4 % 4], "mechanism": kinds[number % 4], "queries": queries,
            "objective": objectives[number % 3]})  # fmt: skip
    for number in range(8):
        queries = [{"name": f"q{n}", "moe": inputs.random.randrange(2, 90)} for n in range(3)]
        yield Question("POST", "/v1/calibrations/allocation", {
            "budget": _BUDGETS[number % 4], "mechanism": kinds[number % 4], "queries": queries})  # fmt: skip


def _safetab() -> Iterator[Question]:
    for number, kind in enumerate(("geometric", "discrete_gaussian") * 3):
        moes = ([6], [6, 11], [6, 11, 50])[number // 2]
        levels = [{"name": f"level {n}", "moe": moe} for n, moe in enumerate(moes)]
        method = "safetab" if number == 2 else "exact"
        yield Question("POST", "/v1/plans/safetab", {
            "mechanism": kind, "levels": levels, "stability": 9 - number, "method": method})  # fmt: skip


def _adjustments(inputs: Inputs) -> Iterator[Question]:
    """Return adjustments to totals, in integers and in real numbers, and estimates of a loss from residuals."""
    for number in range(12):
        counts = [inputs.random.randrange(-20, 400) for _ in range(24)]
        rows, columns = [inputs.random.randrange(0, 900) for _ in range(4)], [0] * 6
        for _ in range(sum(rows)):
            columns[inputs.random.randrange(6)] += 1
        totals = [{"axes": [0], "values": rows}] + ([{"axes": [1], "values": columns}] if number % 2 else [])
        body = {"counts": counts, "shape": [4, 6], "totals": totals, "integer": number % 4 < 2}
        yield Question("POST", f"/v1/postprocessing/{('rake', 'project')[number // 2 % 2]}", body)
    residuals = [round(inputs.random.gauss(0, 4)) for _ in range(400)]
    yield Question("POST", "/v1/empirical/loss", {"residuals": residuals, "bootstrap": 0})


def _charges(inputs: Inputs) -> Iterator[Question]:
    """Exact prices and what remains, of accounts with every budget under both relations; balances of few plans."""
    for number, budget in enumerate(_BUDGETS * 2):
        relation, at = _RELATIONS[number // 4], f"/v1/accounts/account-{number}"
        cap = "rho" if budget["definition"] == "zcdp" else "epsilon"
        declared = "declared_delta" if budget["definition"] == "approximate" else "delta"
        body = {"name": f"account-{number}", "unit": "person", "neighbouring": relation}
        yield Question("POST", "/v1/accounts", body | {"budget": budget | {cap: "9000", declared: "1e-9"}})
        for place in range(7):
            release = {"name": "r", "plan": inputs.plan(relation, place % 3), "delta": "1e-5"}
            yield Question("POST", f"{at}/releases", release)
            if place in (0, 1):  # of more, the order of what is added up is the database's
                yield Question("GET", f"{at}/balance?delta=1e-7")
        for path in ("", "/history?points=20", "/journal?limit=100"):
            yield Question("GET", at + path)


def _draws(inputs: Inputs) -> Iterator[Question]:
    """Noisy counts, under a keystream that the test fixes."""
    counts = [inputs.random.randrange(10**6) for _ in range(60)]
    budget = {"definition": "approximate", "epsilon": "900", "delta": "1e-6"}
    body = {"name": "drawn", "unit": "person", "neighbouring": "add_remove", "budget": budget}
    yield Question("POST", "/v1/accounts", body)
    for mechanism in (
        *({"type": "geometric", "scale": scale} for scale in _SQUARES),
        *({"type": "discrete_gaussian", "sigma_squared": square} for square in _SQUARES[1:]),
        *({"type": "discrete_osgt", "sigma_squared": square, "m": "12.5"} for square in _SQUARES[3:]),
        {"type": "geometric", "scale": "3", "sensitivity": "1.75", "granularity": "0.25"},
    ):
        yield Question("POST", "/v1/accounts/drawn/draws", {"name": "d", "mechanism": mechanism, "counts": counts})
    dimensions = [{"name": "county", "values": list("abcde")}, {"name": "age", "values": [str(n) for n in range(12)]}]
    for adjust in ("rake", "project"):
        yield Question("POST", "/v1/accounts/drawn/histograms", {
            "name": "h", "mechanism": {"type": "geometric", "epsilon": "0.5"}, "dimensions": dimensions,
            "counts": counts, "margins": [["county"], []], "adjust": adjust,
            "published": [{"margin": ["county"], "values": ["b"], "total": 2507}]})  # fmt: skip
    for epsilons in (["0.001", "0.01"], ["0.1", "1", "40"]):
        yield Question("POST", "/v1/accuracy/curve", {"counts": counts, "epsilons": epsilons})


def laws() -> list[dict[str, str]]:
    """Laws of noise, as parameters of ``service.noise.NoiseLaw``: narrow ones, wide ones, and those of both forms."""
    sizes = ("0.01", "0.3", "1", "2.7", "11", "90", "200", "1023", "1024", "1e5", "999999.5", "1e12")
    squares = {size: str(Fraction(size) ** 2) for size in sizes}
    found = [{"scale": size} for size in (*sizes, str(2**50))]
    found += [{"sigma_squared": squares[size]} for size in sizes]
    return found + [{"sigma_squared": squares[size], "scale": scale} for size in sizes[2:] for scale in ("2", "1e4")]


def draw(law: dict[str, str]) -> list[int]:
    """The first 100 values of a law under a keystream with a fixed key."""
    parameters: dict[str, Any] = {name: Fraction(text) for name, text in law.items()}
    found: list[int] = sample(NoiseLaw(**parameters), 100, Keystream(KEY)).tolist()
    return found
