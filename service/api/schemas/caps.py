"""Caps on tags in requests and answers."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from service.api.schemas.exact_numbers import Label, Strict, number_up, short_exact
from service.api.schemas.guarantees import BudgetModel, Remaining, remaining_of
from service.api.schemas.plans import document_of
from service.ledger.accounts.budgets import read_budget, write_budget
from service.ledger.accounts.caps import Cap, StatedCap
from service.privacy.accounting.capacity import gauge
from service.privacy.accounting.privacy_filter import spent_of_cap


class CapModel(Strict):
    """A cap on what releases tell about one attribute of one unit.

    In an account with periods it counts the releases of all periods together. So it holds for each window, and is
    stricter than a cap for each window.
    """

    tag: Label = Field(description="The tag of the attribute.")
    budget: BudgetModel = Field(
        description="In any definition, whatever that of the account. Another value of the attribute is a replacement,"
        " also where the account's relation is add_remove."
    )


class CapBody(BaseModel):
    """A cap on a tag, with the loss that it counts."""

    tag: str
    budget: BudgetModel
    counted: float | None = Field(
        description="The part of the cap in use, reservations included, with earlier releases that count for it, and in"
        " an account with periods with releases of all periods; null: infinite."
    )
    counted_exact: str | None = Field(description="counted as an exact number, where it is rational and short.")
    remaining: Remaining
    used: float | None = Field(
        description="The used part of the cap on the scale of an account's gauge: equal releases take equal parts."
        " Rounded up; null: infinite."
    )


def stated_caps(models: Sequence[CapModel]) -> tuple[StatedCap, ...]:
    """Return the caps that a request states.

    Raises:
        InvalidInput: a budget has no meaning.
    """
    return tuple(
        StatedCap(model.tag, read_budget(document_of(model.budget), f"/caps/{number}/budget"))
        for number, model in enumerate(models)
    )


def caps_member(caps: Sequence[Cap]) -> dict[str, Any]:
    """Return the member ``caps`` of an answer; nothing where there are none."""
    return {"caps": [_body(cap) for cap in caps]} if caps else {}


def _body(cap: Cap) -> dict[str, Any]:
    used = spent_of_cap(cap.budget, cap.weights, cap.totals)
    part = gauge(cap.budget, cap.weights, cap.totals).used
    return {
        "tag": cap.tag,
        "budget": write_budget(cap.budget),
        "counted": None if used is None else number_up(used),
        "counted_exact": None if used is None else short_exact(used),
        "remaining": remaining_of(cap.budget, cap.weights, cap.totals),
        "used": None if part is None else number_up(part),
    }
