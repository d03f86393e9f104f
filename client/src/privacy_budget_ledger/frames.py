"""Tables of pandas, polars and Arrow: take their counts, and put noisy counts in their place.

Only the column of counts is read and sent. All other columns, the index and their types stay as they are.
"""

import contextlib
import importlib
from collections.abc import Iterable
from typing import Any, TypeVar

from privacy_budget_ledger.errors import InvalidFrame, UnexpectedAnswer

F = TypeVar("F")
COUNT, NOISY = "count", "noisy"
_LIBRARIES = {"pandas": ("DataFrame",), "polars": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        message = "expected pyarrow, with which tables are sent: pip install 'privacy-budget-ledger-client[arrow]'"
    raise InvalidFrame(message)


def _library(frame: Any) -> str:
    for kind in type(frame).__mro__:
        library = kind.__module__.partition(".")[0]
        if kind.__name__ in _LIBRARIES.get(library, ()):
            return library
    raise InvalidFrame(f"expected a DataFrame of pandas or polars, or an Arrow table, got {type(frame).__qualname__}")


def counts_of(frame: Any, column: str) -> Any:
    """Return a column of whole numbers as an Arrow array of int64.

    Raises:
        InvalidFrame: the table has no such column, or has a column ``noisy``, or the column has other values than whole
            numbers. The message names no value.
    """
    names = _names(frame)
    if names.count(column) != 1:
        raise InvalidFrame(f"expected one column {column!r}, got {names.count(column)}")
    if NOISY in names and column != NOISY:
        raise InvalidFrame(f"expected no column {NOISY!r}: the result has the noisy counts in it")
    arrow, found, values = _arrow(), _values(frame, column), None
    if found is not None and arrow.types.is_integer(found.type) and not found.null_count:
        with contextlib.suppress(arrow.ArrowException):
            values = found.cast(arrow.int64())
    if values is None:
        raise InvalidFrame(f"expected a column {column!r} of whole numbers within 2^62 of 0, none of them missing")
    return values


def texts_of(frame: Any, column: str) -> list[str]:
    """Return a column of texts.

    Raises:
        InvalidFrame: the table has no such column, or the column has other values.
    """
    if _names(frame).count(column) != 1:
        raise InvalidFrame(f"expected one column {column!r}, got {_names(frame).count(column)}")
    values = _values(frame, column)
    texts: list[Any] = [None] if values is None else values.to_pylist()
    if not all(isinstance(text, str) for text in texts):
        raise InvalidFrame(f"expected a column {column!r} of texts, none of them missing: they name partitions")
    return texts


def with_noisy(frame: F, column: str, noisy: Any) -> F:
    """Return a table with a column ``noisy`` in the place of its counts."""
    table: Any = frame
    match _library(frame):
        case "pandas":
            copy = table.copy()
            copy[column] = noisy.to_numpy()
            return copy.rename(columns={column: NOISY})  # type: ignore[no-any-return]
        case "polars":
            polars = importlib.import_module("polars")
            return table.with_columns(polars.Series(column, noisy)).rename({column: NOISY})  # type: ignore[no-any-return]
        case _:
            place = table.schema.get_field_index(column)
            return table.set_column(place, NOISY, noisy)  # type: ignore[no-any-return]


def _names(frame: Any) -> list[str]:
    return list(frame.schema.names if _library(frame) == "pyarrow" else frame.columns)


def _values(frame: Any, column: str) -> Any:
    """Return a column as one Arrow array; None where Arrow has no type for its values. No error quotes a value."""
    library, arrow = _library(frame), _arrow()
    with contextlib.suppress(arrow.ArrowException, OverflowError, TypeError, ValueError):
        if library == "pandas":
            values = arrow.array(frame[column], from_pandas=True)
        else:
            values = frame[column].to_arrow() if library == "polars" else frame.column(column)
        return values.combine_chunks() if isinstance(values, arrow.ChunkedArray) else values
    return None


def stream_of(counts: Any) -> bytes:
    """Return counts as an Arrow stream of one column."""
    arrow = _arrow()
    batch = arrow.record_batch([counts], names=[COUNT])
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def noisy_of(stream: bytes, rows: int) -> Any:
    """Return the noisy counts of an answer.

    Raises:
        UnexpectedAnswer: the answer has not as many noisy counts as were sent.
    """
    arrow, noisy = _arrow(), None
    with contextlib.suppress(arrow.ArrowException, KeyError):
        noisy = arrow.ipc.open_stream(stream).read_all().column(NOISY).combine_chunks()
    if noisy is None or len(noisy) != rows or noisy.type != arrow.int64():
        raise UnexpectedAnswer("expected an Arrow stream with a noisy count for each count")
    return noisy


def places_of(texts: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers of the rows of each partition, partitions in the order in which they first occur."""
    places: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        places.setdefault(text, []).append(number)
    return places


def joined(parts: Iterable[tuple[list[int], Any]]) -> Any:
    """Return the noisy counts of all partitions in the order of the rows."""
    arrow, rows, noisy = _arrow(), list[int](), list[Any]()
    for places, part in parts:
        rows += places
        noisy.append(part)
    order = arrow.compute.sort_indices(arrow.array(rows, arrow.int64())) if rows else arrow.array([], arrow.int64())
    return arrow.concat_arrays(noisy).take(order)
