"""Pages of lists, limited by the size of their rows as well as by their number, so that memory is bounded."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select

T = TypeVar("T")

CHARACTERS = 1 << 21
"""Characters of stored text that a page holds; it ends with the row that reaches this number."""

BeforeReading = Callable[[int], None]
"""A callback that gets the size of a page's rows before they are read, and may refuse to continue."""


class Page(list[T]):
    """The items of a page; ``more`` says that others may follow."""

    more = False


def rows_of(
    connection: Connection,
    query: Select[*tuple[Any, ...]],
    size: ColumnElement[int],
    limit: int,
    most: int | None = None,
    before_reading: BeforeReading | None = None,
) -> Page[Row[*tuple[Any, ...]]]:
    """Return the first rows of an ordered query: ``limit`` of them, or fewer that reach ``most`` in size.

    Sizes are looked up first, so that no more rows are read than the page holds. A page has at least one row, if there
    is any. By default ``size`` is in characters and ``most`` is ``CHARACTERS``.
    """
    most = CHARACTERS if most is None else most
    sizes = query.with_only_columns(size, maintain_column_froms=True).limit(limit)
    number = total = 0
    with connection.execute(sizes, execution_options={"stream_results": True}) as found:
        for one in found.scalars():
            number, total = number + 1, total + one
            if total >= most:
                break
    if before_reading is not None:
        before_reading(total)
    page = Page(connection.execute(query.limit(number)).all() if number else ())
    page.more = number >= limit or total >= most
    return page


def first_of(texts: Sequence[str]) -> Sequence[str]:
    """Return as many texts as one page holds."""
    total = 0
    for number, one in enumerate(texts, 1):
        total += len(one)
        if total >= CHARACTERS:
            return texts[:number]
    return texts


def page_of(rows: Page[Row[*tuple[Any, ...]]], read: Callable[[Row[*tuple[Any, ...]]], T]) -> Page[T]:
    """Return the items of a page's rows."""
    page = Page(map(read, rows))
    page.more = rows.more
    return page
