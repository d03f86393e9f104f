"""Tables as spreadsheets save them."""

import tracemalloc

import pytest

from service.api.schemas.count_tables import MOST_COLUMNS
from service.pages.counts_form import _UNFOLDED
from service.pages.shell.separated_text import has_commas, separator_of, with_commas


def _sent(table: bytes) -> bytes:
    return table if has_commas(table) else with_commas(table)


@pytest.mark.parametrize(
    ("table", "sent"),
    [
        (b"county,count\r\n001,12\r\n", b"county,count\r\n001,12\r\n"),
        (b"county;count\r\n001;12\r\n", b"county,count\n001,12\n"),
        (b"\xef\xbb\xbfcounty\tcount\n001\t12\n", b"county,count\n001,12\n"),
        (b"count;county\n2,5;a, b\n", b'count,county\n2.5,"a, b"\n'),
        (b"place;count\na;1.000\nb;1.234.567\nc;0.125\n", b"place,count\na,1.000 \nb,1.234.567 \nc,0.125\n"),
        (b"place\tcount\na\t1.000\nb\t1.234\n", b"place,count\na,1.000 \nb,1.234\n"),
        (b'place;count\n"a;b";1\n', b"place,count\na;b,1\n"),
        (b"a;b,count\nx,1\n", b"a;b,count\nx,1\n"),
        (b"count\n1\n", b"count\n1\n"),
        (b"count", b"count"),
        (b"", b""),
        (b'place;count\n"a;1\n', b'place;count\n"a;1\n'),
        (b"place;count\n\xff;1\n", b"place;count\n\xff;1\n"),
        (b"place;count\na;1\n\nb;2\n", b"place,count\na,1\n\nb,2\n"),
        (b"place;count\ra;1\r", b"place,count\na,1\n"),
        ("place;count\né;1\n".encode(), "place,count\né,1\n".encode()),
    ],
)
def test_a_table_is_sent_with_commas(table: bytes, sent: bytes) -> None:
    assert _sent(table) == sent


_WIDEST = [f'"{number:0100}' + '""' * 100 + '"' for number in range(MOST_COLUMNS - 1)]


def test_the_longest_labels_of_all_columns_are_read() -> None:
    sent = _sent(";".join([*_WIDEST, "count"]).encode() + b"\n" + ";".join([*_WIDEST, "1"]).encode())
    assert sent == ",".join([*_WIDEST, "count"]).encode() + b"\n" + ",".join([*_WIDEST, "1"]).encode() + b"\n"


@pytest.mark.parametrize("line", ["\u0100,", "\u0100;", "12;", '"\r";', ";", "a"])
@pytest.mark.parametrize("first", ["", ";", "place;count\n"])
def test_the_memory_for_a_long_row_is_bounded(first: str, line: str) -> None:
    table = first.encode() + line.encode() * (4_000_000 // len(line.encode()))
    tracemalloc.start()
    try:
        assert _sent(table) == table  # for /v1 to refuse
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_the_memory_for_short_rows_is_within_what_the_form_reserves() -> None:
    table = b"place;count\n" + b",;,\n" * 250_000
    tracemalloc.start()
    try:
        assert len(_sent(table)) > 1.4 * len(table)
        assert tracemalloc.get_traced_memory()[1] < _UNFOLDED * len(table)
    finally:
        tracemalloc.stop()


def test_the_first_line_says_what_separates() -> None:
    assert [separator_of(line) for line in ("a\tb;c", "a;b,c", "a,b", "a")] == ["\t", ";", ",", ","]
