"""The layout of a ZIP archive: its files one after the other, their list, and nothing else."""

import struct
import zipfile
import zlib
from typing import BinaryIO

_LOCAL, _LISTED, _END = struct.Struct("<4s22xHH"), struct.Struct("<4s24xHHH12x"), 22  # the last one: bytes
_SHORT, _LONG = struct.Struct("<4sLLL"), struct.Struct("<4sLQQ")  # of the sizes behind a file
_FOR_LARGE = 56 + 20  # bytes before the end that are there in archives of more than 4 GiB
_PIECE = 1 << 20  # bytes that are read at a time


def require_nothing_else(file: BinaryIO, archive: zipfile.ZipFile) -> None:
    """Require that an archive has no byte beside its files and their list.

    Some readers go along the files, and others use the list at the end. Both find the same files then, and the archive
    is no document of another kind either.

    Args:
        file: the archive as it is stored.
        archive: the same, whose files are known to have the sizes that are stated.

    Raises:
        BadZipFile: the text says what is wrong.
    """
    at = 0
    for one in sorted(archive.infolist(), key=lambda listed: listed.header_offset):
        file.seek(at)
        signature, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
        if one.header_offset != at or signature != b"PK\3\4" or file.read(name) != one.orig_filename.encode():
            raise zipfile.BadZipFile(f"expected {one.filename} at byte {at}")
        at += _LOCAL.size + name + extra
        _require_one_stream(file, at, one)
        at += one.compress_size + _sizes_behind(file, at + one.compress_size, one)
    _require_end(file, at, archive)


def _require_one_stream(file: BinaryIO, at: int, one: zipfile.ZipInfo) -> None:
    """Require that the compressed data end where the list says; otherwise other files could stand behind them."""
    file.seek(at)
    left, stream = one.compress_size, zlib.decompressobj(-zlib.MAX_WBITS)
    while left and not stream.eof:
        piece = file.read(min(left, _PIECE))
        left -= len(piece)
        while piece and not stream.eof:
            stream.decompress(piece, _PIECE)
            piece = stream.unconsumed_tail
    if one.compress_type != zipfile.ZIP_DEFLATED or left or stream.unused_data or not stream.eof:
        raise zipfile.BadZipFile(f"expected {one.filename} to fill its place")


def _sizes_behind(file: BinaryIO, at: int, one: zipfile.ZipInfo) -> int:
    """Return the length of the sizes behind a file; they are there if those before it were not known yet."""
    if not one.flag_bits & 8:
        return 0
    file.seek(at)
    found = file.read(_LONG.size)
    for form in (_LONG, _SHORT):  # of an empty file, the short form is the beginning of the long one
        if found[: form.size] == form.pack(b"PK\7\x08", one.CRC, one.compress_size, one.file_size):
            return form.size
    raise zipfile.BadZipFile(f"expected the sizes of {one.filename} behind it")


def _require_end(file: BinaryIO, at: int, archive: zipfile.ZipFile) -> None:
    file.seek(at)
    rest, place = file.read(), 0
    for _ in archive.infolist():
        signature, name, extra, comment = _LISTED.unpack_from(rest, place)
        if signature != b"PK\1\2" or comment:
            raise zipfile.BadZipFile("expected the list of the files after them")
        place += _LISTED.size + name + extra
    if archive.comment or len(rest) - place not in (_END, _FOR_LARGE + _END):
        raise zipfile.BadZipFile("expected nothing after the list of the files")
