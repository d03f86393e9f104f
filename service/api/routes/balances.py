"""Route of an account's balance."""

from collections import Counter
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy import Connection

from service.api.charts import pictures
from service.api.charts.balance_figures import OfBalance, drawn_at, guarantee_picture, spending_picture
from service.api.charts.pictures import wanted_type
from service.api.http.dependencies import AnswerInHelper, CurrentDatabase, ok
from service.api.http.kept_figures import BalanceCache
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.api.schemas.allotments import AllottedBody, allotted_member
from service.api.schemas.caps import CapBody, caps_member
from service.api.schemas.exact_numbers import Exact, Label
from service.api.schemas.guarantees import (
    BudgetModel,
    GuaranteeBody,
    HeadBody,
    Remaining,
    guarantee_body,
    head_body,
    read_deltas,
    remaining_body,
)
from service.api.schemas.periods import MANY_WINDOWS, WindowBody, read_query_period, window_member
from service.api.schemas.spending_history import history_body
from service.errors import InvalidInput
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import usual_delta, write_budget
from service.ledger.draws import partitions
from service.ledger.journal import replay
from service.ledger.releases.held_charges import held_totals
from service.ledger.releases.settlement import has_many_due, present_account
from service.ledger.spending import spending
from service.ledger.spending.spending_rows import Subplans
from service.ledger.spending.worst_windows import bound_of_several, of_window, worst_window
from service.ledger.storage import clock
from service.ledger.storage.paging import CHARACTERS, first_of
from service.privacy.accounting import effort
from service.privacy.accounting.capacity import MOST_COUNTED, count_fitting
from service.privacy.accounting.guarantee import USUAL_ORDERS, Guarantee, guarantee
from service.privacy.accounting.privacy_filter import Definition
from service.privacy.accounting.totals import Totals, mean_price
from service.privacy.periods import PeriodSet
from service.privacy.plans.tagged import as_replacement
from service.privacy.plans.walking import Priced

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)

_LONG = 1 << 16  # characters of subplans: the balance of a longer history is stored for the next request


class PartitionsTotal(BaseModel):
    """Numbers of partitions that mechanisms were drawn for, per repetition; undeclared: plans declare none for them."""

    drawn: int
    undeclared: int


class Balance(BaseModel):
    """The losses, reservations and remaining budget of an account and of the accounts under it.

    Of an allotted account under it, spent has the whole cap, whatever that account has spent.

    In an account with periods, all figures but those of caps are those of one window: of the releases that touch it.
    Caps count the releases of all periods.
    """

    account: str
    budget: BudgetModel
    spent: GuaranteeBody
    reserved: GuaranteeBody
    remaining: Remaining
    caps: list[CapBody] | None = Field(None, description="The caps on tags; omitted where there are none.")
    allotted: AllottedBody | None = Field(
        None, description="The parts of the budget; omitted where the account has allotted nothing."
    )
    tag_relation: Literal["replacement"] | None = Field(
        None,
        description="With tag, where the tag has a cap: spent and reserved compare inputs that differ in the value of"
        " the attribute, as the cap does. They cover the mechanisms that carry the tag. A cap that was set later counts"
        " earlier ones as well, in caps. Omitted elsewhere: the figures are those of the account's relation.",
    )
    releases: int = Field(
        description="The number of committed and held releases, of the account and of those under it."
    )
    equal_more: int | None = Field(
        description="Only for an (epsilon, delta) budget, whose epsilons do not add up: the exact number of further"
        " releases, each with the mean loss of the counted ones, that the account's own filter admits; at"
        f" most {MOST_COUNTED}."
    )
    partitions: PartitionsTotal | None = Field(
        description="Draws of the account and of those under it; null with as_of. All partitions of one mechanism"
        " are one charge."
    )
    tags: list[str] = Field(
        description="The tags of spent and reserved releases, which the parameter tag accepts. A long list is cut,"
        f" in order, at {CHARACTERS} characters together."
    )
    head: HeadBody
    window: WindowBody | SkipJsonSchema[None] = Field(
        None,
        description="Only of an account with periods: the window with the largest loss, or the one with the largest"
        " loss that holds the period. It is the largest in the budget's figure; other figures may be larger elsewhere."
        " With participation any, the periods that are worst together; under an (epsilon, delta) budget, at the order"
        " that decides. null: no release is to fewer than all periods.",
    )
    basis: Literal["largest_periods"] | SkipJsonSchema[None] = Field(
        None,
        description="Only with participation any. spent and reserved are then no compositions but upper bounds for"
        " every unit: each figure is that of the releases to all periods plus the sum of the largest periods, taken for"
        " each figure and each Rényi order by itself. A release counts once for each of these periods that it reads.",
    )


