"""The course of a budget as JSON."""

from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import Connection

from service.api.exact import number_down, number_up, stated
from service.api.guarantees import BudgetModel, HeadBody, budget_body, head_body
from service.ledger import course
from service.ledger.accounts import AccountRecord
from service.ledger.course import Step

USUAL_POINTS = 100


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
    picture: str | None = Field(None, description="The same as SVG, where with_picture asks for it.")


def history_body(connection: Connection, account: AccountRecord, points: int = USUAL_POINTS) -> dict[str, Any]:
    """The course of an account up to its head, as JSON."""
    went = course.course_of(connection, account, points)
    return {
        "account": account.name,
        "budget": budget_body(account),
        "every": went.every,
        "points": [_point(step) for step in went.steps],
        "head": head_body(account.head),
    }


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
