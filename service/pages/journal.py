"""The page of an account's journal, newest entries first, and of the verification of its chain."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fastapi import APIRouter, Response

from service.api.http.paging import write_cursor
from service.errors import InvalidInput
from service.ledger.journal import entries
from service.pages.account import AccountStep
from service.pages.shell.api_client import Refused, Relayed, SignedIn, TooLong, Visit, address, get
from service.pages.shell.layout import page

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

_ROWS = 25


class _NamedRelease(NamedTuple):
    """The name of a release in a row, and the account that owns it."""

    name: str
    owner: str


@router.get("/journal")
async def show_journal(account: AccountStep, visit: SignedIn) -> Response:
    """Render the entries up to the number ``to``; with ``verify`` also verify the chain, and find ``head`` in it."""
    path, parameters = address("accounts", account), visit.request.query_params
    head = await get(visit, f"{path}/head")
    last = _number(parameters.get("to")) or head["seq"]
    account_body = await get(visit, path)
    rows = await _entries(visit, path, last)
    kept_head = parameters.get("head", "").strip()
    verdict, faults = None, {}
    try:
        if "verify" in parameters:
            verdict = await get(visit, f"{path}/verify", {"head": kept_head or None})
    except Refused as refused:
        if not refused.faults:
            raise
        faults = refused.faults
    shown = {"account": account_body, "head": head, "entries": rows, "last": last, "rows": _ROWS}
    checked = {
        "former": _former_budgets(rows),
        "named": _release_names(account, rows),
        "kept": kept_head,
        "verdict": verdict,
        "faults": faults,
    }
    return page(visit.request, "journal.html", shown | checked, status=422 if faults else 200)


@router.get("/export")
async def export(account: AccountStep, visit: SignedIn) -> Response:
    """Send the export of the account and its family as a file."""
    return Relayed(visit, f"{address('accounts', account)}/export", download=f"{account}.jsonl")


async def _entries(visit: Visit, path: str, last: int) -> list[dict[str, Any]]:
    """Return the rows up to an entry, newest first, with the shown fields only: plans are dropped once read.

    Where an answer is too long for a page, half as many entries are requested. An entry that is too long by itself has
    a row with its number only.
    """
    rows: list[dict[str, Any]] = []
    number = min(_ROWS, last)
    cursor: str | None = write_cursor(last - number)
    limit = number
    while cursor is not None and len(rows) < number:
        limit = min(limit, number - len(rows))
        try:
            page = await get(visit, f"{path}/journal", {"limit": limit, "cursor": cursor})
        except TooLong:
            if limit > 1:
                limit //= 2
                continue
            seq = last - number + len(rows) + 1
            page = {"items": [], "next_cursor": write_cursor(seq)}
            rows.append({"entry": {"seq": seq, "content": None}})
        rows += map(_render, page["items"])
        cursor = page["next_cursor"]
        limit *= 2
    return rows[::-1]


def _render(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "entry": {**row["entry"], "content": entries.show(row["entry"])}}


def _former_budgets(rows: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the budgets that the changes and proposals among rows have in their place, by the numbers of entries.

    The budget before the rows is not known, unless the first of them opened the account.
    """
    former, budget = {}, None
    for entry in sorted((row["entry"] for row in rows), key=lambda entry: entry["seq"]):
        shown = entry["content"]
        if shown is None or shown.budget is None:
            continue
        if budget is not None:
            former[entry["seq"]] = budget
        if entry["kind"] != "change_proposed":
            budget = shown.budget
    return former


def _release_names(account: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, _NamedRelease]:
    """Return the releases of the rows by their ids, each named if one of the rows has its name.

    Rows without a name, such as those of draws, are about releases of the account itself.
    """
    releases: dict[str, _NamedRelease] = {}
    for entry in (row["entry"] for row in rows):
        shown = entry["content"]
        if shown is None:
            continue
        if shown.name is not None:
            releases[entry["release"]] = _NamedRelease(shown.name, shown.owner or account)
        elif shown.is_release:
            releases.setdefault(entry["release"], _NamedRelease("a release", account))
    return releases


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text)):
        raise InvalidInput.at("/query/to", "expected the number of an entry")
    return int(text)
