"""Population groups of a request, from JSON or an Arrow table, checked and as arrays over all groups."""

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pydantic import Field

from service.api.arrow.tables import read_table
from service.api.http.memory_room import Take
from service.api.schemas.exact_numbers import Label, Strict
from service.errors import InvalidInput
from service.noise.tabulation import LARGEST, MOST_AGES, SEXES, SIZES, GroupCounts
from service.privacy.partitions import distinct

Pointer = Callable[[int, str], str]
"""Function from a group's number and a field to the JSON pointer of that field."""

MOST_GROUPS = 250_000  # of a tabulation
MOST_NAME_BYTES = 16 << 20  # of the names of all of its groups
# Upper bound on the bytes of memory from the table to the answer, as measured: of a group, of a byte of its name (of
# Python's text it takes four where the name has one character of four bytes), and of a noisy count.
_A_GROUP, _A_NAME_BYTE, _A_COUNT = 500, 8, 32
_AN_AGE = 9  # of an age's count, with the mask that pads lists
_AT_ONCE = 500  # names that pyarrow turns into texts while no other thread runs
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_KINDS = {"group": "string", "total_only": "bool", "total": "int64", "sex_by_age": "lists of lists of int64"}
_AGES = f"expected for each of {SEXES} sexes a list of at most {MOST_AGES} counts, each of at least 0 and at most 2^53"

_Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
_Ages = Annotated[list[_Count], Field(min_length=1, max_length=MOST_AGES)]


class PopulationGroup(Strict):
    """A population group and its true counts, which are never stored or logged."""

    group: Label = Field(description="The name of the group, which occurs once ever at a level.")
    total_only: Annotated[bool, Field(strict=True)] = Field(
        False, description="true: only the group's total is tabulated, with the group's whole budget."
    )
    sex_by_age: Annotated[list[_Ages], Field(min_length=SEXES, max_length=SEXES)] | None = Field(
        None, description="A row of counts for each sex, by single year of age from 0 on."
    )
    total: _Count | None = Field(None, description="The total, in place of sex_by_age, where total_only is true.")


class NamedGroups(NamedTuple):
    """Groups in their order: public names and true counts; ``at`` gives the pointers of a request's fields.

    ``pointer``: that of all groups, or of the column of their names.
    """

    names: list[str]
    counts: GroupCounts
    at: Pointer
    pointer: str


def of_json(groups: Sequence[PopulationGroup]) -> NamedGroups:
    """Read the groups of a JSON body.

    Raises:
        InvalidInput: there are too many groups, or their names are too long together; a name is repeated, or a group
            lacks the counts that it needs.
    """

    def at(number: int, field: str) -> str:
        return f"/groups/{number}/{field}"

    names = [group.group for group in groups]
    _require_few(len(names), sum(len(name.encode()) for name in names), "/groups")
    total_only = np.array([group.total_only for group in groups])
    with_ages = np.array([group.sex_by_age is not None for group in groups])
    with_total = np.array([group.total is not None for group in groups])
    _check(names, total_only, with_ages, with_total, at)
    rows = [row for group in groups for row in group.sex_by_age or ()]
    counts = np.fromiter(chain.from_iterable(rows), np.int64)
    ages = _padded(counts, np.fromiter(map(len, rows), np.int64))
    totals = np.array([group.total or 0 for group in groups], np.int64)
    return NamedGroups(names, _groups(total_only, with_ages, totals, ages), at, "/groups")


def of_stream(body: bytes, most_bytes: int, take: Take) -> NamedGroups:
    """Read the groups of an Arrow stream; a fault names a column and a row.

    Args:
        body: the stream.
        most_bytes: the limit on the decompressed table, in bytes.
        take: reserves so many bytes of the shared memory limit.

    Raises:
        InvalidInput: there are too many groups, or their names are too long together; a name is repeated, a group lacks
            counts, a column is unknown, missing or of another type, or a count is out of range.
        TooLarge: the table decompresses to more than ``most_bytes``, or needs more memory than one principal may take.
        Unavailable: the memory is in use by other requests.
    """

    def at(number: int, field: str) -> str:
        return f"/{field}/{number}"

    table = read_table(body, most_bytes, _check_columns, take)
    if not table.num_rows:
        raise InvalidInput.at("/group", "expected at least one row")
    name_bytes = pc.sum(pc.binary_length(table["group"]), min_count=0).as_py()
    _require_few(table.num_rows, name_bytes, "/group")
    column = _column(table, "sex_by_age")
    take(2 * table.nbytes + _A_GROUP * table.num_rows + _A_NAME_BYTE * name_bytes + _bytes_of_counts(column))
    names = _names(_column(table, "group"), at)
    marked = _column(table, "total_only")
    total_only = np.zeros(len(names), bool) if marked is None else _plain(marked, "total_only")
    ages, with_ages = _ages(column, len(names), at)
    column = _column(table, "total")
    with_total = np.zeros(len(names), bool) if column is None else column.is_valid().to_numpy(zero_copy_only=False)
    _check(names, total_only, with_ages, with_total, at)
    totals = np.zeros(len(names), np.int64) if column is None else _plain(column.fill_null(0), "total")
    _check_counts(totals, lambda place: at(place, "total"))
    return NamedGroups(names, _groups(total_only, with_ages, totals, ages), at, "/group")


def _check_columns(schema: pa.Schema) -> None:
    names = schema.names
    if "group" not in names:
        raise InvalidInput.at("/group", "expected this column; it is missing")
    if len(set(names)) < len(names) or not set(names) <= _KINDS.keys():
        raise InvalidInput.at("", f"expected no columns but {', '.join(_KINDS)}, each at most once")
    for name in names:
        if not _is_kind(name, schema.field(name).type):
            raise InvalidInput.at(f"/{name}", f"expected a column of type {_KINDS[name]}")


