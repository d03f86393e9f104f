"""Samples against the laws: frequencies, tails, moments, independence at fixed keys; and what draws must hold to."""

import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.noise import Keystream, NoiseLaw, add_noise, sample, sampler
from service.noise.blocks import BlockSampler
from service.noise.table import InverseTable
from tests.noise.reference import KEY, RARE, chi_square_p, gaussian, geometric, osgt, upper_tail

LONG = Fraction(1, 10**200)  # too small to be seen in a law, but every integer of it is 660 bits long

_SHORT = [
    *(geometric(scale) for scale in ("0.01", "0.25", "2.336", "104/7", 100, 255, 256, 3000, 10**6)),
    *(gaussian(v) for v in ("0.01", "0.3", "9.375", 10**4, 255**2, 256**2, 10**7, 10**12)),
    *(osgt(*both) for both in ((40, "40/3"), (10**4, "2.5"), (10**4, 10**5), (10**6, 700), (10**11, 4 * 10**5))),
    NoiseLaw(scale=Fraction("2.336") + LONG),
]
# Three mechanisms over scales from 0.01 to a million.
_SIZES = [Fraction(size) for size in ("0.01", "0.3", 1, "2.7", 11, 90, 200, 400, 1023, 1024, 10**4, 10**5, "999999.5")]
_LONG = [
    *(geometric(size) for size in _SIZES),
    *(gaussian(size * size) for size in _SIZES),
    *(osgt(size * size, size) for size in _SIZES),
    *(osgt(size * size, size / 20) for size in _SIZES[4:]),
    *(osgt(size * size, size * 20) for size in _SIZES[4:]),
]


class _Truth:
    """The law by mass (width up to 2,000) or by density: probabilities of cells, and moments."""

    def __init__(self, law: NoiseLaw) -> None:
        sizes = [float(law.sigma_squared) ** 0.5] if law.sigma_squared is not None else []
        self.width = min(sizes + ([float(law.scale)] if law.scale is not None else []))
        self.law, self.discrete = law, self.width < 2000
        reach = int(self.width * 60) + 60
        step = 1 if self.discrete else self.width / 2000
        x = np.arange(-reach, reach + 1) if self.discrete else np.arange(-60, 60, 1 / 2000) * self.width
        mass = np.exp(-(x * x) * float(law.quadratic) - abs(x) * float(law.linear))
        self.points, self.masses, self.step = x, mass / mass.sum(), step
        self.above = np.cumsum(self.masses[::-1])[::-1]  # P(X >= x)

    def at_least(self, edges: NDArray[np.int64]) -> NDArray[np.float64]:
        """P(X >= edge) for edges above 0."""
        if not self.discrete:
            return upper_tail(self.law, edges - 0.5)
        return np.asarray(self.above[np.searchsorted(self.points, edges)])

    def moment(self, power: int) -> float:
        return float(np.sum(self.masses * self.points.astype(float) ** power))

    def edges(self, smallest: float) -> NDArray[np.int64]:
        """Positive edges of cells that each hold at least about ``smallest``, the last reaching to infinity."""
        edges, at = [1], 1
        while True:
            step = max(1, int(self.width / 40))
            here = self.at_least(np.array([at]))[0]
            while here - self.at_least(np.array([at + step]))[0] < smallest:
                if self.at_least(np.array([at + step]))[0] < smallest:
                    return np.array(edges)
                step *= 2
            at += step
            if self.at_least(np.array([at]))[0] < smallest:
                return np.array(edges)
            edges.append(at)


