"""Routes of accounts, their balances and their journals."""

import json
from fractions import Fraction
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field, StringConstraints, model_validator
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy import Connection

from service.api.http.dependencies import AnswerInHelper, Changing, CurrentDatabase, in_writers, ok, respond
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, page, read_cursor, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.schemas.allotments import AllottedSumBody, allotted_sum_member
from service.api.schemas.caps import CapBody, CapModel, caps_member, stated_caps
from service.api.schemas.exact_numbers import Exact, Label, Short, Text, number_up, short_exact
from service.api.schemas.guarantees import (
    BudgetModel,
    HeadBody,
    Remaining,
    head_body,
    remaining_body,
)
from service.api.schemas.metadata import Metadata, patch_of
from service.api.schemas.periods import (
    MANY_WINDOWS,
    AccountPeriodsBody,
    StatedAccountPeriods,
    WindowBody,
    account_periods_body,
    window_member,
)
from service.api.schemas.plans import document_of
from service.errors import InvalidInput
from service.ledger.accounts import account_changes, account_opening, accounts, descriptions
from service.ledger.accounts.account_opening import NewAccount
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import read_budget, write_budget
from service.ledger.accounts.cap_changes import CapsChange
from service.ledger.accounts.caps import MOST_CAPS
from service.ledger.accounts.worst_windows import fullest_window
from service.ledger.releases.settlement import in_list, without_due_reservations
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Answer
from service.privacy.accounting.capacity import MOST_COUNTED, count_fitting, gauge
from service.privacy.accounting.privacy_filter import spent_of_cap
from service.privacy.accounting.totals import mean_price
from service.privacy.numerics.numbers import exact_text, parse_exact
from service.privacy.periods import read_account_periods
from service.privacy.plans.walking import Neighbouring

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)

AccountName = Annotated[
    str, StringConstraints(min_length=1, max_length=100, pattern=r"^[a-z0-9._-]*[a-z0-9_-][a-z0-9._-]*$")
]
# An example of the parameter, not of its schema: the page of the contract fills in the former.
AccountPath = Annotated[
    str,
    Path(description="The account's name.", openapi_examples={"account": {"value": examples.ACCOUNT["name"]}}),
]


WithGauge = Annotated[
    bool, Query(description="Include the used part of the budget, on a scale on which equal releases are equal.")
]


class OpenAccount(Short):
    """An account to open."""

    name: AccountName = Field(description="Unique; lower-case letters, digits, '.', '_', '-'.")
    unit: Label = Field(description="The protected unit: person, household, establishment.")
    neighbouring: Neighbouring
    budget: BudgetModel
    parent: AccountName | None = Field(
        None,
        description="A parent account with the same unit and relation. Each charge must also fit the parent's budget.",
    )
    funding: Literal["shared", "allotted"] = Field(
        "shared",
        description="shared: each charge is also charged to the accounts above. allotted: the whole budget is charged"
        " to the accounts above at once, up to and including the nearest one that is itself allotted, and charges of"
        " this account charge nothing above it.",
    )
    approval_above: Exact | None = Field(
        None,
        description="A release whose loss is greater, in the budget's definition, waits for the approval of a second"
        " steward.",
    )
    caps: list[CapModel] | None = Field(
        None,
        min_length=1,
        max_length=MOST_CAPS,
        description="Caps on tags. Each mechanism of a release then needs tags, or reads, in its plan.",
    )
    description: Text = ""
    periods: StatedAccountPeriods = None


class ChangeAccount(Short):
    """One change of an account; exactly one field is given."""

    budget: BudgetModel | None = None
    state: Literal["open", "closed"] | None = None
    approval_above: Exact | None = None
    caps: list[CapModel] | None = Field(
        None,
        min_length=1,
        max_length=MOST_CAPS,
        description="New caps on tags, and caps with other figures; others stay. A cap cannot be removed. A new cap"
        " counts the account's earlier releases: each of their mechanisms, except those with other tags where the"
        " account was opened with a cap.",
    )
    metadata: Metadata | None = Field(
        None, description="A merge patch: null removes a field, and an omitted field stays."
    )

    @model_validator(mode="after")
    def _one(self) -> "ChangeAccount":
        if [self.budget, self.state, self.approval_above, self.caps, self.metadata].count(None) != 4:
            raise ValueError("expected exactly one of budget, state, approval_above, caps and metadata")
        return self


