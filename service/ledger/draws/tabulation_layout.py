"""The layout of a tabulation's values: its groups in order, each with its detail. It is public, like noisy counts."""

import hashlib
import json
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import TooLarge
from service.privacy.mechanisms import Mechanism
from service.privacy.planning.levels import Level

MOST_BYTES = 10**9
_LEVEL = 6
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_TOTAL_ONLY = "0"
_AT_ONCE = 2_000  # names that are pickled while no other thread runs
_PART = 1 << 16  # bytes of names that are read while no other thread runs
_BEFORE_NAMES, _BETWEEN_NAMES, _AFTER_NAMES = b',"groups":["', b'","', b'"],"details":"'


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

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the layout for a pickle, with the names in parts, between which other threads run at both ends."""
        starts = range(0, len(self.groups), _AT_ONCE)
        parts = [pickle.dumps(self.groups[start : start + _AT_ONCE], pickle.HIGHEST_PROTOCOL) for start in starts]
        return _of_parts, (self.level, self.terms, parts, self.details)


def _of_parts(level: str, terms: dict[str, Any], parts: list[bytes], details: str) -> Layout:
    groups: list[str] = []
    for part in parts:
        groups += pickle.loads(part)  # noqa: S301 - of our own process
    return Layout(level, terms, groups, details)


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
    written = bytearray()
    for part in _ENCODER.iterencode(document):  # joining the parts would keep other threads waiting
        written += part.encode()
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


def digest_of(written: bytes | bytearray) -> str:
    """Return the hash of a layout's bytes before compression."""
    return hashlib.sha256(written).hexdigest()


def read_layout(written: bytes) -> Layout:
    """Return the layout in these bytes before compression.

    Raises:
        ValueError: they hold none.
    """
    try:
        document = _read_in_parts(written)
        layout = Layout(**(json.loads(written) if document is None else document))
        whole = len(layout.groups) == len(layout.details) and set(layout.details) <= set("01234")
        named = all(isinstance(group, str) for group in layout.groups)
    except (TypeError, RecursionError):
        raise ValueError("expected a layout") from None
    if not (whole and named):
        raise ValueError("expected a layout")
    return layout


def _read_in_parts(written: bytes) -> dict[str, Any] | None:
    """Return the document of a layout, with the names read in parts, between which other threads run.

    A part that begins at a name and is JSON between brackets ends behind a name: cut elsewhere, it would end within a
    text. So the names are those that the whole would give.

    Returns:
        None where a part is no JSON, or what is around the names is not written as ``seal_layout`` does.
    """
    start, end = written.find(_BEFORE_NAMES), written.rfind(_AFTER_NAMES)
    if not 0 <= start < end:
        return None
    first, last = start + len(_BEFORE_NAMES) - 1, end + 1  # the quotes of the first name and after the last one
    groups: list[Any] = []
    try:
        document: dict[str, Any] = json.loads(written[:start] + _BEFORE_NAMES[:-1] + written[last:])
        around = {"level": document["level"], "terms": document["terms"]}, {"details": document["details"]}
        before, after = (_ENCODER.encode(part).encode() for part in around)
        if written[:start] != before[:-1] or written[last:] != b"]," + after[1:]:
            return None
        while first < last:
            names, beyond = _names_from(written, first, last)
            groups += names
            first = beyond + 1
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return document | {"groups": groups}


def _names_from(written: bytes, first: int, last: int) -> tuple[list[Any], int]:
    """Return the names from one on, at least ``_PART`` bytes of them or all, and the place behind them."""
    cut = first + _PART
    while True:
        cut = written.find(_BETWEEN_NAMES, cut, last)
        beyond = last if cut < 0 else cut + 1
        try:
            return json.loads(b"[" + written[first:beyond] + b"]"), beyond
        except ValueError:
            if cut < 0:
                raise
            cut = beyond  # within a name: at most two places of each look like its end and are not


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


def tabulated(level: Level, layout: Layout) -> Sequence[tuple[Mechanism, list[str]]]:
    """Return the groups as partitions of mechanisms: those marked total only of the total, others of both steps."""
    marked, others = by_branch(layout)
    return (level.total, marked), (level.step_1, others), (level.step_2, others)


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
