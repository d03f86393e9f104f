"""The pages of one account: spending, reservations, history, pending decisions and pictures."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Response
from fastapi.responses import RedirectResponse
from markupsafe import Markup

from service.api.http.list_answers import table_text
from service.api.schemas.guarantees import usual_delta_text
from service.api.schemas.whole_budgets import plan_of_whole
from service.errors import NotFound
from service.ledger.accounts.budgets import delta_of_whole, read_budget, usual_delta
from service.pages.budget_form import budget_of, fields_of, growth_text, refused_at
from service.pages.period_strip import read_strip
from service.pages.release_search import BRIEFLY, search
from service.pages.shell.api_client import Refused, Relayed, SignedIn, Visit, address, get, send
from service.pages.shell.fault_texts import joined
from service.pages.shell.figures import best_epsilon
from service.pages.shell.forms import Form, SentForm, number_of, text_of
from service.pages.shell.layout import may, page
from service.pages.shell.whole_tables import as_file
from service.pages.spending_pace import pace_of
from service.privacy.numerics.numbers import exact_text

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

AccountStep = Annotated[str, Path()]
MOST_TAGS = 20
_OF_TAG = (
    "tag", "spent.zcdp.rho", "spent.pure.epsilon", "spent.best", "spent.delta", "reserved.zcdp.rho",
    "reserved.pure.epsilon", "reserved.best", "reserved.delta", "releases",
)  # fmt: skip
_POINTS = 120
_WAITING = 20
_BELOW = 50
_SHORT_JOURNAL = 20_000  # entries that are replayed in a moment; a longer history is shown on request only
_PICTURES: dict[str, tuple[str, dict[str, str | int]]] = {
    "profile": ("balance", {"picture": "profile"}),
    "rdp": ("balance", {"picture": "rdp"}),
}
_PROPOSED = ("budget", "state", "caps", "approvers")
"""The members of an account's change that other persons approve."""
_NO_CAP = {
    "tag": "",
    "tagged_definition": "zcdp",
    **dict.fromkeys(("tagged_cap", "tagged_alpha", "tagged_delta", "tagged_declared", "tagged_reason"), ""),
}
_NO_REASONS = dict.fromkeys(
    ("budget_reason", "approval_reason", "approvers_reason", "state_reason", "reject_reason"), ""
)


@router.get("")
async def show_account(account: AccountStep, visit: SignedIn) -> Response:
    """Render an account's overview page."""
    return await show(visit, account)


