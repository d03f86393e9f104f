"""Balances and lists of periods: of the window with the largest loss, against the releases that touch it."""

from fractions import Fraction
from itertools import chain
from random import Random
from typing import Any

import pytest

from tests.api.calls import Client, concentrated, json_of, open_account, pages_of, pointers_of, problem_of, pure

_OFFSETS = (0, 2, 3)
_PANEL = {"calendar": "month", "participation": {"offsets": list(_OFFSETS)}}
_PATH = "/v1/accounts/people"


def _month(number: int) -> str:
    return f"{2026 + number // 12}-{number % 12 + 1:02d}"


def _charge(client: Client, plan: Any, periods: Any, **fields: Any) -> Any:
    body = {"name": "a release", "plan": plan, "periods": periods} | fields
    return json_of(client.post(f"{_PATH}/releases", json=body), 201)


def _filled(client: Client, random: Random) -> list[tuple[Fraction, frozenset[int] | None, bool]]:
    """Random releases: their rho, the months that they read, and whether they are held."""
    open_account(client, budget={"definition": "zcdp", "rho": 9}, periods=_PANEL)
    made = []
    for _ in range(25):
        rho, held = Fraction(random.randrange(1, 9), 40), random.random() < 0.3
        read = frozenset(random.sample(range(10), random.randrange(1, 4))) if random.random() < 0.8 else None
        stated = "all" if read is None else {"list": [_month(one) for one in sorted(read)]}
        fields = {"reserve_for": "PT1H"} if held else {}
        _charge(client, concentrated(str(rho), name="n"), stated, **fields)
        made.append((rho, read, held))
    return made


def _spent(made: Any, place: int, *, held: bool) -> Fraction:
    window = {place + offset for offset in _OFFSETS}
    return sum(
        (rho for rho, read, is_held in made if (read is None or read & window) and (held or not is_held)), Fraction(0)
    )


def test_each_period_shows_the_worst_window_that_holds_it(client: Client) -> None:
    made = _filled(client, Random(17))
    listed = json_of(client.get(f"{_PATH}/periods"))
    read = frozenset[int]().union(*(months for _, months, _ in made if months is not None))
    assert [item["period"] for item in listed["items"]] == [_month(one) for one in range(min(read), max(read) + 1)]
    assert listed["next_cursor"] is None
    for number, item in enumerate(listed["items"], min(read)):
        places = [number - offset for offset in _OFFSETS]
        most = max(_spent(made, place, held=True) for place in places)
        assert item["counted"] == pytest.approx(float(most))
        assert item["remaining"]["rho"] == pytest.approx(float(9 - most))
        place = next(one for one in places if _month(one) == item["window"]["start"])
        assert _spent(made, place, held=True) == most
        assert item["spent"] == pytest.approx(float(_spent(made, place, held=False)))
        assert item["releases"] == sum(
            months is None or bool(months & {place + offset for offset in _OFFSETS}) for _, months, _ in made
        )
        for name in ("spent", "counted"):
            assert Fraction(item[f"{name}_exact"]) == _spent(made, place, held=name == "counted")
    assert listed["read"] == {"from": _month(min(read)), "to": _month(max(read))}
    common = [rho for rho, months, _ in made if months is None]
    assert listed["common"]["counted"] == pytest.approx(float(sum(common)))
    assert listed["common"]["releases"] == len(common)


def test_a_balance_is_that_of_the_worst_window_or_of_a_period(client: Client) -> None:
    made = _filled(client, Random(18))
    worst = max(range(-3, 10), key=lambda place: _spent(made, place, held=True))
    balance = json_of(client.get(f"{_PATH}/balance"))
    for shown, place in (
        (balance, worst),
        *(
            (
                json_of(client.get(f"{_PATH}/balance?period={_month(month)}")),
                max(sorted(month - offset for offset in _OFFSETS), key=lambda place: _spent(made, place, held=True)),
            )
            for month in (0, 4, 9, 30)
        ),
    ):
        spent, counted = _spent(made, place, held=False), _spent(made, place, held=True)
        assert shown["spent"]["zcdp"]["rho"] == pytest.approx(float(spent))
        assert shown["reserved"]["zcdp"]["rho"] == pytest.approx(float(counted - spent))
        assert shown["remaining"]["rho"] == pytest.approx(float(9 - counted))
    assert balance["window"]["start"] == _month(worst)
    assert balance["window"]["periods"] == [
        {"from": _month(worst + 2), "to": _month(worst + 3)} if run else _month(worst) for run in (False, True)
    ]
    head = json_of(client.get(f"{_PATH}/head"))["seq"]
    at_head = json_of(client.get(f"{_PATH}/balance?as_of={head}"))
    assert {**at_head, "partitions": None} == {**balance, "partitions": None}


