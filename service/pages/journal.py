"""An account's journal, the newest entries first, and the verification of its chain."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fastapi import APIRouter, Response

from service.api.paging import write_cursor
from service.errors import InvalidInput
from service.ledger import entries
from service.pages.account import AccountStep
from service.pages.calls import Refused, Relayed, SignedIn, Visit, address, get
from service.pages.layout import page

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

_ROWS = 25


class _Named(NamedTuple):
    """What a row calls a release, and the account whose it is."""

    name: str
    owner: str


@router.get("/journal")
async def show_journal(account: AccountStep, visit: SignedIn) -> Response:
    """Entries up to one of them; with ``verify``, what verification says, also against a head that somebody kept."""
    path, asked = address("accounts", account), visit.request.query_params
    head = await get(visit, f"{path}/head")
    last = _number(asked.get("to")) or head["seq"]
    found = await get(visit, path)
    rows = await _entries(visit, path, last)
    kept = asked.get("head", "").strip()
    verdict, faults = None, {}
    try:
        if "verify" in asked:
            verdict = await get(visit, f"{path}/verify", {"head": kept or None})
    except Refused as refused:
        if not refused.faults:
            raise
        faults = refused.faults
    shown = {"account": found, "head": head, "entries": rows, "last": last, "rows": _ROWS}
    checked = {"named": _named(account, rows), "kept": kept, "verdict": verdict, "faults": faults}
    return page(visit.request, "journal.html", shown | checked, status=422 if faults else 200)


@router.get("/export")
async def export(account: AccountStep, visit: SignedIn) -> Response:
    """The export of the account and its family, as a file."""
    return Relayed(visit, f"{address('accounts', account)}/export", download=f"{account}.jsonl")


async def _entries(visit: Visit, path: str, last: int) -> list[dict[str, Any]]:
    """The rows up to an entry, the newest first, with what is shown of them: plans are let go of as they come."""
    rows: list[dict[str, Any]] = []
    cursor: str | None = write_cursor(max(0, last - _ROWS))
    number = min(_ROWS, last)
    while cursor is not None and len(rows) < number:
        listed = await get(visit, f"{path}/journal", {"limit": number - len(rows), "cursor": cursor})
        rows += map(_shown, listed["items"])
        cursor = listed["next_cursor"]
    return rows[::-1]


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "entry": {**row["entry"], "content": entries.show(row["entry"])}}


def _named(account: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, _Named]:
    """Releases by their id, where one of the rows says what they are called; what is drawn is the account's own."""
    named: dict[str, _Named] = {}
    for entry in (row["entry"] for row in rows):
        shown = entry["content"]
        if shown.name is not None:
            named[entry["release"]] = _Named(shown.name, shown.owner or account)
        elif shown.is_release:
            named.setdefault(entry["release"], _Named("a release", account))
    return named


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text)):
        raise InvalidInput.at("/query/to", "expected the number of an entry")
    return int(text)
