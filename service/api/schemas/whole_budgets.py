"""The loss that a whole budget allows, as an (epsilon, delta) statement of all releases once it is spent."""

from typing import Any

from service.api.schemas.guarantees import cost_of
from service.ledger.accounts.budgets import delta_of_whole, usual_delta, write_budget
from service.privacy.accounting.privacy_filter import Budget, Definition
from service.privacy.numerics.numbers import exact_text
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring


def plan_of_whole(budget: Budget) -> dict[str, Any]:
    """Return a plan whose loss is a whole budget, with the deltas that mechanisms may declare."""
    stated = write_budget(budget)
    loss: dict[str, Any] = {}
    match budget.definition:
        case Definition.RDP:
            loss = {"rdp": [{"alpha": stated["alpha"], "epsilon": stated["epsilon"]}]}
        case Definition.ZCDP:
            loss = {"rho": stated["rho"]}
        case _:
            loss = {"epsilon": stated["epsilon"]}
    return {"type": "declared", "reference": "the budget", "delta": exact_text(budget.declared_delta)} | loss


def whole_budget_body(budget: Budget) -> dict[str, Any]:
    """Return the epsilon, and the delta, that bound all releases once a budget is spent; null where no epsilon does."""
    if budget.definition in (Definition.PURE, Definition.APPROXIMATE):
        stated = write_budget(budget)
        return {"epsilon": stated["epsilon"], "delta": stated.get("delta")}
    delta = delta_of_whole(budget, usual_delta(budget))
    cost = cost_of(read_plan(plan_of_whole(budget)), Neighbouring.ADD_REMOVE, (delta,))
    (best,) = cost["best"]
    return {"epsilon": (best["adaptive"] or best["fixed"] or {}).get("epsilon"), "delta": exact_text(delta)}