class _Counted(NamedTuple):
    """Inputs of a balance, at present or right after an earlier entry.

    Attributes:
        spent, reserved: empty where the figures are stored and no picture needs them.
        held: what is held; with periods, for all of them.
        drawn: the partitions; None after an earlier entry.
        stored: the figures, where an earlier request stored them in the cache.
        window: the periods that the figures are of; None without periods, or where there is no window.
        period: one that was asked for; None: any.
    """

    account: AccountRecord
    deltas: tuple[Fraction, ...]
    spent: Subplans
    reserved: Subplans
    held: Totals
    drawn: dict[str, int] | None
    cache: BalanceCache
    stored: dict[str, Any] | None
    window: PeriodSet | None
    period: int | None


@router.get(
    "/{account}/balance",
    response_model=Balance,
    responses=pictures.responses("The balance; or a picture of it, as SVG or PNG."),
)
def read_balance(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    delta: Annotated[
        list[Exact],
        Query(
            description="The deltas at which spent is shown as (epsilon, delta); repeatable. The default is the"
            " account's delta: that of an (epsilon, delta) budget (with as_of, the budget of that time),"
            " else 1e-10.",
            max_length=100,
            default_factory=list,
        ),
    ],
    tag: Annotated[Label | None, Query(description="Count only releases and nodes that carry this tag.")] = None,
    as_of: Annotated[int | None, Query(ge=1, description="Show the balance right after this journal entry.")] = None,
    period: Annotated[
        str | None,
        Query(
            max_length=20,
            description="Only in an account with periods: the balance of units that were in this period's data, such as"
            " 2026-03. Without it, the balance is that of the window with the largest loss.",
        ),
    ] = None,
    picture: Annotated[OfBalance, Query(description="The kind of picture, where Accept asks for one.")] = "spending",
) -> Response:
    """Read the balance: losses, reservations and the remaining budget.

    The balance covers the account and those under it. spent composes every committed release and reserved every held
    one, at full precision. They describe the past and are no guarantees under adaptive choice, which only the budget
    gives; their conversions are therefore marked adaptive: false. A reservation counts until it expires; with as_of,
    until the journal records the expiry.

    With Accept: image/svg+xml or image/png the answer is a picture. It shows the budget over time (of all releases,
    whatever tag is given), or the privacy profile of what is spent, or its Rényi curve. The profile is drawn at the
    request's deltas; for a single delta, at that delta and from 1e-12 to 0.3.
    """
    require(principal, "auditor", account)
    shown_deltas, kind = (
        read_deltas(delta, [f"/query/delta/{number}" for number in range(len(delta))]),
        wanted_type(request),
    )
    with database.read() as connection:
        record = accounts.read_account(connection, account)
        if as_of is not None and as_of > record.head.seq:
            raise InvalidInput.at("/query/as_of", f"expected at most {record.head.seq}, the number of the last entry")
        held = read_query_period(record, period)
        _leave_slow(request, connection, record, quick=kind is None and as_of is None, deltas=max(1, len(shown_deltas)))
        if kind is not None and picture == "spending":
            seen = record if as_of is None else replay.replay(connection, record, as_of).account
            return spending_picture(history_body(connection, seen), kind)
        if as_of is None:
            counted = _count_now(request, connection, record, tag, shown_deltas, held, pictured=kind is not None)
        else:
            counted = _count_at(request, connection, replay.replay(connection, record, as_of), tag, shown_deltas, held)
    record, deltas, spent, reserved = counted.account, counted.deltas, counted.spent, counted.reserved
    capped = tag is not None and tag in {cap.tag for cap in record.caps}
    if kind is not None and picture != "spending":
        lost = guarantee_body(_composed(counted, spent, drawn_at(picture, deltas), tag, capped=capped))
        return guarantee_picture(lost, picture, f"the spending of {record.name}", kind)
    figures = counted.stored or _figures(counted, tag, capped=capped)
    if counted.stored is None and sum(map(len, spent)) + sum(map(len, reserved)) > _LONG:
        counted.cache.store(figures)
    return ok(_balance_body(counted, figures, capped=capped))


def _balance_body(counted: _Counted, figures: dict[str, Any], *, capped: bool) -> dict[str, Any]:
    record = counted.account
    return (
        {"account": record.name, "budget": write_budget(record.budget)}
        | {name: figures[name] for name in ("spent", "reserved")}
        | {"remaining": remaining_body(record)}
        | caps_member(record.caps)
        | allotted_member(record, counted.held, counted.window)
        | ({"tag_relation": "replacement"} if capped else {})
        | {"releases": record.releases}
        | {"equal_more": _mean_releases_left(record), "partitions": counted.drawn}
        | {"tags": figures["tags"], "head": head_body(record.head)}
        | window_member(record, counted.window)
        | ({"basis": "largest_periods"} if _of_several(record) else {})
    )


