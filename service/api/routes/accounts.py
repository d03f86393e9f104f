"""Routes of accounts: open, list, read and change."""

import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field, StringConstraints, model_validator
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy import Connection

from service.api.http.dependencies import (
    AnswerInHelper,
    Change,
    Changing,
    CurrentDatabase,
    CurrentSecret,
    HelperResult,
    in_writers,
    ok,
    respond,
)
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_cursor, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.schemas import patterns
from service.api.schemas.accounts import AccountBody, account_body, account_with_fullest_window, account_with_gauge
from service.api.schemas.approvals import ApproversModel, Judge, WithObstacle, require_able, stated_approvers
from service.api.schemas.caps import CapModel, stated_caps
from service.api.schemas.exact_numbers import Exact, Label, Reason, Short, Text
from service.api.schemas.guarantees import BudgetModel
from service.api.schemas.metadata import Metadata, patch_of
from service.api.schemas.periods import MANY_WINDOWS, StatedAccountPeriods
from service.api.schemas.plans import document_of
from service.errors import InvalidInput, ServiceError
from service.ledger.access.key_events import see_keys, sound_keys
from service.ledger.accounts import account_changes, account_opening, account_order, accounts, waiting_changes
from service.ledger.accounts.account_opening import NewAccount
from service.ledger.accounts.account_order import Rank
from service.ledger.accounts.accounts import AccountRecord, Wanted
from service.ledger.accounts.approvals import Approval, approval_of_change
from service.ledger.accounts.approvers import Approvers
from service.ledger.accounts.budgets import read_budget
from service.ledger.accounts.cap_changes import CapsChange
from service.ledger.accounts.caps import MOST_CAPS
from service.ledger.accounts.earlier_releases import EarlierReleases
from service.ledger.accounts.waiting_changes import ChangedAccount
from service.ledger.descriptions import descriptions
from service.ledger.releases.held_charges import has_many_holds, held_by_account
from service.ledger.releases.settlement import has_many_due, in_list, without_due_reservations
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Answer
from service.privacy.accounting.privacy_filter import Definition
from service.privacy.accounting.totals import Totals
from service.privacy.numerics.numbers import exact_text, parse_exact
from service.privacy.periods import read_account_periods
from service.privacy.plans.walking import Neighbouring

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)

AccountName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=patterns.ACCOUNT)]
# An example of the parameter, not of its schema: the page of the contract fills in the former.
AccountPath = Annotated[
    str,
    Path(description="The account's name.", openapi_examples={"account": {"value": examples.ACCOUNT["name"]}}),
]


State = Literal["open", "closed"]
WithGauge = Annotated[
    bool, Query(description="Include the used part of the budget, on a scale on which equal releases are equal.")
]


MustBeAble = Annotated[
    bool,
    Field(
        description="Refuse approvers of whom one has no valid key with which an approval would count, such as a name"
        " that is misspelt. Principals of an issuer, oidc:…, have no keys and pass."
    ),
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
        description="A release whose loss is greater, in the budget's definition, waits for the approval of other"
        " persons.",
    )
    approvers: ApproversModel | None = Field(
        None,
        description="Who must approve; only beside approval_above. Left out: one other steward or approver.",
    )
    approvers_must_be_able: MustBeAble = False
    caps: list[CapModel] | None = Field(
        None,
        min_length=1,
        max_length=MOST_CAPS,
        description="Caps on tags. Each mechanism of a release then needs tags, or reads, in its plan.",
    )
    description: Text = ""
    periods: StatedAccountPeriods = None


class ChangeAccount(Short):
    """One change of an account: exactly one field beside the reason."""

    budget: BudgetModel | None = None
    state: State | None = None
    approval_above: Exact | None = None
    approvers: ApproversModel | None = Field(
        None,
        description='Other approvers, or the first ones, in place of all present ones. {"at_least": 1} is any other'
        " person.",
    )
    approvers_must_be_able: MustBeAble = False
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
    reason: Reason | None = Field(None, description="Stored in the journal with the change; not with metadata.")

    @model_validator(mode="after")
    def _one(self) -> "ChangeAccount":
        changes = [self.budget, self.state, self.approval_above, self.approvers, self.caps, self.metadata]
        if changes.count(None) != 5:
            raise ValueError("expected exactly one of budget, state, approval_above, approvers, caps and metadata")
        if self.reason is not None and self.metadata is not None:
            raise ValueError("expected no reason with metadata")
        return self


