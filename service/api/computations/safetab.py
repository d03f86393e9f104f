"""Route of SafeTab plans from margins of error."""

from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, StringConstraints

from service.api.computations.calibrations import read_margin
from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas import patterns
from service.api.schemas.exact_numbers import Exact, Strict, number_up, stated
from service.api.schemas.guarantees import cost_of, guarantee_body, read_deltas
from service.api.schemas.plan_models import Plan
from service.api.schemas.plans import law_of
from service.errors import Fault, InvalidInput, read_all
from service.privacy.accounting.guarantee import guarantee
from service.privacy.accuracy.tails import coverage, excess_of
from service.privacy.mechanisms import DiscreteGaussian, Geometric
from service.privacy.numerics.numbers import parse_exact
from service.privacy.planning import safetab
from service.privacy.planning.safetab import CONFIDENCE, MOST_TIGHT, Design, LevelNoise, SafeTabAnalysis, TargetLevel
from service.privacy.plans import Sequence
from service.privacy.plans.notation import write_plan
from service.privacy.plans.walking import Neighbouring, condense

router = APIRouter(prefix="/v1/plans", route_class=StrictRoute)

MOST_LEVELS = 100
MOST_GROUPS = 10**6
SMALLEST_FRACTION = Fraction(1, 10**6)

LevelName = Annotated[str, StringConstraints(min_length=1, max_length=180, pattern=patterns.LABEL)]


class LevelTarget(Strict):
    """A level of population groups, and the margin of error of its tables' cells."""

    name: LevelName
    moe: Exact = Field(description="In counts. Noise is whole, so the margin is rounded down.")


class SafetabTarget(Strict):
    """SafeTab's parameters, by default those of the paper."""

    mechanism: Literal["geometric", "discrete_gaussian"]
    levels: Annotated[list[LevelTarget], Field(min_length=1, max_length=MOST_LEVELS)]
    stability: Annotated[int, Field(strict=True, ge=1, le=MOST_GROUPS)] = Field(
        9, description="The largest number of groups of one level that contain a record."
    )
    stage_1_fraction: Exact = Field("0.1", description="The share of a group's budget for choosing its table.")
    confidence: Exact = "0.95"
    delta: Exact = "1e-10"
    method: Literal["exact", "safetab"] = Field(
        "exact", description="exact: the cheapest noise that meets the margins. safetab: the paper's closed forms."
    )


class LevelFigures(BaseModel):
    """The cost of a level at step 2 and in total (epsilon, or rho of discrete Gaussian noise; nats)."""

    step_2: float
    total: float


class LevelBody(LevelFigures):
    """A level, rounded up; coverage: the margin's proven confidence, rounded down. as_printed: Tables 1 and 4."""

    name: str
    moe: float
    coverage: float
    as_printed: LevelFigures | None


class AnalysisBody(BaseModel):
    """epsilon of the whole plan at delta; sound: it is a proven upper bound."""

    name: str
    epsilon: float
    delta: float
    sound: bool


class SafetabBody(BaseModel):
    """The levels, every analysis, and the plan to register."""

    levels: list[LevelBody]
    analyses: list[AnalysisBody]
    plan: Plan


@router.post("/safetab", response_model=SafetabBody, openapi_extra=examples.body(examples.SAFETAB))
@in_helpers
def plan_safetab(body: SafetabTarget, _: CurrentPrincipal) -> Response:
    """Plan SafeTab from margins of error.

    For each level the answer has the noise that meets its margin of error at step 2, and the cost of the level. It has
    the total cost of all levels by every analysis, under add_remove. Nothing is charged.

    Names mark results that are "as printed" in the paper (rounded there) and results of a "printed formula". Of those,
    the Rényi formula of geometric noise is too small, and the paper's closed form for geometric margins misses them, as
    coverage shows. There is no tight analysis of more than 16 levels.

    The plan can be registered as it is: at each level, repeated as often as a record can be in groups, either the total
    only, or step 1 followed by step 2.
    """
    (delta,) = read_deltas([body.delta], ["/delta"])
    design = _design(body)
    noise = read_all(partial(_noise, design), range(len(design.levels)))
    plan = safetab.safetab_plan(design, noise)
    printed = [*safetab.printed_table_2(design, delta), safetab.printed_analysis(design, noise, delta)]
    return ok(
        {
            "levels": [_level(design, *pair) for pair in zip(design.levels, noise, strict=True)],
            "analyses": [_printed(one) for one in printed] + _analyses(plan, delta),
            "plan": write_plan(plan),
        }
    )


