"""Routes of stateless computations: the cost of a plan, and conversions between notions of privacy loss."""

from fractions import Fraction
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, model_validator

from service.api.charts import pictures
from service.api.charts.balance_figures import OfGuarantee, drawn_at, guarantee_picture
from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.routes.release_pricing import check_work
from service.api.schemas.exact_numbers import Exact, Strict, number_down, number_up, stated
from service.api.schemas.guarantees import GuaranteeBody, cost_of, read_deltas
from service.api.schemas.plan_models import RdpCurve
from service.api.schemas.plans import BoundedPlan, document_of, plan_of
from service.errors import Fault, InvalidInput
from service.privacy.accounting import effort
from service.privacy.accounting.conversion import epsilon_to_rho_analytic, epsilon_to_rho_at
from service.privacy.accounting.gdp import least_mu
from service.privacy.accounting.guarantee import USUAL_ORDERS, DeltaStatement, deltas_at
from service.privacy.accounting.tradeoff import FIGURES, ORDERS, false_negatives
from service.privacy.mechanisms import Declared
from service.privacy.mechanisms.declared import read_declaration
from service.privacy.numerics.numbers import parse_exact
from service.privacy.plans import Plan
from service.privacy.plans.notation import check_relation
from service.privacy.plans.walking import Neighbouring, condense
from service.privacy.tight.gaussian import gaussian_rho_at

router = APIRouter(prefix="/v1", route_class=StrictRoute)


class Composition(Strict):
    """A plan to price."""

    plan: BoundedPlan
    neighbouring: Neighbouring = Neighbouring.ADD_REMOVE
    deltas: Annotated[list[Exact], Field(min_length=1, max_length=100)] = Field(default_factory=lambda: ["1e-10"])
    orders: Annotated[list[Exact], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="RDP orders to show, each above 1; by default a dozen common ones."
    )
    false_positives: Annotated[list[Exact], Field(max_length=10)] = Field(
        default_factory=list,
        description="Probabilities with which a test for one unit's data accuses wrongly: the answer states how often"
        " every such test misses at least.",
    )
    gdp: bool = Field(False, description="Whether the answer states the mu of Gaussian differential privacy.")


class TradeoffFigure(BaseModel):
    """A point of the trade-off function, rounded down; null where false_positives is no double."""

    false_positives: float | None
    false_negatives: float


class GdpFigure(BaseModel):
    """Gaussian differential privacy; rounded up."""

    mu: float


class CompositionBody(GuaranteeBody):
    """The guarantee of a plan and, where they were asked for, its trade-off and its mu."""

    tradeoff: Annotated[
        list[TradeoffFigure] | None,
        Field(
            description="How often a test that is to tell two neighbours apart, by all outputs of the plan, accuses"
            " wrongly, and how often it misses at least."
        ),
    ] = None
    gdp: Annotated[
        GdpFigure | None,
        Field(
            description="The least mu for which the plan is certified: no test tells two neighbours apart better than"
            " N(0, 1) from N(mu, 1). Null where there is none, as with a declared delta or where rho is infinite."
        ),
    ] = None


class Conversion(Strict):
    """Exactly one of rho, rdp and plan, with delta or epsilon; or epsilon and delta, with to."""

    rho: Exact | None = None
    rdp: RdpCurve | None = None
    plan: BoundedPlan | None = None
    neighbouring: Neighbouring = Neighbouring.ADD_REMOVE
    epsilon: Exact | None = None
    delta: Exact | None = None
    to: Literal["zcdp"] | None = None

    @model_validator(mode="after")
    def _one_question(self) -> "Conversion":
        sources = [name for name in ("rho", "rdp", "plan") if getattr(self, name) is not None]
        if self.to is not None:
            if sources or self.epsilon is None or self.delta is None:
                raise ValueError("expected epsilon and delta beside to, and none of rho, rdp and plan")
        elif len(sources) != 1:
            raise ValueError(f"expected exactly one of rho, rdp and plan, or to, got {len(sources)}")
        elif (self.epsilon is None) == (self.delta is None):
            raise ValueError("expected exactly one of epsilon and delta")
        return self


class DeltaFigure(BaseModel):
    """delta by one analysis, rounded up; method as in GUARANTEE."""

    delta: float
    via: Literal["zcdp", "rdp", "pure", "analytic", "tight"]
    method: str | None = None


class DeltaBody(DeltaFigure):
    """The least delta at the given epsilon and the analysis that gives it, followed by every analysis."""

    analyses: list[DeltaFigure]


class RhoFigure(BaseModel):
    """rho by one analysis, rounded down."""

    rho: float
    via: Literal["zcdp", "analytic", "tight"]


class RhoBody(BaseModel):
    """The largest rho whose zCDP guarantee implies the given (epsilon, delta), followed by every analysis.

    Only zcdp and analytic hold for every zCDP mechanism: tight is the largest rho of continuous Gaussian noise.
    """

    rho: float
    analyses: list[RhoFigure]


