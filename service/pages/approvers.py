"""The form on which stewards state an account's approvers."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from service.errors import InvalidInput
from service.pages.account import AccountStep, change, reason_of, show
from service.pages.shell.api_client import SignedIn
from service.pages.shell.approval_texts import approvers_of
from service.pages.shell.fault_texts import joined
from service.pages.shell.forms import SentForm, text_of

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

FIELDS = {"/approvers/at_least": "at_least", "/approvers/of": "approver_names", "/approvers": "at_least"}
"""The fields of faults, by the beginning of their pointers."""


@router.post("/approvers")
async def set_approvers(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """State the account's approvers."""
    typed = {name: text_of(form, name) for name in ("at_least", "approver_names")}
    fields = typed | {"approvers_reason": text_of(form, "reason")}
    try:
        body = approvers_of(typed["at_least"] or "1", typed["approver_names"], "/approvers/at_least") | reason_of(form)
        body["approvers_must_be_able"] = not text_of(form, "nevertheless")
    except InvalidInput as wrong:
        faults = {"at_least": wrong.faults[0].detail}
        return await show(visit, account, typed=fields, faults=faults, status=422)
    return await change(visit, account, fields, body, text_of(form, "once"), placed=_placed)


def field_of(pointer: str) -> str | None:
    """Return the form field of a fault of approvers; None: it has none."""
    return next((name for start, name in FIELDS.items() if pointer == start or pointer.startswith(f"{start}/")), None)


def _placed(typed: Mapping[str, str], faults: Mapping[str, str]) -> dict[str, Any]:
    """Return the context of a refused form: the reasons by field, and the pointers that have a field."""
    placed = {pointer: name for pointer in faults if (name := field_of(pointer)) is not None and name in typed}
    return {"faults": joined((name, faults[pointer]) for pointer, name in placed.items()), "shown_at": list(placed)}
