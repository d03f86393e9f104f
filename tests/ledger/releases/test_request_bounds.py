"""Bounds of a request: the texts that subplans repeat and the pairs of periods and offsets, before they are made."""

from fractions import Fraction
from typing import Any

import pytest

from service.errors import Fault, InvalidInput
from service.ledger.releases import preparation, request_bounds
from service.ledger.releases.preparation import NewRelease
from service.ledger.spending.subplans import charged_to, repeated_sizes, subplans_of
from service.ledger.storage.database import Database
from service.privacy import periods as service_periods
from service.privacy.plans.notation import read_plan
from tests.ledger.charging import account_of, charge, open_account

_EACH = {"calendar": "index", "participation": {"offsets": [0]}}
_SCATTERED = {"calendar": "index", "participation": {"offsets": [2 * k for k in range(1_000)]}}
_FAR = {"list": [2 * k - 10**9 for k in range(5_000)]}
_NOISE = {"type": "discrete_gaussian", "sigma_squared": "100000"}


def _plan(mechanisms: int, **more: Any) -> dict[str, Any]:
    parts = [_NOISE | {"sigma_squared": str(100_000 + k)} for k in range(mechanisms)]
    return {"type": "sequence", "parts": parts} | more


def _prepare(database: Database, plan: dict[str, Any], *stated: Any, name: str = "people", number: int = 1) -> None:
    asked = [
        NewRelease(
            "n", read_plan(plan), plan, (), Fraction(1, 10**10), "/plan", None, one, f"/releases/{place}/periods"
        )
        for place, one in enumerate(stated)
    ]
    preparation.prepare(database, name, asked * number)


def _fault(database: Database, plan: dict[str, Any], *stated: Any, name: str = "people", number: int = 1) -> Fault:
    with pytest.raises(InvalidInput) as refused:
        _prepare(database, plan, *stated, name=name, number=number)
    (fault,) = refused.value.faults
    return fault


def test_listed_periods_are_not_repeated_for_each_of_many_mechanisms(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(database, periods=_EACH)
    _prepare(database, _plan(250), _FAR)
    _prepare(database, _plan(2_000), {"from": 0, "to": 4_999})
    monkeypatch.setattr(preparation, "charged_to", None)  # none of these texts is made
    for mechanisms in (400, 4_000):
        fault = _fault(database, _plan(mechanisms), _FAR)
        assert fault.pointer == "/plan"
        assert fault.detail.startswith(
            "expected at most 16777216 bytes of tags and periods, which each distinct subplan"
        )


@pytest.mark.parametrize("nodes", [1, 4])
def test_tags_are_not_repeated_for_each_of_many_mechanisms(
    database: Database, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    open_account(database)
    plan = _plan(4_000)
    for node in range(nodes):
        tags = {"tags": [f"{node}{k:03}" + "t" * 196 for k in range(64)]}
        plan = plan | tags if not node else {"type": "sequence", "parts": [plan], **tags}
    _prepare(database, _plan(4_000), None)
    monkeypatch.setattr(preparation, "subplans_of", None)
    assert "bytes of tags and periods" in _fault(database, plan, None).detail


def test_texts_count_in_each_account_and_each_release(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal releases of few subplans are written together, and those of many one by one."""
    open_account(database, "agency", periods=_EACH)
    open_account(database, parent="agency", periods=_EACH)
    for stated, plan, number, times in [
        ({"list": [1, 3]}, _plan(3), 5, 1),
        ({"list": [1, 3]}, _plan(65), 5, 5),
        ("all", _plan(65, tags=["a", "b" * 10]), 1, 1),
    ]:
        texts = charged_to(subplans_of(read_plan(plan), ()), '{"list":[1,3]}' if stated != "all" else '"all"')
        bare = subplans_of(read_plan({**plan, "tags": []}), ())
        frame = len('{"periods":,"plan":}') * len(bare) + len('"tags":[],') * len(bare) * bool(plan.get("tags"))
        repeated = 2 * times * (sum(map(len, texts)) - sum(map(len, bare)) - frame)
        for most, refused in ((repeated + 2 * 65, False), (repeated - 2 * 65, True)):
            monkeypatch.setattr(request_bounds, "MOST_REPEATED", most)
            if refused:
                assert _fault(database, plan, stated, number=number).pointer == (
                    "/plan" if number == 1 else "/releases"
                )
            else:
                _prepare(database, plan, stated, number=number)


def test_sizes_are_at_least_what_a_text_repeats() -> None:
    plan = _plan(2, tags=["\u20ac" * 5, 'a "b"']) | {"reads": "c"}
    plan["parts"][0]["tags"] = ["own"]
    alone = subplans_of(read_plan(_plan(2)), ())
    sizes = list(repeated_sizes(read_plan(plan), ["of the release"]))
    whole = subplans_of(read_plan(plan), ["of the release"])
    frame = len('"tags":[],"reads":"",')
    found = sum(len(text.encode()) for text in whole) - sum(map(len, alone)) - 2 * frame
    assert len(sizes) == 2
    assert found <= sum(sizes) <= found + 10


@pytest.mark.parametrize("depth", [1, 8])
def test_scattered_periods_are_counted_for_a_batch_and_a_line_before_their_windows(
    database: Database, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    for number in range(depth):
        open_account(database, f"l{number}", parent=f"l{number - 1}" if number else None, periods=_SCATTERED)
    several = [{"list": [2 * (k + place) for k in range(96 // depth)]} for place in range(30)]
    touched: list[int] = []
    found = service_periods.touched

    def counted(participation: Any, periods: Any) -> Any:
        touched.append(len(periods.ranges) * 1_000)
        return found(participation, periods)

    monkeypatch.setattr(service_periods, "touched", counted)
    fault = _fault(database, _NOISE, *several, name=f"l{depth - 1}")
    assert fault.pointer == "/releases"
    assert "at most 100000 pairs of a range of adjacent periods and a run of adjacent offsets" in fault.detail
    assert sum(touched) <= 100_000


def test_equal_periods_of_a_batch_are_counted_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(database, periods=_SCATTERED)
    monkeypatch.setattr(preparation, "_WINDOW", 0)
    read: list[object] = []

    def reading(calendar: Any, stated: object, at: str) -> Any:
        read.append(stated)
        return service_periods.read_periods(calendar, stated, at)

    monkeypatch.setattr(preparation, "read_periods", reading)
    stated = {"list": [2 * k for k in range(0, 200, 2)]}
    _prepare(database, _NOISE, *[dict(stated) for _ in range(30)])
    assert len(read) == 1


def test_a_charge_to_as_many_windows_as_may_be_compared(database: Database) -> None:
    """The estimate is for windows of unlike totals that miss the maximum, in each account of a line."""
    open_account(database, "agency", definition="approximate", epsilon="1", delta="1e-6", periods=_EACH)
    open_account(database, "programme", periods=_EACH)
    refused = _fault(database, _NOISE, {"from": 0, "to": 3_999}, name="agency").detail
    assert "windows of their periods 4000" in refused
    _prepare(database, _NOISE, {"from": 0, "to": 3_499}, name="agency")
    _prepare(database, _NOISE, {"from": 0, "to": 9_999}, name="programme")  # as many as one release may touch
    charge(database, _NOISE, name="programme", periods={"from": 0, "to": 0})
    assert account_of(database, "programme").releases == 1
