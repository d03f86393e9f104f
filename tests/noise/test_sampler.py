"""The sampler against masses from first principles: exactly where all bit strings can be tried, else by chi-square."""

import random
import secrets
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import mpmath  # type: ignore[import-untyped]  # it publishes no types
import pytest

from service.noise import sampler
from service.noise.sampler import Entropy, add_noise, bernoulli_exp, sample
from service.privacy.law import Law

T = TypeVar("T", bound=Hashable)
mp: Any = mpmath.MPContext()  # a context of our own: precision is not shared with other tests
mp.dps = 50


def number(value: Fraction) -> Any:
    return mp.mpf(value.numerator) / value.denominator


def weight(law: Law, x: int) -> Any:
    slope = 0 if law.scale is None else abs(x) / number(law.scale)
    square = 0 if law.sigma_squared is None else mp.mpf(x) ** 2 / (2 * number(law.sigma_squared))
    return mp.exp(-slope - square)


def masses(law: Law, reach: int) -> dict[int, Any]:
    """The masses of -reach..reach, where ``reach`` is far enough for all the mass that matters."""
    weights = {x: weight(law, x) for x in range(-reach, reach + 1)}
    total = mp.fsum(weights.values())
    return {x: w / total for x, w in weights.items()}


class MoreBits(Exception):
    """A run of the sampler asked for bits beyond those it was given."""


def enumerate_exactly(draw: Callable[[Entropy], T], depth: int) -> tuple[dict[T, Fraction], Fraction]:
    """The exact probability of each result over all bit strings of at most ``depth`` bits, and that of none yet."""
    found: dict[T, Fraction] = {}
    undecided = Fraction(0)
    pending: list[tuple[tuple[int, ...], int]] = [((), 0)]
    while pending:
        answers, used = pending.pop()
        left = iter(answers)
        asked: list[int] = []

        def entropy(bits: int, left: Any = left, asked: list[int] = asked) -> int:
            for answer in left:
                return int(answer)
            asked.append(bits)
            raise MoreBits

        try:
            result = draw(entropy)
        except MoreBits:
            if used + asked[0] > depth:
                undecided += Fraction(1, 2**used)
            else:
                pending += [((*answers, value), used + asked[0]) for value in range(2 ** asked[0])]
        else:
            found[result] = found.get(result, Fraction(0)) + Fraction(1, 2**used)
    return found, undecided


@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(1, 7), Fraction(1, 2), Fraction(1), Fraction(7, 3)], ids=str)
def test_bernoulli_exp_has_exactly_its_probability(gamma: Fraction) -> None:
    found, undecided = enumerate_exactly(
        lambda entropy: bernoulli_exp(gamma.numerator, gamma.denominator, entropy), depth=16
    )
    assert undecided < Fraction(1, 25)
    true = number(found.get(True, Fraction(0)))
    assert true <= mp.exp(-number(gamma)) <= true + number(undecided)
    assert sum(found.values()) + undecided == 1


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3, 2), Fraction(2, 3)], ids=str)
def test_every_bit_string_together_gives_the_exact_geometric_law(scale: Fraction) -> None:
    found, undecided = enumerate_exactly(lambda entropy: sample(Law(scale=scale), 1, entropy)[0], depth=17)
    assert undecided < Fraction(1, 2)
    true = masses(Law(scale=scale), 150)
    assert set(found) <= set(true)
    for x, p in true.items():
        exact = number(found.get(x, Fraction(0)))
        assert exact <= p <= exact + number(undecided)
    assert all(found[x] == found[-x] for x in found)


