"""Where a column's buffers are among those of an Arrow record batch: after those of all columns before it.

Each array of a batch has a node and, by its layout, a fixed number of buffers ("Arrow Columnar Format", "Buffer Listing
for Each Layout"), children after their parent. Views have as many more as the batch says, for each of them by itself.
"""

from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from pyarrow import types

from service.errors import InvalidInput


class Place(NamedTuple):
    """The number of a column's node and of its buffer of values, the latter without those that views have more."""

    node: int
    buffer: int
    views: int  # how many of them come before


def place_of(schema: pa.Schema, column: int, *, before_5: bool) -> Place:
    """The place of a column of fixed width.

    ``before_5``: up to version 4 of the format unions had a buffer more.

    Raises:
        InvalidInput: a column before it has a type whose layout is not known here.
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
        if not types.is_dictionary(kind):  # its values are in a message of their own
            pending += (kind.field(number).type for number in range(kind.num_fields))
    return Place(node, buffer + 1, views)  # the first of its two says what is null


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
    raise InvalidInput.at("", "expected columns whose types have a layout that is known here")
