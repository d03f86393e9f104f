"""Accounts as answers show them, with the gauge of their budgets."""

from fractions import Fraction
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy import Connection

from service.api.schemas.allotments import AllottedSumBody, allotted_sum_member
from service.api.schemas.approvals import (
    ApprovalBody,
    ApproversModel,
    Judge,
    Obstacle,
    UnableBody,
    approval_member,
    approvers_member,
)
from service.api.schemas.caps import CapBody, CapModel, caps_member
from service.api.schemas.exact_numbers import number_up, short_exact
from service.api.schemas.guarantees import BudgetModel, HeadBody, Remaining, head_body, remaining_body
from service.api.schemas.metadata import Metadata
from service.api.schemas.periods import AccountPeriodsBody, WindowBody, account_periods_body, window_member
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.approvals import Approval
from service.ledger.accounts.budgets import write_budget
from service.ledger.releases.held_charges import held_by_account
from service.ledger.spending.window_rows import EMPTY
from service.ledger.spending.worst_windows import fullest_window
from service.privacy.accounting.capacity import MOST_COUNTED, count_fitting, gauge
from service.privacy.accounting.privacy_filter import spent_of_cap
from service.privacy.accounting.totals import Totals, add_totals, mean_price, without_totals
from service.privacy.numerics.numbers import exact_text
from service.privacy.plans.walking import Neighbouring


class Admission(BaseModel):
    """The RDP orders and weights that enforce an (epsilon, delta) budget; fixed when the account is opened."""

    orders: list[str]
    weights: list[str]


class ProposedChangeBody(BaseModel):
    """A proposed change that would allow more spending, or other approvers.

    The last of those who must approve it makes it, by requesting the same change.
    """

    budget: BudgetModel | None
    state: Literal["open"] | None
    caps: list[CapModel] | None = Field(None, description="Omitted where the change is another one.")
    approvers: ApproversModel | None = Field(None, description="Omitted where the change is another one.")
    seq: int = Field(description="The number of the journal entry that proposed the change.")
    proposed_by: str
    proposed_at: str
    reason: str | None = Field(None, description="The words of the steward who proposed it; omitted without any.")
    approval: ApprovalBody | SkipJsonSchema[None] = Field(
        None, description="Omitted where neither the account nor one above it states approvers."
    )
    obstacle: Obstacle = None


class GaugePart(BaseModel):
    """A part of what a gauge counts."""

    used: float | None = Field(description="As a part of the budget, as used of the gauge; rounded up. Null: infinite.")
    counted: float | None = Field(description="Its loss, as counted of the account; rounded up. Null: infinite.")
    counted_exact: str | None = Field(description="counted as an exact number, where it is rational and short.")


class GaugeBody(BaseModel):
    """The used part of an account's budget, on the scale on which equal releases take equal parts.

    For an (epsilon, delta) budget it is the least over all tests by which its filter admits; in other definitions, the
    used part of the cap. Where declared deltas use more of their own cap, it is that part. At 1 the budget is full.
    """

    used: float | None = Field(description="Spent or held; rounded up. Null: infinite.")
    used_exact: str | None = Field(description="used as an exact number, where it is short.")
    cap: str = Field(description="The cap that it is a part of: epsilon, rho, delta or declared_delta.")
    releases: int = Field(description="The number of releases that it counts, with those of the accounts under it.")
    spent: GaugePart | SkipJsonSchema[None] = Field(
        None,
        description="What committed releases and allotments use by themselves. Omitted where nothing is held; null"
        " where this is not looked at: of an account with periods in a list, or where used is a bound of its windows.",
    )
    held: GaugePart | SkipJsonSchema[None] = Field(
        None, description="The rest: what would be free without reservations and proposals. Omitted or null with spent."
    )
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
    approvers: ApproversModel | SkipJsonSchema[None] = Field(
        None, description="Who must approve; omitted where it is one other person, whoever may approve."
    )
    unable_approvers: list[UnableBody] | SkipJsonSchema[None] = Field(
        None,
        description="Only in answers to with_obstacle=true: those on the account's own list of approvers that have no"
        " valid key with which their approval would count. Principals of an issuer are not among them.",
    )
    proposed_change: ProposedChangeBody | None = Field(description="The change that waits for other persons.")
    metadata: Metadata
    admission: Admission | None
    caps: list[CapBody] | None = Field(None, description="The caps on tags; omitted where there are none.")
    allotted: AllottedSumBody | None = Field(
        None, description="What the account has allotted to accounts under it; omitted where it never did."
    )
    created_at: str
    changed_at: str | SkipJsonSchema[None] = Field(
        None, description="Only in lists: the moment of the last journal entry."
    )
    head: HeadBody
    periods: AccountPeriodsBody | SkipJsonSchema[None] = Field(
        None,
        description="Only of an account with periods. remaining and counted are then those of the window with the"
        " largest loss; under an (epsilon, delta) budget, a bound that no window exceeds.",
    )
    gauge: GaugeBody | None = Field(None, description="Only in answers to with_gauge=true.")


