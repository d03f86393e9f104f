"""How an account's spending went."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from service.api.accounts import AccountPath
from service.api.auth import CurrentPrincipal, require
from service.api.body import StrictRoute
from service.api.context import CurrentDatabase, ok
from service.api.exact import number_down, number_up, stated
from service.api.guarantees import BudgetModel, HeadBody, budget_body, head_body
from service.ledger import accounts, course
from service.ledger.course import Step

router = APIRouter(prefix="/v1/accounts", tags=["accounts"], route_class=StrictRoute)


class HistoryPoint(BaseModel):
    """An account right after one of its journal's entries; losses are nats of the budget's definition."""

    seq: int
    kind: str = Field(description="Of the entry.", examples=["committed"])
    at: str
    cap: float = Field(description="Of the budget as it was then.")
    spent: float | None = Field(description="What admission counts of committed releases, up; null: infinite.")
    counted: float | None = Field(description="The same with what was held: what is compared with the cap.")
    remaining: float = Field(description="Down, never below 0.")
    delta: float = Field(description="The sum of the deltas that mechanisms declare, of what is counted; up.")
    releases: int = Field(description="How many are counted, of the account and of those under it.")


class HistoryBody(BaseModel):
    """The course of a budget; every: there is a point after so many entries that change what is counted."""

    account: str
    budget: BudgetModel
    every: int
    points: list[HistoryPoint]
    head: HeadBody


@router.get("/{account}/history", response_model=HistoryBody)
def read_history(
    account: AccountPath,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    points: Annotated[int, Query(ge=2, le=1000, description="How many points at the most.")] = 100,
) -> Response:
    """Spending over time.

    What was spent, what was held, and the cap, after each journal entry that changed one of them; where these are
    more than points, after every so many of them and after the last. All of it comes from the journal: a reservation
    whose time is over is held until an entry says that it expired. Figures are those that admission compares with
    the cap, in the budget's own definition. Takes some ten seconds for a million entries.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        found = accounts.read_account(connection, account)
        went = course.course_of(connection, found, points)
    return ok(
        {
            "account": found.name,
            "budget": budget_body(found),
            "every": went.every,
            "points": [_point(step) for step in went.steps],
            "head": head_body(found.head),
        }
    )


def _point(step: Step) -> dict[str, Any]:
    return {
        "seq": step.seq,
        "kind": step.kind,
        "at": step.at,
        "cap": stated(step.cap, number_down),
        "spent": None if step.committed is None else number_up(step.committed),
        "counted": None if step.counted is None else number_up(step.counted),
        "remaining": number_down(step.remaining),
        "delta": number_up(step.delta),
        "releases": step.releases,
    }
