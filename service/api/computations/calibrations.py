"""Route of calibrations: noise parameters from accuracy targets."""

from fractions import Fraction
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas.exact_numbers import LARGEST_INTEGER, Exact, Positive, Strict, number_down, stated
from service.api.schemas.guarantees import GuaranteeBody, cost_of
from service.api.schemas.plan_models import Mechanism
from service.api.schemas.plans import law_of
from service.errors import InvalidInput
from service.privacy.accuracy.calibration import (
    SMALLEST_CONTINUOUS,
    continuous_margin_to_scale,
    continuous_margin_to_sigma_squared,
    margin_to_offset_tails,
    margin_to_scale,
    margin_to_sigma_squared,
    safetab_scale,
    safetab_sigma_squared,
    usual_offset,
)
from service.privacy.accuracy.continuous import ContinuousSum
from service.privacy.accuracy.tails import coverage
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Gaussian, Geometric, Laplace, Osgt
from service.privacy.mechanisms.base import Discrete
from service.privacy.numerics.numbers import parse_exact
from service.privacy.plans.notation import write_plan
from service.privacy.plans.walking import Neighbouring

router = APIRouter(prefix="/v1/calibrations", route_class=StrictRoute)

AdditiveNoise = Geometric | DiscreteGaussian | DiscreteOsgt | Laplace | Gaussian | Osgt
SAFETAB_CONFIDENCE = Fraction(95, 100)
_KINDS: dict[str, type[AdditiveNoise]] = {
    kind.TYPE: kind for kind in (Geometric, DiscreteGaussian, DiscreteOsgt, Laplace, Gaussian, Osgt)
}


class MarginTarget(Strict):
    """A margin of error to meet."""

    mechanism: Literal["geometric", "discrete_gaussian", "discrete_osgt", "laplace", "gaussian", "osgt"]
    moe: Exact = Field(
        description="The margin of error, in counts. Noise on the integers is whole, so its margin is rounded down."
        " That of continuous noise (laplace, gaussian, osgt) is taken as it is, and is at least 1e-9."
    )
    confidence: Exact = "0.95"
    method: Literal["exact", "safetab"] = Field(
        "exact",
        description="exact: the cheapest parameter that meets the target. safetab: the closed forms of the SafeTab"
        " paper, of geometric and discrete_gaussian at 0.95 only; its geometric form misses the target, as coverage"
        " shows.",
    )
    m: Exact | None = Field(
        None,
        description="The offset of the tails of discrete_osgt and osgt, in counts, at most 2^53. Without it, it is"
        " 0.67448 sigma, rounded down to 12 digits, up to which the noise is sub-Gaussian.",
    )
    sensitivity: Positive = 1
    cells: Positive = 1


class Calibrated(BaseModel):
    """The calibrated mechanism and its exact coverage."""

    mechanism: Mechanism
    moe: float
    confidence: float
    coverage: float
    method: Literal["exact", "safetab"]
    cost: GuaranteeBody


@router.post("/moe", response_model=Calibrated, openapi_extra=examples.body(examples.CALIBRATION))
@in_helpers
def calibrate_to_margin(body: MarginTarget, _: CurrentPrincipal) -> Response:
    """Calibrate noise to a margin of error.

    The answer is the cheapest mechanism whose noise exceeds moe with probability at most 1 - confidence: the one with
    the largest scale b or sigma_squared. Parameters have 12 significant digits, rounded toward more accuracy. coverage
    is the probability of staying within moe, rounded down. The cost is that of the given cells.
    """
    mechanism, covered = _calibrated(body)
    return ok(
        {
            "mechanism": write_plan(mechanism),
            "moe": _number(parse_exact(body.moe)),
            "confidence": stated(parse_exact(body.confidence), number_down),
            "coverage": covered,
            "method": body.method,
            "cost": cost_of(mechanism, Neighbouring.ADD_REMOVE),
        }
    )


def read_margin(text: str, pointer: str) -> int:
    """Read a margin of error and return it in whole counts, rounded down.

    Raises:
        InvalidInput: the margin is negative or above 2^53.
    """
    moe = parse_exact(text)
    if not 0 <= moe <= LARGEST_INTEGER:
        raise InvalidInput.at(pointer, "expected a number of at least 0 and at most 2^53")
    return int(moe)  # the noise is whole, so |noise| <= moe is |noise| <= floor(moe)


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _calibrated(body: MarginTarget) -> tuple[AdditiveNoise, float]:
    """Return the mechanism that meets a target, and its coverage."""
    kind, confidence, m = _KINDS[body.mechanism], parse_exact(body.confidence), _offset(body)
    whole = issubclass(kind, Discrete)
    margin: Fraction = Fraction(read_margin(body.moe, "/moe")) if whole else parse_exact(body.moe)
    if not whole and not SMALLEST_CONTINUOUS <= margin <= LARGEST_INTEGER:
        raise InvalidInput.at("/moe", "expected a number of at least 1e-9 and at most 2^53 for continuous noise")
    if body.method == "safetab" and kind not in (Geometric, DiscreteGaussian):
        raise InvalidInput.at("/method", "expected exact: the safetab method is one of geometric and discrete_gaussian")
    if body.method == "safetab" and confidence != SAFETAB_CONFIDENCE:
        raise InvalidInput.at("/confidence", "expected 0.95, the only confidence of the safetab method")
    try:
        parameters = _parameters(kind, margin, confidence, m, body.method)
    except ValueError as error:
        raise InvalidInput.at(
            "/moe" if margin == 0 and body.method == "safetab" else "/confidence", str(error)
        ) from None
    sizes: dict[str, Any] = {"sensitivity": body.sensitivity, "cells": body.cells}
    mechanism = kind(**parameters, **sizes)
    if whole:
        return mechanism, coverage(law_of(mechanism, "/mechanism"), int(margin))
    return mechanism, ContinuousSum(mechanism.noise_law(), cells=1).coverage(margin)


def _offset(body: MarginTarget) -> Fraction | None:
    """Return the stated offset of the tails; None if none is stated.

    Raises:
        InvalidInput: the noise has no offset, or it is out of range.
    """
    if body.m is None:
        return None
    if not _KINDS[body.mechanism].OFFSET:
        raise InvalidInput.at("/m", "expected none: only discrete_osgt and osgt have an offset")
    m = parse_exact(body.m)
    if m and not SMALLEST_CONTINUOUS <= m <= LARGEST_INTEGER:
        raise InvalidInput.at("/m", "expected 0, or a number of at least 1e-9 and at most 2^53")
    return m


def _parameters(
    kind: type[AdditiveNoise], margin: Fraction, confidence: Fraction, m: Fraction | None, method: str
) -> dict[str, Any]:
    """Return the parameters of the widest noise that meets a margin.

    Raises:
        ValueError: the margin or the confidence is out of range.
    """
    exact = method == "exact"
    if kind is Geometric:
        return {"scale": margin_to_scale(int(margin), confidence) if exact else safetab_scale(int(margin))}
    if kind is Laplace:
        return {"scale": continuous_margin_to_scale(margin, confidence)}
    if kind is Gaussian:
        return {"sigma_squared": continuous_margin_to_sigma_squared(margin, confidence)}
    if kind is DiscreteGaussian:
        square = margin_to_sigma_squared(int(margin), confidence) if exact else safetab_sigma_squared(int(margin))
        return {"sigma_squared": square}
    if kind is DiscreteOsgt:
        square = margin_to_offset_tails(int(margin), confidence, m)
    else:
        square = continuous_margin_to_sigma_squared(margin, confidence, m)
    return {"sigma_squared": square, "m": usual_offset(square) if m is None else m}