def _cells(values: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the values in each cell, from the most negative to the most positive; 0 alone is the middle one."""
    bounds = np.concatenate([-edges[::-1] + 1, edges])
    return np.bincount(np.searchsorted(bounds, values, side="right"), minlength=len(bounds) + 1)


def _check_frequencies(law: NoiseLaw, size: int) -> None:
    values, truth = sample(law, size, Keystream(KEY)), _Truth(law)
    if truth.at_least(np.array([1]))[0] * size < 1e-6:
        assert not values.any()
        return
    edges = truth.edges(20 / size)
    tails = truth.at_least(edges)
    side = tails - np.append(tails[1:], 0)
    expected = size * np.concatenate([side[::-1], [1 - 2 * tails[0]], side])
    keep = expected > 5  # 0 may be rarer
    observed = _cells(values, edges)
    assert observed.sum() == size
    assert chi_square_p(observed[keep], expected[keep]) > RARE
    # The two tails of about 20 values, by themselves.
    strays = np.count_nonzero(abs(values) >= edges[-1])
    assert abs(strays - 2 * size * tails[-1]) < 4.5 * (2 * size * tails[-1]) ** 0.5
    variance, fourth = truth.moment(2), truth.moment(4)
    assert abs(values.mean()) < 4.5 * (variance / size) ** 0.5
    square = (values.astype(float) ** 2).mean()
    assert abs(square - variance) < 4.5 * ((fourth - variance**2) / size) ** 0.5
    if truth.width > 500:  # the last bits are as random as the first
        assert chi_square_p(np.bincount(values & 63, minlength=64), [size / 64] * 64) > RARE


@pytest.mark.parametrize("law", _SHORT, ids=lambda law: str(law)[:90])
def test_samples_have_the_frequencies_tails_and_moments_of_their_law(law: NoiseLaw) -> None:
    _check_frequencies(law, 400_000)


@pytest.mark.statistics
@pytest.mark.parametrize("law", _LONG, ids=str)
def test_frequencies_tails_and_moments_of_ten_million(law: NoiseLaw) -> None:
    _check_frequencies(law, 10**7)


@pytest.mark.parametrize("law", [geometric(2**50), gaussian(2**100), NoiseLaw(scale=Fraction(2**50) - LONG)], ids=str)
def test_the_widest_laws_have_their_frequencies(law: NoiseLaw) -> None:
    _check_frequencies(law, 100_000)


def _independent(values: NDArray[np.int64], lag: int) -> float:
    """The p-value of a table of eighths by eighths of values and those ``lag`` later."""
    ranks = np.searchsorted(np.quantile(values, np.arange(1, 8) / 8), values, side="right")
    counts = np.bincount(ranks[:-lag] * 8 + ranks[lag:], minlength=64).reshape(8, 8)
    expected = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
    filled = expected.ravel() > 5
    return chi_square_p(counts.ravel()[filled], expected.ravel()[filled])


_LAGS = (1, 2, 3, 8, 64, 1 << 15, (1 << 15) + 1)
_UNLIKE = [geometric(3), gaussian(400), geometric(10**5), gaussian(10**10), osgt(10**8, 10**4)]


@pytest.mark.parametrize("law", _UNLIKE, ids=str)
def test_values_tell_nothing_of_later_ones(law: NoiseLaw) -> None:
    values = sample(law, 400_000, Keystream(KEY))
    assert all(_independent(values, lag) > RARE for lag in _LAGS)


@pytest.mark.statistics
@pytest.mark.parametrize("law", _UNLIKE, ids=str)
def test_ten_million_values_tell_nothing_of_later_ones(law: NoiseLaw) -> None:
    values = sample(law, 10**7, Keystream(KEY))
    assert all(_independent(values, lag) > RARE for lag in _LAGS)


def test_neighbouring_laws_by_table_and_by_blocks_agree() -> None:
    # One law by both ways: the frequencies differ as two samples of one law do.
    law, size = gaussian(200**2), 400_000
    one, two = np.empty(size, np.int64), np.empty(size, np.int64)
    InverseTable(law).draw(one, Keystream(KEY))
    BlockSampler(law, 2).draw(two, Keystream(KEY[::-1]))
    cells = [np.bincount(np.clip(values // 16, -40, 40) + 40, minlength=81) for values in (one, two)]
    both, difference = cells[0] + cells[1], cells[0] - cells[1]
    filled = both > 10
    assert chi_square_p(difference[filled] + both[filled], both[filled]) > RARE  # (o - e)²/e, e the sum


@pytest.mark.parametrize(
    ("law", "kind"),
    [
        (gaussian(255**2), InverseTable),
        (gaussian(256**2), BlockSampler),
        (geometric(128 - LONG), InverseTable),
        (geometric(128), BlockSampler),
        (osgt(10**30, 255), InverseTable),
        (osgt(256**2, 10**40), BlockSampler),
    ],
)
def test_wide_laws_are_drawn_by_blocks(law: NoiseLaw, kind: type[Any]) -> None:
    assert isinstance(sampler._sampler_of(law), kind)


@pytest.mark.parametrize("law", [geometric("0.001"), gaussian("0.000001"), osgt("0.001", 10**300)], ids=str)
def test_the_narrowest_laws_are_zero(law: NoiseLaw) -> None:
    # The mass away from 0 is below exp(-499).
    assert not sample(law, 5_000, Keystream(KEY)).any()


@pytest.mark.parametrize(
    ("sigma_squared", "scale"), [(Fraction(10**300), Fraction(1000)), (Fraction(10**6), Fraction(10**300))], ids=str
)
def test_a_part_that_is_far_too_wide_is_as_good_as_absent(sigma_squared: Fraction, scale: Fraction) -> None:
    alone = geometric(scale) if scale < sigma_squared else gaussian(sigma_squared)
    both = sample(NoiseLaw(sigma_squared=sigma_squared, scale=scale), 100_000, Keystream(KEY))
    assert both.tolist() == sample(alone, 100_000, Keystream(KEY)).tolist()


@pytest.mark.parametrize("law", _UNLIKE, ids=str)
def test_the_same_key_gives_the_same_values(law: NoiseLaw) -> None:
    size = 100_000
    first = sample(law, size, Keystream(KEY))
    assert first.dtype == np.int64
    assert first.shape == (size,)
    assert np.array_equal(first, sample(law, size, Keystream(KEY)))
    assert not np.array_equal(first, sample(law, size, Keystream(KEY[::-1])))
    assert not np.array_equal(first, sample(law, size, Keystream()))


def test_a_keystream_goes_on_where_it_was() -> None:
    stream = Keystream(KEY)
    one, two = (sample(geometric(10**9), 100, stream) for _ in range(2))
    assert not set(one.tolist()) & set(two.tolist())


def _fresh(law: NoiseLaw) -> bytes:
    return sample(law, 50_000, Keystream(KEY)).tobytes()


def test_threads_share_the_tables() -> None:
    laws = [geometric(7), gaussian(10**9), osgt(10**8, 10**4), gaussian(30)] * 4
    alone = [_fresh(law) for law in laws]
    sampler._sampler_of.cache_clear()  # so that the tables are built by threads too
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(_fresh, laws)) == alone


def test_the_kept_tables_are_bounded() -> None:
    for scale in range(1, sampler._KEPT_LAWS + 20):
        sample(geometric(Fraction(scale, 1000)), 1, Keystream(KEY))
    assert sampler._sampler_of.cache_info().currsize == sampler._KEPT_LAWS


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("law", [geometric(3), gaussian(250**2), gaussian(10**15), geometric(2**50)], ids=str)
def test_memory_is_the_result_and_little_more(law: NoiseLaw, traced: None) -> None:
    sample(law, 1, Keystream(KEY))  # builds the tables
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    values = sample(law, 2_000_000, Keystream(KEY))
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < values.nbytes + 2_000_000


def test_tables_take_little_memory(traced: None) -> None:
    before, _ = tracemalloc.get_traced_memory()
    built = [InverseTable(geometric(255)), BlockSampler(gaussian(10**12), 14)]
    after, _ = tracemalloc.get_traced_memory()
    assert after - before < 600_000 * len(built)


def test_a_sample_of_no_values_is_empty() -> None:
    assert sample(geometric(1), 0, Keystream(KEY)).shape == (0,)
    assert sample(geometric(10**6), 0, Keystream(KEY)).shape == (0,)
    assert add_noise([], geometric(1), Keystream(KEY)).shape == (0,)


@pytest.mark.parametrize(
    ("law", "limit"),
    [
        (geometric(2**50 + LONG), r"scale of at most 2\^50"),
        (geometric(10**400), r"scale of at most 2\^50"),
        (gaussian(2**100 + LONG), r"sigma_squared of at most 2\^100"),
        (osgt(2**100 + LONG, 2**50 + LONG), r"sigma_squared of at most 2\^100"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_laws_too_wide_for_64_bits_are_refused_even_for_no_values(law: NoiseLaw, limit: str) -> None:
    with pytest.raises(ValueError, match=limit):
        sample(law, 0, Keystream(KEY))


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="size of at least 0, got -1"):
        sample(geometric(1), -1, Keystream(KEY))


def test_noise_is_added_count_by_count() -> None:
    law, counts = geometric("2.336"), [0, 7, -3, 2**40, 10**18]
    noise = sample(law, len(counts), Keystream(KEY))
    assert noise.any()
    noisy = add_noise(counts, law, Keystream(KEY))
    assert [int(after) - before for before, after in zip(counts, noisy, strict=True)] == noise.tolist()


def test_noisy_counts_stop_at_the_limits_of_64_bits() -> None:
    law = geometric(2**50)
    top, bottom = 2**63 - 1, -(2**63)
    noise = sample(law, 200, Keystream(KEY)).tolist()
    upper = add_noise([top] * 200, law, Keystream(KEY)).tolist()
    lower = add_noise([bottom] * 200, law, Keystream(KEY)).tolist()
    assert upper == [top + min(value, 0) for value in noise]
    assert lower == [bottom + max(value, 0) for value in noise]


@pytest.mark.parametrize("count", [2**63, -(2**63) - 1])
def test_a_count_beyond_64_bits_is_refused_and_not_repeated(count: int) -> None:
    with pytest.raises(ValueError, match="64-bit") as refusal:
        add_noise([1, count], geometric(1), Keystream(KEY))
    assert str(abs(count)) not in str(refusal.value)
