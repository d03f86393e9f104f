"""Approvers of accounts in requests and answers, and how far a proposal is approved."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from service.api.schemas.exact_numbers import Label, Strict
from service.errors import Fault, InvalidInput
from service.ledger.accounts.approvals import Approval
from service.ledger.accounts.approvers import MOST_NAMES, MOST_PERSONS, Approvers


class ApproversModel(Strict):
    """The persons who must approve what an account asks approval for."""

    at_least: Annotated[int, Field(strict=True, ge=1, le=MOST_PERSONS)] = Field(
        description="The number of persons who must approve, beside the one who proposed; at most that of the names."
    )
    of: Annotated[list[Label], Field(min_length=1, max_length=MOST_NAMES)] | None = Field(
        None, description="The principals whose approval counts, by their names. Left out: any steward or approver."
    )


class AskedBody(BaseModel):
    """The present rule of an account that asks for an approval."""

    account: str
    at_least: int
    of: list[str] | None = Field(description="null: any steward or approver.")
    missing: int = Field(description="The number of persons who must still approve.")


class ApprovalBody(BaseModel):
    """The standing of a proposal's approval by the present rules of all accounts that ask; each of them must be met."""

    approved_by: list[str] = Field(description="Those who approved it, in the order in which they did.")
    may_approve: list[str] | None = Field(
        description="Those whose approval would count now. null: any steward or approver, except those who proposed or"
        " approved it."
    )
    asked: list[AskedBody]


def stated_approvers(model: ApproversModel) -> Approvers:
    """Return the approvers that a request states, in the order of their names.

    Raises:
        InvalidInput: a name is stated twice, or fewer are stated than must approve.
    """
    names = model.of
    if names is None:
        return Approvers(model.at_least)
    faults = [
        Fault(f"/approvers/of/{number}", "expected a name that is not stated before")
        for number, name in enumerate(names)
        if name in names[:number]
    ]
    if model.at_least > len(names):
        expected = f"expected at most the number of names, {len(names)}; got {model.at_least}"
        faults.append(Fault("/approvers/at_least", expected))
    if faults:
        raise InvalidInput(faults)
    return Approvers(model.at_least, tuple(sorted(names)))


def approvers_member(approvers: Approvers | None) -> dict[str, Any]:
    """Return the member of an account with its approvers; none where it states none."""
    return {} if approvers is None else {"approvers": approvers.document()}


def approval_member(approval: Approval | None) -> dict[str, Any]:
    """Return the member with the standing of an approval; none where no account states approvers for it."""
    if approval is None or not any(rule.is_stated for rule in approval.rules):
        return {}
    asked = [
        {
            "account": rule.account,
            "at_least": rule.approvers.at_least,
            "of": None if rule.approvers.of is None else list(rule.approvers.of),
            "missing": approval.missing(rule),
        }
        for rule in approval.rules
    ]
    return {"approval": {"approved_by": approval.names, "may_approve": approval.may_approve, "asked": asked}}
