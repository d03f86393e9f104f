"""Tables as spreadsheets save them: their columns are separated by tabs, semicolons or commas."""

import csv
import io

from service.api.schemas.count_tables import COUNT
from service.pages.shell.typed_numbers import with_point


def separator_of(first_line: str) -> str:
    """Return the character that separates the columns of a table with this first line."""
    return next((one for one in "\t;" if one in first_line), ",")


def has_commas(content: bytes) -> bool:
    """Return whether commas separate the names of a table of true counts, one of which is ``count``."""
    first = content[: content.find(b"\n") % (len(content) + 1)].decode("utf-8-sig", "replace")
    return separator_of(first) == "," or COUNT in (name.strip('"\r') for name in first.split(","))


def with_commas(content: bytes) -> bytes:
    """Return a table of true counts separated by commas, as ``/v1`` reads it, with decimal points.

    A table that is not understood is returned as it is, for ``/v1`` to refuse.
    """
    separator = "\t" if b"\t" in content.partition(b"\n")[0] else ";"
    written = io.StringIO()
    try:
        rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=separator, strict=True)
        names = next(rows)
        place = names.index(COUNT) if COUNT in names else len(names)
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow([with_point(cell) if number == place else cell for number, cell in enumerate(row)])
    except (UnicodeDecodeError, csv.Error):
        return content
    return written.getvalue().encode()
