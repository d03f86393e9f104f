"""Uploaded columns of numbers."""

import json

import pytest

from service.errors import InvalidInput
from service.pages.shell import number_column
from service.pages.shell.number_column import MOST_BYTES, MOST_NUMBERS, as_json, memory_of, read_column


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
        (b"1\r2\r\n3", [1, 2, 3]),
        (b"1\n" + b" " * 2000 + b"\n2", [1, 2]),
        (b'""\n1', [1]),
        (b"1e300", [1e300]),
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
        (b"1\n" + b"1" * 300 + b" " * 300 + b"2", "line 2"),
        (b"1\n" + b" " * 2000 + b"\nx", "line 3"),
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


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_ends_are_counted_before_lines_are_read(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(number_column, "MOST_NUMBERS", 1000)
    assert read_column(end * 2000, "/residuals") == []
    monkeypatch.delattr(number_column, "_lines")
    with pytest.raises(InvalidInput, match="1,000 numbers"):
        read_column(end * 2001, "/residuals")


def test_numbers_stop_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_column, "MOST_NUMBERS", 3)
    monkeypatch.setattr(number_column, "_line_ends", lambda _: (0, 0))
    with pytest.raises(InvalidInput, match="3 numbers"):
        read_column(b"1\n2\n3\n4\nno number", "/residuals")


def test_the_memory_of_numbers_is_bounded_by_the_lines() -> None:
    one = memory_of(b"1")
    assert memory_of(b"1\n" * 999) == 1000 * one
    assert memory_of(b"\n" * (2 * MOST_NUMBERS)) == MOST_NUMBERS * one
    numbers = [10**17 + number for number in range(1000)]
    assert one * 1000 > sum(map(int.__sizeof__, numbers)) + numbers.__sizeof__() + len(as_json({"x": numbers}))


def test_columns_are_written_as_json_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    question = {"residuals": [1, -2.5, 1e300, 4, 5], "counts": [], "confidence": "0.95", "shift": 1}
    for part in (2, 5, 100):
        monkeypatch.setattr(number_column, "_PART", part)
        assert as_json(question) == json.dumps(question).encode()
