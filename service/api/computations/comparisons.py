"""Route of comparisons between offset tails and Gaussian noise."""

from fractions import Fraction
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from service.api.charts import charts, pictures
from service.api.charts.pictures import Caption
from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas.exact_numbers import Exact, Strict, number_down, number_up, stated
from service.api.schemas.guarantees import read_deltas
from service.api.schemas.plan_models import OffsetTails as StatedOffsetTails
from service.api.schemas.plans import mechanism_of
from service.errors import InvalidInput
from service.privacy.accounting.guarantee import USUAL_ORDERS
from service.privacy.mechanisms import OffsetTails, is_offset_tails
from service.privacy.planning import comparison
from service.privacy.planning.comparison import ComparedFigures
from service.privacy.planning.least_noise import NoSuchNoise

router = APIRouter(prefix="/v1/calibrations", route_class=StrictRoute)

_PLACES = 24
_SMALLEST_DELTA = Fraction(1, 10**30)
_NARROWEST, _WIDEST = Fraction(1, 10), 10**6
_SMALLEST_OFFSET, _LARGEST_OFFSET = Fraction(1, 10**6), 10

Cells = Annotated[int, Field(strict=True, ge=1, le=64)]


class ComparisonQuestion(Strict):
    """Noise with offset tails, and the points of comparison."""

    mechanism: StatedOffsetTails
    delta: Exact = "1e-10"
    cells: Annotated[list[Cells], Field(min_length=1, max_length=6)] = Field(default_factory=lambda: [1, 2, 4, 8])


class PairBody(BaseModel):
    """A figure of offset tails and of Gaussian noise of the same variance; rounded up."""

    offset_tails: float
    gaussian: float


class DeltaPair(PairBody):
    """delta at an epsilon, for one cell."""

    epsilon: float


class RdpPair(PairBody):
    """The Rényi divergence at an order, for one cell."""

    alpha: float


class TailPair(PairBody):
    """P(|X| > x); bound: 2 exp(-x²/(2 sigma²)), null where the noise is not proven to stay below it."""

    x: float
    bound: float | None


class EqualPrivacy(BaseModel):
    """The loss of so many cells at delta, and the variances of both kinds of noise that have this loss."""

    cells: int
    epsilon: float
    delta: float
    variance: float
    gaussian_variance: float


class SubGaussian(BaseModel):
    """holds: m/sigma is at most 0.67448..., so the tails are below those of a normal law with sigma²."""

    holds: bool
    offset_in_sigmas: float


class ComparisonBody(BaseModel):
    """The comparison of offset tails with Gaussian noise."""

    variance: float
    sub_gaussian: SubGaussian
    equal_privacy: list[EqualPrivacy]
    delta: list[DeltaPair]
    rdp: list[RdpPair]
    tails: list[TailPair]


