"""A survey with room in its budget, and with a release that waits for approval, for the sandbox."""

from typing import Any

import httpx

from service.demo.client import ask

ACCOUNT = {
    "name": "household-survey",
    "unit": "household",
    "neighbouring": "add_remove",
    "budget": {"definition": "zcdp", "rho": "1"},
    "approval_above": "0.1",
    "description": "A survey of incomes and rents, with sample releases",
}
_RELEASES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Incomes by region", "0.05", {}),
    ("Rents by region", "0.02", {"reserve_for": "P7D"}),
    ("Incomes by municipality", "0.25", {}),  # above the threshold: a proposal
)


def open_account(steward: httpx.Client, pipeline: httpx.Client) -> None:
    """Open the account as its steward, and register the releases as its pipeline."""
    ask(steward, "POST", "/v1/accounts", ACCOUNT)
    for name, rho, further in _RELEASES:
        plan: dict[str, Any] = {"type": "discrete_gaussian", "rho": rho}
        ask(pipeline, "POST", f"/v1/accounts/{ACCOUNT['name']}/releases", {"name": name, "plan": plan, **further})
