"""The suite that every kind of journal entry inherits: its content is canonical, read back strictly, and replayed."""

import json
from collections import defaultdict
from functools import cache
from typing import Any, ClassVar

import pytest

from service.ledger.journal import entries
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import WRONG, Content, Filing, ParsedEntry
from tests.compatibility.files import VERSIONS

FILING = Filing(3, 7, "a-release", "2030-01-01T00:00:00.000000Z")
_WRONG: tuple[Any, ...] = (7.5, True, [], {}, -1, "\ud800", {"account": "a"}, [1], "not such a thing")


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


def _may_stand(name: str, value: object, other: object) -> bool:
    """Tell whether a kind takes another value: any text for text, any object for a plan, which pricing reads."""
    if isinstance(value, str | None) and isinstance(other, str):
        return True
    return (name in ("plan", "metadata") and isinstance(other, dict)) or (name == "tags" and other == [])


class EntryContract:
    """Tests that hold of every kind; a subclass names it."""

    kind: ClassVar[type[Content]]
    optional: ClassVar[frozenset[str]] = frozenset()
    """Members that an entry may lack."""
    unrecorded: ClassVar[frozenset[str]] = frozenset()
    """Optional members that no recorded entry has."""

    def test_it_is_recorded(self) -> None:
        """Earlier versions wrote such entries."""
        assert recorded(self.kind)

    def test_what_was_recorded_is_written_byte_for_byte(self) -> None:
        """The oracle is the text that an earlier version hashed."""
        for body, stated in recorded(self.kind):
            written = stated.content.content().text
            assert f'"content":{written},' in body
            assert json.loads(written) == content_in(body)

    def test_reading_undoes_writing(self) -> None:
        for _, stated in recorded(self.kind):
            assert self.kind.read(json.loads(stated.content.content().text)) == stated.content

    def test_every_member_is_a_field(self) -> None:
        members = {name for body, _ in recorded(self.kind) for name in content_in(body)}
        assert members == set(self.kind.FORMS) - self.unrecorded

    def test_a_member_that_is_missing_is_refused(self) -> None:
        body, _ = recorded(self.kind)[0]
        for name in content_in(body).keys() - self.optional:
            self._refused(body, {other: value for other, value in content_in(body).items() if other != name})

    def test_a_member_that_is_unknown_is_refused(self) -> None:
        body, _ = recorded(self.kind)[0]
        self._refused(body, content_in(body) | {"unheard_of": None})

    @pytest.mark.parametrize("content", [None, [], "", 1])
    def test_a_content_that_is_no_object_is_refused(self, content: object) -> None:
        self._refused(recorded(self.kind)[0][0], content)

    def test_members_of_another_type_are_refused(self) -> None:
        for body, _ in recorded(self.kind)[:3]:
            for name, value in content_in(body).items():
                for other in filter(lambda other: not _may_stand(name, value, other), _WRONG):
                    self._refused(body, content_in(body) | {name: other})

    def test_its_rows_are_of_its_place(self) -> None:
        """The place that a row repeats is that of its entry."""
        for _, stated in recorded(self.kind):
            rows = stated.content.rows(FILING)
            for row in (row for added in rows.added.values() for row in added):
                assert (row["account_id"], row["seq"]) == FILING[:2]
            if "state" in rows.changed:
                assert rows.changed["state"] == stated.content.next_state()

    def _refused(self, body: str, content: object) -> None:
        with pytest.raises(BrokenChain, match=WRONG):
            entries.read(json.loads(body) | {"content": content})
