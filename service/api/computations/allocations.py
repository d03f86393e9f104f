"""Route of allocations: a budget divided over queries."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import AfterValidator, BaseModel, Field, model_validator

from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas.exact_numbers import (
    LARGEST_INTEGER,
    Exact,
    Label,
    Positive,
    Strict,
    number_down,
    number_up,
    short_exact,
)
from service.api.schemas.guarantees import BudgetModel, GuaranteeBody, guarantee_body
from service.api.schemas.plan_models import Mechanism, Plan
from service.api.schemas.plans import law_of
from service.errors import Fault, InvalidInput, read_all
from service.ledger.accounts.budgets import read_budget, usual_delta
from service.privacy.accounting.guarantee import guarantee
from service.privacy.accounting.privacy_filter import Budget
from service.privacy.accuracy.continuous import ContinuousSum
from service.privacy.accuracy.tails import excess_of, margin_of_error
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Gaussian, Geometric, Laplace
from service.privacy.numerics.numbers import parse_exact
from service.privacy.planning import allocation
from service.privacy.planning.allocation import EmptyAccount, NoAllocation, QueryNoise, QueryNoiseType, WeightedQuery
from service.privacy.plans.notation import write_plan
from service.privacy.plans.walking import Neighbouring, condense

router = APIRouter(prefix="/v1/calibrations", route_class=StrictRoute)

_KINDS: dict[str, QueryNoiseType] = {
    "geometric": Geometric,
    "discrete_gaussian": DiscreteGaussian,
    "laplace": Laplace,
    "gaussian": Gaussian,
    "discrete_osgt": DiscreteOsgt,
}
Objective = Literal["proportional", "max_error", "weighted_error"]
MOST_QUERIES, MOST_SEARCHED, MOST_TIGHT = 100, 50, 16
MOST_OFFSET = 10  # queries whose weights divide a budget by noise with offset tails, each price of which takes long
_WEIGHTS = Fraction(1, 10**6), Fraction(10**6)  # sensitivities have the same limits
_SENSITIVITY = "0.000001 and at most 1000000, whole for a discrete mechanism"


def _between(least: Fraction | int, most: Fraction | int, words: str) -> AfterValidator:
    """Return the check that an exact number is between limits, which ``words`` state."""

    def check(text: str) -> str:
        if not least <= parse_exact(text) <= most:
            raise ValueError(f"expected a number of at least {words}")
        return text

    return AfterValidator(check)


_Weight = Annotated[Exact, _between(*_WEIGHTS, "0.000001 and at most 1000000")]
_Margin = Annotated[Exact, _between(0, LARGEST_INTEGER, "0 and at most 2^53")]
_Variance = Annotated[Exact, _between(Fraction(1, 10**4), Fraction(10**30), "0.0001 and at most 1e30")]


class QueryTarget(Strict):
    """A query with its weight, its target margin of error, or the variance that its noise may have."""

    name: Label
    weight: _Weight | None = None
    moe: _Margin | None = None
    variance: _Variance | None = None
    sensitivity: Annotated[Exact, _between(*_WEIGHTS, _SENSITIVITY)] = "1"
    cells: Positive = 1


class AllocationTarget(Strict):
    """A budget with weighted queries, or queries with margins or variances and an optional budget for comparison."""

    budget: BudgetModel | None = None
    mechanism: Literal["geometric", "discrete_gaussian", "laplace", "gaussian", "discrete_osgt"] = Field(
        description="discrete_osgt has the largest offset whose tails are sub-Gaussian: m is 0.67448 sigma."
    )
    queries: Annotated[list[QueryTarget], Field(min_length=1, max_length=MOST_QUERIES)]
    objective: Objective = Field(
        "proportional",
        description="Only with weights. proportional: shares of the budget by weight. max_error: minimises the"
        " largest product of weight and margin of error. weighted_error: minimises the sum of weight"
        " times variance.",
    )
    confidence: Exact = "0.95"

    @model_validator(mode="after")
    def _one_question(self) -> "AllocationTarget":
        stated = {
            tuple(name for name in ("weight", "moe", "variance") if getattr(query, name) is not None)
            for query in self.queries
        }
        if len(stated) > 1 or len(next(iter(stated))) != 1:
            raise ValueError("expected a weight of each query, a moe of each query, or a variance of each query")
        if stated == {("weight",)} and self.budget is None:
            raise ValueError("expected a budget, which the weights divide")
        if stated != {("weight",)} and self.objective != "proportional":
            raise ValueError("expected no objective without weights: each target is met at its least cost")
        return self


class QueryBody(BaseModel):
    """A query's noise, its margin of error, and its share of the total cost (epsilon, or rho for Gaussian noise)."""

    name: str
    mechanism: Mechanism
    moe: float
    share: float
    share_exact: str | None


class AllocationBody(BaseModel):
    """The queries, their total cost, and the plan to register."""

    queries: list[QueryBody]
    fits: bool | None = Field(
        description="true where an empty account with the budget admits the plan, under add_remove; null without a"
        " budget."
    )
    cost: GuaranteeBody
    plan: Plan


