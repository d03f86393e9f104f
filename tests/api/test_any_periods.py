"""Accounts where a unit can be in any periods, over HTTP: figures against all sets of so many months."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Any

import pytest

from service.privacy.accounting.guarantee import guarantee
from service.privacy.plans import Sequence
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring
from tests.api.calls import Client, concentrated, json_of, open_account, pointers_of, problem_of, pure

_PATH = "/v1/accounts/people"
_ANY = {"calendar": "month", "participation": {"any": 2}}
_ZCDP = {"definition": "zcdp", "rho": 9}


def _month(number: int) -> str:
    return f"{2026 + number // 12}-{number % 12 + 1:02d}"


def _charge(client: Client, plan: Any, periods: Any, **fields: Any) -> Any:
    body = {"name": "a release", "plan": plan, "periods": periods} | fields
    return json_of(client.post(f"{_PATH}/releases", json=body), 201)


def test_an_account_states_what_any_periods_mean(client: Client) -> None:
    opened = open_account(client, periods=_ANY)
    assert opened["periods"].items() >= _ANY.items()
    assert opened["periods"]["statement"] == (
        "Each person is in the data of at most 2 months, whichever they are. Each cap of the budget holds for each"
        " person over its whole life."
    )
    assert json_of(client.get(_PATH)) == opened
    one = open_account(client, "one", periods={"calendar": "index", "participation": {"any": 1}})
    assert one["periods"]["statement"].startswith("Each person is in the data of at most one wave. ")


@pytest.mark.parametrize(
    ("participation", "pointer"),
    [
        ({"any": 0}, "/any"),
        ({"any": -1}, "/any"),
        ({"any": 367}, "/any"),
        ({"any": 10**40}, "/any"),
        ({"any": True}, "/any"),
        ({"any": 2.0}, "/any"),
        ({"any": 1.5}, "/any"),
        ({"any": "2"}, "/any"),
        ({"any": None}, "/any"),
        ({"any": [2]}, "/any"),
        ({"any": {"most": 2}}, "/any"),
        ({"any": 2, "offsets": [0]}, ""),
        ({"any": 2, "more": 1}, ""),
        ({"some": 2}, ""),
    ],
)
def test_what_is_no_number_of_periods_is_refused_where_it_stands(
    client: Client, participation: Any, pointer: str
) -> None:
    body = {
        "name": "people",
        "unit": "person",
        "neighbouring": "add_remove",
        "budget": {"definition": "zcdp", "rho": 1},
    }
    answer = client.post("/v1/accounts", json=body | {"periods": {"calendar": "month", "participation": participation}})
    assert pointers_of(answer) == [f"/periods/participation{pointer}"]
    assert client.get(_PATH).status_code == 404


@pytest.mark.parametrize("text", ["NaN", "Infinity", "2e0"])
def test_numbers_that_json_does_not_have_or_that_are_not_whole_are_refused(client: Client, text: str) -> None:
    body = (
        '{"name": "people", "unit": "person", "neighbouring": "add_remove", "budget": {"definition": "zcdp", "rho": 1},'
        f' "periods": {{"calendar": "month", "participation": {{"any": {text}}}}}}}'
    )
    answer = client.post("/v1/accounts", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {400, 422}
    assert client.get(_PATH).status_code == 404


Made = list[tuple[Fraction, frozenset[int] | None, bool]]


def _filled(client: Client, random: Random) -> Made:
    """Random releases: their rho, the months that they read, and whether they are held."""
    open_account(client, budget=_ZCDP, periods=_ANY)
    made = []
    for _ in range(25):
        rho, held = Fraction(random.randrange(1, 9), 40), random.random() < 0.3
        read = frozenset(random.sample(range(10), random.randrange(1, 4))) if random.random() < 0.8 else None
        stated = "all" if read is None else {"list": [_month(one) for one in sorted(read)]}
        _charge(client, concentrated(str(rho), name="n"), stated, **({"reserve_for": "PT1H"} if held else {}))
        made.append((rho, read, held))
    return made


def _of(made: Made, month: int | None, *, held: bool, committed: bool = True) -> Fraction:
    """Return the cost of the releases to a month; None: of those to all."""
    return sum(
        (
            rho
            for rho, read, is_held in made
            if (read is None if month is None else read is not None and month in read)
            and (held if is_held else committed)
        ),
        Fraction(0),
    )


def _worst(made: Made, *including: int, held: bool = True, committed: bool = True) -> Fraction:
    """Return the largest cost of any two months, with that of the releases to all."""
    sums = [
        sum((_of(made, month, held=held, committed=committed) for month in unit), Fraction(0))
        for unit in combinations(range(40), 2)
        if set(including) <= set(unit)
    ]
    return _of(made, None, held=held, committed=committed) + max(sums)


def test_each_period_is_shown_with_the_worst_other(client: Client) -> None:
    made = _filled(client, Random(17))
    listed = json_of(client.get(f"{_PATH}/periods"))
    read = frozenset[int]().union(*(months for _, months, _ in made if months is not None))
    assert [item["period"] for item in listed["items"]] == [_month(one) for one in range(min(read), max(read) + 1)]
    for number, item in enumerate(listed["items"], min(read)):
        most = _worst(made, number)
        assert item["counted"] == pytest.approx(float(most))
        assert item["remaining"]["rho"] == pytest.approx(float(9 - most))
        assert item["spent"] == pytest.approx(float(_worst(made, number, held=False)))
        unit = _months_of(item["window"])
        assert number in unit
        assert len(unit) == 2
        assert _of(made, None, held=True) + sum(_of(made, month, held=True) for month in unit) == most
        assert item["window"]["start"] == _month(min(unit))
        assert item["releases"] == sum(1 if months is None else len(months & unit) for _, months, _ in made)
    far = json_of(client.get(f"{_PATH}/periods?from=2030-01&to=2030-02"))["items"]
    assert [item["counted"] for item in far] == pytest.approx([float(_worst(made, 39))] * 2)


def _months_of(window: Any) -> frozenset[int]:
    months = {_month(number): number for number in range(60)}
    runs = [(one, one) if isinstance(one, str) else (one["from"], one["to"]) for one in window["periods"]]
    return frozenset(number for first, last in runs for number in range(months[first], months[last] + 1))


def test_a_balance_bounds_every_set_of_periods(client: Client) -> None:
    made = _filled(client, Random(18))
    for query, including in (("", ()), *((f"?period={_month(month)}", (month,)) for month in (0, 4, 9, 30))):
        shown = json_of(client.get(f"{_PATH}/balance{query}"))
        assert shown["basis"] == "largest_periods"
        assert shown["spent"]["zcdp"]["rho"] == pytest.approx(float(_worst(made, *including, held=False)))
        assert shown["reserved"]["zcdp"]["rho"] == pytest.approx(float(_worst(made, *including, committed=False)))
        assert shown["remaining"]["rho"] == pytest.approx(float(9 - _worst(made, *including)))
        unit = _months_of(shown["window"])
        assert _of(made, None, held=True) + sum(_of(made, month, held=True) for month in unit) == _worst(
            made, *including
        )
    head = json_of(client.get(f"{_PATH}/head"))["seq"]
    at_head, present = (json_of(client.get(f"{_PATH}/balance{query}")) for query in (f"?as_of={head}", ""))
    assert {**at_head, "partitions": None} == {**present, "partitions": None}
    history = json_of(client.get(f"{_PATH}/history"))["points"][-1]
    assert history["counted"] == pytest.approx(float(_worst(made)))
    assert history["spent"] == pytest.approx(float(_worst(made, held=False)))


@pytest.mark.parametrize("tag", [None, "a"])
def test_no_figure_of_a_balance_is_below_the_composition_of_a_set_of_periods(client: Client, tag: str | None) -> None:
    """Of geometric, Gaussian and Laplace noise, in months of their own, so that each figure has another worst set."""
    open_account(
        client,
        budget={"definition": "approximate", "epsilon": 50, "delta": "1e-3", "declared_delta": "1e-4"},
        periods=_ANY,
    )
    random, made = Random(3), list[tuple[dict[str, Any], frozenset[int] | None]]()
    kinds: list[dict[str, Any]] = [
        pure("0.9", name="n"),
        concentrated("0.02", name="n"),
        {"type": "laplace", "epsilon": "0.3", "name": "n"},
        {"type": "declared", "epsilon": "0.1", "delta": "1e-6", "reference": "r", "name": "n"},
    ]
    for number in range(16):
        read = None if number == 7 else frozenset(random.sample(range(5), random.randrange(1, 3)))
        plan = random.choice(kinds) | ({"tags": ["a"]} if random.random() < 0.5 else {})
        _charge(client, plan, "all" if read is None else {"list": [_month(one) for one in sorted(read)]})
        if tag is None or plan.get("tags"):
            made.append((plan, read))
    asked = "delta=1e-5&delta=1e-3" + ("" if tag is None else f"&tag={tag}")
    for including, query in (((), ""), ((2,), f"&period={_month(2)}")):
        shown = json_of(client.get(f"{_PATH}/balance?{asked}{query}"))["spent"]
        for unit in combinations(range(5), 2):
            if set(including) <= set(unit):
                _assert_above(shown, [plan for plan, read in made if read is None or read & set(unit)])


def _assert_above(shown: Any, plans: Iterable[dict[str, Any]]) -> None:
    plan = Sequence(parts=tuple(map(read_plan, plans)))
    deltas = (Fraction(1, 10**5), Fraction(1, 10**3))
    of_set = guarantee(plan, Neighbouring.ADD_REMOVE, deltas=deltas, adaptive=False)
    pairs = [(shown["pure"], "epsilon", of_set.epsilon), (shown["zcdp"], "rho", of_set.rho)]
    pairs += [(one, "epsilon", loss) for one, (_, loss) in zip(shown["rdp"], of_set.rdp, strict=True)]
    pairs += [
        (found["fixed"], "epsilon", best.fixed.epsilon)
        for found, best in zip(shown["best"], of_set.best, strict=True)
        if best.fixed is not None
    ]
    for found, name, loss in pairs:
        figure = None if found is None else found[name]
        assert figure is None or (loss.nats is not None and figure * (1 + 1e-6) >= loss.nats)
    assert any(found is not None for found, _, _ in pairs)


def test_refusals_name_the_periods(client: Client) -> None:
    open_account(client, budget={"definition": "zcdp", "rho": 1}, periods=_ANY)
    for month, rho in ((1, "0.3"), (5, "0.4"), (6, "0.1")):
        _charge(client, concentrated(rho, name="n"), {"list": [_month(month)]})
    large = {"type": "discrete_gaussian", "rho": "0.7", "name": "n"}
    body: dict[str, Any] = {"name": "n", "plan": large, "periods": {"from": _month(8), "to": _month(9)}}
    problem = problem_of(client.post(f"{_PATH}/releases", json=body), "budget_exceeded")
    assert problem["window"] == f"{_month(8)} to {_month(9)}"
    assert problem["failures"][0]["requested"] == pytest.approx(1.0)  # 1.4, where 0.4 was
    assert problem["failures"][0]["remaining"] == pytest.approx(0.6)
    assert problem["noise_multiplier_that_fits"] > 1
    entry = json_of(client.get(f"{_PATH}/journal"))["items"][-1]["entry"]
    assert entry["content"]["window"] == problem["window"]
    scaled = {
        "type": "discrete_gaussian",
        "rho": str(0.7 / problem["noise_multiplier_that_fits"] ** 2 * 0.999),
        "name": "n",
    }
    _charge(client, scaled, body["periods"])
    assert json_of(client.get(f"{_PATH}/verify"))["valid"]


def test_dry_runs_batches_and_reservations_are_as_charges(client: Client) -> None:
    open_account(client, budget={"definition": "zcdp", "rho": 1}, periods=_ANY, approval_above="0.5")
    both = {"list": [_month(1), _month(4)]}
    plan = {"type": "discrete_gaussian", "rho": "0.3", "name": "n"}
    body = {"name": "n", "plan": plan, "periods": both}
    json_of(client.post(f"{_PATH}/releases?dry_run=true", json=body))
    problem_of(client.post(f"{_PATH}/releases/batch", json={"releases": [body, body]}), "budget_exceeded")
    held = json_of(client.post(f"{_PATH}/releases", json=body | {"reserve_for": "PT1H"}), 201)
    assert json_of(client.get(_PATH))["counted_exact"] == "0.6"
    json_of(client.post(f"{_PATH}/releases/{held['id']}/void", json={"reason": "a test"}))
    assert json_of(client.get(_PATH))["counted_exact"] == "0"
    assert json_of(client.get(f"{_PATH}/verify"))["valid"]


def test_a_receipt_and_a_registry_entry_state_them(client: Client) -> None:
    open_account(client, periods=_ANY)
    release = _charge(client, concentrated("0.1", name="n"), {"list": [_month(1), _month(4)]})
    receipt = json_of(client.get(f"{_PATH}/releases/{release['id']}/receipt"))
    assert receipt["release"]["periods"] == {"list": [_month(1), _month(4)]}
    as_json = {"Accept": "application/json"}
    lacking = problem_of(client.get(f"{_PATH}/registry-entry", headers=as_json), "incomplete")["missing"]
    words = {"name": "n", "description": "d", "intended_use": "u", "data_product_type": "Dataset"}
    known = {name: words.get(name, ["c"] if name.endswith("s") else "2026-01-01") for name in lacking}
    json_of(client.patch(_PATH, json={"metadata": known}))
    whole = json_of(client.get(f"{_PATH}/registry-entry", headers=as_json))["deployment"]
    assert "at most 2 months, whichever they are" in whole["privacy_loss"]["privacy_unit_details"]
    assert "the 2 periods with the largest losses" in whole["accounting"]["composition"]


def test_an_empty_account_has_no_period_yet(client: Client) -> None:
    open_account(client, periods={"calendar": "index", "participation": {"any": 3}})
    empty = json_of(client.get(f"{_PATH}/periods"))
    assert (empty["items"], empty["common"]["releases"]) == ([], 0)
    assert json_of(client.get(f"{_PATH}/balance"))["window"] is None
    _charge(client, pure("0.5", name="n"), {"from": -1, "to": 2})
    listed = json_of(client.get(f"{_PATH}/periods"))["items"]
    assert [item["period"] for item in listed] == [-1, 0, 1, 2]
    balance = json_of(client.get(f"{_PATH}/balance?period=9"))
    assert balance["window"] == {"start": -1, "periods": [{"from": -1, "to": 0}, 9]}
    assert balance["spent"]["pure"]["epsilon"] == 1


def test_nothing_is_allotted_where_units_are_in_any_periods(client: Client) -> None:
    open_account(client, budget=_ZCDP, periods=_ANY)
    share = {
        "name": "share",
        "unit": "person",
        "neighbouring": "add_remove",
        "budget": {"definition": "zcdp", "rho": 1},
    }
    refused = client.post("/v1/accounts", json=share | {"parent": "people", "funding": "allotted"})
    assert pointers_of(refused) == ["/funding"]
    gauge = json_of(client.get(f"{_PATH}?with_gauge=true"))["gauge"]
    assert (gauge["used"], gauge["window"]) == (0.0, None)
