"""Noisy counts as tables: those of a publication package, and drawn tables as Parquet.

A package has CSV and Parquet with the same columns and rows.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # likewise

from service.api.http import csv_answers
from service.api.publication.sink import Sink
from service.api.schemas import count_tables
from service.api.schemas.granularity import json_counts, unit_of
from service.api.schemas.tabulation_responses import table_of
from service.ledger.draws.stored_draws import DrawRecord
from service.ledger.draws.tabulation_layout import Layout
from service.privacy.mechanisms import Mechanism

PARQUET = "application/vnd.apache.parquet"
_TEXT, _COUNT = pa.dictionary(pa.int32(), pa.string()), pa.int64()
COUNTS = pa.schema(
    [("draw", _TEXT), ("mechanism", _TEXT), ("partition", _TEXT), ("repetition", _COUNT), ("place", _COUNT)]
)
"""Columns of noisy counts before the last one, ``noisy``."""
GROUPS = pa.schema(
    [
        *(("draw", _TEXT), ("level", _TEXT), ("group", pa.string()), ("total_only", pa.bool_()), ("detail", _TEXT)),
        *(("place", _COUNT), ("noisy", _COUNT)),
    ]
)
"""Columns of tabulations."""


def schema_of(mechanisms: Collection[Mechanism]) -> pa.Schema:
    """Return the columns of noisy counts of some mechanisms.

    With a granularity other than 1, counts are texts of exact numbers. Where one has a threshold, counts have a key.
    """
    whole, keyed = all(one.unit == 1 for one in mechanisms), any(one.threshold is not None for one in mechanisms)
    columns = COUNTS.insert(len(COUNTS) - 1, pa.field("key", pa.string())) if keyed else COUNTS
    return columns.append(pa.field("noisy", _COUNT if whole else pa.string()))


def counts_of(schema: pa.Schema) -> Callable[[DrawRecord], pa.Table]:
    """Return the function that makes a draw a table with this schema."""

    def table(record: DrawRecord) -> pa.Table:
        size = record.noisy.size
        facts = (record.id, record.mechanism.name, record.turn.partition or None, record.turn.repetition)
        columns = [pa.repeat(pa.scalar(fact, field.type), size) for fact, field in zip(facts, schema, strict=False)]
        if "key" in schema.names:
            columns.append(pa.nulls(size, pa.string()) if record.keys is None else pa.array(record.keys, pa.string()))
        whole = schema.field("noisy").type == _COUNT
        noisy = (
            record.noisy
            if whole
            else [str(one) for one in json_counts(record.noisy.tolist(), unit_of(record.mechanism))]
        )
        return pa.table([*columns, pa.array(np.arange(size)), pa.array(noisy, schema.field("noisy").type)], schema)

    return table


def groups_of(record: DrawRecord, layout: Layout) -> pa.Table:
    """Return a tabulation as a table with a row for each noisy count."""
    table = table_of(record, layout)
    lists = table.column("noisy").combine_chunks()
    sizes = np.diff(lists.offsets.to_numpy())
    rows, size = np.repeat(np.arange(sizes.size), sizes), int(sizes.sum())
    places = np.arange(size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    facts = [pa.repeat(pa.scalar(fact, _TEXT), size) for fact in (record.id, layout.level)]
    named = [table.column(name).take(pa.array(rows)) for name in ("group", "total_only", "detail")]
    columns = [*facts, *named, pa.array(places), lists.flatten()]
    return pa.table(
        [column.cast(field.type) for column, field in zip(columns, GROUPS, strict=True)],
        GROUPS,
    )


def as_csv(schema: pa.Schema, tables: Iterable[pa.Table]) -> Iterator[str]:
    """Yield tables of one schema as CSV."""
    rows = (
        list(row.values())
        for table in tables
        for batch in table.to_batches(max_chunksize=1 << 12)
        for row in batch.to_pylist()
    )
    yield from csv_answers.written(schema.names, rows)


def as_parquet(schema: pa.Schema, tables: Iterable[pa.Table]) -> Iterator[bytes]:
    """Yield tables of one schema as one Parquet file."""
    parts = Sink()
    with pq.ParquetWriter(pa.PythonFile(parts, "w"), schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
            yield parts.taken()
    yield parts.taken()


def stored_as_parquet(record: DrawRecord) -> Iterator[bytes]:
    """Yield a stored draw as one Parquet file, with the columns of a publication package."""
    if record.layout is not None:
        return as_parquet(GROUPS, [groups_of(record, record.layout)])
    schema = schema_of([record.mechanism])
    return as_parquet(schema, [counts_of(schema)(record)])


def drawn_as_parquet(
    names: Sequence[str], parts: Iterable[Sequence[Sequence[object]]], *, whole: bool
) -> Iterator[bytes]:
    """Yield a drawn table as one Parquet file.

    Args:
        names: of its columns: labels, noisy counts, margins and confidences.
        parts: lists of its rows.
        whole: counts are integers; otherwise they are texts of exact numbers.
    """
    count = _COUNT if whole else pa.string()
    types = {count_tables.NOISY: count, count_tables.MARGIN: count, count_tables.CONFIDENCE: pa.float64()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
    tables = (
        pa.table(
            [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)],
            schema,
        )
        for rows in parts
    )
    yield from as_parquet(schema, tables)