@router.post("/allocation", response_model=AllocationBody, openapi_extra=examples.body(examples.ALLOCATION))
@in_helpers
def allocate(body: AllocationTarget, _: CurrentPrincipal) -> Response:
    """Divide a budget over queries.

    With margins of error or variances, the answer has the cheapest noise for each query and the total cost; if a budget
    is given, it says if the budget admits that cost. With weights and a budget in any definition, the answer has the
    least noise that an empty account with this budget admits as its first release under add_remove, never less noise.

    In a mechanism's own definition (pure for geometric and laplace, zcdp and rdp for the Gaussians) proportional shares
    are exact fractions of the budget. weighted_error uses the pure loss with pure budgets and rho with others. At most
    100 queries are accepted, 50 with max_error, 10 with weights for discrete_osgt (proportional only). No tight cost is
    computed for more than 16, or for discrete_osgt.
    """
    kind, confidence = _KINDS[body.mechanism], _confidence(body.confidence)
    queries = _queries(body, kind)
    budget = None if body.budget is None else read_budget(body.budget.model_dump(exclude_none=True), "/budget")
    if budget is None or body.queries[0].weight is None:
        noise = read_all(
            lambda n: _with_target(kind, queries[n], body.queries[n], confidence, f"/queries/{n}"), range(len(queries))
        )
    else:
        noise = _within_budget(body, budget, kind, queries)
    plan = allocation.sequence_plan(noise)
    amounts = [allocation.cost_in_own_unit(one) for one in noise]
    tight = len(noise) <= MOST_TIGHT and not kind.OFFSET
    cost = guarantee(condense(plan), Neighbouring.ADD_REMOVE, deltas=(usual_delta(budget),), tight=tight)
    return ok(
        {
            "queries": [
                _query(one, amount, sum(amounts), confidence, f"/queries/{number}")
                for number, (one, amount) in enumerate(zip(noise, amounts, strict=True))
            ],
            "fits": None if budget is None else EmptyAccount.of(budget).admits(plan),
            "cost": guarantee_body(cost),
            "plan": write_plan(plan),
        }
    )


def _confidence(text: str) -> Fraction:
    confidence = parse_exact(text)
    try:
        excess_of(confidence)
    except ValueError as error:
        raise InvalidInput.at("/confidence", str(error)) from None
    return confidence


def _queries(body: AllocationTarget, kind: QueryNoiseType) -> list[WeightedQuery]:
    faults, queries = [], []
    names: set[str] = set()
    for number, query in enumerate(body.queries):
        weight, s = parse_exact(query.weight or "1"), parse_exact(query.sensitivity)
        at = f"/queries/{number}"
        if query.name in names:
            faults.append(Fault(f"{at}/name", "expected a name that no other query has"))
        if kind.DRAWN and s.denominator != 1:
            faults.append(Fault(f"{at}/sensitivity", f"expected a number of at least {_SENSITIVITY}"))
        names.add(query.name)
        queries.append(WeightedQuery(query.name, weight, s, query.cells))
    if faults:
        raise InvalidInput(faults)
    return queries


def _with_target(
    kind: QueryNoiseType, query: WeightedQuery, target: QueryTarget, confidence: Fraction, at: str
) -> QueryNoise:
    if target.variance is not None:
        return allocation.with_variance(kind, query, parse_exact(target.variance))
    try:
        return allocation.with_margin(kind, query, parse_exact(target.moe or "0"), confidence)
    except ValueError as error:
        raise InvalidInput.at(f"{at}/moe", str(error)) from None


def _within_budget(
    body: AllocationTarget, budget: Budget, kind: QueryNoiseType, queries: Sequence[WeightedQuery]
) -> list[QueryNoise]:
    if not Fraction(1, 10**6) <= budget.cap <= 10**4 or (budget.alpha or 2) > 10**6:
        raise InvalidInput.at(
            "/budget", "expected a budget between 0.000001 and 10000, and an order of at most 1000000"
        )
    account = EmptyAccount.of(budget)
    if kind.OFFSET and body.objective != "proportional":
        raise InvalidInput.at("/objective", "expected proportional with discrete_osgt")
    if kind.OFFSET and len(queries) > MOST_OFFSET:
        raise InvalidInput.at("/queries", f"expected at most {MOST_OFFSET} queries with weights for discrete_osgt")
    try:
        if body.objective == "max_error":
            if len(queries) > MOST_SEARCHED:
                raise InvalidInput.at("/queries", f"expected at most {MOST_SEARCHED} queries with max_error")
            return allocation.least_largest_error(account, kind, queries, _confidence(body.confidence))
        weighted = body.objective == "weighted_error"
        shares = (
            allocation.least_weighted_error(account, kind, queries) if weighted else allocation.proportional(queries)
        )
        return allocation.divide_budget(account, kind, queries, shares)
    except NoAllocation as error:
        raise InvalidInput.at("/budget", str(error)) from None


def _query(noise: QueryNoise, amount: Fraction, whole: Fraction | int, confidence: Fraction, at: str) -> dict[str, Any]:
    if not noise.DRAWN:
        try:
            moe: int | float | None = number_up(ContinuousSum(noise.noise_law(), 1).margin(confidence)[0])
        except ValueError as error:  # noise beyond the limits
            raise InvalidInput.at(at, str(error)) from None
    else:
        moe = margin_of_error(law_of(noise, ""), confidence)
    share = amount / whole
    return {
        "name": noise.name,
        "mechanism": write_plan(noise),
        "moe": moe,
        "share": number_down(share),
        "share_exact": short_exact(share),
    }
