"""Route of selections: one of several candidates, drawn once by their scores."""

from fractions import Fraction
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Response
from pydantic import FailFast, Field, WithJsonSchema

from service.api.http.dependencies import Changing, heavy_in_helpers, in_writers
from service.api.identity.auth import require
from service.api.openapi import examples
from service.api.routes.accounts import AccountPath
from service.api.routes.noisy_counts.draws import DrawPlace, DrawRoute, Published, respond_drawn, store_values
from service.api.routes.releases import ReleasePath
from service.api.schemas.draw_responses import SelectionBody
from service.api.schemas.exact_numbers import EXACT_SCHEMA
from service.api.schemas.granularity import secret_number
from service.errors import InvalidInput
from service.noise import select
from service.privacy.mechanisms import Mechanism

MOST_CANDIDATES = 10_000
_EXPECTED_SCORE = 'expected a number, or a string such as "0.1" or "104/4099"'


class SelectionRoute(DrawRoute):
    """Route class of scores, which are JSON only."""

    media_types = "application/json"


router = APIRouter(prefix="/v1/accounts/{account}", route_class=SelectionRoute)

Score = Annotated[int | Fraction, secret_number(_EXPECTED_SCORE), WithJsonSchema(EXACT_SCHEMA)]


class SelectCandidate(DrawPlace):
    """The mechanism of a registered release that selects, with the true scores."""

    scores: Annotated[
        list[Score],
        FailFast(),
        Field(
            min_length=1,
            max_length=MOST_CANDIDATES,
            description="The true score of each candidate; they are never stored or logged.",
        ),
    ]


@router.post(
    "/releases/{release}/selections",
    status_code=201,
    response_model=SelectionBody,
    openapi_extra={"requestBody": {"content": {"application/json": {"example": examples.SELECTION}}}},
)
@heavy_in_helpers
@in_writers
def select_candidate(account: AccountPath, release: ReleasePath, body: SelectCandidate, change: Changing) -> Response:
    """Select a candidate by an exponential mechanism of a registered release.

    The probabilities are exactly proportional to exp(epsilon*score/(2*sensitivity)), or to
    exp(epsilon*score/sensitivity) where the plan promises monotone scores. The candidates must not depend on the
    records. As with counts, each mechanism, partition and repetition is drawn once, and a repeated request receives the
    first answer. The answer has the place of the candidate; the scores are not kept.
    """

    def selected(mechanism: Mechanism) -> Published:
        rate = mechanism.score_rate()
        if rate is None:
            raise InvalidInput.at("/mechanism", "expected a mechanism that selects, as exponential does")
        return np.array([select(body.scores, rate, change.keystream())], np.int64), None

    require(change.principal, "pipeline", account)
    return respond_drawn(store_values(account, release, body, change, selected))