def test_a_balance_composes_the_releases_of_its_window_alone(client: Client) -> None:
    """The largest window in the budget's figure is not the largest in others."""
    open_account(client, budget={"definition": "zcdp", "rho": 2}, periods=_PANEL)
    _charge(client, pure("1.5"), {"list": [_month(0)]})
    for _ in range(9):
        _charge(client, pure("0.3"), {"list": [_month(20)]})
    worst = json_of(client.get(f"{_PATH}/balance"))
    assert worst["spent"]["pure"]["epsilon"] == pytest.approx(1.5)
    assert worst["releases"] == 1
    other = json_of(client.get(f"{_PATH}/balance?period={_month(20)}"))
    assert other["spent"]["pure"]["epsilon"] == pytest.approx(2.7)
    untouched = json_of(client.get(f"{_PATH}/balance?period={_month(40)}"))
    assert (untouched["spent"]["pure"]["epsilon"], untouched["releases"]) == (0, 0)
    assert untouched["window"]["start"] == _month(37)


def test_periods_come_in_pages(client: Client) -> None:
    made = _filled(client, Random(19))
    whole = json_of(client.get(f"{_PATH}/periods?from=2025-06&to=2027-02"))
    assert len(whole["items"]) == 21
    pages = pages_of(client, f"{_PATH}/periods", limit=4, **{"from": "2025-06", "to": "2027-02"})
    assert list(chain.from_iterable(pages)) == whole["items"]
    assert made


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("periods?from=2026", "/query/from"),
        ("periods?to=2026-13", "/query/to"),
        ("periods?from=2026-02&to=2026-01", "/query/to"),
        ("periods?cursor=YWJj", "/query/cursor"),
        ("balance?period=2026-Q1", "/query/period"),
    ],
)
def test_what_is_no_period_is_refused(client: Client, query: str, pointer: str) -> None:
    open_account(client, periods=_PANEL)
    assert pointers_of(client.get(f"{_PATH}/{query}")) == [pointer]


def test_an_empty_account_has_no_period_yet(client: Client) -> None:
    open_account(client, periods={"calendar": "index", "participation": {"offsets": [0, 1]}})
    empty = json_of(client.get(f"{_PATH}/periods"))
    assert (empty["items"], empty["common"]["releases"], empty["read"]) == ([], 0, None)
    assert json_of(client.get(f"{_PATH}/balance"))["window"] is None
    _charge(client, pure("0.5"), {"from": -1, "to": 2})
    listed = json_of(client.get(f"{_PATH}/periods"))["items"]
    assert [item["period"] for item in listed] == [-1, 0, 1, 2]
    assert json_of(client.get(f"{_PATH}/balance?period=-1"))["window"]["start"] == -2


def test_an_account_without_periods_has_no_list_of_them(client: Client) -> None:
    open_account(client)
    problem_of(client.get(f"{_PATH}/periods"), "not_found")
    assert pointers_of(client.get(f"{_PATH}/balance?period=2026-01")) == ["/query/period"]
    assert "window" not in json_of(client.get(f"{_PATH}/balance"))


@pytest.mark.parametrize("participation", [{"offsets": [0]}, {"any": 2}])
def test_a_period_whose_releases_were_voided_stays_in_the_list(client: Client, participation: Any) -> None:
    periods = {"calendar": "month", "participation": participation}
    open_account(client, budget={"definition": "zcdp", "rho": 9}, periods=periods)
    held = _charge(client, concentrated("0.5"), {"list": [_month(1), _month(4)]}, reserve_for="PT1H")
    json_of(
        client.post(
            f"{_PATH}/releases/{held['id']}/void", json={"reason": "a test", "attestation": "none was published"}
        )
    )
    listed = json_of(client.get(f"{_PATH}/periods"))["items"]
    assert [item["period"] for item in listed] == [_month(one) for one in (1, 2, 3, 4)]
    assert {(item["counted"], item["releases"]) for item in listed} == {(0, 0)}
    _charge(client, concentrated("0.25"), "all")
    listed = json_of(client.get(f"{_PATH}/periods"))["items"]
    assert {(item["counted"], item["releases"]) for item in listed} == {(0.25, 1)}
