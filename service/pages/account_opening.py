"""The page on which stewards open an account."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from service.errors import InvalidInput
from service.pages.approvers import field_of
from service.pages.budget_form import budget_of, refused_at, unused_figures
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, send
from service.pages.shell.approval_texts import approvers_of
from service.pages.shell.fault_texts import joined
from service.pages.shell.forms import SentForm, number_of, text_of
from service.pages.shell.layout import may, page
from service.pages.shell.period_texts import offsets_of

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
    "at_least": "",
    "approver_names": "",
    "description": "",
    "calendar": "",
    "offsets": "",
}
_NUMBERS = ("cap", "alpha", "delta", "declared", "approval_above")
_CALENDARS = [
    ("", "none: the budget holds for all time"),
    ("day", "days"),
    ("week", "weeks"),
    ("month", "months"),
    ("quarter", "quarters"),
    ("year", "years"),
    ("index", "waves or panels, by their numbers"),
]


@router.get("")
async def show_form(visit: SignedIn) -> Response:
    """Render an empty form; the query can name the parent account."""
    return _render(visit, _NOTHING | {"parent": visit.request.query_params.get("parent", "")})


@router.post("")
async def open_account(visit: SignedIn, form: SentForm) -> Response:
    """Open the account and redirect to its page; sending the same form again has no further effect."""
    typed = {name: number_of(form, name) if name in _NUMBERS else text_of(form, name) for name in _NOTHING}
    faults = unused_figures(typed) | _period_faults(typed) | _approver_faults(typed)
    if faults:
        return _render(visit, typed, {"faults": faults}, 422)
    body = {name: typed[name] for name in ("name", "unit", "neighbouring", "description")}
    optional = {name: typed[name] for name in ("parent", "approval_above", "funding") if typed[name]}
    request = {**body, **optional, **_periods_of(typed), **_approvers_of(typed), "budget": budget_of(typed)}
    request["approvers_must_be_able"] = not text_of(form, "nevertheless")
    try:
        await send(visit, "POST", address("accounts"), request, once=text_of(form, "once"))
    except Refused as refused:
        context = refused_at(
            typed["definition"],
            typed,
            joined((_field_pointer(pointer), detail) for pointer, detail in refused.faults.items()),
        )
        shown_at = [pointer for pointer in refused.faults if _field_pointer(pointer) in context["shown_at"]]
        return _render(visit, typed, context | {"problem": refused.problem, "shown_at": shown_at}, refused.status)
    return RedirectResponse(f"/accounts/{typed['name']}?done=opened", 303)


def _approvers_of(typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the request's member ``approvers``; empty if none are stated.

    Raises:
        InvalidInput: the number of persons is none.
    """
    return approvers_of(typed["at_least"], typed["approver_names"], "/at_least")


def _approver_faults(typed: Mapping[str, str]) -> dict[str, str]:
    """Return the faults of approvers that are found before the request, by field."""
    try:
        stated = _approvers_of(typed)
    except InvalidInput as wrong:
        return {"at_least": wrong.faults[0].detail}
    if stated and not typed["approval_above"]:
        return {"approval_above": "expected the loss above which the approvers must approve"}
    return {}


def _period_faults(typed: Mapping[str, str]) -> dict[str, str]:
    """Return the faults of calendar and offsets that are found before the request, by field."""
    if typed["offsets"] and not typed["calendar"]:
        return {"calendar": "expected a calendar, as offsets are given"}
    if typed["calendar"] and not typed["offsets"]:
        return {"offsets": "expected the periods in which one unit can be, such as 0, or 0-3, 12-15"}
    try:
        _periods_of(typed)
    except InvalidInput as wrong:
        return {"offsets": wrong.faults[0].detail}
    return {}


def _periods_of(typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the request's member ``periods``; empty if no calendar was chosen.

    Raises:
        InvalidInput: the offsets are not whole numbers or ranges of them, or there are too many.
    """
    if not typed["calendar"]:
        return {}
    participation = {"offsets": offsets_of(typed["offsets"], "/offsets")}
    return {"periods": {"calendar": typed["calendar"], "participation": participation}}


def _field_pointer(pointer: str) -> str:
    """Return the pointer of a fault as if the form's fields were members of the request itself."""
    of_approvers = field_of(pointer)
    if of_approvers is not None:
        return f"/{of_approvers}"
    if not pointer.startswith("/periods"):
        return pointer
    return "/calendar" if pointer.startswith("/periods/calendar") else "/offsets"


def _render(
    visit: Visit, typed: dict[str, str], refused: Mapping[str, Any] | None = None, status: int = 200
) -> Response:
    shown: dict[str, Any] = {"typed": typed, "faults": {}, "calendars": _CALENDARS}
    shown |= {"may_open": may(visit.session.role, "steward")}
    return page(visit.request, "new-account.html", shown | dict(refused or {}), status=status)
