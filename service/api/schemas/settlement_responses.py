"""Answers to committing, approving, voiding or describing a release; they contain its plan, which may be megabytes.

Only the parts that may change are stored for a replay: state, budget, price, time. The rest is read from the ledger,
where it never changes, or as it was up to a journal entry. The first answer is made from the same parts, so a replay
is identical to the byte. A long plan is read and sent in pieces.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fastapi import Response

from service.api.http.dependencies import Change, Streamed, replay_header, respond
from service.api.routes.release_pricing import cost_of_stored
from service.api.schemas.approvals import approval_member
from service.api.schemas.guarantees import head_body, remaining_body
from service.api.schemas.periods import release_periods_body
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.draws.partitions import DrawnFor
from service.ledger.idempotent_write import Operation
from service.ledger.releases import past_releases, release_rows, releases
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.releases.reservations import SettledRelease
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Answer
from service.privacy.numerics.numbers import exact_text

_BEGIN = '{"answer": "release", '
"""The start of a stored answer that is to be rendered; those of older versions are whole, and start with an id."""
_PIECE = 1 << 18  # characters of a plan that are read and sent at a time


def body_of(
    record: ReleaseRecord, account: AccountRecord, now: str, drawn: Iterator[DrawnFor] | list[DrawnFor]
) -> dict[str, Any]:
    """Return a release without its plan and its cost, which take longest to read and to write."""
    return {
        "id": record.id,
        "account": account.name,
        "name": record.name,
        "state": record.state,
        "expires_at": record.expires_at if record.state in (*releases.HELD, "expired") else None,
        "overdue": record.is_over(now),
        "tags": list(record.tags),
        "partitions": [one._asdict() for one in drawn],
        "metadata": record.metadata,
        "delta": exact_text(record.delta),
        "remaining": remaining_body(account),
        "head": head_body(record.head),
        "created_at": record.created_at,
        **release_periods_body(record.periods),
    }


def around_plan(body: dict[str, Any], cost: str) -> tuple[str, str]:
    """Return the text before and after a release's plan; its cost is text already."""
    return f'{json.dumps(body)[:-1]}, "plan": ', f', "cost": {cost}}}'


def answered(
    change: Change, act: Callable[..., Operation[SettledRelease]], account: str, release: str, *arguments: object
) -> Response:
    """Carry out ``act(database, request, account, release, *arguments)``, and return the answer from its stored parts.

    The cost, which may take seconds, is computed first, before any lock. A long plan is streamed in pieces.

    Raises:
        NotFound: the account does not exist, or has no such release.
        TooManyRequests, Unavailable: no helper can compute the cost now.
        ServiceError: any error that the operation raises.
    """
    cost, database = cost_of_stored(change, account, release), change.database

    def parts(settled: SettledRelease) -> Answer:
        record = replace(settled.release, tags=(), metadata={}, head=settled.account.head)
        shown = body_of(record, settled.account, clock.now(), []) | approval_member(settled.approval)
        return Answer(200, f'{_BEGIN}"shown": {json.dumps(shown)}, "cost": {cost}}}')

    answer = change.carry_out(act(database, change.request, account, release, *arguments), parts)
    if answer.body is None or not answer.body.startswith(_BEGIN):
        return respond(answer)
    stored = json.loads(answer.body)
    with database.read() as connection:
        account_id = accounts.read_account(connection, account).id
        past = past_releases.omitted_parts_at(connection, account_id, release, stored["shown"]["head"]["seq"])
        size = releases.plan_size(connection, release, account_id)
        whole = release_rows.sealed_plan(connection, release) if size <= _PIECE else None
    partitions = [one._asdict() for one in past.drawn]
    body = stored["shown"] | {"tags": past.tags, "partitions": partitions, "metadata": past.metadata}
    before, after = around_plan(body, json.dumps(stored["cost"]))
    if whole is not None:
        return respond(replace(answer, body=before + whole + after))

    def pieces() -> Iterator[str]:
        yield before
        for start in range(0, size, _PIECE):
            with database.read() as connection:
                piece = releases.plan_part(connection, release, start, _PIECE)
            yield piece
        yield after

    return Streamed(pieces(), answer.status, replay_header(answer), "application/json")
