"""Streams of table rows in the order of the journal, so that an entry's rows are read beside the entry."""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Row, Select

_AT_ONCE = 500  # rows that a stream holds; more would be no faster, and would fill the processor's caches

Found = list[Row[*tuple[Any, ...]]]


class BadRow(Exception):
    """An entry from which a row or an account differs, or which cannot stand beside earlier entries."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(reason)
        self.seq = seq


def stream(
    connection: Connection, query: Select[*tuple[Any, ...]], until: ExitStack
) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield the rows of a query, few of which are held at a time; ``until`` closes its cursor."""
    found = connection.execute(query, execution_options={"stream_results": True, "max_row_buffer": _AT_ONCE})
    until.callback(found.close)
    return chain.from_iterable(iter(partial(found.fetchmany, _AT_ONCE), []))


class SeqCursor:
    """Rows of a table in the order of their entries; the first column is the entry's number."""

    def __init__(self, connection: Connection, query: Select[*tuple[Any, ...]], what: str, until: ExitStack) -> None:
        self._rows, self._what = stream(connection, query, until), what
        self._step()

    def _step(self) -> None:
        self._next = next(self._rows, None)
        self.seq: float = math.inf if self._next is None else self._next[0]  # the entry of the next row

    def of(self, seq: int) -> Found:
        """Return the rows of one entry; entries must be requested in order.

        Raises:
            BadRow: there are earlier rows, of an entry that wrote none.
        """
        if self.seq < seq:
            raise BadRow(max(int(self.seq), 1), f"a row of {self._what} belongs to no entry that wrote one")
        found: Found = []
        while self._next is not None and self.seq == seq:
            found.append(self._next)
            self._step()
        return found

    def end(self, seq: int) -> None:
        """Refuse rows after the last entry, which is ``seq``.

        Raises:
            BadRow: there are some.
        """
        if self._next is not None:
            raise BadRow(seq, f"a row of {self._what} belongs to no entry that wrote one")
