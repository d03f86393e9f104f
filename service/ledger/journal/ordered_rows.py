"""Tables streamed in the order of the journal, so that the rows that an entry wrote are read beside it."""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Row, Select

_AT_ONCE = 500  # rows that a stream holds; more are no faster, and fill the processor's caches

Found = list[Row[*tuple[Any, ...]]]


class Bad(Exception):
    """Something is not as an entry says."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(reason)
        self.seq = seq


def stream(
    connection: Connection, query: Select[*tuple[Any, ...]], until: ExitStack
) -> Iterator[Row[*tuple[Any, ...]]]:
    """The rows of a query, of which few are held at a time; its cursor is closed with ``until``."""
    found = connection.execute(query, execution_options={"stream_results": True, "max_row_buffer": _AT_ONCE})
    until.callback(found.close)
    return chain.from_iterable(iter(partial(found.fetchmany, _AT_ONCE), []))


class InOrder:
    """Rows of a table in the order of the entries that wrote them; the first column is the entry's number."""

    def __init__(self, connection: Connection, query: Select[*tuple[Any, ...]], what: str, until: ExitStack) -> None:
        self._rows, self._what = stream(connection, query, until), what
        self._step()

    def _step(self) -> None:
        self._next = next(self._rows, None)
        self.seq: float = math.inf if self._next is None else self._next[0]  # the entry of the next row

    def of(self, seq: int) -> Found:
        """The rows of one entry; entries are asked for in turn.

        Raises:
            Bad: there are rows before it, of an entry that wrote none.
        """
        if self.seq < seq:
            raise Bad(max(int(self.seq), 1), f"a row of {self._what} is of no entry that wrote one")
        found: Found = []
        while self._next is not None and self.seq == seq:
            found.append(self._next)
            self._step()
        return found

    def end(self, seq: int) -> None:
        """Refuse rows after the last entry, which is ``seq``."""
        if self._next is not None:
            raise Bad(seq, f"a row of {self._what} is of no entry that wrote one")
