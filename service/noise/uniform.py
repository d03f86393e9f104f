"""Uniform numbers with as many bits as a comparison needs, to decide rare cases exactly."""

from collections.abc import Callable

from flint import arb

from service.noise.keystream import Keystream
from service.privacy.numerics.numbers import precision

WORD = 64  # bits


class Uniform:
    """A uniform number U in [0, 1) whose first 64 bits are known.

    Further bits are drawn when they are needed, and then kept, so that all comparisons are of the same number.
    """

    def __init__(self, word: int, keystream: Keystream) -> None:
        self._known, self._bits = word, WORD  # known <= 2^bits U < known + 1
        self._keystream = keystream

    def below(self, bound: Callable[[], arb]) -> bool:
        """Tell whether U is below the number that ``bound`` returns, as a ball at the current precision.

        Each turn adds as many bits to U as to the precision. It ends as soon as U and the bound differ in a known bit.
        This happens with probability 1, and in the first turn with a probability of about 1 - 2^-60.
        """
        while True:
            with precision(self._bits + WORD):
                scaled = bound() * arb(2) ** self._bits
                if arb(self._known + 1) <= scaled:
                    return True
                if scaled <= arb(self._known):
                    return False
            more = int.from_bytes(self._keystream.read(WORD // 8), "little")
            self._known, self._bits = self._known << WORD | more, self._bits + WORD
