"""Route of calibrations: noise parameters from accuracy targets."""

from fractions import Fraction
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas.exact_numbers import LARGEST_INTEGER, Exact, Positive, Strict, number_down
from service.api.schemas.guarantees import GuaranteeBody, cost_of
from service.api.schemas.plan_models import Mechanism
from service.api.schemas.plans import law_of
from service.errors import InvalidInput
from service.privacy.accuracy.calibration import (
    margin_to_scale,
    margin_to_sigma_squared,
    safetab_scale,
    safetab_sigma_squared,
)
from service.privacy.accuracy.tails import coverage
from service.privacy.mechanisms import DiscreteGaussian, Geometric
from service.privacy.numerics.numbers import parse_exact
from service.privacy.plans.notation import write_plan
from service.privacy.plans.walking import Neighbouring

router = APIRouter(prefix="/v1/calibrations", route_class=StrictRoute)

SAFETAB_CONFIDENCE = Fraction(95, 100)


class MarginTarget(Strict):
    """A margin of error to meet."""

    mechanism: Literal["geometric", "discrete_gaussian"]
    moe: Exact = Field(description="The margin of error, in counts. Noise is whole, so the margin is rounded down.")
    confidence: Exact = "0.95"
    method: Literal["exact", "safetab"] = Field(
        "exact",
        description="exact: the cheapest parameter that meets the target. safetab: the closed forms of the SafeTab"
        " paper, at 0.95 only; its geometric form misses the target, as coverage shows.",
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

    The answer is the cheapest mechanism whose noise exceeds moe with probability at most 1 - confidence. Parameters
    have 12 significant digits, rounded toward more accuracy. coverage is the probability of staying within moe, rounded
    down. The cost is that of the given cells.
    """
    margin, confidence = read_margin(body.moe, "/moe"), parse_exact(body.confidence)
    if body.method == "safetab" and confidence != SAFETAB_CONFIDENCE:
        raise InvalidInput.at("/confidence", "expected 0.95, the only confidence of the safetab method")
    mechanism = _calibrated(body, margin, confidence)
    return ok(
        {
            "mechanism": write_plan(mechanism),
            "moe": _number(parse_exact(body.moe)),
            "confidence": number_down(confidence),
            "coverage": coverage(law_of(mechanism, "/mechanism"), margin),
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


def _calibrated(body: MarginTarget, margin: int, confidence: Fraction) -> Geometric | DiscreteGaussian:
    exact = body.method == "exact"
    try:
        if body.mechanism == "geometric":
            scale = margin_to_scale(margin, confidence) if exact else safetab_scale(margin)
            return Geometric(scale=scale, sensitivity=body.sensitivity, cells=body.cells)
        variance = margin_to_sigma_squared(margin, confidence) if exact else safetab_sigma_squared(margin)
        return DiscreteGaussian(sigma_squared=variance, sensitivity=body.sensitivity, cells=body.cells)
    except ValueError as error:
        raise InvalidInput.at("/moe" if margin == 0 and not exact else "/confidence", str(error)) from None