@router.post("/state")
async def change_state(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Close or reopen the account."""
    body = {"state": text_of(form, "state")}
    typed = {"state_reason": text_of(form, "reason")}
    return await change(visit, account, typed, body | reason_of(form), text_of(form, "once"), body["state"])


@router.post("/budget")
async def change_budget(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Change the figures of the account's budget; a greater one takes a reason and a tick for the very figures."""
    account_body = await get(visit, address("accounts", account))
    present = fields_of(account_body["budget"])
    typed = present | {name: number_of(form, name) for name in ("cap", "delta", "declared") if name in form.texts}
    body = {"budget": budget_of(typed)} | reason_of(form)
    growth = growth_text(present, typed)
    typed["budget_reason"] = text_of(form, "reason")
    confirmed = text_of(form, "greater") == growth
    if growth and may(visit.session.role, "steward") and not (confirmed and typed["budget_reason"]):
        faults = {"budget_reason": "expected why the budget has to be greater"} if confirmed else {}
        return await show(visit, account, typed=typed, status=422, growth=growth, faults=faults)
    return await change(visit, account, typed, body, text_of(form, "once"))


@router.post("/approval")
async def change_approval(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Set the loss above which a release needs the approval of other persons."""
    body = {"approval_above": number_of(form, "approval_above")}
    typed = body | {"approval_reason": text_of(form, "reason")}
    return await change(visit, account, typed, body | reason_of(form), text_of(form, "once"))


@router.post("/approve")
async def approve_change(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Request the change that another steward proposed, unless another one waits than was shown."""
    proposed = (await get(visit, address("accounts", account)))["proposed_change"] or {}
    if str(proposed.get("seq")) != text_of(form, "proposal"):
        return RedirectResponse(f"/accounts/{account}?done=late", 303)
    body = {member: proposed[member] for member in _PROPOSED if proposed.get(member) is not None}
    return await change(visit, account, {}, body | reason_of(form), text_of(form, "once"), body.get("state", "changed"))


@router.post("/reject")
async def reject_change(account: AccountStep, visit: SignedIn, form: SentForm) -> Response:
    """Reject the change of the account that waits, unless it has changed since it was shown."""
    proposal, reason = text_of(form, "proposal"), text_of(form, "reason")
    is_number = proposal.isascii() and proposal.isdigit() and len(proposal) < 16
    body = {"proposal": int(proposal) if is_number else proposal, "reason": reason}
    try:
        await send(visit, "POST", f"{address('accounts', account)}/reject", body, once=text_of(form, "once"))
    except Refused as refused:
        faults = {"reject_reason": refused.faults["/reason"]} if "/reason" in refused.faults else {}
        context = {"problem": refused.problem, "faults": faults, "shown_at": ["/reason"] if faults else []}
        return await show(visit, account, typed={"reject_reason": reason}, status=refused.status, **context)
    return RedirectResponse(f"/accounts/{account}?done=rejected", 303)


def reason_of(form: Form) -> dict[str, str]:
    """Return the member of a change that states its reason; none if the steward gave none."""
    reason = text_of(form, "reason")
    return {"reason": reason} if reason else {}


class FaultPlacement(Protocol):
    """A function that finds the form field of each fault."""

    def __call__(self, typed: Mapping[str, str], faults: Mapping[str, str]) -> dict[str, Any]:
        """Return the context of a refused form: the reasons by field, and the pointers that have a field."""


async def change(
    visit: Visit,
    account: str,
    typed: dict[str, str],
    body: dict[str, Any],
    idempotency_key: str,
    done: str = "changed",
    *,
    placed: FaultPlacement | None = None,
) -> Response:
    """Request a change of an account; if it is refused, show its page with the fault of each field.

    Args:
        visit: the request of the signed-in user.
        account: the name of the account.
        typed: the form's texts, shown again after a refusal.
        body: the change, as ``/v1`` expects it.
        idempotency_key: identifies the form, so that sending it again has no further effect.
        done: the outcome that the account's page reports.
        placed: finds the field of each fault; None: the form is the one of the budget.
    """
    try:
        changed = await send(visit, "PATCH", address("accounts", account), body, once=idempotency_key)
    except Refused as refused:
        context = {"problem": refused.problem} | (placed(typed, refused.faults) if placed else {})
        if placed is None:
            definition = (await get(visit, address("accounts", account)))["budget"]["definition"]
            context |= refused_at(definition, typed, refused.faults)
        return await show(visit, account, typed=typed, status=refused.status, **context)
    waits = changed.get("proposed_change") is not None and "approval_above" not in body
    if waits and visit.session.name != changed["proposed_change"]["proposed_by"]:
        done = "approved"
    elif waits:
        done = "proposed"
    return RedirectResponse(f"/accounts/{account}?done={done}", 303)


async def show(
    visit: Visit, account: str, *, typed: Mapping[str, str] | None = None, status: int = 200, **context: Any
) -> Response:
    """Render an account's overview page; after a refusal, with the texts of the refused form."""
    path = address("accounts", account)
    account_body = await get(visit, path, {"with_gauge": "true", "with_obstacle": "true"})
    with_history = account_body["head"]["seq"] <= _SHORT_JOURNAL or "history" in visit.request.query_params
    balance, whole, below, proposed, reserved = await asyncio.gather(
        get(visit, f"{path}/balance"),
        of_whole_budget(visit, account_body["budget"]),
        get(visit, address("accounts"), {"parent": account, "limit": _BELOW, "with_gauge": "true"}),
        get(visit, f"{path}/releases", {"state": "proposed", "limit": _WAITING, **BRIEFLY, "with_obstacle": "true"}),
        get(visit, f"{path}/releases", {"state": "reserved", "limit": _WAITING, **BRIEFLY}),
    )
    if "periods" in account_body:
        context |= {"strip": await read_strip(visit, account_body)}
        account_body |= _as_worst_window(account_body, balance)
    proposed_budget = (account_body["proposed_change"] or {}).get("budget")
    of_proposed = None if proposed_budget is None else await of_whole_budget(visit, proposed_budget)
    shown: dict[str, Any] = {
        "account": account_body,
        "balance": balance,
        "of_whole_budget": whole,
        "of_proposed_budget": of_proposed,
        "shown_at_delta": usual_delta_text(account_body["budget"]),
        "history": await _history(visit, path) if with_history else None,
        "below": below["items"],
        "more_below": below["next_cursor"],
        "typed": fields_of(account_body["budget"])
        | {"approval_above": account_body["approval_above"] or ""}
        | _approvers_fields(account_body.get("approvers"))
        | _NO_CAP
        | _NO_REASONS
        | dict(typed or {}),
        "proposed": None if proposed_budget is None else fields_of(proposed_budget),
        "waiting": [*proposed["items"], *reserved["items"]],
        "more_waiting": bool(proposed["next_cursor"] or reserved["next_cursor"]),
        "faults": {},
        "strip": None,
        "growth": "",
        "done": visit.request.query_params.get("done"),
    }
    return page(visit.request, "account.html", shown | context, status=status)


def _approvers_fields(approvers: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the texts of the form of approvers."""
    if approvers is None:
        return {"at_least": "", "approver_names": ""}
    return {"at_least": str(approvers["at_least"]), "approver_names": "\n".join(approvers.get("of") or ())}


async def of_whole_budget(visit: Visit, budget: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the epsilon and delta that bound all releases once a budget is spent; None if no epsilon does."""
    definition = budget["definition"]
    if definition in ("approximate", "pure"):
        return {"epsilon": budget["epsilon"], "delta": budget.get("delta")}
    stated = read_budget(dict(budget))
    delta = exact_text(delta_of_whole(stated, usual_delta(stated)))
    return best_epsilon(
        await send(visit, "POST", address("compositions"), {"plan": plan_of_whole(stated), "deltas": [delta]})
    )


def _as_worst_window(account: Mapping[str, Any], balance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the worst window's figures that replace an (epsilon, delta) account's bounds of all its windows.

    Empty for the other definitions.
    """
    if account["budget"]["definition"] != "approximate":
        return {}
    return {"remaining": balance["remaining"], "counted_exact": None}


async def _history(visit: Visit, path: str) -> Any:
    """Return the spending history with its picture, in one request: a second one would read the journal again."""
    history = await get(visit, f"{path}/history", {"points": _POINTS, "with_picture": "true"})
    picture = history.pop("picture")
    shown = {"drawn": Markup(picture[picture.index("<svg ") :])}  # noqa: S704 - texts in it are escaped where it is drawn
    saved = f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"
    return history | shown | {"picture": saved, "pace": pace_of(history["points"], datetime.now(UTC))}


@router.get("/pictures/{which}.svg")
async def picture(account: AccountStep, which: Annotated[str, Path()], visit: SignedIn) -> Response:
    """Relay a picture of the overview page from ``/v1``."""
    if which not in _PICTURES:
        raise NotFound("picture", which)
    resource, query = _PICTURES[which]
    return Relayed(visit, f"{address('accounts', account)}/{resource}", query, accept="image/svg+xml")


@router.get("/releases")
async def show_releases(account: AccountStep, visit: SignedIn) -> Response:
    """Render the account's releases, each with its cost."""
    path = address("accounts", account)
    account_body, found = await asyncio.gather(get(visit, path), search(visit, f"{path}/releases"))
    family = {name: text for name, text in found["asked"].items() if text and name != "state"}
    shown = {"account": account_body, "family_query": family, **found}
    return page(visit.request, "releases.html", shown, status=422 if found["faults"] else 200)


@router.get("/tags")
async def show_tags(account: AccountStep, visit: SignedIn) -> Response:
    """Render the account's spending and reservations by tag."""
    account_body, (whole, by_tag) = await asyncio.gather(
        get(visit, address("accounts", account)), _balances(visit, account)
    )
    shown = {"account": account_body, "whole": whole, "by_tag": by_tag, "unseen": len(whole["tags"]) - len(by_tag)}
    return page(visit.request, "tags.html", shown)


@router.get("/tags.csv")
async def tags_table(account: AccountStep, visit: SignedIn) -> Response:
    """Send the same as a file; a line without a tag has the whole balance."""
    whole, by_tag = await _balances(visit, account)
    lines = [{"tag": tag} | balance for tag, balance in [*by_tag, (None, whole)]]
    return as_file("".join(table_text(_OF_TAG, lines)), f"{account}-tags.csv")


async def _balances(visit: Visit, account: str) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the account's balance, and that of each of its first tags."""
    path = f"{address('accounts', account)}/balance"
    whole = await get(visit, path)
    tags = whole["tags"][:MOST_TAGS]
    balances: list[Any] = await asyncio.gather(*(get(visit, path, {"tag": tag}) for tag in tags))
    return whole, list(zip(tags, balances, strict=True))


@router.get("/registry-entry")
async def registry_entry(account: AccountStep, visit: SignedIn) -> Response:
    """Send the account's registry entry as a file; without the required metadata, the answer lists what is missing."""
    path = f"{address('accounts', account)}/registry-entry"
    return Relayed(visit, path, accept="application/yaml", download=f"{account}.yaml")


def refusal(refused: Refused | None, at: Sequence[str]) -> dict[str, Any]:
    """Return the context of a refused form: the problem, its faults by JSON pointer, and the pointers of fields.

    A fault of one of a field's list, such as ``/accounts/1``, is one of the field.
    """
    if refused is None:
        return {"faults": {}, "shown_at": at}
    fields = {one: next((field for field in at if f"{one}/".startswith(f"{field}/")), one) for one in refused.faults}
    return {
        "problem": refused.problem,
        "faults": joined((fields[pointer], detail) for pointer, detail in refused.faults.items()),
        "shown_at": [pointer for pointer, field in fields.items() if field in at],
    }
