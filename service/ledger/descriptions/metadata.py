"""Descriptive metadata of accounts and releases: text or lists of text by name.

The interface decides which names there are. To the ledger they are words, which cost nothing and change nothing that is
counted.
"""

from collections.abc import Mapping

from service.ledger.journal.canonical_json import canonical

Metadata = dict[str, str | list[str]]

LARGEST = 1 << 16
"""Characters of canonical JSON: each edit keeps the whole in the journal."""


def merged(old: Metadata, patch: Mapping[str, str | list[str] | None]) -> Metadata:
    """Return the metadata after a merge patch (RFC 7396): null removes a member, and lists are replaced as a whole."""
    both = {**old, **patch}
    return {name: value for name, value in both.items() if value is not None}


def write_metadata(metadata: Metadata) -> str:
    """Return the canonical text of metadata, for the journal and the row."""
    return canonical(metadata)


def check_metadata(value: object) -> Metadata:
    """Return metadata that another program wrote, after checking its form.

    Raises:
        ValueError: it is no object of text and lists of text, or too long.
    """
    if not isinstance(value, dict) or len(canonical(value)) > LARGEST:
        raise ValueError("expected an object of limited length")
    for text in value.values():
        if not isinstance(text, str) and not (isinstance(text, list) and all(isinstance(item, str) for item in text)):
            raise ValueError("expected text, or lists of text")
    return value
