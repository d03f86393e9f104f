"""The entries that earlier versions wrote, by their kinds."""

import json
from collections import defaultdict
from functools import cache
from typing import Any

from service.ledger.journal import entries
from service.ledger.journal.entries import Content, Filing, ParsedEntry
from tests.compatibility.files import VERSIONS

FILING = Filing(3, 7, "a-release", "2030-01-01T00:00:00.000000Z")


@cache
def bodies() -> dict[str, tuple[str, ...]]:
    """The entries of every exported ledger, by file and account, in order."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for version in VERSIONS:
        for file in sorted(version.glob("*.export.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines()[1:]:
                document = json.loads(line)
                if "entry" in document:
                    found[f"{file} {json.loads(document['entry'])['account']}"].append(document["entry"])
    return {name: tuple(texts) for name, texts in found.items()}


@cache
def recorded(kind: type[Content]) -> tuple[tuple[str, ParsedEntry], ...]:
    """The recorded entries that say what this kind says: their texts, and what was read of them."""
    read = ((body, entries.read_text(body)) for texts in bodies().values() for body in texts)
    return tuple((body, stated) for body, stated in read if type(stated.content) is kind)


def content_in(body: str) -> dict[str, Any]:
    """The content of an entry's text."""
    return dict(json.loads(body)["content"])
