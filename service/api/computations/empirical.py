"""Routes of empirical privacy loss: estimates and lower bounds from confidential numbers, never stored or logged."""

from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, Field, PlainValidator, ValidationInfo, WithJsonSchema

from service.api.charts import pictures
from service.api.charts.empirical_figures import bound_picture, loss_picture
from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.schemas.exact_numbers import LARGEST_INTEGER, Exact, Positive, Strict, number_down
from service.empirical.bounds import (
    BoundMethod,
    bound_from_outputs,
    bound_from_residuals,
    delta_at_least,
    epsilon_at_least,
    pure_epsilon_of_shift,
)
from service.empirical.experiments import estimate_json, event_json
from service.empirical.loss import LARGEST_RANGE, SmoothingSetting, estimate_loss
from service.empirical.replicates import bootstrap, estimate_bias
from service.empirical.residuals import residuals_of
from service.errors import InvalidInput
from service.privacy.numerics.numbers import double_down, double_up, parse_exact

router = APIRouter(prefix="/v1/empirical", route_class=StrictRoute)

_LARGEST_EPSILON = 700  # nats: doubles do not hold exp of larger ones
_SMALLEST_RISK = Fraction(1, 10**15)

_FOR_NOISE = "independent, identically distributed noise; for counts that were processed afterwards an estimate"
_FOR_RUNS = "independent runs of one mechanism on each of two neighbouring inputs"


def _numbers(value: Any, info: ValidationInfo) -> NDArray[np.float64]:
    """Return an array of numbers as doubles; a fault names the place and not the number."""
    if not isinstance(value, list):
        raise ValueError("expected an array of numbers")  # noqa: TRY004 - pydantic's way
    if {type(number) for number in value} <= {int, Decimal}:
        try:
            numbers = np.array(value, np.float64)
        except OverflowError:
            numbers = np.full(1, np.inf)
        if not numbers.size or np.abs(numbers).max() <= LARGEST_INTEGER:
            return numbers
    place = next(place for place, number in enumerate(value) if not _is_number(number))
    raise InvalidInput.at(f"/{info.field_name}/{place}", "expected a number between -2^53 and 2^53")


def _is_number(value: Any) -> bool:
    return type(value) in {int, Decimal} and -LARGEST_INTEGER <= value <= LARGEST_INTEGER


_NUMBERS_SCHEMA = {
    "type": "array",
    "items": {"type": "number", "minimum": -LARGEST_INTEGER, "maximum": LARGEST_INTEGER},
    "description": "Never stored or logged.",
}

Numbers = Annotated[NDArray[np.float64], PlainValidator(_numbers), WithJsonSchema(_NUMBERS_SCHEMA)]
Replicates = Annotated[int, Field(strict=True, ge=0, le=1000)]


class Smoothing(Strict):
    """The smoothing of the residuals' density, and the range in which its largest ratio is searched."""

    bandwidth: Exact = Field(
        "0.1", description="The bandwidth of the Gaussian kernel, in standard deviations of the residuals."
    )
    percentile: Exact = Field(
        "95",
        description="The range ends at this percentile or at the opposite one, whichever is larger in absolute value.",
    )
    multiplier: Exact = Field("1", description="The factor by which the range is extended.")
    bootstrap: Replicates = Field(
        200, description="The number of replicates for the interval and the bias; 0 for neither."
    )


class LossQuestion(Smoothing):
    """Residuals (noisy minus true counts), and the settings of the estimate."""

    residuals: Numbers
    counts: Numbers | None = Field(None, description="The true counts, only for the picture: figure SA1 needs them.")


class Point(BaseModel):
    """At the middle of a unit bin: the share of the residuals in the bin, the smoothed density, and EPL(x)."""

    x: float
    density: float
    smoothed: float
    epl: float | None


class BiasBody(BaseModel):
    """The result of the estimate for noise of known loss, with the residuals' variance and number."""

    epsilon: float
    mean: float
    bias: float
    interval: list[float]
    replicates: int


