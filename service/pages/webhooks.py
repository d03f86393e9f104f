"""The pages on which stewards list, make, change, test and delete webhooks, and read the log of their deliveries."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Response
from fastapi.responses import RedirectResponse

from service.api.routes.webhooks import EXPECTED_SHARE
from service.ledger.notifications.webhooks import EVENTS
from service.pages.account import refusal
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, get, send
from service.pages.shell.forms import Form, SentForm, number_of, text_of, texts_of
from service.pages.shell.layout import page
from service.pages.shell.typed_lists import words_of
from service.privacy.numerics.numbers import EXPECTED_NUMBER

router = APIRouter(prefix="/webhooks", include_in_schema=False)

_ROWS = 100
_NOTHING = {"name": "", "url": "", "mail": "", "accounts": "", "below": ""}
_TEXTS = {
    "release.proposed": "a release waits for approval",
    "release.approved": "a release was approved",
    "release.rejected": "a release was rejected",
    "release.expired": "a held release expired",
    "release.refused": "a release did not fit the budget",
    "change.proposed": "a change of an account, such as a greater budget, waits for approval",
    "change.approved": "a change of an account was approved",
    "change.rejected": "a change of an account was rejected",
    "budget.below": "less of a budget is left than the share that is stated below",
    "ledger.stopped": "the ledger was rolled back or altered, and a server stopped writing",
    "ledger.acknowledged": "an operator accepted an older ledger",
}
_NO_SHARE = "expected a share of the budget, such as 20 % or 0.2"
_NO_SHARES = (EXPECTED_NUMBER, EXPECTED_SHARE)
_AT = ["/name", "/url", "/mail", "/accounts", "/below", "/events"]
"""The pointers that have a field."""
WebhookStep = Annotated[str, Path()]


@router.get("")
async def show_webhooks(visit: SignedIn) -> Response:
    """Render the webhooks, oldest first."""
    return await _render(visit)


@router.post("")
async def make_webhook(visit: SignedIn, form: SentForm) -> Response:
    """Make a webhook and show its secret only this once; sending the same form again shows the same secret."""
    typed = _typed(form)
    wrong = await _wrong(visit, typed)
    if wrong:
        return await _render(visit, typed, faults=wrong)
    try:
        made = await send(visit, "POST", address("webhooks"), typed.body(), once=text_of(form, "once"))
    except Refused as refused:
        return await _render(visit, typed, refused)
    return await _render_one(visit, made["id"], made)


@router.get("/{webhook}")
async def show_webhook(webhook: WebhookStep, visit: SignedIn) -> Response:
    """Render a webhook with its deliveries, newest first, and the log of their tries."""
    return await _render_one(visit, webhook)


@router.post("/{webhook}/change")
async def change_webhook(webhook: WebhookStep, visit: SignedIn, form: SentForm) -> Response:
    """Change the name, the target, the events or the accounts of a webhook."""
    typed = _typed(form)
    wrong = await _wrong(visit, typed, webhook)
    if wrong:
        return await _render_one(visit, webhook, typed=typed, faults=wrong)
    try:
        await send(visit, "PATCH", address("webhooks", webhook), typed.body(), once=text_of(form, "once"))
    except Refused as refused:
        if not refused.faults:
            raise
        return await _render_one(visit, webhook, typed=typed, refused=refused)
    return _back(webhook, "changed")


@router.post("/{webhook}/test")
async def test_webhook(webhook: WebhookStep, visit: SignedIn, form: SentForm) -> Response:
    """Send a test message, and show the deliveries."""
    await send(visit, "POST", address("webhooks", webhook, "test"), once=text_of(form, "once"))
    return _back(webhook, "test")


@router.post("/{webhook}/active")
async def set_active(webhook: WebhookStep, visit: SignedIn, form: SentForm) -> Response:
    """Let a webhook get messages, or no more of them."""
    active = text_of(form, "active") == "yes"
    await send(visit, "PATCH", address("webhooks", webhook), {"active": active}, once=text_of(form, "once"))
    return _back(webhook, "active" if active else "inactive")


@router.post("/{webhook}/rotate")
async def rotate_webhook(webhook: WebhookStep, visit: SignedIn, form: SentForm) -> Response:
    """Rotate the secret of a webhook and show the new one only this once."""
    made = await send(visit, "POST", address("webhooks", webhook, "rotate"), once=text_of(form, "once"))
    return await _render_one(visit, webhook, made)


@router.post("/{webhook}/delete")
async def delete_webhook(webhook: WebhookStep, visit: SignedIn, form: SentForm) -> Response:
    """Delete a webhook."""
    await send(visit, "DELETE", address("webhooks", webhook), once=text_of(form, "once"))
    return RedirectResponse("/webhooks?done=deleted", 303)


@router.post("/{webhook}/deliveries/{delivery}/retry")
async def retry_delivery(
    webhook: WebhookStep, delivery: Annotated[str, Path()], visit: SignedIn, form: SentForm
) -> Response:
    """Try a message once more that has failed."""
    await send(visit, "POST", address("webhooks", webhook, "deliveries", delivery, "retry"), once=text_of(form, "once"))
    return _back(webhook, "retry")


class _Typed(NamedTuple):
    """The texts of a webhook's form, and the chosen events."""

    fields: dict[str, str]
    events: list[str]

    def body(self) -> dict[str, Any]:
        """Return the webhook as ``/v1`` takes it; a blank field is null."""
        lists = {name: words_of(self.fields[name]) or None for name in ("mail", "accounts")}
        texts = {name: self.fields[name] or None for name in ("url", "below")}
        return {"name": self.fields["name"], "events": self.events, **lists, **texts}


