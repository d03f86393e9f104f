"""The pages on which stewards list, make, test and delete webhooks, and read the log of their deliveries."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import RedirectResponse

from service.ledger.notifications.webhooks import EVENTS
from service.pages.account import refusal
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, get, send
from service.pages.shell.forms import SentForm, text_of, texts_of, words_of
from service.pages.shell.layout import page

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
WebhookStep = Annotated[str, Path()]


@router.get("")
async def show_webhooks(visit: SignedIn) -> Response:
    """Render the webhooks, oldest first."""
    return await _render(visit)


@router.post("")
async def make_webhook(visit: SignedIn, form: SentForm) -> Response:
    """Make a webhook and show its secret only this once; sending the same form again shows the same secret."""
    fields = {name: text_of(form, name) for name in _NOTHING}
    events = texts_of(form, "events")
    body = {
        "name": fields["name"],
        "url": fields["url"] or None,
        "mail": words_of(fields["mail"]) or None,
        "events": events,
        "accounts": words_of(fields["accounts"]) or None,
        "below": fields["below"] or None,
    }
    try:
        made = await send(visit, "POST", address("webhooks"), body, once=text_of(form, "once"))
    except Refused as refused:
        return await _render(visit, fields, events, refused)
    return await _render_one(visit, made["id"], made)


@router.get("/{webhook}")
async def show_webhook(webhook: WebhookStep, visit: SignedIn) -> Response:
    """Render a webhook with its deliveries, newest first, and the log of their tries."""
    return await _render_one(visit, webhook)


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


def _back(webhook: str, done: str) -> Response:
    return RedirectResponse(f"{address('webhooks', webhook).removeprefix('/v1')}?done={done}", 303)


async def _render_one(visit: Visit, webhook_id: str, made: Any = None) -> Response:
    parameters = visit.request.query_params
    query = {"limit": _ROWS, "cursor": parameters.get("cursor")}
    webhook = await get(visit, address("webhooks", webhook_id))
    found = await get(visit, address("webhooks", webhook_id, "deliveries"), query)
    shown = [one | {"content": json.dumps(one["payload"], indent=2, ensure_ascii=False)} for one in found["items"]]
    listed = {"deliveries": shown, "next_cursor": found["next_cursor"]}
    context = listed | {"webhook": webhook, "made": made, "done": parameters.get("done")}
    return page(visit.request, "webhook.html", context)


async def _render(
    visit: Visit,
    given: dict[str, str] | None = None,
    chosen: list[str] | None = None,
    refused: Refused | None = None,
) -> Response:
    found = await get(visit, address("webhooks"), {"limit": _ROWS})
    shown = {"webhooks": found["items"], "done": visit.request.query_params.get("done")}
    chosen = ["release.proposed"] if chosen is None else chosen
    form = {"given": given or _NOTHING, "chosen": chosen, "events": {event: _TEXTS[event] for event in EVENTS}}
    mail = visit.request.app.state.settings.smtp_host is not None
    context = shown | form | {"mail": mail} | refusal(refused)
    return page(visit.request, "webhooks.html", context, status=refused.status if refused else 200)
