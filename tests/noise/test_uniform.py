"""Comparisons with a uniform number: exact, and of one and the same number each time."""

from fractions import Fraction

import pytest
from flint import arb

from service.noise.uniform import Uniform
from service.privacy.numerics.numbers import ball
from tests.noise.reference import Scripted

_WORD = 2**64


def test_a_known_word_that_tells_needs_no_more_bits() -> None:
    third = _WORD // 3
    assert Uniform(third - 1, Scripted()).below(lambda: ball(Fraction(1, 3)))
    assert not Uniform(third + 1, Scripted()).below(lambda: ball(Fraction(1, 3)))
    assert Uniform(_WORD - 1, Scripted()).below(lambda: arb(1))
    assert not Uniform(0, Scripted()).below(lambda: arb(0))


@pytest.mark.parametrize("equal", [0, 1, 2, 5])
@pytest.mark.parametrize(("further", "below"), [(-1, True), (1, False)])
def test_equal_words_are_extended_until_they_differ(equal: int, further: int, below: bool) -> None:
    third = _WORD // 3  # every word of one third
    script = Scripted(*[[third]] * equal, [third + further])
    assert Uniform(third, script).below(lambda: ball(Fraction(1, 3))) == below
    assert script.script == []


def test_the_bits_that_were_drawn_are_kept() -> None:
    # U = 0.333...3 and then 5: above one third, and at once also above what the same bits say it is above.
    third = _WORD // 3
    script = Scripted([third], [third + 5])
    uniform = Uniform(third, script)
    assert not uniform.below(lambda: ball(Fraction(1, 3)))
    bits = (third << 128) + (third << 64) + third
    assert uniform.below(lambda: ball(Fraction(bits + 6, 2**192)))
    assert not uniform.below(lambda: ball(Fraction(bits + 5, 2**192)))


def test_a_wide_ball_is_narrowed_by_precision() -> None:
    # The difference of 1 + 2^-500 and 1 tells nothing at fewer than 500 bits.
    zeros = [[0]] * 7
    assert Uniform(0, Scripted(*zeros, [0], [0])).below(lambda: (1 + arb(2) ** -500) - 1)
