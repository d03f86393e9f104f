"""Routes of webhooks and their deliveries; for stewards only."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Request, Response
from pydantic import AfterValidator, BaseModel, Field, StrictBool
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy import Connection

from service.api.http.dependencies import (
    Change,
    Changing,
    CurrentDatabase,
    CurrentSecret,
    in_writers,
    ok,
    respond,
)
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_cursor, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.routes.accounts import AccountName
from service.api.schemas import patterns
from service.api.schemas.exact_numbers import Exact, Label, Short
from service.errors import Conflict, Fault, Forbidden, InvalidInput
from service.ledger.access.authentication import Principal
from service.ledger.access.key_events import require_valid, see_keys
from service.ledger.idempotent_write import Operation
from service.ledger.notifications import deliveries, targets, webhook_changes, webhooks
from service.ledger.notifications.deliveries import DeliveryRecord, Message, Try
from service.ledger.notifications.webhooks import OF_LEDGER, Event, WebhookRecord
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Answer
from service.settings import MAIL_ADDRESS
from service.urls import is_confidential

router = APIRouter(prefix="/v1/webhooks", route_class=StrictRoute)


def _target(url: str) -> str:
    parts = urlsplit(url) if is_confidential(url) else None
    if parts is None or "@" in parts.netloc or "#" in url or parts.netloc.endswith(":") or _port(url) == 0:
        raise ValueError("expected a URL with https (http only on this machine), without a password and without #")
    return url


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return 0


Target = Annotated[str, Field(max_length=2000, pattern=patterns.URL), AfterValidator(_target)]
Recipients = Annotated[list[Annotated[str, Field(max_length=254, pattern=MAIL_ADDRESS)]], Field(max_length=20)]
Accounts = Annotated[list[AccountName], Field(min_length=1, max_length=1000)]
Events = Annotated[list[Event], Field(min_length=1, max_length=len(webhooks.EVENTS))]
_ACCOUNTS = "The only accounts that messages are about, which may be opened later; null: all, and the installation."
EXPECTED_SHARE = "expected a number above 0 and below 1"
_BELOW = (
    "The share of an account's budget, above 0 and below 1, for budget.below: when less than that is left, one message"
    " is sent, and another one only after more was left again."
)
_URL = "The address that messages are posted to: https, and in no private network that the operator has not allowed."
_PAYLOAD = (
    "The message as it is sent. The last one within an hour's limit, 20 about one event of one account or 1,000 in all,"
    " has last_of_hour: true in data, the last of the 1,000 of_all_accounts: true too: journals tell of later events."
)
_MAIL = "The addresses that messages are mailed to, instead of a URL."


class MakeWebhook(Short):
    """A target of notifications: either url or mail."""

    name: Label
    url: Target | None = Field(None, description=_URL)
    mail: Recipients | None = Field(None, min_length=1, description=_MAIL)
    events: Events
    accounts: Accounts | None = Field(None, description=_ACCOUNTS)
    below: Exact | None = Field(None, description=_BELOW)


class ChangeWebhook(Short):
    """The fields to change; others stay as they are."""

    name: Label | SkipJsonSchema[None] = None
    url: Target | None = Field(None, description=_URL)
    mail: Recipients | None = Field(None, min_length=1, description=_MAIL)
    events: Events | SkipJsonSchema[None] = None
    accounts: Accounts | None = Field(None, description=_ACCOUNTS)
    below: Exact | None = Field(None, description=_BELOW)
    active: StrictBool | SkipJsonSchema[None] = Field(
        None, description="False: no messages are made until it is true again."
    )


class WebhookBody(BaseModel):
    """A webhook without its secret."""

    id: str
    name: str
    url: str | None
    mail: list[str] | None
    events: list[Event]
    accounts: list[str] | None
    below: str | None
    active: bool
    generation: int = Field(description="The number of its secret: a rotation adds 1.")
    rotated_at: str | None
    created_at: str
    created_by: str


class ListedWebhook(WebhookBody):
    """A webhook with what became of its messages."""

    accounts_missing: list[str] = Field(description="Those of its accounts that do not exist, or not yet.")
    delivered_at: str | None = Field(description="When a message was last delivered; null: none of the last ones was.")
    failing_since: str | None = Field(
        description=f"The first failed try since then, among the last {deliveries.LOOKED_AT} messages; null: none."
    )


class MadeWebhook(WebhookBody):
    """A webhook with its secret, which is shown only in this answer."""

    secret: str | None = Field(description="Signs the messages, by Standard Webhooks; null: they are mailed.")


class WebhookPage(BaseModel):
    """A page of webhooks."""

    items: list[ListedWebhook]
    next_cursor: str | None


class TryBody(BaseModel):
    """A try to deliver a message."""

    at: str
    milliseconds: int
    status: int | None = Field(description="Of the answer; null: there was none.")
    reason: str | None = Field(description="Of the failure; null: the message was delivered.")
    answer: str | None = Field(description=f"The first {deliveries.LONGEST_ANSWER} characters of the answer.")


class DeliveryBody(BaseModel):
    """A message with the state and the log of its delivery."""

    id: str
    type: str
    account: str | None
    created_at: str
    state: deliveries.State
    next_try_at: str | None
    payload: dict[str, Any] = Field(description=_PAYLOAD)
    tries: list[TryBody]


class DeliveryPage(BaseModel):
    """A page of deliveries."""

    items: list[DeliveryBody]
    next_cursor: str | None


_COLUMNS = ("id", "type", "account", "created_at", "state", "next_try_at", "payload")
WebhookPath = Annotated[str, Path(description="The webhook's id.", examples=[examples.WEBHOOK_ID])]
DeliveryPath = Annotated[str, Path(description="The message's id.", examples=[examples.DELIVERY_ID])]


@router.post("", status_code=201, response_model=MadeWebhook, openapi_extra=examples.body(examples.WEBHOOK))
@in_writers
def make_webhook(body: MakeWebhook, change: Changing, request: Request) -> Response:
    """Make a webhook.

    Messages about releases, budgets and the ledger are posted to its URL, signed by Standard Webhooks, or mailed. Each
    is tried eight times within a day until the answer has a status of 200 to 299. Only this answer contains the secret.
    A key that is limited to accounts makes webhooks that are limited to some of them. There are at most 100 webhooks,
    and at most 20 that one principal made. While there are 80, keys that are limited to accounts make no more.
    """
    require(change.principal, "steward")
    stated = _stated(body.model_dump()) | {"active": True}
    _check(stated, change.principal, request, stated["url"])
    seen = see_keys(change.database, change.secret)

    def work(connection: Connection, at: str) -> WebhookRecord:
        limited, by = change.principal.accounts is not None, change.request.actor
        return webhook_changes.make(connection, change.secret, stated, limited=limited, at=at, by=by, seen=seen)

    return _with_secret(change, work)


@router.get("", response_model=WebhookPage, responses=AS_TABLE)
def list_webhooks(
    database: CurrentDatabase,
    secret: CurrentSecret,
    principal: CurrentPrincipal,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """List webhooks.

    A key that is limited to accounts sees those that are limited to some of these.
    """
    require(principal, "steward")
    with database.read() as connection:
        found = webhooks.list_webhooks(connection, secret, read_cursor(cursor), limit, principal.accounts)
        shown = [_listed(connection, one) for one in found]
    last = found[-1].id if found.more else None
    return answer_list(accept, shown, last, tuple(ListedWebhook.model_fields))


@router.get("/{webhook}", response_model=ListedWebhook)
def read_webhook(
    webhook: WebhookPath, database: CurrentDatabase, secret: CurrentSecret, principal: CurrentPrincipal
) -> Response:
    """Read a webhook."""
    require(principal, "steward")
    with database.read() as connection:
        found = webhooks.read_webhook(connection, secret, webhook)
        _require_reach(principal, found)
        return ok(_listed(connection, found))


@router.patch("/{webhook}", response_model=WebhookBody, openapi_extra=examples.body(examples.WEBHOOK_CHANGE))
@in_writers
def change_webhook(webhook: WebhookPath, body: ChangeWebhook, change: Changing, request: Request) -> Response:
    """Change a webhook.

    Messages that were made before go to the new target, too. Those about accounts that it does not reach any more are
    neither sent nor shown, and deleted within minutes, delivered ones too.
    """
    present = _present(change, webhook)
    given = body.model_dump(exclude_unset=True)
    for name in ("name", "events", "active"):
        if name in given and given[name] is None:
            raise InvalidInput.at(f"/{name}", "expected a value")
    _check(_changeable(present) | _stated(given), change.principal, request, given.get("url"))
    seen = see_keys(change.database, change.secret)

    def work(connection: Connection, at: str) -> WebhookRecord:
        old = _locked(connection, change, webhook)
        _check(_changeable(old) | _stated(given), change.principal, request)  # another request may have changed it
        by = change.request.actor
        return webhook_changes.change(connection, change.secret, webhook, _stated(given), at=at, by=by, seen=seen)

    return respond(change.carry_out(Operation(work, webhooks.has_webhook), lambda one: _answer(200, _body(one))))


@router.post("/{webhook}/rotate", status_code=201, response_model=MadeWebhook)
@in_writers
def rotate_webhook(webhook: WebhookPath, change: Changing) -> Response:
    """Rotate a webhook's secret.

    Only this answer contains the new secret. For 24 hours messages carry the signatures by both.
    """
    if _present(change, webhook).url is None:
        raise InvalidInput.at("/path/webhook", "expected a webhook with a URL: mail has no secret")
    seen = see_keys(change.database, change.secret)

    def work(connection: Connection, at: str) -> WebhookRecord:
        old, by = _locked(connection, change, webhook), change.request.actor
        stated = {"generation": old.generation + 1, "rotated_at": at}
        return webhook_changes.change(connection, change.secret, webhook, stated, at=at, by=by, seen=seen)

    return _with_secret(change, work)


@router.delete("/{webhook}", status_code=204)
@in_writers
def delete_webhook(webhook: WebhookPath, change: Changing) -> Response:
    """Delete a webhook.

    Its messages are neither sent nor shown any more, and deleted with their log within minutes.
    """
    _present(change, webhook)
    seen = see_keys(change.database, change.secret)

    def work(connection: Connection) -> None:
        webhook_changes.remove(connection, change.secret, webhook, at=clock.now(), by=change.request.actor, seen=seen)

    change.database.write(work, is_committed=lambda *_: False)
    return Response(status_code=204)


@router.post("/{webhook}/test", status_code=202, response_model=DeliveryBody)
@in_writers
def test_webhook(webhook: WebhookPath, change: Changing) -> Response:
    """Send a test message.

    It has the type test and is delivered like others; the list of deliveries says how that went. While ten wait, no
    further one is made.
    """
    name = _present(change, webhook).name

    def work(connection: Connection, at: str) -> DeliveryRecord:
        only = _locked(connection, change, webhook).accounts
        number = deliveries.number_of_tests(connection, webhook)
        if number >= deliveries.MOST_TESTS:
            raise Conflict(f"{number} test messages of this webhook wait already: look at the log of its deliveries")
        message = Message(webhook, deliveries.TEST, None, at, {"webhook": name})
        (delivery_id,) = deliveries.queue(connection, deliveries.sealed(change.secret, [message], at))
        return deliveries.read_delivery(connection, change.secret, webhook, delivery_id, only)

    return _queued(change, work)


@router.get("/{webhook}/deliveries", response_model=DeliveryPage, responses=AS_TABLE)
def list_deliveries(
    webhook: WebhookPath,
    database: CurrentDatabase,
    secret: CurrentSecret,
    principal: CurrentPrincipal,
    take: Room,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """List the deliveries of a webhook.

    The newest message comes first, with the log of its tries. Messages are kept for 30 days. A webhook that is limited
    to accounts has the messages about these, and tests.
    """
    require(principal, "steward")
    with database.read() as connection:
        of = webhooks.read_webhook(connection, secret, webhook)
        _require_reach(principal, of)
        after = read_cursor(cursor)
        found = deliveries.list_deliveries(connection, secret, webhook, after, limit, with_room(take), of.accounts)
        tries = deliveries.tries_of(connection, [one.id for one in found])
    shown = [_delivery_body(one, tries[one.id]) for one in found]
    return answer_list(accept, shown, found[-1].id if found.more else None, _COLUMNS)


@router.post("/{webhook}/deliveries/{delivery}/retry", status_code=202, response_model=DeliveryBody)
@in_writers
def retry_delivery(webhook: WebhookPath, delivery: DeliveryPath, change: Changing) -> Response:
    """Try a message once more that has failed eight times."""
    _present(change, webhook)

    def work(connection: Connection, at: str) -> DeliveryRecord:
        only = _locked(connection, change, webhook).accounts
        return deliveries.retry(connection, change.secret, webhook, delivery, at, only)

    return _queued(change, work)


def _present(change: Change, webhook_id: str) -> WebhookRecord:
    """Return the webhook of a request, which the caller must be allowed to manage."""
    require(change.principal, "steward")
    with change.database.read() as connection:
        found = webhooks.read_webhook(connection, change.secret, webhook_id)
    _require_reach(change.principal, found)
    return found


def _locked(connection: Connection, change: Change, webhook_id: str) -> WebhookRecord:
    """Return a webhook in the transaction that changes it: another request may have widened it since it was present."""
    found = webhooks.read_webhook(connection, change.secret, webhook_id, lock=True)
    _require_reach(change.principal, found)
    return found


def _require_reach(principal: Principal, webhook: WebhookRecord) -> None:
    if not webhooks.is_within(webhook, principal.accounts):
        raise Forbidden("the key is limited to accounts; the webhook is not limited to some of these")


def _stated(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _changeable(webhook: WebhookRecord) -> dict[str, Any]:
    return {name: getattr(webhook, name) for name in ChangeWebhook.model_fields}


def _address_faults(url: str | None, request: Request) -> list[Fault]:
    """Return the fault of a URL that states an address to which no request may go.

    Names are looked up at each delivery.
    """
    address = None if url is None else targets.stated_address(urlsplit(url).hostname or "")
    if address is None or targets.is_allowed(address, request.app.state.settings.resolved_webhook_networks):
        return []
    return [Fault("/url", f"expected another host: {targets.EXPECTED}")]


def _check(stated: Mapping[str, Any], principal: Principal, request: Request, url: str | None = None) -> None:
    """Refuse fields that do not fit together, or that the caller or the operator does not allow.

    Args:
        url: the one that the request states; None: it states none.
    """
    accounts, events, below = stated["accounts"], stated["events"], stated["below"]
    faults = _address_faults(url, request)
    if (stated["url"] is None) == (stated["mail"] is None):
        faults.append(Fault("/url", "expected either url or mail"))
    elif stated["mail"] is not None and request.app.state.settings.smtp_host is None:
        faults.append(Fault("/mail", "expected a url: the operator has set no SERVICE_SMTP_HOST"))
    if len(set(events)) < len(events):
        faults.append(Fault("/events", "expected each event once"))
    elif accounts is not None and not set(events).isdisjoint(OF_LEDGER):
        detail = f"expected events of accounts only: {' and '.join(OF_LEDGER)} are about none"
        faults.append(Fault("/events", detail))
    if (below is None) == ("budget.below" in events):
        faults.append(Fault("/below", "expected a share with the event budget.below, and none without it"))
    elif below is not None and not 0 < Fraction(below) < 1:
        faults.append(Fault("/below", EXPECTED_SHARE))
    if faults:
        raise InvalidInput(faults)
    if principal.accounts is not None and (accounts is None or not set(accounts) <= principal.accounts):
        raise Forbidden("the key is limited to accounts: name only accounts that it reaches")


def _with_secret(change: Change, work: Callable[[Connection, str], WebhookRecord]) -> Response:
    """Answer with a webhook and its secret, which is never stored: a replay derives it again."""
    answer = change.carry_out(Operation(work, webhooks.has_webhook), lambda one: _answer(201, _body(one)))
    if answer.replayed:
        with change.database.read() as connection:
            require_valid(connection, change.secret, change.request.actor, clock.now())
    shown = json.loads(answer.body or "")
    secret = None if shown["url"] is None else webhooks.secret_of(change.secret, shown["id"], shown["generation"])
    return respond(replace(answer, body=json.dumps(shown | {"secret": secret})))


def _queued(change: Change, work: Callable[[Connection, str], DeliveryRecord]) -> Response:
    operation = Operation(work, lambda connection, one: deliveries.is_queued(connection, [one.id]))
    return respond(change.carry_out(operation, lambda one: _answer(202, _delivery_body(one, []))))


def _answer(status: int, body: dict[str, Any]) -> Answer:
    return Answer(status, json.dumps(body))


def _body(webhook: WebhookRecord) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(webhook).items()}


def _listed(connection: Connection, webhook: WebhookRecord) -> dict[str, Any]:
    missing = webhooks.missing_accounts(connection, webhook)
    standing = deliveries.standing_of(connection, webhook.id, webhook.accounts)
    return _body(webhook) | {"accounts_missing": missing} | standing._asdict()


def _delivery_body(delivery: DeliveryRecord, tries: list[Try]) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "type": delivery.type,
        "account": delivery.account,
        "created_at": delivery.created_at,
        "state": delivery.state,
        "next_try_at": delivery.due_at,
        "payload": json.loads(delivery.payload),
        "tries": [tried._asdict() for tried in tries],
    }
