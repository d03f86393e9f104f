"""Published totals of places of a table: every one met exactly by cells that are not negative, whatever the noise."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from service.errors import InvalidInput
from service.postprocess.published import PlaceTotal, TotalBlocks, blocks_of, project, rake

_SHAPE = (3, 2, 4)


def _mask(one: PlaceTotal) -> Any:
    along = dict(zip(one.axes, one.place, strict=True))
    return np.array([all(at[axis] == place for axis, place in along.items()) for at in np.ndindex(_SHAPE)])


@st.composite
def _consistent(draw: Any) -> tuple[list[PlaceTotal], list[int]]:
    """Some totals of a table that exists, of nested margins, and noisy cells that have nothing to do with it."""
    true = np.array(draw(st.lists(st.integers(0, 50), min_size=24, max_size=24))).reshape(_SHAPE)
    order = draw(st.permutations(range(3)))
    depths = draw(st.sets(st.integers(0, 3), min_size=1))
    published = []
    for depth in sorted(depths):
        axes = tuple(sorted(order[:depth]))
        for place in itertools.product(*(range(_SHAPE[axis]) for axis in axes)):
            if draw(st.booleans()):
                at: list[Any] = [slice(None)] * 3
                for axis, where in zip(axes, place, strict=True):
                    at[axis] = where
                published.append(PlaceTotal(axes, place, int(true[tuple(at)].sum())))
    noisy = draw(st.lists(st.integers(-60, 120), min_size=24, max_size=24))
    return draw(st.permutations(published)), noisy


@settings(max_examples=80)
@given(_consistent(), st.sampled_from([rake, project]))
def test_every_total_is_met_by_cells_that_are_not_negative(
    case: tuple[list[PlaceTotal], list[int]], adjust: Any
) -> None:
    published, noisy = case
    adjusted = adjust(np.array(noisy), blocks_of(_SHAPE, published))
    assert adjusted.dtype == np.int64
    assert (adjusted >= 0).all()
    for one in published:
        assert adjusted[_mask(one)].sum() == one.total
    inside = np.any([_mask(one) for one in published], axis=0) if published else np.zeros(24, bool)
    assert (adjusted[~inside] == np.maximum(np.array(noisy)[~inside], 0)).all()


@st.composite
def _crossing(draw: Any) -> tuple[list[PlaceTotal], list[int]]:
    """Some totals of a table that exists, of any margins, and noisy cells that have nothing to do with it."""
    true = np.array(draw(st.lists(st.integers(0, 9), min_size=24, max_size=24))).reshape(_SHAPE)
    places = [
        (axes, place)
        for size in range(4)
        for axes in itertools.combinations(range(3), size)
        for place in itertools.product(*(range(_SHAPE[axis]) for axis in axes))
    ]
    published = []
    for axes, place in draw(st.lists(st.sampled_from(places), min_size=2, max_size=16, unique=True)):
        total = int(true.ravel()[_mask(PlaceTotal(axes, place, 0))].sum())
        published.append(PlaceTotal(axes, place, total))
    return published, draw(st.lists(st.integers(-30, 40), min_size=24, max_size=24))


@settings(max_examples=60, deadline=None)
@given(_crossing(), st.sampled_from([rake, project]))
def test_totals_of_any_margins_that_one_table_has_are_met(
    case: tuple[list[PlaceTotal], list[int]], adjust: Any
) -> None:
    published, noisy = case
    adjusted = adjust(np.array(noisy), blocks_of(_SHAPE, published))
    assert (adjusted >= 0).all()
    for one in published:
        assert adjusted[_mask(one)].sum() == one.total
    inside = np.any([_mask(one) for one in published], axis=0)
    assert (adjusted[~inside] == np.maximum(np.array(noisy)[~inside], 0)).all()


@settings(max_examples=60)
@given(_consistent())
def test_the_projection_is_nearer_than_raking(case: tuple[list[PlaceTotal], list[int]]) -> None:
    published, noisy = case
    blocks, cells = blocks_of(_SHAPE, published), np.array(noisy)
    assert ((project(cells, blocks) - cells) ** 2).sum() <= ((rake(cells, blocks) - cells) ** 2).sum()


def test_a_total_leaves_the_rest_to_the_cells_of_no_finer_one() -> None:
    published = [PlaceTotal((), (), 100), PlaceTotal((0,), (1,), 60), PlaceTotal((0, 1), (1, 0), 60)]
    blocks = blocks_of(_SHAPE, published)
    assert isinstance(blocks, TotalBlocks)
    assert blocks.totals.tolist() == [40, 0, 60]
    adjusted = project(np.full(24, 5), blocks).reshape(_SHAPE)
    assert adjusted[1, 1].tolist() == [0, 0, 0, 0]
    assert adjusted[1, 0].tolist() == [15, 15, 15, 15]
    assert sorted(set(adjusted[[0, 2]].ravel().tolist())) == [2, 3]  # 40 over 16 cells


@pytest.mark.parametrize(
    ("published", "pointers"),
    [
        ([PlaceTotal((), (), -1)], ["/published/0/total"]),
        ([PlaceTotal((0,), (1,), 5), PlaceTotal((), (), 4)], ["/published/1/total"]),
        ([PlaceTotal((), (), 9), *(PlaceTotal((0,), (n,), 2) for n in range(3))], ["/published/0/total"]),
        ([PlaceTotal((0,), (1,), 5), PlaceTotal((0,), (1,), 5)], ["/published/1"]),
        ([PlaceTotal((0,), (1,), 2**61)], ["/published"]),
    ],
)
def test_totals_that_no_table_has_are_refused(published: list[PlaceTotal], pointers: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        blocks_of(_SHAPE, published)
    assert [fault.pointer for fault in refused.value.faults] == pointers


@pytest.mark.parametrize("adjust", [rake, project])
def test_whatever_the_noise_totals_are_met(adjust: Any) -> None:
    """An adjustment that failed for some noisy counts would tell something of them."""
    blocks = TotalBlocks(np.repeat([0, 1, -1], 4), np.array([2**59, 0]))
    for cells in ([0] * 12, [2**63 - 1] * 12, [-(2**63)] * 12, [2**63 - 1, -(2**63)] * 6):
        adjusted = adjust(np.array(cells, np.int64), blocks)
        assert adjusted[:4].sum() == 2**59
        assert adjusted[4:8].sum() == 0
        assert (adjusted >= 0).all()
