"""The charge of a release as JSON: its loss in the definition of its account's budget, and its part of the budget."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field

from service.api.schemas.exact_numbers import number_down, number_up, short_exact
from service.ledger.accounts.accounts import AccountRecord
from service.privacy.accounting.capacity import share_alone
from service.privacy.accounting.pricing import MEMOISED_SIZE, Price, price
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights, spent_alone
from service.privacy.plans.walking import Priced, condense

WithCharge = Annotated[
    bool,
    Query(
        description="Include the charge in the definition of the account's budget, and its part of the budget.",
        examples=[True],
    ),
]


class ChargeBody(BaseModel):
    """The charge of a release by itself, in the definition of its account's budget.

    Of an (epsilon, delta) budget, which counts one epsilon of all its releases together, epsilon is that of the release
    at its delta: the least that holds under adaptive choice, or where there is none the least of all.
    """

    definition: Definition
    alpha: float | None = None
    rho: float | None = Field(None, description="Rounded up; null: infinite.")
    rho_exact: str | None = None
    epsilon: float | None = Field(None, description="Rounded up; null: infinite.")
    epsilon_exact: str | None = None
    delta: float | None = Field(None, description="Only of an (epsilon, delta) budget: the delta of the release.")
    share: float | None = Field(
        description="The part of the account's present budget that the release takes by itself, on the scale of the"
        " account's gauge: 1 is the whole budget. Rounded up; null: infinite."
    )


def charge_member(
    account: AccountRecord, plan: Priced, cost: Mapping[str, Any], *, however_large: bool = False
) -> dict[str, Any]:
    """Return the member ``charge`` of a release's answer.

    Args:
        account: the account of the release.
        plan: the plan of the release.
        cost: the guarantee of the release.
        however_large: price a plan of any size; otherwise the member of a large plan is left out.
    """
    condensed = condense(plan)
    if condensed.size > MEMOISED_SIZE and not however_large:
        return {}
    amount = price(condensed, account.neighbouring, account.weights.orders)
    return {"charge": charge_body(account.budget, account.weights, amount, cost)}


def charge_body(budget: Budget, weights: Weights, amount: Price, cost: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a charge to a budget as JSON.

    Args:
        budget: the budget.
        weights: of its account.
        amount: the price that the account is charged.
        cost: the guarantee of the release; only the charge of an (epsilon, delta) budget shows a part of it.
    """
    body: dict[str, Any] = {"definition": budget.definition.value}
    if budget.alpha is not None:
        body["alpha"] = number_down(budget.alpha)
    if budget.definition is Definition.APPROXIMATE:
        if cost is None:
            raise TypeError("expected the guarantee of the release")
        (best,) = cost["best"]
        body |= {"epsilon": (best["adaptive"] or best["fixed"] or {}).get("epsilon"), "delta": best["delta"]}
    else:
        loss = spent_alone(budget, weights, amount)
        exact = None if loss is None else short_exact(loss)
        body[budget.cap_on] = None if loss is None else number_up(loss)
        body |= {} if exact is None else {f"{budget.cap_on}_exact": exact}
    share = share_alone(budget, weights, amount)
    return body | {"share": None if share is None else number_up(share)}
