"""Tables of counts: what is read and written, and refusals that name a place and never a value."""

import csv
import io
from fractions import Fraction
from itertools import chain

import numpy as np
import pytest

from service.api.http import csv_answers
from service.api.schemas.count_tables import (
    MOST_COLUMNS,
    CountTable,
    names_with_noisy,
    read_table,
    rows_with_noisy,
)
from service.api.schemas.granularity import MOST_FAULTS
from service.errors import InvalidInput, TooLarge

_SECRET = "918273645"  # a count that no error may repeat


def _table(text: str | bytes, most: int = 10**6) -> CountTable:
    return read_table(text.encode() if isinstance(text, str) else text, most, lambda _: None)


def _written(table: CountTable, noisy: list[int], unit: Fraction = Fraction(1)) -> list[list[str]]:
    rows = chain.from_iterable(rows_with_noisy(table, np.array(noisy, np.int64), unit, 3, 0.95))
    text = "".join(csv_answers.written(names_with_noisy(table), rows))
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_table_is_read_and_written(start: str, end: str) -> None:
    lines = ["county,count,sex", '"a, b",12,female', "é,-3,male", "é,9007199254740992,female"]
    table = _table(start + end.join(lines))
    assert table.counts == [12, -3, 2**53]
    assert _written(table, [1, -2, 3]) == [
        ["county", "noisy", "sex", "moe", "confidence"],
        ["a, b", "1", "female", "3", "0.95"],
        ["é", "-2", "male", "3", "0.95"],
        ["é", "3", "female", "3", "0.95"],
    ]


def test_counts_alone() -> None:
    assert _written(_table("count\n1\n1\n"), [4, 5]) == [
        ["noisy", "moe", "confidence"],
        ["4", "3", "0.95"],
        ["5", "3", "0.95"],
    ]


def test_labels_that_a_spreadsheet_would_run() -> None:
    assert [row[0] for row in _written(_table("place,count\n=1+1,1\n@x,2\n"), [1, 2])[1:]] == ["'=1+1", "'@x"]