class LossBody(BaseModel):
    """The published estimate and its uncertainty. It is neither an upper nor a lower bound."""

    epl: float
    at: float
    interval: list[float] | None = Field(
        description="95 %, by the basic bootstrap, which corrects for the bias; the estimate itself is therefore"
        " often above it. Null where resamples leave nothing to estimate, or would take too long."
    )
    bias: BiasBody | None
    curve: list[Point]
    protected: Literal[False]


class BoundQuestion(Strict):
    """Residuals, or the outputs of independent runs on an input and on a neighbouring one."""

    residuals: Numbers | None = None
    shift: Positive | None = Field(
        None, description="The distance by which one record moves one residual; 1 unless given."
    )
    outputs: Numbers | None = None
    neighbouring_outputs: Numbers | None = None
    confidence: Exact = "0.95"
    delta: Exact | None = Field(None, description="The delta at which epsilon is bounded; 0 unless given.")
    epsilon: Exact | None = Field(None, description="The epsilon at which delta is bounded, instead of epsilon.")


class EventBody(BaseModel):
    """The event that proves the bound, the event for comparison, and their frequencies among the tested values."""

    kind: Literal["at_least", "at_most", "between"]
    start: float
    stop: float | None
    compared_with: float
    likelier_on_neighbour: bool
    likely: int
    unlikely: int
    tested: int


class BoundBody(BaseModel):
    """A lower bound, rounded down: the true figure is not below it, with this confidence."""

    epsilon_lower_bound: float | None
    delta_lower_bound: float | None
    delta: float | None
    epsilon: float | None
    confidence: float
    event: EventBody | None
    holds_for: str
    protected: Literal[False]


@router.post(
    "/loss",
    response_model=LossBody,
    responses=pictures.responses("The estimate; or a picture of it in the form of figures SA1 and SA2, as SVG or PNG."),
    openapi_extra=examples.body(examples.LOSS),
)
@in_helpers
def measure_loss(body: LossQuestion, request: Request, principal: CurrentPrincipal) -> Response:
    """Estimate the privacy loss that residuals show, as published.

    The estimate is the largest log ratio of the residuals' kernel density at places one apart (Flaxman and Petti 2020).
    The answer has a bootstrap interval, and the bias measured on geometric noise of the same variance and number. The
    operation is for stewards: the answer is computed from true counts and is not protected. The numbers of the request
    are neither stored nor logged.
    """
    require(principal, "steward")
    setting = setting_of(body)
    residuals, counts = body.residuals, body.counts
    if counts is not None and counts.size != residuals.size:
        raise InvalidInput.at("/counts", "expected as many counts as residuals")
    sample, generator = residuals_of(residuals), np.random.default_rng()
    try:
        estimated = estimate_loss(sample, setting)
    except ValueError as error:
        raise InvalidInput.at("/residuals", str(error)) from None
    interval = bootstrap(sample, setting, body.bootstrap, generator) if body.bootstrap else None
    known = estimate_bias(sample, setting, body.bootstrap, generator) if body.bootstrap else None
    answer = estimate_json(estimated, interval, known, LARGEST_RANGE) | {"protected": False}
    kind = pictures.wanted_type(request)
    if kind is not None:
        return loss_picture(answer, None if counts is None else (counts, residuals), kind)
    return ok(answer)


