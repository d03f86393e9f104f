"""One commit for writers who would wait for each other anyway, as on SQLite, where one transaction writes at a time.

Whoever has the place does the work of those behind him too: after his own, in his own transaction, each in a savepoint.
To them it is as if each had had the next transaction, and nobody is told anything before the commit.
"""

import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from service.errors import Unavailable
from service.ledger.storage.waiting_line import Queue, Turn

TALLY = "tally"  # where a connection's present work counts what it does
_MOST = 64  # in one transaction, beside whoever's it is
_SECONDS = 0.05  # after which nobody joins it any more


class Made(NamedTuple):
    """An entry that a transaction added to the journal of an account."""

    account_id: int
    seq: int
    hash: str


@dataclass
class Tally:
    """What a transaction does, which counts once it is committed.

    Attributes:
        counts: how often something was done, by what it is and of which kind.
        entries: those that it adds to journals.
        ends: the keys that it ends, by their ids, each with the moment from which it is refused.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    entries: list[Made] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        """Add what another transaction did."""
        self.counts.update(other.counts)
        self.entries += other.entries
        self.ends |= other.ends


class Parted(Exception):
    """The database refused a statement of somebody who had joined; the transaction is to be rolled back."""


class Company:
    """Those whose work is done in somebody else's transaction; ``done``: what they did in all."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._turns: list[Turn] = []  # taken over and not answered
        self._outcomes: list[Future[Any]] = []
        self.done = Tally()

    def work(self, connection: Connection) -> None:
        """Do the work of those who wait, in a transaction that did its own.

        Raises:
            Parted: a statement failed. Whose it was is the first to wait again, so that he meets the error alone.
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
                raise Parted from None

    def answer(self) -> None:
        """Tell them, after the commit."""
        for turn, outcome in zip(self._turns, self._outcomes, strict=True):
            turn.answer(outcome)
        self._turns.clear()

    def part(self, *, committing: bool) -> None:
        """At the end, however it came: whoever was told nothing waits again, unless he may be in the database."""
        if committing:
            for turn in self._turns:
                outcome: Future[Any] = Future()
                outcome.set_exception(Unavailable("the change could not be committed"))
                turn.answer(outcome)
        else:
            self._queue.give_back(self._turns)

    def _in_savepoint(self, connection: Connection, turn: Turn) -> Future[Any]:
        outcome: Future[Any] = Future()
        done = Tally()
        connection.info[TALLY] = done
        connection.exec_driver_sql("SAVEPOINT joined")
        try:
            outcome.set_result(turn.work(connection))
            self.done.add(done)
        except SQLAlchemyError:
            raise
        except Exception as error:  # noqa: BLE001 - his to be told
            outcome.set_exception(error)
            connection.exec_driver_sql("ROLLBACK TO joined")
        connection.exec_driver_sql("RELEASE joined")
        return outcome
