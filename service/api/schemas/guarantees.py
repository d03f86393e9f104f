"""Guarantees, budgets and heads as JSON."""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from service.api.schemas.exact_numbers import Exact, Strict, number_down, number_up, short_exact
from service.errors import InvalidInput
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import read_budget, usual_delta
from service.ledger.journal.journal import Head
from service.privacy.accounting.guarantee import USUAL_DELTA, USUAL_ORDERS, ApproximateStatement, Guarantee, guarantee
from service.privacy.accounting.pricing import MEMOISED_SIZE
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights, remaining
from service.privacy.accounting.totals import Totals
from service.privacy.numerics.keyed import memoised
from service.privacy.numerics.loss import Loss
from service.privacy.numerics.numbers import exact_text, parse_exact
from service.privacy.plans.condensed import Condensed
from service.privacy.plans.walking import Neighbouring, Priced, condense


class PureFigure(BaseModel):
    """Pure differential privacy; nats, rounded up."""

    epsilon: float
    epsilon_exact: str | None = None


class ZcdpFigure(BaseModel):
    """Zero-concentrated differential privacy; nats, rounded up."""

    rho: float
    rho_exact: str | None = None


class RdpFigure(BaseModel):
    """A Rényi bound; nats, rounded up, null where it is infinite."""

    alpha: float
    epsilon: float | None


class ApproximateFigure(BaseModel):
    """An (epsilon, delta) statement by one analysis; adaptive: it holds under adaptive choice.

    method, for tight: closed form, atoms, lattice or contour; or the other analysis whose bound is at least as small.
    """

    delta: float
    epsilon: float
    via: Literal["zcdp", "rdp", "pure", "analytic", "tight"]
    alpha: float | None = None
    adaptive: bool
    method: str | None = None


class BestFigure(BaseModel):
    """The least epsilon at one delta, among adaptive statements and among all."""

    delta: float
    adaptive: ApproximateFigure | None
    fixed: ApproximateFigure | None


class GuaranteeBody(BaseModel):
    """Upper bounds on a privacy loss in every notion; null where a notion gives no bound."""

    pure: PureFigure | None
    zcdp: ZcdpFigure | None
    rdp: list[RdpFigure]
    delta: Annotated[float, Field(description="The sum of the deltas that mechanisms declare.")]
    approximate: list[ApproximateFigure]
    best: list[BestFigure]


class HeadBody(BaseModel):
    """The last entry of an account's journal: its number and its hash."""

    seq: int
    hash: str


class PureBudget(Strict):
    """A cap on pure epsilon; delta caps the deltas that mechanisms declare."""

    definition: Literal["pure"]
    epsilon: Exact
    delta: Exact | None = None


class ZcdpBudget(Strict):
    """A cap on rho; delta caps the deltas that mechanisms declare."""

    definition: Literal["zcdp"]
    rho: Exact
    delta: Exact | None = None


class RdpBudget(Strict):
    """A cap on the Rényi loss at one order; delta caps the deltas that mechanisms declare."""

    definition: Literal["rdp"]
    alpha: Exact
    epsilon: Exact
    delta: Exact | None = None


class ApproximateBudget(Strict):
    """An (epsilon, delta) cap; declared_delta is the part of delta reserved for mechanisms that declare deltas."""

    definition: Literal["approximate"]
    epsilon: Exact
    delta: Exact
    declared_delta: Exact | None = None


BudgetModel = Annotated[PureBudget | ZcdpBudget | RdpBudget | ApproximateBudget, Field(discriminator="definition")]


DELTA_SAID = (
    "The delta at which the release's cost is shown as (epsilon, delta). The default is the account's: its budget's"
    " delta for an (epsilon, delta) budget, else 1e-10."
)
CostDelta = Annotated[Exact | None, Field(description=DELTA_SAID)]


class Remaining(BaseModel):
    """The rest of a budget, in its definition; rounded down, never below 0."""

    definition: Definition
    epsilon: float | None = None
    rho: float | None = None
    alpha: float | None = None
    delta: float | None = None
    declared_delta: float | None = None


def cost_of(
    plan: Priced,
    neighbouring: Neighbouring,
    deltas: tuple[Fraction, ...] = (USUAL_DELTA,),
    orders: tuple[Fraction, ...] = USUAL_ORDERS,
) -> dict[str, Any]:
    """Return the guarantee of one plan, memoised by its shape: pipelines register equal plans again and again.

    Args:
        plan: the plan.
        neighbouring: the relation of its account.
        deltas: at which (epsilon, delta) is given.
        orders: at which Rényi bounds are given.

    Returns:
        The fields of GUARANTEE, rounded up.
    """
    condensed = condense(plan)
    price = _cost if condensed.size <= MEMOISED_SIZE else _cost.__wrapped__
    return price(condensed, neighbouring, deltas, orders)