@router.post(
    "/lower-bound",
    response_model=BoundBody,
    responses=pictures.responses("The bound; or a picture of it with the event that proves it, as SVG or PNG."),
    openapi_extra=examples.body(examples.LOWER_BOUND),
)
@in_helpers
def bound_from_below(body: BoundQuestion, request: Request, principal: CurrentPrincipal) -> Response:
    """Bound a privacy loss from below, at a stated confidence.

    An event is chosen on a random part of the sample, and tested on the rest by an exact binomial interval. One call is
    one test: the largest of several answers is not a bound at the stated confidence. The operation is for stewards: the
    answer is not protected. The numbers of the request are neither stored nor logged.
    """
    require(principal, "steward")
    confidence, risk = read_confidence(body.confidence)
    question = _question(body)
    generator = np.random.default_rng()
    samples = _samples(body)
    first, *second = samples.values()
    if second:
        bound = bound_from_outputs(first, second[0], question, risk, generator)
    else:
        bound = bound_from_residuals(first, body.shift or 1, question, risk, generator)
    of_delta = body.epsilon is not None
    answer = {
        "epsilon_lower_bound": None if of_delta else bound.value,
        "delta_lower_bound": bound.value if of_delta else None,
        "delta": None if of_delta else _shown(body.delta or "0"),
        "epsilon": _shown(body.epsilon) if body.epsilon is not None else None,
        "confidence": number_down(confidence),
        "event": event_json(bound),
        "holds_for": _FOR_RUNS if second else _FOR_NOISE,
        "protected": False,
    }
    kind = pictures.wanted_type(request)
    if kind is not None:
        return bound_picture(samples, answer, kind)
    return ok(answer)


def setting_of(body: Smoothing) -> SmoothingSetting:
    """Read the settings of an estimate.

    Raises:
        InvalidInput: a figure is out of its range.
    """
    bandwidth, percentile, multiplier = (
        parse_exact(text) for text in (body.bandwidth, body.percentile, body.multiplier)
    )
    if not Fraction(1, 10_000) <= bandwidth <= 100:
        raise InvalidInput.at("/bandwidth", "expected a number of at least 0.0001 and at most 100")
    if not 50 < percentile <= 100:
        raise InvalidInput.at("/percentile", "expected a number above 50 and at most 100")
    if not 0 < multiplier <= 1000:
        raise InvalidInput.at("/multiplier", "expected a number above 0 and at most 1000")
    return SmoothingSetting(float(bandwidth), float(percentile), float(multiplier))


def read_confidence(text: str) -> tuple[Fraction, float]:
    """Return the confidence, and one minus it, rounded down: less risk makes a lower bound smaller."""
    confidence = parse_exact(text)
    if not 0 < confidence <= 1 - _SMALLEST_RISK:
        raise InvalidInput.at("/confidence", "expected a number above 0 and at most 1 - 10^-15")
    return confidence, double_down(1 - confidence)


def _question(body: BoundQuestion) -> BoundMethod:
    """Read the figure to bound, rounded up: a bound against a larger delta or epsilon is weaker, and so stays valid."""
    if body.epsilon is not None:
        if body.delta is not None:
            raise InvalidInput.at("/delta", "expected delta or epsilon, got both")
        epsilon = parse_exact(body.epsilon)
        if not 0 <= epsilon <= _LARGEST_EPSILON:
            raise InvalidInput.at("/epsilon", f"expected a number of at least 0 and at most {_LARGEST_EPSILON}")
        return delta_at_least(double_up(epsilon))
    delta = parse_exact(body.delta or "0")
    if not 0 <= delta < 1:
        raise InvalidInput.at("/delta", "expected a number of at least 0 and below 1")
    if delta == 0 and body.residuals is not None:
        return pure_epsilon_of_shift
    return epsilon_at_least(double_up(delta))


def _samples(body: BoundQuestion) -> dict[str, NDArray[np.float64]]:
    pair = {"outputs": body.outputs, "neighbouring_outputs": body.neighbouring_outputs}
    present = {name: values for name, values in pair.items() if values is not None}
    if body.residuals is not None:
        if present:
            raise InvalidInput.at(f"/{next(iter(present))}", "expected residuals or outputs, got both")
        return {"residuals": body.residuals}
    if not present:
        raise InvalidInput.at("/residuals", "expected residuals, or outputs and neighbouring_outputs")
    if len(present) == 1:
        raise InvalidInput.at(f"/{next(name for name in pair if name not in present)}", "expected both sets of outputs")
    if body.shift is not None:
        raise InvalidInput.at("/shift", "expected a shift only with residuals: outputs are compared as they are")
    return present


def _shown(text: str) -> float | None:
    return number_down(parse_exact(text))
