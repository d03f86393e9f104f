"""The place of a column's buffers in an Arrow record batch: after those of all columns before it."""

from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from pyarrow import types

from service.api.arrow.flatbuffer import Table
from service.errors import InvalidInput


class Place(NamedTuple):
    """The numbers of a column's node and of its value buffer; the latter does not count the extra buffers of views."""

    node: int
    buffer: int
    views: int  # arrays of views before it


def place_of(schema: pa.Schema, column: int, *, before_5: bool) -> Place:
    """Return the place of a column of fixed width, from a batch without rows that pyarrow writes of those before it.

    Args:
        schema: the schema of the stream.
        column: the number of the column.
        before_5: the stream has version 4 of the format or earlier, in which some types have one more buffer.

    Raises:
        InvalidInput: a column before it has a type of which pyarrow makes no empty array, such as a union.
    """
    version = pa.ipc.MetadataVersion.V4 if before_5 else pa.ipc.MetadataVersion.V5
    sink = pa.BufferOutputStream()
    try:
        before = pa.schema([("", _in_batch(schema.field(number).type)) for number in range(column)])
        with pa.ipc.new_stream(sink, before, options=pa.ipc.IpcWriteOptions(metadata_version=version)) as writer:
            # Not pa.nulls: of a hostile type it takes gigabytes or ends the process.
            writer.write_batch(pa.RecordBatch.from_pylist([], schema=before))
    except (pa.ArrowException, KeyError, TypeError):
        detail = "expected no column of a union or another rare type before the counts; put the column of counts first"
        raise InvalidInput.at("", detail) from None
    *_, batch = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    header = Table.root(memoryview(batch.metadata), 0).required_table(2)
    return Place(len(header.pairs(1)), len(header.pairs(2)) + 1, header.vector(4)[1])  # a bitmap of nulls comes first


def _in_batch(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's part in a batch: of a dictionary, only the indices."""
    return kind.index_type if types.is_dictionary(kind) else kind