def test_counts_with_a_granularity() -> None:
    table = _table("place,count\na,1.5\nb,-1/2\nc,2\n")
    assert table.units(Fraction(1, 2)).tolist() == [3, -1, 4]
    assert _written(table, [3, -1, 4], Fraction(1, 2))[1:] == [
        ["a", "1.5", "1.5", "0.95"],
        ["b", "-0.5", "1.5", "0.95"],
        ["c", "2.0", "1.5", "0.95"],
    ]
    with pytest.raises(InvalidInput) as refused:
        table.units(Fraction(1))
    assert refused.value.faults[0].pointer == "/2/2"


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        (b"", "/1"),
        (b"\n", "/1"),
        (_SECRET.encode(), "/1"),
        (f"a,{_SECRET}\nb,2\n".encode(), "/1"),
        (f"place;count\na;{_SECRET}\n".encode(), "/1"),
        (f"count,count\n{_SECRET},1\n".encode(), "/1"),
        (f"Count\n{_SECRET}\n".encode(), "/1"),
        (f"place,place,count\na,b,{_SECRET}\n".encode(), "/1/2"),
        (f"count,noisy\n{_SECRET},a\n".encode(), "/1/2"),
        (f"moe,count\na,{_SECRET}\n".encode(), "/1/1"),
        (f"count,confidence\n{_SECRET},a\n".encode(), "/1/2"),
        (f",count\na,{_SECRET}\n".encode(), "/1/1"),
        (b"count\n", "/2"),
        (f"place,count\na,1\nb,{_SECRET}x\n".encode(), "/3/2"),
        (f"place,count\na,1\nb, {_SECRET}\n".encode(), "/3/2"),
        (f"place,count\na,1\nb,\n{_SECRET}".encode(), "/3/2"),
        (f"place,count\na,NaN\nb,{_SECRET}".encode(), "/2/2"),
        (f"place,count\na,Infinity\nb,{_SECRET}".encode(), "/2/2"),
        (f"place,count\na,-\nb,{_SECRET}".encode(), "/2/2"),
        (f"place,count\na,1_000\nb,{_SECRET}".encode(), "/2/2"),
        ("place,count\na,١٢\n".encode(), "/2/2"),
        (f"place,count\na,{_SECRET}{'0' * 400}\n".encode(), "/2/2"),
        (f"place,count\na,1e{_SECRET}\n".encode(), "/2/2"),
        (f'place,count\na,"1,{_SECRET}"\n'.encode(), "/2/2"),
        (f"place,count\na,1,{_SECRET}\n".encode(), "/2"),
        (f"place,count\na\nb,{_SECRET}\n".encode(), "/2"),
        (f"place,count\na,{_SECRET}\n\nb,1\n".encode(), "/3"),
        (f'place,count\n"a,{_SECRET}\n'.encode(), "/2"),
        (f'place,count\n"a"b,{_SECRET}\n'.encode(), "/2"),
        (f"place,count\na,1\na,{_SECRET}\n".encode(), "/3"),
        (f'place,count\n"a\nb",{_SECRET}\n'.encode(), "/3/1"),
        (f" a,count\nx,{_SECRET}\n".encode(), "/1/1"),
        (f"place,count\na ,{_SECRET}\n".encode(), "/2/1"),
        (f"place,count\n,{_SECRET}\n".encode(), "/2/1"),
        (f"place,count\na\u200b,{_SECRET}\n".encode(), "/2/1"),
        (f"place,count\ne\u0301,{_SECRET}\n".encode(), "/2/1"),
        (f"place,count\n\uff13\uff16,{_SECRET}\n".encode(), "/2/1"),
        (f"place,count\n{'a' * 201},{_SECRET}\n".encode(), "/2/1"),
        (f"place,count\n{'a' * 200_000},{_SECRET}\n".encode(), "/2"),
        (f"place,count\na,{_SECRET}\n".encode() + b"\xff,1\n", "/3"),
        (f"place,count\na,{_SECRET}\n".encode("utf-16"), "/1"),
        (f"place,count\na\0,{_SECRET}\n".encode(), "/2"),
    ],
)  # fmt: skip
def test_refusals_name_a_place(text: bytes, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        _table(text)
    fault = refused.value.faults[0]
    assert fault.pointer == pointer
    assert fault.detail.startswith(f"line {pointer.split('/')[1]}")
    assert _SECRET not in str(refused.value) + fault.detail


def test_a_refusal_names_the_first_faults_in_the_order_of_the_rows() -> None:
    with pytest.raises(InvalidInput) as refused:
        _table("place,area,count\na,b,x\na, b,1\na,c\n c,d,1\nd,e,y\n")
    assert [fault.pointer for fault in refused.value.faults] == ["/2/3", "/3/2", "/4", "/5/1", "/6/3"]
    with pytest.raises(InvalidInput) as refused:
        _table("count\n" + "x\n" * 2 * MOST_FAULTS)
    assert len(refused.value.faults) == MOST_FAULTS


def _pointers(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as refused:
        _table(text)
    return [fault.pointer for fault in refused.value.faults]


def test_faults_of_names_of_rows_and_of_labels_are_told_together() -> None:
    assert _pointers("noisy, a,area,area,count\nb,b,b,b,x\nc\n") == ["/1/1", "/1/2", "/1/4", "/2/5", "/3"]
    assert _pointers("place,count\n a,1\n b,2\nc,x\nc,3\n") == ["/2/1", "/3/1", "/4/2", "/5"]
    assert _pointers('place,count\n a,x\n"b"c,1\n d,1\n') == ["/2/1", "/2/2", "/3"]
    assert _pointers("noisy,count\n") == ["/1/1", "/2"]


def test_all_counts_that_are_no_multiples_are_told() -> None:
    table = _table("place,count\na,1.5\nb,2\nc,3\nd,2.5\n")
    for unit, lines in ((Fraction(1), [2, 5]), (Fraction(2), [2, 4, 5])):
        with pytest.raises(InvalidInput) as refused:
            table.units(unit)
        assert [fault.pointer for fault in refused.value.faults] == [f"/{line}/2" for line in lines]
    with pytest.raises(InvalidInput) as refused:
        _table("count\n" + "0.5\n" * 2 * MOST_FAULTS).units(Fraction(1))
    assert len(refused.value.faults) == MOST_FAULTS


def test_two_spellings_of_a_place_are_two_rows_only_if_both_are_clear() -> None:
    assert _table("a,b,count\nx,y,1\nx,z,2\n").counts == [1, 2]
    with pytest.raises(InvalidInput):
        _table("a,b,count\nx,y,1\nx,z,2\nx,y,3\n")


def test_large_tables() -> None:
    with pytest.raises(TooLarge):
        _table("place,count\n" + "a,1\n" * 100, most=100)
    with pytest.raises(InvalidInput, match="columns"):
        _table(",".join(map(str, range(MOST_COLUMNS))) + ",count\n")
    table = _table("place,count\n" + "".join(f"{number},{number}\n" for number in range(40_000)))
    rows = _written(table, list(range(40_000)))
    assert [row[0] for row in rows[1:]] == [row[1] for row in rows[1:]]


def test_memory_is_reserved_before_it_is_read() -> None:
    reserved = list[int]()

    def take(size: int) -> None:
        reserved.append(size)
        raise TooLarge("no room")

    with pytest.raises(TooLarge):
        read_table(b"place,count\na,x\n", 100, take)
    assert reserved[0] > len("place,count\na,x\n")
