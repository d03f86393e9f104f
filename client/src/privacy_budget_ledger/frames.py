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
_EXACT = {16: 1 << 11, 32: 1 << 24, 64: 1 << 53}  # by the bits of a floating-point type: all integers so far are in it
_LIBRARIES = {"pandas": ("DataFrame",), "polars": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        message = "expected pyarrow, with which tables are sent: install the package as './client[arrow]'"
    raise InvalidFrame(message)


def _library(frame: Any) -> str:
    for kind in type(frame).__mro__:
        library = kind.__module__.partition(".")[0]
        if kind.__name__ in _LIBRARIES.get(library, ()):
            return library
    name = type(frame).__qualname__
    hint = ": call its collect() first" if name == "LazyFrame" else ""
    raise InvalidFrame(f"expected a DataFrame of pandas or polars, or an Arrow table, got {name}{hint}")


def counts_of(frame: Any, column: str) -> Any:
    """Return a column of whole numbers as an Arrow array of int64.

    Floating-point numbers that are whole are taken too: pandas makes them of integers where it joins tables.

    Raises:
        InvalidFrame: the table has no such column, or has a column ``noisy``, or the column has other values than whole
            numbers. The message names the column's type and how many rows are wrong, and no value.
    """
    names = _names(frame)
    if names.count(column) != 1:
        raise InvalidFrame(f"expected one column {column!r}, got {names.count(column)}")
    if NOISY in names and column != NOISY:
        raise InvalidFrame(f"expected no column {NOISY!r}: the result has the noisy counts in it")
    found, values = _values(frame, column), None
    if found is not None and not found.null_count:
        with contextlib.suppress(_arrow().ArrowException):
            values = _whole(found)
    if values is None:
        expected = f"expected a column {column!r} of whole numbers within 2^62 of 0, none of them missing"
        raise InvalidFrame(f"{expected}; got the type {_type_of(frame, column)}{_wrong_rows(found)}")
    return values


def _whole(found: Any) -> Any:
    """Return numbers as int64; None for another type, and where floating-point numbers may have been rounded."""
    arrow = _arrow()
    if arrow.types.is_integer(found.type):
        return found.cast(arrow.int64())
    if not arrow.types.is_floating(found.type):
        return None
    values, compute = found.cast(arrow.int64()), importlib.import_module("pyarrow.compute")  # refuses fractions
    largest = compute.max(compute.abs(values)).as_py() or 0
    return values if largest <= _EXACT[found.type.bit_width] else None


def _type_of(frame: Any, column: str) -> str:
    return str(frame.schema.field(column).type if _library(frame) == "pyarrow" else frame[column].dtype)


def _wrong_rows(found: Any) -> str:
    """Return how many rows of a column are missing or not whole, in words; no error quotes a value."""
    arrow = _arrow()
    if found is None or not (arrow.types.is_integer(found.type) or arrow.types.is_floating(found.type)):
        return ""
    numbers, fractions = found.drop_null(), 0
    if arrow.types.is_floating(found.type):
        compute = importlib.import_module("pyarrow.compute")
        finite = numbers.filter(compute.is_finite(numbers))
        fractions = len(numbers) - (compute.sum(compute.equal(compute.floor(finite), finite)).as_py() or 0)
    wrong = [
        f"{what}: {number}" for what, number in (("missing", found.null_count), ("not whole", fractions)) if number
    ]
    return f" ({', '.join([f'rows: {len(found)}', *(wrong or ['some are too large'])])})"


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
