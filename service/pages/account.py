"""One account: what is spent and held, how it came to that, what waits for somebody, and its pictures."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import RedirectResponse

from service.pages.calls import Refused, Relayed, SignedIn, Visit, address, get, send
from service.pages.forms import read_form, text_of
from service.pages.layout import page

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

AccountStep = Annotated[str, Path()]
MOST_TAGS = 20
_POINTS = 60
_WAITING = 20
_ROWS = 50
_SVG = "image/svg+xml"
_STATES = ("proposed", "reserved", "committed", "voided", "expired")


@router.get("")
async def show_account(account: AccountStep, visit: SignedIn) -> Response:
    """The overview."""
    return await _overview(visit, account)


@router.post("/state")
async def change_state(account: AccountStep, visit: SignedIn) -> Response:
    """Close or reopen it."""
    form = await read_form(visit)
    body = {"state": text_of(form, "state")}
    try:
        await send(visit, "PATCH", address("accounts", account), body, once=text_of(form, "once"))
    except Refused as refused:
        return await _overview(visit, account, refused)
    return RedirectResponse(f"/accounts/{account}?done={body['state']}", 303)


async def _overview(visit: Visit, account: str, refused: Refused | None = None) -> Response:
    path = address("accounts", account)
    found = await get(visit, path)
    balance, history, proposed, reserved = await asyncio.gather(
        get(visit, f"{path}/balance"),
        get(visit, f"{path}/history", {"points": _POINTS}),
        get(visit, f"{path}/releases", {"state": "proposed", "limit": _WAITING}),
        get(visit, f"{path}/releases", {"state": "reserved", "limit": _WAITING}),
    )
    shown = {
        "account": found,
        "balance": balance,
        "history": history,
        "waiting": [*proposed["items"], *reserved["items"]],
        "more_waiting": bool(proposed["next_cursor"] or reserved["next_cursor"]),
        "done": visit.request.query_params.get("done"),
    }
    return page(visit.request, "account.html", shown | refusal(refused), status=refused.status if refused else 200)


@router.get("/history.svg")
async def history_picture(account: AccountStep, visit: SignedIn) -> Response:
    """The burn-down."""
    return Relayed(visit, f"{address('accounts', account)}/history", {"points": 1000}, accept=_SVG)


@router.get("/balance.svg")
async def balance_picture(account: AccountStep, visit: SignedIn) -> Response:
    """The privacy profile and the RDP curve of what is spent."""
    return Relayed(visit, f"{address('accounts', account)}/balance", accept=_SVG)


@router.get("/releases")
async def show_releases(account: AccountStep, visit: SignedIn) -> Response:
    """Its releases with what each costs."""
    path, asked = address("accounts", account), visit.request.query_params
    state = asked.get("state") if asked.get("state") in _STATES else None
    query = {"limit": _ROWS, "cursor": asked.get("cursor"), "state": state, "tag": asked.get("tag") or None}
    found, listed = await asyncio.gather(get(visit, path), get(visit, f"{path}/releases", query))
    shown = {"account": found, "releases": listed["items"], "next_cursor": listed["next_cursor"], "states": _STATES}
    return page(visit.request, "releases.html", shown | {"state": state or "", "tag": asked.get("tag", "")})


@router.get("/tags")
async def show_tags(account: AccountStep, visit: SignedIn) -> Response:
    """What it spent and holds, by tag."""
    path = address("accounts", account)
    found, whole = await asyncio.gather(get(visit, path), get(visit, f"{path}/balance"))
    tags = whole["tags"][:MOST_TAGS]
    balances: list[Any] = await asyncio.gather(*(get(visit, f"{path}/balance", {"tag": tag}) for tag in tags))
    by_tag = list(zip(tags, balances, strict=True))
    shown = {"account": found, "whole": whole, "by_tag": by_tag, "unseen": len(whole["tags"]) - len(tags)}
    return page(visit.request, "tags.html", shown)


def refusal(refused: Refused | None) -> dict[str, Any]:
    """What a page shows of a form that was refused: the problem, and what is wrong at which field."""
    return {} if refused is None else {"problem": refused.problem, "faults": refused.faults}