@pytest.mark.parametrize("sigma_squared", [Fraction("0.001"), Fraction(1, 2), Fraction("9.375"), Fraction(2**100, 3)])
@pytest.mark.parametrize("scale", [None, Fraction(1, 7), Fraction(40, 3), Fraction(10**30)])
def test_the_gaussian_keeps_each_geometric_value_with_exactly_the_right_probability(
    sigma_squared: Fraction, scale: Fraction | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A value of mass exp(-|y|/t), kept with probability exp(-g(y)), has the law exp(-y²/(2 sigma²) - |y|/b)
    # if and only if |y|/t + g(y) - y²/(2 sigma²) - |y|/b does not depend on y: a check in exact rationals.
    candidates = [0, 1, -1, 2, -2, 3, 17, -1000, 2**60]
    script, scales, kept_with = iter(candidates), [], []

    def geometric(t: int, s: int, entropy: Entropy) -> int:
        scales.append(Fraction(t, s))
        return next(script)

    def accept(numerator: int, denominator: int, entropy: Entropy) -> bool:
        kept_with.append(Fraction(numerator, denominator))
        return True

    monkeypatch.setattr(sampler, "_geometric", geometric)
    monkeypatch.setattr(sampler, "bernoulli_exp", accept)
    law, slope = Law(sigma_squared=sigma_squared, scale=scale), 1 / scale if scale else 0
    assert sample(law, len(candidates), random.Random(1).getrandbits) == candidates
    constants = {
        abs(y) / t + g - y * y / (2 * sigma_squared) - abs(y) * slope
        for y, t, g in zip(candidates, scales, kept_with, strict=True)
    }
    assert len(constants) == 1
    assert all(g >= 0 for g in kept_with)


RARE = 1e-4  # seeds are fixed, and there are some fifteen such tests: a right sampler hardly ever fails one


def chi_square_p(observed: Sequence[int], expected: Sequence[Any]) -> Any:
    statistic = mp.fsum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return mp.gammainc(mp.mpf(len(observed) - 1) / 2, statistic / 2, mp.inf, regularized=True)


LONG = Fraction(1, 10**200)  # too small to be seen in a law, but every integer of it is 660 bits long


@pytest.mark.parametrize(
    ("law", "reach"),
    [
        (Law(scale=Fraction("0.25")), 60),
        (Law(scale=Fraction("2.336")), 250),
        (Law(scale=Fraction("2.336") + LONG), 250),
        (Law(scale=Fraction(17)), 1500),
        (Law(scale=Fraction(104, 7)), 1500),
        (Law(sigma_squared=Fraction("0.3")), 20),
        (Law(sigma_squared=Fraction("9.375")), 60),
        (Law(sigma_squared=Fraction("9.375") + LONG), 60),
        (Law(sigma_squared=Fraction(10000)), 1500),
        (Law(sigma_squared=Fraction(40), scale=Fraction(40, 3)), 120),
        (Law(sigma_squared=Fraction(10000), scale=Fraction("2.5")), 250),
    ],
    ids=lambda value: str(value)[:60],
)
def test_frequencies_follow_the_mass_function(law: Law, reach: int) -> None:
    size = 200_000
    values = sample(law, size, random.Random(20).getrandbits)
    counts, true = Counter(values), masses(law, reach)
    # Cells of at least 20 expected values, from left to right; the last takes the rest.
    observed, expected = [0], [mp.mpf(0)]
    for x, p in true.items():
        if expected[-1] >= 20:
            observed.append(0)
            expected.append(mp.mpf(0))
        observed[-1] += counts[x]
        expected[-1] += size * p
    observed[-2:], expected[-2:] = [sum(observed[-2:])], [mp.fsum(expected[-2:])]
    assert sum(observed) == size
    assert chi_square_p(observed, expected) > RARE

    variance = mp.fsum(p * x * x for x, p in true.items())
    fourth = mp.fsum(p * x**4 for x, p in true.items())
    mean_square = mp.mpf(sum(x * x for x in values)) / size
    assert abs(mp.mpf(sum(values)) / size) < 4 * mp.sqrt(variance / size)
    assert abs(mean_square - variance) < 4 * mp.sqrt((fourth - variance**2) / size)


@pytest.mark.parametrize(
    ("law", "margins"),
    [
        (Law(scale=Fraction("2.336")), (10, 15, 20)),
        (Law(sigma_squared=Fraction("9.375")), (8, 10, 12)),
    ],
    ids=str,
)
def test_tails_have_their_mass(law: Law, margins: tuple[int, ...]) -> None:
    size = 300_000
    values = sample(law, size, random.Random(4).getrandbits)
    true = masses(law, 250)
    for margin in margins:
        expected = size * mp.fsum(p for x, p in true.items() if abs(x) > margin)
        beyond = sum(abs(x) > margin for x in values)
        assert expected > 5
        assert abs(beyond - expected) < 4 * mp.sqrt(expected)


def laplace_distribution(x: int) -> Any:
    y = mp.mpf(x) / 2**50
    return mp.exp(y) / 2 if y < 0 else 1 - mp.exp(-y) / 2


def normal_distribution(x: int) -> Any:
    return mp.ncdf(mp.mpf(x) / 2**50)


@pytest.mark.parametrize(
    ("law", "distribution"),
    [
        (Law(scale=Fraction(2**50)), laplace_distribution),
        (Law(sigma_squared=Fraction(2**100)), normal_distribution),
        (Law(scale=Fraction(2**50) - LONG), laplace_distribution),
    ],
    ids=["geometric", "discrete Gaussian", "geometric, long ratio"],
)
def test_the_widest_laws_follow_their_continuous_limits(law: Law, distribution: Callable[[int], Any]) -> None:
    size, cells = 20_000, 50
    values = sample(law, size, random.Random(9).getrandbits)
    quantiles = Counter(min(cells - 1, int(distribution(x) * cells)) for x in values)
    assert chi_square_p([quantiles[k] for k in range(cells)], [mp.mpf(size) / cells] * cells) > RARE
    # The last bits are as random as the first: nothing passed through 53-bit numbers.
    last = Counter(x % 64 for x in values)
    assert chi_square_p([last[k] for k in range(64)], [mp.mpf(size) / 64] * 64) > RARE


@pytest.mark.parametrize("law", [Law(scale=Fraction(1, 1000)), Law(sigma_squared=Fraction(1, 1000))], ids=str)
def test_the_narrowest_laws_are_zero(law: Law) -> None:
    # The mass away from 0 is below exp(-499).
    assert set(sample(law, 5_000, random.Random(1).getrandbits)) == {0}


def test_the_operating_system_is_an_entropy_source() -> None:
    values = sample(Law(scale=Fraction(2**50)), 100, secrets.randbits)
    assert len(set(values)) == 100  # two equal ones have probability below 1e-11
    assert all(type(value) is int for value in values)


def test_the_same_bits_give_the_same_values() -> None:
    law = Law(sigma_squared=Fraction("9.375"))
    first, second = (sample(law, 50, random.Random(3).getrandbits) for _ in range(2))
    assert first == second
    assert sample(law, 50, random.Random(4).getrandbits) != first


def test_no_values() -> None:
    assert sample(Law(scale=Fraction(1)), 0, random.Random(1).getrandbits) == []
    assert add_noise([], Law(scale=Fraction(1)), random.Random(1).getrandbits) == []


@pytest.mark.parametrize(
    ("law", "limit"),
    [
        (Law(scale=2**50 + LONG), r"scale of at most 2\^50"),
        (Law(scale=Fraction(10**400)), r"scale of at most 2\^50"),
        (Law(sigma_squared=2**100 + LONG), r"sigma_squared of at most 2\^100"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_laws_too_wide_for_64_bits_are_refused_even_for_no_values(law: Law, limit: str) -> None:
    with pytest.raises(ValueError, match=limit):
        sample(law, 0, random.Random(1).getrandbits)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="size of at least 0, got -1"):
        sample(Law(scale=Fraction(1)), -1, random.Random(1).getrandbits)


def test_noise_is_added_count_by_count() -> None:
    law, counts = Law(scale=Fraction("2.336")), [0, 7, -3, 2**40, 10**18]
    noise = sample(law, len(counts), random.Random(8).getrandbits)
    assert any(noise)
    noisy = add_noise(counts, law, random.Random(8).getrandbits)
    assert [after - before for before, after in zip(counts, noisy, strict=True)] == noise


def test_noisy_counts_stop_at_the_limits_of_64_bits() -> None:
    law = Law(scale=Fraction(2**50))
    top, bottom = 2**63 - 1, -(2**63)
    noise = sample(law, 200, random.Random(2).getrandbits)
    upper = add_noise([top] * 200, law, random.Random(2).getrandbits)
    lower = add_noise([bottom] * 200, law, random.Random(2).getrandbits)
    assert upper == [top + min(value, 0) for value in noise]
    assert lower == [bottom + max(value, 0) for value in noise]


@pytest.mark.parametrize("count", [2**63, -(2**63) - 1])
def test_a_count_beyond_64_bits_is_refused_and_not_repeated(count: int) -> None:
    with pytest.raises(ValueError, match="64-bit") as refusal:
        add_noise([1, count], Law(scale=Fraction(1)), random.Random(1).getrandbits)
    assert str(abs(count)) not in str(refusal.value)