def _count_now(
    request: Request,
    connection: Connection,
    record: AccountRecord,
    tag: str | None,
    shown_deltas: tuple[Fraction, ...],
    period: int | None,
    *,
    pictured: bool,
) -> _Counted:
    at = clock.now()
    now = present_account(connection, record, at)
    deltas = shown_deltas or (usual_delta(record.budget),)
    window, account = _window_of(connection, now.account, period)
    cache = BalanceCache(
        request, account, tag, sorted(now.expired.items()), *deltas, *_period_key(record, window, period)
    )
    stored, nothing = cache.look_up(connection), Counter[str]()
    read = stored is None or pictured
    spent, reserved = spending.counts(connection, account) if read else (nothing, nothing)
    spent, reserved = _touching(account, window, spent, reserved - now.expired)
    drawn = partitions.total(connection, record.id)._asdict()
    holds = account.allotted is not None and account.periods is None
    held = held_totals(connection, account, at) if holds else Totals()
    return _Counted(account, deltas, spent, reserved, held, drawn, cache, stored, window, period)


def _count_at(
    request: Request,
    connection: Connection,
    then: replay.AccountReplay,
    tag: str | None,
    shown_deltas: tuple[Fraction, ...],
    period: int | None,
) -> _Counted:
    deltas = shown_deltas or (usual_delta(then.account.budget),)
    window, account = _window_of(connection, then.account, period)
    cache = BalanceCache(request, account, tag, "", *deltas, *_period_key(account, window, period))
    spent, reserved = _touching(account, window, then.committed, then.reserved)
    return _Counted(account, deltas, spent, reserved, then.held, None, cache, None, window, period)


def _window_of(
    connection: Connection, account: AccountRecord, period: int | None
) -> tuple[PeriodSet | None, AccountRecord]:
    """Return the window that is shown, and the account as that window; without periods, the account."""
    return (None, account) if account.periods is None else worst_window(connection, account, period)


def _period_key(account: AccountRecord, window: PeriodSet | None, period: int | None) -> tuple[object, ...]:
    """Return further values on which the figures depend: none without periods, so that stored figures stay."""
    if _of_several(account):
        return "any", period
    return () if account.periods is None else ("window", None if window is None else window.ranges[0][0])


def _of_several(account: AccountRecord) -> bool:
    """Tell whether a unit of the account can be in several periods, whichever they are."""
    return account.periods is not None and account.periods.several is not None


def _touching(
    account: AccountRecord, window: PeriodSet | None, spent: Subplans, reserved: Subplans
) -> tuple[Subplans, Subplans]:
    if account.periods is None or _of_several(account):
        return spent, reserved
    return of_window(account, spent, window), of_window(account, reserved, window)


def _mean_releases_left(account: AccountRecord) -> int | None:
    """Return how many more mean releases fit, for a budget whose remaining figure does not show it."""
    if account.budget.definition is not Definition.APPROXIMATE or not account.releases or account.periods is not None:
        return None
    mean = mean_price(account.of_releases, account.releases)
    return count_fitting(account.budget, account.weights, account.totals, mean)


def _figures(counted: _Counted, tag: str | None, *, capped: bool) -> dict[str, Any]:
    spent, reserved, deltas = counted.spent, counted.reserved, counted.deltas
    return {
        "spent": guarantee_body(_composed(counted, spent, deltas, tag, capped=capped)),
        "reserved": guarantee_body(_composed(counted, reserved, deltas, tag, capped=capped)),
        "tags": first_of(spending.tags_of([*spent, *reserved])),
    }


def _leave_slow(request: Request, connection: Connection, account: AccountRecord, *, quick: bool, deltas: int) -> None:
    """Leave the computation of a long balance to a helper process.

    Raises:
        AnswerInHelper: the balance takes long, and there are helper processes.
    """
    if request.app.state.helpers is None:
        return
    if account.windows is not None and account.windows.number > MANY_WINDOWS:
        raise AnswerInHelper
    if has_many_due(connection, [account], clock.now()):
        raise AnswerInHelper
    few = spending.small_spending(connection, account) if quick else None
    if few is None or effort.of_guarantee(spending.condensed(few), len(USUAL_ORDERS), deltas) > effort.LIGHT:
        raise AnswerInHelper


def _composed(
    counted: _Counted, subplans: Subplans, deltas: tuple[Fraction, ...], tag: str | None, *, capped: bool
) -> Guarantee:
    neighbouring = counted.account.neighbouring
    if _of_several(counted.account):
        plan: Priced = bound_of_several(counted.account, subplans, tag, counted.period, replaced=capped)
    elif capped:
        plan = as_replacement(spending.as_plan(subplans, tag), neighbouring)
    else:
        plan = spending.condensed(subplans, tag)
    return guarantee(plan, neighbouring, deltas=deltas, orders=USUAL_ORDERS, adaptive=False)
