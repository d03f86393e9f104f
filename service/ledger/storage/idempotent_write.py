"""One request, one effect, one answer: the write transaction that every changing request runs in."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import Connection

from service.errors import ServiceError, Unauthenticated, Unavailable
from service.ledger.accounts.accounts import HoldsDue
from service.ledger.journal import journal
from service.ledger.releases.settlement import expire
from service.ledger.storage import clock, idempotency
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request, StoredAnswer

R = TypeVar("R")

_PATIENCE = 100
_ROUNDS, _SECONDS = 4, 0.5  # for which a request that does not fit lets holds expire, some in each


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client is told; ``body`` is JSON text."""

    status: int
    body: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What is answered where the answer is not stored as text: the caller renders it, the first time and again."""

    status: int
    result: R
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Where an answer that is not stored whole can be rendered from again; ``body`` is the part that may be stored."""

    body: str | None = None
    draw_id: str | None = None
    api_key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Reload(Generic[R]):
    """For results too large or too secret to be stored with the answer: what to keep, and how to load it again."""

    source: Callable[[R], Source]
    load: Callable[[Connection, StoredAnswer], R]


class _Answered(Exception):
    def __init__(self, stored: StoredAnswer) -> None:
        super().__init__("answered before")
        self.stored = stored


def once(
    database: Database,
    request: Request,
    work: Callable[[Connection, str], R],
    *,
    status: int | Callable[[R], int],
    render: Callable[[R], str],
    landed: Callable[[Connection, R], bool],
) -> Answer:
    """Run ``work(connection, now)`` in one write transaction and answer; or answer as the first time.

    Two requests with one Idempotency-Key at the same moment: one runs, the other waits for it and
    gets its answer. Where the other one is refused by what the first one did (it took the room that
    was left), it is told the first one's success, not the refusal.

    Raises:
        LedgerRolledBack: an entry that the caller has seen is not there.
        IdempotencyConflict: the key came before with another request.
        Unavailable: an account's row says that reservations are due, and there are none; or too many are to expire
            before it may fit.
        ServiceError: whatever ``work`` raises; nothing is changed then.
    """

    status_of: Callable[[R], int] = (lambda _: status) if isinstance(status, int) else status
    kept: list[tuple[R, str]] = []  # one for each attempt

    def keep(connection: Connection, result: R, at: str) -> None:
        kept.append((result, render(result)))
        idempotency.store(connection, request, status=status_of(result), body=kept[-1][1], at=at)

    try:
        result = _write(database, request, work, landed, keep)
        body = next((text for made, text in kept if made is result), None)
        return Answer(status_of(result), render(result) if body is None else body)
    except _Answered as answered:
        return Answer(answered.stored.status, answered.stored.body or "", replayed=True)


def once_reloaded(
    database: Database,
    request: Request,
    work: Callable[[Connection, str], R],
    *,
    status: int,
    landed: Callable[[Connection, R], bool],
    reload: Reload[R],
) -> Outcome[R]:
    """The same for results that are not stored with the answer: a replay loads the result again.

    Raises:
        IdempotencyConflict, ServiceError: as ``idempotent_write``.
    """

    def keep(connection: Connection, result: R, at: str) -> None:
        source = reload.source(result)
        idempotency.store(
            connection,
            request,
            status=status,
            body=source.body,
            draw_id=source.draw_id,
            api_key_id=source.api_key_id,
            at=at,
        )

    try:
        return Outcome(status, _write(database, request, work, landed, keep))
    except _Answered as answered:
        stored = answered.stored
    with database.read() as connection:
        return Outcome(stored.status, reload.load(connection, stored), replayed=True)


def _write(
    database: Database,
    request: Request,
    work: Callable[[Connection, str], R],
    landed: Callable[[Connection, R], bool],
    keep: Callable[[Connection, R, str], None],
) -> R:
    """Do the work and keep its answer in one transaction.

    Raises:
        _Answered: the request was answered before.
    """

    def run(connection: Connection) -> R:
        if request.kept is not None:  # here and not before: after a failover this may be another server
            journal.require_kept(connection, request.kept)
        _stop_if_answered(connection, request)
        at = clock.now()
        if request.key_id is not None and database.has_ended(request.key_id, at):  # since the request was let in
            raise Unauthenticated("the key is unknown, expired or revoked")
        try:
            result = work(connection, at)
        except ServiceError:
            _stop_if_answered(connection, request)
            raise
        if request.key is not None:
            keep(connection, result, at)
        return result

    return _with_expiry(database, lambda: database.write(run, landed=landed))


def _with_expiry(database: Database, act: Callable[[], R]) -> R:
    """Run a transaction, again after each time that it met holds whose time was over.

    Raises:
        Unavailable: an account says time and again that it has such holds, and has none; or more of them are to
            expire first than a request waits for, which the server's own thread lets expire.
    """
    in_vain = 0  # somebody else may have been faster, or the clock been set back a little
    left = _ROUNDS
    while in_vain < _PATIENCE:
        try:
            return act()
        except HoldsDue as due:
            if due.all_of_them and not left:
                database.holds_due.set()
                raise Unavailable(
                    "reservations whose time is over are being written off, too many for a request to wait for: it does"
                    " not fit beside them, and may once they are gone"
                ) from None
            began = time.monotonic()
            in_vain = 0 if expire(database, due.account_id, due.release_id) else in_vain + 1
            while due.all_of_them:  # what did not fit is not tried after each few
                left = left - 1 if time.monotonic() - began < _SECONDS else 0
                if not left or not expire(database, due.account_id):
                    break
    raise Unavailable(
        "the time at which the next reservation expires, as the account or one above it has it, is that of none: the"
        " ledger was changed by somebody else, and whoever runs the service is to verify it",
        retry_after=60,
    )


def _stop_if_answered(connection: Connection, request: Request) -> None:
    stored = idempotency.find(connection, request)
    if stored is not None:
        raise _Answered(stored)
