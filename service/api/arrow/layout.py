"""The place of a column's buffers in an Arrow record batch: after those of all columns before it.

Each array of a batch has a node and, by its layout, a fixed number of buffers ("Arrow Columnar Format", "Buffer Listing
for Each Layout"), children after their parent. Each array of views has additional buffers, whose number the batch
states.
"""

from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from pyarrow import types

from service.errors import InvalidInput


class Place(NamedTuple):
    """The numbers of a column's node and of its value buffer; the latter does not count the extra buffers of views."""

    node: int
    buffer: int
    views: int  # arrays of views before it


def place_of(schema: pa.Schema, column: int, *, before_5: bool) -> Place:
    """Return the place of a column of fixed width.

    Args:
        schema: the schema of the stream.
        column: the number of the column.
        before_5: the stream has version 4 of the format or earlier, in which unions had one more buffer.

    Raises:
        InvalidInput: a column before it has a type whose layout is unknown here.
    """
    node = buffer = views = 0
    pending = [schema.field(number).type for number in range(column)]
    while pending:
        kind = pending.pop()
        if isinstance(kind, pa.BaseExtensionType):
            pending.append(kind.storage_type)
            continue
        node += 1
        buffer += _own_buffers(kind) + (before_5 and types.is_union(kind))
        views += types.is_string_view(kind) or types.is_binary_view(kind)
        if not types.is_dictionary(kind):  # the values of a dictionary are in a separate message
            pending += (kind.field(number).type for number in range(kind.num_fields))
    return Place(node, buffer + 1, views)  # the first of its two buffers marks nulls


def _own_buffers(kind: pa.DataType) -> int:
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        return 0
    if types.is_struct(kind) or types.is_fixed_size_list(kind) or (types.is_union(kind) and kind.mode == "sparse"):
        return 1
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return 3
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return 3
    fixed = types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind)
    others = (types.is_list, types.is_large_list, types.is_map, types.is_dictionary, types.is_union)
    views = (types.is_string_view, types.is_binary_view)
    if fixed or any(test(kind) for test in (*others, *views)):
        return 2
    raise InvalidInput.at("", "expected columns of types whose buffer layout this service knows")
