"""Selections have their probabilities exactly."""

from collections import Counter
from fractions import Fraction

import pytest

from service.noise import Keystream, select
from tests.noise.reference import chi_square_p
from tests.privacy.reference import mp

DRAWS = 4_000


@pytest.mark.parametrize(
    ("scores", "rate"),
    [
        ([0, 0, 0, 0, 0], Fraction(1)),
        ([3, 1, 4, 1, 5, 9, 2, 6], Fraction(1, 3)),
        ([Fraction(1, 7), Fraction(-2, 3), 0], Fraction(5, 2)),
        ([2**53, 2**53 - 1, -(2**53)], Fraction(1, 2)),
    ],
)
def test_candidates_are_selected_by_their_scores(scores: list[int | Fraction], rate: Fraction) -> None:
    keystream = Keystream(bytes(32))
    seen = Counter(select(scores, rate, keystream) for _ in range(DRAWS))
    top = max(scores)
    weights = [float(mp.exp(mp.mpf(float((score - top) * rate)))) for score in scores]
    places = [k for k, weight in enumerate(weights) if weight * DRAWS > 10]
    assert set(seen) <= set(places)
    expected = [weights[k] / sum(weights) * DRAWS for k in places]
    assert chi_square_p([seen[k] for k in places], expected) > 1e-4


class Words:
    """A keystream of some words."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def read(self, count: int) -> bytes:
        return self.left.pop(0).to_bytes(count, "little")


def test_the_first_candidate_whose_share_is_above_the_uniform_number_is_selected() -> None:
    """By the shares 1/4, 1/2, 3/4 and 1 of four equal scores."""
    for word, place in ((0, 0), (2**62 - 1, 0), (2**62, 1), (2**63 - 1, 1), (2**63, 2), (2**64 - 1, 3)):
        assert select([5, 5, 5, 5], Fraction(1), Words(word)) == place  # type: ignore[arg-type]


def test_further_bits_decide_where_the_first_do_not() -> None:
    """The share of the first of two is exp(1)/(1 + exp(1)), whose first word decides nothing by itself."""
    with mp.workdps(60):
        share = mp.exp(1) / (1 + mp.exp(1))
        word = int(mp.floor(share * 2**64))
        rest = int(mp.floor(share * 2**128)) - word * 2**64
    assert select([1, 0], Fraction(1), Words(word, rest - 1)) == 0  # type: ignore[arg-type]
    assert select([1, 0], Fraction(1), Words(word, rest + 1)) == 1  # type: ignore[arg-type]
    assert select([1, 0], Fraction(1), Words(word, rest, 0)) == 0  # type: ignore[arg-type]


def test_no_scores_make_it_long() -> None:
    """It reads one word whatever they are: the best alone, equal ones, or ones of astronomic size."""
    for scores in ([1] + [-(10**9)] * 999, [0] * 1000, [Fraction(10) ** 400, -(Fraction(10) ** 400)] * 50):
        select(scores, Fraction(1, 2), Words(1 << 40))  # type: ignore[arg-type]
    assert select([Fraction(10) ** -400, 0], Fraction(1), Words(2**63 - 1, 0)) == 0  # type: ignore[arg-type]
    assert select([7], Fraction(1), Words(2**64 - 1)) == 0  # type: ignore[arg-type]