@router.post(
    "/comparison",
    response_model=ComparisonBody,
    responses=pictures.responses("The comparison; or a picture of it in four panels, as SVG or PNG."),
    openapi_extra=examples.body(examples.COMPARISON),
)
@in_helpers
def compare(body: ComparisonQuestion, request: Request, _: CurrentPrincipal) -> Response:
    """Compare offset tails with Gaussian noise.

    The answer compares delta, Rényi divergences and tails of one cell at equal variance, and the variances at equal
    (epsilon, delta) for each number of cells. With Accept: image/svg+xml or image/png it is a picture. sigma² must be
    between a tenth and a million of the squared sensitivity, m 0 or between a millionth of sigma and ten sigmas, delta
    between 1e-30 and 0.1.
    """
    mechanism, delta = _mechanism(body), read_deltas([body.delta], ["/delta"])[0]
    if not _SMALLEST_DELTA <= delta <= Fraction(1, 10):
        raise InvalidInput.at("/delta", "expected a number of at least 1e-30 and at most 0.1")
    variance = comparison.variance_of(mechanism)
    try:
        losses = [comparison.tight_epsilon(mechanism, cells, delta) for cells in body.cells]
        equal = [
            _equal_privacy(mechanism, cells, loss, delta, variance)
            for cells, loss in zip(body.cells, losses, strict=True)
        ]
    except NoSuchNoise as error:
        raise InvalidInput.at("/mechanism", str(error)) from None
    epsilons = [_round(losses[0] * k / (_PLACES * 4 // 5)) for k in range(1, _PLACES + 1)]
    distances = [_round(Fraction(float(variance) ** 0.5) * k / 4) for k in range(1, _PLACES + 1)]
    answer = {
        "variance": number_up(variance),
        "sub_gaussian": {
            "holds": comparison.is_sub_gaussian(mechanism),
            "offset_in_sigmas": float(mechanism.m) / float(mechanism.sigma_squared) ** 0.5,
        },
        "equal_privacy": equal,
        "delta": [_pair("epsilon", pair) for pair in comparison.deltas(mechanism, epsilons)],
        "rdp": [_pair("alpha", pair) for pair in comparison.divergences(mechanism, USUAL_ORDERS[:-2])],
        "tails": _tails(mechanism, distances),
    }
    kind = pictures.wanted_type(request)
    return ok(answer) if kind is None else charts.picture(_panels(answer), kind, _caption(answer))


def _mechanism(body: ComparisonQuestion) -> OffsetTails:
    mechanism = mechanism_of(body.mechanism, "/mechanism")
    if not is_offset_tails(mechanism):
        raise TypeError("expected offset tails")
    if (mechanism.cells, mechanism.cells_added, mechanism.cells_replaced) != (None, None, None):
        raise InvalidInput.at(
            "/mechanism/cells", "expected no cells in the mechanism: the field cells beside it lists them"
        )
    if mechanism.moves:
        raise InvalidInput.at("/mechanism/moves", "expected none: the comparison is of cells moved by the sensitivity")
    if mechanism.threshold is not None:
        raise InvalidInput.at("/mechanism/threshold", "expected none: noise is compared, before any suppression")
    v, s = mechanism.sigma_squared, Fraction(mechanism.sensitivity)
    if not _NARROWEST * s * s <= v <= _WIDEST * s * s or not Fraction(1, 10**6) <= s <= 10**6:
        raise InvalidInput.at("/mechanism/sigma_squared", "expected a tenth to a million of the squared sensitivity")
    if mechanism.m and not _SMALLEST_OFFSET**2 * v <= mechanism.m**2 <= _LARGEST_OFFSET**2 * v:
        raise InvalidInput.at("/mechanism/m", "expected 0, or between a millionth of sigma and ten times sigma")
    return mechanism


def _round(value: Fraction) -> Fraction:
    return Fraction(f"{float(value):.4g}")


def _pair(at: str, pair: ComparedFigures) -> dict[str, Any]:
    return {
        at: stated(pair.at, number_down),
        "offset_tails": number_up(pair.offset_tails),
        "gaussian": number_up(pair.gaussian),
    }


def _equal_privacy(
    mechanism: OffsetTails, cells: int, epsilon: Fraction, delta: Fraction, variance: Fraction
) -> dict[str, Any]:
    return {
        "cells": cells,
        "epsilon": number_up(epsilon),
        "delta": stated(delta, number_up),
        "variance": number_up(variance),
        "gaussian_variance": number_up(comparison.gaussian_variance(mechanism, epsilon, delta, cells)),
    }


def _tails(mechanism: OffsetTails, distances: list[Fraction]) -> list[dict[str, Any]]:
    holds = comparison.is_sub_gaussian(mechanism) and not mechanism.on_integers
    return [
        _pair("x", pair) | {"bound": number_up(comparison.tail_bound(mechanism, pair.at)) if holds else None}
        for pair in comparison.tails(mechanism, distances)
    ]


def _caption(comparison: dict[str, Any]) -> Caption:
    variances = (
        f"{row['variance']:.6g} against {row['gaussian_variance']:.6g} with {row['cells']} cells"
        for row in comparison["equal_privacy"]
    )
    return Caption(
        "Offset tails beside Gaussian noise",
        "Delta, Rényi divergences and tails at equal variance."
        f" Variances at equal epsilon and delta: {'; '.join(variances)}.",
    )


def _panels(comparison: dict[str, Any]) -> list[charts.Panel]:
    def lines(name: str, at: str) -> list[charts.Line]:
        rows = comparison[name]
        return [
            charts.Line(label, [row[at] for row in rows], [row[field] for row in rows], style)
            for field, label, style in (("offset_tails", "offset tails", "-"), ("gaussian", "Gaussian", "--"))
        ]

    cells = [row["cells"] for row in comparison["equal_privacy"]]
    variances = [
        charts.Line("offset tails", cells, [row["variance"] for row in comparison["equal_privacy"]], "o-"),
        charts.Line("Gaussian", cells, [row["gaussian_variance"] for row in comparison["equal_privacy"]], "s--"),
    ]
    tails = lines("tails", "x")
    if comparison["tails"][0]["bound"] is not None:
        x = [row["x"] for row in comparison["tails"]]
        tails.append(charts.Line("2 exp(-x²/2 sigma²)", x, [row["bound"] for row in comparison["tails"]], ":"))
    return [
        charts.Panel("Equal variance: delta", "epsilon", "delta", lines("delta", "epsilon"), ("linear", "log")),
        charts.Panel("Equal variance: Rényi", "order", "nats", lines("rdp", "alpha"), ("log", "log")),
        charts.Panel("Equal (epsilon, delta)", "cells", "variance", variances),
        charts.Panel("Equal variance: tails", "x", "P(|X| > x)", tails, ("linear", "log")),
    ]