@router.post(
    "/compositions",
    response_model=CompositionBody,
    responses=pictures.responses("The guarantee; or its privacy profile or Rényi curve as SVG or PNG."),
    openapi_extra=examples.body(examples.COMPOSITION),
)
@in_helpers
def compose(
    body: Composition,
    request: Request,
    _: CurrentPrincipal,
    picture: Annotated[OfGuarantee, Query(description="The kind of picture, where Accept asks for one.")] = "profile",
) -> Response:
    """Price a plan.

    Nothing is stored. Every figure is an upper bound under the given neighbouring relation. With Accept: image/svg+xml
    or image/png the answer is a picture of the privacy profile or of the Rényi curve. The profile is drawn at the
    request's deltas; for a single delta, at that delta and from 1e-12 to 0.3.
    """
    plan = plan_of(body.plan, "/plan")
    check_relation(plan, body.neighbouring, "/plan")
    deltas = read_deltas(body.deltas, [f"/deltas/{number}" for number in range(len(body.deltas))])
    kind, orders, shares = pictures.wanted_type(request), _orders(body.orders), _shares(body.false_positives)
    gdp_too = body.gdp and kind is None
    if kind is not None:
        deltas, shares = drawn_at(picture, deltas), []
    searches = len(shares) + gdp_too
    _check_work(request, plan, len(orders) + ORDERS * searches, len(deltas) + FIGURES * searches)
    cost = cost_of(plan, body.neighbouring, deltas, orders)
    if kind is None:
        mu = {"gdp": _gdp(plan, body.neighbouring)} if gdp_too else {}
        return ok(cost | _tradeoff(plan, body.neighbouring, shares) | mu)
    return guarantee_picture(cost, picture, "a plan", kind)


@router.post(
    "/conversions",
    response_model=GuaranteeBody | DeltaBody | RhoBody,
    openapi_extra=examples.body(examples.CONVERSION),
)
@in_helpers
def convert(body: Conversion, request: Request, _: CurrentPrincipal) -> Response:
    """Convert between notions of privacy loss.

    With delta, the answer is the whole guarantee of rho, of an RDP curve or of a plan. With epsilon, it is the least
    delta. With to = zcdp, it is the largest rho that implies (epsilon, delta). Each answer also lists every single
    analysis.
    """
    if body.epsilon is not None:
        epsilon = parse_exact(body.epsilon)
        if epsilon < 0 or (body.to and epsilon == 0):
            raise InvalidInput.at(
                "/epsilon", "expected a number above 0" if body.to else "expected a number of at least 0"
            )
    deltas = () if body.delta is None else read_deltas([body.delta], ["/delta"])
    if body.to is not None:
        return ok(_rhos(epsilon, deltas[0]))
    plan, orders = _plan(body), _curve_orders(body)
    _check_work(request, plan, len(orders), len(deltas))
    if body.epsilon is None:
        return ok(cost_of(plan, body.neighbouring, deltas, orders))
    figures = [_delta_figure(figure) for figure in deltas_at(plan, body.neighbouring, epsilon)]
    return ok(figures[0] | {"analyses": figures})


def _shares(texts: list[str]) -> list[Fraction]:
    shares = list(map(parse_exact, texts))
    faults = [
        Fault(f"/false_positives/{number}", "expected a probability above 0 and below 1")
        for number, share in enumerate(shares)
        if not 0 < share < 1
    ]
    if faults:
        raise InvalidInput(faults)
    return shares


def _tradeoff(plan: Plan, neighbouring: Neighbouring, shares: list[Fraction]) -> dict[str, Any]:
    """Return the member with the trade-off at the asked probabilities; nothing where none is asked for."""
    if not shares:
        return {}
    points = zip(shares, false_negatives(plan, neighbouring, shares), strict=True)
    return {
        "tradeoff": [
            {"false_positives": stated(share, number_down), "false_negatives": number_down(least)}
            for share, least in points
        ]
    }


def _gdp(plan: Plan, neighbouring: Neighbouring) -> dict[str, Any] | None:
    mu = least_mu(plan, neighbouring)
    return None if mu is None else {"mu": number_up(mu)}


def _check_work(request: Request, plan: Plan, orders: int, deltas: int) -> None:
    most = request.app.state.settings.max_work
    check_work(most, effort.of_guarantee(condense(plan), orders, deltas), "/plan")


def _delta_figure(statement: DeltaStatement) -> dict[str, Any]:
    figure = {"delta": None if statement.delta.nats is None else number_up(statement.delta.nats), "via": statement.via}
    return figure if statement.method is None else figure | {"method": statement.method}


def _rhos(epsilon: Fraction, delta: Fraction) -> dict[str, Any]:
    by_zcdp, analytic = epsilon_to_rho_at(epsilon, delta), epsilon_to_rho_analytic(epsilon, delta)
    figures = {"zcdp": by_zcdp, "analytic": analytic, "tight": gaussian_rho_at(epsilon, delta, analytic)}
    return {
        "rho": number_down(by_zcdp),
        "analyses": [{"rho": number_down(rho), "via": via} for via, rho in figures.items()],
    }


def _plan(body: Conversion) -> Plan:
    """Return the plan of a conversion: the given one, or a mechanism that is declared by its guarantee alone."""
    if body.plan is not None:
        plan = plan_of(body.plan, "/plan")
        check_relation(plan, body.neighbouring, "/plan")
        return plan
    document = document_of(body)
    guarantee = read_declaration({name: document[name] for name in ("rho", "rdp") if name in document}, "")
    return Declared(guarantee=guarantee, reference="as asked")


def _curve_orders(body: Conversion) -> tuple[Fraction, ...]:
    """Return the orders of the RDP curve of a conversion; a result at other orders would be weaker."""
    return USUAL_ORDERS if body.rdp is None else tuple(sorted(parse_exact(point.alpha) for point in body.rdp))


def _orders(texts: list[str] | None) -> tuple[Fraction, ...]:
    if texts is None:
        return USUAL_ORDERS
    orders = tuple(map(parse_exact, texts))
    for number, order in enumerate(orders):
        if order <= 1:
            raise InvalidInput.at(f"/orders/{number}", "expected an order above 1")
    return orders
