"""Route of noise calibration: the least noise for (epsilon, delta)."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas.exact_numbers import Exact, Positive, Strict, number_up
from service.api.schemas.guarantees import GuaranteeBody, cost_of
from service.api.schemas.plan_models import Mechanism
from service.errors import InvalidInput
from service.privacy.numerics.numbers import exact_text, parse_exact
from service.privacy.planning.comparison import variance_of
from service.privacy.planning.least_noise import (
    DELTAS,
    EPSILONS,
    MOST_CELLS,
    SENSITIVITIES,
    CalibratedNoiseType,
    NoSuchNoise,
    Target,
    least_noise,
)
from service.privacy.plans.notation import write_plan
from service.privacy.plans.walking import Neighbouring

router = APIRouter(prefix="/v1/calibrations", route_class=StrictRoute)

_KINDS: Mapping[str, CalibratedNoiseType] = {kind.TYPE: kind for kind in MOST_CELLS}


class NoiseTarget(Strict):
    """A guarantee that is to be met with the least noise."""

    mechanism: Literal["gaussian", "discrete_gaussian", "osgt", "discrete_osgt"]
    epsilon: Exact
    delta: Exact
    sensitivity: Exact = Field(
        "1", description="The distance by which one record moves one cell; whole for the discrete mechanisms."
    )
    cells: Positive = Field(
        1, description="The number of cells that one neighbouring change moves: for osgt and discrete_osgt few."
    )
    sub_gaussian: bool = Field(
        False,
        strict=True,
        description="For osgt and discrete_osgt: only offsets of at most 0.67448 sigma, whose tails are"
        " sub-Gaussian. Without it, the noise of least variance is often close to Laplace noise.",
    )


class NoiseBody(BaseModel):
    """The mechanism, its variance (rounded up) and its cost."""

    mechanism: Mechanism
    variance: float | None
    cost: GuaranteeBody


@router.post("/noise", response_model=NoiseBody, openapi_extra=examples.body(examples.NOISE))
@in_helpers
def calibrate_to_guarantee(body: NoiseTarget, _: CurrentPrincipal) -> Response:
    """Calibrate noise to (epsilon, delta).

    The answer has the least sigma² of Gaussian noise, or the offset and sigma² of least variance of offset tails, by
    the exact condition on delta and without a detour over zCDP. The mechanism is proven to meet the guarantee. Numbers
    have 12 digits. With one cell, or with Gaussian noise, the next smaller sigma² does not meet it. With more cells the
    offset (of up to 10 sigmas) is chosen by Rényi divergences.

    Limits: epsilon from 0.01 to 20, delta from 1e-30 to 0.1, sensitivity from 0.0001 to 10000; at most 10^6 cells, for
    offset tails 20.
    """
    kind = _KINDS[body.mechanism]
    target = Target(
        _within(body.epsilon, EPSILONS, "/epsilon"),
        _within(body.delta, DELTAS, "/delta"),
        body.cells,
        body.sub_gaussian,
    )
    sensitivity = _within(body.sensitivity, SENSITIVITIES, "/sensitivity")
    if kind.DRAWN and sensitivity.denominator != 1:
        raise InvalidInput.at("/sensitivity", "expected a whole number for a discrete mechanism")
    if body.cells > MOST_CELLS[kind]:
        raise InvalidInput.at("/cells", f"expected at most {MOST_CELLS[kind]} for {body.mechanism}")
    if body.sub_gaussian and kind.PARAMETER:
        raise InvalidInput.at("/sub_gaussian", "expected this field only with osgt and discrete_osgt")
    try:
        mechanism = replace(least_noise(kind, sensitivity, target), cells=body.cells)
    except NoSuchNoise as error:
        raise InvalidInput.at("", str(error)) from None
    return ok(
        {
            "mechanism": write_plan(mechanism),
            "variance": number_up(variance_of(mechanism)),
            "cost": cost_of(mechanism, Neighbouring.ADD_REMOVE, (target.delta,)),
        }
    )


def _within(text: str, limits: tuple[Fraction, Fraction], pointer: str) -> Fraction:
    value, (least, most) = parse_exact(text), limits
    if not least <= value <= most:
        raise InvalidInput.at(
            pointer, f"expected a number of at least {exact_text(least)} and at most {exact_text(most)}"
        )
    return value
