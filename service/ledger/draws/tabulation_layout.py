"""The layout of a tabulation's values: its groups in order, each with its detail. It is public, like noisy counts."""

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

from service.errors import TooLarge

MOST_BYTES = 10**9
_LEVEL = 6
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_TOTAL_ONLY = "0"


@dataclass(frozen=True, slots=True)
class Layout:
    """The groups of one tabulation.

    Attributes:
        level: the name of their level in the release's plan.
        terms: the other statements of the answer about them: mechanisms, margins, the thresholds and age bins of the
            details.
        groups: their names.
        details: a digit for each group: the number of its detail in ``noise.tabulation``.
    """

    level: str
    terms: dict[str, Any]
    groups: list[str]
    details: str


@dataclass(frozen=True, slots=True)
class SealedLayout:
    """A layout with its bytes, and their hash before compression, which the journal keeps."""

    layout: Layout
    packed: bytes
    digest: str


def seal_layout(layout: Layout) -> SealedLayout:
    """Return a layout in its stored form.

    Raises:
        TooLarge: it is larger than a stored layout may be for reading.
    """
    document = {"level": layout.level, "terms": layout.terms, "groups": layout.groups, "details": layout.details}
    parts = _ENCODER.iterencode(document)  # as between these parts other threads run
    written = b"".join(part.encode() for part in parts)
    if len(written) > MOST_BYTES:
        raise TooLarge(f"expected groups whose names take at most {MOST_BYTES} bytes; tabulate them in parts")
    return SealedLayout(layout, zlib.compress(written, _LEVEL), digest_of(written))


def checked_layout(packed: bytes, digest: str, level: object, groups: object) -> Layout:
    """Return the layout in these bytes, of any origin, if the journal's values match it.

    Args:
        digest, level, groups: as the journal's entry has them; ``groups`` is their number.

    Raises:
        ValueError: they do not match, or the bytes hold no layout.
    """
    written = inflated(packed)
    if digest_of(written) != digest:
        raise ValueError("expected the layout of this digest")
    layout = read_layout(written)
    if (layout.level, len(layout.groups)) != (level, groups):
        raise ValueError("expected the level and the groups that the journal says")
    return layout


def digest_of(written: bytes) -> str:
    """Return the hash of a layout's bytes before compression."""
    return hashlib.sha256(written).hexdigest()


def read_layout(written: bytes) -> Layout:
    """Return the layout in these bytes before compression.

    Raises:
        ValueError: they hold none.
    """
    try:
        layout = Layout(**json.loads(written))
        whole = len(layout.groups) == len(layout.details) and set(layout.details) <= set("01234")
        named = all(isinstance(group, str) for group in layout.groups)
    except (TypeError, RecursionError):
        raise ValueError("expected a layout") from None
    if not (whole and named):
        raise ValueError("expected a layout")
    return layout


def by_branch(layout: Layout) -> tuple[list[str], list[str]]:
    """Return the groups marked as total only, and the others: each part takes one branch of the level's choice.

    Returns:
        Names in the layout's order.
    """
    marked: list[str] = []
    others: list[str] = []
    for group, detail in zip(layout.groups, layout.details, strict=True):
        (marked if detail == _TOTAL_ONLY else others).append(group)
    return marked, others


def inflated(packed: bytes) -> bytes:
    """Return the bytes of a layout before compression, from bytes of any origin.

    Raises:
        ValueError: they hold none, or too many.
    """
    unpacking = zlib.decompressobj()
    try:
        written = unpacking.decompress(packed, MOST_BYTES + 1)
    except zlib.error:
        raise ValueError("expected a zlib stream") from None
    if len(written) > MOST_BYTES or not unpacking.eof or unpacking.unused_data:
        raise ValueError("expected one whole zlib stream of a layout")
    return written
