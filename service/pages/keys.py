"""The page on which stewards list, create, rotate and revoke keys."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Response
from fastapi.responses import RedirectResponse

from service.ledger.storage import clock
from service.pages.account import refusal
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, get, send
from service.pages.shell.forms import SentForm, text_of
from service.pages.shell.layout import page
from service.pages.shell.typed_lists import words_of

router = APIRouter(prefix="/keys", include_in_schema=False)

_ROWS = 100
_OVERLAPS = {"PT1H": "an hour", "PT24H": "a day", "P7D": "a week", "P30D": "30 days"}
_NOTHING = {"name": "", "role": "pipeline", "accounts": "", "expires": ""}


class _Again(NamedTuple):
    """A form that repeats a request which was refused for keys that would not count: its address, fields and button."""

    action: str
    fields: Mapping[str, str]
    label: str


@router.get("")
async def show_keys(visit: SignedIn) -> Response:
    """Render the keys, oldest first."""
    return await _render(visit)


@router.post("")
async def make_key(visit: SignedIn, form: SentForm) -> Response:
    """Create a key and show it only in this answer; sending the same form again shows the same key.

    A key that accounts would refuse, although they list its principal as an approver, takes a second form.
    """
    fields = {name: text_of(form, name) for name in _NOTHING}
    body = {
        "name": fields["name"],
        "role": fields["role"],
        "accounts": words_of(fields["accounts"]) or None,
        "expires_at": f"{fields['expires']}T23:59:59Z" if fields["expires"] else None,
        "must_count": not text_of(form, "nevertheless"),
    }
    try:
        created = await send(visit, "POST", address("keys"), body, once=text_of(form, "once"))
    except Refused as refused:
        again = _Again("/keys", fields, "Make the key nevertheless")
        return await _render(visit, fields, refused=refused, again=again)
    return await _render(visit, made=created)


@router.post("/{key}/rotate")
async def rotate_key(key: Annotated[str, Path()], visit: SignedIn, form: SentForm) -> Response:
    """Create the successor of a key and show it as ``make_key`` does; the old key stays valid for a while."""
    overlap = text_of(form, "overlap")
    body = {"overlap": overlap, "must_count": not text_of(form, "nevertheless")}
    try:
        created = await send(visit, "POST", address("keys", key, "rotate"), body, once=text_of(form, "once"))
    except Refused as refused:
        again = _Again(f"/keys/{key}/rotate", {"overlap": overlap}, "Rotate the key nevertheless")
        return await _render(visit, refused=refused, again=again)
    return await _render(visit, made=created)


@router.post("/{key}/revoke")
async def revoke_key(key: Annotated[str, Path()], visit: SignedIn, form: SentForm) -> Response:
    """Revoke a key."""
    await send(visit, "DELETE", address("keys", key), once=text_of(form, "once"))
    return RedirectResponse("/keys?done=revoked", 303)


async def _render(
    visit: Visit,
    given: dict[str, str] | None = None,
    *,
    made: Any = None,
    refused: Refused | None = None,
    again: _Again | None = None,
) -> Response:
    parameters = visit.request.query_params
    keys = await get(visit, address("keys"), {"limit": _ROWS, "cursor": parameters.get("cursor")})
    shown = {"keys": keys["items"], "next_cursor": keys["next_cursor"], "given": given or _NOTHING, "made": made}
    context = shown | {"now": clock.now(), "done": parameters.get("done"), "overlaps": _OVERLAPS, "again": None}
    context |= refusal(refused, ["/name", "/role", "/accounts", "/expires_at"])
    if list(context["faults"]) == ["/must_count"]:  # which is asked about, and no fault of the form
        context |= {"problem": None, "again": again}
    return page(visit.request, "keys.html", context, status=refused.status if refused else 200)
