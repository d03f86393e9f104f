"""Uploaded columns of numbers."""

import pytest

from service.errors import InvalidInput
from service.pages.shell import number_column
from service.pages.shell.number_column import MOST_BYTES, read_column


@pytest.mark.parametrize(
    ("content", "numbers"),
    [
        (b"1\n-2\n3\n", [1, -2, 3]),
        (b"\xef\xbb\xbfresidual\r\n1\r\n\r\n -2.5 \r\n", [1, -2.5]),
        (b'"residual"\n"1"\n"+2e3"\n', [1, 2000]),
        (b".5\n5.\n1E-3", [0.5, 5, 0.001]),
        (b"", []),
        (b"\n \n", []),
        (b"residual", []),
        ("Größe\n1".encode(), [1]),
    ],
)
def test_one_number_a_line(content: bytes, numbers: list[float]) -> None:
    assert read_column(content, "/residuals") == numbers


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"1\ntwo\n3", "line 2"),
        (b"1\n2,5\n", "line 2"),
        (b"4711,12\n", "line 1"),
        (b"a;b\n1;2\n", "line 1"),
        (b"nan\n1\n", "line 1"),
        (b"NA\n1\n", "line 1"),
        (b"1\ninf", "line 2"),
        (b"1e999", "line 1"),
        (b"1_000", "line 1"),
        (b"0x10", "line 1"),
        (b"residual\ncount\n1", "line 2"),
        (b"1" * 500, "line 1"),
        (b"-" * 500, "line 1"),
        ("١٢\n".encode(), "line 1"),
        (b"\x89PNG\r\n\x1a\n\x00", "UTF-8"),
        (b"PK\x03\x04\x00\x00", "another kind of file"),
    ],
)
def test_what_is_no_column_is_refused_without_an_echo(content: bytes, place: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_column(content, "/residuals")
    (fault,) = refused.value.faults
    assert fault.pointer == "/residuals"
    assert place in fault.detail
    for told in ("two", "4711", "12", "nan", "NA", "inf", "1_0", "0x", "count"):
        assert told not in fault.detail


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="16 MiB"):
        read_column(b" " * (MOST_BYTES + 1), "/residuals")
    monkeypatch.setattr(number_column, "MOST_NUMBERS", 1000)
    assert len(read_column(b"1\n" * 1000, "/residuals")) == 1000
    with pytest.raises(InvalidInput, match="1,000 numbers"):
        read_column(b"1\n" * 1001, "/residuals")
