"""Page for opening an account, for stewards."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from service.pages.budget_form import budget_of, refused_at, unused_figures
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, send
from service.pages.shell.forms import SentForm, text_of
from service.pages.shell.layout import may, page

router = APIRouter(prefix="/new-account", include_in_schema=False)

_NOTHING = {
    "name": "",
    "unit": "person",
    "neighbouring": "add_remove",
    "definition": "zcdp",
    "cap": "",
    "alpha": "",
    "delta": "",
    "declared": "",
    "parent": "",
    "funding": "shared",
    "approval_above": "",
    "description": "",
}


@router.get("")
async def show_form(visit: SignedIn) -> Response:
    """Render an empty form; ``parent`` is the parent account."""
    return _render(visit, _NOTHING | {"parent": visit.request.query_params.get("parent", "")})


@router.post("")
async def open_account(visit: SignedIn, form: SentForm) -> Response:
    """Open the account, once however often the form is sent, and show it."""
    typed = {name: text_of(form, name) for name in _NOTHING}
    faults = unused_figures(typed)
    if faults:
        return _render(visit, typed, {"faults": faults}, 422)
    body = {name: typed[name] for name in ("name", "unit", "neighbouring", "description")}
    optional = {name: typed[name] for name in ("parent", "approval_above", "funding") if typed[name]}
    request = {**body, **optional, "budget": budget_of(typed)}
    try:
        await send(visit, "POST", address("accounts"), request, once=text_of(form, "once"))
    except Refused as refused:
        context = refused_at(typed["definition"], typed, refused.faults)
        return _render(visit, typed, context | {"problem": refused.problem}, refused.status)
    return RedirectResponse(f"/accounts/{typed['name']}?done=opened", 303)


def _render(
    visit: Visit, typed: dict[str, str], refused: Mapping[str, Any] | None = None, status: int = 200
) -> Response:
    shown: dict[str, Any] = {"typed": typed, "faults": {}, "may_open": may(visit.session.role, "steward")}
    return page(visit.request, "new-account.html", shown | dict(refused or {}), status=status)