class Admission(BaseModel):
    """The RDP orders and weights that enforce an (epsilon, delta) budget; fixed when the account is opened."""

    orders: list[str]
    weights: list[str]


class ProposedChangeBody(BaseModel):
    """A proposed change that would allow more spending; a second steward makes it by requesting the same change."""

    budget: BudgetModel | None
    state: Literal["open"] | None
    caps: list[CapModel] | None = Field(None, description="Omitted where the change is another one.")
    seq: int = Field(description="The number of the journal entry that proposed the change.")
    proposed_by: str
    proposed_at: str


class GaugeBody(BaseModel):
    """The used part of an account's budget, on the scale on which equal releases take equal parts.

    For an (epsilon, delta) budget it is the least over all tests by which its filter admits; in other definitions, the
    used part of the cap. Where declared deltas use more of their own cap, it is that part. At 1 the budget is full.
    """

    used: float | None = Field(description="Spent or held; rounded up. Null: infinite.")
    used_exact: str | None = Field(description="used as an exact number, where it is short.")
    cap: str = Field(description="The cap that it is a part of: epsilon, rho, delta or declared_delta.")
    releases: int = Field(description="The number of releases that it counts, with those of the accounts under it.")
    equal_more: int | None = Field(
        description="The exact number of further releases, each with the mean loss of the counted ones, that the"
        f" account's own budget admits; at most {MOST_COUNTED}. Null: there are none to take a mean of, or the account"
        " has periods."
    )
    window: WindowBody | SkipJsonSchema[None] = Field(
        None,
        description="Only of an account with periods that is read by itself: the window with the largest used part,"
        " which all is said of. null: no window has more than the releases to all periods; or the account has more"
        " windows than are looked at (8,333; 1,492 with 250 orders), or its units are in several periods, whichever,"
        " and used is a bound that none exceeds. Omitted in a list of accounts, where used is such a bound too; it is"
        " exact but for (epsilon, delta) budgets.",
    )


class AccountBody(BaseModel):
    """An account as answers show it."""

    name: str
    unit: str
    neighbouring: Neighbouring
    budget: BudgetModel
    remaining: Remaining
    counted: float | None = Field(
        description="The part of the cap in use by admission's count, reservations included; null: infinite."
    )
    counted_exact: str | None = Field(description="counted as an exact number, where it is rational and short.")
    state: Literal["open", "closed"]
    description: str
    parent: str | None
    funding: Literal["allotted"] | SkipJsonSchema[None] = Field(
        None, description="Omitted where charges of the account are charged to the accounts above as well."
    )
    approval_above: str | None
    proposed_change: ProposedChangeBody | None = Field(description="The change that waits for a second steward.")
    metadata: Metadata
    admission: Admission | None
    caps: list[CapBody] | None = Field(None, description="The caps on tags; omitted where there are none.")
    allotted: AllottedSumBody | None = Field(
        None, description="What the account has allotted to accounts under it; omitted where it never did."
    )
    created_at: str
    head: HeadBody
    periods: AccountPeriodsBody | SkipJsonSchema[None] = Field(
        None,
        description="Only of an account with periods. remaining and counted are then those of the window with the"
        " largest loss; under an (epsilon, delta) budget, a bound that no window exceeds.",
    )
    gauge: GaugeBody | None = Field(None, description="Only in answers to with_gauge=true.")


class AccountPage(BaseModel):
    """A page of accounts."""

    items: list[AccountBody]
    next_cursor: str | None


