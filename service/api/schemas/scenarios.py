"""Models of scenarios: what a planner's form states."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.api.schemas.exact_numbers import Exact, Label, Positive, Short
from service.api.schemas.guarantees import BudgetModel
from service.errors import Fault, InvalidInput

ScenarioKind = Literal["margins", "variances", "relative_errors", "weights", "safetab"]
ScenarioMechanism = Literal["geometric", "discrete_gaussian", "discrete_osgt"]
MOST_TARGETS = 100

_TABLE = {"table", "geography", "cells", "sensitivity"}
_FIGURES: dict[ScenarioKind, set[str]] = {
    "margins": {"moe"},
    "variances": {"variance"},
    "relative_errors": {"relative_error", "typical_count"},
    "weights": {"weight"},
    "safetab": {"level", "moe"},
}
_SAFETAB = ("stability", "stage_1_fraction", "method")
_SUPPOSED = ("unit", "neighbouring", "budget")


class ScenarioTarget(Short):
    """A target: a table at a geography, or a level of SafeTab, with the figures of the scenario's kind."""

    table: Label | None = None
    geography: Label | None = None
    level: Label | None = None
    moe: Exact | None = None
    variance: Exact | None = None
    relative_error: Exact | None = Field(None, description="A margin of error divided by typical_count.")
    typical_count: Exact | None = Field(
        None, description="A public typical size of a cell, not a true count: it is kept and shown."
    )
    weight: Exact | None = None
    confidence: Exact | None = Field(None, description="Of margins, variances and relative errors; 0.95 unless given.")
    cells: Positive | None = Field(None, description="In how many cells one record is counted; 1 unless given.")
    sensitivity: Exact | None = Field(None, description="1 unless given.")


class StateScenario(Short):
    """The inputs of a plan: targets, mechanism, and the account or a supposed one."""

    name: Label = Field(description="Unique among the scenarios of its maker.")
    kind: ScenarioKind = Field(
        description="What the targets state: margins of error, variances of the noise, relative errors, weights that"
        " divide a budget, or levels of SafeTab."
    )
    mechanism: ScenarioMechanism
    account: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="The account to plan for; null: none, and unit, neighbouring and budget are stated instead."
    )
    unit: Label | None = Field(None, description="Of a plan without an account.")
    neighbouring: Literal["add_remove", "replace_one"] | None = Field(None, description="Of a plan without an account.")
    budget: BudgetModel | None = Field(
        None, description="Of a plan without an account: the budget with which the plan is compared."
    )
    divided: Exact | None = Field(
        None, description="Of weights with an account: the part of its budget to divide; null: all that is left."
    )
    delta: Exact | None = Field(None, description="At which costs are shown as (epsilon, delta); null: the budget's.")
    periods: Label | None = Field(None, description="The periods that it reads, as the planner's form takes them.")
    reads: Label | None = Field(None, description="The tags of what it reads, as the planner's form takes them.")
    targets: Annotated[list[ScenarioTarget], Field(min_length=1, max_length=MOST_TARGETS)]
    stability: Positive | None = Field(None, description="Of SafeTab; 9 unless given.")
    stage_1_fraction: Exact | None = Field(None, description="Of SafeTab; 0.1 unless given.")
    confidence: Exact | None = Field(None, description="Of SafeTab and of weights; 0.95 unless given.")
    method: Literal["exact", "safetab"] | None = Field(None, description="Of SafeTab; exact unless given.")


class ScenarioOutline(BaseModel):
    """A scenario without its targets."""

    id: str
    name: str
    account: str | None
    kind: ScenarioKind
    mechanism: ScenarioMechanism
    made_by: str = Field(description="The principal that saved it.")
    created_at: str
    changed_at: str


class ScenarioBody(ScenarioOutline):
    """A scenario: its inputs. Fields that were not given are left out."""

    unit: str | None = None
    neighbouring: Literal["add_remove", "replace_one"] | None = None
    budget: BudgetModel | None = None
    divided: str | None = None
    delta: str | None = None
    periods: str | None = None
    reads: str | None = None
    targets: list[ScenarioTarget]
    stability: int | None = None
    stage_1_fraction: str | None = None
    confidence: str | None = None
    method: Literal["exact", "safetab"] | None = None


class ScenarioPage(BaseModel):
    """A page of scenarios."""

    items: list[ScenarioOutline]
    next_cursor: str | None


def check_scenario(body: StateScenario) -> None:
    """Refuse fields that the scenario's kind or account does not have, and the lack of those that it needs.

    Raises:
        InvalidInput: with all faults.
    """
    safetab, weights = body.kind == "safetab", body.kind == "weights"
    of_kind = dict.fromkeys(_SAFETAB, safetab)
    of_kind |= {"divided": weights and body.account is not None, "confidence": safetab or weights}
    faults = [
        Fault(f"/{name}", f"expected no such field in a scenario of {body.kind}")
        for name, fits in of_kind.items()
        if getattr(body, name) is not None and not fits
    ]
    if safetab and body.mechanism == "discrete_osgt":
        faults.append(Fault("/mechanism", "expected geometric or discrete_gaussian in a scenario of safetab"))
    for name in _SUPPOSED:
        if body.account is not None and getattr(body, name) is not None:
            faults.append(Fault(f"/{name}", "expected no such field beside an account, which has its own"))
        if body.account is None and getattr(body, name) is None:
            faults.append(Fault(f"/{name}", "expected this field, as the scenario has no account"))
    figures = _FIGURES[body.kind]
    allowed = figures if safetab else figures | _TABLE | (set() if weights else {"confidence"})
    for number, target in enumerate(body.targets):
        given = {name for name in ScenarioTarget.model_fields if getattr(target, name) is not None}
        at = f"/targets/{number}"
        wrong = {"no such field": given - allowed, "this field": figures - given}
        faults += [
            Fault(f"{at}/{name}", f"expected {what} in a scenario of {body.kind}")
            for what, names in wrong.items()
            for name in sorted(names)
        ]
        if not safetab and not given & {"table", "geography"}:
            faults.append(Fault(f"{at}/table", "expected a table or a geography"))
    if faults:
        raise InvalidInput(faults)
