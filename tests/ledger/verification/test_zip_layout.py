"""The layout of packages, compared with what the standard library writes, and attacked byte by byte."""

import io
import struct
import zipfile
import zlib
from typing import Any

import pytest

from service.api.publication.archive import Archive
from service.ledger.verification.zip_layout import end_of_list, listed_as, require_nothing_else

_AT = "2026-11-28T03:04:05.678901Z"
_FILES = {"a.csv": b"label,noisy\r\n" * 40, "empty.txt": b"", "long.bin": bytes(range(256)) * 300}

_REFUSED = (zipfile.BadZipFile, KeyError, EOFError, RuntimeError, ValueError, zlib.error)  # as packages are checked


def _written(files: dict[str, bytes] = _FILES) -> bytes:
    archive = Archive(_AT)
    parts = [part for name, content in files.items() for part in archive.add(name, [content])]
    archive._zip.close()  # without the signed list
    return b"".join([*parts, archive._sink.taken()])


def _check(written: bytes) -> None:
    file = io.BytesIO(written)
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():  # as packages are checked: sizes are right, and names are expected ones
            assert archive.read(name) == _FILES[name]
        require_nothing_else(file, archive.infolist(), _AT)


def test_what_the_service_writes_is_accepted() -> None:
    _check(_written())
    _check(_written({}))


def test_no_byte_beside_the_files_may_differ() -> None:
    written = _written()
    with zipfile.ZipFile(io.BytesIO(written)) as archive:
        within = set[int]()
        for one in archive.infolist():
            start = one.header_offset + 30 + len(one.filename) + 20
            within |= set(range(start, start + one.compress_size))
    places = [place for place in range(len(written)) if place not in within]
    assert len(places) > 300
    for place in places:
        changed = bytearray(written)
        changed[place] ^= 1
        with pytest.raises(_REFUSED):
            _check(bytes(changed))


@pytest.mark.parametrize(
    "fields",
    [
        {"extra": struct.pack("<2H", 0x9999, 9) + b"forged..."},
        {"extra": struct.pack("<2HBL", 0x7075, 5 + 8, 1, 0) + b"long.bin"},
        {"comment": b"hello"},
        {"external_attr": 0o120777 << 16},
        {"internal_attr": 1},
        {"compress_type": zipfile.ZIP_STORED},
        {"date_time": (2026, 11, 28, 3, 4, 8)},
    ],
)
def test_a_file_has_no_other_fields(fields: dict[str, Any]) -> None:
    """The attack: readers that know a field, or that read what stands before a file, find other names or contents."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        about = zipfile.ZipInfo("a.csv", (2026, 11, 28, 3, 4, 5))
        about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
        for name, value in fields.items():
            setattr(about, name, value)
        with archive.open(about, "w", force_zip64=True) as opened:
            opened.write(_FILES["a.csv"])
    with pytest.raises(zipfile.BadZipFile):
        _check(file.getvalue())


def test_the_compressed_data_of_a_file_fill_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: another file behind the end of one's compressed data, within the size that the list states."""
    made = zipfile._get_compressor  # type: ignore[attr-defined]

    class Hiding:
        def __init__(self, *arguments: Any) -> None:
            self._compressor = made(*arguments)
            self.compress = self._compressor.compress

        def flush(self) -> bytes:
            return bytes(self._compressor.flush()) + b"PK\3\4 hidden"

    monkeypatch.setattr(zipfile, "_get_compressor", Hiding)
    written = _written()
    monkeypatch.undo()
    with pytest.raises(zipfile.BadZipFile, match="to fill its place"):
        _check(written)


class _Far(io.BytesIO):
    """A file that begins after as many bytes as it is told."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self._start = start

    def tell(self) -> int:
        return self._start + super().tell()

    def seek(self, *_: int) -> int:
        raise OSError("a stream")


@pytest.mark.parametrize("start", [0, 2**31 - 200, 2**31, 5 << 30])
@pytest.mark.parametrize("size", [0, 2**31, 2**32])
def test_long_archives_are_listed_as_by_the_standard_library(start: int, size: int) -> None:
    file = _Far(start)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        about = zipfile.ZipInfo("a.csv", (2026, 11, 28, 3, 4, 5))
        about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
        with archive.open(about, "w", force_zip64=True) as opened:
            opened.write(b"x")
        if size:
            about.file_size, about.compress_size = size, size - 7
        place, before = archive.start_dir, len(file.getvalue())
    listed = listed_as(about, b"a.csv", 45, (3 << 11 | 4 << 5 | 2, 46 << 9 | 11 << 5 | 28), start)
    assert file.getvalue()[before:] == listed + end_of_list(1, len(listed), place)
