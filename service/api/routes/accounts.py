"""Routes of accounts, their balances and their journals."""

import json
from collections import Counter
from fractions import Fraction
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field, StringConstraints, model_validator
from sqlalchemy import Connection

from service.api.charts import pictures
from service.api.charts.balance_figures import OfBalance, drawn_at, guarantee_picture, spending_picture
from service.api.charts.pictures import wanted
from service.api.http.dependencies import AnswerInHelper, Changing, CurrentDatabase, in_helpers, in_writers, ok, respond
from service.api.http.kept_figures import BalanceCache
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, page, read_cursor, read_seq, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.schemas.exact_numbers import Exact, Label, Short, Text, number_up, short_exact
from service.api.schemas.guarantees import (
    BudgetModel,
    GuaranteeBody,
    HeadBody,
    Remaining,
    budget_body,
    guarantee_body,
    head_body,
    read_deltas,
    remaining_body,
)
from service.api.schemas.metadata import Metadata, patch_of
from service.api.schemas.plans import document_of
from service.api.schemas.spending_history import history_body
from service.errors import InvalidInput
from service.ledger.accounts import account_changes, accounts, descriptions, spending
from service.ledger.accounts.account_changes import NewAccount
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import read_budget, usual_delta
from service.ledger.accounts.spending_rows import Subplans
from service.ledger.draws import partitions
from service.ledger.journal import journal, replay
from service.ledger.releases.settlement import present_account, without_due_reservations
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Answer
from service.ledger.storage.paging import CHARACTERS, first_of
from service.privacy.accounting import effort
from service.privacy.accounting.guarantee import USUAL_ORDERS, Guarantee, guarantee
from service.privacy.accounting.privacy_filter import MOST_COUNTED, Budget, Definition, count_fitting, spent_of_cap
from service.privacy.accounting.totals import mean_price
from service.privacy.numerics.numbers import exact_text, parse_exact
from service.privacy.plans.walking import Neighbouring, condense

_LONG = 1 << 16  # characters of subplans: the balance of a longer history is stored for the next request

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)

AccountName = Annotated[
    str, StringConstraints(min_length=1, max_length=100, pattern=r"^[a-z0-9._-]*[a-z0-9_-][a-z0-9._-]*$")
]
# An example of the parameter, not of its schema: the page of the contract fills in the former.
AccountPath = Annotated[
    str,
    Path(description="The account's name.", openapi_examples={"account": {"value": examples.ACCOUNT["name"]}}),
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
    approval_above: Exact | None = Field(
        None,
        description="A release whose loss is greater, in the budget's definition, waits for the approval of a second"
        " steward.",
    )
    description: Text = ""


class ChangeAccount(Short):
    """One change of an account; exactly one field is given."""

    budget: BudgetModel | None = None
    state: Literal["open", "closed"] | None = None
    approval_above: Exact | None = None
    metadata: Metadata | None = Field(
        None, description="A merge patch: null removes a field, and an omitted field stays."
    )

    @model_validator(mode="after")
    def _one(self) -> "ChangeAccount":
        if [self.budget, self.state, self.approval_above, self.metadata].count(None) != 3:
            raise ValueError("expected exactly one of budget, state, approval_above and metadata")
        return self


class Admission(BaseModel):
    """The RDP orders and weights that enforce an (epsilon, delta) budget; fixed when the account is opened."""

    orders: list[str]
    weights: list[str]


class ProposedChangeBody(BaseModel):
    """A proposed change that would allow more spending; a second steward makes it by requesting the same change."""

    budget: BudgetModel | None
    state: Literal["open"] | None
    seq: int = Field(description="The number of the journal entry that proposed the change.")
    proposed_by: str
    proposed_at: str


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
    approval_above: str | None
    proposed_change: ProposedChangeBody | None = Field(description="The change that waits for a second steward.")
    metadata: Metadata
    admission: Admission | None
    created_at: str
    head: HeadBody


class AccountPage(BaseModel):
    """A page of accounts."""

    items: list[AccountBody]
    next_cursor: str | None


class PartitionsTotal(BaseModel):
    """Numbers of partitions that mechanisms were drawn for, per repetition; undeclared: plans declare none for them."""

    drawn: int
    undeclared: int


class Balance(BaseModel):
    """The losses, reservations and remaining budget of an account and of the accounts under it."""

    account: str
    budget: BudgetModel
    spent: GuaranteeBody
    reserved: GuaranteeBody
    remaining: Remaining
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


class EntryBody(BaseModel):
    """A journal entry; hash is SHA-256 over the previous hash (32 bytes) and entry in RFC 8785 canonical JSON."""

    entry: dict[str, Any]
    previous: str
    hash: str


class JournalPage(BaseModel):
    """A page of an account's journal."""

    items: list[EntryBody]
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
        "budget": budget_body(account),
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
        "created_at": account.created_at,
        "head": head_body(account.head),
    }