def account_body(account: AccountRecord) -> dict[str, Any]:
    """Return an account as JSON."""
    weights = account.weights
    used = spent_of_cap(account.budget, weights, account.totals)
    admission = {"orders": list(map(exact_text, weights.orders)), "weights": list(map(exact_text, weights.shares))}
    return {
        "name": account.name,
        "unit": account.unit,
        "neighbouring": account.neighbouring.value,
        "budget": write_budget(account.budget),
        "remaining": remaining_body(account),
        "counted": None if used is None else number_up(used),
        "counted_exact": None if used is None else short_exact(used),
        "state": account.state,
        "description": account.description,
        "parent": account.parent,
        "approval_above": None if account.approval_above is None else exact_text(account.approval_above),
        "proposed_change": _proposed_body(account),
        "metadata": account.metadata,
        "admission": admission if weights.shares else None,
        **caps_member(account.caps),
        **allotted_sum_member(account),
        "created_at": account.created_at,
        "head": head_body(account.head),
        **account_periods_body(account),
    }


def _shown(account: AccountRecord, *, with_gauge: bool) -> dict[str, Any]:
    return account_body(account) | ({"gauge": _gauge_body(account)} if with_gauge else {})


def _shown_alone(connection: Connection, account: AccountRecord) -> dict[str, Any]:
    """Return an account with the gauge of its fullest window, where it has periods."""
    if account.periods is None:
        return _shown(account, with_gauge=True)
    place, as_window = fullest_window(connection, account)
    window = None if place is None else account.periods.window_at(place)
    return account_body(account) | {"gauge": _gauge_body(as_window) | window_member(account, window)}


def _gauge_body(account: AccountRecord) -> dict[str, Any]:
    budget, weights, totals, number = account.budget, account.weights, account.totals, account.releases
    used, cap = gauge(budget, weights, totals)
    return {
        "used": None if used is None else number_up(used),
        "used_exact": None if used is None else short_exact(used),
        "cap": cap,
        "releases": number,
        "equal_more": count_fitting(budget, weights, totals, mean_price(account.of_releases, number))
        if number and account.periods is None
        else None,
    }


def _proposed_body(account: AccountRecord) -> dict[str, Any] | None:
    proposed = account.proposed
    if proposed is None:
        return None
    what = {"budget": proposed.change.get("budget"), "state": proposed.change.get("state")}
    what |= {"caps": proposed.change["caps"]} if "caps" in proposed.change else {}
    return what | {"seq": proposed.seq, "proposed_by": proposed.by.name, "proposed_at": proposed.at}


def _answer(account: AccountRecord, status: int = 200) -> Answer:
    return Answer(status, json.dumps(account_body(account)))


@router.post("", status_code=201, response_model=AccountBody, openapi_extra=examples.body(examples.ACCOUNT))
@in_writers
def open_account(body: OpenAccount, change: Changing) -> Response:
    """Open an account.

    An account is a protected population with a budget: a cap on the total privacy loss of that population. The unit and
    the neighbouring relation define who is protected and from which comparison; they never change. A charge to an
    account with a parent must also fit the budgets of all accounts above it. A line holds at most eight accounts.

    caps limit what the releases of the account, and of those under it, tell about one attribute of one unit: two
    inputs are neighbours if they differ in its value alone. The part of a release that carries the tag must fit the cap
    as well as the budgets. In an add_remove account another value counts as two records that change together, unless
    the mechanism states cells_replaced. In an account with periods, the budget holds for each window of periods, and a
    cap for all releases together, whatever periods they read.

    With the funding allotted, the whole budget of the account is charged to the accounts above at once, as one
    mechanism with exactly that guarantee. Later charges of the account, and of those under it, charge nothing above it.
    Its budget must be of a definition that each charged account can count, and fit there; otherwise nothing is written.
    An account above whose approval_above is lower refuses it: open the account with less, and raise it with a second
    steward.
    """
    require(change.principal, "steward", body.name)
    if body.parent is not None:
        require(change.principal, "steward", body.parent)
    budget = read_budget(document_of(body.budget), "/budget")
    threshold = None if body.approval_above is None else _threshold(body.approval_above)
    caps = stated_caps(body.caps or ())
    periods = None if body.periods is None else read_account_periods(body.periods, "/periods")
    new = NewAccount(
        body.name,
        body.unit,
        body.neighbouring,
        body.description,
        budget,
        body.parent,
        threshold,
        caps,
        periods,
        None if body.funding == "shared" else body.funding,
    )
    opening = account_opening.open_account(change.database, change.request, new)
    return respond(change.carry_out(opening, lambda opened: _answer(opened, 201)))