class AccountPage(BaseModel):
    """A page of accounts."""

    items: list[AccountBody]
    next_cursor: str | None
    above: list[AccountBody] | SkipJsonSchema[None] = Field(
        None,
        description="Only in answers to with_above=true: the accounts above the items that are not items themselves,"
        " by name, as far as the key has access to them.",
    )


def _answer(account: AccountRecord, status: int = 200, approval: Approval | None = None) -> Answer:
    return Answer(status, json.dumps(account_body(account, approval)))


async def _require_steward(principal: CurrentPrincipal) -> None:
    """Refuse a key that may open no account, before the faults of its request are told."""
    require(principal, "steward")


@router.post(
    "",
    status_code=201,
    response_model=AccountBody,
    openapi_extra=examples.body(examples.ACCOUNT),
    dependencies=[Depends(_require_steward)],
)
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
    An account above whose approval_above is lower refuses it: open the account with less, and raise it with the
    approval of others.

    With approvers, so many persons must approve, from the list if there is one. What is proposed waits until the rules
    of all accounts that ask for its approval are met.
    """
    require(change.principal, "steward", body.name)
    if body.parent is not None:
        require(change.principal, "steward", body.parent)
    budget = read_budget(document_of(body.budget), "/budget")
    threshold = None if body.approval_above is None else _threshold(body.approval_above)
    caps = stated_caps(body.caps or ())
    periods = None if body.periods is None else read_account_periods(body.periods, "/periods")
    approvers = None
    if body.approvers is not None:
        approvers = stated_approvers(body.approvers)
        if body.approvers_must_be_able:
            _require_able(change, body.approvers, approvers)
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
        approvers,
    )
    opening = account_opening.open_account(change.database, change.request, new)
    return respond(change.carry_out(opening, lambda opened: _answer(opened, 201)))


def _require_able(change: Change, model: ApproversModel, approvers: Approvers) -> None:
    """Refuse approvers of whom one could not approve."""
    seen = see_keys(change.database, change.secret)
    with change.database.read() as connection:
        known = sound_keys(connection, change.secret, seen)
    require_able(approvers, model.of or (), known, change.principal)


def _threshold(text: str) -> Fraction:
    value = parse_exact(text)
    if value < 0:
        raise InvalidInput.at("/approval_above", "expected a number of at least 0")
    return value


_MOST_RULES = 16  # of a page of accounts that this process answers
_MOST_WAITING = 50  # changes that wait, likewise
_LONG = 1 << 18  # characters of a page, beyond which a helper reads it
_COLUMNS = (
    "name", "state", "unit", "neighbouring", "budget.definition", "budget.rho", "budget.alpha", "budget.epsilon",
    "budget.delta", "budget.declared_delta", "remaining.rho", "remaining.epsilon", "remaining.delta",
    "remaining.declared_delta", "counted", "counted_exact", "gauge.used", "gauge.used_exact", "gauge.releases",
    "gauge.spent.used", "gauge.spent.counted", "gauge.held.used", "gauge.held.counted",
    "allotted.accounts", "allotted.counted", "parent", "funding", "approval_above", "approvers.at_least",
    "approvers.of", "description", "created_at", "changed_at", "head.seq", "head.hash",
)  # fmt: skip


@router.get("", response_model=AccountPage, responses=AS_TABLE)
def list_accounts(
    request: Request,
    database: CurrentDatabase,
    secret: CurrentSecret,
    principal: CurrentPrincipal,
    take: Room,
    name: Annotated[
        Label | None, Query(description="Only accounts whose name contains this, whatever the case of ASCII letters.")
    ] = None,
    state: Annotated[State | None, Query(description="Only accounts in this state.")] = None,
    parent: Annotated[AccountName | None, Query(description="Only accounts directly under this one.")] = None,
    waiting: Annotated[bool, Query(description="Only accounts with a change that waits for other persons.")] = False,
    sort: Annotated[
        Literal["name", "used", "left", "changed"],
        Query(
            description="name; used: the greatest used part of the budget first, as the gauge has it; left: the least"
            " remaining loss first, by the definition of the budget, since only losses of one definition compare;"
            " changed: the latest journal entry first. Reservations count in the order until their expiry is recorded."
        ),
    ] = "name",
    with_gauge: WithGauge = False,
    with_obstacle: WithObstacle = False,
    with_above: Annotated[bool, Query(description="Include the accounts above the items; not in a table.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """List accounts.

    A list has the accounts that match all that is asked for. A key that is limited to some accounts sees only those.
    Where accounts change between two pages of a list that is not sorted by name, it can lack or repeat some.
    """
    has_helpers, take_room = request.app.state.helpers is not None, with_room(take)
    wanted = Wanted(principal.accounts, parent, waiting, name, state)

    def before_reading(size: int) -> None:
        take_room(size)
        if has_helpers and size > _LONG:
            raise AnswerInHelper

    seen = see_keys(database, secret) if with_obstacle else None
    with database.read() as connection:
        judge = Judge(connection, principal, seen) if with_obstacle else None
        if sort == "name":
            listed = accounts.list_accounts(connection, _read_name(cursor), limit, wanted, before_reading)
            last = listed[-1].name if listed.more else None
        else:
            if has_helpers:
                raise AnswerInHelper
            ranks = account_order.first_ranked(connection, sort, _read_rank(cursor), limit, wanted)
            listed = accounts.read_accounts(connection, [rank.name for rank in ranks], before_reading)
            last = ranks[len(listed) - 1].write() if listed.more or len(ranks) == limit else None
        shown = _shown(connection, listed, judge, with_gauge=with_gauge, has_helpers=has_helpers)
        above: dict[str, Any] = {}
        if with_above:
            names = account_order.names_above(connection, {one.name for one in listed}, principal.accounts)
            found = accounts.read_accounts(connection, names, before_reading)
            above["above"] = _shown(connection, found, judge, with_gauge=with_gauge, has_helpers=has_helpers)
    return answer_list(accept, shown, last, _COLUMNS, above)


def _shown(
    connection: Connection,
    listed: Sequence[AccountRecord],
    judge: Judge | None,
    *,
    with_gauge: bool,
    has_helpers: bool,
) -> list[dict[str, Any]]:
    """Return accounts as items of a list.

    Raises:
        AnswerInHelper: there is a helper, and this takes long.
    """
    now = clock.now()
    waits = sum(one.proposed is not None for one in listed)  # the accounts above each of these are read
    many = _rules_of(listed) > _MOST_RULES or waits > _MOST_WAITING
    plain = [account for account in listed if account.periods is None]
    many = many or (with_gauge and has_many_holds(connection, plain))
    if has_helpers and (many or has_many_due(connection, listed, now)):
        raise AnswerInHelper
    approvals = [approval_of_change(connection, account) for account in listed]
    changed = account_order.last_changes(connection, [account.id for account in listed])
    present = [in_list(connection, account, now) for account in listed]
    held = held_by_account(connection, plain, now) if with_gauge else {}

    def body(account: AccountRecord, approval: Approval | None) -> dict[str, Any]:
        if not with_gauge:
            return account_body(account, approval, judge)
        own = held.get(account.id, Totals()) if account.periods is None else None
        return account_with_gauge(account, approval, judge, held=own)

    return [
        body(account, approval) | {"changed_at": changed[account.id]}
        for account, approval in zip(present, approvals, strict=True)
    ]


def _read_name(cursor: str | None) -> str:
    last = read_cursor(cursor)
    if " " in last:  # a rank, and no name
        raise _other_sort()
    return last


def _read_rank(cursor: str | None) -> Rank | None:
    last = read_cursor(cursor)
    try:
        return Rank.read(last) if last else None
    except ValueError:
        raise _other_sort() from None


def _other_sort() -> InvalidInput:
    return InvalidInput.at("/query/cursor", "expected next_cursor of an earlier answer with the same sort")


def _rules_of(records: Iterable[AccountRecord]) -> int:
    """Return the number of unlike rules by which the (epsilon, delta) budgets of accounts and of their caps convert.

    Each takes some milliseconds of the processor, unless it was used lately.
    """
    budgets = (budget for one in records for budget in (one.budget, *(cap.budget for cap in one.caps)))
    approximate = (one for one in budgets if one.definition is Definition.APPROXIMATE)
    return len({exact_text(one.delta - one.declared_delta) for one in approximate})


@router.get("/{account}", response_model=AccountBody)
def read_account(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    secret: CurrentSecret,
    principal: CurrentPrincipal,
    with_gauge: WithGauge = False,
    with_obstacle: WithObstacle = False,
) -> Response:
    """Read an account.

    For an (epsilon, delta) budget the answer includes the orders and weights by which charges are admitted.
    """
    require(principal, "auditor", account)
    seen = see_keys(database, secret) if with_obstacle else None
    with database.read() as connection:
        judge = Judge(connection, principal, seen) if with_obstacle else None
        record = accounts.read_account(connection, account)
        many = record.windows is not None and record.windows.number > MANY_WINDOWS
        now = clock.now()
        many = many or has_many_holds(connection, [record])
        slow = (with_gauge and many) or has_many_due(connection, [record], now)
        if slow and request.app.state.helpers is not None:
            raise AnswerInHelper
        present = without_due_reservations(connection, record, now)
        approval = approval_of_change(connection, record)
        if with_gauge:
            return ok(account_with_fullest_window(connection, present, approval, judge, now))
        return ok(account_body(present, approval, judge))


@router.patch(
    "/{account}",
    response_model=AccountBody,
    responses={202: {"description": "The unchanged account: the change is proposed.", "model": AccountBody}},
    openapi_extra=examples.body(examples.ACCOUNT_CHANGE),
)
@in_writers
def change_account(account: AccountPath, body: ChangeAccount, change: Changing) -> Response:
    """Change an account's budget, caps, metadata, approval threshold or approvers, or close or reopen it.

    The figures of a budget or of a cap may change; definition, order and declared_delta may not. Neither can go below
    what is spent and held. A closed account takes no charges, neither its own nor those of accounts under it; its
    reservations can still be committed, voided and drawn from. approval_above can only be set or lowered.

    Where approval_above is set, here or in an account above, a change that allows more spending (greater figures, or
    reopening the account) is answered with 202. It takes effect when other persons, stewards or approvers, have
    requested the same change: so many, and those, that the approvers of all these accounts are satisfied, or one where
    none are stated. No two of them may have had one key. An approver can request no other change.

    One steward sets an account's first approvers, once it has approval_above. Other approvers take the approval of the
    present ones, as a change that allows more spending does.

    A new budget of an allotted account takes the place of the former one in the accounts above, where a greater one
    must fit; such a key must reach the parent, and all accounts above that are charged and have approval_above. An
    (epsilon, delta) budget that was allotted is fixed. Closing an allotted account leaves what it has spent, held and
    allotted with the accounts above, and gives back the rest; opening it again charges its budget again. An
    (epsilon, delta) account gives nothing back.

    metadata are the facts for the deployments registry that only people know. Each change is a journal entry.
    """
    require(change.principal, "approver" if body.metadata is None else "steward", account)
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
        what = _caps_change(change, account, body.caps)
    elif body.approvers is not None:
        what = stated_approvers(body.approvers)
        role = change.principal.role
        if body.approvers_must_be_able and account_changes.may_state(change.database, account, what, role):
            _require_able(change, body.approvers, what)
    if what is None:
        raise TypeError("the model admits one of budget, state, approval_above, approvers, caps and metadata")
    changing = account_changes.change_account(
        change.database,
        change.request,
        account,
        what,
        "/budget",
        change.principal.may_use,
        body.reason,
        change.principal.role,
    )

    def answer(changed: ChangedAccount) -> Answer:
        return _answer(changed.account, 202 if changed.waits else 200, changed.approval)

    return respond(change.carry_out(changing, answer))


def _caps_change(change: Change, account: str, models: Sequence[CapModel]) -> CapsChange:
    """Return a change of caps; a helper counts the account's earlier releases under new ones, where that takes long.

    Raises:
        HelperResult: this process is that helper.
    """
    caps = CapsChange(stated_caps(models), EarlierReleases(change.most_work))
    if change.prices_only:
        try:
            caps.prepare(change.database, account)
        except ServiceError as refusal:
            raise HelperResult(refusal) from None
        raise HelperResult([caps.earlier])
    if (elsewhere := change.elsewhere) is not None:
        body = json.dumps({"caps": [document_of(model) for model in models]}).encode()

        def count() -> EarlierReleases:
            (earlier,) = elsewhere("PATCH", f"/v1/accounts/{account}", body)
            return cast("EarlierReleases", earlier)

        caps.elsewhere = count
    return caps


class RejectChange(Short):
    """The proposed change that is rejected, and why."""

    proposal: int = Field(ge=1, le=10**15, description="proposed_change.seq: the entry that proposed the change.")
    reason: Reason = Field(description="Stored in the journal.")


@router.post("/{account}/reject", response_model=AccountBody, openapi_extra=examples.body(examples.REJECTION))
@in_writers
def reject_change(account: AccountPath, body: RejectChange, change: Changing) -> Response:
    """Reject a proposed change of an account.

    The change no longer waits. A steward can also withdraw an own proposal in this way. A proposed release is rejected
    by voiding it.
    """
    require(change.principal, "approver", account)
    rejecting = waiting_changes.reject_change(change.database, change.request, account, body.proposal, body.reason)
    return respond(change.carry_out(rejecting, lambda changed: _answer(changed.account)))
