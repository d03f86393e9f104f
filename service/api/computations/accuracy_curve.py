"""Route of accuracy curves: accuracy against epsilon, for given counts."""

import math
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, FailFast, Field

from service.api.charts import charts, pictures
from service.api.charts.pictures import Caption
from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas.exact_numbers import LARGEST_INTEGER, Exact, Positive, Strict, number_down
from service.errors import InvalidInput
from service.noise import Keystream, sample
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.numerics.numbers import parse_exact

router = APIRouter(prefix="/v1/accuracy", route_class=StrictRoute)

MOST_EPSILONS = 50
MOST_DRAWN = 5_000_000

_CAPTION = Caption(
    "Accuracy against epsilon",
    "In the L1 and the L2 norm, as drawn and as expected. Not protected: computed from true counts.",
)

CellCount = Annotated[int, Field(strict=True, ge=0, le=LARGEST_INTEGER)]


class CurveQuestion(Strict):
    """Counts, and the losses at which their accuracy is computed."""

    counts: Annotated[list[CellCount], FailFast(), Field(min_length=1, description="Never stored or logged.")]
    mechanism: Literal["geometric"] = "geometric"
    epsilons: Annotated[list[Exact], Field(min_length=1, max_length=MOST_EPSILONS)]
    sensitivity: Positive = 1


class Norms(BaseModel):
    """1 - sum|noisy - true|/(2 N), and 1 - ||noisy - true||/(sqrt(2) ||true||) in the Euclidean norm."""

    l1: float
    l2: float


class CurvePoint(Norms):
    """Accuracy as drawn, cut off at 0. expected is not cut off; its l2 is a lower bound, by the mean square."""

    epsilon: float
    expected: Norms


class CurveBody(BaseModel):
    """The accuracy curve. It was computed from the counts without any protection and must not be published."""

    points: list[CurvePoint]
    protected: Literal[False]


@router.post(
    "/curve",
    response_model=CurveBody,
    responses=pictures.responses("The curve; or a picture of it, as SVG or PNG."),
    openapi_extra=examples.body(examples.CURVE),
)
@in_helpers
def draw_curve(body: CurveQuestion, request: Request, _: CurrentPrincipal) -> Response:
    """Draw accuracy against epsilon.

    For noise on every cell the answer shows the distance of noisy counts from the true ones in the L1 and the L2 norm,
    from one draw at each epsilon (the loss of one cell) and in expectation. With Accept: image/svg+xml or image/png it
    is a picture. At most 5,000,000 values are drawn: counts times epsilons.
    """
    epsilons = [_epsilon(text, f"/epsilons/{number}") for number, text in enumerate(body.epsilons)]
    if len(body.counts) * len(epsilons) > MOST_DRAWN:
        raise InvalidInput.at("/counts", f"expected at most {MOST_DRAWN} values, counts times epsilons")
    counts = np.array(body.counts, dtype=float)
    whole, norm = float(counts.sum()), float(np.linalg.norm(counts))
    if whole == 0:
        raise InvalidInput.at("/counts", "expected a count above 0: the accuracy is relative to the total")
    points = [
        _point(body.sensitivity / epsilon, len(counts), whole, norm, f"/epsilons/{number}")
        | {"epsilon": number_down(epsilon)}
        for number, epsilon in enumerate(epsilons)
    ]
    kind = pictures.wanted_type(request)
    if kind is not None:
        return charts.picture(_panels(points), kind, _CAPTION)
    return ok({"points": points, "protected": False})


def _epsilon(text: str, pointer: str) -> Fraction:
    epsilon = parse_exact(text)
    if not Fraction(1, 10**9) <= epsilon <= 1000:
        raise InvalidInput.at(pointer, "expected a number of at least 1e-9 and at most 1000")
    return epsilon


def _point(scale: Fraction, cells: int, whole: float, norm: float, pointer: str) -> dict[str, Any]:
    try:
        noise = sample(NoiseLaw(scale=scale), cells, Keystream()).astype(float)
    except ValueError as error:  # the law is too wide for 64-bit results
        raise InvalidInput.at(pointer, str(error)) from None
    rate = float(1 / scale)
    size = 1 / math.sinh(rate) if rate < 700 else 0.0
    square = 1 / (2 * math.sinh(rate / 2) ** 2) if rate < 700 else 0.0
    drawn = 1 - float(np.abs(noise).sum()) / (2 * whole), 1 - float(np.linalg.norm(noise)) / (math.sqrt(2) * norm)
    return {
        "l1": max(drawn[0], 0.0),
        "l2": max(drawn[1], 0.0),
        "expected": {
            "l1": 1 - cells * size / (2 * whole),
            "l2": 1 - math.sqrt(cells * square) / (math.sqrt(2) * norm),
        },
    }


def _panels(points: list[dict[str, Any]]) -> list[charts.Panel]:
    ordered = sorted(points, key=lambda point: float(point["epsilon"]))
    x = [point["epsilon"] for point in ordered]
    return [
        charts.Panel(
            title,
            "epsilon (log scale)",
            "accuracy",
            [
                charts.Line("drawn", x, [point[name] for point in ordered], "o"),
                charts.Line("expected", x, [max(point["expected"][name], 0.0) for point in ordered]),
            ],
            ("log", "linear"),
            (0.0, 1.0),
        )
        for name, title in (("l1", "L1"), ("l2", "L2"))
    ]
