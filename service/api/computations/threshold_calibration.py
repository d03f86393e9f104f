"""Route of thresholds: the least one that keeps a delta."""

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas.exact_numbers import Exact, Strict, number_up
from service.api.schemas.granularity import Count, count_text, in_units
from service.api.schemas.guarantees import GuaranteeBody, cost_of, read_deltas
from service.api.schemas.plan_models import Mechanism
from service.api.schemas.plans import mechanism_of
from service.errors import InvalidInput
from service.privacy.accounting.pure import plan_delta
from service.privacy.mechanisms import DRAWN, takes_threshold
from service.privacy.planning.thresholds import chance_of_publication, with_least_threshold
from service.privacy.plans.notation import check_relation, write_plan
from service.privacy.plans.walking import Neighbouring

router = APIRouter(prefix="/v1/calibrations", route_class=StrictRoute)


class ThresholdTarget(Strict):
    """A delta that a threshold may cost."""

    mechanism: Mechanism = Field(
        description="Integer noise without a threshold. Its cells and sensitivity say how many keys one record can make"
        " appear, and with what count."
    )
    neighbouring: Neighbouring = Neighbouring.ADD_REMOVE
    delta: Exact = Field(description="The largest delta that the threshold may add, for all keys of one record.")
    true_counts: Annotated[list[Count], Field(max_length=100)] = Field(
        default_factory=list, description="Made-up true counts of keys, to learn how often such keys are published."
    )


class PublicationChance(BaseModel):
    """The probability that a key with this true count is published; rounded down."""

    true_count: int | str
    probability: float


class ThresholdBody(BaseModel):
    """The mechanism with its threshold, the delta that this costs (rounded up), and the cost of both together."""

    mechanism: Mechanism
    threshold_delta: float
    published: list[PublicationChance]
    cost: GuaranteeBody


@router.post("/threshold", response_model=ThresholdBody, openapi_extra=examples.body(examples.THRESHOLD))
@in_helpers
def calibrate_threshold(body: ThresholdTarget, _: CurrentPrincipal) -> Response:
    """Calibrate a threshold to a delta.

    The answer has the least threshold that costs at most this delta, and the probabilities that keys with given true
    counts are published. A key that one record alone has is published with probability P(sensitivity + noise >=
    threshold); delta is the sum of these over the keys that the record can make appear. The next lower threshold costs
    more. Noise that is scaled afterwards needs another threshold.
    """
    mechanism = mechanism_of(body.mechanism, "/mechanism")
    if not takes_threshold(mechanism):
        raise InvalidInput.at("/mechanism", f"expected integer noise: {DRAWN}")
    if mechanism.threshold is not None:
        raise InvalidInput.at("/mechanism/threshold", "expected none: the answer states it")
    check_relation(mechanism, body.neighbouring, "/mechanism")
    (delta,) = read_deltas([body.delta], ["/delta"])
    counts = [in_units(one, mechanism.unit, "/true_counts", number) for number, one in enumerate(body.true_counts)]
    found = with_least_threshold(mechanism, body.neighbouring, delta)
    if found is None or found.threshold is None:
        detail = "expected a delta that a threshold of at most 2^53, or so many times granularity, keeps"
        raise InvalidInput.at("/delta", detail)
    noise, threshold = found.noise_law(), found.threshold
    return ok(
        {
            "mechanism": write_plan(found),
            "threshold_delta": number_up(plan_delta(found, body.neighbouring)),
            "published": [
                {
                    "true_count": count_text(count, found.unit),
                    "probability": chance_of_publication(noise, threshold, count),
                }
                for count in counts
            ],
            "cost": cost_of(found, body.neighbouring),
        }
    )
