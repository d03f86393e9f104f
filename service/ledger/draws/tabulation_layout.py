"""What the values of a tabulation are: its groups in order, each with its detail. Public, as its noisy counts are."""

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

from service.errors import TooLarge

MOST_BYTES = 10**9
_LEVEL = 6
_TOTAL_ONLY = "0"


@dataclass(frozen=True, slots=True)
class Layout:
    """The groups of one tabulation.

    Attributes:
        level: the name of their level in the release's plan.
        terms: what else the answer says of them: mechanisms, margins, the thresholds and age bins of the details.
        groups: their names.
        details: a digit for each group, its detail as ``noise.tabulation`` numbers them.
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
    """A layout as it is stored.

    Raises:
        TooLarge: it is more than is read again.
    """
    document = {"level": layout.level, "terms": layout.terms, "groups": layout.groups, "details": layout.details}
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    if len(written) > MOST_BYTES:
        raise TooLarge(f"expected groups whose names take at most {MOST_BYTES} bytes; tabulate them in parts")
    return SealedLayout(layout, zlib.compress(written, _LEVEL), digest_of(written))


def checked_layout(packed: bytes, digest: str, level: object, groups: object) -> Layout:
    """The layout of these bytes, whoever made them, if it is the one of which the journal says this.

    Raises:
        ValueError: it is not, or is none.
    """
    written = inflated(packed)
    if digest_of(written) != digest:
        raise ValueError("expected the layout of this digest")
    layout = read_layout(written)
    if (layout.level, len(layout.groups)) != (level, groups):
        raise ValueError("expected the level and the groups that the journal says")
    return layout


def digest_of(written: bytes) -> str:
    """The hash of a layout's bytes before compression."""
    return hashlib.sha256(written).hexdigest()


def read_layout(written: bytes) -> Layout:
    """The layout of these bytes before compression.

    Raises:
        ValueError: it is none.
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
    """The groups that are marked as total only, and the others: each part has a branch of the level's choice."""
    marked: list[str] = []
    others: list[str] = []
    for group, detail in zip(layout.groups, layout.details, strict=True):
        (marked if detail == _TOTAL_ONLY else others).append(group)
    return marked, others


def inflated(packed: bytes) -> bytes:
    """The bytes of a layout before compression, whoever made them.

    Raises:
        ValueError: they are none, or too many.
    """
    unpacking = zlib.decompressobj()
    try:
        written = unpacking.decompress(packed, MOST_BYTES + 1)
    except zlib.error:
        raise ValueError("expected a zlib stream") from None
    if len(written) > MOST_BYTES or not unpacking.eof or unpacking.unused_data:
        raise ValueError("expected one whole zlib stream of a layout")
    return written
