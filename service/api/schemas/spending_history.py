"""Spending history of an account as JSON."""

from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import Connection

from service.api.schemas.exact_numbers import number_down, number_up, stated
from service.api.schemas.guarantees import BudgetModel, HeadBody, head_body
from service.errors import NotFound
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import write_budget
from service.ledger.spending import spending_history
from service.ledger.spending.spending_history import SpendingPoint

USUAL_POINTS = 100


class HistoryPoint(BaseModel):
    """An account right after one of its journal's entries; losses are nats of the budget's definition."""

    seq: int
    kind: str = Field(description="The kind of the entry.", examples=["committed"])
    at: str
    cap: float = Field(description="The cap of the budget at that time.")
    spent: float | None = Field(
        description="The loss of committed releases and of allotments by admission's count, rounded up; null: infinite."
    )
    counted: float | None = Field(
        description="spent with the reservations of that time: the figure that is compared with the cap. Rounded up."
    )
    remaining: float = Field(description="What was left of the cap; rounded down, never below 0.")
    delta: float = Field(description="The sum of the deltas that mechanisms of counted releases declare; rounded up.")
    releases: int = Field(description="The number of counted releases, of the account and of those under it.")


class HistoryBody(BaseModel):
    """The spending history of an account; every: one point stands for so many entries that change the counted loss.

    In an account with periods, spent and counted are each of the window in which it is largest; under an (epsilon,
    delta) budget, a bound that no window exceeds.
    """

    account: str
    tag: str | None = Field(None, description="The tag of the cap that is shown; omitted for the account's budget.")
    budget: BudgetModel
    every: int
    points: list[HistoryPoint]
    head: HeadBody
    picture: str | None = Field(None, description="The points as an SVG picture, where with_picture is true.")


def history_body(
    connection: Connection, account: AccountRecord, points: int = USUAL_POINTS, tag: str | None = None
) -> dict[str, Any]:
    """Return the spending history of an account up to its head, or of one of its caps, as JSON.

    It also has what only a picture says (``without_names``): the names of releases, and whether the account has
    allotted some of its budget.

    Args:
        tag: of the cap; None: the account's budget.

    Raises:
        NotFound: the account has no cap on the tag.
    """
    cap = next((cap for cap in account.caps if cap.tag == tag), None)
    if tag is not None and cap is None:
        raise NotFound("cap on tag", tag)
    went = spending_history.spending_history(connection, account, points, cap)
    return {
        "account": account.name,
        **({} if cap is None else {"tag": cap.tag}),
        "budget": write_budget(account.budget if cap is None else cap.budget),
        "has_allotted": cap is None and account.allotted is not None,
        "every": went.every,
        "points": [_point(step) for step in went.steps],
        "head": head_body(account.head),
    }


def without_names(history: dict[str, Any]) -> dict[str, Any]:
    """Return a spending history without what only a picture says."""
    points = [{field: value for field, value in point.items() if field != "name"} for point in history["points"]]
    return {name: value for name, value in history.items() if name != "has_allotted"} | {"points": points}


def _point(step: SpendingPoint) -> dict[str, Any]:
    return {
        "seq": step.seq,
        "kind": step.kind,
        "name": step.name,
        "at": step.at,
        "cap": stated(step.cap, number_down),
        "spent": None if step.committed is None else number_up(step.committed),
        "counted": None if step.counted is None else number_up(step.counted),
        "remaining": number_down(step.remaining),
        "delta": number_up(step.delta),
        "releases": step.releases,
    }
