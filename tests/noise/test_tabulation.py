"""SafeTab's two steps on synthetic groups: which detail, how far the noise strays, and what adds up."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom  # type: ignore[import-untyped]  # it publishes no types

from service.noise import Keystream, tabulation
from service.noise.tabulation import BINS, SIZES, USUAL_RULES, GroupCounts, LevelLaws, bin_ages, tabulate
from service.privacy.accuracy.tails import coverage, margin_of_error
from service.privacy.laws.noise_law import NoiseLaw

_CONFIDENCE = Fraction(95, 100)
_ONE_IN_10_6 = 5e-7  # on each side, of tests that run with one keystream
# (Nation, Detailed) of the paper at a margin of error of 6: the steps take 1/10 and 9/10 of the total's loss.
_GEOMETRIC = LevelLaws(
    NoiseLaw(scale=Fraction(9, 10) / Fraction("0.4569")),
    NoiseLaw(scale=9 / Fraction("0.4569")),
    NoiseLaw(scale=1 / Fraction("0.4569")),
)
_GAUSSIAN = LevelLaws(
    NoiseLaw(sigma_squared=Fraction(9, 10) / Fraction("0.09024")),
    NoiseLaw(sigma_squared=9 / Fraction("0.09024")),
    NoiseLaw(sigma_squared=1 / Fraction("0.09024")),
)


def _keystream(number: int = 0) -> Keystream:
    return Keystream(bytes([number]) * 32)


def _groups(sizes: list[int], ages: int = 100) -> np.ndarray:
    rng = np.random.default_rng(4)
    return np.stack([rng.multinomial(size, np.full(2 * ages, 1 / (2 * ages))) for size in sizes]).reshape(-1, 2, ages)


def _counted(people: np.ndarray, total_only: np.ndarray | None = None) -> GroupCounts:
    marked = np.zeros(len(people), bool) if total_only is None else total_only
    return GroupCounts(people.sum(axis=(1, 2)), marked, people, np.arange(len(people)))


@pytest.mark.parametrize("laws", [_GEOMETRIC, _GAUSSIAN], ids=["geometric", "discrete Gaussian"])
def test_margins_of_error_hold_at_their_confidence(laws: LevelLaws) -> None:
    """Of all published counts together: the binomial test of the coverage that is stated."""
    sizes = [size for size in (0, 20, 700, 3000, 50_000) for _ in range(800)]
    people = _groups(sizes)
    total_only = np.arange(len(sizes)) % 4 == 0
    details, noisy = tabulate(_counted(people, total_only), USUAL_RULES, laws, _keystream())
    assert set(details) == {0, 1, 2, 3, 4}
    starts = np.cumsum(np.take(SIZES, details)) - np.take(SIZES, details)
    for marked, law in ((True, laws.total), (False, laws.step_2)):
        margin = margin_of_error(law, _CONFIDENCE)
        inside = whole = 0
        for number in np.flatnonzero(total_only == marked):
            detail = details[number]
            truth = (
                people[number].sum() if detail < 2 else bin_ages(people[number][None], USUAL_RULES.age_bins[detail - 2])
            )
            errors = abs(noisy[starts[number] :][: SIZES[detail]] - np.ravel(truth))
            inside, whole = inside + int((errors <= margin).sum()), whole + SIZES[detail]
        share = coverage(law, margin)
        assert share >= 0.95
        assert binom.ppf(_ONE_IN_10_6, whole, share) <= inside <= binom.ppf(1 - _ONE_IN_10_6, whole, share)


def test_ages_are_added_up_in_pieces_to_the_counts_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = _counted(_groups([size for size in (0, 700, 3000, 50_000) for _ in range(20)]), np.arange(80) % 3 == 0)
    details, noisy = tabulate(groups, USUAL_RULES, _GEOMETRIC, _keystream(7))
    monkeypatch.setattr(tabulation, "_AT_ONCE", 3)
    again, in_pieces = tabulate(groups, USUAL_RULES, _GEOMETRIC, _keystream(7))
    assert set(details) == {0, 1, 2, 3, 4}
    assert again.tolist() == details.tolist()
    assert in_pieces.tolist() == noisy.tolist()


def test_step_1_decides_with_its_own_noise() -> None:
    """A group at a threshold gets the finer detail with probability P(size + X >= threshold)."""
    size, groups = 490, 20_000
    scale = 9 / Fraction("0.4569")
    people = np.zeros((groups, 2, 1), np.int64)
    people[:, 0, 0] = size
    details, _ = tabulate(_counted(people), USUAL_RULES, _GEOMETRIC, _keystream(1))
    q = float(np.exp(-1 / float(scale)))
    share = q ** (500 - size) / (1 + q)  # P(X >= 10)
    finer = int((details > 1).sum())
    assert binom.ppf(_ONE_IN_10_6, groups, share) <= finer <= binom.ppf(1 - _ONE_IN_10_6, groups, share)
    assert set(details) == {1, 2}


def test_the_deciding_total_is_not_the_published_one() -> None:
    """The published total is drawn afresh: it lies below the threshold as often for either decision."""
    groups = 20_000
    people = np.full((groups, 1, 1), 250, np.int64).repeat(2, axis=1)
    wide = LevelLaws(NoiseLaw(scale=Fraction(1)), NoiseLaw(scale=Fraction(30)), NoiseLaw(scale=Fraction(30)))
    details, noisy = tabulate(_counted(people), USUAL_RULES, wide, _keystream(2))
    totals = noisy[np.cumsum(np.take(SIZES, details))[details == 1] - 1]
    below = int((totals < 500).sum())
    q = float(np.exp(-1 / 30))
    share = 1 - 1 / (1 + q)  # P(X < 0); of the totals that decided, all were below
    assert binom.ppf(_ONE_IN_10_6, totals.size, share) <= below <= binom.ppf(1 - _ONE_IN_10_6, totals.size, share)


@pytest.mark.parametrize("ages", [1, 5, 23, 85, 86, 116, 200])
def test_bins_take_every_age_once(ages: int) -> None:
    rng = np.random.default_rng(ages)
    people = rng.integers(0, 1000, (3, 2, ages))
    for first_ages in USUAL_RULES.age_bins:
        bounds = [*first_ages, 10**6]
        expected = [
            [[sum(row[low:high]) for low, high in pairwise(bounds)] for row in group] for group in people.tolist()
        ]
        assert bin_ages(people, first_ages).tolist() == expected


def test_the_usual_bins_are_as_many_as_their_names_say() -> None:
    assert tuple(map(len, USUAL_RULES.age_bins)) == BINS
    assert SIZES == (1, 1, 8, 18, 46)
    for ages in USUAL_RULES.age_bins:
        assert ages[0] == 0
        assert list(ages) == sorted(set(ages))
    assert list(USUAL_RULES.thresholds) == sorted(USUAL_RULES.thresholds)


def test_no_groups_and_only_marked_ones() -> None:
    details, noisy = tabulate(_counted(np.zeros((0, 2, 1), np.int64)), USUAL_RULES, _GEOMETRIC, _keystream())
    assert details.size == noisy.size == 0
    totals = np.array([5, 10**6])
    marked = GroupCounts(totals, np.array([True, True]), np.zeros((0, 2, 1), np.int64), np.array([-1, -1]))
    details, noisy = tabulate(marked, USUAL_RULES, _GEOMETRIC, _keystream())
    assert details.tolist() == [0, 0]
    assert (abs(noisy - totals) < 200).all()
