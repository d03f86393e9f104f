"""Route of accuracy: margins of error of noise, for one cell and for sums of cells."""

from fractions import Fraction
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas.exact_numbers import Exact, Positive, Strict, number_down, number_up, stated
from service.api.schemas.granularity import count_text, unit_of
from service.api.schemas.plan_models import Mechanism
from service.api.schemas.plans import mechanism_of
from service.errors import InvalidInput
from service.privacy.accuracy.continuous import ContinuousSum
from service.privacy.accuracy.sums import NoiseSum
from service.privacy.accuracy.tails import excess_of
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms import ADDITIVE, Mechanism as MechanismValue
from service.privacy.numerics.numbers import parse_exact

router = APIRouter(prefix="/v1/accuracy", route_class=StrictRoute)

MOST_CONFIDENCES = 20


class AccuracyQuestion(Strict):
    """A mechanism and the number of its noisy cells that are added up."""

    mechanism: Mechanism = Field(
        description="A mechanism that adds noise; its sensitivity, cells and threshold do not matter here."
    )
    summed_cells: Positive = Field(
        1, description="The number of cells whose noise adds up, as in a total: for laplace at most 1000, for osgt 1."
    )
    confidences: Annotated[list[Exact], Field(min_length=1, max_length=MOST_CONFIDENCES)] = Field(
        default_factory=lambda: ["0.95"]
    )


class MarginBody(BaseModel):
    """The least margin that is proven to hold with the confidence; coverage: its proven confidence, rounded down."""

    confidence: float
    moe: int | float | str
    coverage: float


class AccuracyBody(BaseModel):
    """Accuracy of the sum's noise. variance and mean_absolute are rounded up; method names the tail analysis.

    Where the noise has a mean, as a noise table may, variance is its mean square.
    """

    variance: float | None
    mean_absolute: float | None
    margins: list[MarginBody]
    method: Literal["closed form", "characteristic function"]


@router.post("", response_model=AccuracyBody, openapi_extra=examples.body(examples.ACCURACY))
@in_helpers
def tell_accuracy(body: AccuracyQuestion, _: CurrentPrincipal) -> Response:
    """Compute the accuracy of noisy counts.

    The answer has the variance, the mean absolute error and exact margins of error of one noisy cell or of a sum of
    cells. Margins of integer noise are whole numbers, or texts of multiples of its granularity. Each margin rests on a
    certified bound of the tail, so no coverage is above the truth. The bound is a closed form for one cell, for sums of
    up to 64 geometric cells and for continuous noise; otherwise it comes from the characteristic function of the sum.
    The noise of the sum must have a variance of at most 2^200, of discrete_osgt at most 2^100; parameters of continuous
    noise must lie between 1e-100 and 1e100. Sums of a noise table must mostly stay within 2^16 units of granularity.
    """
    stated_as = mechanism_of(body.mechanism, "/mechanism")
    mechanism, unit = stated_as.simplest(), unit_of(stated_as)
    confidences = [read_confidence(text, f"/confidences/{number}") for number, text in enumerate(body.confidences)]
    law = mechanism.noise_law()
    if law is None:
        raise InvalidInput.at("/mechanism", f"expected a mechanism that adds noise: {ADDITIVE}")
    try:
        noise = noise_of(mechanism, law, body.summed_cells, 1 - max(confidences))
    except ValueError as error:
        by_cells = body.summed_cells > 1 and not mechanism.DRAWN
        raise InvalidInput.at("/summed_cells" if by_cells else "/mechanism", str(error)) from None
    return ok(
        {
            "variance": number_up(noise.variance() * unit**2),
            "mean_absolute": number_up(noise.mean_size() * unit),
            "margins": [margin_body(noise, confidence, unit) for confidence in confidences],
            "method": noise.method,
        }
    )


def read_confidence(text: str, pointer: str) -> Fraction:
    """Return a confidence.

    Raises:
        InvalidInput: it is not one for which margins are computed.
    """
    confidence = parse_exact(text)
    try:
        excess_of(confidence)
    except ValueError as error:
        raise InvalidInput.at(pointer, str(error)) from None
    return confidence


def noise_of(mechanism: MechanismValue, law: NoiseLaw, cells: int, excess: Fraction) -> ContinuousSum | NoiseSum:
    """Return the sum of several cells' noise.

    Args:
        mechanism: in its simplest form.
        law: of its noise.
        excess: 1 less the largest confidence for which a margin will be computed.

    Raises:
        ValueError: the noise is too wide, or its cells are too many.
    """
    return NoiseSum.of(law, cells, excess) if mechanism.DRAWN else ContinuousSum(law, cells)


def margin_body(noise: ContinuousSum | NoiseSum, confidence: Fraction, unit: Fraction) -> dict[str, Any]:
    """Return a margin as JSON; ``unit``: the granularity of the noise."""
    margin, covered = noise.margin(confidence)
    moe = count_text(margin, unit) if isinstance(margin, int) else number_up(margin)
    return {"confidence": stated(confidence, number_down), "moe": moe, "coverage": covered}
