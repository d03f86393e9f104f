"""The form on which stewards set an account's caps on tags."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from service.pages.account import AccountStep, change, reason_of, show
from service.pages.budget_form import FIGURES, budget_of, field_of, unused_figures
from service.pages.shell.api_client import SignedIn
from service.pages.shell.forms import SentForm, number_of, text_of

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)


@router.post("/caps")
async def set_cap(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Set a cap on one tag."""
    typed = {name: number_of(form, f"tagged_{name}") for name in FIGURES}
    tag = text_of(form, "tag")
    fields = {"tag": tag} | {f"tagged_{name}": text for name, text in typed.items()}
    unused = {f"tagged_{name}": fault for name, fault in unused_figures(typed).items()}
    if unused:
        return await show(visit, account, typed=fields, faults=unused, status=422)
    body = {"caps": [{"tag": tag, "budget": budget_of(typed)}]} | reason_of(form)
    fields["tagged_reason"] = text_of(form, "reason")
    return await change(visit, account, fields, body, text_of(form, "once"), placed=_placed)


def _placed(typed: Mapping[str, str], faults: Mapping[str, str]) -> dict[str, Any]:
    """Return the context of a refused form: the reasons by field, and the pointers that have a field."""
    prefix = "/caps/0/"
    fields = {}
    for pointer in faults:
        rest = "/" + pointer.removeprefix(prefix)
        name = field_of(typed["tagged_definition"], rest)
        fields[pointer] = name if name == "tag" else f"tagged_{name}"
    placed = {pointer: name for pointer, name in fields.items() if pointer.startswith(prefix) and name in typed}
    return {"faults": {name: faults[pointer] for pointer, name in placed.items()}, "shown_at": list(placed)}
