"""Tables as spreadsheets save them."""

import pytest

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
        (b'place;count\n"a;b";1\n', b"place,count\na;b,1\n"),
        (b"a;b,count\nx,1\n", b"a;b,count\nx,1\n"),
        (b"count\n1\n", b"count\n1\n"),
        (b"count", b"count"),
        (b"", b""),
        (b'place;count\n"a;1\n', b'place;count\n"a;1\n'),
        (b"place;count\n\xff;1\n", b"place;count\n\xff;1\n"),
        (b"place;count\na;1\n\nb;2\n", b"place,count\na,1\n\nb,2\n"),
    ],
)
def test_a_table_is_sent_with_commas(table: bytes, sent: bytes) -> None:
    assert _sent(table) == sent


def test_the_first_line_says_what_separates() -> None:
    assert [separator_of(line) for line in ("a\tb;c", "a;b,c", "a,b", "a")] == ["\t", ";", ",", ","]
