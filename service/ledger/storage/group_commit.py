"""Group commit: one commit for writers that would wait for each other anyway.

On SQLite one transaction writes at a time. The writer that holds the place first does its own work. Then it does the
work of the writers behind it in the same transaction, each in a savepoint. To each of them it is as if it had had the
next transaction. No writer gets an answer before the commit.
"""

import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from service.errors import Unavailable
from service.ledger.storage.drawn_partitions import DrawnFor
from service.ledger.storage.waiting_line import Waiter, WaitingLine

EFFECTS = "effects"  # the key under which a connection stores the counts of its present work
_MOST = 64  # writers that join one transaction, beside its own
_SECONDS = 0.05  # after which no more writers join


NO_ACCOUNT, INSTALLATION = 0, ""
"""The id and the name of the installation's journal among those of accounts, none of which has them."""


class NewEntry(NamedTuple):
    """An entry that a transaction added to a journal, or found at its end.

    Attributes:
        account: the account's name as the entry states it.
        previous: the hash of the entry before it; empty where it was read.
    """

    account_id: int
    seq: int
    hash: str
    account: str = INSTALLATION
    previous: str = ""


@dataclass
class Effects:
    """The effects of a transaction, which count once it is committed.

    Attributes:
        counts: the number of times that something was done, by its name and kind.
        entries: the entries that it adds to journals.
        ends: the moment from which each key that it ends is refused, by the key's id.
        drawn: what its draws leave releases drawn for.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    entries: list[NewEntry] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    drawn: list[DrawnFor] = field(default_factory=list)

    def add(self, other: "Effects") -> None:
        """Add the effects of another transaction."""
        self.counts.update(other.counts)
        self.entries += other.entries
        self.ends |= other.ends
        self.drawn += other.drawn


class GroupAborted(Exception):
    """A failed statement of a writer that had joined; the transaction is to be rolled back."""


class GroupCommit:
    """The writers whose work is done in another writer's transaction; ``done`` holds the effects of all of them."""

    def __init__(self, queue: WaitingLine) -> None:
        self._queue = queue
        self._turns: list[Waiter] = []  # taken over and not yet answered
        self._outcomes: list[Future[Any]] = []
        self.done = Effects()

    def work(self, connection: Connection) -> None:
        """Do the work of waiting writers, in a transaction that has done its own.

        Raises:
            GroupAborted: a statement failed. Its writer is first in the queue again, so that it meets the error alone.
        """
        end = time.monotonic() + _SECONDS
        while len(self._turns) < _MOST and time.monotonic() < end:
            turn = self._queue.take_over()
            if turn is None:
                return
            self._turns.append(turn)
            try:
                self._outcomes.append(self._in_savepoint(connection, turn))
            except SQLAlchemyError:
                self._turns.insert(0, self._turns.pop())
                raise GroupAborted from None

    def answer(self) -> None:
        """Give the writers their outcomes, after the commit."""
        for turn, outcome in zip(self._turns, self._outcomes, strict=True):
            turn.answer(outcome)
        self._turns.clear()

    def part(self, *, committing: bool) -> None:
        """End the group, however its transaction ended.

        Writers without an outcome wait again, unless their work may be in the database.
        """
        if committing:
            for turn in self._turns:
                outcome: Future[Any] = Future()
                outcome.set_exception(Unavailable("the change could not be committed"))
                turn.answer(outcome)
        else:
            self._queue.give_back(self._turns)

    def _in_savepoint(self, connection: Connection, turn: Waiter) -> Future[Any]:
        outcome: Future[Any] = Future()
        done = Effects()
        connection.info[EFFECTS] = done
        connection.exec_driver_sql("SAVEPOINT joined")
        try:
            outcome.set_result(turn.work(connection))
            self.done.add(done)
        except SQLAlchemyError:
            raise
        except Exception as error:  # noqa: BLE001 - reported to the caller that waits for it
            outcome.set_exception(error)
            connection.exec_driver_sql("ROLLBACK TO joined")
        connection.exec_driver_sql("RELEASE joined")
        return outcome