def _proposed_body(account: AccountRecord) -> dict[str, Any] | None:
    proposed = account.proposed
    if proposed is None:
        return None
    what = {"budget": proposed.change.get("budget"), "state": proposed.change.get("state")}
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
    """
    require(change.principal, "steward", body.name)
    if body.parent is not None:
        require(change.principal, "steward", body.parent)
    budget = read_budget(document_of(body.budget), "/budget")
    threshold = None if body.approval_above is None else _threshold(body.approval_above)
    new = NewAccount(body.name, body.unit, body.neighbouring, body.description, budget, body.parent, threshold)
    opening = account_changes.open_account(change.database, change.request, new)
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
        shown = [account_body(without_due_reservations(connection, account, now)) for account in records]
    return ok(page(shown, records[-1].name if records.more else None))


@router.get("/{account}", response_model=AccountBody)
def read_account(account: AccountPath, database: CurrentDatabase, principal: CurrentPrincipal) -> Response:
    """Read an account.

    For an (epsilon, delta) budget the answer includes the orders and weights by which charges are admitted.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        record = accounts.read_account(connection, account)
        return ok(account_body(without_due_reservations(connection, record, clock.now())))


@router.patch(
    "/{account}",
    response_model=AccountBody,
    responses={202: {"description": "The unchanged account: the change is proposed.", "model": AccountBody}},
    openapi_extra=examples.body(examples.ACCOUNT_CHANGE),
)
@in_writers
def change_account(account: AccountPath, body: ChangeAccount, change: Changing) -> Response:
    """Change an account's budget, its metadata, or its approval threshold, or close or reopen it.

    The figures of a budget may change; its definition, its order and declared_delta may not. A budget cannot go below
    what is spent and held. A closed account takes no charges, neither its own nor those of accounts under it; its
    reservations can still be committed, voided and drawn from. approval_above can only be set or lowered.

    Where approval_above is set, here or in an account above, a change that allows more spending (greater figures, or
    reopening the account) is answered with 202. It takes effect when another steward requests the same change; that
    steward's key must not come from a key of the first one.

    metadata are the facts for the deployments registry that only people know. Each change is a journal entry.
    """
    require(change.principal, "steward", account)
    if body.metadata is not None:
        patch = patch_of(body.metadata)
        describing = descriptions.describe_account(change.database, change.request, account, patch)
        return respond(change.carry_out(describing, _answer))
    what: Budget | str | Fraction | None = body.state
    if body.budget is not None:
        what = read_budget(document_of(body.budget), "/budget")
    elif body.approval_above is not None:
        what = _threshold(body.approval_above)
    if what is None:
        raise TypeError("the model admits one of budget, state, approval_above and metadata")
    changing = account_changes.change_account(change.database, change.request, account, what, "/budget")
    return respond(change.carry_out(changing, lambda changed: _answer(changed.account, 202 if changed.waits else 200)))


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
    shown_deltas, kind = read_deltas(delta, [f"/query/delta/{number}" for number in range(len(delta))]), wanted(request)
    with database.read() as connection:
        record = accounts.read_account(connection, account)
        if as_of is not None and as_of > record.head.seq:
            raise InvalidInput.at("/query/as_of", f"expected at most {record.head.seq}, the number of the last entry")
        _leave_slow(request, connection, record, quick=kind is None and as_of is None, deltas=max(1, len(shown_deltas)))
        if kind is not None and picture == "spending":
            seen = record if as_of is None else replay.replay(connection, record, as_of).account
            return spending_picture(history_body(connection, seen), kind)
        expired, stored = Counter[str](), None
        if as_of is None:
            now = present_account(connection, record, clock.now())
            record, expired = now.account, now.expired
            drawn: dict[str, int] | None = partitions.total(connection, record.id)._asdict()
            deltas = shown_deltas or (usual_delta(record.budget),)
            cached = BalanceCache(request, record, tag, sorted(expired.items()), *deltas)
            stored = cached.look_up(connection)
            spent, reserved = (Counter[str](),) * 2 if stored and kind is None else spending.counts(connection, record)
        else:
            then = replay.replay(connection, record, as_of)
            record, spent, reserved, drawn = then.account, then.committed, then.reserved, None
            deltas = shown_deltas or (usual_delta(record.budget),)
            cached = BalanceCache(request, record, tag, "", *deltas)
    if kind is not None and picture != "spending":
        lost = guarantee_body(_composed(spent, record.neighbouring, drawn_at(picture, deltas), tag))
        return guarantee_picture(lost, picture, f"the spending of {record.name}", kind)
    figures = stored or _figures(spent, reserved - expired, record.neighbouring, deltas, tag)
    if stored is None and sum(map(len, spent)) + sum(map(len, reserved)) > _LONG:
        cached.store(figures)
    return ok(
        {"account": record.name, "budget": budget_body(record)}
        | {name: figures[name] for name in ("spent", "reserved")}
        | {"remaining": remaining_body(record), "releases": record.releases}
        | {"equal_more": _mean_releases_left(record), "partitions": drawn}
        | {"tags": figures["tags"], "head": head_body(record.head)}
    )