def _typed(form: Form) -> _Typed:
    fields = {name: text_of(form, name) for name in _NOTHING} | {"below": number_of(form, "below")}
    return _Typed(fields, texts_of(form, "events"))


def _typed_before(webhook: Mapping[str, Any]) -> _Typed:
    """Return the form that states a webhook as it is."""
    lists = {name: " ".join(webhook[name] or ()) for name in ("mail", "accounts")}
    return _Typed(
        {"name": webhook["name"], "url": webhook["url"] or "", "below": webhook["below"] or "", **lists},
        webhook["events"],
    )


async def _wrong(visit: Visit, typed: _Typed, webhook_id: str | None = None) -> dict[str, str]:
    """Return the faults that ``/v1`` would not find, or not say in the words of a form.

    They are that no event is chosen, and a name that another webhook has; a form that is sent again is the same
    webhook.
    """
    none = {} if typed.events else {"/events": "expected at least one event"}
    body = typed.body()
    same = ("url", "mail", "events", "accounts")
    for one in (await get(visit, address("webhooks"), {"limit": _ROWS}))["items"]:
        is_itself = one["id"] == webhook_id if webhook_id else all(one[name] == body[name] for name in same)
        if one["name"] == body["name"] and not is_itself:
            return none | {"/name": "expected a name that no other webhook of the list has"}
    return none


def _form(visit: Visit, typed: _Typed, faults: Mapping[str, str] | None, refused: Refused | None) -> dict[str, Any]:
    """Return the context of a webhook's form."""
    placed = refusal(refused, _AT) if faults is None else {"faults": faults}
    if placed["faults"].get("/below") in _NO_SHARES:
        placed["faults"] = {**placed["faults"], "/below": _NO_SHARE}
    return placed | {
        "given": typed.fields,
        "chosen": typed.events,
        "events": {event: _TEXTS[event] for event in EVENTS},
        "mail": visit.request.app.state.settings.smtp_host is not None or bool(typed.fields["mail"]),
    }


def _back(webhook: str, done: str) -> Response:
    return RedirectResponse(f"{address('webhooks', webhook).removeprefix('/v1')}?done={done}", 303)


async def _render_one(
    visit: Visit,
    webhook_id: str,
    made: Any = None,
    *,
    typed: _Typed | None = None,
    faults: Mapping[str, str] | None = None,
    refused: Refused | None = None,
) -> Response:
    parameters = visit.request.query_params
    query = {"limit": _ROWS, "cursor": parameters.get("cursor")}
    webhook = await get(visit, address("webhooks", webhook_id))
    found = await get(visit, address("webhooks", webhook_id, "deliveries"), query)
    shown = [one | {"content": json.dumps(one["payload"], indent=2, ensure_ascii=False)} for one in found["items"]]
    listed = {"deliveries": shown, "next_cursor": found["next_cursor"]}
    context = listed | {"webhook": webhook, "made": made, "done": parameters.get("done")}
    context |= _form(visit, typed or _typed_before(webhook), faults, refused)
    return page(visit.request, "webhook.html", context, status=_status(faults, refused))


async def _render(
    visit: Visit,
    typed: _Typed | None = None,
    refused: Refused | None = None,
    *,
    faults: Mapping[str, str] | None = None,
) -> Response:
    found = await get(visit, address("webhooks"), {"limit": _ROWS})
    shown = {"webhooks": found["items"], "done": visit.request.query_params.get("done")}
    form = _form(visit, typed or _Typed(_NOTHING, ["release.proposed"]), faults, refused)
    return page(visit.request, "webhooks.html", shown | form, status=_status(faults, refused))


def _status(faults: Mapping[str, str] | None, refused: Refused | None) -> int:
    return refused.status if refused else 422 if faults else 200
