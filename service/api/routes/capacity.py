"""Route of an account's capacity: how often a plan could still be registered."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from service.api.http.dependencies import AnswerInHelper, CurrentDatabase, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.routes.accounts import AccountPath
from service.api.routes.release_pricing import check_work
from service.api.schemas.exact_numbers import Strict, Tags, number_up
from service.api.schemas.guarantees import HeadBody, head_body
from service.api.schemas.periods import MANY_WINDOWS, StatedPeriods
from service.api.schemas.plans import BoundedPlan, document_of, plan_of_document
from service.errors import Forbidden
from service.ledger.access.authentication import Principal
from service.ledger.accounts import lines
from service.ledger.accounts.account_periods import ChargedPeriods
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.lines import AccountCaps, Line
from service.ledger.releases import capacity, preparation
from service.ledger.releases.capacity import Capacity, Undecided
from service.ledger.releases.preparation import NewRelease, Prepared, Prices
from service.ledger.releases.request_bounds import RequestBounds
from service.ledger.releases.several_capacity import TRIALS
from service.ledger.storage.database import Database
from service.privacy.accounting import effort
from service.privacy.accounting.batch_costs import BeyondDoubles
from service.privacy.accounting.capacity import MOST_COUNTED
from service.privacy.accounting.guarantee import USUAL_DELTA
from service.privacy.accounting.pricing import estimate_price
from service.privacy.accounting.privacy_filter import Definition
from service.privacy.plans.notation import check_relation
from service.privacy.plans.walking import condense

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)


class CapacityQuestion(Strict):
    """A plan whose releases are counted."""

    plan: BoundedPlan
    tags: Tags = Field([], description="The tags of the releases, which caps on tags count for all of the plan.")
    periods: StatedPeriods = None


class StopBody(BaseModel):
    """The cap that one more release would not fit; all null for an account above that the key does not reach."""

    account: str | None
    definition: Definition | None
    cap: str | None = Field(description="epsilon, rho, delta or declared_delta, as in a refusal.")
    tag: str | None = Field(None, description="Of a cap on a tag; omitted for the budget of an account.")
    window: str | None = Field(
        None,
        description="The window that refuses it, in an account with periods, as refusals name it: the first period, or"
        " all of its periods where units are in any. Omitted elsewhere, and where the common total of releases to all"
        " periods alone, a bound of all windows, or a cap on a tag refuses it.",
    )


class CapacityBody(BaseModel):
    """The number of releases of one plan that still fit, and the part of the account's budget that each takes.

    The three parts are of the account's own budget, as its gauge shows it: 1 is the whole budget, and equal releases
    take equal parts. They are rounded up; null is infinite. In an account with periods, used and used_after_one are the
    largest of the windows that the releases touch.
    """

    account: str
    fits: int = Field(
        description="The number of releases of the plan that could be registered one after the other, at present: each"
        f" fits this account and all accounts above. At most {MOST_COUNTED}."
    )
    at_least: bool = Field(description=f"True where more than {MOST_COUNTED} fit.")
    share: float | None = Field(description="The part of the budget that each of these releases takes.")
    used: float | None = Field(description="The part of the budget that is spent or held now.")
    used_after_one: float | None = Field(
        description="The part that is spent or held after one of them. It can be more than used and share together."
    )
    stopped_by: StopBody | None = Field(
        description="What refuses the release after the last that fits; the account itself first. Null where at_least"
        " is true."
    )
    head: HeadBody


@router.post("/{account}/capacity", response_model=CapacityBody, openapi_extra=examples.body(examples.CAPACITY))
def count_capacity(
    account: AccountPath,
    body: CapacityQuestion,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
) -> Response:
    """Count how many more releases of a plan fit.

    Nothing is registered, reserved or recorded as refused: a plan that does not fit has the answer fits: 0. The count
    is that of the releases that would be admitted if nothing else were charged meanwhile; reservations count until they
    expire. A key that does not reach all accounts above this one needs the role pipeline, as for a dry run, because the
    answer tells how much room they have.

    An account with periods needs the periods that each of the releases reads, as a release states them. The count is
    that of releases which every window admits that they touch, and every cap on their tags. Releases to all periods are
    compared with every window of an account that has few enough, and otherwise with a bound of all of them, as when
    they are registered. Where the participation of an account is {"any": w}, each period of a release is counted
    together with the w - 1 others that have the most, as when releases are registered.
    """
    require(principal, "auditor", account)
    document, tags = document_of(body.plan), tuple(body.tags)
    plan = plan_of_document(document, "/plan")
    asked = NewRelease("plan", plan, document, tags, USUAL_DELTA, "/plan", periods=body.periods)
    line = lines.line_of(database, account)
    present = capacity.present_line(database, line)
    _require_above(principal, present)
    charged = preparation.charged_periods(line, asked, RequestBounds("/periods"))
    if any(one is not None for one in charged):
        if request.app.state.helpers is not None and _compared(present, charged) > MANY_WINDOWS:
            raise AnswerInHelper
        present = capacity.present_line(database, line, charged)
    check_relation(asked.plan, line.neighbouring, asked.pointer)
    return ok(_body(_counted(request, database, line, present, asked), principal))


def _compared(line: Sequence[AccountRecord], charged: Sequence[ChargedPeriods | None]) -> int:
    """Return how many windows are compared in all accounts of a line, those of trials as often as they are tried."""
    return sum(
        account.windows.number
        if one.places.everything
        else one.places.number
        if account.windows.several is None
        else TRIALS * (one.places.number + len(account.windows.leads))
        for account, one in zip(line, charged, strict=True)
        if account.windows is not None and one is not None
    )


def _require_above(principal: Principal, line: list[AccountRecord]) -> None:
    """Refuse an auditor's key that does not reach all accounts above.

    Raises:
        Forbidden: the answer would tell the key more than it may know.
    """
    if not (principal.may_act_as("pipeline") or all(principal.may_use(above.name) for above in line)):
        raise Forbidden(
            "expected a key with the role pipeline, or one that reaches the accounts above this one: the answer tells"
            " how much room they have"
        )


def _counted(
    request: Request, database: Database, line: Line, present: list[AccountRecord], asked: NewRelease
) -> Capacity:
    """Count by estimated prices where exact ones take long and the estimates decide.

    Raises:
        AnswerInHelper: it takes long, and there are helper processes.
        InvalidInput: to price the plan, or to write one release of it, is too much work.
    """
    plan, helped = condense(asked.plan), request.app.state.helpers is not None
    caps = [AccountCaps(account.name, account.caps) for account in present]
    preparation.require_statements(caps, asked)
    capped = [cap.weights.orders for _, own in caps for cap in own]
    priced = sum(effort.of_price(plan, len(orders)) for orders in [*set(line.orders), *capped])
    work = priced + effort.of_proofs(plan)
    check_work(request.app.state.settings.max_work, work, asked.pointer)
    if work > effort.LIGHT:
        estimating = effort.of_estimates(plan, [*line.orders, *capped])
        if helped and estimating > effort.LIGHT:
            raise AnswerInHelper
        if estimating < work:
            try:
                estimates = preparation.prices_of(line, caps, asked, asked.plan, estimate_price)
                return capacity.capacity(present, _prepared(database, line, asked, estimates), estimated=True)
            except (BeyondDoubles, Undecided):
                if helped:
                    raise AnswerInHelper from None
    prices = preparation.prices_of(line, caps, asked, plan)
    return capacity.capacity(present, _prepared(database, line, asked, prices))


def _prepared(database: Database, line: Line, asked: NewRelease, prices: Prices) -> Prepared:
    (prepared,) = preparation.prepare(database, line.name, [asked], {id(asked): prices}, [USUAL_DELTA])
    return prepared


def _body(found: Capacity, principal: Principal) -> dict[str, Any]:
    stop, stopped_by = found.stop, None
    if stop is not None:
        limit = stop.limit
        seen = principal.may_use(limit.account)
        named = (limit.account, limit.budget.definition.value, stop.cap) if seen else (None,) * 3
        stopped_by = dict(zip(("account", "definition", "cap"), named, strict=True))
        parts_of = {"tag": limit.tag, "window": limit.window} if seen else {}
        stopped_by |= {name: part for name, part in parts_of.items() if part is not None}
    parts = {"share": found.share, "used": found.used, "used_after_one": found.used_after_one}
    return {
        "account": found.account.name,
        "fits": found.fits,
        "at_least": stop is None,
        **{name: None if part is None else number_up(part) for name, part in parts.items()},
        "stopped_by": stopped_by,
        "head": head_body(found.account.head),
    }
