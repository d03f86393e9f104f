"""The parts of an account's spent loss as JSON."""

from typing import Any

from pydantic import BaseModel, Field

from service.api.schemas.exact_numbers import number_up
from service.api.schemas.guarantees import BudgetModel, HeadBody, head_body
from service.api.schemas.period_reports import figure
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import write_budget
from service.ledger.spending.shares import By, Shares
from service.privacy.accounting.privacy_filter import Definition


class PartBody(BaseModel):
    """A part of an account's spent loss."""

    names: list[str] = Field(
        description="By account, the account under this one; by tag, all tags that these parts of plans carry; by"
        " mechanism, the types of all their mechanisms, which are several where they run in parallel or one of them is"
        " chosen. Empty for the account's own releases, for parts without tags, and for allotments."
    )
    allotted: bool = Field(description="Whole budgets that were allotted to accounts under this one.")
    spent: float | None = Field(description="The loss of this part by itself; rounded up. null: infinite.")
    spent_exact: str | None
    share: float | None = Field(description="The part of what is spent; rounded up. null where losses do not add up.")


class RestBody(BaseModel):
    """The parts that are not stated one by one, together."""

    number: int
    with_own: bool = Field(description="The account's own releases are among them.")
    spent: float | None = Field(description="Rounded up. null: infinite.")
    spent_exact: str | None
    share: float | None


class SharesBody(BaseModel):
    """The parts of an account's spent loss."""

    account: str
    budget: BudgetModel
    by: By
    adds_up: bool = Field(
        description="False under an (epsilon, delta) budget: each figure is then that of the part by itself, and the"
        " whole is not their sum. Also false where the loss is infinite."
    )
    spent: float | None = Field(description="The whole; rounded up. null: infinite.")
    spent_exact: str | None
    parts: list[PartBody] = Field(description="The greatest first; each part of a plan is in one of them.")
    rest: RestBody | None
    head: HeadBody
    picture: str | None = Field(None, description="Only in answers to with_picture=true: the picture, as SVG.")


def shares_body(account: AccountRecord, by: By, shares: Shares) -> dict[str, Any]:
    """Return the parts of an account's spent loss as JSON."""
    whole = shares.spent
    adds_up = account.budget.definition is not Definition.APPROXIMATE and whole is not None

    def loss(spent: Any) -> dict[str, Any]:
        share = number_up(spent / whole) if adds_up and whole else None
        return figure("spent", spent) | {"share": share}

    rest = None
    if shares.rest is not None:
        number, spent = shares.rest
        rest = {"number": number, "with_own": shares.own_in_rest} | loss(spent)
    return {
        "account": account.name,
        "budget": write_budget(account.budget),
        "by": by,
        "adds_up": adds_up,
        **figure("spent", whole),
        "parts": [
            {"names": list(part.key.names), "allotted": part.key.allotted} | loss(part.spent) for part in shares.parts
        ],
        "rest": rest,
        "head": head_body(account.head),
    }
