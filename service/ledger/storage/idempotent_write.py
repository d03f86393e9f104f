"""Idempotent writes: the transaction that every changing request runs in, with one effect and one answer."""

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
_ROUNDS, _SECONDS = 4, 0.5  # limits on the rounds in which a request that does not fit lets reservations expire


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a client; ``body`` is JSON text."""

    status: int
    body: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """An answer that is not stored as text: the caller renders it, the first time and on replay."""

    status: int
    result: R
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """The stored reference from which an answer is rendered again; ``body`` is the part that may be stored."""

    body: str | None = None
    draw_id: str | None = None
    api_key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Reload(Generic[R]):
    """Storage and reloading of results that are too large or too secret to be stored with the answer."""

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
    """Run ``work(connection, now)`` in one write transaction and return its answer, or replay the first answer.

    Of two requests with one Idempotency-Key at the same moment, one runs, and the other waits for its answer. If the
    second was refused because the first used the remaining budget, it gets the first one's success and not the refusal.

    Args:
        landed: returns whether an earlier attempt's result is in the database.

    Raises:
        LedgerRolledBack: an entry that the caller has seen is missing.
        IdempotencyConflict: the key came before with another request.
        Unavailable: an account's row says that reservations are due, and there are none; or too many are to expire
            before the request may fit.
        ServiceError: any error that ``work`` raises; nothing is changed then.
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
    """Run an idempotent write whose result is not stored with the answer: a replay loads the result again.

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


def look(database: Database, request: Request, check: Callable[[Connection], R]) -> R | None:
    """Run the checks of a write in a read transaction, so that a refused request never takes the write lock.

    The write must check again, because the ledger may change in between.

    Returns:
        The result of ``check``; None if the request was answered before, and is to be replayed.

    Raises:
        LedgerRolledBack, Unauthenticated, IdempotencyConflict: as the write would.
        ServiceError: any error that ``check`` raises.
    """
    with database.read() as connection:
        try:
            _begin(database, connection, request)
            return _unless_answered(connection, request, lambda: check(connection))
        except _Answered:
            return None


def _write(
    database: Database,
    request: Request,
    work: Callable[[Connection, str], R],
    landed: Callable[[Connection, R], bool],
    keep: Callable[[Connection, R, str], None],
) -> R:
    """Do the work and store its answer in one transaction.

    Raises:
        _Answered: the request was answered before.
    """

    def run(connection: Connection) -> R:
        at = _begin(database, connection, request)
        result = _unless_answered(connection, request, lambda: work(connection, at))
        if request.key is not None:
            keep(connection, result, at)
        return result

    return _with_expiry(database, lambda: database.write(run, landed=landed))


def _begin(database: Database, connection: Connection, request: Request) -> str:
    """Check in a transaction that a request is to be carried out; return the moment of the transaction.

    Raises:
        _Answered: it was answered before.
        LedgerRolledBack, Unauthenticated, IdempotencyConflict: it is refused.
    """
    if request.kept is not None:  # checked here and not before: after a failover this may be another server
        journal.require_kept(connection, request.kept)
    _stop_if_answered(connection, request)
    at = clock.now()
    if request.key_id is not None and database.has_ended(request.key_id, at):  # since the request was authenticated
        raise Unauthenticated("the key is unknown, expired or revoked")
    return at


def _unless_answered(connection: Connection, request: Request, act: Callable[[], R]) -> R:
    """Return the result of an act; where it is refused, look once more for an answer to the same request.

    Raises:
        _Answered: another request with the same key was answered meanwhile.
    """
    try:
        return act()
    except ServiceError:
        _stop_if_answered(connection, request)
        raise


def _with_expiry(database: Database, act: Callable[[], R]) -> R:
    """Run a transaction, and repeat it after each time that it met expired reservations.

    Raises:
        Unavailable: an account repeatedly says that it has expired reservations, and has none; or more of them are to
            expire first than a request waits for, which the server's own thread lets expire.
    """
    in_vain = 0  # another request may have been faster, or the clock was set back a little
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
            while due.all_of_them:  # a request that did not fit is not retried after each few expiries
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
