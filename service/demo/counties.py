"""A bottom-up release: noise on the count of every county, then counts that meet the published totals of the states."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import httpx
import typer

from service.demo.client import ask, open_fresh_account
from service.demo.release import County, read_counties
from service.demo.text import percent, section, title

_ACCOUNT = {
    "name": "us-counties-2010",
    "unit": "person",
    "neighbouring": "add_remove",
    "budget": {"definition": "pure", "epsilon": "0.5"},
    "description": "Persons in the United States, by county",
}
_MECHANISM = {"type": "geometric", "name": "county", "epsilon": "0.5"}
_SHOWN = 10


class State(NamedTuple):
    """A state's counties: published, noisy, and adjusted to the state's published total; moe is of their noisy sum."""

    name: str
    counties: Sequence[County]
    noisy: Sequence[int]
    adjusted: Sequence[int]
    moe: int

    @property
    def published(self) -> int:
        """The state's total."""
        return sum(county.population for county in self.counties)


def show(client: httpx.Client, address: str) -> str:
    """The demo itself; returns the name of its account."""
    counties = read_counties()
    opened = open_fresh_account(client, _ACCOUNT)
    typer.echo(_opening(address, opened))
    drawn = ask(
        client,
        "POST",
        f"/v1/accounts/{opened['name']}/histograms",
        {
            "name": "counties, bottom-up",
            "mechanism": _MECHANISM,
            "dimensions": [{"name": "county", "values": [county.name for county in counties]}],
            "counts": [county.population for county in counties],
            "margins": [[]],
        },
    )
    typer.echo(_noisy(counties, drawn))
    states = _meet_state_totals(client, counties, drawn["cells"]["noisy"])
    typer.echo(_adjusted(states))
    return str(opened["name"])


def _meet_state_totals(client: httpx.Client, counties: Sequence[County], noisy: Sequence[int]) -> list[State]:
    """Post-processing state by state, of noisy counts and published totals only."""
    states: list[State] = []
    moes: dict[int, int] = {}
    first = 0
    for name, group in groupby(counties, key=lambda county: county.state):
        own = list(group)
        counts = list(noisy[first : first + len(own)])
        first += len(own)
        if len(own) not in moes:
            asked = {"mechanism": _MECHANISM, "summed_cells": len(own)}
            moes[len(own)] = ask(client, "POST", "/v1/accuracy", asked)["margins"][0]["moe"]
        total = sum(county.population for county in own)
        table = {"counts": counts, "shape": [len(own)], "totals": [{"axes": [], "values": [total]}]}
        adjusted = ask(client, "POST", "/v1/postprocessing/project", table)["counts"]
        states.append(State(name, own, counts, adjusted, moes[len(own)]))
    return states


def _opening(address: str, account: Mapping[str, Any]) -> str:
    return "\n".join(
        [
            title("County counts, bottom-up, that meet the totals of the states"),
            f"Service    {address}",
            f"Account    {account['name']}: epsilon = {account['budget']['epsilon']}, {account['neighbouring']}",
            "The true counts here are the published ones of the 2010 Census, as an example.",
        ]
    )


def _noisy(counties: Sequence[County], drawn: Mapping[str, Any]) -> str:
    cells, (total,) = drawn["cells"], drawn["margins"]
    published = sum(county.population for county in counties)
    within = sum(abs(n - c.population) <= cells["moe"] for c, n in zip(counties, cells["noisy"], strict=True))
    confidence = percent(drawn["confidence"])
    return "\n".join(
        [
            section(f"Noise on each of {len(counties):,} counties, and their sum (.../histograms)"),
            f"  one county      margin of error +/- {cells['moe']} at {confidence}; {within:,} are within it",
            f"  all of them     {total['noisy'][0]:,}, published {published:,}; margin +/- {total['moe']:,}",
        ]
    )


def _adjusted(states: Sequence[State]) -> str:
    lines = [
        section("Each state's counties, brought to its published total (.../project)"),
        f"  {'state':<22}{'counties':>9}{'published':>13}{'noisy sum':>13}  {'margin':<8}{'adjusted':>13}",
    ]
    for state in states[:_SHOWN]:
        sums = (state.published, sum(state.noisy), sum(state.adjusted))
        lines.append(
            f"  {state.name:<22}{len(state.counties):>9}{sums[0]:>13,}{sums[1]:>13,}  +/- {state.moe:<4}{sums[2]:>13,}"
        )
    met = sum(sum(state.adjusted) == state.published for state in states)
    cells = [count for state in states for count in state.adjusted]
    moved = max(abs(a - n) for state in states for a, n in zip(state.adjusted, state.noisy, strict=True))
    lines += [
        f"  ... and {len(states) - _SHOWN} more.",
        "",
        f"  {met} of {len(states)} totals are met exactly, by {len(cells):,} whole counts.",
        f"  The least of them is {min(cells):,}; no county was moved by more than {moved}.",
    ]
    return "\n".join(lines)
