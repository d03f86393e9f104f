"""The pages that show and edit the metadata of accounts and releases, and preview the registry entry."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from service.ledger.access.key_records import Role
from service.pages.account import AccountStep
from service.pages.description_form import SECTIONS, Edit, edit_of, field_of, field_texts
from service.pages.releases import ReleaseStep
from service.pages.shell.api_client import WITHOUT_PLAN, Refused, SignedIn, TooLong, Visit, act, address, ask, get
from service.pages.shell.forms import LONGEST_TEXT, Form, SentForm, text_of
from service.pages.shell.layout import may, page

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

_OVERTAKEN = (
    "Another user changed this field after you opened the page. Nothing is saved yet. Your text is kept below; if you"
    " send it again, it replaces the other user's: "
)
_EMPTIED = "(no text)"
_MEANWHILE = {
    "type": "/problems/conflict",
    "title": "Another user has edited the description meanwhile",
    "detail": "Nothing was saved.",
}


@router.get("/description")
async def show_of_account(account: AccountStep, visit: SignedIn) -> Response:
    """Render the metadata of an account."""
    return await _render(visit, account, None)


@router.post("/description")
async def describe_account(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Change the metadata of an account."""
    return await _describe(visit, account, None, form)


@router.get("/releases/{release}/description")
async def show_of_release(account: AccountStep, release: ReleaseStep, visit: SignedIn) -> Response:
    """Render the metadata of a release."""
    return await _render(visit, account, release)


@router.post("/releases/{release}/description")
async def describe_release(account: AccountStep, release: ReleaseStep, visit: SignedIn, form: SentForm) -> Response:
    """Change the metadata of a release."""
    return await _describe(visit, account, release, form)


def _path(account: str, release: str | None) -> str:
    return address("accounts", account, *(() if release is None else ("releases", release)))


async def _describe(visit: Visit, account: str, release: str | None, form: Form) -> Response:
    edit, path = edit_of(lambda name: text_of(form, name, LONGEST_TEXT)), _path(account, release)
    present = field_texts((await get(visit, path, None if release is None else WITHOUT_PLAN))["metadata"])
    conflicting = edit.conflicting(present)
    if conflicting:
        faults = {name: _OVERTAKEN + (present[name] or _EMPTIED) for name in conflicting}
        return await _render(visit, account, release, edit.applied_to(present), faults, _MEANWHILE, status=409)
    try:
        await act(visit, "PATCH", path, {"metadata": edit.patch()}, once=text_of(form, "once"))
    except Refused as refused:
        faults = {field_of(pointer): detail for pointer, detail in refused.faults.items()}
        return await _render(visit, account, release, edit, faults, refused.problem, status=refused.status)
    return RedirectResponse(f"{visit.request.url.path}?done=described", 303)


async def _render(
    visit: Visit,
    account: str,
    release: str | None,
    edit: Edit | None = None,
    faults: Mapping[str, str] | None = None,
    problem: Mapping[str, Any] | None = None,
    *,
    status: int = 200,
) -> Response:
    path = _path(account, release)
    owner = await get(visit, address("accounts", account))
    subject = owner if release is None else await get(visit, path, WITHOUT_PLAN)
    edit = edit or Edit.none(field_texts(subject["metadata"]))
    try:
        entry = await ask(visit, "GET", f"{path}/registry-entry", headers=_AS_FILE)
    except TooLong:
        entry = None
    least: Role = "steward" if release is None else "pipeline"
    shown = {
        "account": owner,
        "release": None if release is None else subject,
        "at": visit.request.url.path.removesuffix("/description"),
        "sections": SECTIONS,
        "texts": edit.texts,
        "before": edit.before,
        "inherited": {} if release is None else field_texts(owner["metadata"]),
        "may_edit": may(visit.session.role, least),
        "entry": entry.body.decode() if entry is not None and entry.status == 200 else None,
        "lacking": None if entry is None or entry.status == 200 else json.loads(entry.body),
        "problem": problem,
        "faults": faults or {},
        "shown_at": [] if problem is None else [at for at in _pointers(problem) if field_of(at)],
        "done": visit.request.query_params.get("done"),
    }
    return page(visit.request, "description.html", shown, status=status)


def _pointers(problem: Mapping[str, Any]) -> list[str]:
    return [fault["pointer"] for fault in problem.get("errors", ())]


_AS_FILE = {"accept": "application/yaml"}
