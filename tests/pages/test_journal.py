"""The page of an account's journal: which budget takes the place of which."""

import html
import re

from tests.api.calls import Client, json_of, open_account, operators_key


def _texts(shown: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", shown)).split())


def test_a_change_of_a_budget_says_from_what_to_what(api: Client, steward: Client) -> None:
    """A proposal is compared with the present budget, and so is what follows it."""
    open_account(api, "strict", approval_above="0.5")
    other = operators_key(api, "steward", "other")
    for cap, headers, status in (("0.5", None, 200), ("2", None, 202), ("2", other, 200)):
        body = {"budget": {"definition": "zcdp", "rho": cap}}
        json_of(api.patch("/v1/accounts/strict", json=body, headers=headers), status)
    shown = _texts(steward.get("/accounts/strict/journal").text)
    for line in (
        "account opened: ρ = 1 (",
        "budget changed: from ρ = 1 (zero-concentrated) to ρ = 0.5 (",
        "change proposed: from ρ = 0.5 (zero-concentrated) to ρ = 2 (",
        "budget changed: from ρ = 0.5 (zero-concentrated) to ρ = 2 (",
    ):
        assert line in shown
    later = _texts(steward.get("/accounts/strict/journal?to=2").text)
    assert "budget changed: from ρ = 1" in later