def _design(body: SafetabTarget) -> Design:
    fraction, confidence = parse_exact(body.stage_1_fraction), parse_exact(body.confidence)
    if not SMALLEST_FRACTION <= fraction <= 1 - SMALLEST_FRACTION:
        raise InvalidInput.at("/stage_1_fraction", "expected a number of at least 0.000001 and at most 0.999999")
    if body.method == "safetab" and confidence != CONFIDENCE:
        raise InvalidInput.at("/confidence", "expected 0.95, the only confidence of the safetab method")
    try:
        excess_of(confidence)
    except ValueError as error:
        raise InvalidInput.at("/confidence", str(error)) from None
    if confidence < SMALLEST_FRACTION:
        raise InvalidInput.at("/confidence", "expected a confidence of at least 0.000001")
    names = [level.name for level in body.levels]
    twice = [number for number, name in enumerate(names) if name in names[:number]]
    if twice:
        detail = "expected a name that no other level has"
        raise InvalidInput([Fault(f"/levels/{number}/name", detail) for number in twice])
    margins = read_all(lambda n: read_margin(body.levels[n].moe, f"/levels/{n}/moe"), range(len(names)))
    return Design(
        kind=Geometric if body.mechanism == "geometric" else DiscreteGaussian,
        levels=tuple(map(TargetLevel, names, margins)),
        stability=body.stability,
        stage_1=fraction,
        confidence=confidence,
        exact=body.method == "exact",
    )


def _noise(design: Design, number: int) -> LevelNoise:
    try:
        return safetab.noise_of(design, design.levels[number])
    except ValueError as error:
        raise InvalidInput.at(f"/levels/{number}/moe", str(error)) from None


def _level(design: Design, level: TargetLevel, noise: LevelNoise) -> dict[str, Any]:
    printed = safetab.printed_level(design, level)
    return {
        "name": level.name,
        "moe": level.margin,
        "step_2": number_up(design.stability * safetab.loss_of(noise.step_2)),
        "total": number_up(design.stability * safetab.loss_of(noise.total_only)),
        "coverage": coverage(law_of(noise.step_2, ""), level.margin),
        "as_printed": None if printed is None else {"step_2": float(printed[0]), "total": float(printed[1])},
    }


def _printed(printed: SafeTabAnalysis) -> dict[str, Any]:
    shown = number_up(printed.epsilon) if printed.sound else float(printed.epsilon)
    return {"name": printed.name, "epsilon": shown, "delta": stated(printed.delta, number_up), "sound": printed.sound}


def _analyses(plan: Sequence, delta: Fraction) -> list[dict[str, Any]]:
    """List the analyses that pricing the plan gives too, from the same cache: registering it later is then fast."""
    if len(plan.parts) <= MOST_TIGHT:
        cost = cost_of(plan, Neighbouring.ADD_REMOVE, (delta,))
    else:
        rough = guarantee(condense(plan), Neighbouring.ADD_REMOVE, deltas=(delta,), orders=(), tight=False)
        cost = guarantee_body(rough)
    return [
        {
            "name": "zcdp, analytic" if one["via"] == "analytic" else one["via"],
            "epsilon": one["epsilon"],
            "delta": 0.0 if one["via"] == "pure" else one["delta"],
            "sound": True,
        }
        for one in cost["approximate"]
    ]