def _is_kind(name: str, kind: pa.DataType) -> bool:
    if name == "sex_by_age":
        return _is_list(kind) and _is_list(kind.value_type) and bool(kind.value_type.value_type == pa.int64())
    return (
        kind in {"group": (pa.string(), pa.large_string()), "total_only": (pa.bool_(),), "total": (pa.int64(),)}[name]
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _check(
    names: Sequence[str],
    total_only: NDArray[np.bool_],
    with_ages: NDArray[np.bool_],
    with_total: NDArray[np.bool_],
    at: Pointer,
) -> None:
    if len(distinct(names)) < len(names):
        seen: set[str] = set()
        again = next(number for number, name in enumerate(names) if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidInput.at(at(again, "group"), "expected each group once")
    faulty = np.where(total_only, with_ages == with_total, ~with_ages | with_total)
    if faulty.any():
        detail = "expected sex_by_age and no total; where total_only is true, one of the two"
        raise InvalidInput.at(at(int(np.argmax(faulty)), "sex_by_age"), detail)


def _groups(
    total_only: NDArray[np.bool_],
    with_ages: NDArray[np.bool_],
    totals: NDArray[np.int64],
    ages: NDArray[np.int64],
) -> GroupCounts:
    """Build the groups from arrays; ``ages`` are those of the groups that have some, and their sum is the total."""
    totals = totals.copy()
    totals[with_ages] = ages.sum(axis=(1, 2))
    return GroupCounts(totals, total_only, ages, with_ages.cumsum() - 1)


def _padded(counts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return rows of counts, one for each sex of each group, as one array; shorter rows end with zeros."""
    longest = int(lengths.max(initial=1))
    if (lengths == longest).all():
        return counts.reshape(-1, SEXES, longest)
    rows = np.zeros((lengths.size, longest), np.int64)
    rows[np.arange(longest) < lengths[:, None]] = counts
    return rows.reshape(-1, SEXES, longest)


def _column(table: pa.Table, name: str) -> pa.Array | None:
    if name not in table.schema.names:
        return None
    chunks = table[name]
    return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()  # combine_chunks copies


def _plain(column: pa.Array, name: str) -> NDArray[Any]:
    if column.null_count:
        raise InvalidInput.at(f"/{name}", "expected a column without nulls")
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _require_few(groups: int, name_bytes: int, pointer: str) -> None:
    """Refuse groups whose names would be sorted, compared and written while all other requests wait."""
    if groups > MOST_GROUPS:
        raise InvalidInput.at(pointer, f"expected at most {MOST_GROUPS} groups, got {groups}")
    if name_bytes > MOST_NAME_BYTES:
        raise InvalidInput.at(
            pointer, f"expected groups whose names take at most {MOST_NAME_BYTES} bytes in UTF-8, got {name_bytes}"
        )


def _names(column: pa.Array, at: Pointer) -> list[str]:
    if column.null_count:
        raise InvalidInput.at("/group", "expected a column without nulls")
    names: list[str] = []
    for start in range(0, len(column), _AT_ONCE):
        names += column.slice(start, _AT_ONCE).to_pylist()
    for number, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise InvalidInput.at(at(number, "group"), "expected 1 to 200 characters and no control characters")
    return names


def _bytes_of_counts(column: pa.Array | None) -> int:
    """Return the bytes that ages take, each list as long as the longest, with the most noisy counts that they give."""
    if column is None:
        return 0
    longest: int = pc.max(pc.list_value_length(column.flatten())).as_py() or 0
    groups: int = len(column) - column.null_count
    return groups * (SEXES * _AN_AGE * min(longest, MOST_AGES) + max(SIZES) * _A_COUNT)


def _ages(column: pa.Array | None, groups: int, at: Pointer) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the ages of the groups that have some, and a mask of these groups."""
    if column is None:
        return np.zeros((0, SEXES, 1), np.int64), np.zeros(groups, bool)
    with_ages = column.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(with_ages)
    column = column.drop_null()

    def refuse(faulty: Any) -> None:
        if faulty.any():
            raise InvalidInput.at(at(int(places[np.argmax(faulty)]), "sex_by_age"), _AGES)

    refuse(_lengths(column) != SEXES)
    rows = column.flatten()
    lengths = _lengths(rows)
    refuse(((lengths < 1) | (lengths > MOST_AGES)).reshape(-1, SEXES).any(axis=1))
    counts = rows.flatten()
    ends = lengths.cumsum()[SEXES - 1 :: SEXES]

    def at_count(place: int) -> str:
        return at(int(places[np.searchsorted(ends, place, side="right")]), "sex_by_age")

    if counts.null_count:
        raise InvalidInput.at(at_count(int(np.argmin(counts.is_valid().to_numpy(zero_copy_only=False)))), _AGES)
    values: NDArray[np.int64] = counts.to_numpy(zero_copy_only=True)
    _check_counts(values, at_count)
    return _padded(values, lengths), with_ages


def _lengths(lists: pa.Array) -> NDArray[np.int64]:
    """Return the length of each list; a null list gets a length that no check accepts."""
    lengths: NDArray[np.int64] = pc.list_value_length(lists).cast(pa.int64()).fill_null(-1).to_numpy()
    return lengths


def _check_counts(counts: NDArray[np.int64], at: Callable[[int], str]) -> None:
    if counts.size and (int(counts.min()) < 0 or int(counts.max()) > LARGEST):
        place = int(np.argmax((counts < 0) | (counts > LARGEST)))
        raise InvalidInput.at(at(place), "expected counts of at least 0 and at most 2^53")
