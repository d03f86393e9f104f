"""Comparison of answers: every letter must agree, except figures whose last digits depend on the processor.

A figure that is a short decimal was rounded away from it until 0.12.0, as 0.3 to 0.30000000000000004.

Those of the tight analysis are formed in doubles by numpy, scipy and the C library, which choose their instructions by
the processor; prices, totals and all other analyses are not. Where the arithmetic is the one that a version's figures
were computed with, every letter is compared, except in the estimates of an empirical loss.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy import fft, special  # type: ignore[import-untyped]

ARITHMETIC = "arithmetic.txt"
_NEAR = 1e-10  # relatively: what was seen differed by 2e-13 at the most
SUMMED_BY_LIBRARY = "/v1/empirical/loss"  # by dot products, whose order numpy's library chooses as it likes
_LOOSE_PATHS = ("/v1/calibrations/comparison", SUMMED_BY_LIBRARY)
_PLACES = 15  # of totals that are whole quanta, whose text can be longer than that of a double beside
_ADDED = {"changed_at"}  # what answers have gained since they were recorded


def arithmetic() -> str:
    """Return a digest of what this processor and these libraries make of functions of doubles."""
    x = np.linspace(0.001, 30, 5000)
    y = np.concatenate([np.exp(-x), np.log(x), np.expm1(x), np.log1p(x), np.sin(x), np.cosh(x), x**2.5])
    single = [math.exp(-v) + math.log(v) + math.expm1(v) + math.lgamma(v) for v in x[::10].tolist()]
    summed = [float(x @ x), float(np.linalg.norm(x)), float(np.sum(np.sqrt(x)))]
    whole = np.concatenate([y, special.log_ndtr(-x), special.erfc(x), fft.rfft(x).real, single, summed])
    return hashlib.sha256(whole.astype("<f8").tobytes()).hexdigest()


def loose_figures(version: Path) -> bool:
    """Tell whether a version's figures were computed with another arithmetic than this machine's."""
    return (version / ARITHMETIC).read_text().strip() != arithmetic()


def agree(found: str, expected: str, path: str, *, near: bool = True, everywhere: bool = False) -> bool:
    """Tell whether two answers agree. The order of members does not matter.

    Args:
        found: the answer.
        expected: the recorded one.
        path: of the question.
        near: the last digits of tight figures and of orders may differ.
        everywhere: those of all figures.
    """
    loose = near and (everywhere or path.startswith(_LOOSE_PATHS))
    try:
        one, other = (json.loads(text, parse_int=str, parse_float=_Number) for text in (found, expected))
    except ValueError:
        return False
    one = without_added(one, other)
    if path.endswith("/receipt") and one | {"signature": ""} != other | {"signature": ""}:  # it signs the figures
        one, other = one | {"signature": ""}, other | {"signature": ""}
    return _agree(one, other, near=near, loose=loose)


def without_added(found: Any, expected: Any) -> Any:
    """Return an answer without the members that answers have gained since the expected one was recorded."""
    match found, expected:
        case dict(), dict():
            kept = found.keys() - (_ADDED - expected.keys())
            return {name: without_added(found[name], expected.get(name)) for name in found if name in kept}
        case list(), list() if len(found) == len(expected):
            return [without_added(one, other) for one, other in zip(found, expected, strict=True)]
        case _:
            return found


class _Number(str):
    """A number that is not whole, as it is written."""


def _agree(found: Any, expected: Any, *, near: bool, loose: bool) -> bool:
    match found, expected:
        case dict(), dict():
            tight = loose or (near and "tight" in (expected.get("via"), expected.get("name")))
            return found.keys() == expected.keys() and all(  # the best order is searched in doubles
                _agree(found[name], expected[name], near=near, loose=tight or (near and name == "alpha"))
                for name in expected
                if not (loose and name == "alpha")
            )
        case list(), list():
            return len(found) == len(expected) and all(
                _agree(one, other, near=near, loose=loose) for one, other in zip(found, expected, strict=True)
            )
        case _Number(), _Number() if loose:
            return math.isclose(float(found), float(expected), rel_tol=_NEAR)
        case _Number(), _Number() if len(found) < len(expected) or float(found) == round(float(found), _PLACES):
            return abs(float(found) - float(expected)) <= 2 * math.ulp(float(found))
        case _:
            return bool(found == expected)
