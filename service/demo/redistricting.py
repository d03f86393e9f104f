"""The 2020 redistricting release registered, priced, and county counts drawn from it."""

import httpx
import typer

from service.demo import report
from service.demo.client import ask, open_fresh_account
from service.demo.release import ACCOUNT, budget_of, plan_of, read_allocation, read_counties

_MARGIN = {"mechanism": "discrete_gaussian", "moe": 6, "confidence": "0.95"}
_DRAWN = "County/total"
_ATTRIBUTE = "hispanic"


def show(client: httpx.Client, address: str) -> str:
    """The demo itself; returns the name of its account."""
    allocation, counties = read_allocation(), read_counties()
    opened = open_fresh_account(
        client,
        {
            "name": ACCOUNT,
            "unit": allocation["unit"],
            "neighbouring": allocation["neighbouring"],
            "budget": budget_of(),
            "description": allocation["title"],
        },
    )
    account = f"/v1/accounts/{opened['name']}"
    typer.echo(report.opening(address, opened))

    release = ask(
        client,
        "POST",
        f"{account}/releases",
        {
            "name": "2020 P.L. 94-171, US persons",
            "plan": plan_of(allocation),
            "tags": ["pl94"],
            "delta": allocation["delta"],
        },
    )
    levels = [level["geolevel"] for level in allocation["levels"]]
    spent = {tag: _spent(client, account, tag, allocation["delta"]) for tag in (*levels, _ATTRIBUTE)}
    typer.echo(report.registered(allocation, release, spent))
    typer.echo(report.cost(allocation, release))
    typer.echo(report.about(_ATTRIBUTE, spent[_ATTRIBUTE]))

    typer.echo(report.calibrated(ask(client, "POST", "/v1/calibrations/moe", _MARGIN)))

    counts = [county.population for county in counties]
    drawn = ask(client, "POST", f"{account}/releases/{release['id']}/draws", {"mechanism": _DRAWN, "counts": counts})
    typer.echo(report.drawn(counties, drawn))
    return str(opened["name"])


def _spent(client: httpx.Client, account: str, tag: str, delta: str) -> dict[str, object]:
    """GUARANTEE of what carries a tag."""
    balance = ask(client, "GET", f"{account}/balance", query={"tag": tag, "delta": delta})
    spent: dict[str, object] = balance["spent"]
    return spent
