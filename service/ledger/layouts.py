"""What the values of a tabulation are: its groups in order, each with its detail. Public, as its noisy counts are."""

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

_LEVEL = 6


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
    """A layout as it is stored."""
    document = {"level": layout.level, "terms": layout.terms, "groups": layout.groups, "details": layout.details}
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return SealedLayout(layout, zlib.compress(written, _LEVEL), hashlib.sha256(written).hexdigest())


def unpack_layout(packed: bytes) -> Layout:
    """The layout that was stored."""
    return Layout(**json.loads(zlib.decompress(packed)))