def _threshold(text: str) -> Fraction:
    value = parse_exact(text)
    if value < 0:
        raise InvalidInput.at("/approval_above", "expected a number of at least 0")
    return value


@router.get("", response_model=AccountPage)
def list_accounts(
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    parent: Annotated[AccountName | None, Query(description="Only accounts directly under this one.")] = None,
    with_gauge: WithGauge = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List accounts.

    Accounts are sorted by name. A key that is limited to some accounts sees only those.
    """
    with database.read() as connection:
        after, only = read_cursor(cursor), principal.accounts
        records = accounts.list_accounts(connection, after, limit, only, parent, with_room(take))
        now = clock.now()
        present = [in_list(connection, account, now) for account in records]
        shown = [_shown(account, with_gauge=with_gauge) for account in present]
    return ok(page(shown, records[-1].name if records.more else None))


@router.get("/{account}", response_model=AccountBody)
def read_account(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    with_gauge: WithGauge = False,
) -> Response:
    """Read an account.

    For an (epsilon, delta) budget the answer includes the orders and weights by which charges are admitted.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        record = accounts.read_account(connection, account)
        many = record.windows is not None and record.windows.number > MANY_WINDOWS
        if with_gauge and many and request.app.state.helpers is not None:
            raise AnswerInHelper
        present = without_due_reservations(connection, record, clock.now())
        return ok(_shown_alone(connection, present) if with_gauge else _shown(present, with_gauge=False))


@router.patch(
    "/{account}",
    response_model=AccountBody,
    responses={202: {"description": "The unchanged account: the change is proposed.", "model": AccountBody}},
    openapi_extra=examples.body(examples.ACCOUNT_CHANGE),
)
@in_writers
def change_account(account: AccountPath, body: ChangeAccount, change: Changing) -> Response:
    """Change an account's budget, its caps, its metadata, or its approval threshold, or close or reopen it.

    The figures of a budget or of a cap may change; definition, order and declared_delta may not. Neither can go below
    what is spent and held. A closed account takes no charges, neither its own nor those of accounts under it; its
    reservations can still be committed, voided and drawn from. approval_above can only be set or lowered.

    Where approval_above is set, here or in an account above, a change that allows more spending (greater figures, or
    reopening the account) is answered with 202. It takes effect when another steward requests the same change; that
    steward's key must not come from a key of the first one.

    A new budget of an allotted account takes the place of the former one in the accounts above, where a greater one
    must fit; such a key must reach the parent. An (epsilon, delta) budget that was allotted is fixed. Closing an
    allotted account leaves what it has spent, held and allotted with the accounts above, and gives back the rest;
    opening it again charges its budget again. An (epsilon, delta) account gives nothing back.

    metadata are the facts for the deployments registry that only people know. Each change is a journal entry.
    """
    require(change.principal, "steward", account)
    if body.metadata is not None:
        patch = patch_of(body.metadata)
        describing = descriptions.describe_account(change.database, change.request, account, patch)
        return respond(change.carry_out(describing, _answer))
    what: account_changes.Change | None = body.state
    if body.budget is not None:
        what = read_budget(document_of(body.budget), "/budget")
    elif body.approval_above is not None:
        what = _threshold(body.approval_above)
    elif body.caps is not None:
        what = CapsChange(stated_caps(body.caps))
    if what is None:
        raise TypeError("the model admits one of budget, state, approval_above, caps and metadata")
    changing = account_changes.change_account(
        change.database, change.request, account, what, "/budget", change.principal.may_use
    )
    return respond(change.carry_out(changing, lambda changed: _answer(changed.account, 202 if changed.waits else 200)))