def account_body(
    account: AccountRecord, approval: Approval | None = None, judge: Judge | None = None
) -> dict[str, Any]:
    """Return an account as JSON.

    Args:
        approval: of the change that waits, if one does.
        judge: adds why the caller cannot approve that.
    """
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
        **approvers_member(account.approvers),
        **({} if judge is None else {"unable_approvers": judge.unable_on(account.approvers)}),
        "proposed_change": _proposed_body(account, approval, judge),
        "metadata": account.metadata,
        "admission": admission if weights.shares else None,
        **caps_member(account.caps),
        **allotted_sum_member(account),
        "created_at": account.created_at,
        "head": head_body(account.head),
        **account_periods_body(account),
    }


def account_with_gauge(
    account: AccountRecord, approval: Approval | None = None, judge: Judge | None = None, *, held: Totals | None
) -> dict[str, Any]:
    """Return an account as JSON, with its gauge; with periods, the gauge is a bound that no window exceeds.

    Args:
        approval: of the change that waits, if one does.
        judge: adds why the caller cannot approve that.
        held: the part of the account's totals that is held; None: it is not looked at, as the account has periods.
    """
    return account_body(account, approval, judge) | {"gauge": _gauge_body(account, held)}


def account_with_fullest_window(
    connection: Connection, account: AccountRecord, approval: Approval | None, judge: Judge | None, at: str
) -> dict[str, Any]:
    """Return an account as JSON, with its gauge; with periods, the gauge is that of its fullest window."""
    if account.periods is None:
        held = held_by_account(connection, [account], at).get(account.id, Totals())
        return account_with_gauge(account, approval, judge, held=held)
    place, as_window = fullest_window(connection, account)
    window = None if place is None else account.periods.window_at(place)
    body = _gauge_body(as_window, _held_in_window(as_window, place)) | window_member(account, window)
    return account_body(account, approval, judge) | {"gauge": body}


def _held_in_window(account: AccountRecord, place: int | None) -> Totals | None:
    """Return what an account, as its fullest window, holds in it; None where its totals are a bound of all windows."""
    windows = account.windows
    if windows is None or windows.several is not None or not windows.are_few(account.weights):
        return None
    own = EMPTY if place is None else windows.present.get(place, EMPTY)
    return add_totals(windows.common.held, own.held)


def _parts(account: AccountRecord, used: Fraction | None, held: Totals | None) -> dict[str, Any]:
    """Return the members spent and held of a gauge."""
    if held is None:
        return {"spent": None, "held": None}
    if held == Totals():
        return {}
    budget, weights, totals = account.budget, account.weights, without_totals(account.totals, held)
    whole, loss = spent_of_cap(budget, weights, account.totals), spent_of_cap(budget, weights, totals)
    part = gauge(budget, weights, totals).used
    held_part, held_loss = _rest(used, part), _rest(whole, loss)
    if held_part == held_loss == 0:
        return {}
    return {"spent": _part(part, loss), "held": _part(held_part, held_loss)}


def _rest(whole: Fraction | None, part: Fraction | None) -> Fraction | None:
    return None if whole is None or part is None else whole - part


def _part(used: Fraction | None, loss: Fraction | None) -> dict[str, Any]:
    return {
        "used": None if used is None else number_up(used),
        "counted": None if loss is None else number_up(loss),
        "counted_exact": None if loss is None else short_exact(loss),
    }


def _gauge_body(account: AccountRecord, held: Totals | None) -> dict[str, Any]:
    budget, weights, totals, number = account.budget, account.weights, account.totals, account.releases
    used, cap = gauge(budget, weights, totals)
    return {
        "used": None if used is None else number_up(used),
        "used_exact": None if used is None else short_exact(used),
        "cap": cap,
        "releases": number,
        **_parts(account, used, held),
        "equal_more": count_fitting(budget, weights, totals, mean_price(account.of_releases, number))
        if number and account.periods is None
        else None,
    }


def _proposed_body(account: AccountRecord, approval: Approval | None, judge: Judge | None) -> dict[str, Any] | None:
    proposed = account.proposed
    if proposed is None:
        return None
    what = {"budget": proposed.change.get("budget"), "state": proposed.change.get("state")}
    what |= {name: proposed.change[name] for name in ("caps", "approvers") if name in proposed.change}
    why = {} if proposed.reason is None else {"reason": proposed.reason}
    return (
        what
        | {"seq": proposed.seq, "proposed_by": proposed.by.name, "proposed_at": proposed.at}
        | why
        | approval_member(approval, judge, "the change")
    )
