"""Idempotent writes: the transaction that every changing request runs in, with one effect and one answer."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import structlog
from sqlalchemy import Connection

from service.errors import BudgetExceeded, Conflict, NotFound, ServiceError, Unauthenticated, Unavailable
from service.ledger.accounts import lines
from service.ledger.accounts.lines import Line, ReservationsDue
from service.ledger.journal import journal
from service.ledger.journal.linked_heads import contains
from service.ledger.releases.budget_refusals import record_refusal
from service.ledger.releases.settlement import expire
from service.ledger.storage import clock, idempotency
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer, Request

_log = structlog.get_logger("service.idempotency")

R = TypeVar("R")

_PATIENCE = 100
_ROUNDS, _SECONDS = 4, 0.5  # limits on the rounds in which a request that does not fit lets reservations expire


@dataclass(frozen=True, slots=True)
class Operation(Generic[R]):
    """A change of the ledger in one transaction; nothing is changed before ``idempotent_write`` carries it out.

    A function that returns an operation documents the errors of both.

    Attributes:
        work: makes the change, and returns its result, at the moment of the transaction. It may run several times, each
            time on a database without traces of the earlier attempts.
        is_committed: returns whether an earlier attempt's result is in the database.
        charges: the line that it charges. If that does not fit, the refusal is recorded in the journal of its account.
    """

    work: Callable[[Connection, str], R]
    is_committed: Callable[[Connection, R], bool]
    charges: Line | None = None


class Outcome(NamedTuple, Generic[R]):
    """The answer to a request, and the result of its operation; the answer is a replay if the result is None."""

    answer: Answer
    result: R | None


class _Answered(Exception):
    def __init__(self, answer: Answer) -> None:
        super().__init__("answered before")
        self.answer = answer


def idempotent_write(
    database: Database, request: Request, operation: Operation[R], answer_of: Callable[[R], Answer]
) -> Outcome[R]:
    """Carry out an operation in one write transaction and return its answer, or replay the first answer.

    Of two requests with one Idempotency-Key at the same moment, one runs, and the other waits for its answer. If the
    second was refused because the first used the remaining budget, it gets the first one's success and not the refusal.

    Args:
        answer_of: returns the answer for a result. If the request has a key, it is called in the transaction, because
            the answer is stored with its effect; otherwise it is called after the commit.

    Raises:
        LedgerRolledBack: an entry that the caller has seen is missing.
        IdempotencyConflict: the key came before with another request.
        Unavailable: an account's row says that reservations are due, and there are none; or too many are to expire
            before the request may fit.
        ServiceError: any error that the operation raises; nothing is changed then, but a refused charge is recorded.
    """

    root = lines.root_of(database, request.account)

    def run(connection: Connection) -> tuple[Answer | None, R]:
        with database.pace.timed(request.principal, root):
            at = _begin(database, connection, request)
            result = _unless_answered(connection, request, lambda: operation.work(connection, at))
            if request.key is None:
                return None, result
            answer = answer_of(result)
            idempotency.store(connection, request, answer, at)
            return answer, result

    def is_committed(connection: Connection, attempt: tuple[Answer | None, R]) -> bool:
        return operation.is_committed(connection, attempt[1])

    try:
        answer, result = _with_expiry(database, lambda: database.write(run, is_committed=is_committed))
    except _Answered as answered:
        _find_again(database, request, answered.answer)
        return Outcome(answered.answer, None)
    except BudgetExceeded as refusal:
        if operation.charges is not None:
            record_refusal(database, request, operation.charges, refusal)
        raise
    return Outcome(answer or answer_of(result), result)


def _find_again(database: Database, request: Request, answer: Answer) -> None:
    """Read the rows of an account and those above it, before an answer about them is repeated.

    Their heads are remembered and marked then, so that what was answered cannot be lost unnoticed, whichever process
    committed it. The first answer may never have been given: its process may have been killed, or not have learnt
    whether it committed. Somebody who writes the database may also have kept the answer alone, with its seal.

    Raises:
        Unavailable: a row is older than, or does not follow from, a known head.
        Conflict: the journal does not contain the entry that the answer states.
    """
    head = answer.stated_head
    account = request.account or (None if head is None else answer.stated["name"])  # the answer to an opening names it
    if account is None:
        return
    with database.read() as connection:
        try:
            found = lines.line_above(connection, account)[-1]
            lacks = head is not None and not contains(connection, found.chain, [head])
        except NotFound:
            lacks = True
    if lacks:
        _log.warning("a stored answer states an entry that the journal does not contain", account=account)
        raise Conflict(
            "the stored answer to this Idempotency-Key states an entry that the journal does not contain: the ledger"
            " was changed outside the service, and an operator must verify it"
        )


def check_before_lock(database: Database, request: Request, check: Callable[[Connection], R]) -> R | None:
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


def _begin(database: Database, connection: Connection, request: Request) -> str:
    """Check in a transaction that a request is to be carried out; return the moment of the transaction.

    Raises:
        _Answered: it was answered before.
        LedgerRolledBack, Unauthenticated, IdempotencyConflict: it is refused.
    """
    if request.kept is not None:  # checked here and not before: after a failover this may be another server
        journal.require_expected_head(connection, request.kept)
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
        except ReservationsDue as due:
            if due.all_of_them and (due.slow or not left):
                database.holds_due.set()
                raise Unavailable(
                    "the request does not fit beside reservations that have expired; the service is still recording"
                    " their expiry, so repeat the request later"
                ) from None
            began = time.monotonic()
            # Not timed: others may have made these reservations.
            in_vain = 0 if expire(database, due.account_id, due.release_id) else in_vain + 1
            while due.all_of_them:  # a request that did not fit is not retried after each few expiries
                left = left - 1 if time.monotonic() - began < _SECONDS else 0
                if not left or not expire(database, due.account_id):
                    break
    raise Unavailable(
        "the account, or one above it, states an expiry of a reservation that it does not have: the ledger was changed"
        " outside the service, and an operator must verify it",
        retry_after=60,
    )


def _stop_if_answered(connection: Connection, request: Request) -> None:
    answer = idempotency.find(connection, request)
    if answer is not None:
        raise _Answered(answer)