def _mean_releases_left(account: AccountRecord) -> int | None:
    """Return how many more mean releases fit, for a budget whose remaining figure does not show it."""
    if account.budget.definition is not Definition.APPROXIMATE or not account.releases:
        return None
    return count_fitting(account.budget, account.weights, account.totals, mean_price(account.totals, account.releases))


def _figures(
    spent: Subplans, reserved: Subplans, neighbouring: Neighbouring, deltas: tuple[Fraction, ...], tag: str | None
) -> dict[str, Any]:
    return {
        "spent": guarantee_body(_composed(spent, neighbouring, deltas, tag)),
        "reserved": guarantee_body(_composed(reserved, neighbouring, deltas, tag)),
        "tags": first_of(spending.tags_of([*spent, *reserved])),
    }


def _leave_slow(request: Request, connection: Connection, account: AccountRecord, *, quick: bool, deltas: int) -> None:
    """Leave the computation of a long balance to a helper process.

    Raises:
        AnswerInHelper: the balance takes long, and there are helper processes.
    """
    if request.app.state.helpers is None:
        return
    few = spending.small_spending(connection, account) if quick else None
    if few is None or effort.of_guarantee(condense(spending.as_plan(few)), len(USUAL_ORDERS), deltas) > effort.LIGHT:
        raise AnswerInHelper


def _composed(
    subplans: Subplans, neighbouring: Neighbouring, deltas: tuple[Fraction, ...], tag: str | None
) -> Guarantee:
    plan = spending.as_plan(subplans, tag)
    return guarantee(plan, neighbouring, deltas=deltas, orders=USUAL_ORDERS, adaptive=False)


@router.get("/{account}/journal", response_model=JournalPage)
@in_helpers
def read_journal(
    account: AccountPath,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Read an account's journal.

    The oldest entry comes first. Each entry is hashed together with the one before it. A reader who keeps one hash can
    therefore detect any change of the entries before it.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        record = accounts.read_account(connection, account)
        entries = journal.entries(
            connection, record.id, read_seq(cursor), limit, with_room(take), until=record.head.seq
        )
        previous = journal.hash_before(connection, record.id, entries[0].seq) if entries else ""
    items = []
    for entry in entries:
        items.append({"entry": json.loads(entry.body), "previous": previous, "hash": entry.hash})
        previous = entry.hash
    return ok(page(items, entries[-1].seq if entries.more else None))
