"""Comparison of answers: every letter must agree, except figures whose last digits depend on the processor.

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
LOOSE_PATHS = ("/v1/calibrations/comparison", SUMMED_BY_LIBRARY)
_ADDED = {"changed_at", "registered_by", "approved_by", "plan_tags", "detail"}  # what answers have gained since then


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


def agree(found: str, expected: str, path: str, *, everywhere: bool = False) -> bool:
    """Tell whether two answers agree, except for the last digits of tight figures and of orders, or of all figures.

    The order of members does not matter.
    """
    loose = everywhere or path.startswith(LOOSE_PATHS)
    try:
        one, other = (json.loads(text, parse_int=str, parse_float=_Number) for text in (found, expected))
    except ValueError:
        return False
    if path.endswith("/receipt"):  # what is signed has those figures, too
        one, other = one | {"signature": ""}, other | {"signature": ""}
    return _agree(without_added(one, other), other, loose)


def sharpened(found: str, expected: str) -> bool:
    """Tell whether two answers agree, except that tight figures are less than they were, or above by 1e-10 at most.

    Tight figures are upper bounds, which later versions bring nearer to the truth, or of whose rounding they take more
    account. What answers state beside them must be the same: prices, totals, and the figures of other analyses.
    """
    try:
        one, other = (json.loads(text, parse_int=str, parse_float=_Number) for text in (found, expected))
    except ValueError:
        return False
    return _sharpened(without_added(one, other), other)


def _sharpened(found: Any, expected: Any) -> bool:
    match found, expected:
        case dict(), dict():
            if "tight" in (found.get("via"), found.get("name")):
                return all(_not_above(found, expected, name) for name in ("epsilon", "delta") if name in expected)
            free = {"signature"} if "statement" in expected and "signature" in expected else set()  # of a receipt
            first = (found.get("analyses") or [{}])[0]
            if "tight" in (first.get("via"), first.get("name")):  # the least figure of all stands before them
                free |= {name for name in ("epsilon", "delta") if _not_above(found, expected, name)}
            return found.keys() == expected.keys() and all(
                name in free or _sharpened(found[name], expected[name]) for name in expected
            )
        case list(), list():
            return len(found) == len(expected) and all(map(_sharpened, found, expected))
        case _:
            return bool(found == expected)


def _not_above(found: Any, expected: Any, name: str) -> bool:
    """Tell whether both state a figure, and the one that was found is at most a little larger."""
    one, other = found.get(name), expected.get(name)
    return isinstance(one, str) and isinstance(other, str) and float(one) <= float(other) * (1 + _NEAR)


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


def _agree(found: Any, expected: Any, loose: bool) -> bool:
    match found, expected:
        case dict(), dict():
            tight = loose or "tight" in (expected.get("via"), expected.get("name"))
            return found.keys() == expected.keys() and all(
                _agree(found[name], expected[name], tight or name == "alpha")  # the best order is searched in doubles
                for name in expected
                if not (loose and name == "alpha")
            )
        case list(), list():
            return len(found) == len(expected) and all(
                _agree(one, other, loose) for one, other in zip(found, expected, strict=True)
            )
        case _Number(), _Number() if loose:
            return math.isclose(float(found), float(expected), rel_tol=_NEAR)
        case _:
            return bool(found == expected)
