"""Allotments of accounts in answers."""

from typing import Any

from pydantic import BaseModel, Field

from service.api.schemas.exact_numbers import number_down, number_up, short_exact
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.spending.window_rows import EMPTY
from service.privacy.accounting.privacy_filter import remaining, spent_of_cap
from service.privacy.accounting.totals import Totals, add_totals, without_totals
from service.privacy.periods import PeriodSet


class AllottedSumBody(BaseModel):
    """The allotments of an account to accounts under it; its counted figure contains them."""

    accounts: int = Field(description="The number of allotted accounts that are charged to it, closed ones included.")
    counted: float | None = Field(
        description="What admission would count for their allotments alone, in the figure of the budget; rounded up."
        " Null: infinite."
    )
    counted_exact: str | None = Field(description="counted as an exact number, where it is rational and short.")


class AllottedBody(BaseModel):
    """The parts of an account's budget, each in the figure that admission compares with the cap, counted alone.

    The parts add up to the cap, but for rounding, in budgets that are pure, zCDP or RDP. Those of an (epsilon, delta)
    budget do not add up.
    """

    accounts: int = Field(description="The number of allotted accounts that are charged to it, closed ones included.")
    spent: float | None = Field(
        description="Of committed releases, of the account and of those under it that share its budget. Null: infinite."
    )
    held: float | None = Field(description="Of reserved and proposed releases of these accounts. Null: infinite.")
    allotted: float | None = Field(
        description="Of the allotments: an open account's with its whole cap, whatever it has spent. Null: infinite."
    )
    free: float = Field(description="What is left of the cap; rounded down.")


def allotted_sum_member(account: AccountRecord) -> dict[str, Any]:
    """Return the members of an account's answer about allotments; nothing where there are none."""
    members: dict[str, Any] = {} if account.funding is None else {"funding": account.funding}
    if account.allotted is None:
        return members
    counted = spent_of_cap(account.budget, account.weights, account.allotted.totals)
    stated = {
        "accounts": account.allotted.accounts,
        "counted": None if counted is None else number_up(counted),
        "counted_exact": None if counted is None else short_exact(counted),
    }
    return members | {"allotted": stated}


def allotted_member(account: AccountRecord, held: Totals, window: PeriodSet | None) -> dict[str, Any]:
    """Return the member ``allotted`` of a balance; nothing where the account has never allotted.

    Args:
        account: with the totals that the balance is of.
        held: what is held in it; with periods, for all of them.
        window: the one that the balance is of; None: none, or of an account without periods.
    """
    if account.allotted is None:
        return {}
    if account.windows is not None:
        own = EMPTY if window is None else account.windows.present.get(window.ranges[0][0], EMPTY)
        held = add_totals(account.windows.common.held, own.held)
    spent = without_totals(account.of_releases, held)
    figures = {
        name: spent_of_cap(account.budget, account.weights, totals)
        for name, totals in (("spent", spent), ("held", held), ("allotted", account.allotted.totals))
    }
    stated = {name: None if figure is None else number_up(figure) for name, figure in figures.items()}
    free = number_down(remaining(account.budget, account.weights, account.totals))
    return {"allotted": {"accounts": account.allotted.accounts, **stated, "free": free}}
