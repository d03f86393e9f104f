"""Groups of a tabulation: their greatest number, and the bytes of their names, in JSON and in Arrow streams."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pytest

from service.api.schemas import population_groups
from service.api.schemas.population_groups import NamedGroups, PopulationGroup
from service.errors import InvalidInput
from tests.api import streams

# 20,971 names of 200 characters of 4 bytes, which differ in the last, and one of 104: 16 MiB together.
_LONGEST = ["\U0001f600" * 199 + chr(0x20000 + number) for number in range(20_971)] + ["\U0001f600" * 104]

Read = Callable[[Sequence[str]], NamedGroups]


def _of_json(names: Sequence[str]) -> NamedGroups:
    return population_groups.of_json([PopulationGroup(group=name, total_only=True, total=1) for name in names])


def _of_stream(names: Sequence[str], kind: Any = None, compression: str | None = None) -> NamedGroups:
    totals = pa.array([1] * len(names), pa.int64())
    table = {"group": pa.array(names, kind), "total_only": pa.array([True] * len(names)), "total": totals}
    return population_groups.of_stream(streams.stream(table, compression=compression), 1 << 30, lambda _: None)


_READERS: list[tuple[Read, str]] = [
    (_of_json, "/groups"),
    (_of_stream, "/group"),
    (lambda names: _of_stream(names, pa.large_string(), "zstd"), "/group"),
]


@pytest.mark.parametrize(("read", "pointer"), _READERS, ids=["JSON", "Arrow", "compressed Arrow"])
def test_names_take_16_mebibytes_and_not_one_byte_more(
    monkeypatch: pytest.MonkeyPatch, read: Read, pointer: str
) -> None:
    assert read(_LONGEST).names == _LONGEST
    monkeypatch.setattr(population_groups, "_names", None)  # refused before they are texts
    detail = "expected groups whose names take at most 16777216 bytes in UTF-8, got 16777217"
    with pytest.raises(InvalidInput, match=detail) as refused:
        read([*_LONGEST[:-1], _LONGEST[-1] + "x"])
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


def test_a_tabulation_has_250000_groups_and_not_one_more() -> None:
    names = [str(number) for number in range(250_001)]
    assert _of_stream(names[:-1]).names == names[:-1]
    group = PopulationGroup(group="x", total_only=True, total=1)
    with pytest.raises(InvalidInput, match="expected each group once"):
        population_groups.of_json([group] * 250_000)
    refusals: list[tuple[Callable[[], NamedGroups], str]] = [
        (lambda: _of_stream(names), "/group"),
        (lambda: population_groups.of_json([group] * 250_001), "/groups"),
    ]
    for read, pointer in refusals:
        with pytest.raises(InvalidInput, match="expected at most 250000 groups, got 250001") as refused:
            read()
        assert [fault.pointer for fault in refused.value.faults] == [pointer]


@pytest.mark.parametrize("longest", [3, 200])
def test_room_is_reserved_for_lists_of_ages_that_are_padded_to_the_longest(longest: int) -> None:
    """A short stream may have one long list, and each group may get 46 noisy counts."""
    rows = [[[1] * longest, [1]], *[[[1], [1]]] * 2_000]
    ages = pa.array([None, *rows], pa.list_(pa.list_(pa.int64())))
    names = [str(number) for number in range(2_002)]
    totals = pa.array([1, *[None] * 2_001], pa.int64())
    table = {"group": names, "total_only": [True, *[False] * 2_001], "sex_by_age": ages, "total": totals}
    taken: list[int] = []
    found = population_groups.of_stream(streams.stream(table), 1 << 30, taken.append)
    assert found.counts.sex_by_age.nbytes == 2_001 * 2 * longest * 8
    assert max(taken) >= found.counts.sex_by_age.nbytes + 2_001 * 46 * 8 + sum(map(sys.getsizeof, names))
