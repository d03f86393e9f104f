"""The layout of a publication package: a ZIP archive in which nothing but the files differs from what is expected."""

import struct
import zipfile
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import BinaryIO

_LOCAL, _SIZES, _LISTED = struct.Struct("<4s5H3L2H"), struct.Struct("<4sL2Q"), struct.Struct("<4s4B4H3L5H2L")
_END, _LARGE_END = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q4sLQL")
_LATER = struct.pack("<2H2Q", 1, 16, 0, 0)  # the sizes stand behind the file
_FORMS = ((45, 0xFFFFFFFF), (20, 0))  # version and size before a file: of present Pythons, of those before 3.11.4
_FLAGS, _UNIX, _MODE = 8, 3, 0o644 << 16
_LARGEST, _MOST = (1 << 31) - 1, (1 << 16) - 1  # sizes and places, and numbers of files, without longer records
_PIECE = 1 << 20  # bytes that are read at a time


def require_nothing_else(file: BinaryIO, files: Sequence[zipfile.ZipInfo], at: str) -> None:
    """Require that all bytes of an archive beside its files are those that the service writes.

    Readers differ in what they use: the list at the end, or what stands before and behind each file, and fields that
    few know. So they all find the same files, and the archive is no document of another kind.

    Args:
        file: the archive as it is stored.
        files: as the archive lists them. The sizes are known to be right.
        at: the moment that all files have.

    Raises:
        BadZipFile: the text says what is wrong.
    """
    date, time = _dos(at)
    file.seek(0)
    listed = bytearray()
    for one in files:
        name, place = one.filename.encode("ascii"), file.tell()
        for version, size in _FORMS:
            numbers = (version, _FLAGS, zipfile.ZIP_DEFLATED, time, date, 0, size, size, len(name), len(_LATER))
            before = _LOCAL.pack(b"PK\3\4", *numbers) + name + _LATER
            file.seek(place)
            if file.read(len(before)) == before:
                break
        else:
            raise zipfile.BadZipFile(
                f"expected {one.filename} at byte {place}, as the service writes it. An archive that another program"
                " has packed again is refused, even with the same files"
            )
        _require_one_stream(file, one)
        behind = _SIZES.pack(b"PK\7\x08", one.CRC, one.compress_size, one.file_size)
        if file.read(len(behind)) != behind:
            raise zipfile.BadZipFile(f"expected the sizes of {one.filename} behind it")
        listed += listed_as(one, name, version, (time, date), place)
    expected = bytes(listed) + end_of_list(len(files), len(listed), file.tell())
    if file.read(len(expected) + 1) != expected:
        raise zipfile.BadZipFile("expected the list of the files after them, and nothing else")


def _dos(at: str) -> tuple[int, int]:
    """Return the date and the time of a moment as archives write them."""
    moment = datetime.fromisoformat(at)
    date = (moment.year - 1980) << 9 | moment.month << 5 | moment.day
    return date, moment.hour << 11 | moment.minute << 5 | moment.second // 2


def _require_one_stream(file: BinaryIO, one: zipfile.ZipInfo) -> None:
    """Require that the compressed data end where the list says; otherwise other files could stand behind them."""
    left, stream = one.compress_size, zlib.decompressobj(-zlib.MAX_WBITS)
    while left and not stream.eof:
        piece = file.read(min(left, _PIECE))
        left -= len(piece)
        while piece and not stream.eof:
            stream.decompress(piece, _PIECE)
            piece = stream.unconsumed_tail
    if left or stream.unused_data or not stream.eof:
        raise zipfile.BadZipFile(f"expected {one.filename} to fill its place")


def listed_as(one: zipfile.ZipInfo, name: bytes, version: int, moment: tuple[int, int], place: int) -> bytes:
    """Return what the list says of a file.

    Args:
        one: the file.
        name: its name.
        version: of the format that reading it takes.
        moment: its time and date.
        place: where it begins.
    """
    sizes, longer = (one.compress_size, one.file_size), list[int]()
    if max(sizes) > _LARGEST:
        longer += [one.file_size, one.compress_size]
        sizes = (0xFFFFFFFF, 0xFFFFFFFF)
    if place > _LARGEST:
        longer.append(place)
        place = 0xFFFFFFFF
    extra = struct.pack(f"<2H{len(longer)}Q", 1, 8 * len(longer), *longer) if longer else b""
    version = 45 if longer else version
    form = (version, _UNIX, version, 0, _FLAGS, zipfile.ZIP_DEFLATED, *moment)
    lengths = (len(name), len(extra), 0, 0, 0)
    return _LISTED.pack(b"PK\1\2", *form, one.CRC, *sizes, *lengths, _MODE, place) + name + extra


def end_of_list(count: int, size: int, place: int) -> bytes:
    """Return what stands after the list.

    Args:
        count: the number of files.
        size: the bytes of the list.
        place: where the list begins.
    """
    longer = b""
    if count > _MOST or max(size, place) > _LARGEST:
        numbers = (44, 45, 45, 0, 0, count, count, size, place)
        longer = _LARGE_END.pack(b"PK\6\6", *numbers, b"PK\6\7", 0, place + size, 1)
        count, size, place = min(count, _MOST), min(size, 0xFFFFFFFF), min(place, 0xFFFFFFFF)
    return longer + _END.pack(b"PK\5\6", 0, 0, count, count, size, place, 0)