def cost_text(plan: Priced, neighbouring: Neighbouring, delta: Fraction) -> str:
    """Return the guarantee of one plan as JSON text, memoised too: it is most of the answer to a charge."""
    condensed = condense(plan)
    write = _cost_text if condensed.size <= MEMOISED_SIZE else _cost_text.__wrapped__
    return write(condensed, neighbouring, delta)


@memoised(maxsize=4096)
def _cost_text(plan: Condensed, neighbouring: Neighbouring, delta: Fraction) -> str:
    cost = _cost if plan.size <= MEMOISED_SIZE else _cost.__wrapped__
    return json.dumps(cost(plan, neighbouring, (delta,), USUAL_ORDERS))


@memoised(maxsize=4096)
def _cost(
    plan: Condensed, neighbouring: Neighbouring, deltas: tuple[Fraction, ...], orders: tuple[Fraction, ...]
) -> dict[str, Any]:
    return guarantee_body(guarantee(plan, neighbouring, deltas=deltas, orders=orders))


def guarantee_body(cost: Guarantee) -> dict[str, Any]:
    """Return a guarantee as JSON."""
    return {
        "pure": _figure("epsilon", cost.epsilon),
        "zcdp": _figure("rho", cost.rho),
        "rdp": [{"alpha": _order(alpha), "epsilon": _up(loss)} for alpha, loss in cost.rdp],
        "delta": number_up(cost.delta),
        "approximate": [_statement(s) for s in cost.approximate if _up(s.epsilon) is not None],
        "best": [
            {
                "delta": _delta_number(best.delta),
                "adaptive": _statement(best.adaptive) if best.adaptive else None,
                "fixed": _statement(best.fixed) if best.fixed else None,
            }
            for best in cost.best
        ],
    }


def _delta_number(delta: Fraction) -> float | None:
    return number_up(delta)


def _order(alpha: Fraction) -> float | None:
    """Round an order down: a bound at an order also holds at lower orders."""
    return number_down(alpha)


def _up(loss: Loss) -> float | None:
    return None if loss.nats is None else number_up(loss.nats)


def _figure(name: str, loss: Loss) -> dict[str, Any] | None:
    shown = _up(loss)
    if loss.nats is None or shown is None:
        return None
    exact = short_exact(loss.nats) if loss.rational else None
    return {name: shown} if exact is None else {name: shown, f"{name}_exact": exact}


def _statement(statement: ApproximateStatement) -> dict[str, Any]:
    body: dict[str, Any] = {
        "delta": _delta_number(statement.delta),
        "epsilon": _up(statement.epsilon),
        "via": statement.via,
    }
    if statement.alpha is not None:
        body["alpha"] = _order(statement.alpha)
    body["adaptive"] = statement.adaptive
    return body if statement.method is None else body | {"method": statement.method}


def remaining_body(account: AccountRecord) -> dict[str, Any]:
    """Return the rest of an account's budget, in the budget's definition."""
    return remaining_of(account.budget, account.weights, account.totals)


def remaining_of(budget: Budget, weights: Weights, totals: Totals) -> dict[str, Any]:
    """Return the rest of a budget, in its definition."""
    body: dict[str, Any] = {"definition": budget.definition.value}
    if budget.alpha is not None:
        body["alpha"] = _order(budget.alpha)
    body[budget.cap_on] = number_down(remaining(budget, weights, totals))
    if budget.definition is Definition.APPROXIMATE:
        body["delta"] = _delta_number(budget.delta)
    if budget.declared_delta:
        declared = number_down(max(budget.declared_delta - totals.delta, Fraction(0)))
        body["declared_delta" if budget.definition is Definition.APPROXIMATE else "delta"] = declared
    return body


def head_body(head: Head) -> dict[str, Any]:
    """Return the head of a journal."""
    return {"seq": head.seq, "hash": head.hash}


def usual_delta_text(budget: Mapping[str, Any]) -> str:
    """Return the default delta of an account's answers, from its budget as JSON."""
    return exact_text(usual_delta(read_budget(dict(budget))))


def read_deltas(texts: Sequence[str], pointers: Sequence[str]) -> tuple[Fraction, ...]:
    """Read the deltas at which (epsilon, delta) is requested.

    Raises:
        InvalidInput: a delta is not strictly between 0 and 1.
    """
    deltas = tuple(map(parse_exact, texts))
    for delta, pointer in zip(deltas, pointers, strict=True):
        if not 0 < delta < 1:
            raise InvalidInput.at(pointer, "expected a number above 0 and below 1")
    return deltas


def read_delta(text: str | None, pointer: str) -> Fraction | None:
    """Read one optional delta; raise as ``read_deltas``."""
    return None if text is None else read_deltas([text], [pointer])[0]
